"""Expected time of a run that fails, against hand-made limits and against runs that are played event by event."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.physics.event_simulation import simulated_times_s
from jointopt.physics.renewal import Run, best_interval_s, daly_s, expected, expected_parts, variance_s2, young_s
from jointopt.physics.repair import RepairShop, RepairShops

DAY_S, HOUR_S = 86_400.0, 3_600.0
RUN = Run(40 * DAY_S, 5.0, 1_500.0, 20.0, 3 * HOUR_S, 360.0)  # as of 16,384 GPUs
SHOPS = {
    "no spare": RepairShop(0, HOUR_S), "three spares": RepairShop(3, 8 * HOUR_S),
    "replicas that go on": RepairShop(1, 20 * HOUR_S, 16, 1 / 16),
    "GPUs less": RepairShop(0, DAY_S, 129, 1 / 1024),
}  # fmt: skip


def total_s(run: Run) -> np.ndarray:
    return run.work_s + sum(expected_parts(run).values())


@pytest.mark.parametrize("rolls_back", [True, False])
def test_the_closed_form_is_the_mean_of_simulated_runs_in_random_cases(rolls_back: bool) -> None:
    rng, cases, each = np.random.default_rng(0), 100, 400
    failure_s = 10 ** rng.uniform(3, 5, cases)
    shares = 10 ** rng.uniform([[-2.5], [-4], [-3]], [[0.2], [-1], [-0.7]], (3, cases)) * failure_s
    run = Run(300 * failure_s, 0.1 * shares[0], shares[0], shares[1], failure_s, shares[2], rolls_back)
    figures = {name: np.repeat(getattr(run, name), each) for name in ("work_s", "iteration_s", "interval_s")}
    figures |= {name: np.repeat(getattr(run, name), each) for name in ("checkpoint_s", "failure_s", "restart_s")}
    simulated = simulated_times_s(replace(run, **figures), cases * each).reshape(cases, each)
    off = total_s(run) / simulated.mean(axis=1) - 1.0
    assert np.abs(off).max() < 0.02  # 400 runs of 300 failures
    assert abs(off.mean()) < 0.001
    assert np.sqrt(variance_s2(run)) == pytest.approx(simulated.std(axis=1), rel=0.15)


@pytest.mark.parametrize("shop", SHOPS.values(), ids=SHOPS)
def test_repairs_cost_what_simulated_runs_lose_by_them(shop: RepairShop) -> None:
    run = replace(RUN, shop=shop)
    found, simulated = expected(run), simulated_times_s(run, 6_000)
    assert found.time_s == pytest.approx(simulated.mean(), rel=0.005)
    assert found.deviation_s == pytest.approx(simulated.std(), rel=0.2)


def test_every_policy_is_within_half_a_percent_of_simulated_runs_in_random_cases() -> None:
    rng, off = np.random.default_rng(5), []
    for _ in range(40):
        failure_s, places = 10 ** rng.uniform(3, 5), int(rng.choice([1, 4, 32]))
        checkpoint_s, restart_s, repair_s = failure_s * 10 ** rng.uniform([-4, -3, -2], [-1, -1, 0.3])
        shop = RepairShop(int(rng.choice([0, 1, 4])), repair_s, places, 1 / places)
        interval_s = float(best_interval_s(checkpoint_s, failure_s))
        times = 300 * failure_s, interval_s / 20, interval_s, checkpoint_s, failure_s, restart_s
        run = Run(*times, rolls_back=bool(rng.random() < 0.5), shop=shop)
        times_s = simulated_times_s(run, 2_000)
        off.append(abs(expected(run).time_s / times_s.mean() - 1) - 3 * times_s.std() / times_s.mean() / 2_000**0.5)
    assert max(off) < 0.005


def test_the_published_97_percent_of_bytedance_follow_from_fast_restarts_and_checkpoints() -> None:
    # assumed: the rate of Llama 3, six minutes to restart, checkpoints that stop training for a second
    published, failure_s = read_yaml("reliability.yaml")["published"], 3_600 / (1.97e-5 * 9_600)
    run = Run(90 * DAY_S, 5.0, float(best_interval_s(1.0, failure_s)), 1.0, failure_s, 360.0)
    assert run.work_s / expected(run).time_s == pytest.approx(published["bytedance"][0], abs=0.01)


def test_the_parts_and_the_work_add_up_to_the_time_of_daly() -> None:
    found = expected(replace(RUN, work_s=100 * 1_500.0))
    per_interval_s = 10_800 * math.exp(360 / 10_800) * math.expm1(1_520 / 10_800)
    assert found.time_s == pytest.approx(100 * per_interval_s, rel=1e-12)
    assert 150_000 + sum(found.lost_s.values()) == pytest.approx(found.time_s, rel=1e-12)
    assert found.failures == pytest.approx(found.time_s / 10_800, rel=1e-12)


def test_a_run_that_hardly_fails_takes_its_work_and_its_checkpoints() -> None:
    found = expected(replace(RUN, work_s=10_000.0, failure_s=1e12))
    assert found.time_s == pytest.approx(10_000 + 7 * 20, rel=1e-6)  # six intervals and the rest
    assert found.deviation_s < 1.0


def test_half_an_interval_is_lost_per_rare_failure() -> None:
    found = expected(replace(RUN, work_s=15_000_000.0, failure_s=1e6))
    assert found.lost_s["work"] / found.failures == pytest.approx(1_520 / 2, rel=0.002)


def test_the_best_interval_is_youngs_and_dalys_where_checkpoints_are_short() -> None:
    checkpoint_s, failure_s = np.array([1e-3, 1.0, 60.0]), np.array([1e6, 1e5, 1e4])
    assert best_interval_s(checkpoint_s, failure_s) == pytest.approx(daly_s(checkpoint_s, failure_s), rel=1e-4)
    assert best_interval_s(1e-3, 1e6) == pytest.approx(young_s(1e-3, 1e6), rel=1e-4)
    assert best_interval_s(60.0, 1e4) < young_s(60.0, 1e4)
    assert daly_s(3e4, 1e4) == 1e4
    assert best_interval_s(0.0, 1e4) == 0.0


def test_no_other_interval_takes_less_time_in_the_formula_nor_in_simulated_runs() -> None:
    best_s = float(best_interval_s(120.0, 10_800.0))
    of = replace(RUN, work_s=1_000 * best_s, checkpoint_s=120.0)
    tried = np.array([0.5, 0.8, 0.99, 1.0, 1.01, 1.25, 2.0])
    assert total_s(replace(of, interval_s=tried * best_s)).argmin() == 3
    runs = [simulated_times_s(replace(of, interval_s=share * best_s), 1_000).mean() for share in tried[[0, 1, 3, 5, 6]]]
    assert runs[2] <= 1.005 * min(runs)


@pytest.mark.parametrize("idle_share", [0.1, 0.5, 1.0])
def test_the_best_interval_for_energy_is_that_of_least_energy_in_the_formula(idle_share: float) -> None:
    of = replace(RUN, checkpoint_s=120.0, restart_s=1_800.0, failure_s=7_200.0)

    def joules(interval_s: float) -> float:  # of whole intervals, so that no rest blurs the least
        run = replace(of, interval_s=interval_s, work_s=1_000.0 * interval_s)
        return float(expected(run).energy_j(run.work_s, 1.0, idle_share) / run.work_s)

    least = minimize_scalar(joules, bounds=(10.0, 5_000.0), method="bounded", options={"xatol": 1e-3})
    found = best_interval_s(120.0, 7_200.0, 1_800.0, idle_share)
    assert found == pytest.approx(least.x, rel=1e-3)
    assert (found < best_interval_s(120.0, 7_200.0)) == (idle_share < 1.0)


def test_many_runs_at_once_are_what_each_of_them_is_alone() -> None:
    shops, of, days = tuple(SHOPS.values()), np.array([0, 3, 1, 2]), np.array([0.5, 20.0, 200.0, 40.0])
    rolls = np.array([True, False, True, False])
    run = replace(RUN, work_s=days * DAY_S, rolls_back=rolls, shop=RepairShops(shops, of))
    found = expected(run)
    for row, shop in enumerate(of.tolist()):
        alone = expected(replace(RUN, work_s=days[row] * DAY_S, rolls_back=bool(rolls[row]), shop=shops[shop]))
        assert found.time_s[row] == pytest.approx(alone.time_s, rel=1e-6)
        assert found.deviation_s[row] == pytest.approx(alone.deviation_s, rel=1e-6)
        assert {name: values[row] for name, values in found.lost_s.items()} == pytest.approx(alone.lost_s, rel=1e-4)


def test_one_place_of_repair_is_erlangs_loss_system() -> None:
    load, blocked = 8 / 3, 1.0
    for places in range(1, 5):
        blocked = load * blocked / (places + load * blocked)
    stops, slower, _ = RepairShop(3, 8 * HOUR_S).losses(1e12, 3 * HOUR_S)
    assert stops / (1 + stops) == pytest.approx(blocked, rel=1e-6)
    assert slower == 0.0


def test_replicas_miss_in_proportion_to_their_repairs() -> None:
    shop = RepairShop(0, HOUR_S, 100, 0.01)
    assert shop.losses(1e12, 10 * HOUR_S)[1] == pytest.approx(0.001, rel=0.002)  # a tenth of one of a hundred
    assert shop.speed[50] == pytest.approx(0.5)


def test_replicas_that_are_back_before_a_restart_ends_slow_no_training() -> None:
    run = replace(RUN, restart_s=0.5 * HOUR_S, shop=RepairShop(0, HOUR_S / 6, 2, 0.5))
    found = expected(run)
    assert found.time_s == pytest.approx(simulated_times_s(run, 2_000).mean(), rel=0.002)
    assert found.lost_s["degraded"] < 0.002 * found.time_s


def test_a_run_begins_with_all_nodes_whole() -> None:
    shop = RepairShop(2, DAY_S)
    assert shop.losses(1.5 * DAY_S, DAY_S)[0] < 0.7 * shop.losses(1e12, DAY_S)[0]


def test_longer_repairs_leave_fewer_replicas_however_short_the_run() -> None:
    runs = [replace(RUN, shop=RepairShop(0, days * DAY_S, 8, 1 / 8)) for days in (1, 10, 40, 400)]
    found = [expected(run) for run in runs]
    missing = [(one.lost_s["degraded"] + one.lost_s["idle"]) / one.time_s for one in found]
    assert missing == sorted(set(missing))
    assert found[0].time_s == pytest.approx(simulated_times_s(runs[0], 500).mean(), rel=0.05)


def test_many_spares_are_as_good_as_a_replacement_at_hand() -> None:
    with np.errstate(all="raise", under="ignore"):
        assert expected(replace(RUN, shop=RepairShop(200, HOUR_S))).time_s == pytest.approx(expected(RUN).time_s)


def test_the_gpus_draw_their_power_in_lost_work_too_and_idle_else() -> None:
    found = expected(RUN)
    trained_s = 40 * DAY_S + found.lost_s["work"]
    joules = found.energy_j(40 * DAY_S, 700.0, 70.0)
    assert joules == pytest.approx(700 * trained_s + 70 * (found.time_s - trained_s))
    assert found.quantile_s(0.5, 0.0) == pytest.approx(found.time_s)
    assert found.quantile_s(0.1, 1e9) == 1e9


def test_the_same_seed_plays_the_same_runs() -> None:
    times_s = simulated_times_s(RUN, 50, 3)
    assert (times_s == simulated_times_s(RUN, 50, 3)).all()
    assert (times_s != simulated_times_s(RUN, 50, 4)).all()
    assert times_s.min() > RUN.work_s
