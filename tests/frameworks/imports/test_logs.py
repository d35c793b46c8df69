"""Statements of a run at the start of its log: enough for a job and a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from jointopt.frameworks import nanotron
from jointopt.frameworks.torchtitan import log_settings
from jointopt.runs.store import Store
from jointopt.workflows.import_ import import_
from jointopt.workflows.ingest import ingest

TITAN = """[rank0]:[titan] 2026-11-22 04:18:33,559 - root - INFO - torchtitan version: 0.2.2
[rank0]:[titan] 2026-11-22 04:18:34,178 - root - INFO - Building device mesh with parallelism: {mesh}
[rank0]:[titan] 2026-11-22 04:18:34,430 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.11GiB memory
[rank0]:[titan] 2026-11-22 04:18:34,431 - root - INFO - Model llama3 8B size: 8,030,261,248 total parameters
[rank0]:[titan] 2026-11-22 04:18:34,535 - root - INFO - Applied full activation checkpointing to the model
[rank0]:[titan] 2026-11-22 04:18:36,148 - root - INFO - Trainer is initialized with local batch size 2, global batch \
size 16, gradient accumulation steps 1, sequence length 8192, total steps 30 (warmup 200)
"""
STEP = (
    "[rank0]:[titan] 2026-11-22 04:18:40,058 - root - INFO - step: {n:2}  loss:  8.38943  grad_norm:  2.4333  memory: "
    "60.62GiB(76.63%)  tps: {tps:,}  tflops: 400.00  mfu: 40.00%\n"
)
NANOTRON = """Config(general=GeneralArgs(project='debug',
                           run='tiny',
                           step=None),
       parallelism=ParallelismArgs(dp=4,
                                   pp=2,
                                   tp=2,
                                   pp_engine=<nanotron.parallel.engine.OneForwardOneBackward object at 0x7fcc5c65c910>,
                                   tp_mode=<TensorParallelLinearMode.REDUCE_SCATTER: 2>,
                                   expert_parallel_size=1),
       model=ModelArgs(model_config=LlamaConfig(hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
                                                num_hidden_layers=32, num_key_value_heads=8, vocab_size=128256,
                                                tie_word_embeddings=False, max_position_embeddings=8192),
                       init_method=RandomInit(std=0.025),
                       dtype=torch.bfloat16),
       optimizer=OptimizerArgs(zero_stage=1, weight_decay=0.01),
       tokens=TokensArgs(sequence_length=4096, train_steps=15, micro_batch_size=2, batch_accumulation_per_replica=16))
