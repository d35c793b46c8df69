"""A database that is away ends no tune and loses no run."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from jointopt.cli.main import jointopt
from jointopt.jobs.job import Job
from jointopt.measure.replay import ReplayLauncher
from jointopt.runs import database
from jointopt.runs.spill import rows_in, spill_files
from jointopt.runs.store import Store
from jointopt.workflows.campaign import campaign, record
from jointopt.workflows.tune import tune
from tests.campaign.outages import BAD, Away, killed, restarted
from tests.postgres_server import Server

pytestmark = pytest.mark.long  # the short part of a campaign

HERE = Path(__file__).parents[2]


class Locks(ReplayLauncher):
    """Replays rows; another program has locked the database from one run on, and up to another."""

    def __init__(self, url: str, table: pd.DataFrame, first: int, last: int) -> None:
        super().__init__(table)
        self.file, self.first, self.last, self.ran = url.removeprefix("sqlite:///"), first, last, 0
        self.other: sqlite3.Connection | None = None

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        self.ran += 1
        if self.ran == self.first:
            self.other = sqlite3.connect(self.file, isolation_level=None)
            self.other.execute("BEGIN EXCLUSIVE")
        elif self.ran == self.last and self.other is not None:
            self.other.rollback()
        return super().run(job, plan)


@pytest.fixture
def timed(job: Job) -> Job:
    return replace(job, objectives=("iteration_time_s",))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((database, "PATIENCE_S"), (campaign, "PATIENCE_S"), (record, "_WAIT_S")):
        monkeypatch.setattr(module, name, 0.05)
    monkeypatch.setattr(record, "_RESERVE_WAIT_S", 0.05)
    monkeypatch.setattr("jointopt.runs.database.LOCK_WAIT_S", 0.05)
    monkeypatch.setattr("jointopt.search.studies.storage.LOCK_WAIT_S", 0.05)


def test_a_tune_measures_on_while_its_database_is_locked_and_stores_all_afterwards(make_runs, timed, url, caplog):
    launcher = Locks(url, make_runs(), 2, 4)
    tuned = tune(timed, launcher, 5, storage=url, surrogate="none")
    assert tuned.stopped != "failed"
    assert (tuned.unstored, len(Store(url).read())) == (0, launcher.ran)
    assert "Runs go on meanwhile" in caplog.text
    assert spill_files(url) == []


def test_runs_that_a_database_never_takes_wait_in_the_file_that_the_end_names(make_runs, timed, url) -> None:
    launcher = Locks(url, make_runs(), 2, 99)
    tuned = tune(timed, launcher, 4, storage=url, surrogate="none")
    (file,) = spill_files(url)
    assert (tuned.stopped, tuned.unstored, len(rows_in(file))) == ("failed", 3, 3)
    assert f"3 runs are kept in {file}, which the next start takes in" in tuned.reason
    launcher.other.rollback()
    assert (Store(url).add_spilled(), len(Store(url).read())) == (3, 4)


def test_a_command_that_waits_in_vain_ends_with_a_sentence_and_exit_code_1(url: str, tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("gpu,num_gpus,dp,tp,pp,status,iteration_time_s\na40,1,1,1,1,ok,1.5\n")
    with sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        for command in (["ingest", str(tmp_path / "runs.csv")], ["propose", "opt-350m-2x4-a100"], ["select", "x"]):
            done = CliRunner().invoke(jointopt, [*command, "--storage", url])
            assert (done.exit_code, "is locked by another program; find it with" in done.stderr) == (1, True)


def test_failures_of_calls_that_keep_a_run_lose_none(tmp_path: Path) -> None:
    program = [sys.executable, str(HERE / "campaign" / "injected.py"), "replay", "5", "80"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=dict(os.environ))
    assert (done.returncode, "5 failures injected" in done.stdout) == (0, True), done.stdout + done.stderr


def test_a_tune_that_is_killed_while_its_database_is_locked_loses_no_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert not BAD & set(killed(tmp_path, random.Random(1), Away("locked")))


def test_a_tune_outlives_restarts_of_postgresql(postgres_server: Server, tmp_path: Path) -> None:
    found = restarted(postgres_server, postgres_server.database("runs"), tmp_path, restarts=2, away_s=2.0)
    assert (found["code"], found["lost"], found["twice"], found["tracebacks"]) == (0, 0, 0, 0)
