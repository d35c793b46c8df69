"""The chosen plan keeps every limit, no stored plan that does is better, and relaxing buys what is chosen then."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jointopt.core.errors import InfeasibleError, UsageError
from jointopt.core.schema import Columns
from jointopt.jobs.catalog.clusters import build_cluster
from jointopt.jobs.job import Job, Training
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.model import Model
from jointopt.physics.site import facility_energy_j, with_site
from jointopt.report.results import Selection
from jointopt.workflows.select import choose, select
from jointopt.workflows.stored_plans import StoredPlans

CLUSTER = build_cluster({"gpu": "a100-sxm4-40gb", "nodes": 2, "gpus_per_node": 4})
JOB = Job("tiny", Model("tiny", 24, 1024, 4096, 16, 16, 50272, 64), Training(2048, 256), CLUSTER)
ONES = ("tp", "pp", "cp", "ep", "vpp", "micro_batch_size", "zero_stage")
SCORE = {"time": lambda t, e: t, "energy": lambda t, e: e, "edp": lambda t, e: t * e}


def stored(time_s: Any, energy_j: Any, **columns: Any) -> StoredPlans:
    """Plans of 8 GPUs with these results."""
    time, energy = np.asarray(time_s, float), np.asarray(energy_j, float)
    plans: Columns = {name: np.ones(len(time), np.int64) for name in ONES} | {"dp": np.full(len(time), 8)}
    plans |= {"sequence_parallel": np.zeros(len(time), bool), "recompute": np.zeros(len(time), np.int8)}
    plans |= {"iteration_time_s": time, "energy_j": energy, "avg_power_w": energy / time / 8}
    plans |= {"peak_memory_gib": np.full(len(time), 20.0), "stage_clock_mhz": np.full((len(time), 1), 1410.0)}
    return StoredPlans("made up", with_site(JOB, plans | columns), "tiny", JOB)


POINTS = st.lists(st.tuples(st.floats(1.0, 10.0), st.floats(1e3, 1e4)), min_size=1, max_size=12)
PLANS = POINTS.map(lambda points: stored(*zip(*points, strict=True)))
NAMES = ("iteration_time_s", "energy_j", "avg_power_w", "cluster_power_kw")
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "iteration_time_s": st.floats(1.0, 10.0), "energy_j": st.floats(1e3, 1e4),
        "avg_power_w": st.floats(12.5, 1250.0), "cluster_power_kw": st.floats(5.0, 20.0),
    },
).filter(len)  # fmt: skip
OBJECTIVE = st.sampled_from(sorted(SCORE))


def kept(plans: Columns, limits: Mapping[str, float]) -> list[int]:
    """Rows within all limits, one by one."""
    rows = range(len(plans["dp"]))
    return [i for i in rows if all(plans[name][i] <= bound * (1 + 1e-9) for name, bound in limits.items())]


def best(plans: Columns, limits: Mapping[str, float], objective: str) -> float:
    """The best score within all limits, one by one; infinite where no plan is."""
    scores = SCORE[objective](plans["iteration_time_s"], plans["energy_j"])
    return min((float(scores[i]) for i in kept(plans, limits)), default=np.inf)


def chosen(plans: StoredPlans, limits: Mapping[str, float], objective: str) -> Selection:
    try:
        return choose(plans, limits, objective)
    except InfeasibleError:
        assume(False)
        raise


def score(selection: Selection, row: int) -> float:
    time, energy = selection.plans["iteration_time_s"], selection.plans["energy_j"]
    return float(SCORE[selection.objective](time, energy)[row])


@given(PLANS, LIMITS, OBJECTIVE)
def test_the_plan_keeps_every_limit_and_no_better_plan_does(plans, limits, objective) -> None:
    found = chosen(plans, limits, objective)
    rows = kept(plans.plans, limits)
    assert found.row in rows
    assert found.satisfying == len(rows)
    assert score(found, found.row) == best(plans.plans, limits, objective)


@given(PLANS, LIMITS)
def test_there_is_no_plan_exactly_where_none_keeps_every_limit(plans, limits) -> None:
    if kept(plans.plans, limits):
        choose(plans, limits, "time")
    else:
        with pytest.raises(InfeasibleError, match="breaks"):
            choose(plans, limits, "time")


@given(PLANS, LIMITS, OBJECTIVE)
def test_a_limit_binds_exactly_where_a_better_plan_breaks_it_alone(plans, limits, objective) -> None:
    found = chosen(plans, limits, objective)
    assert {limit.name for limit in found.limits} == set(limits)
    for limit in found.limits:
        others = {name: bound for name, bound in limits.items() if name != limit.name}
        assert limit.binds == (best(plans.plans, others, objective) < score(found, found.row))


@given(PLANS, LIMITS, OBJECTIVE)
def test_relaxing_buys_what_a_search_of_the_relaxed_limit_finds(plans, limits, objective) -> None:
    found = chosen(plans, limits, objective)
    assert {limit.name for limit in found.limits} == set(limits)
    for limit in found.limits:
        relaxed = limits | {limit.name: 1.05 * limits[limit.name]}
        assert score(found, limit.relaxed.row) == best(plans.plans, relaxed, objective)
        assert limit.binds or limit.relaxed.gain == 0 == limit.relaxed.gain_percent
        assert limit.binds or limit.nearest is None


def test_five_per_cent_more_time_buys_the_share_of_the_chosen_plan_s_energy_that_it_saves() -> None:
    plans = stored([2.0, 2.08, 2.19, 4.0], [4000.0, 3000.0, 2500.0, 1000.0])
    (limit,) = choose(plans, {"iteration_time_s": 2.0}, "energy").limits
    found = limit.relaxed
    assert (found.row, found.relaxed_to) == (1, pytest.approx(2.1))
    assert (found.gain, found.gain_percent) == (pytest.approx(1000.0), pytest.approx(25.0))


@given(PLANS, LIMITS, OBJECTIVE)
def test_nothing_short_of_the_nearest_useful_bound_buys_a_thousandth(plans, limits, objective) -> None:
    found = chosen(plans, limits, objective)
    before = score(found, found.row)
    for limit in (limit for limit in found.limits if limit.nearest):
        assert score(found, limit.nearest.row) < 0.999 * before
        short = limits | {limit.name: limit.nearest.relaxed_to * (1 - 1e-6)}
        assert best(plans.plans, short, objective) >= 0.999 * before


@given(POINTS, st.integers(0, 11))
def test_a_deadline_beyond_which_energy_is_saved_has_a_nearest_useful_bound(points, place) -> None:
    plans = stored(*zip(*points, (20.0, 500.0), strict=True))  # the last one is the slowest, and the leanest
    found = choose(plans, {"iteration_time_s": points[place % len(points)][0]}, "energy")
    before, (limit,) = score(found, found.row), found.limits
    assert score(found, limit.nearest.row) < 0.999 * before
    assert best(plans.plans, {"iteration_time_s": limit.nearest.relaxed_to * (1 - 1e-6)}, "energy") >= 0.999 * before


@given(PLANS, LIMITS, OBJECTIVE)
def test_limits_bind_together_where_none_does_alone_and_a_better_plan_is_stored(plans, limits, objective) -> None:
    found = chosen(plans, limits, objective)
    better = best(plans.plans, {}, objective) < score(found, found.row)
    assert found.binds_together == (better and not found.binding)
    assert better == bool(found.binding or found.binds_together)


@given(PLANS, st.floats(5e3, 1e5))
def test_with_hosts_counted_the_budget_is_of_the_site(plans, budget) -> None:
    site = facility_energy_j(CLUSTER, plans.plans["iteration_time_s"], plans.plans["energy_j"])
    assume((site <= budget).any())
    found = choose(plans, {"energy_j": budget}, "energy", facility=True)
    assert (found.limits[0].name, found.limits[0].value) == ("facility_energy_j", site.min())


def test_a_plan_off_the_front_is_chosen_where_only_its_power_is_low_enough() -> None:
    plans = stored([1.0, 2.0], [4000.0, 5000.0])
    assert choose(plans, {"avg_power_w": 400.0}, "time").row == 1


def test_the_closest_plan_and_every_broken_limit_are_named() -> None:
    plans = stored([1.0, 2.0, 4.0], [4000.0, 3000.0, 2000.0])
    message = r"closest, dp=8 .* iteration_time_s by 25 % \(2 s over a limit of 1\.6 s\) and energy_j by 25 % \(3,000"
    with pytest.raises(InfeasibleError, match=message):
        choose(plans, {"iteration_time_s": 1.6, "energy_j": 2400.0}, "time")


def test_the_knee_is_where_both_ends_have_little_left_to_give() -> None:
    plans = stored([1.0, 1.02, 1.1, 1.5, 2.0], [9000.0, 7000.0, 5200.0, 5100.0, 5000.0])
    found = choose(plans, {}, "knee")
    assert (found.row, found.ends) == (2, (0, 4))


@pytest.mark.parametrize("plans", [([1.0], [5.0]), ([1.0, 2.0], [5.0, 9.0]), ([1.0, 1.0], [5.0, 5.0])])
def test_a_front_without_a_bend_has_its_best_plan_as_knee(plans: tuple[list[float], list[float]]) -> None:
    assert choose(stored(*plans), {}, "knee").row == 0


def test_the_high_end_of_an_interval_is_kept_where_that_is_requested() -> None:
    high = {f"{name}_{side}": values for side, factor in (("low", 0.9), ("high", 1.2)) for name, values in (
        ("iteration_time_s", np.array([1.0, 2.0]) * factor), ("energy_j", np.array([5e3, 4e3]) * factor),
        ("avg_power_w", np.array([625.0, 250.0]) * factor))}  # fmt: skip
    plans = stored([1.0, 2.0], [5e3, 4e3], **high)
    assert choose(plans, {"energy_j": 5500.0}, "time").row == 0
    found = choose(plans, {"energy_j": 5500.0}, "time", at_high_end=True)
    assert (found.row, found.limits[0].held) == (1, pytest.approx(4800.0))


def test_what_is_not_stored_is_not_guessed() -> None:
    plans = stored([1.0], [5e3])
    bare = replace(plans, plans={k: v for k, v in plans.plans.items() if "facility" not in k and "kw" not in k})
    with pytest.raises(UsageError, match="--at-high-end needs"):
        choose(plans, {"energy_j": 1e4}, "time", at_high_end=True)
    for limits, facility in (({"cluster_power_kw": 9.0}, False), ({}, True)):
        with pytest.raises(UsageError, match="give the job"):
            choose(bare, limits, "time", facility=facility)


@pytest.mark.parametrize(
    ("limits", "objective"),
    [
        ({}, "knee"),
        ({"max_iteration_time_s": 9.0}, "energy"),
        ({"max_iteration_time_s": 9.0, "max_power_w": 1900.0}, "energy"),
        ({"max_energy_j": 1e5}, "time"),
        ({"max_energy_j": 1e5, "max_iteration_time_s": 9.0}, "time"),
        ({"max_power_w": 1900.0}, "time"),
        ({"max_cluster_kw": 90.0}, "time"),
    ],
)
def test_the_limits_decide_what_is_best_unless_an_objective_is_given(
    limits: dict[str, float], objective: str, front_file: str
) -> None:
    assert select(front_file, **limits).objective == objective
    assert select(front_file, **limits, objective="edp").objective == "edp"


@pytest.fixture
def front_file(make_proposal: Callable[..., Any], tmp_path: Any) -> str:
    make_proposal(5).write(tmp_path)
    return str(tmp_path / "front.csv")


def test_stored_plans_keep_why_their_intervals_are_wider(make_proposal: Any, make_front: Any, tmp_path: Any) -> None:
    doubts = np.array(["model", "model", "model", "model clock", "model clock"], object)
    front = make_front(5, in_domain=np.zeros(5, bool), doubts=doubts)
    make_proposal(front=front, job=shipped_job("opt-350m-2x4-a100")).write(tmp_path)
    for source in (tmp_path, tmp_path / "front.csv"):
        text = select(str(source), objective="time").text()
        assert "is wider for every plan here: few recorded runs of mixtures of experts." in text
        assert [line[:2] for line in text.splitlines() if line[:1] in ("=", "e")][:2] == ["= ", "e?"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, 0.0, -1.0])
def test_a_limit_that_is_no_bound_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="max_power_w must be a number above 0"):
        select("anything", max_power_w=value)


def test_an_objective_that_heeds_no_limit_is_refused_with_one() -> None:
    with pytest.raises(UsageError, match="heeds no limit"):
        select("anything", max_power_w=300.0, objective="knee")
    with pytest.raises(UsageError, match="must be one of time, energy, edp, knee"):
        select("anything", objective="speed")


def test_plans_of_processors_of_unknown_power_are_chosen_by_time(tmp_path):
    blank = {"energy_j": None, "avg_power_w": None, "peak_memory_gib": 1.0, "stage_clock_mhz": [3000.0]}
    plan = dict.fromkeys(ONES, 1) | {"dp": 4, "sequence_parallel": False, "recompute": "none"} | blank
    plans = [plan | {"iteration_time_s": time_s} for time_s in (0.3, 0.2)]
    (tmp_path / "proposal.json").write_text(json.dumps({"front": plans}))
    chosen = select(str(tmp_path))
    assert (chosen.objective, chosen.row) == ("time", 1)
    with pytest.raises(UsageError, match="choose by time alone"):
        select(str(tmp_path), max_energy_j=100.0)


def test_plans_that_may_not_fit_in_memory_are_marked_with_the_probability() -> None:
    plans = stored([1.0, 2.0], [2e3, 1e3], fit_probability=np.array([0.9, 0.496]))
    assert choose(plans, {}, "energy").document()["fit_probability"] == 0.9
    tight = choose(plans, {}, "energy", allow_tight=True)
    assert (tight.document()["fit_probability"], tight.document()["feasible"]) == (0.496, False)
    assert "=~" in tight.text()
    alone = choose(stored([2.0], [1e3], fit_probability=np.array([0.496])), {}, "energy", allow_tight=True).text()
    assert "this plan is not expected to fit in memory: probability 0.49. More" in " ".join(alone.split())


def test_where_no_stored_plan_is_expected_to_fit_none_is_chosen() -> None:
    with pytest.raises(InfeasibleError, match=r"None of the 1 plans of .* is expected to fit .* 0\.50 at most"):
        choose(stored([2.0], [1e3], fit_probability=np.array([0.496])), {}, "energy")


def test_memory_is_not_mentioned_where_no_plan_states_its_probability() -> None:
    found = choose(stored([1.0, 2.0], [2e3, 1e3]), {}, "energy")
    assert "fit_probability" not in found.document()
    assert "~" not in found.text()
