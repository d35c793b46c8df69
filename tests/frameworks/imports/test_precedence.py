"""Of several files of one run, what counts is what counts for the program, in whatever order the files are given."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from jointopt.core.errors import JobError
from jointopt.workflows.import_ import import_
from tests.each import each

SHAPE = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000"
BATCH = "--micro-batch-size 1 --global-batch-size 64"
NEMO = """trainer: {num_nodes: 2, devices: 8, precision: bf16}
model: {tensor_model_parallel_size: 2, context_parallel_size: 2, sequence_parallel: true, micro_batch_size: 1,
  global_batch_size: 64, encoder_seq_length: 4096, num_layers: 32, hidden_size: 4096, num_attention_heads: 32,
  tokenizer: {vocab_size: 32000}, vocab_size: 32000}
"""
TITAN = """[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 8192
[parallelism]\ntensor_parallel_degree = 4\ncontext_parallel_degree = 2
"""
DEEPSPEED = """{"zero_optimization": {"stage": STAGE}, "bf16": {"enabled": true}, "train_batch_size": "auto",
"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}"""
HF = '{"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, '
HF += '"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": false}'
BRIDGE = """model: {tensor_model_parallel_size: 4, pipeline_model_parallel_size: 2, num_layers: 32, hidden_size: 4096,
  num_attention_heads: 32, vocab_size: 32000, recompute_granularity: full}
train: {micro_batch_size: 1, global_batch_size: 64}
dataset: {sequence_length: 4096}
ddp: {use_distributed_optimizer: true}
mixed_precision: bf16_mixed
"""
MEGATRON = """language_model: {num_layers: 32, hidden_size: 4096, num_attention_heads: 32, activation_func: swiglu,
  num_query_groups: 8, hidden_dropout: 0.0, normalization: RMSNorm, ffn_hidden_size: null, recompute_granularity: full}
model_parallel: {tensor_model_parallel_size: 2, context_parallel_size: 2, sequence_parallel: true, bf16: true}
micro_batch_size: 2
global_batch_size: 128
seq_length: 8192
vocab_size: 32000
transformer_impl: local
use_distributed_optimizer: true
"""
DUMP = "".join(f"  {name} {'.' * 20} {value}\n" for name, value in {
    "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 2048, "vocab_size": 32000,
    "world_size": 16, "micro_batch_size": 2, "global_batch_size": 64, "tensor_model_parallel_size": 4, "bf16": True,
}.items())  # fmt: skip
TRAIN = "deepspeed --num_gpus 8 train.py --model_name_or_path meta-llama/Meta-Llama-3-8B --block_size 4096"
TRAIN += " --gradient_checkpointing False"
# the files of a run, and what counts
RUNS: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"a.sh": "python megatron_gpt_pretraining.py --config-name=b model.tensor_model_parallel_size=4", "b.yaml": NEMO},
     {"plan.tp": 4, "plan.cp": 2, "plan.micro_batch_size": 1, "cluster.nodes": 2, "training.dtype": "bf16"}),
    ({"a.sh": "python megatron_gpt_pretraining.py --config-name=b model.num_layers=24 model.hidden_size=1024",
      "b.yaml": NEMO},
     {"model.num_layers": 24, "model.hidden_size": 1024, "model.num_attention_heads": 32}),
    ({"a.sh": "torchrun --nnodes 2 --nproc_per_node 8 run_clm.py --model_name_or_path meta-llama/Meta-Llama-3-8B "
      "--bf16 --block_size 512 --fsdp full_shard --fsdp_config b.json", "b.json": '{"activation_checkpointing": true}'},
     {"plan.zero_stage": 3, "plan.recompute": "full", "training.global_batch_size": 128}),
    ({"a.sh": "torchrun --nnodes 2 --nproc_per_node 8 -m torchtitan.train --job.config_file b.toml "
      "--parallelism.tensor_parallel_degree 2", "b.toml": TITAN},
     {"plan.tp": 2, "plan.cp": 2, "plan.micro_batch_size": 2, "training.seq_length": 8192, "plan.pp": 1}),
    ({"a.sh": f"{TRAIN} --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --deepspeed b.json",
      "b.json": DEEPSPEED.replace("STAGE", "3")},
     {"plan.zero_stage": 3, "plan.micro_batch_size": 2, "training.global_batch_size": 64, "training.dtype": "bf16"}),
    ({"a.sh": f"deepspeed --num_gpus 8 pretrain_gpt.py {SHAPE} {BATCH} --bf16 --zero-stage 1 --deepspeed "
      "--deepspeed_config b.json", "b.json": DEEPSPEED.replace("STAGE", "2")},
     {"plan.zero_stage": 2, "training.framework": "megatron-deepspeed"}),
    ({"a.sh": f"deepspeed --num_gpus 8 pretrain_gpt.py {SHAPE} {BATCH} --bf16 --deepspeed --deepspeed_config b.json",
      "b.json": DEEPSPEED.replace("STAGE", "0")}, {"plan.zero_stage": 1, "training.dtype": "bf16"}),
    ({"a.sh": f"accelerate launch --config_file b.yaml {TRAIN[22:]} --bf16 True --per_device_train_batch_size 2 "
      "--gradient_accumulation_steps 1", "b.yaml": "distributed_type: FSDP\nmixed_precision: fp16\nnum_machines: 1\n"
      "num_processes: 8\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}\n"},
     {"training.dtype": "bf16", "plan.zero_stage": 2, "cluster.nodes": 1}),
    ({"a.sh": "torchrun --nnodes 2 --nproc_per_node 8 run_recipe.py --recipe llama3_8b_pretrain_config "
      "model.tensor_model_parallel_size=2", "b.yaml": BRIDGE},
     {"plan.tp": 2, "plan.pp": 2, "plan.recompute": "full", "training.seq_length": 4096, "plan.zero_stage": 1}),
    ({"a.sh": f"torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --yaml-cfg c/b.yaml {SHAPE} {BATCH}",
      "b.yaml": MEGATRON}, {"plan.tp": 2, "plan.cp": 2, "plan.micro_batch_size": 2, "training.attention": "unfused",
                            "training.seq_length": 8192, "model.gated_mlp": True, "model.num_query_groups": 8}),
    ({"a.sh": f"torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py {SHAPE} {BATCH}", "b.log": DUMP},
     {"plan.tp": 4, "plan.micro_batch_size": 2, "training.seq_length": 2048, "training.dtype": "bf16"}),
    ({"a.sh": f"{TRAIN.replace('meta-llama/Meta-Llama-3-8B', 'mine')} --bf16 True --per_device_train_batch_size 2 "
      "--gradient_accumulation_steps 1 --deepspeed b.json", "b.json": DEEPSPEED.replace("STAGE", "1"),
      "config.json": HF},
     {"plan.zero_stage": 1, "model.num_layers": 32, "training.framework": "deepspeed"}),
]  # fmt: skip


@each(("texts", "counts"), RUNS)
def test_what_counts_follows_from_the_program_and_not_from_the_order(
    texts: dict[str, str], counts: dict[str, Any], tmp_path: Path
) -> None:
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    orders = [[tmp_path / name for name in names] for names in permutations(texts)]
    first, *others = (import_(files, gpu="h100-sxm5-80gb", name="x") for files in orders)
    job = {"training": vars(first.job.training), "cluster": vars(first.job.cluster), "model": vars(first.job.model)}
    values = {name: (job | {"plan": first.plan})[name.split(".")[0]].get(name.split(".")[1]) for name in counts}
    assert {name: getattr(value, "name", value) for name, value in values.items()} == counts
    for one in others:
        assert (one.job, one.plan_text, one.remarks) == (first.job, first.plan_text, first.remarks)
        assert one.origins == first.origins


def test_a_yaml_of_megatron_leaves_no_option_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py --yaml-cfg b.yaml {SHAPE} {BATCH}")
    with pytest.raises(
        JobError, match=r"\(--seq-length\).* the model \(all is in b\.yaml, and no option counts; --mod"
    ):
        import_(tmp_path / "a.sh", gpu="h100-sxm5-80gb")
