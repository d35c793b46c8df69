import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jointopt.core.facts import Assumption
from jointopt.jobs.jobfile import load_job, parse_job, shipped_job, with_changes
from jointopt.report.explanation import Shortage, share_table, stage_table
from jointopt.report.results import Explanation, Stage
from jointopt.report.tables import TIME_UNITS, figure, json_text
from jointopt.workflows.explain import explain

Explanations = Callable[..., Explanation]


def test_the_document_has_the_keys_that_others_rely_on(make_explanation: Explanations) -> None:
    document = json.loads(json_text(make_explanation().to_dict()))
    assert document.keys() >= {
        "feasible", "violations", "iteration_time_s", "energy_j", "time_s", "energy_by_part_j", "memory_gib", "stages",
    }  # fmt: skip
    assert document["stages"][0].keys() >= {"clock_mhz", "busy_s", "idle_s", "energy_j", "memory_gib"}


def test_a_document_has_every_part_of_the_time_whatever_the_model() -> None:
    dense = explain(load_job("llama-3-8b-1x8-h100"), "dp=8 zero_stage=3 recompute=full").to_dict()
    named = {"compute", "tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm", "bubble", "optimizer"}
    assert dense["time_s"].keys() >= named
    assert dense["time_s"]["ep_comm"] == 0.0
    assert sum(dense["time_s"].values()) == pytest.approx(dense["iteration_time_s"])


def test_parts_are_shown_largest_first_with_shares_and_a_total() -> None:
    lines = share_table("Time", {"bubble": 0.2, "compute": 0.8, "tp_comm": 0.0}, TIME_UNITS)
    assert [line.split() for line in lines] == [
        ["Time", "s", "%"],
        ["compute", "0.800", "80.0"],
        ["bubble", "0.200", "20.0"],
        ["total", "1.000", "100.0"],
    ]


def test_equal_neighbour_stages_share_a_line() -> None:
    stage = Stage(1410.0, 0.9, 0.1, 4600.0, 21.5, 12)
    lines = stage_table([stage] * 3 + [Stage(1200.0, 0.9, 0.1, 4600.0, 21.5, 12)])
    assert [line.split()[0] for line in lines[2:]] == ["1-3", "4"]


def test_energies_of_stages_are_in_the_unit_of_the_largest_and_times_in_that_of_the_longest() -> None:
    stages = [Stage(1410.0, 0.0009, 0.0002, 400.0, 21.5, 12), Stage(1400.0, 1.5, 0.25, 4_600_000.0, 21.5, 12)]
    text = "\n".join(stage_table(stages))
    assert {"1.500", "0.250", "4.600"} <= set(text.split())
    assert "MJ" in text


def test_stages_that_differ_in_memory_alone_share_a_line_with_its_range() -> None:
    stages = [Stage(1410.0, 0.9, 0.1, 4600.0, 21.5 - i, 12) for i in range(4)]
    (line,) = stage_table(stages)[2:]
    assert (line.split()[0], "18.5..21.5" in line) == ("1-4", True)


def test_throughput_is_shown_with_the_peak_that_it_is_a_share_of() -> None:
    text = explain(load_job("llama-3-8b-1x8-h100"), "dp=8 zero_stage=3 recompute=full").text()
    found = re.search(r"([\d,]+) tokens/s, ([\d,]+)\s+per GPU, (\d+) model TFLOP/s per GPU, MFU ([\d.]+)%\s+of", text)
    assert found
    assert re.search(r"989\s+TFLOP/s\s+in\s+bf16,\s+HFU", text)
    assert float(found[4]) / 100.0 == pytest.approx(float(found[3]) / 989.0, rel=0.01)


def test_no_part_of_an_explanation_is_negative(make_explanation: Explanations) -> None:
    energy = {"compute": 6000.0, "static": 3400.0, "leakage": -400.0}
    explanation = make_explanation(energy_by_part_j=energy, time_s={"compute": 1.0, "host": -1e-17})
    document = explanation.to_dict()
    assert document["energy_by_part_j"] == {"compute": 6000.0, "static": 3000.0}
    assert document["time_s"]["host"] == 0.0
    assert "leakage" not in explanation.text()
    assert "-0.0" not in explanation.text()


def test_blocks_come_in_the_order_of_time_energy_memory_and_stages(make_explanation: Explanations) -> None:
    text = make_explanation().text()
    heads = ("Time on the critical path", "Energy of the site", "Memory of the fullest GPU", "stage")
    places = [text.find(f"\n{head}") for head in heads]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize(("stated", "words"), [
    ({}, "Logits: 4 bytes each (usual of composer: cross_entropy is not given)."),
    ({"cross_entropy": "unfused", "logits_chunks": 2},
     "Logits: 14 bytes each (cross_entropy unfused), of one of 2 chunks at a time."),
])  # fmt: skip
def test_what_a_logit_takes_is_told_with_the_loss_that_is_assumed(stated: dict[str, Any], words: str) -> None:
    job = shipped_job("llama-3-8b-1x8-h100")
    job = with_changes(job, {f"training.{key}": value for key, value in (stated | {"framework": "composer"}).items()})
    text = explain(job, "dp=8 zero_stage=3 recompute=none", surrogate="none").text()
    assert words in " ".join(text.split())


