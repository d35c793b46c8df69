"""What recorded runs say of a job's time: how near it is to combinations of which runs were recorded, and their errors.

A combination is a job's software, architecture of GPU, precision and kind of model, of which each may be known and all
four together not. `tests/bench/bench_combinations.py` writes the list.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import Bools, Floats
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.catalog.frameworks import release_numbers
from jointopt.jobs.job import Job

OTHER_SOFTWARE = "generic"  # stands for all software of which no runs are recorded
# What runs that differ in each of the four count for: those of another kind of model say little.
UNLIKE_COUNTS = np.array([0.25, 0.25, 0.25, 0.0625])
CONTAINERS = 20  # releases from this number on are of the year's containers, others of the software itself

Combination = tuple[str, str, str, str]


@dataclass(frozen=True)
class RecordedRuns:
    """Combinations (m,) of recorded runs, and how far off these are: 5 and 95 % of log(measured / predicted)."""

    names: npt.NDArray[np.object_]  # (m, 4)
    below: Floats
    above: Floats
    tables: Floats  # how many sources have runs of it
    newest: tuple[tuple[int, ...], ...]  # release that any states
    wider: Mapping[str, Sequence[float]]  # factor on half-widths by kind, and by how many steps a plan is from these

    @classmethod
    def of(cls, rows: Collection[Any], wider: Mapping[str, Sequence[float]]) -> RecordedRuns:
        """Rows of the list: software, architecture, precision, kind, below, above, tables and the newest release."""
        names, (below, above, tables) = np.array([row[:4] for row in rows], object), np.array([r[4:7] for r in rows]).T
        newest = tuple(release_numbers(str(row[7])) for row in rows)
        return cls(names, below, above, tables, newest, wider)

    def named(self, combination: Combination) -> Combination:
        """The combination with `OTHER_SOFTWARE` in place of software that has no recorded runs."""
        return combination if combination[0] in self.names[:, 0] else (OTHER_SOFTWARE, *combination[1:])

    def half_widths(self, combination: Combination) -> tuple[float, float]:
        """90 % half-widths of the logarithm of time (below, above) of a job, by runs of like combinations."""
        unlike, alike = self._unlike(combination)
        counts = self.tables * alike * np.where(unlike, UNLIKE_COUNTS, 1.0).prod(axis=1)
        below, above = (np.sqrt((counts * side**2).sum() / counts.sum()) for side in (self.below, self.above))
        return float(below), float(above)

    def steps(self, combination: Combination) -> int:
        """In how many of the four the nearest recorded combination differs, `OTHER_SOFTWARE` one for all."""
        unlike, alike = self._unlike(combination)
        return int(unlike[alike].sum(axis=1).min())

    def _unlike(self, combination: Combination) -> tuple[Bools, Bools]:
        """Which of the four differ from each recorded combination, (m, 4), and whether that says anything, (m,).

        Runs under a profile say nothing of software without one, nor the other way round.
        """
        named = self.named(combination)
        alike = (self.names[:, 0] == OTHER_SOFTWARE) == (named[0] == OTHER_SOFTWARE)
        return np.asarray(self.names != np.array(named, object), bool), np.asarray(alike, bool)

    def is_newer(self, software: str, release: tuple[int, ...]) -> bool:
        """Whether a release is newer than all recorded ones of a software; of those of the same kind alone."""
        known = [one for one, name in zip(self.newest, self.names[:, 0], strict=True) if one and name == software]
        alike = [one for one in known if release and (one[0] >= CONTAINERS) == (release[0] >= CONTAINERS)]
        return bool(alike) and release > max(alike)

    def has(self, at: int, *values: str) -> bool:
        """Whether some combination has these ``values`` from position ``at`` on."""
        return bool((self.names[:, at : at + len(values)] == np.array(values, object)).all(axis=1).any())


@functools.cache
def recorded_runs() -> RecordedRuns:
    """The combinations of recorded runs in the catalogue."""
    return RecordedRuns.of(read_yaml("recorded_runs.yaml")["combinations"], read_yaml("recorded_runs.yaml")["wider"])


def combination_of(job: Job) -> Combination:
    """Software, architecture, precision and kind (dense, experts, adapters) of a job."""
    training = job.training
    kind = "adapters" if training.frozen else "experts" if job.model.is_moe else "dense"
    return training.framework.name, job.cluster.gpu.architecture.lower(), training.precision, kind
