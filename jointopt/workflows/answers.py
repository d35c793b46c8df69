"""Pieces of the answers of several verbs: chosen plans with intervals, and what was assumed for a job."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import numpy as np

from jointopt.core.errors import PlanError, UsageError, naming_table, nearest_hint
from jointopt.core.facts import Assumption
from jointopt.core.schema import POWER_LIMIT, Columns, num_gpus
from jointopt.jobs.calibration import Calibration, load_calibration
from jointopt.jobs.catalog.kernels import kernel_constants, recipes_of
from jointopt.jobs.clocks import refused_limits
from jointopt.jobs.cluster import MEASURED, Machine, load_machine
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import JOB_KEYS, load_job, load_jobs
from jointopt.jobs.plans.rules import is_split
from jointopt.jobs.reading import is_number, is_whole, quoted_value
from jointopt.physics import cooling
from jointopt.physics.cost_model import CostModel
from jointopt.physics.training_runs import RUN_COLUMNS
from jointopt.search.pareto import concat_plans, take
from jointopt.surrogate.intervals import RESULTS
from jointopt.surrogate.job_model import JobModel

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.measurements import Measurements

    # What a verb takes in place of an object: the path of its file, which `accepts_paths` has read when it begins.
    JobLike = Job | JobModel | str | Path
    TableLike = pd.DataFrame | Measurements | str | Path
    CalibrationLike = Calibration | str | Path
    MachineLike = Machine | str | Path


def model_of(
    job: JobLike, surrogate: str, measured: TableLike | None, calibration: CalibrationLike | None, storage: str | None,
    machine: MachineLike | None, plans: tuple[str, ...] = (),
) -> JobModel:  # fmt: skip
    """`JobModel.of` of what `accepts_paths` has read."""
    return JobModel.of(cast("Job", job), surrogate, cast("Any", measured), cast("Any", calibration), storage,
                       cast("Any", machine), plans)  # fmt: skip


def predicted_plans(model: JobModel, physics: CostModel, plans: Columns) -> Columns:
    """Columns of chosen plans of ``physics`` as answers have them: plan, results, heat, intervals and doubts.

    ``plans`` (n,): ``layout_index``, ``stage_clock_mhz`` and results.
    """
    layout = plans["layout_index"]
    columns = {name: values[layout] for name, values in physics.layouts.items()}
    columns |= {name: plans[name] for name in (*RESULTS, *RUN_COLUMNS, "fit_probability") if name in plans}
    columns |= physics.heat(layout, plans["stage_clock_mhz"])
    columns["stage_clock_mhz"] = plans["stage_clock_mhz"]
    return model.bounded(columns)


def assumptions(job: Job) -> tuple[Assumption, ...]:
    """Assumptions that stand in for values of the job's cluster, GPU and training that nothing states."""
    cluster, gpu, training = job.cluster, job.cluster.gpu, job.training
    framework, found = training.framework, list(job.cluster.assumed)
    recipes = recipes_of(training.dtype, gpu) if training.fp8_recipe is None else ()
    if len(recipes) > 1:
        text = f"one of {', '.join(recipes)}"
        how = "casts of delayed scaling and products as in recorded runs, which state none either, are assumed"
        found.append(Assumption.not_given("fp8_recipe", None, text, f"it is {text}; {how}"))
    if training.frozen and training.dtype != "fp32":  # in full fp32 training there is but one format
        kept = f"held in {framework.frozen_dtype}, as is usual with {framework.name}"
        reason = f"frozen weights are {kept}"
        found.append(Assumption("frozen_dtype", framework.frozen_dtype, reason, "frozen weights", kept))
    found += gpu.power.assumed if gpu.power else ()
    if training.dtype == "fp32" and not framework.tf32:
        reason = "dtype: fp32 products run on FP32 cores, as PyTorch does unless TF32 is allowed"
        found.append(Assumption("dtype", "fp32", reason))
    limit_w, rated_w = cluster.power_limit_w, gpu.tdp_w
    if rated_w is not None and limit_w > rated_w:  # as some boards take
        reason = f"power_limit_w: {limit_w:g} W is more than the {rated_w:g} W that the GPU is rated for"
        found.append(Assumption("power_limit_w", limit_w, f"{reason}; taken as stated"))
    # figures that the machine measured stand in place of assumed constants of kernels
    measured = {key for key, figure in _MEASURED_BY.items() if cluster.origin(figure) == MEASURED}
    measured |= {"gemm"} if training.dtype in gpu.product_time_factor else set()
    found += [one for one in kernel_constants(gpu).assumed if one.key not in measured]
    return (*found, cooling.ASSUMED)