"""
DEEPSPEED = """[2026-11-22 04:18:33,559] [INFO] [config.py:1001:print]   train_batch_size ............. 64
[2026-11-22 04:18:33,559] [INFO] [config.py:1001:print]   world_size ................... 8
[2026-11-22 04:18:33,559] [INFO] [config.py:1001:print_user_config]   json = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {
        "stage": 2
    },
    "bf16": {
        "enabled": true
    }
}
"""
SPEED = (
    "[2026-11-22 04:18:36,116] [INFO] [timer.py:260:stop] epoch=0/micro_step={n}/global_step={n}, "
    "RunningAvgSamplesPerSec=30.0, CurrSamplesPerSec=32.0, MemAllocated=4.75GB, MaxMemAllocated=15.59GB\n"
)


def test_a_log_of_torchtitan_needs_nothing_beside_it(tmp_path: Path) -> None:
    mesh = "pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=2, ep=1, etp=1"
    steps = "".join(STEP.format(n=n, tps=tps) for n, tps in ((1, 90), (10, 4000), (20, 4096)))
    (tmp_path / "run.log").write_text(TITAN.format(mesh=mesh) + steps)
    found = import_([tmp_path / "run.log"])
    assert (found.job.model.name, found.job.cluster.gpu.id, found.job.cluster.nodes) == (
        "llama-3-8b",
        "h100-sxm5-80gb",
        2,
    )
    assert found.plan_text.startswith(
        "dp=8 tp=2 pp=1 cp=1 ep=1 vpp=1 micro_batch_size=2 sequence_parallel=true recompute=full"
    )
    (row,) = found.runs
    assert (row["iteration_time_s"], row["peak_memory_gib"]) == (16 * 8192 / 4096 / 16, 60.62)


MESHES = [  # degrees that a log states, and the plan of them
    ("dp_shard=1, dp_replicate=8, cp=1, tp=1, pp=1", {"dp": 8, "dp_replicate": 8, "zero_stage": 0}),
    ("dp_shard=1, dp_replicate=4, cp=2, tp=1, pp=1", {"dp": 4, "cp": 2, "dp_replicate": 4, "zero_stage": 3}),
    ("dp_shard=2, dp_replicate=1, cp=1, tp=2, pp=2", {"dp": 2, "tp": 2, "pp": 2, "zero_stage": 2}),
    ("dp_shard=4, tp=2, ep=2, etp=1", {"dp": 4, "tp": 2, "ep": 2, "etp": 1, "zero_stage": 3}),
]


@pytest.mark.parametrize(("mesh", "plan"), MESHES)
def test_the_mesh_of_a_log_is_the_plan_and_counts_the_gpus(mesh: str, plan: dict[str, int]) -> None:
    taken = log_settings(f"[titan] - root - INFO - Building device mesh with parallelism: {mesh}\n")
    assert {name: taken.plan[name] for name in taken.plan.keys() & (plan.keys() | {"dp_replicate"})} == plan
    assert taken.plan["sequence_parallel"] == (taken.plan["tp"] > 1)
    assert taken.cluster == {"num_gpus": 8}


def test_a_log_of_nanotron_states_its_config(tmp_path: Path) -> None:
    head = "08/31/2024 14:37:22 [INFO|DP=0|PP=0|TP=0]: "
    lines = [head + line for line in NANOTRON.splitlines()]
    lines += [
        f"{head}iteration: {n} / 15 | elapsed_time_per_iteration_ms: 1.5K | lm_loss: 11.1 | lr: 1" for n in range(8)
    ]
    (tmp_path / "run.log").write_text("\n".join(lines))
    found = import_([tmp_path / "run.log"], gpu="h100-sxm5-80gb")
    assert (found.job.model.name, found.job.training.global_batch_size, found.unread) == ("llama-3-8b", 128, {})
    assert found.plan_text.startswith("dp=4 tp=2 pp=2 cp=1 ep=1 vpp=1 micro_batch_size=2 sequence_parallel=true")
    assert found.runs[0]["iteration_time_s"] == 1.5


def test_a_log_of_deepspeed_states_its_config(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(DEEPSPEED + "".join(SPEED.format(n=n) for n in range(1, 9)))
    found = import_([tmp_path / "run.log"], gpu="h100-sxm5-80gb", model="llama-3-8b", seq_length=4096,
                    set={"plan.recompute": "none"})  # fmt: skip
    assert found.plan_text.startswith("dp=8 tp=1 pp=1 cp=1 ep=1 vpp=1 micro_batch_size=4")
    assert "zero_stage=2" in found.plan_text
    (row,) = found.runs
    assert (row["iteration_time_s"], row["peak_memory_gib"]) == (2.0, 15.59)


def megatron_log() -> str:
    """The head of Megatron-LM's log with all its arguments, NCCL's lines, and iterations."""
    arguments = {
        "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32, "swiglu": True,
        "group_query_attention": True, "num_query_groups": 8, "padded_vocab_size": 128256, "normalization": "RMSNorm",
        "position_embedding_type": "rope", "untie_embeddings_and_output_weights": True, "add_bias_linear": False,
        "kv_channels": 128, "hidden_dropout": 0.0, "tensor_model_parallel_size": 2, "micro_batch_size": 1,
        "global_batch_size": 64, "seq_length": 4096, "world_size": 8, "bf16": True, "log_memory_interval": None,
        "overlap_grad_reduce": True, "tp_comm_overlap": False, "attention_backend": "AttnBackend.flash",
        "use_megatron_fsdp": False, "recompute_granularity": None,
    }  # fmt: skip
    text = "".join(f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in sorted(arguments.items()))
    text += "node1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
    text += "node1:1:2 [0] NCCL INFO Using network IB\n"
    line = " iteration {n}/ 20 | consumed samples: {n} | elapsed time per iteration (ms): 2812.3 | lm loss: 2.0 |"
    tail = " number of skipped iterations: 0 | number of nan iterations: 0 |\n"
    return text + "".join(line.format(n=n) + tail for n in range(1, 9))


def test_of_a_log_with_two_runs_the_last_gives_the_row_in_milliseconds_or_seconds(tmp_path: Path) -> None:
    head = "-------- arguments --------\n"
    last = megatron_log().replace("(ms): 2812.3", "(s): 2.5").replace(f"{'.' * 22} 2\n", f"{'.' * 22} 4\n")
    (tmp_path / "run.log").write_text(head + megatron_log() + head + last)
    found = import_([tmp_path / "run.log"], gpu="h100-sxm5-80gb")
    assert (found.plan["tp"], [row["iteration_time_s"] for row in found.runs]) == (4, [2.5])
    assert any("runs whose arguments differ; the last ones count" in remark for remark in found.remarks)
    (tmp_path / "run.log").write_text((head + megatron_log()) * 2)
    found = import_([tmp_path / "run.log"], gpu="h100-sxm5-80gb")
    assert (found.runs[0]["notes"].split(",")[0], "differ" in str(found.remarks)) == ("6 iterations", False)
    assert not any(
        "arguments differ" in remark for remark in import_([tmp_path / "run.log"], gpu="h100-sxm5-80gb").remarks
    )


def test_a_row_states_version_flags_and_fabric_through_file_and_store(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(megatron_log())
    found = import_([tmp_path / "run.log"], gpu="h100-sxm5-80gb", inter_node_gbytes_per_s=50.0)
    stated = {
        "framework_release": ">=0.16", "framework_flags": "attention_backend=AttnBackend.flash overlap_grad_reduce",
        "fabric": "InfiniBand (1 ports)", "inter_node_gbytes_per_s": 50.0,
    }  # fmt: skip
    assert {name: found.runs[0][name] for name in stated} == stated
    found.frame().to_csv(tmp_path / "runs.csv", index=False)
    ingest(tmp_path / "runs.csv", f"sqlite:///{tmp_path / 'runs.db'}")
    (row,) = Store(f"sqlite:///{tmp_path / 'runs.db'}").read().to_dict("records")
    assert {name: row[name] for name in stated} == stated


def test_a_script_of_one_s_own_prints_steps_losses_and_seconds(tmp_path: Path) -> None:
    lines = [f"step {n} loss 5.{n} time 0.{n}50 s\n" for n in range(1, 8)]
    (tmp_path / "run.log").write_text("".join(lines) + "step 8 loss 5.8 time 0.900 of which 0.1 waiting\n")
    known = {"gpu": "h100-sxm5-80gb", "model": "llama-3-8b", "seq_length": 4096, "global_batch_size": 8, "nodes": 1}
    plan = {"plan.zero_stage": "0", "plan.recompute": "none", "plan.micro_batch_size": "1", "training.dtype": "bf16"}
    (row,) = import_([tmp_path / "run.log"], warmup=4, set=plan, **known).runs
    assert row["iteration_time_s"] == 0.65


@pytest.mark.parametrize("text", [
    "node1:1:2 [0] include/alloc.h:40 NCCL WARN Failed to CUDA calloc async 608 bytes\n",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n",
])  # fmt: skip
def test_a_log_that_ends_out_of_memory_in_a_library_is_a_row(text: str, tmp_path: Path) -> None:
    trace = "[rank0]: Traceback (most recent call last):\n[rank0]: torch.distributed.DistBackendError: NCCL error\n"
    head = TITAN.format(mesh="pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1, etp=1")
    (tmp_path / "run.log").write_text(head + text + trace)
    (row,) = import_([tmp_path / "run.log"]).runs
    assert (row["status"], row["framework_release"]) == ("oom", "0.2.2")


def test_options_of_a_nanotron_log_have_no_effect_where_nothing_here_reads_them() -> None:
    more = NANOTRON.replace("train_steps=15", "train_steps=15, newest=3")  # run, step, train steps and such are known
    assert nanotron.log_settings(more).without_effect == nanotron.log_settings(NANOTRON).without_effect + 1 > 2
    assert nanotron.log_settings(more).unread == ()
