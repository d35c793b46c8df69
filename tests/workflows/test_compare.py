"""Plans side by side."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import jointopt
from jointopt.cli.main import jointopt as command
from jointopt.core.errors import PlanError, UsageError
from jointopt.jobs.jobfile import shipped_job
from jointopt.report.comparison import Compared, differences
from jointopt.report.plans import parts_between

JOB = "llama-3-8b-1x8-h100"
PLANS = ("dp=8 zero_stage=3", "dp=4 tp=2 zero_stage=1", "dp=8 zero_stage=3 recompute=full")


@pytest.fixture(scope="module")
def compared():
    return jointopt.compare(shipped_job(JOB), PLANS)


def test_differences_of_parts_add_up_to_those_of_the_totals(compared):
    first, *others = compared.to_dict()["plans"]
    for other, parts in zip(others, compared.to_dict()["differences"], strict=True):
        assert sum(parts["time_s"].values()) == pytest.approx(other["iteration_time_s"] - first["iteration_time_s"])
        assert sum(parts["energy_by_part_j"].values()) == pytest.approx(other["energy_j"] - first["energy_j"])
        assert sum(parts["memory_gib"].values()) == pytest.approx(other["peak_memory_gib"] - first["peak_memory_gib"])


def test_every_plan_is_that_of_explain(compared):
    for plan, one in zip(PLANS, compared.plans, strict=True):
        assert one.to_dict() == jointopt.explain(shipped_job(JOB), plan).to_dict()


def test_the_largest_part_of_a_difference_comes_first_and_equal_ones_do_not_count():
    found = parts_between({"compute": 1.0, "bubble": 0.5, "host": 0.1}, {"compute": 1.2, "bubble": 0.0, "host": 0.1})
    assert list(found) == ["bubble", "compute"]
    assert found["compute"] == pytest.approx(0.2)


def test_recompute_shows_as_more_compute_and_fewer_activations(compared):
    time_s, energy, memory = differences(compared.plans[0], compared.plans[2])
    assert time_s.startswith("time +")
    assert "more compute" in time_s
    assert energy.startswith("energy +")
    assert "less activations" in memory


def test_the_parts_in_which_plans_differ_most_come_first(compared):
    block = compared.text().split("\n\nTime, s")[1].split("\n\n")[0]
    parts = [line.split()[0] for line in block.splitlines()[1:]]
    apart = [float(np.ptp([plan.time_s.get(part, 0.0) for plan in compared.plans])) for part in parts]
    assert parts[:2] == ["compute", "tp_comm"]
    assert apart == sorted(apart, reverse=True)


def test_every_plan_has_a_column_and_lines_fit(compared):
    lines = compared.text().splitlines()
    assert max(map(len, lines)) <= 100
    assert next(line for line in lines if line.startswith("Time, s")).split()[2:] == ["A", "B", "C"]
    assert any(line.startswith("C: ") and "rc=full" in line for line in lines)


@pytest.mark.parametrize("count", [1, 9])
def test_a_number_of_plans_that_cannot_be_compared_is_refused(count):
    with pytest.raises(UsageError, match=rf"{count} plans? to compare; give 2 to 8\."):
        jointopt.compare(shipped_job(JOB), PLANS[:1] * count)


def test_a_plan_that_is_none_is_refused_as_by_explain():
    with pytest.raises(PlanError, match="dp"):
        jointopt.compare(shipped_job(JOB), [PLANS[0], "dp=3"])


def test_the_command_prints_one_document():
    words = [word for plan in PLANS for word in ("--plan", plan)]
    result = CliRunner().invoke(command, ["compare", JOB, *words, "--json"])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout).keys() == {"schema", "job", "plans", "differences"}


def test_differences_come_with_an_interval_and_the_probability_of_an_improvement(compared):
    later = compared.to_dict()["differences"]
    for one, plan in zip(later, compared.plans[1:], strict=True):
        change = 100 * (plan.iteration_time_s / compared.plans[0].iteration_time_s - 1)
        assert one["time_vs_first_percent"] == pytest.approx(change)
        assert one["time_vs_first_percent_low"] < change < one["time_vs_first_percent_high"]
        assert 0.0 < one["faster_probability"] < 1.0
    assert "faster with probability" in compared.text()


def test_of_a_plan_and_itself_under_a_lower_limit_the_limit_alone_is_in_doubt():
    plans = ("dp=8 zero_stage=3", "dp=8 zero_stage=3 power_limit_w=700", "dp=8 zero_stage=3 power_limit_w=400")
    same, lower = jointopt.compare(shipped_job(JOB), plans).to_dict()["differences"]
    assert [same[f"time_vs_first_percent{end}"] for end in ("_low", "_high")] == pytest.approx([0.0, 0.0])
    assert 0.0 < lower["time_vs_first_percent_low"] < lower["time_vs_first_percent"] - 1.0
    assert lower["faster_probability"] < 0.05
    of_stages = ("dp=4 pp=2 zero_stage=1", "dp=4 pp=2 zero_stage=1 stage_power_limit_w=500;400")
    assert "faster_probability" not in jointopt.compare(shipped_job(JOB), of_stages).to_dict()["differences"][0]


@pytest.mark.parametrize(("limited", "words"), [
    ("dp=8 zero_stage=3 power_limit_w=400", "limit=400 W"),
    ("dp=4 pp=2 zero_stage=1 stage_power_limit_w=500;400", "stage_power_limit_w=500;400"),
])  # fmt: skip
def test_a_limit_that_one_plan_alone_has_is_in_its_line(limited: str, words: str) -> None:
    text = jointopt.compare(shipped_job(JOB), ("dp=8 zero_stage=3", limited), surrogate="none").text()
    first, second = text.splitlines()[1:3]
    assert words in second
    assert "limit" not in first


def test_plans_outside_of_what_was_checked_have_their_reason_those_of_one_reason_together(compared):
    first, *rest = compared.plans
    doubted = replace(first, in_domain=False, doubts=("no recorded runs on this GPU",))
    text = Compared((doubted, doubted, *(replace(one, in_domain=True) for one in rest))).text()
    assert "The interval of A and B is wider: no recorded runs on this GPU." in text
    assert "is wider" not in Compared(tuple(replace(one, in_domain=True) for one in compared.plans)).text()


def test_a_reason_that_all_plans_compared_have_is_stated_once(compared):
    doubted = [replace(plan, in_domain=False, doubts=("few runs",)) for plan in compared.plans]
    doubted[1] = replace(doubted[1], doubts=("few runs", "network assumed"))
    text = Compared(tuple(doubted)).text()
    assert "The interval is wider for every plan here: few runs." in text
    assert "The interval of B is wider still: network assumed." in text


def test_a_total_and_a_part_stand_beside_their_own_names_under_the_plan_s_letter(compared):
    lines = [re.split(r"\s{2,}", line.strip()) for line in compared.text().splitlines() if line.startswith("  ")]
    cells = {name: rest for name, *rest in lines if len(rest) == len(compared.plans)}
    plans = compared.plans
    assert cells["W per GPU"] == [f"{plan.avg_power_w:.0f}" for plan in plans]
    assert cells["tokens/s per GPU"] == [f"{plan.throughput['tokens_per_s_per_gpu']:,.0f}" for plan in plans]
    assert cells["MFU %"] == [f"{100 * plan.throughput['mfu']:.1f}" for plan in plans]
    assert [float(cell) for cell in cells["activations"]] == pytest.approx(
        [plan.memory_gib["activations"] for plan in plans], abs=0.01
    )