def test_what_makes_a_plan_infeasible_is_listed(make_explanation: Explanations) -> None:
    text = make_explanation(feasible=False, violations=("Out of memory by 3.1 GiB on stage 2.",)).text()
    assert "Not feasible:\n- Out of memory by 3.1 GiB on stage 2." in text


@pytest.mark.parametrize("stages", [1, 64])
def test_every_line_fits_100_columns(make_explanation: Explanations, stages: int) -> None:
    many = tuple(Stage(1410.0 - i, 0.9, 0.1, 4600.0 + i, 21.5, 1, 310.0, 71.5) for i in range(stages))
    plan = make_explanation().plan | {"stage_clock_mhz": [s.clock_mhz for s in many]}
    text = make_explanation(plan=plan, stages=many, assumed=(Assumption("word", None, "word " * 60),)).text()
    assert max(map(len, text.splitlines())) <= 100


def test_a_stated_recipe_is_named_with_where_it_costs() -> None:
    options = {"model": "llama-3-8b", "cluster": {"gpu": "gb200", "nodes": 1, "gpus_per_node": 4}}
    training = {"seq_length": 4096, "global_batch_size": 64, "dtype": "fp8", "framework": "nemo"}
    plain, scaled = (
        explain(
            parse_job(options | {"training": training | more}, "job", Path()), "dp=4 zero_stage=1", surrogate="none"
        )
        for more in ({}, {"fp8_recipe": "mxfp8"})
    )
    casts_s = scaled.to_dict()["quantization"]["casts_s"]
    assert f"Products in fp8 (mxfp8): casts take {figure(casts_s)} s" in " ".join(scaled.text().split())
    assert 0.02 < casts_s / scaled.iteration_time_s < 0.06
    assert "products take 1.05 times those with one scale per tensor; a kept input takes 1.031 B" in " ".join(
        scaled.text().split()
    )
    assert "quantization" not in plain.to_dict()


@pytest.mark.parametrize(("limit_w", "peak_w", "words"), [
    (400.0, 370.0, "the limit of 400 W and the peak of 370 W are means over all kernels of a micro-batch."),
    (700.0, 370.0, "the peak of 370 W is a mean over all kernels of a micro-batch."), (700.0, 415.0, None),
])  # fmt: skip
def test_a_phase_above_the_peak_or_the_limit_of_the_same_page_is_explained(
    make_explanation: Explanations, limit_w: float, peak_w: float, words: str | None
) -> None:
    stage = Stage(1410.0, 0.9, 0.1, 4600.0, 21.5, 12, power_limit_w=limit_w, peak_power_w=peak_w)
    found = {"compute_bound": {"time_s": 3.0, "power_w": 415.0}, "waiting": {"time_s": 1.0, "power_w": 90.0}}
    text = " ".join(make_explanation(power_by_phase=found, stages=(stage, stage)).text().split())
    assert "A GPU draws 415 W in compute-bound kernels (75% of the time), 90 W while it waits (25%)." in text
    assert "Such kernels last milliseconds" not in text if words is None else f"last milliseconds; {words}" in text


@pytest.mark.parametrize(("allowed_gib", "missing"), [(70.0, "2.4"), (72.31, "0.1"), (72.04, "0.3")])
def test_a_shortage_is_rounded_up_so_that_none_is_of_nothing(allowed_gib: float, missing: str) -> None:
    assert f"{missing} GiB too many" in Shortage(72.34, allowed_gib, 0.1).cause


def test_the_highest_power_of_a_stage_has_its_interval_from_low_to_high(make_explanation: Explanations) -> None:
    stages = tuple(replace(stage, peak_power_w=380.0) for stage in make_explanation().stages)
    found = make_explanation(stages=stages, intervals={"peak_power_w": (350.0, 420.0)})
    assert "380 W at the peak (350 to 420)" in " ".join(found.text().split())


def test_a_brief_answer_has_the_largest_parts_side_by_side(make_explanation: Explanations) -> None:
    lines = make_explanation().text(brief=True).splitlines()
    (head,) = [number for number, line in enumerate(lines) if line.startswith("time ")]
    assert lines[head + 1].split() == ["compute", "80.0", "%", "compute", "66.7", "%", "activations", "85.1", "%"]
    assert lines[head + 2].split()[:3] == ["bubble", "20.0", "%"]
    assert "stage" not in {line.split(" ")[0] for line in lines}
