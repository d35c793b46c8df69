"""Gains of real runs: less time, less energy in no more time, and the hypervolume of the measured front."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jointopt.report.real_runs import MeasuredRun

LITTLE = 0.0005  # a share that prints as 0.0 %


def sound(runs: Sequence[MeasuredRun]) -> list[int]:
    """Places of the runs that succeeded and kept the job's constraints."""
    return [place for place, run in enumerate(runs) if run.status == "ok" and not run.broken]


@dataclass(frozen=True)
class Gains:
    """The fastest of real runs, and the one of least energy in no more time, against one of them; by their places.

    Shares are of what that run took; NaN where energy was not measured.
    """

    against: int
    called: str  # what that run is
    fastest: int
    less_time: float
    leanest: int
    less_energy: float

    @classmethod
    def of(cls, runs: Sequence[MeasuredRun], against: int, called: str) -> Gains:
        """Those of sound ``runs`` against the one at a place."""
        time, energy = ([run.result(name) for run in runs] for name in ("iteration_time_s", "energy_j"))
        good = sound(runs)
        fastest = min(good, key=time.__getitem__)
        known = [place for place in good if time[place] <= time[against] and math.isfinite(energy[place])]
        leanest = min(known, key=energy.__getitem__, default=against)
        less_time, less_energy = 1.0 - time[fastest] / time[against], 1.0 - energy[leanest] / energy[against]
        return cls(against, called, fastest, less_time, leanest, less_energy)

    def document(self) -> dict[str, Any]:
        """The shares, and the places of the runs."""
        return {
            "against": self.against, "fastest": self.fastest, "less_time": self.less_time,
            "least_energy_in_no_more_time": self.leanest, "less_energy": self.less_energy,
        }  # fmt: skip

    def sentences(self, name: Callable[[int], str]) -> list[str]:
        """Each share with the run that it is against; ``name`` is how the run at a place is called."""
        fastest, leanest = (f"{word[:1].upper()}{word[1:]}" for word in (name(self.fastest), name(self.leanest)))
        than = f"{name(self.against)}, {self.called}"
        lines = [f"No run is faster than {than}."]
        if self.less_time > LITTLE:
            lines = [f"{fastest} is the fastest: {self.less_time:.1%} less time than {than}."]
        if self.less_energy > LITTLE:
            lines.append(f"{leanest} needs {self.less_energy:.1%} less energy than that one in no more time.")
        elif math.isfinite(self.less_energy):
            lines.append("No run needs less energy than that one in no more time.")
        return lines


def hypervolume_words(before: float, after: float) -> str:
    """By how much the hypervolume of a measured front grew; blank where there is none."""
    if not after > 0.0:
        return ""
    grew = f"grew from {before:.1%} to {after:.1%}" if after - before > LITTLE else f"stayed at {after:.1%}"
    return f"The measured front's hypervolume {grew} of the box from zero to 1.1 times the worst run in each objective."
