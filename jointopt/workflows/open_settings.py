"""Each setting that a job leaves open, on which its answer hangs, priced with the values that it may well have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import JointOptError
from jointopt.core.schema import LAYOUT_COLUMNS, Columns
from jointopt.jobs.catalog.frameworks import framework_names, load_framework, same_efficiency
from jointopt.jobs.catalog.kernels import recipes_of
from jointopt.jobs.defaults import default_attention
from jointopt.jobs.job import ATTENTIONS, RECIPE_CLASSES, Job
from jointopt.jobs.jobfile import with_changes
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import format_plan, plan_records
from jointopt.report.doubts import OpenSetting
from jointopt.search.exact import fastest
from jointopt.surrogate.features import network_assumed
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import FEASIBLE
from jointopt.workflows.feasible_layouts import at_top, search_problem, top_times, worth_starting

if TYPE_CHECKING:
    from jointopt.report.proposal import Proposal

GENERIC = "generic"
NAMED = ("megatron-lm", "megatron-bridge", "torchtitan")  # of frameworks, those that most jobs run in, with own figures
SLOWER_NETWORK = 0.25  # of the reference system's: Jean Zay's A100 have 6.25 GB/s each, where that has 25
UNEVEN = 1.5  # tokens of the most loaded expert over the mean, as docs/job-file.md quotes it of arXiv:2408.15664
_SPLIT = ("dp", "tp", "pp", "cp", "ep")


@dataclass(frozen=True)
class Setting:
    """A setting that jobs may leave open: what stands in, and the values that it may well have instead."""

    key: str  # of the job file
    assumed: Callable[[Job], Any]  # None where the job states it, or where it moves nothing
    others: Callable[[Job], Sequence[Any]]


def _framework(job: Job) -> str | None:
    return GENERIC if job.training.framework.name == GENERIC else None


def _attention(job: Job) -> str | None:
    return job.training.attention if job.training.attention_assumed and job.model.has_attention else None


def _kernels(job: Job) -> list[str]:
    """Kernels of the framework's other releases on that GPU, and faster ones that another framework runs there."""
    gpu, training = job.cluster.gpu, job.training

    def usual(name: str) -> set[str]:
        return {default_attention(load_framework(name), gpu, training.dtype, newer=newer) for newer in (False, True)}

    rank = ATTENTIONS.index
    every = set().union(*map(usual, framework_names()))
    faster = {kernel for kernel in every if rank(kernel) > rank(training.attention)}
    return sorted((usual(training.framework.name) | faster) - {training.attention}, key=rank)


def _network(job: Job) -> float | None:
    return job.cluster.inter_node_gbytes_per_s if network_assumed(job) else None


def _recipe_class(job: Job) -> str | None:
    framework = job.training.framework
    return None if job.training.recipe_class or framework.name == GENERIC else framework.recipe_class


def _other_classes(job: Job) -> list[str]:
    """Classes of another efficiency; of a profile whose figures come from tuned runs, those of a community."""
    own = job.training.framework.recipe_class
    return [name for name in RECIPE_CLASSES if not same_efficiency([own, name])][:1]


def _fp8_recipe(job: Job) -> str | None:
    several = len(recipes_of(job.training.dtype, job.cluster.gpu)) > 1
    return "one of them" if job.training.fp8_recipe is None and several else None


def _routing(job: Job) -> float | None:
    training = job.training
    open_ = job.model.is_moe and training.moe_load_imbalance == 1.0 and not training.moe_router_force_load_balancing
    return 1.0 if open_ else None


def _dispatcher(job: Job) -> str | None:
    training = job.training
    return training.framework.token_dispatcher if job.model.is_moe and not training.token_dispatcher else None


SETTINGS = (
    Setting("training.framework", _framework, lambda job: NAMED),
    Setting("training.attention", _attention, _kernels),
    Setting("cluster.inter_node_gbytes_per_s", _network,
            lambda job: [SLOWER_NETWORK * job.cluster.inter_node_gbytes_per_s]),
    Setting("training.recipe_class", _recipe_class, _other_classes),
    Setting("training.fp8_recipe", _fp8_recipe,
            lambda job: recipes_of(job.training.dtype, job.cluster.gpu)),
    Setting("training.moe_load_imbalance", _routing,
            lambda job: [UNEVEN]),
    Setting("training.token_dispatcher", _dispatcher,
            lambda job: [name for name in ("deepep",) if name != job.training.framework.token_dispatcher]),
)  # fmt: skip


