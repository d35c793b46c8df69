"""Windows of Zeus: energies of iterations."""

from __future__ import annotations

import pytest

from jointopt.frameworks.meter_logs import is_zeus, of_windows, read_windows

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


def test_windows_of_two_processes_add_up_and_the_slower_one_is_the_iteration() -> None:
    texts = [rows(("step", 2.0, 300.0, 310.0)), rows(("step", 2.5, 320.0, 330.0))]
    found, words = of_windows(texts, 4, 0)
    assert found == pytest.approx({"iteration_time_s": 2.5, "energy_j": 1260.0, "avg_power_w": 1260.0 / 2.5 / 4})
    assert words == "energy of 1 windows of Zeus"
    with pytest.raises(ValueError, match="cover 2 of 4 GPUs"):
        of_windows(texts[:1], 4, 0)


def test_of_windows_inside_of_each_other_the_most_frequent_count_and_warm_up_alone_is_refused() -> None:
    text = rows(("batch 0", 4.0, 1.0, 1.0), *[(f"step_{n}", 1.0 + n, 300.0, 310.0) for n in range(3)])
    assert (read_windows(text, 1).seconds, read_windows(text, 1).count) == (2.5, 2)
    with pytest.raises(ValueError, match="4 windows, of which 3 of warm-up"):
        read_windows(text, 3)
