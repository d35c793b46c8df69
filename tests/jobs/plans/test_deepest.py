"""Plans deeper than any known pipeline are no points of a search, and are refused before they are priced."""

from __future__ import annotations

from pathlib import Path

import pytest

from jointopt.core.errors import InfeasibleError, PlanError
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import parse_plan
from jointopt.workflows.polish import polish


@pytest.fixture(scope="module")
def deep() -> Job:
    model = {"num_layers": 512, "hidden_size": 128, "num_attention_heads": 2, "vocab_size": 1000}
    cluster = {"gpu": "h100-sxm5-80gb", "nodes": 64, "gpus_per_node": 8}
    training = {"seq_length": 1000, "global_batch_size": 98_304}
    return parse_job({"model": model, "training": training, "cluster": cluster}, "deep", Path())


def test_a_plan_over_more_stages_than_any_pipeline_is_refused(deep: Job) -> None:
    with pytest.raises(PlanError, match=r"The pp of a plan must be a whole number 1 to 128; got '512'"):
        parse_plan("pp=512", deep)
    assert parse_plan("pp=128 dp=4", deep).layouts["pp"].tolist() == [128]


def test_a_search_leaves_such_plans_out_and_counts_them(deep: Job) -> None:
    space = enumerate_layouts(deep)
    assert space.layouts["pp"].max() == 128
    assert space.dropped["pp is larger than 128, deeper than any pipeline"] > 0


def test_a_plan_of_more_passes_than_can_be_ordered_is_not_polished(deep: Job) -> None:
    sentence = r"24,576 micro-batches over 128 chunks are 6,291,456 passes, and at most 250,000 are polished; choose"
    with pytest.raises(InfeasibleError, match=sentence):
        polish(deep, "pp=128 dp=4 micro_batch_size=1", surrogate="none")
