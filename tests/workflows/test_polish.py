"""A clock for every pass of a plan's pipeline."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.errors import CatalogError, InfeasibleError, UsageError
from jointopt.jobs.catalog.frameworks import load_framework
from jointopt.jobs.jobfile import shipped_job, with_changes
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.curves import Curves
from jointopt.physics.instructions import InstructionCosts, windowed_problem
from jointopt.workflows import polish as polishing
from jointopt.workflows.polish import (
    SLOWDOWNS,
    Schedule,
    _best_within,
    _by_linear,
    _by_lowtime,
    _in_pace,
    _options,
    _points,
    polish,
)  # fmt: skip

# with graphs, since without them the host's launches of so small a model bound its passes whatever the clock
_SETTINGS = {"training.framework": "megatron-lm", "training.cuda_graph": "full_iteration"}
JOB = with_changes(shipped_job("opt-350m-8x4-gh200"), _SETTINGS)
PLAN = "dp=8 pp=4 mbs=8"
CLOCKS = st.lists(st.sampled_from(JOB.search.clock_mhz[20:]), min_size=4, max_size=4)


def plan_at(clocks: list[float], layout: str = PLAN) -> str:
    return f"{layout} stage_clock_mhz={';'.join(f'{c:g}' for c in clocks)}"


def schedule_of(plan: str) -> Schedule:
    parsed = parse_plan(plan, JOB)
    return Schedule(CostModel(JOB, parsed.layouts), parsed.stage_clock_mhz[0])


@settings(deadline=None, max_examples=5)
@given(CLOCKS, st.sampled_from(("dp=8 pp=4 mbs=8", "dp=4 tp=2 pp=4 mbs=16", "dp=8 pp=4 vpp=2 mbs=8")))
def test_a_clock_per_pass_never_takes_more_time_or_energy_than_a_clock_per_stage(clocks, layout) -> None:
    polished = polish(JOB, plan_at(clocks, layout), solver="linear")
    assert polished.chosen.iteration_time_s <= polished.iteration_time_s * (1 + 1e-8)
    assert polished.chosen.energy_j <= polished.energy_j * (1 + 1e-8)


@settings(deadline=None, max_examples=12)
@given(CLOCKS, CLOCKS)
def test_stage_clocks_as_clocks_per_pass_cost_what_the_physics_predicts(clocks, others) -> None:
    schedule = schedule_of(plan_at(clocks))
    choice = schedule.problem.at_clocks(np.array(others))
    reached = [schedule.problem.clocks_mhz(choice)[schedule.problem.graph.rank == r] for r in range(4)]
    if any(len(set(clock)) > 1 for clock in reached):
        return  # forward and backward passes have different clocks of least energy
    physics = CostModel(JOB, parse_plan(PLAN, JOB).layouts)
    exact = physics.evaluate(np.zeros(1, np.int64), np.array([[clock[0] for clock in reached]]))
    point = schedule.point(choice)
    assert point.iteration_time_s == pytest.approx(exact["iteration_time_s"][0], rel=1e-9)
    assert point.energy_j == pytest.approx(exact["energy_j"][0], rel=1e-9)


def test_a_plan_at_lower_clocks_is_polished_by_what_was_learned_of_these_clocks() -> None:
    parsed = parse_plan(plan_at([1440.0] * 4), JOB)
    plain, one = CostModel(JOB, parsed.layouts), np.zeros(2, np.int64)
    slow_s, top_s = plain.iteration_time_s(one, np.array([[1440.0], [1980.0]]))
    curves = Curves.rising(np.log([[top_s], [slow_s]]), np.log([[top_s], [1.1 * slow_s]]))
    schedule = Schedule(plain.corrected(np.ones(1), time_curves=curves), parsed.stage_clock_mhz[0])
    assert schedule.plan_s == pytest.approx(1.1 * slow_s)
    assert schedule.time_s(schedule.plan_choice(schedule.problem)) == pytest.approx(schedule.plan_s)


def test_of_the_schedules_shown_none_beats_another() -> None:
    points = polish(JOB, PLAN, solver="linear").points
    assert len(points) > 3
    assert (np.diff([p.iteration_time_s for p in points]) > 0).all()
    assert (np.diff([p.energy_j for p in points]) < 0).all()


def test_a_schedule_is_shown_for_each_slowdown_that_still_saves() -> None:
    polished = polish(JOB, "dp=16 pp=2 mbs=4 clock=1980", solver="linear")
    slowdowns = [100 * (point.iteration_time_s / polished.iteration_time_s - 1) for point in polished.points]
    limits = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0)  # per cent; slower ones take more energy for waiting
    for slowdown, limit in zip(slowdowns, limits, strict=True):
        assert limit - 0.25 < slowdown <= limit + 1e-6  # slack is spent up to the limit, but for a step of a clock


def test_a_longer_iteration_that_is_allowed_saves_more() -> None:
    none, some = (polish(JOB, PLAN, solver="linear", slowdown=share).chosen for share in (0.0, 0.04))
    assert some.energy_j < none.energy_j
    assert some.iteration_time_s > none.iteration_time_s


def test_the_linear_programme_uses_the_time_that_is_left_beside_the_schedule() -> None:
    schedule = schedule_of(plan_at([1980.0] * 4))
    limit_s = schedule.limit_s(0.02)
    times_s = [schedule.time_s(choice) for choice in _by_linear(schedule, schedule.problem, [limit_s])]
    assert schedule.beyond_s(schedule.plan_choice(schedule.problem)) > 3e-3 * limit_s
    assert max(times_s) == pytest.approx(limit_s, rel=1e-3)


def test_a_gpu_of_unknown_power_is_refused_with_what_is_missing() -> None:
    gpu = replace(JOB.cluster.gpu, power=None, tdp_w=None)
    with pytest.raises(CatalogError, match=r"no tdp_w for GPU .*predict power and energy"):
        polish(replace(JOB, cluster=replace(JOB.cluster, gpu=gpu)), PLAN)


def test_no_candidate_within_a_limit_takes_less_energy_than_the_schedule_that_is_shown() -> None:
    schedule = schedule_of(plan_at([1980.0, 1755.0, 1980.0, 1980.0]))
    limits = [schedule.limit_s(slowdown) for slowdown in (0.0, 0.01, 0.05)]
    shown = _points(schedule, schedule.problem, None, 0.0)
    plan = schedule.plan_choice(schedule.problem)
    candidates = [*_by_linear(schedule, schedule.problem, limits), plan, schedule.problem.spend_slack(plan, limits[1])]
    for limit in limits:
        shown_j, others_j = (
            min(point.energy_j for point in points if point.iteration_time_s <= limit * (1 + 1e-8))
            for points in (shown, map(schedule.point, candidates))
        )
        assert shown_j <= others_j * (1 + 1e-9)


def test_lowtime_comes_near_the_linear_programme() -> None:
    pytest.importorskip("lowtime")
    linear, lowtime = (polish(JOB, PLAN, solver=solver, slowdown=0.01, seconds=0.7) for solver in ("linear", "lowtime"))
    assert lowtime.unit_s is not None
    assert lowtime.unit_s < 0.2 * lowtime.shortest_pass_s
    assert lowtime.chosen.energy_j <= 1.01 * linear.chosen.energy_j


@pytest.mark.parametrize(("solver", "batches"), [("lowtime", 32), ("linear", 96)])
def test_a_pipeline_of_8_ranks_is_solved_by_512_or_1536_instructions(solver: str, batches: int) -> None:
    problem = schedule_of("dp=4 pp=8 mbs=2 clock=1980").problem
    assert windowed_problem(problem, polishing._MOST_INSTRUCTIONS[solver]).graph.num_micro_batches == batches


def test_the_unit_of_time_is_what_the_seconds_allow_and_no_finer_than_a_64th_of_a_pass() -> None:
    schedule = schedule_of("dp=8 pp=4 mbs=8 clock=1980")  # 128 instructions, a step of which takes 0.11 ms of each
    problem = schedule.problem
    range_s = problem.makespan_s(problem.slowest()) - schedule.problem.makespan_s(schedule.plan_choice(problem))
    assert schedule.unit_s(problem, 0.1408) == pytest.approx(range_s / 10)
    assert schedule.unit_s(problem, 1e9) == pytest.approx(min(o.duration_s[0] for o in problem.options) / 64)


@pytest.mark.parametrize("solver", ["linear", "lowtime"])
def test_many_micro_batches_are_solved_by_a_few_and_still_save(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lowtime")
    monkeypatch.setitem(polishing._MOST_INSTRUCTIONS, solver, 64)
    polished = polish(JOB, "dp=8 pp=4 mbs=4 clock=1980", solver=solver, seconds=0.3)
    assert polished.solved_micro_batches < polished.graph.num_micro_batches == 32
    assert polished.saving(polished.chosen) > 0.02


def test_experts_and_context_parallelism_polish_like_any_plan() -> None:
    job = shipped_job("mixtral-8x22b-8x8-h100")
    polished = polish(job, "dp=2 pp=8 cp=4 ep=8 mbs=4 clock=1800 rc=full", solver="linear", slowdown=0.01)
    assert polished.saving(polished.chosen) > 0.0


def test_without_lowtime_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lowtime", None)
    with pytest.raises(UsageError, match="pip install"):
        polish(JOB, PLAN)


def test_a_plan_without_pipeline_has_nothing_to_polish() -> None:
    with pytest.raises(InfeasibleError, match="no pipeline"):
        polish(JOB, "dp=32 mbs=4", solver="linear")


def test_a_plan_that_breaks_a_rule_is_refused_with_the_rule() -> None:
    with pytest.raises(InfeasibleError, match="does not divide the global batch"):
        polish(JOB, "dp=8 pp=4 mbs=3", solver="linear")


def test_a_pipeline_of_unequal_chunks_or_split_passes_is_refused() -> None:
    runs = replace(JOB, training=replace(JOB.training, framework=load_framework("torchtitan")))
    with pytest.raises(InfeasibleError, match=r"1F1B.*schedule zbv"):
        polish(runs, "dp=8 pp=4 vpp=2 mbs=8 zero=0 schedule=zbv", solver="linear")
    with pytest.raises(InfeasibleError, match=r"equal layers.*2;3;3;3"):
        polish(JOB, "dp=8 pp=4 vpp=2 mbs=8 stage_layers=2;3;3;3;4;3;3;3", solver="linear")


def test_a_plan_that_does_not_fit_is_refused_with_its_memory() -> None:
    with pytest.raises(InfeasibleError, match="memory"):
        polish(shipped_job("llama-3-70b-4x8-h200"), "dp=8 pp=4 mbs=8", solver="linear")


@pytest.mark.parametrize("wrong", [{"slowdown": -0.1}, {"slowdown": 5.0}, {"solver": "linaer"}, {"seconds": 0.0}])
def test_an_option_out_of_range_is_named(wrong) -> None:
    with pytest.raises(UsageError, match="must be"):
        polish(JOB, PLAN, **({"solver": "linear"} | wrong))


@pytest.mark.parametrize("kind", [3, 4])  # forward and backward passes of a stage without embedding or head
def test_a_chunk_of_an_interleaved_stage_takes_its_share_of_the_stage_s_time_and_energy(kind: int) -> None:
    whole, chunks = (schedule_of(f"dp=8 pp=4 mbs=8 clock=1980{vpp}") for vpp in ("", " vpp=2"))
    options = [schedule.problem.options[kind] for schedule in (whole, chunks)]
    for name in ("duration_s", "energy_j"):
        once, twice = (float(getattr(option, name)[0]) for option in options)
        assert 2 * twice == pytest.approx(once, rel=0.15)  # transfers of more chunks come on top


@pytest.mark.parametrize(
    ("count", "place", "tried"),
    [(48, 0, True), (48, 1, False), (48, 2, True), (48, 3, False), (48, 46, True), (3, 1, True)],
)
def test_of_a_window_s_schedules_all_or_of_48_every_second_are_tried_as_ends(
    count: int, place: int, tried: bool
) -> None:
    schedule = schedule_of("dp=8 pp=4 mbs=1 clock=1980")
    part = windowed_problem(schedule.problem, 64)
    candidates = [part.slowest()] * count
    candidates[place] = part.fastest()
    limit_s = schedule.time_s(schedule.problem.fastest()) * (1 + 1e-9)  # which slow ends cannot keep to
    assert bool(_best_within(schedule, part, candidates, limit_s)) == tried


def test_lowtime_gives_schedules_down_to_the_first_that_is_no_slower_than_the_plan() -> None:
    pytest.importorskip("lowtime")
    schedule = schedule_of("dp=8 pp=4 mbs=32 clock=1700")
    problem = schedule.problem
    unit_s = (problem.makespan_s(problem.slowest()) - problem.makespan_s(schedule.plan_choice(problem))) / 8
    found = [problem.makespan_s(choice) for choice in _by_lowtime(schedule, problem, unit_s)]
    assert len(found) > 3
    assert found[-1] <= problem.makespan_s(schedule.plan_choice(problem)) < min(found[:-1])


@pytest.mark.parametrize(("slower", "pace_s"), [(1.0, 2.0), (0.9, 2.0), (1.05, 1.9), (1.00625, 1.9875)])
def test_a_window_made_whole_runs_at_the_first_pace_that_ends_in_time(
    monkeypatch: pytest.MonkeyPatch, slower: float, pace_s: float
) -> None:
    monkeypatch.setattr("jointopt.workflows.polish.extend_choice", lambda part, choice, whole, pace: pace)
    problem, piece = (SimpleNamespace(graph=SimpleNamespace(num_micro_batches=n)) for n in (48, 8))
    piece.makespan_s = lambda _: 9.0
    # one second lies beyond the pipeline: 80 of 90 are left for 40 micro-batches, which take so much longer together
    schedule: Any = SimpleNamespace(problem=problem, beyond_s=lambda _: 1.0, time_s=lambda p: 10.0 + 40.0 * slower * p)
    part: Any = piece
    assert _in_pace(schedule, part, np.zeros(1, np.int64), 90.0) == pytest.approx(pace_s)


@pytest.mark.parametrize("plan", ["dp=8 pp=4 mbs=8", "dp=8 pp=4 vpp=2 mbs=8"])
def test_gradients_hide_under_the_last_backward_and_weights_under_the_first_forward_pass_of_a_rank(plan: str) -> None:
    schedule = schedule_of(plan)
    graph, seen = schedule.problem.graph, []
    schedule._beyond_s = lambda first, last: seen.append((first, last)) or 0.0
    choice = schedule.plan_choice(schedule.problem)
    schedule.beyond_s(choice)
    seconds, m = schedule.problem.durations_s(choice), graph.num_micro_batches

    def of_ranks(which: Any) -> Any:
        return np.bincount(graph.rank, seconds * which, 4)

    early = of_ranks(graph.backward & (graph.micro_batch == 0))
    assert seen[0][0] == pytest.approx(of_ranks(~graph.backward) / m)
    assert seen[0][1] == pytest.approx(of_ranks(graph.backward) - (m - 1) * early)  # with the optimizer step


def test_a_window_made_whole_is_tried_at_three_paces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jointopt.workflows.polish.extend_choice", lambda part, choice, whole, pace: pace)
    problem, piece = (SimpleNamespace(graph=SimpleNamespace(num_micro_batches=n)) for n in (48, 8))
    piece.makespan_s = lambda _: 9.0
    schedule: Any = SimpleNamespace(problem=problem, beyond_s=lambda _: 1.0, time_s=lambda p: 94.0)  # 4 s too late
    part: Any = piece
    assert _in_pace(schedule, part, np.zeros(1, np.int64), 90.0) == pytest.approx(2.0 - 2 * 4 / 40)


def test_beyond_the_schedule_the_first_forward_and_the_last_backward_pass_of_each_rank_count() -> None:
    schedule, seen = schedule_of(PLAN), []
    graph = schedule.problem.graph
    schedule._beyond_s = lambda first, last: seen.append((first, last)) or 0.0
    choice = np.zeros(len(graph), np.int64)
    choice[[graph.of_rank(rank)[end] for rank in range(4) for end in (0, -1)]] = 1  # unlike all others
    seconds = schedule.problem.durations_s(choice)
    schedule.beyond_s(choice)
    for rank in range(4):
        mine = graph.of_rank(rank)  # in the order in which they run
        assert seen[0][0][rank] == seconds[mine[0]]
        assert seen[0][1][rank] == seconds[mine[-1]]


@pytest.mark.parametrize(("plan_mhz", "lowest"), [(1000.0, 1000.0), (1500.0, 1500.0), (2000.0, 1500.0)])
def test_no_option_lies_below_the_clock_of_least_energy_nor_below_the_plan_s(plan_mhz: float, lowest: float) -> None:
    # 12, 9 and 12 J with the waiting that a pass displaces: 2 W of 4, 2 and 1 s
    mhz, one = np.array([1000.0, 1500.0, 2000.0]), np.array([[4.0, 2.0, 1.0]])
    energy = np.array([[4.0, 5.0, 10.0]])
    passes = InstructionCosts(mhz, one, one, energy, energy, np.zeros((1, 3)))
    for options in _options(passes, 1, np.array([plan_mhz]), 2.0):
        assert sorted(options.clock_mhz) == [clock for clock in mhz if clock >= lowest]


def test_the_frontier_goes_from_the_plan_s_time_to_three_tenths_more() -> None:
    assert [round(1e3 * one) for one in SLOWDOWNS] == [0, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300]


def test_the_shortest_pass_is_that_of_the_fastest_schedule() -> None:
    problem = schedule_of(PLAN).problem
    shortest_s = problem.durations_s(problem.fastest()).min()
    assert polish(JOB, PLAN, solver="linear").shortest_pass_s == pytest.approx(shortest_s)
