"""The rest of a rank's memory: logits, what a process holds beside the training, gathered weights; and their sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jointopt.core.schema import Columns
from jointopt.jobs.job import Constraints, Job
from jointopt.jobs.jobfile import shipped_job, with_changes
from jointopt.jobs.model import Model
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import memory_limit_gib
from jointopt.physics.memory import memory_parts, peak_memory_bytes

Held = Callable[..., list[float]]
Jobs, Models = Callable[..., Job], Callable[..., Model]
LAYER, TABLE, GIB, MIB = 10_240 + 36_864 + 128, 64_000, 2**30, 2**20
PROCESS = ("communication", "workspaces", "other")


@pytest.mark.parametrize(("split", "share"), [(True, 2), (False, 1)])
def test_the_last_stage_holds_logits_of_every_token_and_word(split: bool, share: int, held: Held) -> None:
    # 6 sequences of 128 tokens over cp 2, 1,000 words, 5 bytes each
    framework = {"logits_bytes": 5.0, "logits_tensor_parallel": split}
    cells = {"pp": 2, "tp": 2, "cp": 2, "micro_batch_size": 6}
    found = held("logits", cells, framework=framework, global_batch_size=6)
    assert found == [0, 5 * 6 * 128 / 2 * 1000 / share]


@pytest.mark.parametrize(("chunks", "tokens"), [(None, 6 * 128), (1, 768), (8, 96), (5, 154), (1000, 1)])
def test_logits_of_a_chunk_of_tokens_are_alive_alone(chunks: int | None, tokens: int, held: Held) -> None:
    # 6 sequences of 128 tokens, 1,000 words, 5 bytes each; five chunks are no equal ones
    more = {} if chunks is None else {"logits_chunks": chunks}
    job = {"framework": {"logits_bytes": 5.0}, "global_batch_size": 6}
    assert held("logits", {"micro_batch_size": 6}, **job, **more) == [5 * tokens * 1000]


@pytest.mark.parametrize(("tp", "tokens", "words"), [(1, 64, 1000), (2, 128, 500)])
def test_a_loss_fused_with_the_head_holds_about_as_many_logits_as_the_head_s_input_has_elements(
    tp: int, tokens: int, words: int, held: Held
) -> None:
    # 1,000 words over 64 elements are 16 chunks of 768 tokens: 48, and the next power of two; 500 are 8 chunks of 96
    job = {"framework": {"logits_bytes": 5.0}, "global_batch_size": 6, "cross_entropy": "linear"}
    assert held("logits", {"micro_batch_size": 6, "tp": tp}, **job) == [5 * tokens * words]
    stated = held("logits", {"micro_batch_size": 6, "tp": tp}, **job, logits_chunks=2)
    assert stated == [5 * 384 * words]


@pytest.mark.parametrize(
    ("framework", "loss", "each", "tokens"),
    [("megatron-lm", None, 6, 8192), ("megatron-lm", "native", 6, 8192), ("megatron-lm", "te", 2, 8192),
     ("torchtitan", "unfused", 14, 8192), ("torchtitan", "compiled", 4, 8192), ("fsdp", "linear", 2, 256)],
)  # fmt: skip
def test_a_stated_loss_keeps_the_bytes_of_each_logit_that_its_kernels_do(
    framework: str, loss: str | None, each: int, tokens: int
) -> None:
    # one sequence of 8,192 tokens and 128,256 words, which over 4,096 elements are 32 chunks
    stated = {"training.framework": framework} | ({"training.cross_entropy": loss} if loss else {})
    job = with_changes(shipped_job("llama-3-8b-1x8-h100"), stated)
    found = memory_parts(job, parse_plan("dp=8 zero_stage=0 recompute=none", job).layouts)
    assert found["logits"].tolist() == [[each * tokens * 128_256]]


@pytest.mark.parametrize(
    ("engine", "experts", "mib"), [(False, False, 8.125), (True, False, 12.125), (True, True, 24.125)]
)
def test_every_rank_holds_what_its_process_takes(
    engine: bool, experts: bool, mib: float, held: Held, llama: Models, moe: Models
) -> None:
    # an A100: PyTorch's cuBLAS workspace, and 4 MiB of Transformer Engine's, on four streams where there are experts
    framework = {"memory_overhead_gib": 1.5, "communicator_gib": 0.25, "quantized_inputs": engine}
    cells = {"pp": 2, "tp": 2}  # two kinds of groups
    found = {part: held(part, cells, (moe if experts else llama)(), framework=framework)[0] for part in PROCESS}
    assert found == {"communication": 0.5 * GIB, "workspaces": mib * MIB, "other": 1.0 * GIB - mib * MIB}


def test_what_a_process_was_seen_to_hold_stands_in_for_the_overhead(
    hand_job: Jobs, layouts_of: Callable[..., Columns]
) -> None:
    job = hand_job(framework={"memory_overhead_gib": 1.5, "logits_bytes": 0.0})
    seen = replace(job.cluster, gpu=replace(job.cluster.gpu, process_memory_gib=0.75))
    found = memory_parts(replace(job, cluster=seen), layouts_of())
    assert found["workspaces"] + found["other"] == 0.75 * GIB


def test_a_process_that_holds_little_has_communicators_in_half_of_it_and_workspaces_in_the_rest(held: Held) -> None:
    framework = {"memory_overhead_gib": 4 * MIB / GIB, "communicator_gib": 1.0}
    found = {part: held(part, {"tp": 2}, framework=framework)[0] for part in PROCESS}
    assert found == {"communication": 2 * MIB, "workspaces": 2 * MIB, "other": 0}


@pytest.mark.parametrize(("dtype", "each"), [("bf16", 2.0), ("fp8", 1.5)])
@pytest.mark.parametrize(
    ("cells", "used"), [({}, 1), ({"sequence_parallel": False}, 0), ({"tp": 1}, 0), ({"tp": 16}, 0)]
)
def test_user_buffers_hold_a_micro_batch_for_ten_products(
    dtype: str, each: float, cells: dict[str, Any], used: int, held: Held
) -> None:
    # 3 sequences of 128 tokens over cp 2, 64 wide, nodes of 8; half of the buffers gather, in 8 bit where products do
    plan = {"tp": 2, "cp": 2, "sequence_parallel": True, "micro_batch_size": 3} | cells
    found = [held("workspaces", plan, dtype=dtype, framework={"user_buffers": on})[0] for on in (True, False)]
    assert found[0] - found[1] == used * 10 * each * 3 * 128 / 2 * 64


@pytest.mark.parametrize(("pp", "in_flight"), [(1, [1]), (2, [2, 1])])
def test_graphs_of_layers_hold_an_input_and_a_gradient_of_each_layer_in_flight(
    pp: int, in_flight: list[int], held: Held
) -> None:
    layers, both = 4 // pp, 2 * 2 * 128 * 64  # 16-bit values of 128 tokens
    found = held("cuda_graphs", {"pp": pp}, cuda_graph="transformer_engine")
    assert found == [layers * both * batches for batches in in_flight]


@pytest.mark.parametrize(("seq_length", "in_their_place"), [(128, True), (16, False)])
def test_one_graph_of_all_passes_keeps_its_memory_from_the_optimizer(
    seq_length: int, in_their_place: bool, held: Held
) -> None:
    # 16-bit gradients that the optimizer widens: in eager mode where the activations were, if these were as many bytes
    job = {"framework": {"gradient_bytes": 2}, "main_grads_dtype": "fp32", "seq_length": seq_length}
    eager, captured = (
        [held(part, {}, cuda_graph=graph, **job)[0] for part in ("main_gradients", "cuda_graphs")]
        for graph in ("", "full_iteration")
    )
    assert (eager[0] == 0) == in_their_place
    assert (eager[0], eager[1]) == (captured[0], 0)
    assert sum(captured) == 4 * (4 * LAYER + 2 * TABLE)


def test_without_graphs_nothing_is_kept_for_them(held: Held) -> None:
    assert held("cuda_graphs", {"pp": 2, "zero_stage": 1, "dp": 2}) == [0, 0]


@pytest.mark.parametrize(("stage", "gathered"), [(2, 0), (3, 2)])
def test_zero_3_holds_two_gathered_layers_in_16_bit(stage: int, gathered: int, held: Held) -> None:
    # a stage's weights over its layers: the vocabulary counts with them
    layer = (4 * LAYER + 2 * TABLE) / 4
    found = held("gathered_weights", {"dp": 8, "zero_stage": stage})
    assert found == [gathered * 2 * layer]


def test_the_peak_is_the_sum_of_parts_on_the_heaviest_stage(hand_job: Jobs, layouts_of: Callable[..., Columns]) -> None:
    # weights, gradients and Adam: bytes per parameter, one layer and the vocabulary on either end
    job = hand_job(framework={"activation_factor": 0.0, "logits_bytes": 2.0})
    plans = layouts_of(pp=4)
    logits = 2 * 128 * 1000
    assert peak_memory_bytes(job, plans).tolist() == [18 * (LAYER + TABLE) + logits]


@pytest.mark.parametrize(("own", "share"), [(None, 0.9), (0.5, 0.5)])
def test_the_limit_is_a_share_of_the_gpu_that_the_job_may_set(own: float | None, share: float, hand_job: Jobs) -> None:
    job = hand_job(framework={"memory_fraction": 0.9})
    gpu = replace(job.cluster.gpu, memory_gib=40.0)
    bounds = Constraints(memory_fraction=own)
    job = replace(job, constraints=bounds, cluster=replace(job.cluster, gpu=gpu))
    assert memory_limit_gib(job) == pytest.approx(40.0 * share)
