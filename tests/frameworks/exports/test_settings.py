"""Every setting of an export: of one plan in full, and those that a change of the plan or the job moves."""

from __future__ import annotations

import functools
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from jointopt.core.errors import ExportError
from jointopt.frameworks.intent import intent_of
from jointopt.frameworks.options import flattened, pairs_of
from jointopt.frameworks.targets import TARGETS
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.kernels import scaled_dtype, scaling_recipe
from tests.each import each
from tests.frameworks.exports.conftest import job_named, plan_of

# sections of a target, and what its plan is `of` beside JOB; `whole`: all settings; rows: changes and what they move
SECTIONS: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("settings.yaml").read_text(encoding="utf-8"))
JOB = {"model": "llama-3-8b", "gpus": 8, "framework": "generic", "dtype": "bf16"}
GPU = load_gpu("gb200")  # which runs every recipe of fp8 and fp4
READERS = {".json": json.loads, ".toml": tomllib.loads, ".yaml": yaml.safe_load, ".py": str}


def settings_of(target: str, of: dict[str, Any]) -> dict[str, Any]:
    """Options, values in files, environment and start of an export, and how many notes; ``of``: columns and the job."""
    name, _, version = target.partition(" ")
    given = dict(of)
    job = job_named(*(given.pop(key, usual) for key, usual in JOB.items()))
    training, shape = given.pop("training", {}), given.pop("shape", {})
    if recipe := given.pop("fp8_recipe", None):
        training = training | {"fp8_recipe": scaling_recipe(recipe, GPU), "dtype": scaled_dtype(recipe)}
    job = replace(job, training=replace(job.training, **training), model=replace(job.model, **shape))
    purpose = given.pop("purpose", "benchmark")
    made = TARGETS[name].export(intent_of(job, plan_of(job, **given), purpose), version)
    policy = [word for word in made.words if word.startswith("activation-checkpoint:")]  # torchtitan's, of no option
    found = dict(pairs_of([word for word in made.words if word not in policy]))
    found |= {f"${key}": value for key, value in made.environment.items()}
    for file, text in made.files.items():
        found |= flattened(READERS[Path(file).suffix](text)) if not file.endswith(".py") else {file: text}
    return found | {"start": " ".join((*made.launcher, made.program, *policy)), "notes": len(made.notes)}


@functools.cache
def before(section: int) -> dict[str, Any]:
    return settings_of(SECTIONS[section]["target"], SECTIONS[section].get("of", {}))


def rows(kind: str) -> list[tuple[int, dict[str, Any], dict[str, Any]]]:
    """(section, change, what follows) of the rows of one kind."""
    return [(at, row["by"], row) for at, section in enumerate(SECTIONS) for row in section.get(kind, [])]


@pytest.mark.parametrize("section", [at for at, section in enumerate(SECTIONS) if "whole" in section])
def test_a_plan_has_these_settings_and_no_others(section: int) -> None:
    assert before(section) == SECTIONS[section]["whole"]


@each(("section", "by", "row"), rows("moved"))
def test_a_change_moves_its_settings_and_no_others(section: int, by: dict[str, Any], row: dict[str, Any]) -> None:
    old, new = before(section), settings_of(SECTIONS[section]["target"], SECTIONS[section].get("of", {}) | by)
    assert {name: value for name, value in new.items() if name not in old or old[name] != value} == row["to"]
    assert sorted(old.keys() - new.keys()) == row.get("gone", [])


@each(("section", "by", "row"), rows("refused"))
def test_a_change_that_a_version_lacks_is_refused(section: int, by: dict[str, Any], row: dict[str, Any]) -> None:
    with pytest.raises(ExportError) as refused:
        settings_of(SECTIONS[section]["target"], SECTIONS[section].get("of", {}) | by)
    assert row["point"] in str(refused.value)
