"""Configs of programs that tables read: what one states in all, what one more key moves, what is asked and refused."""

from __future__ import annotations

import functools
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from jointopt.core.errors import JobError
from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.frameworks.configs.config_programs import Program, config_settings, program_of, programs, refusal
from jointopt.frameworks.import_files import _READERS, read_files, read_text
from jointopt.frameworks.options import FileSettings
from jointopt.frameworks.origins import fields_of, nested
from jointopt.jobs.job import Training
from jointopt.jobs.model import Model
from jointopt.workflows.import_ import import_
from tests.each import each

# a section for each program: the keys `of` a config, all that it `states` and `asks`, what others move, and refusals
SECTIONS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("configs.yaml").read_text(encoding="utf-8"))
MOVED = [(name, row["by"], row) for name, section in SECTIONS.items() for row in section.get("moved", [])]
REFUSED = [(name, row[0], row[1]) for name, section in SECTIONS.items() for row in section.get("refused", [])]
PLAN = {"dp": 16, "nodes": 2}  # of all files
# tested by statements.yaml, in test_programs.py, and below
ELSEWHERE = ("words", "deepspeed", "accelerate", "olmo_core", "ms_swift", "open_rlhf", "fsdp_config")


def config(section: str, by: dict[str, Any]) -> dict[str, Any]:
    """A config with these keys, but for those that are left out."""
    return nested({key: value for key, value in (SECTIONS[section]["of"] | by).items() if value != "left out"})


def taken_of(section: str, by: dict[str, Any]) -> FileSettings:
    return config_settings(programs()[section], config(section, by), _READERS)


@functools.cache
def before(section: str) -> dict[str, Any]:
    return statements(taken_of(section, {}))


def statements(taken: FileSettings) -> dict[str, Any]:
    """The fields that a config states, its framework, and columns that hang on the nodes."""
    rest = {f"rest.{key}": value for key, value in (taken.rest(PLAN, 32) if taken.rest else {}).items()}
    return fields_of(taken) | rest | ({"framework": taken.framework} if taken.framework else {})


FIELDS = {
    "model": {*(one.name for one in fields(Model)), "catalogue"}, "training": {one.name for one in fields(Training)},
    "plan": set(LAYOUT_COLUMNS), "cluster": {"nodes", "gpus_per_node", "num_gpus"},
    "framework": {""}, "accumulation": {""}, "names": {""},
}  # fmt: skip


@each(("key", "program"), programs().items())
def test_a_table_states_fields_of_jobs_and_plans_and_names_its_source(key: str, program: Program) -> None:
    stated = [target.partition(".") for target in (*program.states, *(f"plan.{one}" for one in program.rest))]
    unknown = [section for section, _, name in stated if section[:1] != "_" and name not in FIELDS.get(section, ())]
    assert (unknown, bool(program.source), key in {*SECTIONS, *ELSEWHERE}) == ([], True, True)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_config_is_known_by_its_keys_and_states_these_fields_and_no_others(section: str) -> None:
    found = program_of(config(section, {}), programs()[section].imports)
    assert found is programs()[section]
    assert before(section) == SECTIONS[section]["states"]
    assert sorted(taken_of(section, {}).questions) == SECTIONS[section].get("asks", [])
    assert taken_of(section, {}).unread == ()


@each(("section", "by", "row"), MOVED)
def test_a_key_moves_its_fields_and_asks_or_says(section: str, by: dict[str, Any], row: dict[str, Any]) -> None:
    old, taken = before(section), taken_of(section, by)
    new = statements(taken)
    assert {key: value for key, value in new.items() if old.get(key) != value} == row.get("to", {})
    assert sorted(old.keys() - new.keys()) == row.get("gone", [])
    assert sorted(set(taken.questions) - set(SECTIONS[section].get("asks", []))) == row.get("asks", [])
    assert row.get("says", "") in " ".join((*taken.remarks, *(question.why for question in taken.questions.values())))


@each(("section", "by", "what"), REFUSED)
def test_a_run_that_is_no_training_of_a_decoder_is_refused_by_name(section: str, by: dict[str, Any], what: str) -> None:
    assert refusal(programs()[section], config(section, {})) == ""
    assert what in refusal(programs()[section], config(section, by))


def test_a_refusal_names_the_file_the_program_and_the_run(tmp_path: Path) -> None:
    (tmp_path / "dpo.yaml").write_text("model_name_or_path: x\nstage: dpo\ndo_train: true\n")
    with pytest.raises(JobError, match=r"dpo\.yaml: this config of LLaMA-Factory is preference .*stage: dpo.*expected"):
        read_files([tmp_path / "dpo.yaml"])


def test_several_files_of_gpt_neox_are_one_config_whose_fields_name_their_files(tmp_path: Path) -> None:
    (tmp_path / "sizes.yml").write_text('{\n "num-layers": 44,\n "hidden-size": 6144,\n "no-weight-tying": true,\n}')
    (tmp_path / "layout.yml").write_text('{\n "pipe-parallel-size": 4,\n "num_attention_heads": 64,\n}')
    (taken,) = read_files([tmp_path / "sizes.yml", tmp_path / "layout.yml"])
    assert (taken.model["num_layers"], taken.model["ffn_hidden_size"], taken.plan["pp"]) == (44, 4 * 6144, 4)
    assert taken.origins["model.num_layers"] == "sizes.yml:2"
    assert taken.origins["plan.pp"] == "layout.yml:2"
    assert taken.origins["plan.tp"] == "default of GPT-NeoX"


