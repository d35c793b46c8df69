"""A block means the same to every verb, and whatever runs whole models alone refuses it in a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import jointopt
from jointopt.core.errors import ExportError, LauncherError
from jointopt.frameworks.intent import intent_of
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job, with_changes
from jointopt.jobs.plans.text import PLAN_KEYS, parse_plan
from jointopt.measure.replay import ReplayLauncher
from jointopt.measure.torchrun import check_model
from jointopt.runs.cells import Cells
from jointopt.runs.peak_share import least_time_s
from jointopt.workflows.campaign.candidates import measurement_columns

BLOCKS = ("layer", "attention", "feed_forward")
PLAN = "dp=2 tp=4 pp=1 micro_batch_size=2 sequence_parallel=true zero_stage=1 recompute=none"


def job_of(block: str) -> Job:
    training = {"seq_length": 2048, "global_batch_size": 16, "attention": "unfused"}
    cluster = {"gpu": "h100-sxm5-80gb", "nodes": 1, "gpus_per_node": 8}
    model = {"catalog": "llama-3-8b", "block": block}
    search = {"clock_mhz": [1200, 1980]}
    return parse_job({"model": model, "training": training, "cluster": cluster, "search": search}, "stem", Path())


def row_of(job: Job) -> pd.DataFrame:
    parsed = parse_plan(PLAN, job)
    return measurement_columns(job, parsed.layouts | {"stage_clock_mhz": parsed.stage_clock_mhz})


@pytest.mark.parametrize("block", BLOCKS)
def test_a_row_of_a_table_is_priced_as_the_plan_of_its_job(block: str) -> None:
    job = job_of(block)
    explained = jointopt.explain(job, PLAN, surrogate="none").to_dict()
    row = jointopt.predict(row_of(job), surrogate="none").iloc[0]
    for name in ("iteration_time_s", "energy_j"):
        assert row[f"predicted_{name}"] == pytest.approx(explained[name], rel=1e-6)
    assert row["tokens_per_s_per_gpu"] == pytest.approx(explained["tokens_per_s_per_gpu"], rel=1e-6)
    assert set(row["assumed"].split()) & {"ffn_hidden_size", "vocab_size", "num_attention_heads"} == set()


def test_the_front_has_the_figures_that_explain_gives_of_its_plans() -> None:
    job = job_of("attention")
    found = jointopt.propose(job, trials=20, seed=1, surrogate="none").to_dict()
    fastest = found["front"][0]
    explained = jointopt.explain(job, {name: fastest[name] for name in PLAN_KEYS if name in fastest}, surrogate="none")
    explained = explained.to_dict()
    assert explained["iteration_time_s"] == pytest.approx(fastest["iteration_time_s"])
    assert explained["energy_j"] == pytest.approx(fastest["energy_j"])


def test_no_recorded_run_supports_a_block() -> None:
    explained = jointopt.explain(job_of("feed_forward"), PLAN)
    assert "no recorded runs of blocks without a model around them" in explained.text()
    assert not explained.to_dict()["in_domain"]


def test_exports_and_the_trainer_refuse_a_block_by_name() -> None:
    job = job_of("attention")
    with pytest.raises(ExportError, match=r"llama-3-8b-attention is a block \(model\.block attention\), which no fra"):
        intent_of(job, {})
    with pytest.raises(LauncherError, match=r"whole models alone, and llama-3-8b-attention is a block"):
        check_model(job.model)


def test_recorded_runs_of_a_block_belong_to_jobs_of_that_block_alone() -> None:
    rows = pd.concat([row_of(job_of(block)) for block in BLOCKS], ignore_index=True).assign(group=None)
    rows = rows.assign(iteration_time_s=np.arange(1.0, 4.0), status="ok")
    for place, block in enumerate(BLOCKS):
        plan = rows.iloc[place].to_dict()
        assert ReplayLauncher(rows).run(job_of(block), plan)["iteration_time_s"] == place + 1.0
    with pytest.raises(LauncherError, match="No row of the table belongs to job"):
        ReplayLauncher(rows.drop(columns="block")).candidates(job_of("attention"))


@pytest.mark.parametrize(("block", "weights"), [("attention", 41_943_040), ("feed_forward", 176_160_768)])
def test_a_time_of_a_block_is_held_against_the_weights_of_the_block(block: str, weights: int) -> None:
    row = row_of(job_of(block)).assign(iteration_time_s=1.0)
    full = least_time_s(Cells(row.assign(dtype="bf16")))[0]
    assert full == pytest.approx(6 * weights * 16 * 2048 / 8 / (989.4e12 * 1.1), rel=1e-3)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("model", ["llama-3-8b", "gpt2", "qwen3-30b-a3b", "deepseek-v3"])
def test_a_row_that_names_a_model_and_a_block_has_one_layer_of_it_as_a_job_has(model: str, block: str) -> None:
    job = with_changes(job_of(block), {"model": {"catalog": model, "block": block}})
    explained = jointopt.explain(job, PLAN, surrogate="none").to_dict()
    full = row_of(job)
    named = full.drop(columns=[name for name in full if name in job.model.__dataclass_fields__ and name != "block"])
    for rows in (full, named.assign(model=model), named.assign(model=model, num_layers=1)):
        found = jointopt.predict(rows, surrogate="none").iloc[0]
        assert found["predicted_iteration_time_s"] == pytest.approx(explained["iteration_time_s"], rel=1e-6)
        assert found["predicted_peak_memory_gib"] == pytest.approx(explained["peak_memory_gib"], rel=1e-6)


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v3"])
def test_experts_without_attention_are_split_by_any_degree_of_tensor_parallelism(model: str) -> None:
    job = job_of("feed_forward")
    job = with_changes(job, {"model": {"catalog": model, "block": "feed_forward"}, "search.etp": [1, 2]})
    explained = jointopt.explain(job, "dp=4 tp=2 ep=4 etp=2 zero_stage=1 sequence_parallel=true")
    assert explained.violations == ()
    assert explained.feasible
    proposal = jointopt.propose(with_changes(job, {"search.dp": [4]}), storage=None)
    assert set(proposal.front["tp"]) <= {1, 2}
