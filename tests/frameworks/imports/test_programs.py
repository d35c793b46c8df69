"""The program is known before its options: by its name, its year, or not at all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from jointopt.core.errors import JobError
from jointopt.frameworks.commands.programs import known_programs
from jointopt.frameworks.import_files import read_text
from jointopt.workflows.import_ import import_
from tests.each import each

SHAPE = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000"
REFUSED = [  # a command, and the sentence on what it starts
    (f"torchrun pretrain_bert.py {SHAPE}", "pretrain_bert.py, which trains an encoder"),
    (f"torchrun pretrain_t5.py {SHAPE} --tensor-model-parallel-size 2", "pretrain_t5.py, which trains an encoder and"),
    (f"torchrun pretrain_ict.py {SHAPE}", "pretrain_ict.py, which trains encoders for retrieval"),
    (f"torchrun pretrain_vision_classify.py {SHAPE}", "which trains a vision model"),
    (f"torchrun pretrain_retro.py {SHAPE}", "which trains a model with retrieval"),
    (f"torchrun pretrain_mamba.py {SHAPE}", "which trains layers of state-space models"),
    (f"python tasks/main.py --task RACE {SHAPE}", "main.py, which evaluates or fine-tunes for a task"),
    ("python tools/checkpoint/convert.py --target-tensor-parallel-size 2", "which converts a checkpoint"),
    ("python tools/preprocess_data.py --vocab-size 9 --input x", "which prepares data"),
    (f"torchrun tools/run_text_generation_server.py {SHAPE}", "which generates text"),
    ("accelerate launch -m lm_eval --model hf --tasks arc", "lm_eval, which evaluates a model"),
    ("megatron rlhf --rlhf_type dpo --model Qwen/Qwen3-8B", "megatron rlhf, which learns from rewards or preferences"),
    ("python -m verl.trainer.main_ppo trainer.nnodes=2 data.train_batch_size=8", "verl.trainer.main_ppo, which learns"),
    (f"ray job submit -- python train.py {SHAPE} --rollout-batch-size 8", "train.py, which learns from rewards"),
    (f"torchrun pretrain_ntp.py {SHAPE} --tp-spares 2", "pretrain_ntp.py, which goes on with fewer tensor ranks"),
]


@each(("script", "sentence"), REFUSED)
def test_what_trains_no_decoder_is_refused_by_name(script: str, sentence: str) -> None:
    with pytest.raises(JobError, match=rf"^it starts .*{re.escape(sentence)}.*\(a\.sh:1\); jointopt plans pretraining"):
        read_text(script, "a.sh")


def test_beside_a_training_what_else_a_script_starts_does_not_count() -> None:
    (taken,) = read_text(f"{REFUSED[7][0]}\ntorchrun pretrain_gpt.py {SHAPE} --bf16\n{REFUSED[0][0]}", "a.sh")
    assert (taken.program, taken.origins["model.num_layers"]) == ("Megatron-LM", "a.sh:2")


STARTED: list[tuple[str, str, dict[str, Any]]] = [  # a command, whose defaults it has, and some of its statements
    (f"python pretrain_gpt.py {SHAPE}", "Megatron-LM", {"plan.zero_stage": 0, "training.attention": None}),
    (f"torchrun ${{MEGATRON_PATH}}/pretrain_gpt.py {SHAPE}", "Megatron-LM", {"plan.tp": 1}),
    (f'A="`pwd`/pretrain_gpt.py {SHAPE}"\nsrun -N 2 bash -c "torchrun --nnodes 2 $A"', "Megatron-LM", {"plan.tp": 1}),
    (f"python pretrain_gpt2.py {SHAPE} --model-parallel-size 4 --batch-size 2", "Megatron-LM of 2019 and 2020",
     {"plan.tp": 4, "plan.micro_batch_size": 2, "training.attention": "unfused"}),
    (f"python pretrain_gpt.py {SHAPE} --checkpoint-activations --DDP-impl local", "Megatron-LM of 2021 to 2023",
     {"plan.recompute": "full", "training.attention": "unfused"}),
    (f"python pretrain_gpt.py {SHAPE} --activations-checkpoint-method block --use-flash-attn --num-experts 8",
     "Megatron-LM of 2021 to 2023", {"training.attention": "flash2", "model.moe_router_topk": 1}),
    (f"deepspeed pretrain_gpt.py {SHAPE} --deepspeed --zero-stage 2 --num-experts 8 --moe-expert-parallel-size 4",
     "Megatron-DeepSpeed", {"plan.zero_stage": 2, "plan.ep": 4, "model.moe_router_topk": 1}),
    ("deepspeed pretrain_gpt.py --num-layers 2 --hidden-size 64 --pad-vocab-size-to 250880 --deepspeed "
     "--ds-sequence-parallel-size 4", "Megatron-DeepSpeed", {"plan.cp": 4, "model.vocab_size": 250880}),
    ("srun -N 2 --ntasks-per-node=8 python megatron_gpt_pretraining.py model.tensor_model_parallel_size=2", "NeMo",
     {"plan.tp": 2, "training.seq_length": 512, "model.ffn_hidden_size": 3072, "cluster.nodes": 2}),
    (f"torchrun pretrain_qwen.py {SHAPE} --patch-tokenizer-type Qwen2Tokenizer", "Megatron-LM", {"plan.tp": 1}),
    ("megatron sft --model Qwen/Qwen3-8B --tensor_model_parallel_size 2 --max_length 4096 --torch_dtype bfloat16",
     "ms-swift", {"plan.tp": 2, "plan.zero_stage": 1, "plan.micro_batch_size": 1, "training.global_batch_size": 16,
                  "training.seq_length": 4096, "training.dtype": "bf16", "model.catalogue": "qwen3-8b"}),
    ("swift sft --model Qwen/Qwen3-8B --torch_dtype bfloat16 --deepspeed zero3", "ms-swift",
     {"plan.zero_stage": 3, "plan.recompute": "full", "training.lora_dim": 8, "plan.micro_batch_size": 1}),
    ("torchrun run_clm.py --model_name_or_path Qwen/Qwen3-8B --bf16 --fsdp 'shard_grad_op auto_wrap'",
     "Hugging Face's Trainer", {"plan.zero_stage": 2, "plan.recompute": "none", "plan.micro_batch_size": 8}),
    ("torchrun fastchat/train/train_mem.py --model_name_or_path x/llama-2-7b --bf16 True --gradient_checkpointing True",
     "Hugging Face's Trainer", {"plan.zero_stage": 0, "plan.recompute": "full", "model.catalogue": "llama-2-7b"}),
    ("accelerate launch --mixed_precision fp16 --use_deepspeed --zero_stage 2 run_clm_no_trainer.py --block_size 512",
     "Hugging Face's Trainer", {"plan.zero_stage": 2, "training.dtype": "fp16", "training.seq_length": 512}),
    ("deepspeed src/train.py --stage sft --finetuning_type full --cutoff_len 4096 --model_name_or_path x --bf16",
     "LLaMA-Factory", {"plan.recompute": "full", "training.seq_length": 4096, "training.lora_dim": None}),
    ("deepspeed --module openrlhf.cli.train_sft --pretrain meta-llama/Meta-Llama-3-8B --micro_train_batch_size 2",
     "OpenRLHF", {"plan.zero_stage": 2, "plan.micro_batch_size": 2, "training.global_batch_size": 128}),
    ("python -m torchtitan.train --module llama3 --config llama3_70b", "torchtitan",
     {"plan.tp": 8, "plan.micro_batch_size": 8, "training.seq_length": 8192, "plan.recompute": "full"}),
]  # fmt: skip


@each(("script", "program", "stated"), STARTED)
def test_defaults_are_those_of_the_program_that_is_started(script: str, program: str, stated: dict[str, Any]) -> None:
    (taken,) = read_text(script, "a.sh")
    found = {name: getattr(taken, name.split(".")[0]).get(name.split(".")[1]) for name in stated}
    assert (taken.program, found) == (program, stated)
    assert all(one.endswith(program) for one in taken.origins.values() if "a.sh" not in one)


RECIPES: list[tuple[str, dict[str, Any], str]] = [  # a command, what it states, and whose recipe fills in the rest
    ("setup_experiment.py -m llama -mr llama3_70b -ng 64 -g h100 -c fp8_cs -tp 4 -vp 5 -mb 1 -t 00:15:00",
     {"plan.tp": 4, "plan.sequence_parallel": True, "training.dtype": "fp8", "cluster.num_gpus": 64,
      "cluster.gpu": "h100-sxm5-80gb", "model.catalogue": "llama-3-70b"}, "model_recipe_name llama3_70b of Megatron-B"),
    ("run_recipe.py --recipe qwen3_30b_a3b_pretrain_config -gb 64 model.tensor_model_parallel_size=2",
     {"plan.tp": 2, "training.global_batch_size": 64, "model.catalogue": "qwen3-30b-a3b"}, "recipe qwen3_30b_a3b_pret"),
    ("nemo llm pretrain --factory llama3_8b trainer.num_nodes=2 trainer.strategy.tensor_model_parallel_size=2",
     {"plan.tp": 2, "cluster.nodes": 2, "model.catalogue": "llama-3-8b"}, "factory llama3_8b of NeMo"),
    ("megatron_gpt_pretraining.py --config-name=llama model.micro_batch_size=2", {"plan.micro_batch_size": 2}, "llama"),
    ("CONFIG_FILE=x.toml ./run_train.sh --training.seq_len 512", {"training.seq_length": 512}, "recipe of torchtitan"),
]  # fmt: skip


@each(("script", "stated", "by"), RECIPES)
def test_what_a_recipe_fills_in_is_asked_and_never_a_default(script: str, stated: dict[str, Any], by: str) -> None:
    (taken,) = read_text(f"python {script}" if script.endswith(("2", "0")) else script, "a.sh")
    found = {name: getattr(taken, name.split(".")[0]).get(name.split(".")[1]) for name in stated}
    assert found == stated
    assert {"plan.pp", "plan.recompute", "plan.zero_stage"} <= taken.questions.keys()
    assert f"{by}" in taken.questions["plan.pp"].why
    assert not {name for name, origin in taken.origins.items() if "default of Megatron-LM" in origin}


def test_a_script_with_options_of_megatron_and_a_name_of_its_own_is_asked_what_it_is(tmp_path: Path) -> None:
    script = tmp_path / "a.sh"
    script.write_text(f"mkdir x\ntorchrun --nproc_per_node 8 train.py {SHAPE} --micro-batch-size 1 --bf16")
    with pytest.raises(JobError, match=r"program \(train\.py has options of Megatron-LM.*; --set program=\.\.\.\)"):
        import_(script, gpu="h100-sxm5-80gb")
    found = import_(script, gpu="h100-sxm5-80gb", set={"program": "Megatron-LM"})
    assert found.origins["plan.tp"] == "default of Megatron-LM"
    with pytest.raises(JobError, match=r"program=mine is no program that is known; expected one of Megatron-DeepSpeed"):
        import_(script, gpu="h100-sxm5-80gb", set={"program": "mine"})


def test_what_a_checkpoint_fills_in_is_asked() -> None:
    words = "pretrain_gpt.py --use-checkpoint-args --use-mp-args-from-checkpoint-args --load x --bf16 --hidden-size 64"
    words += " --micro-batch-size 1"
    (taken,) = read_text(f"torchrun {words}", "a.sh")
    assert taken.questions.keys() == {"model.catalogue", "plan.tp", "plan.pp"}
    assert (taken.model, taken.plan["zero_stage"]) == ({"hidden_size": 64, "ffn_hidden_size": 256}, 0)


def test_experts_in_every_second_layer_are_asked() -> None:
    (taken,) = read_text(f"deepspeed pretrain_gpt.py {SHAPE} --num-experts 8 --deepspeed --micro-batch-size 1", "a.sh")
    assert [*taken.questions] == ["model.num_dense_layers"]
    (every,) = read_text(
        f"deepspeed pretrain_gpt.py {SHAPE} --num-experts 8 --micro-batch-size 1 --expert-interval 1 --zero-stage 1",
        "a.sh",
    )
    assert every.questions == {}


@pytest.mark.parametrize(
    "words", ["llamafactory-cli train c/b.yaml", "deepy.py train.py b.yml", "axolotl train b.yaml"]
)
def test_a_program_whose_values_are_in_its_config_asks_for_it(words: str) -> None:
    (taken,) = read_text(words, "a.sh")
    assert (taken.names, taken.plan, taken.training) == ((words.split("/")[-1].split()[-1],), {}, {})


def test_a_script_that_starts_another_one_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("sh run_mcore_llama3_1.sh dsw 8B 1 8 1e-5")
    with pytest.raises(JobError, match=r"it starts or sources run_mcore_llama3_1\.sh, where its values are read: give"):
        import_(tmp_path / "a.sh", gpu="h100-sxm5-80gb")


def test_the_page_lists_each_program_by_the_names_that_it_is_known_by() -> None:
    page = (Path(__file__).parents[3] / "docs" / "imports.md").read_text(encoding="utf-8")
    page = page.partition("## Which program it is")[2].partition("\n## ")[0]
    rows = {cells[1].strip(): cells[2] for line in page.splitlines() if len(cells := line.split("|")) > 3}
    wanted = {known.name: set(known.by or known.beside) for known in known_programs()}
    shown = {name: set(re.findall(r"`([^`]+)`", rows.get(name, ""))) for name in wanted}
    assert shown == wanted


def test_overrides_that_state_a_whole_shape_leave_no_question_on_the_model() -> None:
    shape = "num_layers=2 hidden_size=64 ffn_hidden_size=256 num_attention_heads=8 num_query_groups=8 kv_channels=8 "
    shape += "gated_linear_unit=true add_bias_linear=false add_qkv_bias=false qk_layernorm=false normalization=RMSNorm "
    shape += "share_embeddings_and_output_weights=false position_embedding_type=rope hidden_dropout=0.0 "
    shape += "virtual_pipeline_model_parallel_size=null"
    (taken,) = read_text("run_recipe.py " + " ".join(f"model.{one}" for one in shape.split()), "a.sh")
    assert "model.catalogue" not in taken.questions
    assert (taken.model["num_layers"], taken.model["qk_norm"], taken.plan["vpp"]) == (2, False, 1)
