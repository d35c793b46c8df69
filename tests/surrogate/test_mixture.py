"""Settings that a job leaves open: their values as a mixture, which a statement resolves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jointopt.core.schema import Columns
from jointopt.jobs.catalog.priors import alternatives, open_priors
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import job_from_options, with_changes
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cost_model import CostModel
from jointopt.surrogate.intervals import RESULTS, add_intervals, widened_by
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.mixture import LEAST, Mixture, mixture_of

SETTLED = {"framework_release": "25.07", "cuda_graph": "full_iteration", "moe_routing": "natural", "tp_overlap": True,
           "dp_overlap": True, "ep_overlap": False, "attention": "flash2"}  # fmt: skip


def job(**training: Any) -> Job:
    one = job_from_options("mixtral-8x7b", "h100-sxm5-80gb", 8, 64, 4096, framework="megatron-lm", dtype="bf16")
    return with_changes(one, {f"training.{key}": value for key, value in training.items()})


def some(one: Job) -> Columns:
    layouts = enumerate_layouts(one).layouts
    return {name: values[::97][:20] for name, values in layouts.items()}


def times_s(one: Job, layouts: Columns) -> Any:
    physics = CostModel(one, layouts)
    count = len(layouts["pp"])
    return physics.evaluate(np.arange(count), uniform_stage_clocks(layouts["pp"], physics.top_mhz))["iteration_time_s"]


def intervals(one: Job, layouts: Columns) -> tuple[Columns, Mixture | None]:
    """Plans at the top clock with the intervals of the physics, and the mixture that widened these."""
    model = JobModel.of(one, "none")
    physics, count = model.cost_model(layouts), np.arange(len(layouts["pp"]))
    clocks = uniform_stage_clocks(layouts["pp"], one.cluster.gpu.clock_max_mhz or 0.0)
    columns = layouts | {"stage_clock_mhz": clocks} | physics.evaluate(count, clocks)
    return model.intervals(columns), model.mixture(columns)


def log_width(found: Columns) -> Any:
    return np.log(found["iteration_time_s_high"] / found["iteration_time_s_low"])


def test_where_nothing_is_open_there_is_no_mixture() -> None:
    settled = job(**SETTLED)
    assert open_priors(settled) == {}
    found, mixture = intervals(settled, some(settled))
    assert mixture is None
    assert mixture_of(CostModel(settled, some(settled))).names == []
    plain = add_intervals(settled, found)
    assert found["iteration_time_s_high"] == pytest.approx(plain["iteration_time_s_high"])


def test_moments_are_those_of_the_weights_and_of_times_under_each_value() -> None:
    one = job()
    layouts = some(one)
    mixture, now_s = mixture_of(CostModel(one, layouts)), times_s(one, layouts)
    shifts: dict[str, list[Any]] = {}
    for setting, _, weight, there in alternatives(one):
        shifts.setdefault(setting, []).append((weight, np.log(times_s(there, layouts) / now_s)))
    assert {*mixture.mean} == {name for name, of in shifts.items() if any(shift.any() for _, shift in of)}
    for name, mean in mixture.mean.items():
        first = sum(weight * shift for weight, shift in shifts[name])
        second = sum(weight * shift**2 for weight, shift in shifts[name])
        assert mean == pytest.approx(first)
        assert mixture.variance[name] == pytest.approx(second - first**2)
    both, deviation = mixture.of_all
    assert both == pytest.approx(sum(mixture.mean.values()))
    assert deviation == pytest.approx(np.sqrt(sum(mixture.variance.values())))


def test_the_setting_named_first_moves_most_and_stating_it_changes_the_time_as_announced() -> None:
    one = job()
    layouts = some(one)
    mixture, now_s = mixture_of(CostModel(one, layouts)), times_s(one, layouts)
    moves = {name: np.hypot(mean, np.sqrt(mixture.variance[name])) for name, mean in mixture.mean.items()}
    for plan, words in enumerate(mixture.names):
        most = max(moves, key=lambda name: moves[name][plan])
        assert words.split()[0] == most
        assert {*words.split()} == {name for name in moves if moves[name][plan] >= LEAST}
    top = mixture.names[0].split()[0]
    announced = 0.0
    for value, weight in open_priors(one)[top].items():
        if value != "usual":
            announced = announced + weight * np.log(times_s(job(**{top: value}), layouts) / now_s)
    assert mixture.mean[top] == pytest.approx(announced)
    assert np.abs(announced).max() > LEAST


def test_a_stated_setting_narrows_the_interval_of_time_and_is_named_no_more() -> None:
    layouts = some(job())
    _, mixture = intervals(job(), layouts)
    assert mixture is not None
    top = mixture.names[0].split()[0]
    value = next(value for value in open_priors(job())[top] if value != "usual")
    stated, left = intervals(job(**{top: value}), layouts)
    assert left is not None
    assert not any(top in words.split() for words in left.names)
    assert (left.of_all[1] < mixture.of_all[1]).any()
    assert (log_width(stated) < log_width(intervals(job(), layouts)[0])).any()


def test_a_mixture_shifts_both_ends_by_its_mean_and_adds_its_deviation_in_squares() -> None:
    one = job()
    columns: Columns = {name: np.ones(1) for name in RESULTS} | {"pp": np.ones(1, np.int64)}
    columns = add_intervals(one, columns | {"stage_clock_mhz": np.full((1, 1), 1980.0)})
    low, high = (float(np.log(columns[f"iteration_time_s_{end}"][0])) for end in ("low", "high"))
    found = widened_by(one, columns, np.array([0.02]), np.array([0.1]))
    spread = 1.645 * 0.1
    assert np.log(found["iteration_time_s_low"]) == pytest.approx([0.02 - np.hypot(low, spread)], abs=1e-4)
    assert np.log(found["iteration_time_s_high"]) == pytest.approx([0.02 + np.hypot(high, spread)], abs=1e-4)
    assert found["iteration_time_s"] == columns["iteration_time_s"]
