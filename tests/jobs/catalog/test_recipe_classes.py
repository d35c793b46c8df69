"""Recipe classes: what each makes of a profile, and what text names one."""

from __future__ import annotations

import pytest

from jointopt.core.schema import RECIPE_CLASSES
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.catalog.clusters import build_cluster
from jointopt.jobs.catalog.frameworks import (
    class_factors,
    framework_names,
    job_of_class,
    job_of_efficiency,
    load_framework,
    named_class,
    profile_of_class,
)
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.job import Job, Training
from tests.each import each


def test_a_community_s_kernels_take_1_17_times_as_long_as_a_vendor_s() -> None:
    usual = load_framework("megatron-lm")
    slower = profile_of_class(usual, "community")
    assert slower.compute_factor == pytest.approx(1.17 * usual.compute_factor)
    assert slower.elementwise_factor == pytest.approx(1.17 * usual.elementwise_factor)
    assert (slower.name, slower.dp_overlap, slower.slower_on) == (usual.name, usual.dp_overlap, usual.slower_on)


def test_a_profile_from_a_community_s_runs_is_as_much_faster_in_a_vendor_s_hands() -> None:
    usual = load_framework("megatron-deepspeed")
    faster = profile_of_class(usual, "vendor")
    assert faster.compute_factor == pytest.approx(usual.compute_factor / 1.17)
    assert faster.elementwise_factor == pytest.approx(usual.elementwise_factor / 1.17)


@each("name", framework_names())
def test_the_usual_class_leaves_a_profile_as_it_is(name: str) -> None:
    profile = load_framework(name)
    assert profile.recipe_class in RECIPE_CLASSES
    assert profile_of_class(profile, "") is profile_of_class(profile, profile.recipe_class) is profile


def test_a_submission_is_as_fast_as_a_vendor_s_own_recipe() -> None:
    nemo = load_framework("nemo")
    assert nemo.recipe_class == "submission"
    assert profile_of_class(nemo, "vendor") == nemo
    assert class_factors("submission") == class_factors("vendor") == (1.0, 1.0)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NeMo, MLPerf Training v5.0", "submission"), ("HPE submission (NeMo)", "submission"),
        ("Megatron-Bridge performance recipes", "vendor"), ("NeMo 25.02, performance summary", "vendor"),
        ("Megatron-LM release notes", "vendor"), ("Megatron-LM (community)", "community"),
        ("NeMo, not MLPerf", ""), ("MLPerf-like NeMo", ""), ("NVIDIA NeMo Framework Release 24.04", ""), ("", ""),
        ("community run of an MLPerf submission", ""),
    ],
)  # fmt: skip
def test_a_text_names_a_class_by_words_of_that_class_alone(text: str, name: str) -> None:
    assert named_class(text) == name


def test_every_class_has_figures_with_a_source_and_words_that_name_it() -> None:
    entries = read_yaml("recipe_classes.yaml")
    assert tuple(entries) == RECIPE_CLASSES
    for entry in entries.values():
        assert min(entry["compute"], entry["elementwise"]) >= 1.0
        assert len(entry["source"]) > 10
        assert all(alias == alias.lower() for alias in entry["aliases"])


def test_a_job_goes_from_class_to_class_and_back_to_the_usual_one() -> None:
    training = Training(4096, 64, framework=load_framework("megatron-lm"))
    job = Job("j", load_model("llama-3-8b"), training, build_cluster({"gpu": "a100-sxm4-80gb", "nodes": 1}))
    slower = job_of_class(job, "community")
    assert slower.training.framework == profile_of_class(job.training.framework, "community")
    assert slower.training.recipe_class == "community"
    assert job_of_class(slower, "community").training.framework.compute_factor == pytest.approx(
        slower.training.framework.compute_factor
    )
    back = job_of_class(slower, "").training.framework
    assert back.compute_factor == pytest.approx(job.training.framework.compute_factor)
    assert job_of_efficiency(job, "vendor") is job_of_efficiency(job, "") is job
