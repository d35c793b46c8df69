"""Where the joules go, for people and machines: what is inside a part, each stage's parts, and what holds a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from jointopt.jobs.jobfile import shipped_job
from jointopt.report.explanation import energy_table, stage_energy_table, stage_table
from jointopt.report.results import Explanation, Stage
from jointopt.workflows.explain import explain

Explanations = Callable[..., Explanation]
PLAN = "dp=2 tp=2 pp=2 micro_batch_size=2 clock_mhz=1410"


def test_what_a_part_is_made_of_stands_below_it_the_largest_first(make_explanation: Explanations) -> None:
    explanation = make_explanation(
        energy_by_part_j={"memory": 3000.0, "communication": 1000.0},
        memory_energy_j={"weights": 1000.0, "activations": 2000.0, "tensor_parallel_rereads": 0.0},
        communication_energy_j={"tp_comm": {"intra_node": 1000.0, "inter_node": 0.0}},
    )
    names = [line.strip().split("  ")[0] for line in energy_table(explanation)[1:]]
    assert names == ["memory", "activations", "weights", "communication", "tp_comm within nodes", "total"]


def test_stages_are_shown_by_part_and_gpu_and_equal_ones_share_a_line() -> None:
    stage = Stage(1410.0, 0.9, 0.1, 90.0, 21.5, num_gpus=2, energy_by_part_j={"compute": 60.0, "static": 30.0})
    last = replace(stage, energy_by_part_j={"compute": 80.0, "static": 30.0})
    lines = stage_energy_table([stage, stage, last])
    assert [line.split() for line in lines[1:]] == [
        ["stage", "compute", "static"],
        ["1-2", "30.00", "15.00"],
        ["3", "40.00", "15.00"],
    ]


def test_a_plan_without_a_pipeline_needs_no_table_by_stage() -> None:
    stage = Stage(1410.0, 0.9, 0.1, 90.0, 21.5, num_gpus=2, energy_by_part_j={"compute": 60.0})
    assert stage_energy_table([stage]) == []


@pytest.mark.parametrize(
    ("limits", "held"), [("power_limit_w=200", ["200 W", "200 W"]), ("stage_power_limit_w=400;200", ["-", "200 W"])]
)
def test_a_limit_of_the_plan_stands_beside_the_stages_that_it_holds(limits: str, held: list[str]) -> None:
    explanation = explain(shipped_job("opt-350m-2x4-a100"), f"{PLAN} {limits}", surrogate="none")
    lines = stage_table(explanation.stages)
    at = lines[0].rindex("clock")
    assert [line[at - 4 : at + 7].split("  ")[-2].strip() for line in lines[2:]] == held
    assert limits.replace("stage_", "") in explanation.text()


def test_the_document_adds_up_on_every_level() -> None:
    document = explain(shipped_job("opt-350m-2x4-a100"), PLAN, surrogate="none").to_dict()
    parts = document["energy_by_part_j"]
    links = document["communication_energy_j"].values()
    assert sum(parts.values()) == pytest.approx(document["energy_j"])
    assert sum(document["memory_energy_j"].values()) == pytest.approx(parts["memory"])
    assert sum(sum(by_link.values()) for by_link in links) == pytest.approx(parts["communication"])
    for stage in document["stages"]:
        assert sum(stage["energy_by_part_j"].values()) == pytest.approx(stage["energy_j"])
        assert stage["peak_power_w"] <= stage["power_limit_w"] == 400.0
    assert sum(stage["num_gpus"] for stage in document["stages"]) == 8
