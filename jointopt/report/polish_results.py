"""What `polish` answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jointopt.core.schema import Floats
from jointopt.physics.polish.graph import Graph
from jointopt.spec.job import Job


@dataclass(frozen=True)
class PolishedPoint:
    """One schedule with a clock per instruction, priced by the physics: all GPUs, one iteration."""

    iteration_time_s: float
    energy_j: float
    clock_mhz: Floats  # (N,), of the instructions of `Polished.graph`


@dataclass(frozen=True)
class Polished:
    """A plan under a clock for each forward and backward pass of a micro-batch, beside the plan as it was given."""

    job: Job
    plan: Mapping[str, Any]  # plan columns; stage_clock_mhz is a list of floats
    iteration_time_s: float  # of the plan with its stage clocks
    energy_j: float
    slowdown: float  # that was allowed
    solver: str  # lowtime | linear
    unit_s: float | None  # of time, that lowtime counted in
    shortest_pass_s: float  # the shortest forward or backward pass at the fastest clock
    solved_micro_batches: int  # for fewer than the plan's, the ones in the middle share their clocks
    graph: Graph
    points: tuple[PolishedPoint, ...]  # by time; none is beaten in both time and energy
    chosen: PolishedPoint  # least energy within the slowdown
    seconds: float  # that it took
    assumed: tuple[str, ...] = ()
    informed_by: Mapping[str, int] = field(
        default_factory=dict
    )  # measured runs that moved it, by where they are

    def saving(self, point: PolishedPoint) -> float:
        """Share of the plan's energy that the point saves."""
        return 1.0 - point.energy_j / self.energy_j
