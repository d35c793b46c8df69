"""Failures that are not independent ones of a constant rate, and checkpoints that are whole later."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.physics.event_simulation import CONSTANT, Failures, SimulatedRuns, simulated, typical_run
from jointopt.physics.renewal import expected
from jointopt.physics.repair import RepairShop
from tests.physics.test_renewal import DAY_S, HOUR_S, RUN

SPARES = replace(RUN, shop=RepairShop(2, 8 * HOUR_S))


def same(one: SimulatedRuns, other: SimulatedRuns) -> bool:
    return bool((one.times_s == other.times_s).all())


def test_shape_1_is_the_exponential_distribution_and_no_share_of_racks_or_lemons_is_none() -> None:
    plain, none = simulated(SPARES, 300), Failures(shape=1.0, rack_share=0.0, rack_nodes=8, lemons=0.0, lemon_factor=9)
    assert same(plain, simulated(SPARES, 300, 0, none))
    assert none.simulation_reason(SPARES) == "" == CONSTANT.simulation_reason(SPARES)


@pytest.mark.parametrize("shape", [0.6, 2.0])
def test_weibull_failures_are_as_many_and_come_sooner_after_each_other_below_shape_1(shape: float) -> None:
    never = replace(RUN, checkpoint_s=0.0, restart_s=0.0, interval_s=5.0)  # so that failures are a renewal process
    found = simulated(never, 2_000, 0, Failures(shape=shape)).expected()
    assert found.failures == pytest.approx(expected(never).failures, rel=0.02)
    lost = simulated(RUN, 2_000, 0, Failures(shape=shape)).lost_s["work"].mean()
    assert (lost < simulated(RUN, 2_000).lost_s["work"].mean()) == (shape < 1.0)
    assert "Weibull" in Failures(shape=shape).simulation_reason(RUN)


def test_a_rack_of_one_node_is_a_node_and_a_larger_one_exhausts_the_spares() -> None:
    waits = [simulated(SPARES, 2_000, 0, Failures(rack_share=0.2, rack_nodes=nodes)) for nodes in (1, 4)]
    assert waits[0].times_s.mean() == pytest.approx(expected(SPARES).time_s, rel=0.01)
    assert waits[1].lost_s["idle"].mean() > 1.5 * waits[0].lost_s["idle"].mean()
    assert Failures(rack_share=0.2).simulation_reason(RUN) == ""  # all restart, and a replacement is at hand


def test_a_rack_with_all_copies_sends_the_run_back_to_the_checkpoint() -> None:
    run = replace(RUN, rolls_back=False)
    lost = [simulated(run, 500, 0, Failures(rack_share=share, rack_copies=True)).lost_s["work"].mean()
            for share in (0.0, 0.5, 1.0)]  # fmt: skip
    assert lost[0] < 0.02 * lost[2]
    assert lost[1] == pytest.approx(0.5 * lost[2], rel=0.05)
    assert lost[2] == pytest.approx(expected(RUN).lost_s["work"], rel=0.02)


def test_lemon_nodes_fail_as_often_as_stated_until_they_are_replaced() -> None:
    lemons = Failures(nodes=2_000, lemons=40.0, lemon_factor=20.0, lemon_failures=1.0)
    kept = replace(lemons, lemon_failures=None)
    assert same(simulated(RUN, 200), simulated(RUN, 200, 0, kept))  # the rate is that with all of them
    assert kept.simulation_reason(RUN) == ""
    found = simulated(RUN, 2_000, 0, lemons)
    rest = replace(RUN, failure_s=RUN.failure_s * (2_000 + 19 * 40) / 2_000)
    assert found.failures.mean() == pytest.approx(expected(rest).failures + 40 * 19 / 20, rel=0.02)
    assert "replaced" in lemons.simulation_reason(RUN)


@pytest.mark.parametrize("write_s", [300.0, 1_500.0])
def test_a_failure_before_a_checkpoint_is_whole_undoes_an_interval_more(write_s: float) -> None:
    run = replace(RUN, write_s=write_s)
    found, played = expected(run), simulated(run, 4_000).expected()
    assert found.time_s == pytest.approx(played.time_s, rel=0.001)
    assert found.time_s == pytest.approx(expected(replace(RUN, restart_s=RUN.restart_s + write_s)).time_s, rel=1e-12)
    assert found.lost_s == pytest.approx(played.lost_s, rel=0.01)
    assert found.deviation_s == pytest.approx(played.deviation_s, rel=0.1)
    kept = replace(run, rolls_back=False)  # another replica holds the state
    assert expected(kept).time_s == expected(replace(kept, write_s=0.0)).time_s


@pytest.mark.parametrize("run", [RUN, SPARES, replace(RUN, shop=RepairShop(0, HOUR_S, 8, 1 / 8))])
def test_the_parts_of_simulated_runs_are_those_of_the_formula(run: object) -> None:
    found, played = expected(run), simulated(run, 4_000)  # type: ignore[arg-type]
    parts = played.expected().lost_s
    for name, seconds in found.lost_s.items():
        assert parts[name] == pytest.approx(seconds, rel=0.03, abs=20.0), name
    assert RUN.work_s + sum(played.lost_s.values()) == pytest.approx(played.times_s, rel=1e-9)


def test_planned_stops_take_their_share_of_the_calendar_and_lose_nothing() -> None:
    found = expected(RUN)
    stopped = found.with_planned_stops(0.1)
    assert stopped.time_s == pytest.approx(found.time_s / 0.9)
    assert stopped.lost_s["restart"] - found.lost_s["restart"] == pytest.approx(0.1 * stopped.time_s)
    assert (stopped.lost_s["work"], stopped.failures) == (found.lost_s["work"], found.failures)


def test_the_course_of_a_typical_run_ends_at_its_parts() -> None:
    course = typical_run(SPARES)
    assert (np.diff(course["time"]) > 0.0).all()
    assert sum(course[name] for name in course if name != "time") == pytest.approx(course["time"], abs=1e-3)
    assert course["time"][-1] == pytest.approx(expected(SPARES).time_s, rel=0.05)
    assert course["useful"][-1] == pytest.approx(40 * DAY_S, rel=0.02)


def test_a_tenth_of_a_percent_of_failed_gpus_costs_a_tenth_of_the_replicas_and_hardly_any_nonuniform_ones() -> None:
    # arXiv:2504.06095: nearly 10 % at high tensor parallelism; here replicas of one domain of 96 GPUs
    dp, tp, repair_s = 128, 96, DAY_S
    failure_s = repair_s / (0.001 * dp * tp)
    dropped, nonuniform = (RepairShop(0, repair_s, places, share).losses(1e12, failure_s)[1]
                           for places, share in ((dp, 1 / dp), (dp + 1, 1 / (dp * tp))))  # fmt: skip
    published = read_yaml("reliability.yaml")["published"]["high-tp"][0]
    assert 0.8 * published < dropped < published
    assert nonuniform == pytest.approx(0.001, rel=0.01)
