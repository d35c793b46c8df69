"""Jobs that share the power of a site: limits that are kept, deadlines, priorities, sizes, and what files may say."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import jointopt
from jointopt.cli.main import jointopt as command
from jointopt.core.errors import InfeasibleError, JobError, UsageError
from jointopt.jobs.jobfile import load_job
from jointopt.report.allocation import Allocation
from jointopt.workflows.fleet import fleet
from jointopt.workflows.follow import follow

SMALL, LARGE = "llama-3-8b-1x8-h100", "opt-350m-2x4-a100"
FEW = {"search.tp": 1, "search.pp": [1, 2], "search.vpp": 1, "search.cp": 1, "search.micro_batch_size": 1}
JOBS = {name: load_job(name, {"training.run_tokens": 1e11} | FEW) for name in (SMALL, LARGE)}


def shared(*names: str, site_kw: float, **terms: Any) -> Allocation:
    return fleet([JOBS[name] for name in names], site_kw=site_kw, fleet_file=terms or None, surrogate="none")


def test_the_sum_of_the_high_ends_stays_below_the_site_and_nothing_is_lost_where_there_is_room() -> None:
    tight, wide = (shared(SMALL, LARGE, SMALL, site_kw=site_kw) for site_kw in (18.0, 100.0))
    assert tight.found.power_kw < tight.found.power_kw_high <= 18.0
    assert [one.name for one in tight.found.jobs] == [SMALL, LARGE, f"{SMALL}-2"]
    assert wide.found.relative_throughput == pytest.approx(1.0)
    assert 0.5 < tight.found.relative_throughput < 1.0
    assert tight.more_gpus > 0 == wide.more_gpus


def test_no_choice_of_the_jobs_options_within_the_limit_is_better() -> None:
    found = shared(SMALL, LARGE, site_kw=11.0)
    alone = [[shared(name, site_kw=kw / 10).found.jobs[0] for kw in range(35, 100, 8)] for name in (SMALL, LARGE)]
    ways = [(a, b) for a, b in itertools.product(*alone) if a.power_kw_high + b.power_kw_high <= 11.0]
    assert found.found.relative_throughput >= max((a.relative + b.relative) / 2 for a, b in ways) * (1 - 1e-6)
    for other in (found.equal_share, found.greedy):
        assert other.power_kw_high <= 11.0
        assert other.relative_throughput <= found.found.relative_throughput * (1 + 1e-6)


@pytest.mark.parametrize("site_kw", [4.0, 4.7, 5.0])
def test_one_job_makes_no_fewer_tokens_than_a_plan_of_its_front_that_follows_the_same_limit(site_kw: float) -> None:
    job, found = JOBS[LARGE], shared(LARGE, site_kw=site_kw)
    limit = pd.DataFrame({"time_s": [0.0, 3600.0], "limit_kw": [site_kw, np.nan]})
    one = follow(job, signal=limit, surrogate="none")
    assert found.found.jobs[0].tokens_per_s >= one.tokens / 3600.0 * (1 - 1e-9)
    assert found.gap < 1e-6


def test_that_jobs_are_alike_is_said_of_several_of_which_the_best_shares_gain_little() -> None:
    assert "Between equal jobs" not in shared(LARGE, site_kw=4.7).text()
    assert "1 job under 4.7 kW" in shared(LARGE, site_kw=4.7).text()
    assert "Between equal jobs" in shared(LARGE, LARGE, site_kw=9.4).text().replace("\n  ", " ")


def test_a_deadline_goes_before_throughput_and_a_priority_weighs_it() -> None:
    plain = shared(SMALL, LARGE, site_kw=11.0)
    rate = max(one.tokens_per_s for one in shared(SMALL, site_kw=50.0).found.jobs)
    days = 1e11 / (0.83 * rate) / 86_400
    due = shared(SMALL, LARGE, site_kw=11.0, jobs={SMALL: {"deadline_days": days}})
    assert due.found.jobs[0].deadline_met
    assert due.found.relative_throughput < plain.found.relative_throughput
    first = shared(SMALL, LARGE, site_kw=11.0, jobs={SMALL: {"priority": 20}})
    assert first.found.jobs[0].relative > plain.found.jobs[0].relative


def test_a_job_takes_another_size_where_that_is_allowed() -> None:
    found = shared(SMALL, site_kw=40.0, jobs={SMALL: {"gpus": [8, 16]}})
    assert found.found.jobs[0].gpus == 16
    assert shared(SMALL, site_kw=8.0, jobs={SMALL: {"gpus": [8, 16]}}).found.jobs[0].gpus == 8


def test_a_rack_holds_the_share_of_a_jobs_nodes_in_it() -> None:
    rack = {"name": "rack 1", "kw": 2.1, "jobs": {LARGE: 1}}
    found = shared(SMALL, LARGE, site_kw=50.0, limits=[rack])
    assert 3.5 < found.found.jobs[1].power_kw_high <= 4.2  # one of its two nodes is in the rack
    assert found.limits[1]["power_kw_high"] <= 2.1


def test_where_even_pauses_draw_more_than_a_limit_the_missing_kw_are_said() -> None:
    with pytest.raises(InfeasibleError, match=r"Limit site cannot keep 1 kW: .* kW are missing"):
        shared(SMALL, LARGE, site_kw=1.0)


WRONG = {
    "jobs: {llama: {priority: 2}}": "llama",
    "jobs: {llama-3-8b-1x8-h100: {prio: 2}}": "did you mean 'priority'",
    "jobs: {llama-3-8b-1x8-h100: {priority: -1}}": "jobs.llama-3-8b-1x8-h100.priority",
    "jobs: {llama-3-8b-1x8-h100: {gpus: [0]}}": "a number of GPUs",
    "limits: {name: a}": "a list of {name, kw, jobs}",
    "limits: [{name: a, kw: 3}]": "a list of jobs, or a mapping of jobs to their nodes",
    "limits: [{name: a, kw: 3, jobs: {llama-3-8b-1x8-h100: 2}}]": "the job's nodes",
    "limits: [{name: a, kw: 3, jobs: [other]}]": "other",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_fleet_file_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    with pytest.raises(JobError) as caught:
        fleet([JOBS[SMALL]], site_kw=10.0, fleet_file=file, surrogate="none")
    assert str(caught.value).startswith(f"{file}: ")
    assert WRONG[text] in str(caught.value)


def test_no_jobs_no_power_and_a_deadline_without_tokens_are_refused() -> None:
    with pytest.raises(UsageError, match="site_kw must be a number above 0"):
        shared(SMALL, site_kw=0.0)
    with pytest.raises(UsageError, match="at least one"):
        fleet([], site_kw=1.0)
    with pytest.raises(JobError, match=r"no training\.run_tokens"):
        fleet([load_job(SMALL, FEW)], site_kw=9.0, fleet_file={"jobs": {SMALL: {"deadline_days": 3}}}, surrogate="none")


def test_the_command_prints_the_contracts_document_and_a_text_of_25_lines_of_80_characters() -> None:
    words = ["fleet", SMALL, LARGE, "--site-kw", "11", "--surrogate", "none", "--storage", "none", "--quiet"]
    words += [word for key in ("search.pp", "search.tp", "search.cp") for word in ("--set", f"{key}=1")]
    found = json.loads(CliRunner().invoke(command, [*words, "--json"]).stdout)
    assert found.keys() >= {"jobs", "power_kw", "power_kw_high", "relative_throughput", "equal_share", "greedy"}
    assert found["equal_share"].keys() == found["greedy"].keys()
    assert all(one.keys() >= {"name", "plan", "power_kw", "tokens_per_s"} for one in found["jobs"])
    lines = CliRunner().invoke(command, words, env={"COLUMNS": "80"}).stdout.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert jointopt.fleet is fleet