TRL = "model_name_or_path: Qwen/Qwen3-8B\ndataset_name: x\npacking: true\n"


def test_what_another_file_states_counts_more_than_the_default_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(TRL)
    (tmp_path / "acc.yaml").write_text("distributed_type: FSDP\nnum_machines: 2\nnum_processes: 16\n"
                                       "gradient_accumulation_steps: 4\n")  # fmt: skip
    found = import_([tmp_path / "sft.yaml", tmp_path / "acc.yaml"], gpu="h100-sxm5-80gb")
    assert (found.plan["zero_stage"], found.job.training.framework.name) == (3, "fsdp")
    assert found.job.training.global_batch_size == 8 * 4 * 16  # a micro-batch of 8 by default, four times, on 16 GPUs
    assert found.origins["plan.zero_stage"] == "acc.yaml:1"
    assert found.origins["training.seq_length"] == "default of TRL"


def test_a_model_that_the_catalogue_does_not_know_is_asked_for_by_name_unless_its_config_json_is_given(
    tmp_path: Path,
) -> None:
    (tmp_path / "sft.yaml").write_text(TRL.replace("Qwen/Qwen3-8B", "own/tiny"))
    with pytest.raises(JobError, match=r"the model \(own/tiny is no model of the catalogue.*--model\)"):
        import_([tmp_path / "sft.yaml"], gpu="h100-sxm5-80gb", nodes=1)
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, '
        '"intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 999}')  # fmt: skip
    found = import_([tmp_path / "sft.yaml", tmp_path / "config.json"], gpu="h100-sxm5-80gb", nodes=1)
    assert found.job.model.num_layers == 2


def test_a_config_of_deepspeed_that_is_not_given_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(TRL + "deepspeed: conf/ds_z3.json\n")
    with pytest.raises(JobError, match=r"plan\.zero_stage \(ds_z3\.json is not given; --set plan\.zero_stage"):
        import_([tmp_path / "sft.yaml"], gpu="h100-sxm5-80gb", nodes=1)
    (tmp_path / "ds_z3.json").write_text('{"zero_optimization": {"stage": 3}}')
    found = import_([tmp_path / "sft.yaml", tmp_path / "ds_z3.json"], gpu="h100-sxm5-80gb", nodes=1)
    assert (found.plan["zero_stage"], found.job.training.framework.name) == (3, "deepspeed")


@each(("value", "found"), [
    ("${size}", 4), ("${nested.size}", 8), ("${oc.select:missing,2}", 2), ("${oc.env:SIZE,16}", 16), ("${SIZE:32}", 32),
    ("${link}", 4), ("${missing}", None), ("${oc.env:SIZE}", None), ("???", None), ("auto", None),
])  # fmt: skip
def test_a_reference_is_followed_and_asked_where_the_file_does_not_say_what_it_means(value: str, found: int) -> None:
    config = {"base_model": "x", "size": 4, "link": "${size}", "nested": {"size": 8}, "micro_batch_size": value}
    taken = config_settings(programs()["axolotl"], config, {})
    assert (taken.plan.get("micro_batch_size"), "plan.micro_batch_size" in taken.questions) == (found, found is None)


def test_a_word_that_means_no_precision_is_asked() -> None:
    config = {"distributed_type": "FSDP", "mixed_precision": "banana"}
    why = "mixed_precision is banana, which is no known word for precision"
    assert config_settings(programs()["accelerate"], config, {}).questions["training.dtype"].why == why


OLMO_CORE = """from olmo_core.train import TransformerTrainModuleConfig
DEFAULT_LENGTH = 4096
def build(opts):
    length = opts.sequence_length or DEFAULT_LENGTH
    model = TransformerConfig.olmo2_7B(vocab_size=tokenizer.padded_vocab_size())
    NumpyDataLoaderConfig(global_batch_size=512 * DEFAULT_LENGTH)
    TransformerTrainModuleConfig(
        rank_microbatch_size=2 * 4096, max_sequence_length=length,
        dp_config=TransformerDataParallelConfig(
            name=DataParallelType.hsdp, param_dtype=DType.bfloat16, num_replicas=get_world_size() // 64))
    if get_world_size() > 8:
        TransformerActivationCheckpointingConfig(mode=TransformerActivationCheckpointingMode.full)
"""


def test_of_a_config_in_python_literals_are_read_and_calls_are_asked() -> None:
    (taken,) = read_text(OLMO_CORE, "train.py")
    assert (taken.model, taken.training["global_batch_size"]) == ({"catalogue": "olmo-2-7b"}, 512)
    assert (taken.plan["micro_batch_size"], taken.plan["recompute"], taken.plan["zero_stage"]) == (2, "none", 3)
    assert taken.questions["plan.dp_replicate"].why.startswith(
        "TransformerDataParallelConfig.num_replicas is ${get_world"
    )
    assert taken.origins["training.dtype"] == "train.py:10"
    assert read_text("import olmo_core\nprint(1)\n") == []
