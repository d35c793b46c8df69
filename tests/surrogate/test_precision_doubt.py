"""Precisions that runs state and hardly have: doubted where the next lower one explains their times."""

from __future__ import annotations

import pandas as pd
import pytest

from jointopt.surrogate.measurements import Measurements
from jointopt.workflows.evaluate import evaluate
from jointopt.workflows.predict import predict

LAYOUTS = [(64, 1), (32, 2), (16, 4), (8, 8)]


def table(dtype: str = "bf16", gpu: str = "h100-sxm5-80gb", **cells: object) -> pd.DataFrame:
    same = {"model": "llama-3-8b", "gpu": gpu, "num_gpus": 64, "gpus_per_node": 8, "seq_length": 8192, "pp": 1}
    same |= {"global_batch_size": 512, "micro_batch_size": 1, "framework": "megatron-lm", "source": "mine"}
    return pd.DataFrame([same | {"dp": dp, "tp": tp, "dtype": dtype} | cells for dp, tp in LAYOUTS])


def run_in(runs: pd.DataFrame, times: float = 1.0) -> pd.Series:
    return times * predict(runs)["predicted_iteration_time_s"]


def test_the_precision_of_runs_in_fp8_that_state_bf16_is_doubted(caplog: pytest.LogCaptureFixture) -> None:
    mislabelled = table(model="llama-3-70b").assign(iteration_time_s=run_in(table("fp8", model="llama-3-70b"), 0.8))
    (line,) = Measurements.of(mislabelled).doubts
    assert line.startswith("Measured runs (mine, megatron-lm, h100-sxm5-80gb, 8 GPUs a node) take 0.5")
    assert line.endswith(" times what the physics says in bf16; in fp8 0.80 times: is the precision right?")
    evaluate(mislabelled, "none")
    assert caplog.text.count(line) == 1


def test_runs_on_tensor_cores_that_state_fp32_are_suspected_to_be_in_tf32() -> None:
    mislabelled = table("fp32").assign(iteration_time_s=run_in(table("tf32")))
    (line,) = Measurements.of(mislabelled).doubts
    assert line.endswith("; in tf32 1.00 times: is the precision right?")


def test_runs_that_are_two_thirds_of_their_time_are_suspected_where_the_next_precision_has_them_right() -> None:
    cells = {
        "hidden_size": 1024,
        "ffn_hidden_size": 4096,
        "num_layers": 24,
        "num_attention_heads": 16,
        "gated_mlp": False,
        "cuda_graph": "full_iteration",  # so small a layer would wait for the host in any precision
    }
    of = {"model": "own", "num_query_groups": 16, "vocab_size": 50272, "seq_length": 2048, "attention": "unfused"}
    as_stated, lower = (run_in(table(dtype, **cells | of)) for dtype in ("fp32", "tf32"))
    times = 1.05 * lower
    assert 0.6 < (times / as_stated).median() < 0.67
    (line,) = Measurements.of(table("fp32", **cells | of).assign(iteration_time_s=times)).doubts
    assert line.endswith("; in tf32 1.05 times: is the precision right?")


@pytest.mark.parametrize(
    ("gpu", "times", "rows"), [("h100-sxm5-80gb", 0.65, 4), ("h100-sxm5-80gb", 0.3, 4), ("a100-sxm4-80gb", 0.5, 4),
                               ("h100-sxm5-80gb", 0.5, 2)],
)  # fmt: skip
def test_a_lower_precision_that_explains_nothing_or_that_the_gpu_lacks_is_not_suspected(
    gpu: str, times: float, rows: int
) -> None:
    runs = table(gpu=gpu)
    assert Measurements.of(runs.assign(iteration_time_s=run_in(runs, times)).head(rows)).doubts == []


def test_most_runs_have_to_be_fast_and_of_one_precision() -> None:
    times = run_in(table(), 0.5).where([True, True, False, False], run_in(table()))
    assert Measurements.of(table().assign(iteration_time_s=times)).doubts == []
    mixed = table().assign(iteration_time_s=run_in(table(), 0.5), dtype=["bf16", "bf16", "fp16", "fp8"])
    assert Measurements.of(mixed).doubts == []
