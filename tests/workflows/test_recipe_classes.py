"""Verbs under recipe classes: what a stated one moves, and which class measured runs are reported to resemble."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.runs.workloads import workloads
from jointopt.workflows.campaign.candidates import measurement_columns
from jointopt.workflows.check import check
from jointopt.workflows.explain import explain
from jointopt.workflows.predict import predict
from jointopt.workflows.retrain import retrain

pytestmark = pytest.mark.long  # each trains surrogates

PLAN = "dp=4 tp=2 pp=1 micro_batch_size=2"


def job_of(**training: str) -> Job:
    stated = {"seq_length": 2048, "global_batch_size": 64, "framework": "megatron-lm", **training}
    cluster = {"gpu": "a100-sxm4-80gb", "nodes": 1, "gpus_per_node": 8}
    return parse_job({"model": "llama-3-8b", "training": stated, "cluster": cluster}, "small", Path())


@pytest.fixture(scope="module")
def community() -> pd.DataFrame:
    """Runs of a community's job in a table that does not state the class."""
    job, plans = job_of(recipe_class="community"), [f"dp=4 tp=2 pp=1 micro_batch_size={size}" for size in (1, 2, 4)]
    found = [explain(job, plan, surrogate="none") for plan in plans]
    rows = pd.DataFrame([dict(one.plan) for one in found]).drop(
        columns=["stage_clock_mhz", "clock_mhz"], errors="ignore"
    )
    return rows.assign(
        model="llama-3-8b", seq_length=2048, global_batch_size=64, dtype="bf16", framework="megatron-lm",
        attention=job.training.attention, gpu="a100-sxm4-80gb", gpus_per_node=8, num_gpus=8,
        iteration_time_s=[one.iteration_time_s for one in found],
    )  # fmt: skip


def test_a_stated_class_moves_time_and_is_named_where_it_is_not_the_usual_one() -> None:
    usual, vendor, community = (explain(job_of(**t), PLAN, surrogate="none") for t in CLASSES)
    assert usual.iteration_time_s == vendor.iteration_time_s
    assert 1.05 < community.iteration_time_s / usual.iteration_time_s < 1.17
    assert community.peak_memory_gib == usual.peak_memory_gib
    assert "a100-sxm4-80gb, megatron-lm (community recipe)" in " ".join(community.text().split())
    assert "recipe" not in usual.text().split("\n")[0] + vendor.text().split("\n")[0]


CLASSES: tuple[dict[str, str], ...] = ({}, {"recipe_class": "vendor"}, {"recipe_class": "community"})


def test_check_names_the_class() -> None:
    found = check(job_of(recipe_class="community"))
    assert "megatron-lm (community recipe)" in " ".join(found.text().split())


def test_rows_of_runs_keep_the_class_of_their_job() -> None:
    columns = parse_plan(PLAN, job_of()).layouts | {"stage_clock_mhz": np.full((1, 1), 1410.0)}
    rows = [measurement_columns(job_of(**stated), columns) for stated in CLASSES]
    assert ["recipe_class" in row for row in rows] == [False, True, True]
    (work,), _ = workloads(rows[2].assign(iteration_time_s=1.0))
    assert work.job.training.recipe_class == "community"
    assert work.job.training.framework == job_of(**CLASSES[2]).training.framework


STATED = [("", ""), ("community", ""), ("", "Community"), ("community", "community")]


def slow(runs: pd.DataFrame, stated: str) -> pd.DataFrame:
    return runs.assign(source="mine", recipe_class=stated or None)


@pytest.mark.parametrize(("stated", "measured"), STATED)
def test_runs_and_plans_of_one_source_are_of_the_class_that_either_states(
    community: pd.DataFrame, stated: str, measured: str
) -> None:
    queried = slow(community, stated).drop(columns="iteration_time_s")
    found = predict(queried, measured=slow(community, measured))["predicted_iteration_time_s"]
    assert found.to_numpy() == pytest.approx(community["iteration_time_s"].to_numpy(), rel=0.01)


