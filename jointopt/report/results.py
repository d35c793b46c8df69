"""What the verbs return: frozen objects that carry a whole answer, ready to print or to work on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jointopt.core.budget import Spent
from jointopt.core.schema import Columns
from jointopt.report.explain_json import explain_document
from jointopt.spec.job import Job


@dataclass(frozen=True)
class Proposal:
    """The Pareto-optimal plans of one job.

    ``front`` holds the plan columns, ``iteration_time_s`` (s), ``energy_j`` (J, all GPUs), ``avg_power_w`` (W per
    GPU), ``peak_memory_gib`` (GiB, worst GPU), each also with ``_low`` and ``_high`` (90 % interval), and
    ``in_domain`` (bool); it is sorted by time. ``reference`` has the same columns and one row: the fastest plan with
    every clock at its maximum.
    """

    job: Job
    seed: int
    surrogate: str  # name of the surrogate, or "none" for physics alone
    considered: int  # combinations of the joint space's layout columns before any rule
    layouts: int  # distinct layouts that the rules allow
    feasible_layouts: int  # of these, the ones that satisfy the constraints at some clock
    infeasible: Mapping[str, int]  # reason -> layouts dropped for it
    front: Columns
    reference: Columns
    informed_by: Mapping[str, int] = field(
        default_factory=dict
    )  # measured runs that moved it, by where they are
    reference_breaks: tuple[str, ...] = ()  # constraints that the reference breaks, one sentence each
    covered_plans: int = 0  # plans of the joint space that the answer speaks for
    evaluated_plans: int = 0  # plans whose time and energy were really computed
    study_name: str | None = None
    storage: str | None = None  # Optuna storage URL
    record: Columns | None = None  # every plan that the search evaluated, where a study was stored
    seconds: Mapping[str, float] = field(default_factory=dict)  # phase -> wall seconds
    assumed: tuple[str, ...] = ()  # sentences: what no source states and what stands in for it


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One real run: what was run, what was expected of it, and what came out."""

    plan: Mapping[str, Any]  # plan columns of one plan; stage_clock_mhz is a list of floats
    row: Mapping[str, Any]  # the measurement, columns of jointopt.core.schema
    predicted: Mapping[
        str, float
    ]  # results, each with _low and _high (90 % interval), when the plan was chosen
    broken: tuple[str, ...] = ()  # constraints of the job that the run did not keep

    @property
    def status(self) -> str:
        return str(self.row["status"])

    def result(self, name: str) -> float:
        """A result column as a number, NaN where unknown or where the run failed."""
        value = self.row.get(name)
        return math.nan if value is None or self.status != "ok" else float(value)


@dataclass(frozen=True, kw_only=True)
class TunedRun(MeasuredRun):
    """One run of `tune`; what was predicted are its objectives."""

    round: int  # from 1; plans of one round were chosen before any of them had run; 0 = measured before this tune
    probability_fits: float  # in memory and within the job's constraints, when the plan was chosen


@dataclass(frozen=True)
class Tuned:
    """What a budget of runs has found, in the order of the runs."""

    job: Job
    launcher: str
    seed: int
    candidates: int  # plans that could have been run
    runs: tuple[TunedRun, ...]
    front: tuple[int, ...]  # indices into runs: no other run beats them in every objective
    hypervolume: tuple[float, ...]  # after each run, see `jointopt.workflows.tune.volumes`
    stopped: str  # budget | converged | exhausted | interrupted | failed
    objectives: tuple[str, ...]  # of the job's, those that the runs measure
    storage: str | None = None
    notes: tuple[str, ...] = ()  # sentences: earlier runs that counted, predictions that were not trusted
    study_name: str | None = None  # the study whose trials the runs are
    gain_left: float = (
        math.nan
    )  # share by which the plans that are left are expected to better what was measured
    spent: Spent = field(default_factory=Spent)
    fault: str = ""  # why no run is a plan to use; empty where one is
    reason: str = ""  # why it failed, one of the notes
    unstored: int = 0  # runs that could not be stored


@dataclass(frozen=True, kw_only=True)
class ValidatedRun(MeasuredRun):
    """One proposed plan that was run."""

    in_domain: bool
    reference: bool  # what a job does without jointopt: the fastest plan at the GPU's own clock
    earlier: bool  # the store had measured it, it was not run again

    def error(self, name: str) -> float:
        """How far the prediction lies above the measurement, as a share of the measurement; NaN where unknown."""
        measured = self.result(name)
        return (self.predicted[name] - measured) / measured if measured else math.nan

    def inside(self, name: str) -> bool | None:
        """Whether the measurement lies in the 90 % interval; None where one of them is unknown."""
        low, high = self.predicted[f"{name}_low"], self.predicted[f"{name}_high"]
        value = self.result(name)
        return bool(low <= value <= high) if math.isfinite(value) and math.isfinite(low) else None


