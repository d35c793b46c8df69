"""A measured machine in the verbs: tables, evidence, and every command that predicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from jointopt.cli.main import jointopt
from jointopt.core.errors import UsageError
from jointopt.jobs.catalog.gpus import gpu_ids, load_gpu
from jointopt.jobs.cluster import Cluster, Machine, save_machine
from jointopt.jobs.job import on_machine
from jointopt.jobs.jobfile import parse_job, shipped_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.surrogate.files import load_surrogate
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.campaign.candidates import listed_candidates, measurement_columns
from jointopt.workflows.campaign.expectation import earlier_runs, with_learned_factors
from jointopt.workflows.evaluate import evaluate
from jointopt.workflows.explain import explain
from jointopt.workflows.predict import predict
from jointopt.workflows.propose import propose

RECORDED = Path(__file__).parents[1] / "data" / "recorded_runs.csv"
GPUS = [name for name in gpu_ids() if load_gpu(name).power and load_gpu(name).intra_node_gbytes_per_s]
SLOW = Machine("a100-sxm4-40gb", 4, {"inter_node_gbytes_per_s": 3.125}, {"bf16": 2.0, "fp16": 2.0})


def as_catalogued(cluster: Cluster) -> Machine:
    """The machine that a cluster is without being measured."""
    links = ("intra_node_gbytes_per_s", "inter_node_gbytes_per_s", "inter_node_latency_us")
    figures = {name: getattr(cluster, name) for name in links}
    figures |= {name: getattr(cluster.gpu, name) for name in ("memory_gib", "memory_gbytes_per_s")}
    return Machine(cluster.gpu.id, cluster.gpus_per_node, figures, dict.fromkeys(cluster.gpu.peak_tflops, 1.0))


@given(
    st.sampled_from(GPUS), st.sampled_from([1, 2, 4]), st.sampled_from(["megatron-lm", "torchtitan"]),
    st.sampled_from(["tp=4", "tp=2 pp=2 mbs=2", "tp=1 pp=4 rc=full", "tp=4 pp=1 ZeRO=3"]),
)  # fmt: skip
def test_a_machine_as_the_catalogue_has_it_changes_nothing(gpu: str, nodes: int, framework: str, plan: str) -> None:
    cluster = {"gpu": gpu, "nodes": nodes, "gpus_per_node": 4, "inter_node_latency_us": 5}
    training = {"seq_length": 2048, "global_batch_size": 256, "framework": framework}
    if load_gpu(gpu).usual_inter_node_gbytes_per_s is None:
        cluster["inter_node_gbytes_per_s"] = 12.5
    job = parse_job({"model": "llama-3-8b", "training": training, "cluster": cluster}, "job", Path())
    job = replace(job, cluster=replace(job.cluster, stated=frozenset()))
    layouts, clocks = (parsed := parse_plan(plan, job)).layouts, parsed.stage_clock_mhz
    here = on_machine(job, as_catalogued(job.cluster))
    one, other = (CostModel(each, layouts).evaluate(np.zeros(1, np.int64), clocks) for each in (job, here))
    assert here.cluster.machine is not None
    assert {name: float(values[0]) for name, values in one.items()} == {k: float(v[0]) for k, v in other.items()}


@pytest.mark.parametrize("source", ["bigscience", "vtrain"])
def test_rows_on_a_machine_with_their_fabric_are_rows_that_state_it(source: str) -> None:
    stated = pd.read_csv(RECORDED).query("source == @source")[::12].reset_index(drop=True)
    (fabric,) = stated["inter_node_gbytes_per_s"].unique()
    blank = stated.drop(columns="inter_node_gbytes_per_s")
    machine = Machine("a100-sxm4-80gb", 8, {"inter_node_gbytes_per_s": float(fabric)})
    found = predict(blank, "default", machine=machine)
    pd.testing.assert_frame_equal(found, predict(stated, "default").drop(columns="inter_node_gbytes_per_s"))
    times = found["predicted_iteration_time_s"]
    assert (times != predict(blank, "default")["predicted_iteration_time_s"]).any()
    judged = evaluate(blank, "none", machine=machine), evaluate(stated, "none")
    assert judged[0].to_dict()["overall"] == judged[1].to_dict()["overall"]


def test_a_row_that_states_its_fabric_keeps_it() -> None:
    table = pd.read_csv(RECORDED).query("source == 'vtrain'").reset_index(drop=True)
    elsewhere = Machine("a100-sxm4-80gb", 8, {"inter_node_gbytes_per_s": 1.0})
    pd.testing.assert_frame_equal(predict(table, machine=elsewhere), predict(table))


def test_what_a_table_states_in_place_of_the_machine_file_is_named_with_its_rows(
    synthetic_runs: Callable[..., pd.DataFrame], caplog: pytest.LogCaptureFixture
) -> None:
    here, there = synthetic_runs(rows=3), synthetic_runs(rows=3).assign(gpu="h100-sxm5-80gb", gpus_per_node=8)
    links = pd.concat([here.assign(inter_node_gbytes_per_s=25), here.assign(inter_node_gbytes_per_s=12.5), here, there])
    predict(links.reset_index(drop=True), machine=Machine("a100-sxm4-40gb", 4, {"inter_node_gbytes_per_s": 12.5}))
    n = len(here)
    assert [line for line in caplog.messages if "machine file" in line] == [
        f"{n} of {4 * n} rows are on other nodes (8 x h100-sxm5-80gb) than the machine file's and are predicted "
        "without it.",
        f"inter_node_gbytes_per_s is 25 in {n} rows and 12.5 in the machine file; the table's counts: leave its cells "
        "blank for the measured one.",
    ]


def test_rows_on_other_nodes_are_left_alone_and_a_table_without_such_nodes_is_refused(
    synthetic_runs: Callable[..., pd.DataFrame],
) -> None:
    here, there = synthetic_runs(rows=3), synthetic_runs(rows=3).assign(gpu="h100-sxm5-80gb", gpus_per_node=8)
    both = predict(pd.concat([here, there], ignore_index=True), machine=SLOW)["predicted_iteration_time_s"]
    alone = [predict(table)["predicted_iteration_time_s"].to_numpy() for table in (here, there)]
    assert (both[: len(here)].to_numpy() > 1.2 * alone[0]).all()
    assert (both[len(here) :].to_numpy() == alone[1]).all()
    with pytest.raises(UsageError, match=r"no run of the table is on such nodes \(they are 8 x h100-sxm5-80gb\)"):
        predict(there, machine=SLOW)


def test_what_a_row_had_to_assume_and_the_machine_measured_is_assumed_no_more(
    synthetic_runs: Callable[..., pd.DataFrame],
) -> None:
    table = synthetic_runs(rows=3).assign(gpu="l40s", gpus_per_node=4)  # no source states its usual network
    found = predict(table), predict(table, machine=Machine("l40s", 4, {"inter_node_gbytes_per_s": 20.0}))
    assert [each["assumed"].str.contains("inter_node_gbytes_per_s").all() for each in found] == [True, False]
    times = [each["predicted_iteration_time_s"] for each in found]
    assert (times[1] < times[0]).any()


def on_slow(table: pd.DataFrame) -> pd.DataFrame:
    """Runs that took as long as the physics predicts on the slow machine."""
    return table.assign(iteration_time_s=predict(table, machine=SLOW)["predicted_iteration_time_s"])


def test_measured_runs_are_held_against_the_physics_of_the_same_machine(
    synthetic_runs: Callable[..., pd.DataFrame],
) -> None:
    runs = on_slow(synthetic_runs(rows=8))
    table, measured = runs[runs["group"] == "batch 256"], runs[runs["group"] == "batch 512"]
    table, measured = table.reset_index(drop=True), measured.reset_index(drop=True)
    found = predict(table, "default", measured, machine=SLOW)["predicted_iteration_time_s"]
    assert found.to_numpy() == pytest.approx(table["iteration_time_s"].to_numpy(), rel=0.05)


def test_earlier_runs_of_a_campaign_are_priced_on_its_machine(synthetic_runs: Callable[..., pd.DataFrame]) -> None:
    runs = on_slow(synthetic_runs(rows=6))
    queried = runs[runs["group"] == "batch 256"].drop(columns=["status", "iteration_time_s"])
    stored = runs[runs["group"] == "batch 512"]
    factors = []
    for machine in (SLOW, None):
        candidates = listed_candidates(queried.to_dict("list"), shipped_job("opt-350m-2x4-a100"), machine=machine)
        known = earlier_runs(candidates.rows, stored, machine)
        model = JobModel(candidates.jobs[0][0], load_surrogate("default"))
        factors.append(with_learned_factors(known, model, candidates).log_factor_on("iteration_time_s"))
    assert np.abs(factors[0]).max() < 0.1
    assert factors[1].mean() > 0.2


def test_listed_plans_are_predicted_on_the_machine(synthetic_runs: Callable[..., pd.DataFrame]) -> None:
    # with graphs, since without them the host bounds so small a model, however slow the GPUs' kernels are
    listing = synthetic_runs(rows=4, cuda_graph="full_iteration").to_dict("list")
    job = shipped_job("opt-350m-2x4-a100")
    machine = replace(SLOW, figures={"memory_gib": 20.0})
    usual, slow = (listed_candidates(listing, job, machine=m) for m in (None, machine))
    assert (slow.predicted["iteration_time_s"] > 1.2 * usual.predicted["iteration_time_s"]).all()
    assert slow.log_load - usual.log_load == pytest.approx(np.full(usual.size, np.log(2.0)))


def test_a_row_of_a_run_holds_no_measured_fabric_as_if_it_were_stated() -> None:
    job = shipped_job("opt-350m-2x4-a100")
    layouts = parse_plan("dp=4 tp=2 mbs=1 clock=1410", job)
    plans = layouts.layouts | {"stage_clock_mhz": layouts.stage_clock_mhz}
    unstated = replace(job, cluster=replace(job.cluster, stated=frozenset()))
    columns = [measurement_columns(each, plans)["inter_node_gbytes_per_s"][0] for each in (
        on_machine(job, replace(SLOW, figures={"inter_node_gbytes_per_s": 5.0})), on_machine(unstated, SLOW),
    )]  # fmt: skip
    assert columns == [3.125, pytest.approx(np.nan, nan_ok=True)]


def test_a_proposal_on_the_machine_is_explained_by_the_machine() -> None:
    job = shipped_job("opt-350m-2x4-a100")
    usual, slow = (propose(job, surrogate="none", machine=machine) for machine in (None, SLOW))
    fastest = [float(found.front["iteration_time_s"].min()) for found in (usual, slow)]
    assert fastest[1] > 1.2 * fastest[0]
    assert "probe" in {one.key for one in slow.assumed}
    one = explain(slow.job, "dp=4 tp=2 mbs=1", surrogate="none")
    assert one.to_dict() == explain(job, "dp=4 tp=2 mbs=1", surrogate="none", machine=SLOW).to_dict()


PREDICTING = ("propose", "explain", "predict", "evaluate", "tune", "validate", "work", "polish", "import")


@pytest.mark.parametrize("name", PREDICTING)
def test_every_command_that_predicts_takes_a_machine(name: str) -> None:
    command: Any = jointopt.get_command(click.Context(jointopt), name)
    assert "machine" in {option.name for option in command.params}


def test_explain_states_where_links_are_from_and_another_machine_is_refused(tmp_path: Path) -> None:
    words = ["explain", "opt-350m-2x4-a100", "-v", "--plan", "dp=4 tp=2 mbs=1", "--storage", "none", "--machine"]
    save_machine(replace(SLOW, figures={"intra_node_gbytes_per_s": 250.0}), tmp_path / "slow.yaml")
    text = " ".join(CliRunner().invoke(jointopt, [*words, str(tmp_path / "slow.yaml")]).stdout.split())
    assert "250 GB/s inside a node (measured), 3.125 GB/s between nodes (stated), 4 µs between nodes (assumed)" in text
    save_machine(replace(SLOW, gpus_per_node=8), tmp_path / "other.yaml")
    refused = CliRunner().invoke(jointopt, [*words, str(tmp_path / "other.yaml")])
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "The machine file is of 'a100-sxm4-40gb', 8 a node" in refused.stderr