@pytest.mark.parametrize(("stated", "measured"), STATED)
def test_a_job_and_its_measured_runs_are_of_the_class_that_either_states(
    community: pd.DataFrame, stated: str, measured: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = job_of(**({"recipe_class": stated} if stated else {}))
    found = explain(job, PLAN, measured=slow(community, measured))
    assert found.iteration_time_s == pytest.approx(community["iteration_time_s"].iloc[1], rel=0.01)
    words = " ".join(found.text().split())
    assert ("(community recipe)" in words) == bool(stated or measured)
    assert "different recipe classes" not in caplog.text


def test_classes_that_differ_are_kept_and_warned_of_once(
    community: pd.DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    runs = slow(community, "community")
    predict(slow(community, "vendor").drop(columns="iteration_time_s"), measured=runs)
    line = "Rows of mine, megatron-lm state different recipe classes (community, vendor)"
    assert caplog.text.count(line) == caplog.text.count("different recipe classes") == 1
    explain(job_of(recipe_class="vendor"), PLAN, measured=runs)
    assert caplog.text.count("different recipe classes") == 2


def test_no_class_is_taken_from_other_sources_and_frameworks(community: pd.DataFrame) -> None:
    table = pd.concat([slow(community, "community").assign(source=source) for source in ("theirs", "mine")])
    table["recipe_class"] = ["community"] * 3 + [None] * 3
    classes = [work.job.training.recipe_class for work in workloads(table.reset_index(drop=True))[0]]
    assert classes == ["community", ""]
    same = table.assign(source="mine").reset_index(drop=True)
    assert {work.job.training.recipe_class for work in workloads(same)[0]} == {"community"}
    other = same.assign(framework=["nemo"] * 3 + ["megatron-lm"] * 3)
    assert {work.job.training.recipe_class for work in workloads(other)[0]} == {"community", ""}


@pytest.fixture(scope="module")
def learned(community: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Surrogates of one cluster's runs, which state no class and that of a community."""
    out = tmp_path_factory.mktemp("learned")
    times = 1.0 + 0.01 * np.arange(8)
    many = community.drop(columns="iteration_time_s").merge(pd.DataFrame({"global_batch_size": 64 * 2 ** np.arange(8)}),
                                                            how="cross", suffixes=("_of_one", ""))  # fmt: skip
    slower = predict(many.assign(recipe_class="community"))["predicted_iteration_time_s"]
    runs = many.assign(
        source="mine", group=many["global_batch_size"], iteration_time_s=slower * np.resize(times, len(many))
    )
    for name in ("", "community"):
        runs.assign(recipe_class=name or None).to_csv(out / f"runs{name}.csv", index=False)
        retrain(tables=[out / f"runs{name}.csv"], out=out / f"of{name}")
    return {name: out / f"of{name}" for name in ("", "community")}


@pytest.mark.parametrize("trained", ["", "community"])
@pytest.mark.parametrize("stated", ["", "community"])
def test_a_class_is_not_applied_on_top_of_the_runs_that_a_surrogate_learned_from(
    community: pd.DataFrame, learned: dict[str, Path], trained: str, stated: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, queried = str(learned[trained]), slow(community, stated).drop(columns="iteration_time_s")
    found = predict(queried, folder)["predicted_iteration_time_s"]
    assert found.to_numpy() == pytest.approx(community["iteration_time_s"].to_numpy(), rel=0.06)
    assert caplog.text.count("the surrogate learned this cluster's efficiency") == (stated != trained)
    job = job_of(**({"recipe_class": stated} if stated else {}))
    own = explain(job, PLAN, surrogate=folder).iteration_time_s
    assert own == pytest.approx(community["iteration_time_s"].iloc[1], rel=0.06)
    assert caplog.text.count("the surrogate learned this cluster's efficiency") == 2 * (stated != trained)


def test_rows_that_take_the_class_of_others_are_counted(
    community: pd.DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    one = community.head(1).assign(recipe_class="community")
    predict(pd.concat([one, community.tail(2)], ignore_index=True))
    assert [line for line in caplog.messages if "recipe" in line] == [
        "2 rows without a recipe class predicted as a community recipe, as other rows of the same source and framework "
        "state (column recipe_class)."
    ]
