"""What stored measurements say of a job's plans."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from jointopt.earlier import earlier_runs


def test_a_stored_cell_that_cannot_be_is_no_silence_about_the_other_rows(
    synthetic_runs: Callable[..., pd.DataFrame],
) -> None:
    stored = synthetic_runs(rows=4)
    asked = stored.drop(columns=["status", "iteration_time_s"])
    found = earlier_runs(asked, stored)
    assert (len(found.rows), found.unread) == (len(stored), "")
    stored.loc[0, "seq_length"] = -1
    assert "seq_length must be a whole number" in earlier_runs(asked, stored).unread
