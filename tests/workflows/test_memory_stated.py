"""`propose` says beforehand where its memory is more than half of what is free."""

import logging

import pytest

from jointopt.jobs.jobfile import shipped_job
from jointopt.workflows import feasible_layouts
from jointopt.workflows.propose import propose


@pytest.mark.parametrize(("free", "warns"), [(10**5, True), (10**12, False), (None, False)])
def test_it_is_stated_where_memory_is_short(free: int | None, warns: bool, monkeypatch, caplog) -> None:
    monkeypatch.setattr(feasible_layouts, "free_bytes", lambda: free)
    with caplog.at_level(logging.WARNING, "jointopt"):
        propose(shipped_job("opt-350m-2x4-a100"), surrogate="none")
    assert ("more than half of the" in caplog.text) is warns
