"""Runs of tune and validate in an experiment tracker, by the trackers' own clients and without a server."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from jointopt.core.errors import UsageError
from jointopt.jobs.job import Job
from jointopt.runs.store import Store
from jointopt.workflows.tune import tune
from jointopt.workflows.validate import validate


@pytest.fixture
def table(make_runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """Recorded runs to replay, in a working folder that takes what a tracker writes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("WANDB_MODE", "offline")
    return make_runs()


def test_each_run_of_a_tune_is_a_run_of_mlflow_with_its_plan_prediction_and_measurement(
    mlflow: Any, job: Job, table: pd.DataFrame
) -> None:
    found = tune(job, "replay", 4, table=table, storage="sqlite:///jointopt.db", log="mlflow")
    logged = mlflow.MlflowClient().search_runs([mlflow.get_experiment_by_name("jointopt").experiment_id])
    assert len(logged) == len(found.runs) == 4
    for run, measured in zip(reversed(logged), found.runs, strict=True):
        assert (run.data.params["dp"], run.data.params["tp"]) == (str(measured.plan["dp"]), str(measured.plan["tp"]))
        assert run.data.metrics["predicted_iteration_time_s"] == measured.predicted["iteration_time_s"]
        assert run.data.metrics.get("iteration_time_s", measured.status) in (measured.row["iteration_time_s"], "oom")
        assert run.info.status == ("FINISHED" if measured.status == "ok" else "FAILED")
        assert (run.data.tags["job"], run.data.tags["study"]) == (job.name, found.study_name)


def test_each_run_of_a_validate_is_a_run_of_wandb(wandb: Any, job: Job, table: pd.DataFrame) -> None:
    found = validate(job, "replay", 2, table=table, log="wandb")
    logged = [path.read_bytes() for path in Path("wandb").glob("offline-run-*/*.wandb")]
    assert len(logged) == len(found.runs) > 1
    for word in (b"stage_clock_mhz", b"predicted_iteration_time_s", b"energy_j", job.name.encode()):
        assert all(word in run for run in logged), word


def test_a_tracker_that_is_away_costs_no_measurement_and_later_gets_all_runs(
    mlflow: Any, job: Job, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from jointopt.workflows import trackers

    calls = iter((OSError("no route to host"), None, None))

    def once_away(run: trackers.TrackedRun, log=trackers.TRACKERS["mlflow"]) -> None:
        if error := next(calls, None):
            raise error
        log(run)

    monkeypatch.setitem(trackers.TRACKERS, "mlflow", once_away)
    with caplog.at_level(logging.WARNING):
        tune(job, "replay", 3, table=table, storage="sqlite:///jointopt.db", log="mlflow")
    assert "Runs not logged to mlflow yet: 1" in caplog.text
    assert "no route to host" in caplog.text
    assert len(Store("sqlite:///jointopt.db").read()) == len(mlflow.search_runs(experiment_names=["jointopt"])) == 3


def test_a_tracker_without_its_package_or_of_no_known_name_is_refused_before_anything_runs(
    job: Job, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"pip install 'jointopt\[wandb\]'"):
        tune(job, "replay", 1, table=table, log="wandb")
    with pytest.raises(UsageError, match="mlflow or wandb; got 'mlflo' \\(did you mean 'mlflow'\\?\\)"):
        validate(job, "replay", 1, table=table, log="mlflo")
