"""Both sides of every limit of a measurement table, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from jointopt.core.schema import MOST_GPU_POWER_W
from jointopt.runs.cells import STRICT_READERS, Cells, json_rows, read_columns
from jointopt.runs.checks import MEASUREMENT_RULES
from jointopt.runs.peak_share import least_time_s
from jointopt.runs.table import check_measurements
from tests.each import each

RUN: dict[str, Any] = {
    "gpu": "a100-sxm4-80gb", "num_gpus": 16, "gpus_per_node": 8, "dp": 4, "tp": 2, "pp": 2, "cp": 1, "status": "ok",
    "iteration_time_s": 2.0, "global_batch_size": 64,
}  # fmt: skip
POWER = {"avg_power_w": 300.0}  # of 16 GPUs over 2 s: 9,600 J
EDGES: list[tuple[dict[str, Any], dict[str, Any], str]] = [  # what passes, what no longer does, the column to blame
    ({"dp": 4}, {"dp": 5}, "num_gpus"),
    ({"dp": None}, {"dp": None, "tp": 3}, "num_gpus"),  # degrees that are stated divide the GPUs
    ({}, {"num_gpus": 32}, "num_gpus"),
    ({"global_batch_size": 4}, {"global_batch_size": 3}, "global_batch_size"),
    ({"num_attention_heads": 64, "hidden_size": 64}, {"num_attention_heads": 65, "hidden_size": 64},
     "num_attention_heads"),
    ({"num_query_groups": 8, "num_attention_heads": 8}, {"num_query_groups": 9, "num_attention_heads": 8},
     "num_query_groups"),
    ({"stage_clock_mhz": "1400;1410"}, {"stage_clock_mhz": "1400;1410;1400"}, "stage_clock_mhz"),
    ({"stage_clock_mhz": "1400"}, {"stage_clock_mhz": "1400;1400", "pp": 4, "dp": 2}, "stage_clock_mhz"),
    ({"ep": 16}, {"ep": 17}, "ep"),
    ({"moe_router_topk": 8, "num_experts": 8}, {"moe_router_topk": 9, "num_experts": 8}, "moe_router_topk"),
    ({"moe_router_topk": 3, "num_experts": 1}, {"moe_router_topk": 3, "num_experts": 2}, "moe_router_topk"),
    (POWER | {"energy_j": 11_500.0}, POWER | {"energy_j": 11_540.0}, "energy_j"),  # a fifth more: 11,520 J
    (POWER | {"energy_j": 7_700.0}, POWER | {"energy_j": 7_660.0}, "energy_j"),  # a fifth less: 7,680 J
    (POWER | {"peak_power_w": 241.0}, POWER | {"peak_power_w": 239.0}, "peak_power_w"),  # 240 W is a fifth less
    ({"gpu": None, "energy_j": 31.9 * MOST_GPU_POWER_W}, {"gpu": None, "energy_j": 32.1 * MOST_GPU_POWER_W},
     "energy_j"),
    ({"gpu": "a", "clock_mhz": 1.0}, {"gpu": "a", "clock_mhz": 0.9}, "clock_mhz"),
    ({"gpu": "a", "stage_clock_mhz": "1;0.5"}, {"gpu": "a", "stage_clock_mhz": "1;0"}, "stage_clock_mhz"),
    ({"gpu": "a", "stage_clock_mhz": "99999"}, {"gpu": "a", "stage_clock_mhz": "100000"}, "stage_clock_mhz"),
    ({"clock_mhz": 1411.0}, {"clock_mhz": 1411.1}, "clock_mhz"),
    ({"clock_mhz": 209.0}, {"clock_mhz": 208.9}, "clock_mhz"),
    ({"stage_clock_mhz": "209;1411"}, {"stage_clock_mhz": "209;1412"}, "stage_clock_mhz"),
    ({"power_limit_w": 600.0}, {"power_limit_w": 600.1}, "power_limit_w"),
    ({"avg_power_w": 600.0}, {"avg_power_w": 600.1}, "avg_power_w"),
    ({"energy_j": 600.0 * 32}, {"energy_j": 600.1 * 32}, "energy_j"),
    ({"gpus_per_node": 16}, {"gpus_per_node": 5}, "num_gpus"),
    ({"gpus_per_node": 32}, {"gpus_per_node": 12}, "num_gpus"),
]  # fmt: skip


@each(("passes", "breaks", "column"), EDGES)
def test_a_run_at_the_limit_passes_and_one_beyond_it_does_not(
    passes: dict[str, Any], breaks: dict[str, Any], column: str
) -> None:
    good, problems = check_measurements(pd.DataFrame([RUN | passes, RUN | breaks]), rules=MEASUREMENT_RULES)
    assert (len(good), [(problem.line, problem.column) for problem in problems]) == (1, [(3, column)])


def test_a_failed_run_may_have_fewer_sequences_than_ranks() -> None:
    failed = RUN | {"status": "failed", "iteration_time_s": None, "global_batch_size": 2}
    assert check_measurements(pd.DataFrame([failed]))[1] == []
    assert [problem.column for problem in check_measurements(pd.DataFrame([failed | {"dp": 5}]))[1]] == ["num_gpus"]


SHAPE = {
    "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "gated_mlp": True, "num_attention_heads": 32,
    "num_query_groups": 8, "vocab_size": 128256, "gpu": "a100-sxm4-80gb", "dtype": "bf16", "num_gpus": 16,
    "global_batch_size": 256, "seq_length": 8192,
}  # fmt: skip
# a layer of 4096 * (2.5 * 4096 + 3 * 14336) parameters, an output of 4096 * 128256; 312 Tflop/s, a tenth above at most
HEAD, TOKENS, RATE = 4096 * 128256, 256 * 8192, 1.1 * 312e12 * 16
LEAST = [
    ({}, 32 * 4096 * (10240 + 43008) + HEAD),
    ({"gated_mlp": False}, 32 * 4096 * (10240 + 28672) + HEAD),
    ({"num_query_groups": None}, 32 * 4096 * (8192 + 43008) + HEAD),
    ({"ffn_hidden_size": None}, 32 * 4096 * 10240 + HEAD),
    ({"vocab_size": None, "num_layers": 16}, 16 * 4096 * (10240 + 43008)),
]


@pytest.mark.parametrize(("change", "parameters"), LEAST)
def test_an_iteration_takes_six_flop_of_each_parameter_and_token_at_the_least(
    change: dict[str, Any], parameters: int
) -> None:
    runs = Cells(pd.DataFrame([SHAPE | {"model": "mine"} | change]))
    assert least_time_s(runs)[0] == pytest.approx(6 * parameters * TOKENS / RATE, rel=1e-12)


@pytest.mark.parametrize("change", [{"gpu": "mine"}, {"gpu": "cpu-core"}])
def test_without_a_rate_an_iteration_takes_no_time_at_the_least(change: dict[str, Any]) -> None:
    assert least_time_s(Cells(pd.DataFrame([SHAPE | {"model": "mine"} | change]))).tolist() == [0.0]
    assert np.isnan(least_time_s(Cells(pd.DataFrame([SHAPE | {"model": "mine", "num_layers": None}])))[0])


CELLS = [  # column, what stands there, its value in JSON
    ("tp", "8", 8), ("tp", 8.0, 8), ("tp", "8.5", None), ("tp", 0, None), ("tp", 1, 1),
    ("iteration_time_s", "0.5", 0.5), ("iteration_time_s", 0.0, None), ("iteration_time_s", "2", 2),
    ("gated_mlp", "Yes", True), ("gated_mlp", 0.0, False), ("gated_mlp", "2", None),
    ("stage_clock_mhz", "[1410, 1395.5]", "1410;1395.5"), ("stage_clock_mhz", 1410, "1410"),
    ("stage_clock_mhz", "1410;", "1410"), ("stage_clock_mhz", "1410;fast", None), ("status", " OOM ", "oom"),
    ("recompute", "FULL", "full"), ("attention", "FlashAttention-3", "FlashAttention-3"), ("attention", "magic", None),
    ("dtype", "bfloat16", "bfloat16"), ("dtype", "int8", None), ("group", " a ", "a"),
]  # fmt: skip


@each(("column", "cell", "value"), CELLS)
def test_a_cell_has_one_value_however_it_is_written(column: str, cell: object, value: object) -> None:
    clean, faults = read_columns(pd.DataFrame({column: pd.Series([cell], dtype=object)}), [column], STRICT_READERS)
    assert [rows.tolist() for _, rows, _ in faults] == ([[True]] if value is None else [])
    assert json_rows(clean) == [{} if value is None else {column: value}]
