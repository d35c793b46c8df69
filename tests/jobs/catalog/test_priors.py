"""What settings that a job leaves open may well be."""

from __future__ import annotations

from typing import Any

import pytest

from jointopt.core.schema import evaluate
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.catalog.frameworks import framework_names, load_framework
from jointopt.jobs.catalog.priors import USUAL, alternatives, open_priors
from jointopt.jobs.job import SETTINGS, Job
from jointopt.jobs.jobfile import job_from_options, with_changes
from tests.each import each

ROWS = [(setting, row) for setting, rows in read_yaml("priors.yaml").items() for row in rows]
WORDS = [
    {"framework": name, "family": load_framework(name).family, "architecture": architecture, "dtype": dtype,
     "model": model, "nodes": 2, "release": release}
    for name in framework_names() for architecture in ("ampere", "hopper", "blackwell") for dtype in ("bf16", "fp8")
    for model in ("dense", "moe") for release in ((), (26, 2))
]  # fmt: skip


def job(model: str = "mixtral-8x7b", framework: str = "nemo", **training: Any) -> Job:
    one = job_from_options(model, "h100-sxm5-80gb", 16, 64, 4096, framework=framework, dtype="bf16")
    return with_changes(one, {f"training.{key}": value for key, value in training.items()})


@each(("setting", "row"), ROWS)
def test_weights_of_a_prior_add_up_to_one_and_are_of_a_source(setting: str, row: dict[str, Any]) -> None:
    weights = list(row["values"].values())
    assert sum(weights) == pytest.approx(1.0)
    assert min(weights) > 0.0
    assert USUAL in row["values"]
    assert len(row["values"]) > 1
    assert row["source"].strip()
    assert row.keys() == {"when", "values", "source"}
    assert setting in (*SETTINGS, "attention", "fp8_recipe")


@each(("setting", "row"), ROWS)
def test_each_prior_is_of_some_jobs_and_not_of_all(setting: str, row: dict[str, Any]) -> None:
    holds = [bool(evaluate(row["when"], words)) for words in WORDS]
    assert any(holds), setting
    assert not all(holds), setting


def test_a_stated_setting_is_open_no_more_and_the_others_stay() -> None:
    before = open_priors(job())
    assert {"moe_routing", "cuda_graph", "tp_overlap", "ep_overlap"} <= before.keys()
    for setting, value in (("moe_routing", "natural"), ("cuda_graph", "none"), ("tp_overlap", False)):
        assert open_priors(job(**{setting: value})) == {name: of for name, of in before.items() if name != setting}
    assert "attention" not in open_priors(job("llama-3-8b", attention="flash2"))
    assert "attention" in open_priors(job("llama-3-8b"))


def test_the_first_row_that_holds_counts() -> None:
    assert open_priors(job())["moe_routing"]["forced"] == 0.2
    assert open_priors(job(framework="megatron-bridge"))["moe_routing"]["forced"] == 0.4


def test_alternatives_are_jobs_that_state_another_value_than_the_usual_one() -> None:
    one = job()
    found = list(alternatives(one))
    assert found
    for setting, value, weight, there in found:
        assert (value != USUAL, weight) == (True, open_priors(one)[setting][value])
        assert there != one
        assert there.cluster == one.cluster
        assert setting not in open_priors(there)
