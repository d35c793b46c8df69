"""The savings of the joint search over tuning the clocks of the fastest layout afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jointopt.core.schema import Columns
from jointopt.report.documents import plan_entries
from jointopt.report.table import paragraphs, result

LITTLE = 0.0005  # a share that prints as 0.0 %


@dataclass(frozen=True)
class Joint:
    """The two-step answer, and the most that the joint search saves against it."""

    two_step: Columns  # plan columns, time (s) and energy (J), by time
    energy_saving: float  # share of energy at equal time, the largest along the front
    at_time_s: float
    time_saving: float  # share of time at equal energy, the largest along the front
    at_energy_j: float

    def document(self) -> dict[str, Any]:
        """The two-step front by time, and the savings."""
        return {
            "two_step_front": plan_entries(self.two_step),
            "largest_energy_saving": self.energy_saving, "at_time_s": self.at_time_s,
            "largest_time_saving": self.time_saving, "at_energy_j": self.at_energy_j,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """The savings in a sentence, as lines."""
        return paragraphs([self.sentence()])

    def sentence(self) -> str:
        """The savings in a sentence."""
        start = "Joint search against two steps (the fastest layout, then its clocks, stage by stage):"
        if max(self.energy_saving, self.time_saving) < LITTLE:
            return f"{start} it saves nothing here; the fastest layout is the best at every clock."
        return (
            f"{start} at most {self.energy_saving:z.1%} less energy in equal time (at "
            f"{result('iteration_time_s', self.at_time_s)}), at most {self.time_saving:z.1%} less time at equal energy "
            f"(at {result('energy_j', self.at_energy_j)})."
        )
