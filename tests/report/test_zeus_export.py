"""The schedule as a file for Zeus."""

from __future__ import annotations

import functools
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from jointopt.core.errors import UsageError
from jointopt.frameworks.zeus import zeus_command
from jointopt.jobs.catalog.frameworks import load_framework
from jointopt.jobs.jobfile import shipped_job
from jointopt.physics.schedule import schedule_order
from jointopt.report.results import Polished
from jointopt.workflows.polish import polish


@functools.cache
def polished(layout: str = "dp=8 pp=4 mbs=8") -> Polished:
    job = shipped_job("opt-350m-8x4-gh200")
    interleaving = replace(job.training, framework=load_framework("megatron-lm"))
    return polish(replace(job, training=interleaving), f"{layout} clock=1980", solver="linear")


def test_zeus_reads_back_what_was_written(tmp_path: Path) -> None:
    polished().write_zeus(tmp_path / "clocks.py")
    assert eval((tmp_path / "clocks.py").read_text()) == polished().schedule


@pytest.mark.parametrize("vpp", [1, 2])
def test_a_rank_runs_its_passes_in_the_order_of_the_pipeline_schedule(vpp: int) -> None:
    rows = polished(f"dp=8 pp=4 vpp={vpp} mbs=8").schedule
    for rank, row in enumerate(rows):
        order = schedule_order(4, vpp, 16, rank)
        assert [name for name, _ in row] == ["backward" if op.backward else "forward" for op in order]


def test_clocks_are_whole_and_those_of_the_job() -> None:
    clocks = {clock for row in polished().schedule for _, clock in row}
    assert all(isinstance(clock, int) for clock in clocks)
    assert clocks <= set(polished().job.search.clock_mhz)


def test_a_file_that_zeus_would_refuse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ends in \.py"):
        polished().write_zeus(tmp_path / "clocks.json")


def test_the_command_gives_zeus_the_path_even_with_blanks_in_it() -> None:
    words = shlex.split(zeus_command(Path("my runs/clocks.py")))
    arguments = next(word for word in words if word.startswith("ZEUS_PFO_SCHEDULER_ARGS="))
    assert json.loads(arguments.partition("=")[2]) == {"solution_path": "my runs/clocks.py"}
