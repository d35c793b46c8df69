"""Each setting that a job leaves open, on which its answer hangs, priced with the values that it may well have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import JointOptError
from jointopt.core.schema import ATTENTIONS, DEGREES, LAYOUT_COLUMNS, RECIPE_CLASSES, STAGE_LAYERS, Columns, Floats
from jointopt.jobs.catalog.frameworks import framework_names, load_framework, same_efficiency
from jointopt.jobs.catalog.kernels import recipes_of
from jointopt.jobs.catalog.priors import alternatives
from jointopt.jobs.defaults import default_attention
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import with_changes
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.stages import Split
from jointopt.jobs.plans.text import format_plan, plan_records
from jointopt.report.doubts import OpenSetting
from jointopt.search.exact import fastest_layout
from jointopt.surrogate.features import network_assumed
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.feasible_layouts import (
    feasible_layouts,
    plan_at_top_clock,
    search_problem,
    top_times,
    worth_starting,
)
from jointopt.workflows.search_steps import Stopwatch

if TYPE_CHECKING:
    from jointopt.report.proposal import Proposal

GENERIC, FRAMEWORK = "generic", "training.framework"
NAMED = ("megatron-lm", "megatron-bridge", "torchtitan")  # of frameworks, those that most jobs run in, with own figures
SLOWER_NETWORK = 0.25  # of the reference system's: Jean Zay's A100 have 6.25 GB/s each, where that has 25
AS_USUAL = "as usual"  # what stands in for a setting of the software: what the framework's profile has
_SPLIT = (*DEGREES, "ep")


def open_settings(job: Job) -> list[tuple[str, Any, Sequence[Any]]]:
    """(key of the job file, what stands in, what it may well be instead) of each setting that a job leaves open."""
    training, cluster, model = job.training, job.cluster, job.model
    framework, found = training.framework, list[tuple[str, Any, Sequence[Any]]]()
    if framework.name == GENERIC:
        found.append((FRAMEWORK, GENERIC, NAMED))
    likely = dict[str, list[Any]]()  # by setting, the values that a prior gives a weight, as the mixture has them
    for setting, value, *_ in alternatives(job):
        likely.setdefault(setting, []).append(value)
    stands_in = {"attention": training.attention}
    found += [(f"training.{name}", stands_in.get(name, AS_USUAL), values) for name, values in likely.items()]
    if training.attention_assumed and model.has_attention and "attention" not in likely:
        # kernels that older and newer releases run on that GPU, and faster ones that another framework runs there
        names = {framework.name, *framework_names()}
        usual = {
            name: {
                default_attention(load_framework(name), cluster.gpu, training.dtype, newer=newer)
                for newer in (False, True)
            }
            for name in names
        }
        rank = ATTENTIONS.index
        faster = {one for one in set().union(*usual.values()) if rank(one) > rank(training.attention)}
        others = (usual[framework.name] | faster) - {training.attention}
        found.append(("training.attention", training.attention, sorted(others, key=rank)))
    if network_assumed(job):
        assumed = cluster.inter_node_gbytes_per_s
        found.append(("cluster.inter_node_gbytes_per_s", assumed, [SLOWER_NETWORK * assumed]))
    if not training.recipe_class and framework.name != GENERIC:
        # one class of another efficiency; of a profile whose figures come from tuned runs, that of a community
        own = framework.recipe_class
        other = [name for name in RECIPE_CLASSES if not same_efficiency([own, name])][:1]
        found.append(("training.recipe_class", own, other))
    recipes = recipes_of(training.dtype, cluster.gpu)
    if training.fp8_recipe is None and len(recipes) > 1 and "fp8_recipe" not in likely:
        found.append(("training.fp8_recipe", AS_USUAL, recipes))
    if model.is_moe and not training.token_dispatcher:
        usual_way = framework.token_dispatcher
        found.append(("training.token_dispatcher", usual_way, [one for one in ("deepep",) if one != usual_way]))
    return [one for one in found if one[1] is not None]


def open_words(job: Job) -> list[str]:
    """``key value`` of each setting that a job leaves open, as it is assumed."""
    return [
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value, _ in open_settings(job)
    ]


def settings_of_proposal(model: JobModel, found: Proposal) -> tuple[OpenSetting, ...]:
    """The open settings of a proposal by how much they move the time of its recommended plan, the largest first.

    Where that has the fastest layout, the fastest of each alternative is looked for within the degrees and splits of
    the best layouts; where another one is recommended, or power is bounded, the plan itself is priced. By the physics
    alone; none where runs were measured on such a cluster, which show what its settings are.
    """
    front, shown, row = found.front, [layout.plans[0] for layout in found.best_layouts], found.decision.row
    if model.evidence.counts:
        return ()
    own = {name: front[name][[row]] for name in LAYOUT_COLUMNS if name in front}
    bounds = model.job.constraints
    if (bounds.avg_power_w, bounds.cluster_power_kw) != (None, None) or any(own[n][0] != front[n][0] for n in own):
        return settings_of_plan(model, own, front["stage_clock_mhz"][[row], : int(own["pp"][0])])
    shown += plan_records(own, np.full((1, int(own["pp"][0])), np.nan), [0])
    near = {name: tuple(sorted({int(entry[name]) for entry in shown})) for name in _SPLIT}
    sizes = {1, 2} | {int(entry["micro_batch_size"]) for entry in shown}
    codes = {(int(one["pp"]), int(one["vpp"]), STAGE_LAYERS.code(one["stage_layers"])) for one in shown}
    splits = [(pp, vpp, STAGE_LAYERS.numbers(code)) for pp, vpp, code in sorted(codes) if code]
    return _priced_alternatives(model.job, own, near | {"micro_batch_size": tuple(sorted(sizes))}, splits)


def settings_of_plan(model: JobModel, layouts: Columns, stage_clock_mhz: Floats) -> tuple[OpenSetting, ...]:
    """As `settings_of_proposal`, of one plan (columns of one row) under every alternative that can start it."""
    return () if model.evidence.counts else _priced_alternatives(model.job, layouts, {}, [], stage_clock_mhz)


def _priced_alternatives(
    job: Job,
    own: Columns,
    near: Mapping[str, Any],
    splits: Sequence[tuple[int, int, Split]],
    stage_clock_mhz: Floats | None = None,
) -> tuple[OpenSetting, ...]:
    """Each alternative of an open setting with the change of time, of the plan itself or of the fastest ``near`` it.

    ``splits`` of the layers, (pp, vpp, split), are tried beside those that are listed; under another framework
    others may be faster, and are looked for. At ``stage_clock_mhz`` (1, stages), by default the highest.
    """
    found: list[OpenSetting] = []
    if not (settings := open_settings(job)):
        return ()
    now_s, split = _own_time_s(job, own, stage_clock_mhz), [int(own[name][0]) for name in _SPLIT]
    for key, assumed, others in settings:
        for other in others:
            with suppress(JointOptError):  # the job cannot be run so
                there = with_changes(job, {key: other})
                tried = None if key == FRAMEWORK else splits
                time_s, layout = (
                    _fastest(there, near, tried) if near else (_own_time_s(there, own, stage_clock_mhz), own)
                )
                clocks = np.full((1, int(layout["pp"][0])), np.nan)
                if not near and (broken := check_plan(there, plan_records(own, clocks, [0])[0])):
                    raise JointOptError(broken[0])
                plan = "" if [int(layout[name][0]) for name in _SPLIT] == split else format_plan(layout, clocks)
                found.append(OpenSetting(key, assumed, other, 100.0 * (time_s / now_s - 1.0), plan))
    return tuple(sorted(found, key=lambda one: -abs(one.time_change_percent)))


def _own_time_s(job: Job, layout: Columns, stage_clock_mhz: Floats | None) -> float:
    physics = JobModel(job).physics(layout)
    if stage_clock_mhz is None:
        return float(plan_at_top_clock(physics, 0)[0]["iteration_time_s"][0])
    return float(physics.evaluate(np.zeros(1, np.int64), stage_clock_mhz)["iteration_time_s"][0])


def _fastest(
    job: Job, near: Mapping[str, Any], splits: Sequence[tuple[int, int, Split]] | None
) -> tuple[float, Columns]:
    """(s of the fastest layout of a job within such degrees that fits as well as any, that layout)."""
    model = JobModel(replace(job, search=replace(job.search, power_limit_w=None, **near)))
    space, layouts, peak_bytes, _ = feasible_layouts(model, Stopwatch(quiet=True), splits=splits)
    physics = model.cost_model(layouts, peak_bytes, lazily=True)
    problem = search_problem(model.job, physics, space.clocks_mhz)
    some = np.flatnonzero(worth_starting(problem, physics, model.fit_probability(physics)))
    best = fastest_layout(problem, some, top_times(problem, physics))
    layout = {name: values[[best]] for name, values in physics.layouts.items()}
    return float(plan_at_top_clock(physics, best)[0]["iteration_time_s"][0]), layout
