"""Every fact of a model that a file states is kept, named or refused; exports for training write or refuse it."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from jointopt.core.errors import ExportError, UsageError
from jointopt.frameworks.exported import exported
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.details import details_of, differing_details
from jointopt.jobs.huggingface import known_keys
from jointopt.jobs.jobfile import dump_job, job_mapping, parse_job
from jointopt.jobs.reading import parse_yaml
from jointopt.jobs.shape import inline_model
from jointopt.report.imported import Imported
from jointopt.workflows.export import write
from jointopt.workflows.import_ import import_
from tests.each import each
from tests.frameworks.exports.conftest import job_named
from tests.frameworks.imports.test_statements import nested

ROWS: list[dict[str, Any]] = [
    row
    for rows in yaml.safe_load(Path(__file__).with_name("facts.yaml").read_text(encoding="utf-8")).values()
    for row in rows
]
SIZES = {"num_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 32000, "seq_length": 2048}
BATCH = {"micro_batch_size": 1, "global_batch_size": 16}
LLAMA = {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 32000,
         "intermediate_size": 2048}  # fmt: skip
START = "torchrun --nproc-per-node 8"
GIVEN = {"gpu": "h100-sxm5-80gb", "nodes": 1, "gpus_per_node": 8}


def quoted(word: str) -> str:
    return word if word.startswith("$") else shlex.quote(word)


def written(kind: str, more: dict[str, Any]) -> tuple[str, str]:
    """The name and text of a file of that kind, with more options or keys than a plain one."""
    options = SIZES | BATCH | more if kind == "megatron" else more
    words = " ".join(f"--{name.replace('_', '-') if kind == 'megatron' else name} "
                     + " ".join(map(quoted, str(value).split())) * (value is not True)
                     for name, value in options.items())  # fmt: skip
    if kind in ("megatron", "trainer"):
        program = "train.py --per_device_train_batch_size 1 --model_name_or_path meta-llama/Meta-Llama-3-8B"
        return "run.sh", f"{START} {'pretrain_gpt.py --bf16' if kind == 'megatron' else program} {words}"
    if kind == "huggingface":
        config = {"model_type": "llama"} | more
        plain = {key: LLAMA[key] for key in LLAMA.keys() & known_keys(config["model_type"])}
        return "config.json", json.dumps(plain | config)
    sections: dict[str, Any] = {"model": SIZES | BATCH, "trainer": {"num_nodes": 1, "devices": 8}}
    if kind == "bridge":
        sections = {"model": SIZES, "train": BATCH, "ddp": {"overlap_grad_reduce": True}}
    if kind == "nanotron":
        sections = {
            "parallelism": {"dp": 8, "tp": 1, "pp": 1}, "tokens": {"sequence_length": 2048, "micro_batch_size": 1},
            "model": {"model_config": {"is_llama_config": True} | LLAMA | more},
        }  # fmt: skip
        return "nanotron.yaml", yaml.safe_dump(sections)
    for name, values in nested(more).items():
        sections[name] = sections.get(name, {}) | values
    return "config.yaml", yaml.safe_dump(sections)


def imported(of: dict[str, Any], folder: Path) -> Imported:
    ((kind, more),) = of.items()
    name, text = written(kind, more)
    (folder / name).write_text(text, encoding="utf-8")
    more = {"seq_length": 2048, "global_batch_size": 16} if kind in ("huggingface", "trainer") else {}
    return import_(folder / name, **GIVEN, **more)


@each(("of", "row"), [(row["of"], row) for row in ROWS if "refuses" in row])
def test_a_fact_without_a_formula_that_takes_time_is_refused(of: dict[str, Any], row: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=row["refuses"]):
        imported(of, tmp_path)


def test_a_refused_fact_may_be_left_out_by_the_user(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"run\.sh:1 states Mamba .* or price it without \(--set model\.other=none\)"):
        imported({"megatron": {"is-hybrid-model": True}}, tmp_path)
    given = GIVEN | {"set": {"model.other": "none"}}
    assert import_(tmp_path / "run.sh", **given).job.model.other == ()
    found = import_(tmp_path / "run.sh", **GIVEN, model="llama-3-8b")
    assert any("--model counts, and not that the run has Mamba" in one for one in found.remarks)


def test_a_detail_that_only_a_shell_knows_is_remarked_on_and_not_asked(tmp_path: Path) -> None:
    found = imported({"megatron": {"init-method-std": "$STD"}}, tmp_path)
    assert any("(--init-method-std is given $STD" in remark for remark in found.remarks)


PLAN = "dp=8 tp=1 pp=1 micro_batch_size=1 clock_mhz=1980"
KEPT = [(row["of"], row) for row in ROWS if "refuses" not in row]


@each(("of", "row"), KEPT)
def test_a_fact_is_kept_or_named(of: dict[str, Any], row: dict[str, Any], tmp_path: Path) -> None:
    found = imported(of, tmp_path)
    model, details = vars(found.job.model), vars(details_of(found.job.model))
    kept = {name: list(model[name]) if name == "other" else model[name] for name in row.get("model", {})}
    assert kept == row.get("model", {})
    assert {name: details[name] for name in row.get("details", {})} == row.get("details", {})
    assert re.search(row.get("says", ""), " ".join(map(str, found.remarks)))
    assert found.unread == {}


@each(("of", "row"), [(of, row) for of, row in KEPT if {"writes", "barred"} & row.keys()])
def test_an_export_for_training_writes_a_fact_or_refuses_it(of: dict[str, Any], row: Any, tmp_path: Path) -> None:
    found = imported(of, tmp_path)
    if "barred" in row:
        with pytest.raises(ExportError, match=row["barred"]):
            exported(found.job, PLAN, "megatron", purpose="training")
        return
    words = " ".join(exported(found.job, PLAN, "megatron", purpose="training").export.words)
    assert [one for one in row["writes"] if f"{one} " not in f"{words} "] == []


CAPPED = replace(load_model("llama-3-8b"), name="capped", other=("soft_capping",))


def training_notes(target: str, plan: str) -> tuple[str, ...]:
    job = replace(job_named("llama-3-8b"), model=replace(CAPPED, config=None))
    return exported(job, plan, target, purpose="training").export.notes


@pytest.mark.parametrize(("target", "words"), [
    ("megatron", "soft-capping"), ("megatron-bridge", "soft-capping"), ("nanotron", "soft-capping"),
    ("torchtitan", "no model of the shape"),
])  # fmt: skip
def test_a_target_that_makes_the_model_refuses_a_fact_that_it_has_no_words_for(target: str, words: str) -> None:
    with pytest.raises(ExportError, match=words):
        training_notes(target, f"dp=8 tp=1 pp=1 zero_stage={2 * (target == 'torchtitan')} clock_mhz=1980")


@pytest.mark.parametrize("target", ["deepspeed", "accelerate"])
def test_a_target_of_a_script_of_ones_own_leaves_facts_to_it(target: str) -> None:
    notes = training_notes(target, "dp=8 tp=1 pp=1 zero_stage=2 clock_mhz=1980")
    assert "Make the model with its soft-capping of scores or logits." in notes


@pytest.mark.parametrize(("other", "words"), [
    (["mamba"], r"model\.other states Mamba .*state the shape of a model of attention and MLP"),
    (["soft_caping"], r"model\.other must be some of .*got 'soft_caping' \(did you mean 'soft_capping'\?\)"),
    (["alibi"], r"model\.other must be some of"), ("soft_capping", r"model\.other must be a list of facts"),
])  # fmt: skip
def test_a_job_file_names_facts_of_the_table_that_are_not_refused(other: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        inline_model(vars(CAPPED) | {"other": other}, "m")


def test_a_fact_of_a_job_comes_back_from_its_file_and_is_among_what_is_assumed() -> None:
    job = parse_job(job_mapping(job_named("llama-3-8b")) | {"model": vars(CAPPED)}, "job", Path())
    again = parse_job(parse_yaml(dump_job(job)), "job", Path())
    assert again.model == CAPPED
    assert any(str(one).startswith("soft-capping of scores or logits: kept") for one in again.cluster.assumed)


def test_a_model_of_the_catalogue_with_another_detail_keeps_both(tmp_path: Path) -> None:
    llama = dict(load_model("llama-3-8b").config or {}) | {"rope_theta": 10000.0}
    (tmp_path / "config.json").write_text(json.dumps(llama), encoding="utf-8")
    found = import_(tmp_path / "config.json", **GIVEN, seq_length=2048, global_batch_size=16).job
    again = parse_job(parse_yaml(dump_job(found)), "job", Path())
    assert found.model == load_model("llama-3-8b")
    assert details_of(again.model).rotary_base == 10000.0
    assert "rope_theta" in exported(found, PLAN, "deepspeed").export.files["config.json"]


@pytest.mark.long
@each("of", [of for of, row in KEPT if "barred" not in row])
def test_what_a_training_is_exported_with_is_the_model_that_was_stated(of: dict[str, Any], tmp_path: Path) -> None:
    found = imported(of, tmp_path)
    for target in ("megatron", "megatron-bridge", "nanotron"):
        with contextlib.suppress(ExportError):
            made = exported(found.job, PLAN, target, purpose="training")
            shutil.rmtree(tmp_path / target, ignore_errors=True)
            (tmp_path / target).mkdir()
            again = import_(write(made, tmp_path / target), **GIVEN).job.model
            assert replace(again, name="") == replace(found.job.model, name="")
            one, other = details_of(found.job.model), details_of(again)
            assert differing_details(one, other) == {}
            assert (one.attention_dropout, one.hidden_dropout) == (other.attention_dropout, other.hidden_dropout)