def open_words(job: Job) -> list[str]:
    """``key value`` of each setting that a job leaves open, as it is assumed."""
    pairs = ((setting.key, setting.assumed(job)) for setting in SETTINGS)
    return [
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in pairs
        if value is not None
    ]


def of_first(model: JobModel, found: Proposal) -> tuple[OpenSetting, ...]:
    """The open settings of a proposal by how much they move the time of its first row, the largest first.

    The first plan of each alternative is looked for within the degrees of the best layouts. By the physics alone; none
    where runs were measured on such a cluster, which show what its settings are.
    """
    front, shown = found.front, [layout.plans[0] for layout in found.best_layouts]
    if model.evidence.counts or not len(front["pp"]):
        return ()
    own = {name: front[name][:1] for name in LAYOUT_COLUMNS if name in front}
    near = {name: tuple(sorted({int(entry[name]) for entry in shown} | {int(own[name][0])})) for name in _SPLIT}
    sizes = {1, 2} | {int(entry["micro_batch_size"]) for entry in shown} | {int(own["micro_batch_size"][0])}
    return _priced(model.job, own, near | {"micro_batch_size": tuple(sorted(sizes))})


def of_plan(model: JobModel, layouts: Columns) -> tuple[OpenSetting, ...]:
    """As `of_first`, of one plan (layout columns of one row) that stays as it is, where it can be started so."""
    return () if model.evidence.counts else _priced(model.job, layouts, {})


def _priced(job: Job, own: Columns, near: Mapping[str, Any]) -> tuple[OpenSetting, ...]:
    found = list(_each(job, own, near))
    return tuple(sorted(found, key=lambda one: -abs(one.time_change_percent)))


def _each(job: Job, own: Columns, near: Mapping[str, Any]) -> Iterator[OpenSetting]:
    pairs = [(setting, setting.assumed(job)) for setting in SETTINGS]
    if all(value is None for _, value in pairs):
        return
    now_s, splits = _own_time_s(job, own), [int(own[name][0]) for name in _SPLIT]
    for setting, assumed in pairs:
        for other in setting.others(job) if assumed is not None else ():
            with suppress(JointOptError):  # the job cannot be run so
                there = with_changes(job, {setting.key: other})
                time_s, layout = _nearest(there, near) if near else (_own_time_s(there, _legal(there, own)), own)
                plan = "" if [int(layout[name][0]) for name in _SPLIT] == splits else _text(layout)
                change = 100.0 * (time_s / now_s - 1.0)
                yield OpenSetting(setting.key, assumed, other, change, plan)


def _own_time_s(job: Job, layout: Columns) -> float:
    return float(at_top(JobModel(job).physics(layout), 0)[0]["iteration_time_s"][0])


def _legal(job: Job, own: Columns) -> Columns:
    """The layout itself; JointOptError where the job has no such plan."""
    record = plan_records(own, np.full((1, int(own["pp"][0])), np.nan), [0])[0]
    if broken := check_plan(job, record):
        raise JointOptError(broken[0])
    return own


def _nearest(job: Job, near: Mapping[str, Any]) -> tuple[float, Columns]:
    """(s of the fastest layout of a job within such degrees that fits as well as any, that layout)."""
    space = enumerate_layouts(replace(job, search=replace(job.search, power_limit_w=None, **near)))
    model = JobModel(job)
    physics = model.cost_model(space.layouts, lazily=True)
    fitting = model.fit_probability(physics)
    if not (fitting >= FEASIBLE).any():
        raise JointOptError(f"No layout of {job.name!r} within these degrees fits in memory.")
    problem = search_problem(job, physics, space.clocks_mhz)
    some = np.flatnonzero(worth_starting(problem, physics, fitting) & (fitting >= FEASIBLE))
    best = fastest(problem, some, top_times(problem, physics))
    layout = {name: values[[best]] for name, values in physics.layouts.items()}
    return float(at_top(physics, best)[0]["iteration_time_s"][0]), layout


def _text(layout: Columns) -> str:
    return format_plan(layout, np.full((1, int(layout["pp"][0])), np.nan))
