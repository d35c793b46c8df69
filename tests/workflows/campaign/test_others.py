"""Several processes tune one job: no plan runs twice, and each learns from the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sqlalchemy as sa

from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import record_text
from jointopt.measure.replay import ReplayLauncher
from jointopt.runs.reservations import Reservations
from jointopt.runs.store import Store
from jointopt.workflows.campaign.candidates import listed
from jointopt.workflows.tune import tune

RUNNING, ENDED = 2, 6  # rows of the table: what the other process runs, and what it has run


class Meets(ReplayLauncher):
    """Replays rows; in its first run another process takes up one plan, and ends its run of a second one."""

    def __init__(self, url: str, table: pd.DataFrame) -> None:
        super().__init__(table)
        self.url, self.rows, self.ran = url, table, []

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        self.ran.append(self.row_of(plan))
        if len(self.ran) == 1:
            self._meet(job)
        return super().run(job, plan)

    def row_of(self, plan: Mapping[str, Any]) -> int:
        """The row of the table that a plan is."""
        same = [self.rows[name] == plan[name] for name in ("dp", "tp", "pp", "micro_batch_size")]
        return int(np.flatnonzero(np.logical_and.reduce(same))[0])

    def _meet(self, job: Job) -> None:
        with sa.create_engine(self.url).connect() as connection:
            ((study,),) = connection.execute(sa.text("SELECT study FROM jointopt_reservations"))
        candidates = listed(self.candidates(job), job)
        keys = dict(zip(map(self.row_of, candidates.rows.to_dict("records")),
                        (record_text(candidates.record(i)) for i in range(candidates.size)), strict=True))  # fmt: skip
        other = Reservations(self.url, study)
        assert other.take(keys[RUNNING])
        assert other.take(keys[ENDED])
        Store(self.url).add(self.rows.iloc[[ENDED]], "the other process")
        other.end(keys[ENDED])


def test_a_plan_that_others_run_is_left_to_them_and_one_that_they_have_run_is_learned(make_runs, job: Job, url: str):
    launcher = Meets(url, make_runs())
    tuned = tune(replace(job, objectives=("iteration_time_s",)), launcher, 20, storage=url, surrogate="none")
    assert len(launcher.ran) == len(set(launcher.ran)) > 1
    assert not {RUNNING, ENDED} & set(launcher.ran)
    known = {launcher.row_of(run.plan): run.round for run in tuned.runs}
    assert (known[ENDED], RUNNING in known) == (0, False)


class Breaks(ReplayLauncher):
    """Replays rows; its second run leaves a file in the place of the database that is none."""

    def __init__(self, url: str, table: pd.DataFrame) -> None:
        super().__init__(table)
        self.file, self.runs = Path(url.removeprefix("sqlite:///")), 0

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        self.runs += 1
        if self.runs == 2:
            self.file.write_text("no database " * 1000)
        return super().run(job, plan)


def test_a_database_that_breaks_in_a_run_costs_no_row(make_runs, job: Job, url: str) -> None:
    tuned = tune(replace(job, objectives=("iteration_time_s",)), Breaks(url, make_runs()), 5, storage=url,
                 surrogate="none")  # fmt: skip
    assert (tuned.stopped, len(tuned.runs), tuned.unstored) == ("failed", 2, 1)
    assert "is kept in" in tuned.reason
    Path(url.removeprefix("sqlite:///")).unlink()
    assert Store(url).add_spilled() == 2
    assert len(Store(url).read()) == 2


def test_a_database_that_is_deleted_in_a_run_is_made_again_with_all_runs(make_runs, job: Job, url: str) -> None:
    launcher = Breaks(url, make_runs())
    launcher.file = type("Deleted", (), {"write_text": lambda self, _: Path(url.removeprefix("sqlite:///")).unlink()})()
    tune(replace(job, objectives=("iteration_time_s",)), launcher, 3, storage=url, surrogate="none")
    assert len(Store(url).read()) == launcher.runs == 3
