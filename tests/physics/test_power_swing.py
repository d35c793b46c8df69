"""Power within an iteration: means over a window between those of passes and of pauses, by hand and by energy."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import breakdown
from jointopt.physics.explain.timeline import Swing, _extremes, power_swing, stage_power_w

# 2 s at 100 W, 1 s at 400 W, 1 s at 100 W, again and again
AT, JOULES = np.array([0.0, 2.0, 3.0, 4.0]), np.array([0.0, 200.0, 600.0, 700.0])


def swing(plan: str, window_s: float) -> tuple[Swing, Swing, CostModel]:
    job = shipped_job("llama-3-70b-4x8-h200")
    parsed = parse_plan(plan, job)
    physics = CostModel(job, parsed.layouts)
    return (*power_swing(physics, 0, parsed.stage_clock_mhz[0], window_s), physics)


@pytest.mark.parametrize(
    ("window_s", "high", "low"),
    [(0.5, 400.0, 100.0), (1.0, 400.0, 100.0), (2.0, 250.0, 100.0), (3.0, 200.0, 100.0), (4.0, 175.0, 175.0),
     (6.0, (700 + 500) / 6, (700 + 200) / 6)],
)  # fmt: skip
def test_a_window_slides_over_the_end_of_an_iteration_into_the_next(window_s: float, high: float, low: float) -> None:
    assert _extremes(AT, JOULES, 4.0, window_s) == pytest.approx((175.0, high, low))


def test_the_mean_over_an_iteration_is_that_of_its_energy() -> None:
    of_gpu, of_all, physics = swing("tp=4 pp=4 dp=2", 1.0)
    parts = breakdown(physics, 0, np.full(4, physics.top_mhz))
    np.testing.assert_allclose(of_gpu.mean_w, parts.stage_power_w, rtol=1e-3)
    assert of_all.mean_w[0] == pytest.approx(8 * of_gpu.mean_w.sum(), rel=1e-6)


def test_short_windows_see_passes_and_pauses_and_long_ones_the_mean() -> None:
    short, _, physics = swing("tp=4 pp=4 dp=2", 1e-3)
    runs_w, waits_w = stage_power_w(physics, 0, breakdown(physics, 0, np.full(4, physics.top_mhz)))
    np.testing.assert_allclose(short.peak_w, runs_w, rtol=1e-6)
    np.testing.assert_allclose(short.trough_w, waits_w, rtol=1e-6)
    long, _, _ = swing("tp=4 pp=4 dp=2", 1e6)
    np.testing.assert_allclose(long.peak_w, long.mean_w, rtol=1e-3)


def test_all_gpus_together_swing_less_than_one_as_stages_pause_in_turn() -> None:
    of_gpu, of_all, _ = swing("tp=4 pp=8 dp=1 micro_batch_size=4", 1.0)
    assert of_all.peak_w[0] <= 4 * of_gpu.peak_w.sum()
    assert of_all.trough_w[0] >= 4 * of_gpu.trough_w.sum()


def test_the_repeating_middle_of_a_long_iteration_leaves_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = swing("tp=4 pp=8 dp=1", 1.0)
    monkeypatch.setattr("jointopt.physics.explain.timeline.SWING_PASSES", 300)
    part = swing("tp=4 pp=8 dp=1", 1.0)
    for one, other in zip(whole[:2], part[:2], strict=True):
        np.testing.assert_allclose(one.peak_w, other.peak_w, rtol=0.02)
        np.testing.assert_allclose(one.mean_w, other.mean_w, rtol=0.02)
