"""The savings of the joint search over tuning the clocks of the fastest layout afterwards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jointopt.core.schema import Columns
from jointopt.report.tables import plan_entries, result_text

LITTLE = 0.0005  # a share that prints as 0.0 %
_START = "Joint search against two steps (the fastest layout, then its clocks, stage by stage):"
_NOTHING = "it saves nothing here; the fastest layout is the best at every clock."
_GOALS = {
    "energy": ("less energy in equal time", "iteration_time_s", "at_time_s"),
    "time": ("less time at equal energy", "energy_j", "at_energy_j"),
}


@dataclass(frozen=True)
class SavingShare:
    """The largest share of an objective that the joint front saves at equal value of the other, with its interval."""

    share: float
    at: float  # s or J
    low: float  # 90 % interval of the share; negative where it may cost
    high: float
    probability: float  # of saving anything

    def document(self, name: str, at: str) -> dict[str, float]:
        """The share of the objective ``name`` by the keys of the JSON document; ``at`` is that of the equal value."""
        key = f"largest_{name}_saving"
        return {
            key: self.share, at: self.at,
            f"{key}_low": self.low, f"{key}_high": self.high, f"{key}_probability": self.probability,
        }  # fmt: skip


@dataclass(frozen=True)
class JointSavings:
    """The two-step answer, and the most that the joint search saves against it."""

    two_step: Columns  # plan columns, time (s) and energy (J), by time
    energy: SavingShare
    time: SavingShare

    def document(self) -> dict[str, Any]:
        """The two-step front by time, and the savings."""
        front = {"two_step_front": plan_entries(self.two_step)}
        return front | self.energy.document("energy", "at_time_s") | self.time.document("time", "at_energy_j")


def joint_words(document: Mapping[str, Any]) -> str:
    """A `JointSavings.document` in a sentence: how much is saved at most, where, and how surely, as far as known."""
    shares = {name: float(document[f"largest_{name}_saving"]) for name in _GOALS}
    if max(shares.values()) < LITTLE:
        return f"{_START} {_NOTHING}"
    words = []
    for name, (what, equal, at_key) in _GOALS.items():
        ends = (document.get(f"largest_{name}_saving_{end}", math.nan) for end in ("low", "high", "probability"))
        (low, high, probability), sure = ends, ""
        if shares[name] >= LITTLE and math.isfinite(probability):  # a document of an earlier version states none
            interval = f"90 % interval {100.0 * low:+z.1f} to {100.0 * high:+z.1f} %"
            sure = f"; {interval}, more than nothing with probability {probability:.2f}"
        words.append(f"at most {shares[name]:z.1%} {what} (at {result_text(equal, float(document[at_key]))}{sure})")
    return f"{_START} {', '.join(words)}."
