"""A plan over signals of a site: limits that are kept, tokens that are lost, and signals that nothing keeps."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import jointopt
from jointopt.cli.main import jointopt as command
from jointopt.core.errors import InfeasibleError, TableError, UsageError
from jointopt.core.units import KWH, Z_90
from jointopt.jobs.jobfile import load_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.site import cluster_power_kw
from jointopt.report.power_schedule import PowerSchedule
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.follow import follow
from jointopt.workflows.ladder import Ladder, ladder_of

NAME, PLAN = "llama-3-70b-4x8-h200", "dp=4 tp=4 pp=2 vpp=2 mbs=1"
MODEL = JobModel(load_job(NAME))


@functools.cache
def ladder() -> Ladder:
    return ladder_of(MODEL, PLAN)


def own(name: str) -> float:
    """A figure of the plan at its own clocks."""
    return float(ladder().own[name][0])


def schedule(
    kind: str, values: Sequence[float], step_s: float = 3600.0, model: JobModel = MODEL, **asked: Any
) -> PowerSchedule:
    table = pd.DataFrame({"time_s": step_s * np.arange(len(values) + 1), kind: [*values, np.nan]})
    return follow(model, PLAN, signal=table, **asked)


@settings(max_examples=8)
@given(st.lists(st.floats(13.0, 60.0), min_size=1, max_size=20))
def test_each_step_is_the_fastest_rung_below_its_limit_with_95_percent(limits: list[float]) -> None:
    found = schedule("limit_kw", limits, step_s=86_400.0)
    kept = ladder().power_kw <= own("cluster_power_kw") * (1 + 1e-9)
    for step, limit_kw in zip(found.steps, limits, strict=True):
        assert step["power_kw_high"] <= limit_kw
        within = kept & (ladder().power_kw_high <= limit_kw)
        assert step["tokens_per_s"] <= max(ladder().tokens_per_s[within], default=0.0) * (1 + 1e-9)
        if step["tokens_per_s"] and len(found.steps) == 1:
            assert step["tokens_per_s"] == pytest.approx(ladder().tokens_per_s[within].max())
    assert found.lost_tokens >= -1e-6 * found.plan_tokens


def test_without_a_limit_the_plan_runs_at_least_as_fast_as_at_its_own_clocks_for_no_more_power() -> None:
    for found in (schedule("limit_kw", [np.inf, 1e3]), schedule("reduce_percent", [0.0])):
        assert found.tokens >= found.plan_tokens
        assert found.energy_j <= found.plan_energy_j
        assert found.plan_energy_j == pytest.approx(own("cluster_power_kw") * 1e3 * float(found.seconds.sum()))


def test_a_reduction_is_of_the_mean_power_at_the_plans_own_clocks() -> None:
    found = schedule("reduce_percent", [0.0, 20.0])
    assert found.steps[1]["limit_kw"] == pytest.approx(0.8 * own("cluster_power_kw"))
    assert 0.7 * own("cluster_power_kw") < found.steps[1]["power_kw_high"] <= 0.8 * own("cluster_power_kw")


def test_the_plan_that_is_printed_is_the_plan_itself_and_how_far_the_mean_falls_stands_below_a_reduction() -> None:
    found = schedule("reduce_percent", [25.0, 0.0])
    assert parse_plan(found.plan_text, MODEL.job).record == found.plan
    assert found.plan_text in " ".join(found.text().split())
    less = 1.0 - found.steps[0]["power_kw"] / own("cluster_power_kw")
    assert less > 0.25
    assert f"the mean falls by {100 * less:.1f} %" in " ".join(found.text().split())
    assert "the mean falls" not in schedule("limit_kw", [25.0, 40.0]).text()


def test_a_limit_is_exceeded_in_at_most_5_percent_of_runs_whose_power_is_drawn_from_the_intervals() -> None:
    rng, cluster = np.random.default_rng(0), MODEL.job.cluster
    plans = ladder().plans
    for limit_kw in (22.0, 26.0, 30.0, 34.0):
        rung = ladder().rung_under(limit_kw)
        assert rung is not None
        mean_w, high_w = (float(plans[name][rung]) for name in ("avg_power_w", "avg_power_w_high"))
        drawn_w = mean_w * np.exp(rng.standard_normal(20_000) * np.log(high_w / mean_w) / Z_90)
        exceeded = (cluster_power_kw(cluster, drawn_w) > limit_kw).mean()
        assert exceeded < 0.05
        assert exceeded > 0.001  # and no lower limit would do


def test_below_the_last_rung_the_run_pauses_and_restarts_after_its_checkpoint() -> None:
    found = schedule("limit_kw", [40.0, 14.0, 40.0])
    paused = found.steps[1]
    assert paused["paused"]
    assert paused["stage_clock_mhz"] == []
    assert paused["power_kw_high"] == pytest.approx(ladder().idle_kw_high)
    assert found.pauses == 1
    after, before = found.steps[2], found.steps[0]
    assert after["tokens_per_s"] == pytest.approx(before["tokens_per_s"] * (1 - ladder().restart_s / 3600))


def test_a_limit_below_a_pause_says_how_many_kw_are_missing() -> None:
    with pytest.raises(InfeasibleError, match=r"2\.\d+ kW are missing, since GPUs that idle .* 12\.\d+ kW in a pause"):
        schedule("limit_kw", [40.0, 10.0])


def test_by_prices_the_plans_tokens_cost_less_and_by_carbon_emit_less() -> None:
    by_price = schedule("price_per_kwh", [0.1, 0.4, 0.2, 0.05] * 6)
    by_carbon = schedule("carbon_g_per_kwh", [100.0, 400.0, 200.0, 50.0] * 6)
    for found in (by_price, by_carbon):
        assert found.tokens >= found.plan_tokens * (1 - 1e-6)
        assert found.cost is not None
        assert found.plan_cost is not None
        assert found.cost < found.plan_cost
        assert found.gap < 1e-6
    assert by_carbon.cost == pytest.approx(by_price.cost, rel=1e-6)  # 1 g is a thousandth of a kg
    prices = np.array([one["price_per_kwh"] for one in by_price.steps])
    power_kw = np.array([one["power_kw"] for one in by_price.steps])
    assert by_price.cost == pytest.approx(float((prices * power_kw * by_price.seconds).sum()) * 1e3 / KWH)


def test_with_the_price_of_a_gpu_hour_tokens_are_lost_where_electricity_is_dearer() -> None:
    cheap = replace(MODEL, job=replace(MODEL.job, cluster=replace(MODEL.job.cluster, price_per_gpu_hour=0.01)))
    dear = replace(MODEL, job=replace(MODEL.job, cluster=replace(MODEL.job.cluster, price_per_gpu_hour=50.0)))
    lost = [schedule("price_per_kwh", [0.1, 0.9], model=model).lost_tokens for model in (cheap, dear)]
    assert lost[0] > 100.0 * abs(lost[1])


def test_tokens_by_the_end_are_made_with_least_energy_and_are_refused_where_limits_leave_too_little_time() -> None:
    asked = 0.8 * own("tokens_per_s") * 7200
    found = schedule("limit_kw", [40.0, 30.0], tokens_by=asked)
    assert found.tokens == pytest.approx(asked)
    assert found.energy_j < schedule("limit_kw", [40.0, 30.0]).energy_j
    with pytest.raises(InfeasibleError, match="fewer than asked for"):
        schedule("limit_kw", [40.0, 30.0], tokens_by=2 * asked)


def test_clocks_stay_for_the_dwell_time_and_power_keeps_the_ramp() -> None:
    limits = [40.0, 25.0, 40.0, 28.0, 40.0, 40.0, 24.0, 40.0]
    still = schedule("limit_kw", limits, step_s=300.0, dwell_s=900.0)
    clocks = [tuple(one["stage_clock_mhz"]) for one in still.steps]
    changes = [0, *(at for at in range(1, 8) if clocks[at] != clocks[at - 1]), 8]
    assert min(np.diff(changes)[1:-1], default=3) >= 3
    slow = schedule("limit_kw", limits, step_s=300.0, ramp_kw_per_min=1.0)
    assert np.abs(np.diff([one["power_kw"] for one in slow.steps])).max() <= 5.0 + 1e-9
    assert max(still.tokens, slow.tokens) < schedule("limit_kw", limits, step_s=300.0).tokens


def test_where_only_a_ramp_leaves_nothing_but_a_pause_that_is_said() -> None:
    limits: dict[str, Any] = {"kind": "limit_kw", "values": [40.0, 13.0, 40.0], "step_s": 600.0}
    assert any("because of the ramp of 0.01" in one for one in schedule(**limits, ramp_kw_per_min=0.01).signal.remarks)
    assert not schedule(**limits, ramp_kw_per_min=10.0).signal.remarks
    assert not schedule("limit_kw", [13.0], ramp_kw_per_min=0.01).signal.remarks


def test_another_layout_is_changed_to_only_where_that_makes_more_tokens() -> None:
    short, long = (schedule("limit_kw", [40.0, 24.0], step_s=one, change_layouts=1) for one in (600.0, 86_400.0))
    assert {one["layout"] for one in short.steps} == {0}
    assert 1 in {one["layout"] for one in long.steps}
    assert long.tokens > schedule("limit_kw", [40.0, 24.0], step_s=86_400.0).tokens


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [("limit_kw", 40_000.0, "in W; expected kW"), ("limit_kw", 0.03, "in MW; expected kW"),
     ("carbon_g_per_kwh", 0.4, "in kg; expected g")],
)  # fmt: skip
def test_a_signal_in_another_unit_is_refused_in_one_sentence(kind: str, value: float, said: str) -> None:
    with pytest.raises(TableError, match=said):
        schedule(kind, [value, value])


def test_a_time_below_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="dwell_s must be a number from 0 on"):
        schedule("limit_kw", [40.0], dwell_s=-1.0)


def test_the_command_prints_the_contracts_document_and_a_text_of_25_lines_of_80_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("limits.csv").write_text("time_s,limit_kw\n" + "".join(f"{300 * n},{40 - n % 20}\n" for n in range(100)))
    words = ["follow", NAME, "--plan", PLAN, "--signal", "limits.csv", "--surrogate", "none", "--storage", "none"]
    found = json.loads(CliRunner().invoke(command, [*words, "--quiet", "--json"]).stdout)
    assert found.keys() >= {"schedule", "tokens", "energy_j", "lost_tokens"}
    names = {"from_s", "to_s", "stage_clock_mhz", "power_kw", "power_kw_high", "tokens_per_s"}
    assert all(one.keys() >= names for one in found["schedule"])
    assert len(found["schedule"]) == 99
    lines = CliRunner().invoke(command, [*words, "--quiet"], env={"COLUMNS": "80"}).stdout.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert len(CliRunner().invoke(command, [*words, "--quiet", "-v"]).stdout.splitlines()) > 90


def test_openg2g_takes_the_schedule_as_a_load_of_the_same_power(openg2g: Any, tmp_path: Path) -> None:
    from openg2g.datacenter.config import TrainingRun
    from openg2g.datacenter.workloads.training import TrainingTrace

    found, file = schedule("limit_kw", [40.0, 14.0, 30.0]), tmp_path / "load.csv"
    how = found.write_load(file)
    run = eval(how, {"TrainingRun": TrainingRun, "TrainingTrace": TrainingTrace})
    for step in found.steps:
        for at_s in (step["from_s"], 0.5 * (step["from_s"] + step["to_s"]), step["to_s"] - 1.0):
            assert run.eval_power(at_s, 0.0, 10_800.0) == pytest.approx(1e3 * step["power_kw"])


def test_python_has_the_verb() -> None:
    assert jointopt.follow is follow
