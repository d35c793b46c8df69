"""The kind of a file, by what stands in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jointopt.core.errors import JobError
from jointopt.frameworks.import_files import read_files, read_text
from tests.each import each

SHAPE = '"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 9'
KINDS = [  # a text, and what it is read as; blank: nothing
    ("model: {num_layers: 2}\nddp: {x: 1}", "Megatron-Bridge config"), ("train: {x: 1}", "Megatron-Bridge config"),
    ("model: {num_layers: 2}\nmixed_precision: bf16_mixed", "Megatron-Bridge config"),
    ("model: {num_layers: 2}", ""), ("ddp: {x: 1}", ""),
    ("trainer: {devices: 8}\nmodel: {num_layers: 2}", "NeMo config"), ("exp_manager: {}\nmodel: {}", "NeMo config"),
    ("training: {trainer: {devices: 8}, model: {num_layers: 2}}", "NeMo config"),
    ("trainer: {devices: 8}", ""), ("trainer: {devices: 8}\nmodel: llama", ""),
    ("parallelism: {dp: 1}\ntokens: {x: 1}", "nanotron config"), ("tokens: {x: 1}", ""), ("parallelism: {dp: 1}", ""),
    ("language_model: {num_layers: 2}\nmodel_parallel: {bf16: true}", "Megatron-LM config"),
    ("distributed_type: FSDP", "Accelerate config"), ("compute_environment: LOCAL_MACHINE", "Accelerate config"),
    ("[parallelism]\nx = 1", "torchtitan config"), ("[training]\nx = 1\n[model]\ny = 1", "torchtitan config"),
    ("[training]\nx = 1", ""), ("[model]\nx = 1", ""),
    ('{"zero_optimization": {}}', "DeepSpeed config"), ('{"train_batch_size": 2}', "DeepSpeed config"),
    ('{"train_micro_batch_size_per_gpu": 2}', "DeepSpeed config"), ('{"optimizer": {}}', ""),
    ('{"distributed_type": "FSDP"}', "Accelerate config"), ('{"tp": 2, "pp": 1, "x": 1}', "plan"), ('{"tp": 2}', ""),
    (f'{{"model_type": "llama", {SHAPE}}}', "Hugging Face config"),
    (f'{{"architectures": ["LlamaForCausalLM"], {SHAPE}}}', "Hugging Face config"),
    ("torchrun\0pretrain_gpt.py\0--num-layers\0" "2\0--hidden-size\0" "64\0", "Megatron-LM options"),
    ("from torchtitan.models.llama3 import x\nconfig.training.steps = 2", "torchtitan config in Python"),
    ("start_time,window_name,elapsed_time,gpu0_energy\n", "Zeus windows"),
    ("Building device mesh with parallelism: tp=2\n", "torchtitan log"),
    ("Config(general=GeneralArgs(project='x'))\n", "nanotron log"),
    ("Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory.\n", "log of a failed run"),
    ("# step 1 loss 5.0 time 0.174\ntorchrun train.py --model_name_or_path x", "launch script"),
    ("Traceback (most recent call last):\nValueError: bad flag\n", ""), ("torch.OutOfMemoryError: out of memory\n", ""),
]  # fmt: skip


@each(("text", "kind"), KINDS)
def test_a_file_is_known_by_what_stands_in_it(text: str, kind: str) -> None:
    assert [taken.format for taken in read_text(text)] == ([kind] if kind else [])


def test_of_a_plan_in_json_the_columns_of_layouts_are_read() -> None:
    (taken,) = read_text('{"tp": 2, "pp": 1, "dp": 4, "predicted_time_s": 5.0, "notes": "x"}')
    assert taken.plan == {"tp": 2, "pp": 1, "dp": 4}


DEEP = ("train model." + "a." * 20_000 + "b=1", "{" + '"a":{' * 20_000, "a = " + "[" * 20_000, "a = " + "1" * 9_999,
        "a." * 50_000 + "a = 1")  # fmt: skip


@pytest.mark.parametrize("text", DEEP, ids=["overrides", "JSON", "TOML", "number", "name"])
def test_what_is_nested_too_deeply_is_refused_in_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "odd").write_text(text)
    with pytest.raises(JobError, match=r"^(jointopt cannot import )?\S+odd\b"):
        read_files([tmp_path / "odd"])
