"""Published plans: each can be read for its job, and only those of the same run are compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jointopt.core.errors import CatalogError
from jointopt.jobs.catalog.models import model_names
from jointopt.jobs.catalog.recipes import Recipe, recipes, recipes_for, recipes_of
from jointopt.jobs.jobfile import job_from_options, shipped_job
from jointopt.jobs.plans.text import parse_plan
from tests.each import each


@each("recipe", recipes()[::4])
def test_a_published_plan_uses_all_gpus_and_its_batch_divides(recipe: Recipe) -> None:
    job = job_from_options(
        model=recipe.model, gpu=recipe.gpu, gpus=recipe.num_gpus, gpus_per_node=recipe.gpus_per_node,
        global_batch_size=recipe.global_batch_size, seq_length=recipe.seq_length, inter_node_gbytes_per_s=50.0,
    )  # fmt: skip
    plan = {name: int(values[0]) for name, values in parse_plan(recipe.plan, job).layouts.items()}
    assert plan["dp"] * plan["tp"] * plan["pp"] * plan["cp"] == recipe.num_gpus
    assert recipe.global_batch_size % (plan["dp"] * plan["micro_batch_size"]) == 0


def test_every_published_plan_is_of_a_model_of_the_catalogue() -> None:
    assert {recipe.model for recipe in recipes()} <= set(model_names())


def test_a_model_goes_by_any_of_its_names() -> None:
    assert recipes_of("gpt3") == recipes_of("gpt3-175b")
    with pytest.raises(CatalogError, match=r"No published plan of model 'gpt2' .* llama-3-405b"):
        recipes_of("gpt2")


def test_a_job_is_compared_with_published_plans_of_its_own_size_alone() -> None:
    job = shipped_job("llama-3-405b-2048x8-h100")
    assert [recipe.source for recipe in recipes_for(job)] == ["arXiv:2407.21783, table 4"]
    smaller = replace(job, cluster=replace(job.cluster, nodes=1024))
    assert [recipe.num_gpus for recipe in recipes_for(smaller)] == [8192]
    assert not list(recipes_for(replace(job, training=replace(job.training, seq_length=4096))))