_MEASURED_BY = {"collectives": "intra_node_gbytes_per_s", "network": "inter_node_gbytes_per_s"}


def check_priceable(job: Job, record: Mapping[str, Any], broken: list[str]) -> None:
    """PlanError where nothing can be computed of a plan; other rules that it breaks are reported beside its figures.

    That is so for another number of GPUs, a batch that its micro-batches do not divide, stages without layers, and a
    power limit above the cluster's, where nothing is known of the GPU.
    """
    batch = job.training.global_batch_size % (record["dp"] * record["micro_batch_size"])
    odd = record["pp"] > job.model.num_layers or not is_split(
        job.model, record["stage_layers"], record["pp"] * record["vpp"]
    )
    if broken and (num_gpus(record) != job.cluster.num_gpus or batch or odd):
        raise PlanError(f"The plan cannot be priced for job {job.name!r}: {' '.join(broken)}")
    limits = [record.get(POWER_LIMIT) or 0.0, *record.get("stage_power_limit_w", ())]
    if job.cluster.gpu.power is not None and max(limits) > job.cluster.power_limit_w:
        refused = refused_limits(job.cluster, [watts for watts in limits if watts])
        raise PlanError(f"The plan cannot be priced for job {job.name!r}: its power limit states {refused}.")


# How plans differ from the one that an answer compares them with, with the intervals of that.


_OF_STAGES = "stage_power_limit_w"


@dataclass(frozen=True)
class ReferencePlan:
    """A model, and the plan (columns of one row) that its plans are compared with."""

    model: JobModel
    reference: Columns

    def differences(self, plans: Columns) -> tuple[Columns, Columns]:
        """(`JobModel.differences` of plans (n,) from the reference, those of the reference from itself).

        Both are empty where stages of the reference have limits of their own.
        """
        if _OF_STAGES in self.reference or not len(plans["pp"]):
            return {}, {}
        found = self.model.differences(self._with_reference(plans), len(plans["pp"]))
        return take(found, slice(0, -1)), take(found, slice(-1, None))

    def with_intervals(self, plans: Columns) -> Columns:
        """Plans (n,) with intervals of their results and of the differences from the reference, and with doubts."""
        if not len(plans["pp"]):
            return plans
        if _OF_STAGES in self.reference:
            return self.model.bounded(plans)
        both = self.model.bounded(self._with_reference(plans))
        return take(both | self.model.differences(both, len(plans["pp"])), slice(0, -1))

    def _with_reference(self, plans: Columns) -> Columns:
        """The plans, then the reference, in the columns that all have."""
        return concat_plans(with_power_limits([plans, self.reference], self.model.job))


def with_power_limits(parts: Sequence[Columns], job: Job) -> list[Columns]:
    """Plans in the columns of ``parts``, all with the power limit that holds for them where any states one."""
    if not any(POWER_LIMIT in one for one in parts):
        return list(parts)
    usual = job.cluster.power_limit_w
    limits = [np.fmin(one.get(POWER_LIMIT, np.full(len(one["pp"]), usual)), usual) for one in parts]
    return [one | {POWER_LIMIT: limit_w} for one, limit_w in zip(parts, limits, strict=True)]


# Objects or the paths of their files: callers of the verbs may give either, as on the command line.


P = ParamSpec("P")
R = TypeVar("R")


def accepts_paths(verb: Callable[P, R]) -> Callable[P, R]:
    """The verb, called with the path of a file in place of any job, table, calibration or machine too.

    UsageError where an argument is neither object nor path, or a text or number of another kind than its annotation.
    """
    signature = inspect.signature(verb)
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())

    @functools.wraps(verb)
    def run(*args: P.args, **options: P.kwargs) -> R:
        if not open_ended and (unknown := next((name for name in options if name not in defaults), None)):
            of_job = f"; it is a key of the job: jointopt.job(..., {unknown}=...)" if unknown in JOB_KEYS else ""
            hint = of_job or nearest_hint(unknown, defaults)
            raise UsageError(f"{verb.__name__} takes no argument {unknown!r}{hint}.")
        given = signature.bind(*args, **options)
        table = given.arguments.get("table")
        for name in _READERS.keys() & given.arguments.keys():
            value, (read, types, expected) = given.arguments[name], _READERS[name]
            if isinstance(value, str | Path):
                given.arguments[name] = read(Path(value))
            elif type(value).__name__ not in types and (value is not None or defaults[name] is not None):
                raise UsageError(f"{name} must be {expected}; got {type(value).__name__}.")
        for name in given.arguments.keys() - _READERS.keys():
            given.arguments[name] = _check_plain(
                name, given.arguments[name], str(signature.parameters[name].annotation)
            )
        with naming_table(table) if isinstance(table, str | Path) else nullcontext():
            return verb(*given.args, **given.kwargs)

    return run


