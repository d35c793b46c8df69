"""Windows of Zeus: energies of iterations."""

from __future__ import annotations

import pytest

from jointopt.measure.logs.zeus import is_zeus, read_windows

HEAD = "start_time,window_name,elapsed_time,gpu0_energy,gpu1_energy\n"


def rows(*windows: tuple[str, float, float, float]) -> str:
    return HEAD + "".join(f"1700000000.5,{name},{s},{a},{b}\n" for name, s, a, b in windows)


def test_the_median_iteration_counts_with_all_gpus() -> None:
    steps = [(f"step_{n}", seconds, 300.0, 310.0) for n, seconds in enumerate([9.0, 1.0, 1.25, 1.5])]
    found = read_windows(rows(("epoch", 99.0, 9e4, 9e4), *steps), warmup=1)
    assert (found.seconds, found.energy_j, found.num_gpus, found.count) == (1.25, 610.0, 2, 3)


def test_a_cut_line_does_not_count() -> None:
    assert read_windows(rows(("step", 1.0, 300.0, 310.0)) + "1700000000.5,step,7.0,30\n", warmup=0).count == 1


def test_windows_of_unknown_meaning_are_refused() -> None:
    assert is_zeus(HEAD)
    with pytest.raises(ValueError, match="no window of Zeus is named like an iteration"):
        read_windows(rows(("evaluation", 1.0, 300.0, 310.0)), warmup=0)
