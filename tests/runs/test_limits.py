"""Clocks and power limits that no GPU of that name has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.runs.cells import Cells
from jointopt.runs.checks import MEASUREMENT_RULES, RESULT_RULES
from jointopt.runs.peak_share import attention_flop, least_flop, least_memory_gib, recompute_flop
from jointopt.runs.table import check_measurements, doubtful_lines, read_measurements, read_table, sound_results
from tests.each import each
from tests.places import DATA

RUN = {"gpu": "a100-sxm4-80gb", "pp": 2, "status": "ok", "iteration_time_s": 1.5}


@pytest.mark.parametrize(
    ("change", "column", "words"),
    [
        ({"clock_mhz": 3000}, "clock_mhz", "from 210 to 1410 MHz on this GPU, got clock_mhz=3000 gpu=a100"),
        ({"clock_mhz": 150.0}, "clock_mhz", "got clock_mhz=150"),
        ({"stage_clock_mhz": "1410;1425"}, "stage_clock_mhz", "got stage_clock_mhz=1410;1425"),
        ({"stage_clock_mhz": "200"}, "stage_clock_mhz", "from 210 to 1410 MHz"),
        ({"power_limit_w": 900}, "power_limit_w", "to 600 W on this GPU, got power_limit_w=900"),
        ({"power_limit_w": -300}, "power_limit_w", "above 0 and at most 2,000"),
        ({"clock_mhz": -1410}, "clock_mhz", "from 1 to 100,000"),
        ({"stage_clock_mhz": "1410;-1"}, "stage_clock_mhz", "above 0"),
    ],
)
def test_what_the_gpu_does_not_have_is_refused_with_line_and_column(
    change: dict[str, Any], column: str, words: str
) -> None:
    good, problems = check_measurements(pd.DataFrame([RUN, RUN | change]), rules=MEASUREMENT_RULES)
    assert len(good) == 1
    assert [(p.line, p.column) for p in problems] == [(3, column)]
    assert words in problems[0].message


@pytest.mark.parametrize(
    "change",
    [
        {"clock_mhz": 1410}, {"clock_mhz": 1410.4}, {"stage_clock_mhz": "210;1410"}, {"power_limit_w": 400},
        {"gpu": "of-my-own", "clock_mhz": 4000, "power_limit_w": 1500}, {"gpu": None, "clock_mhz": 4000},
        {"gpu": "b200-sxm-180gb", "clock_mhz": 300},
    ],
)  # fmt: skip
def test_what_the_gpu_has_and_what_is_unknown_passes(change: dict[str, Any]) -> None:
    good, problems = check_measurements(pd.DataFrame([RUN | change]), rules=MEASUREMENT_RULES)
    assert (len(good), problems) == (1, [])


LLAMA = {
    "model": "llama-3-8b", "gpu": "a100-sxm4-80gb", "num_gpus": 16, "gpus_per_node": 8, "dtype": "bf16", "status": "ok",
    "global_batch_size": 256, "seq_length": 8192, "iteration_time_s": 40.0,
}  # fmt: skip
EXPERTS: list[tuple[dict[str, Any], str]] = [
    ({"moe_load_imbalance": 4.1}, "moe_load_imbalance to be at most num_experts / moe_router_topk"),
    ({"moe_load_imbalance": 1.1, "moe_routing": "forced"}, "1 or blank where balance is forced"),
]


@pytest.mark.parametrize(("change", "words"), EXPERTS)
def test_impossible_loads_of_experts_are_refused(change: dict[str, Any], words: str) -> None:
    mixture = RUN | {"num_experts": 8, "moe_router_topk": 2}
    fine = [mixture | {"moe_load_imbalance": 4.0}, mixture | {"moe_routing": "forced"}]
    good, problems = check_measurements(pd.DataFrame([*fine, mixture | change]), rules=MEASUREMENT_RULES)
    assert len(good) == 2
    assert words in problems[0].message


IMPOSSIBLE: list[tuple[dict[str, Any], str, str]] = [
    ({"iteration_time_s": 1e-4}, "iteration_time_s", "to be at least 17.2"),
    ({"iteration_time_s": 16.0, "dtype": None}, "iteration_time_s", "is it in seconds"),
    ({"iteration_time_s": 2.0, "model": "mine", "num_layers": 32, "hidden_size": 4096}, "iteration_time_s", "at least"),
    ({"dtype": "fp32", "iteration_time_s": 30.0}, "iteration_time_s", "is it bf16?"),
    ({"gpu": "h100-sxm5-80gb", "iteration_time_s": 4.5}, "iteration_time_s", "is it fp8?"),
    ({"peak_memory_gib": 500.0}, "peak_memory_gib", "to be at most 86.4 GiB on this GPU"),
    ({"avg_power_w": 700.0}, "avg_power_w", "to be at most 600 W on this GPU"),
    ({"energy_j": 40.0 * 16 * 700}, "energy_j", "to be at most 600 W on this GPU (is it of a whole node?)"),
    ({"avg_power_w": 0.35}, "avg_power_w", "W on this GPU (is it in kW, or its energy in kJ?)"),
    ({"avg_power_w": 20.0}, "avg_power_w", "W on this GPU (is it divided by the number of GPUs once more?)"),
    ({"gpu": "h100-sxm-96gb", "avg_power_w": 0.35}, "avg_power_w", "to be at least 5 W on this GPU (is it in kW"),
    ({"avg_power_w": 2.8}, "avg_power_w", "W on this GPU (is it in kW, of a whole node?)"),
    ({"energy_j": 40.0 * 16 * 350 / 3.6e6}, "energy_j", "W on this GPU (is it in kWh?)"),
    ({"energy_j": 40.0 * 16 * 0.35}, "energy_j", "W on this GPU (is it in kJ, or of one GPU alone?)"),
]


@each(("change", "column", "words"), IMPOSSIBLE)
def test_what_the_gpu_cannot_have_done_is_refused_and_elsewhere_not_used(
    change: dict[str, Any], column: str, words: str
) -> None:
    runs = pd.DataFrame([LLAMA, LLAMA | change])
    good, problems = check_measurements(runs, rules=MEASUREMENT_RULES)
    assert (len(good), [(p.line, p.column) for p in problems]) == (1, [(3, column)])
    assert words in problems[0].message
    sound, messages = sound_results(runs, RESULT_RULES)
    assert pd.isna(sound[column].iloc[1])
    assert sound["iteration_time_s"].iloc[0] == 40.0
    assert [text.split(" (")[0] for text in messages] == [f"1 row with an impossible {column}"]


def test_a_mean_power_is_at_least_half_of_what_the_gpu_draws_at_rest() -> None:
    idle_w = load_gpu(str(LLAMA["gpu"])).idle_w
    assert idle_w is not None
    runs = pd.DataFrame([LLAMA | {"avg_power_w": share * idle_w} for share in (0.45, 0.55)])
    assert sound_results(runs, RESULT_RULES)[0]["avg_power_w"].isna().tolist() == [True, False]


def test_a_run_that_is_too_fast_is_refused_in_a_table_without_precisions_too() -> None:
    runs = pd.DataFrame([LLAMA | {"iteration_time_s": 0.05}]).drop(columns="dtype")
    good, problems = check_measurements(runs, rules=MEASUREMENT_RULES)
    assert good.empty
    assert "is it in seconds" in problems[0].message


@pytest.mark.parametrize(
    "change",
    [
        {"iteration_time_s": 18.0}, {"peak_memory_gib": 80.0 * 1.073}, {"avg_power_w": 420.0},
        {"num_gpus": 4, "iteration_time_s": 160.0}, {"iteration_time_s": 0.1, "model": "mine"},
        {"iteration_time_s": 0.1, "gpu": "of-my-own"},
        {"iteration_time_s": 1.0, "gpu": "cpu-core", "peak_memory_gib": 9.0},
        {"iteration_time_s": 10.0, "dtype": "fp8", "gpu": "h100-sxm5-80gb"},
    ],
)  # fmt: skip
def test_fast_full_and_hot_runs_and_those_of_unknown_models_and_gpus_pass(change: dict[str, Any]) -> None:
    runs = pd.DataFrame([LLAMA | change])
    assert check_measurements(runs, rules=MEASUREMENT_RULES)[1] == []
    assert sound_results(runs, RESULT_RULES)[1] == []


@each(
    ("change", "column", "words"),
    [
        ({"dtype": "fp32", "iteration_time_s": 60.0}, "iteration_time_s", "is it TF32?"),
        ({"iteration_time_s": 20.5}, "iteration_time_s", "was the clock raised?"),
        ({"iteration_time_s": 24.0}, "iteration_time_s", "of that rate (is it in seconds, and of a whole iteration?)"),
        ({"iteration_time_s": 7.0, "gpu": "h100-sxm5-80gb"}, "iteration_time_s", "per GPU: is it fp8? If not: is it"),
        ({"iteration_time_s": 6.4, "gpu": "h100-sxm5-80gb"}, "iteration_time_s", "is it fp8, or was the clock raised?"),
        ({"iteration_time_s": 28.0, "recompute": "full"}, "iteration_time_s", "and recomputed pass take at 0.85"),
        ({"iteration_time_s": 28.0, "recompute": "full"}, "iteration_time_s", "was nothing recomputed, or a part?"),
        ({"iteration_time_s": 9e5, "seq_length": 256}, "iteration_time_s", "(is it in seconds, and of one iteration?)"),
        ({"power_limit_w": 300.0, "avg_power_w": 320.0}, "avg_power_w", "at most 300 W of a GPU, its limit, not 320"),
        ({"energy_j": 40.0 * 16 * 430}, "avg_power_w", "its limit, not 430 (was the board's limit raised?"),
        ({"peak_memory_gib": 0.4}, "peak_memory_gib", "a GPU holds (is it a share of the memory, or in TiB?)"),
        ({"peak_memory_gib": 83.0}, "peak_memory_gib", "is it in GB, not GiB?"),
        (
            {"peak_power_w": 530.0},
            "peak_power_w",
            "at most 520 W of a GPU, 1.3 times its limit, at a peak (was the board",
        ),
        (
            {"peak_power_w": 400.0, "power_limit_w": 300.0},
            "peak_power_w",
            "at most 390 W of a GPU, 1.3 times its limit",
        ),
    ],
)
def test_what_the_gpu_hardly_did_is_used_and_doubted_with_the_likeliest_reason(
    change: dict[str, Any], column: str, words: str
) -> None:
    runs = pd.DataFrame([LLAMA, LLAMA | change])
    (line,) = doubtful_lines(runs)
    assert line.startswith(f"1 row whose {column} is doubtful (row 2: ")
    assert line.endswith("): used.")
    assert words in line
    assert sound_results(runs, RESULT_RULES)[1] == []


@pytest.mark.parametrize("change", [{"dtype": "tf32", "iteration_time_s": 60.0}, {"dtype": "fp32"} | {"gpu": "mine"}])
def test_tensor_cores_that_the_row_states_and_gpus_of_ones_own_are_not_doubted(change: dict[str, Any]) -> None:
    assert doubtful_lines(pd.DataFrame([LLAMA, LLAMA | change])) == []


@pytest.mark.parametrize(("celsius", "lines"), [(60.0, 0), (94.0, 0), (104.0, 1)])
def test_a_median_temperature_above_that_of_gpus_at_work_is_doubted(celsius: float, lines: int) -> None:
    found = doubtful_lines(pd.DataFrame([LLAMA | {"source": "lab", "temperature_c": t} for t in (50.0, celsius, 109)]))
    assert len(found) == lines
    assert all("of lab is 104;" in line and "Then it is 40 °C" in line for line in found)


def test_a_job_on_whole_nodes_and_part_of_another_is_refused() -> None:
    _, problems = check_measurements(pd.DataFrame([LLAMA | {"num_gpus": 12}]), rules=MEASUREMENT_RULES)
    assert [(p.line, p.column) for p in problems] == [(2, "num_gpus")]


def test_energy_of_one_gpu_beside_a_power_that_is_right_is_the_energys_fault() -> None:
    """The 16 GPUs draw 350 W each in 40 s: 224 kJ; what one of them takes would be 22 W of each."""
    run = LLAMA | {"avg_power_w": 350.0, "energy_j": 350.0 * 40.0}
    sound, (message,) = sound_results(pd.DataFrame([run]), RESULT_RULES)
    assert pd.isna(sound["energy_j"].iloc[0])
    assert sound["avg_power_w"].iloc[0] == 350.0
    assert "is it in kJ, or of one GPU alone?" in message


def test_energy_and_power_that_contradict_each_other_are_doubted() -> None:
    """7/8 of the energy is within a fifth, a half is not."""
    runs = pd.DataFrame([LLAMA | {"avg_power_w": 350.0, "energy_j": s * 350.0 * 640.0} for s in (0.875, 0.5)])
    (line,) = doubtful_lines(runs)
    assert line.startswith("1 row whose energy_j is doubtful (row 2: expected avg_power_w * iteration_time_s")


@pytest.mark.skipif(not DATA.exists(), reason="the recorded measurements are not beside the repository")
@each("path", sorted(DATA.glob("layouts_*.csv")))
def test_no_recorded_run_is_beyond_its_gpu(path: Path) -> None:
    assert read_measurements(path, MEASUREMENT_RULES)[1] == []
    assert doubtful_lines(read_table(path)) == []


def test_causal_attention_takes_six_flop_for_each_layer_width_and_pair_of_tokens_shared_by_the_gpus() -> None:
    run = {"num_layers": 2, "hidden_size": 64, "global_batch_size": 12, "seq_length": 100, "num_gpus": 8}
    runs = pd.DataFrame([run, run | {"num_gpus": 2}, run | {"block": "feed_forward"}, run | {"hidden_size": np.nan}])
    per_sequence = 6 * 2 * 64 * 100**2
    assert attention_flop(Cells(runs)).tolist() == [12 * per_sequence / 8, 12 * per_sequence / 2, 0.0, 0.0]


@pytest.mark.parametrize(
    ("cells", "ranks"),
    [
        ({"tp": 2, "pp": 2, "zero_stage": 2}, 4),
        ({"tp": 2, "pp": 2, "zero_stage": 3}, 16),
        ({"tp": 2, "pp": 2}, 16),
        ({}, 16),
    ],
)
def test_a_gpu_holds_a_byte_of_each_weight_of_its_layers_at_the_least(cells: dict[str, Any], ranks: int) -> None:
    layers = 32 * 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)  # of Llama 3 8B, whose norms come on top
    runs = pd.DataFrame([LLAMA | cells])
    assert least_memory_gib(Cells(runs))[0] == pytest.approx(layers / ranks / 2**30, rel=1e-3)
    assert least_memory_gib(Cells(runs.assign(lora_dim=8)))[0] == 0


def test_recomputation_takes_a_third_of_what_layers_take_once_more() -> None:
    runs = Cells(pd.DataFrame([LLAMA | {"recompute": name} for name in ("none", "full")]))
    head = 6 * 4096 * 128256 * 256 * 8192 / 16
    once = least_flop(runs)[0] - head + attention_flop(runs)[0]
    assert recompute_flop(runs) == pytest.approx([0, once / 3], rel=1e-3)
    assert attention_flop(runs)[0] == pytest.approx(6 * 32 * 4096 * 256 * 8192**2 / 16)


def test_a_frozen_weight_takes_four_flop_a_token_and_a_trained_one_six() -> None:
    runs = Cells(pd.DataFrame([LLAMA, LLAMA | {"lora_dim": 8}]))
    trained, frozen = least_flop(runs)
    assert frozen == pytest.approx(4 / 6 * trained)