def as_list(plans: Any) -> list[Any]:
    """The plans as a list, of one where a single one is given; UsageError where they are neither."""
    if isinstance(plans, str | Mapping):
        return [plans]
    if not isinstance(plans, Iterable):
        raise UsageError(f"plans must be a plan as text or a mapping, or a list of them; got {type(plans).__name__}.")
    return list(plans)


def as_paths(name: str, value: Any) -> list[Path]:
    """The argument of that name as paths, of one where a single one is given; UsageError where it is neither."""
    each = [value] if not isinstance(value, Iterable) or isinstance(value, str) else list(value)
    if not all(isinstance(one, str | Path) for one in each):
        raise UsageError(f"{name} must be the path of a file, or a list of them; got {type(value).__name__}.")
    return [Path(one) for one in each]


def _check_plain(name: str, value: Any, annotation: str) -> Any:
    """The argument as its annotation has it, where that is of text and numbers alone; a path is text too."""
    kinds = annotation.split(" | ")
    if not _PLAIN.keys() >= {*kinds} or (value is None and "None" in kinds):
        return value
    if "str" in kinds:
        if isinstance(value, str | Path):
            return value if "Path" in kinds else str(value)
        raise UsageError(f"{name} must be {_TEXTS.get(name, 'a text')}; got {type(value).__name__}.")
    fits, expected = _PLAIN[kinds[0]]
    low, high = _SPANS.get(name, (-math.inf, math.inf))
    if not fits(value) or (name in _SPANS and not low <= value <= high):
        span = f" from {low:.0f} " + ("on" if high == math.inf else f"to {high:.0f}") if low > -math.inf else ""
        raise UsageError(f"{name} must be {expected}{span}; got {quoted_value(value)}.")
    return value


def _table(path: Path) -> pd.DataFrame:
    from jointopt.runs.table import read_table

    return read_table(path)


def _measured_rows(path: Path) -> Measurements:
    from jointopt.surrogate.measurements import Measurements

    return Measurements.of(_table(path), str(path))


# The kinds of plain arguments by the name in an annotation: what fits, and words for it.
_PLAIN: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "int": (is_whole, "a whole number"),
    "float": (lambda value: isinstance(value, float) or is_number(value), "a number"),
    "bool": (lambda value: type(value).__name__ in ("bool", "bool_"), "True or False"),
    **dict.fromkeys(("str", "Path", "None"), (lambda value: False, "a text")),
}  # fmt: skip
_SPANS = {"trials": (0, math.inf), "seed": (0, 2**32 - 1), "top": (1, math.inf), "batch": (1, math.inf)}
_TEXTS = {
    "source": "the path of a file or a folder, or the name of a study",
    "baseline": "a plan as text, or the path of a run's file",
    "surrogate": "the name of a shipped surrogate, the path of a folder, or 'none'",
    "out": "the path of a folder",
    "storage": "the URL of a database",
}

# How a file is read in place of an argument, names of its types (pandas is not imported for them), and words for both.
_READERS: Mapping[str, tuple[Callable[[Path], Any], tuple[str, ...], str]] = {
    "job": (load_job, (Job.__name__, JobModel.__name__), "a Job (`jointopt.load_job`) or the path of a job file"),
    "jobs": (load_jobs, ("list", "tuple", Job.__name__), "Jobs (`jointopt.load_jobs`) or the path of a job file"),
    "table": (_table, ("DataFrame",), "a pandas DataFrame or the path of a CSV file"),
    "measured": (_measured_rows, ("DataFrame", "Measurements"), "a pandas DataFrame or the path of a CSV file"),
    "calibration": (load_calibration, (Calibration.__name__,), "a Calibration or the path of its file"),
    "machine": (load_machine, (Machine.__name__,), "a Machine or the path of the file that `doctor --probe` wrote"),
}
