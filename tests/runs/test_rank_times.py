"""Rows of ranks: what is read, what is left out, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.core.errors import TableError
from jointopt.runs.rank_times import RankTimes, is_rank_rows, read_rank_rows

ROWS = (
    "iteration,rank,time_s,throttle,note\n1,0,1.0,,a\n1,1,1.1,HW Thermal Slowdown,b\n2,0,1.0,,c\n2,1,1.2,SW Power Cap,"
)


def test_rows_are_columns_of_iterations_and_ranks_and_a_row_that_is_cut_off_is_left_out() -> None:
    found = RankTimes.of(read_rank_rows(ROWS))
    assert (found.iteration.tolist(), found.rank.tolist()) == ([1, 2], [0, 1])
    assert found.columns["time_s"][0].tolist() == [1.0, 1.1]
    assert np.isnan(found.columns["time_s"][1, 1])
    assert found.columns["heat"].tolist()[0] == [0.0, 1.0]
    assert "note" not in found.columns


def test_json_lines_are_the_same_rows_and_an_iteration_that_ran_again_counts_once() -> None:
    lines = [f'{{"rank": {rank}, "iteration": 1, "time_s": {s}}}\n' for rank, s in ((0, 1.0), (1, 2.0), (0, 3.0))]
    text = "".join(lines) + '{"rank": 1, "iter'
    assert is_rank_rows(text)
    assert RankTimes.of(read_rank_rows(text)).columns["time_s"].tolist() == [[3.0, 2.0]]


@pytest.mark.parametrize(
    ("text", "words"),
    [("iteration,rank,seconds\n1,0,1\n", "no column time_s"), ("iteration,rank,time_s\n", "no iteration"),
     ("iteration,rank,time_s\n1,x,1\n", "no iteration"),
     ("iteration,rank,time_s\n1,0,1\n1,1,\n", "no time_s above 0 for rank 1"),
     *((f"iteration,rank,time_s\n1,0,1\n1,1,{cell}\n", "Row 2 .* has time_s .*above 0") for cell in (-2, 0, "x"))],
)  # fmt: skip
def test_rows_without_what_is_needed_are_refused_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(TableError, match=words):
        RankTimes.of(read_rank_rows(text))


def test_other_texts_are_no_rows_of_ranks() -> None:
    assert not any(map(is_rank_rows, ("", "iteration 3/ 5 |", "{broken", "dp,tp,pp\n", '["rank", "iteration"]')))