@dataclass(frozen=True)
class Validated:
    """The best proposed plans, run."""

    job: Job
    launcher: str
    surrogate: str
    proposed: int  # plans that none other was predicted to beat
    runs: tuple[ValidatedRun, ...]
    stopped: str  # done | interrupted | failed
    storage: str | None = None
    study_name: str | None = None
    notes: tuple[str, ...] = ()
    fault: str = ""  # why no run is a plan to use; empty where one is
    reason: str = ""  # why it failed, one of the notes
    unstored: int = 0  # runs that could not be stored


@dataclass(frozen=True)
class Stage:
    """One pipeline stage of an explained plan; power and memory are those of one GPU of the stage.

    All GPUs of a stage do the same, so a rank's energy is the stage's over ``num_gpus``.
    """

    clock_mhz: float
    busy_s: float
    idle_s: float
    energy_j: float  # all GPUs of the stage, one iteration
    memory_gib: float
    num_layers: int = 0
    power_w: float | None = None
    temperature_c: float | None = None  # of the hottest GPU
    num_gpus: int | None = None
    peak_power_w: float | None = None  # of the hottest GPU, while a micro-batch's kernels run
    power_limit_w: float | None = None  # the cluster's, or a lower one of the plan
    held_by: str = ""  # power_limit or temperature, where it keeps the clock below the one asked for
    energy_by_part_j: Mapping[str, float] = field(default_factory=dict)  # adds up to energy_j
    temperature_by_position_c: Mapping[str, float] = field(default_factory=dict)  # inlet, exhaust


@dataclass(frozen=True)
class Explanation:
    """One plan taken apart: every breakdown adds up to its total."""

    job: Job
    plan: Mapping[str, Any]  # plan columns of one plan; stage_clock_mhz is a list of floats
    feasible: bool
    violations: tuple[str, ...]  # sentences
    iteration_time_s: float
    energy_j: float  # all GPUs, one iteration
    avg_power_w: float  # per GPU
    peak_memory_gib: float  # worst GPU
    time_s: Mapping[str, float]  # part -> seconds on the critical path; adds up to iteration_time_s
    energy_by_part_j: Mapping[str, float]  # part -> joules; adds up to energy_j
    memory_gib: Mapping[str, float]  # part -> GiB of the worst GPU; adds up to peak_memory_gib
    stages: tuple[Stage, ...]
    assumed: tuple[str, ...] = ()
    memory_energy_j: Mapping[str, float] = field(
        default_factory=dict
    )  # of energy_by_part_j's memory, by purpose
    communication_energy_j: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict
    )  # of energy_by_part_j's communication, by kind of parallelism, then by link
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # result -> 90 % interval
    in_domain: bool = True  # recorded runs support such a plan
    surrogate: str = "none"
    informed_by: Mapping[str, int] = field(default_factory=dict)  # as in `Proposal`

    def to_json(self) -> dict[str, Any]:
        """The document of ``explain --json``: plain lists, numbers and strings."""
        return explain_document(self)


@dataclass(frozen=True)
class Relaxation:
    """What a looser limit, the others as they are, would buy; ``row`` is the plan chosen then."""

    row: int
    relaxed_to: float
    gain: float  # in units of the objective, 0 where nothing better comes within reach
    gain_percent: float


@dataclass(frozen=True)
class Limit:
    """One upper bound that a stored plan had to keep, and how the plan chosen stands to it."""

    name: str  # column that is bounded
    bound: float
    value: float  # of the plan chosen
    held: float  # what is held to the bound: the value, or the upper end of its interval
    high: float | None  # upper end of its 90 % interval
    binds: bool  # without this limit alone a better plan would be chosen
    relaxed: Relaxation  # by 5 %
    nearest: Relaxation | None  # the least that buys something worth having; None = nothing does


@dataclass(frozen=True)
class Selection:
    """The best of stored plans under limits. ``plans`` are all that were stored; rows are counted in them."""

    source: str
    job_name: str
    job: Job | None
    plans: Columns
    row: int  # the plan chosen
    objective: str  # time | energy | edp | knee
    energy: str  # column that counts as energy: energy_j, or facility_energy_j
    reason: str  # why that objective
    satisfying: int  # plans within all limits
    at_high_end: bool  # limits were kept by the upper ends of the 90 % intervals
    limits: tuple[Limit, ...]
    ends: tuple[int, int]  # the fastest and the thriftiest plan within all limits
    binds_together: bool  # no limit alone keeps the best plan away, all of them do
    measured: bool = False  # the values are of real runs, and not predicted

    @property
    def binding(self) -> tuple[str, ...]:
        """Limits that bind, each of them alone."""
        return tuple(limit.name for limit in self.limits if limit.binds)
