"""Options whose meaning follows from other options, or from where they stand."""

from __future__ import annotations

import re
from typing import Any

import pytest

from jointopt.frameworks import megatron_bridge, nanotron, torchtitan
from jointopt.frameworks.import_files import read_text
from jointopt.frameworks.megatron import dump_settings, option_settings
from jointopt.frameworks.options import Options, flags_of, pairs_of, whole_number
from jointopt.frameworks.torchtitan import config_settings
from tests.each import each

WORDS = ["--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "8", "--num-query-groups", "2"]


@pytest.mark.parametrize(
    ("more", "groups"), [([], 8), (["--group-query-attention"], 2), (["--multi-latent-attention"], 2)]
)
def test_groups_of_queries_count_only_where_grouped_or_latent_attention_is_on(more: list[str], groups: int) -> None:
    taken = option_settings(dict(pairs_of([*WORDS, *more])), "Megatron-LM options")
    assert taken.model["num_query_groups"] == groups


def test_options_of_a_log_that_nothing_here_knows_have_no_effect_rather_than_being_unread() -> None:
    lines = ["num_layers .... 2", "hidden_size .... 64", "num_attention_heads .... 8", "lr .... 0.1"]
    known = dump_settings("\n".join(lines))
    taken = dump_settings("\n".join([*lines, "newest_kernel .... True", "its_tile .... 128"]))
    assert known is not None
    assert taken is not None
    assert taken.unread == ()
    assert taken.without_effect == known.without_effect + 2


@pytest.mark.parametrize(("less", "vpp"), [({}, 4), ({"first": 0, "last": 0}, 3), ({"first": 2, "last": 2}, 4)])
def test_torchtitan_counts_both_ends_of_a_pipeline_as_layers(less: dict[str, int], vpp: int) -> None:
    # 126 layers and one for each end are 64 stages of 2, 4 for each of 16 ranks; without them 63
    stated = {f"pipeline_parallel_{end}_stage_less_layers": count for end, count in less.items()}
    parallelism = {"pipeline_parallel_degree": 16, "pipeline_parallel_layers_per_stage": 2} | stated
    taken = config_settings({"model": {"name": "llama3", "flavor": "405B"}, "parallelism": parallelism})
    assert taken.plan["vpp"] == vpp


TRAIN = "train.py --model_name_or_path mistralai/Mistral-7B-v0.1 --per_device_train_batch_size 2"
PRETRAIN = "pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 8 --micro-batch-size 2"
STARTS = [  # a script, and the format, framework and micro-batch that it states
    (f"deepspeed {TRAIN}", ("launch script", "deepspeed", 2)),
    (f"torchrun {TRAIN}", ("launch script", "", 2)),
    (f"accelerate launch {TRAIN}", ("launch script", "", 2)),
    (f"torchrun {TRAIN} --deepspeed ds.json", ("launch script", "deepspeed", 2)),
    (f"python {TRAIN}", ("launch script", "", 2)),
    (f"torchrun {PRETRAIN}", ("Megatron-LM options", "megatron-lm", 2)),
    (f"deepspeed {PRETRAIN} --deepspeed --zero-stage 2", ("Megatron-LM options", "megatron-deepspeed", 2)),
    ("torchrun run.py --parallelism.tensor_parallel_degree 2 --training.local_batch_size 4",
     ("torchtitan config", "torchtitan", 4)),
    ("python run.py model.num_layers=2 train.micro_batch_size=2 ddp.x=1", ("Megatron-Bridge config", "nemo", 2)),
    ("python run.py trainer.devices=8 model.micro_batch_size=2", ("NeMo config", "nemo", 2)),
]  # fmt: skip


@pytest.mark.parametrize(("script", "expected"), STARTS)
def test_the_framework_is_recognised_by_the_words_of_a_script(script: str, expected: tuple[str, str, int]) -> None:
    (taken,) = read_text(script)
    assert (taken.format, taken.framework, taken.plan["micro_batch_size"]) == expected


@pytest.mark.parametrize(("more", "names"), [
    ("--config_file acc.yaml", ("acc.yaml",)), ("--deepspeed=conf/ds.json", ("ds.json",)), ("--config big.txt", ()),
    ("--train_file data.json", ()), ("--deepspeed", ()), ("--yaml_config a/b.yml --deepspeed_config c.json",
                                                          ("b.yml", "c.json")),
])  # fmt: skip
def test_the_configs_that_a_script_is_given_are_named(more: str, names: tuple[str, ...]) -> None:
    (taken,) = read_text(f"torchrun {TRAIN} {more}")
    assert taken.names == names


def test_megatron_deepspeed_has_words_and_an_optimizer_of_its_own() -> None:
    (taken,) = read_text(f"deepspeed {PRETRAIN} --deepspeed --num-key-value-heads 4 --bf16 --zero-stage 0")
    assert (taken.model["num_query_groups"], taken.plan["zero_stage"], taken.unread) == (4, 1, ())
    assert "bf16 under Megatron-DeepSpeed shards its optimizer, as zero_stage 1 does" in taken.remarks


def test_the_environment_that_libraries_read_is_kept() -> None:
    variables = "export NCCL_ALGO=Ring NVTE_X=1 CUDA_DEVICE_MAX_CONNECTIONS=1 HOME_OF=x\nCONFIG_FILE=a/b.toml"
    (taken,) = read_text(f"{variables}\ntorchrun {TRAIN}")
    assert taken.flags == {"NCCL_ALGO": "Ring", "NVTE_X": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert taken.names == ("b.toml",)


def test_a_script_that_starts_nothing_known_is_no_import() -> None:
    assert read_text("echo hello\npython train.py --epochs 3") == []


def test_an_option_whose_value_cannot_be_read_stays_among_those_not_read() -> None:
    options = Options({"layers": "many", "heads": "8", "flag": "perhaps", "on": "yes", "lr": 1, "lr_min": 2})
    assert (options.whole("layers"), options.whole("heads"), options.plain("flag"), options.plain("on")) == (
        None, 8, None, True,
    )  # fmt: skip
    assert options.unused(re.compile("lr")) == (("layers", "flag"), 2)


@each(("value", "number"), [
    (8, 8), ("8", 8), ("1_024", 1024), ("4e6", 4_000_000), ("'16'", 16), (8.0, 8), (8.5, None), ("many", None),
    (True, None), (False, None), (None, None), ("inf", None), ("nan", None), ("-1", -1),
])  # fmt: skip
def test_a_whole_number_is_read_in_any_spelling(value: object, number: int | None) -> None:
    assert whole_number(value) == number


def test_words_are_pairs_of_names_and_values() -> None:
    words = "x.py --a-b 1 --on --list 1 2 3 --eq=5 --none= -- --neg -4 run.py --last"
    assert dict(pairs_of(words.split())) == {
        "a_b": "1", "on": True, "list": ["1", "2", "3"], "eq": "5", "none": "", "neg": "-4", "last": True,
    }  # fmt: skip


def test_options_that_are_off_are_no_flags() -> None:
    given = {"z": 1, "a": True, "b": False, "c": None, "d": "None", "e": "false", "f": "x"}
    assert list(flags_of(given).items()) == [("a", True), ("f", "x"), ("z", 1)]


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (megatron_bridge.nemo_settings, "trainer.precision"), (megatron_bridge.bridge_settings, "mixed_precision"),
        (torchtitan.config_settings, "training.mixed_precision_param"), (nanotron.config_settings, "model.dtype"),
    ],
)  # fmt: skip
def test_an_unknown_precision_is_a_remark_and_a_known_one_is_not(read: Any, name: str) -> None:
    section, _, last = name.rpartition(".")
    for word, known in (("banana", False), ("bf16-mixed", True), (None, True)):
        taken = read({section: {last: word}} if section else {last: word})
        remark = f"{name} 'banana' means no precision and is not read; expected one like bf16, fp16, fp32 or fp8."
        assert taken.remarks == (() if known else (remark,))
