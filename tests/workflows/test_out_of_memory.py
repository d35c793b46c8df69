"""No layout that ran out of memory is run at another clock, proposed or validated: memory belongs to the layout."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.schema import LAYOUT_COLUMNS, RECOMPUTE_CODES, Columns
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import plan_records
from jointopt.measure.replay import ReplayLauncher
from jointopt.report.results import MeasuredRun
from jointopt.runs.store import Store
from jointopt.search.pareto import take
from jointopt.surrogate.memory import certain_oom
from jointopt.workflows.campaign.candidates import searched_candidates
from jointopt.workflows.feasible_layouts import RAN_OUT
from jointopt.workflows.propose import propose
from jointopt.workflows.tune import tune
from jointopt.workflows.validate import validate
from jointopt.workflows.work import work

SMALL = {
    "model": "llama-3-8b",
    "training": {"seq_length": 4096, "global_batch_size": 32},
    "cluster": {"gpu": "h100-sxm5-80gb", "nodes": 1, "gpus_per_node": 8},
    "search": {"micro_batch_size": [1, 2], "pp": [1], "cp": [1], "zero_stage": [1], "clock_mhz": [1200, 1500, 1980]},
}


@functools.cache
def small() -> Job:
    """A job of few layouts at three clocks."""
    return parse_job(SMALL, "small", Path())


@functools.cache
def rows() -> pd.DataFrame:
    """Its plans as a table without results."""
    return searched_candidates(small()).rows


def layout(plan: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(plan[name] for name in LAYOUT_COLUMNS)


def records(plans: Columns) -> list[dict[str, Any]]:
    return plan_records(plans, plans["stage_clock_mhz"], range(len(plans["pp"])))


def run_again(runs: Sequence[MeasuredRun]) -> list[tuple[Any, ...]]:
    """Layouts of runs after one of theirs ran out of memory."""
    out = [layout(run.plan) if run.status == "oom" else None for run in runs]
    return [layout(run.plan) for place, run in enumerate(runs) if layout(run.plan) in out[:place]]


def holds_more(plan: Mapping[str, Any], than: Mapping[str, Any]) -> bool:
    """By nothing but a larger micro-batch."""
    larger = plan["micro_batch_size"] > than["micro_batch_size"]
    return larger and all(plan[name] == than[name] for name in LAYOUT_COLUMNS if name != "micro_batch_size")


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_no_layout_of_a_random_table_is_run_after_it_ran_out_of_memory(data: st.DataObject) -> None:
    count = len(rows())
    chosen = data.draw(st.lists(st.integers(0, count - 1), min_size=6, max_size=18, unique=True))
    ended = data.draw(st.lists(st.sampled_from(["ok", "oom"]), min_size=len(chosen), max_size=len(chosen)))
    times = 1.0 + np.arange(len(chosen)) % 7
    table = rows().iloc[chosen].assign(status=ended, iteration_time_s=np.where(np.array(ended) == "ok", times, np.nan))
    alone = replace(small(), objectives=("iteration_time_s",))
    found = tune(alone, ReplayLauncher(table), 40, surrogate="none", batch=data.draw(st.integers(1, 3))).runs
    assert run_again(found) == []
    out = [run.plan if run.status == "oom" else None for run in found]
    assert not any(holds_more(run.plan, of) for place, run in enumerate(found) for of in out[:place] if of)


class OutOfMemory:
    """Layouts that split every layer over two GPUs run out of memory; it remembers what it ran."""

    name = "simulated"

    def __init__(self) -> None:
        self.ran: list[Mapping[str, Any]] = []

    def candidates(self, job: Job) -> None:
        return None

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        self.ran.append(plan)
        if plan["tp"] == 2:
            return {"status": "oom", "notes": "out of memory"}
        return {"status": "ok", "iteration_time_s": 1.0 / plan["tp"], "energy_j": 3.0 * plan["tp"]}


def ran_out(**cells: Any) -> pd.DataFrame:
    """Runs out of memory of the first plan of each layout with these cells, at one clock."""
    some = rows()[np.logical_and.reduce([rows()[name] == value for name, value in cells.items()])]
    return some.drop_duplicates(list(LAYOUT_COLUMNS)).assign(status="oom", iteration_time_s=np.nan)


@pytest.mark.parametrize("stored", [True, False])
def test_what_ran_out_of_memory_before_is_not_run_at_other_clocks(stored: bool, tmp_path: Path) -> None:
    url, before = f"sqlite:///{tmp_path / 'runs.db'}", ran_out(tp=4)
    Store(url).add(before, "a test") if stored else None
    known: dict[str, Any] = {"storage": url} if stored else {"measured": before}
    launcher = OutOfMemory()
    found = tune(small(), launcher, 6, **known)
    assert launcher.ran
    assert not {layout(plan) for plan in launcher.ran} & {layout(row) for row in before.to_dict("records")}
    assert run_again(found.runs) == []


def test_two_tunes_on_one_database_run_no_layout_that_the_other_ran_out_of_memory(tmp_path: Path) -> None:
    url, first, second = f"sqlite:///{tmp_path / 'runs.db'}", OutOfMemory(), OutOfMemory()
    tune(small(), first, 5, storage=url)
    tune(small(), second, 5, storage=url, seed=1)
    out = {layout(plan) for plan in first.ran if plan["tp"] == 2}
    assert out
    assert not out & {layout(plan) for plan in second.ran}


@pytest.mark.parametrize("surrogate", ["default", "none"])
def test_a_measured_layout_that_ran_out_of_memory_is_not_proposed(surrogate: str) -> None:
    best = records(propose(small(), trials=0, surrogate=surrogate).front)[0]
    measured = ran_out(**{name: best[name] for name in ("tp", "micro_batch_size")})
    found = propose(small(), trials=0, surrogate=surrogate, measured=measured)
    out = {layout(row) for row in measured.to_dict("records")}
    assert layout(best) in out
    assert not out & {layout(plan) for plan in records(found.front)}
    assert found.infeasible[RAN_OUT] > 0


def test_recomputing_less_and_larger_micro_batches_are_ruled_out_too() -> None:
    space = enumerate_layouts(small()).layouts
    whole = (space["recompute"] == RECOMPUTE_CODES["full"]) & (space["tp"] == 2)
    of = take(space, np.flatnonzero(whole & (space["micro_batch_size"] == 1)))
    assert certain_oom(small(), space, [of])[space["tp"] == 2].all()
    less = take(space, np.flatnonzero((space["recompute"] == 0) & (space["micro_batch_size"] == 2)))
    assert not certain_oom(small(), space, [less])[whole | (space["micro_batch_size"] == 1)].any()


def test_validate_leaves_out_other_clocks_of_what_ran_out_of_memory(tmp_path: Path) -> None:
    launcher = OutOfMemory()
    found = validate(small(), launcher, 8, storage=f"sqlite:///{tmp_path / 'runs.db'}")
    out = [layout(plan) for plan in launcher.ran if plan["tp"] == 2]
    assert len(set(out)) == len(out)
    assert run_again(found.runs) == []


def test_workers_run_no_layout_again_that_ran_out_of_memory(tmp_path: Path) -> None:
    launcher = OutOfMemory()
    work(small(), f"sqlite:///{tmp_path / 'study.db'}", trials=30, batch=3, launcher=launcher)
    out = [layout(plan) for plan in launcher.ran if plan["tp"] == 2]
    assert out
    assert len(set(out)) == len(out)
