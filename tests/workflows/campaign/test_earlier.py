"""Stored measurements as evidence of a job's plans."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from jointopt.workflows.campaign.expectation import earlier_runs


def test_an_impossible_stored_cell_does_not_hide_the_other_rows(synthetic_runs: Callable[..., pd.DataFrame]) -> None:
    stored = synthetic_runs(rows=4)
    queried = stored.drop(columns=["status", "iteration_time_s"])
    found = earlier_runs(queried, stored)
    assert (len(found.rows), found.unreadable) == (len(stored), "")
    stored.loc[0, "seq_length"] = -1
    assert "seq_length must be a whole number" in earlier_runs(queried, stored).unreadable


def test_runs_are_those_of_the_gpu_whatever_name_they_were_stored_under(synthetic_runs) -> None:
    queried = synthetic_runs(rows=4, groups=(256,))
    stored = queried.assign(gpu="NVIDIA A100-SXM4-80GB" if "80gb" in queried["gpu"][0] else "NVIDIA A100-SXM4-40GB")
    assert earlier_runs(queried, stored).index == earlier_runs(queried, queried).index
    assert len(earlier_runs(queried, stored).index) == 4
