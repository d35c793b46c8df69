"""Which iterations of a run count, and the columns of those that do, on paper."""

from __future__ import annotations

import math

import pytest

from jointopt.frameworks.logs import NAN, SPIKE, WARM_UP, Iteration, result_columns, run_log


def lines(*numbers: int, seconds: float = 1.0, **more: object) -> list[Iteration]:
    return [Iteration(n, seconds, loss=0.5, **more) for n in numbers]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("numbers", "warmup", "kept", "span"),
    [
        ([1, 2, 3, 4], 2, [3, 4], 1),
        ([0, 1, 2, 3], 2, [2, 3], 1),  # NeMo counts from 0
        ([101, 102, 103], 1, [102, 103], 1),  # of a checkpoint
        ([10, 20, 30], 9, [20, 30], 10),  # the first line holds iterations of warm-up
        ([10, 20, 30], 0, [10, 20, 30], 10),
        ([10, 20, 30], 10, [20, 30], 10),
        ([10, 20, 40], 0, [10, 20, 40], 10),  # a line is missing
        ([1, 11, 21], 2, [21], 10),
        ([10, 20, 30], 11, [30], 10),
        ([1, 11, 21], 1, [11, 21], 10),  # torchtitan writes its first iteration too
        ([1, 2, 3, 2, 3, 4], 1, [2, 3, 3, 4], 1),  # each start warms up
        ([5], 0, [5], 1),
    ],
)
def test_iterations_of_warm_up_do_not_count(numbers: list[int], warmup: int, kept: list[int], span: int) -> None:
    found = run_log(lines(*numbers), warmup)
    assert [one.number for one in found.kept] == kept
    assert {one.span for one in found.kept} == {span}
    assert found.dropped.get(WARM_UP, 0) == len(numbers) - len(kept)


def test_a_line_that_stands_twice_counts_once_and_one_of_another_time_is_a_new_start() -> None:
    assert len(run_log([*lines(1, 2), *lines(2), *lines(3)], 0).kept) == 3
    assert len(run_log([*lines(1, 2), *lines(2, seconds=3.0)], 0).kept) == 3


def test_a_loss_above_those_on_both_sides_is_a_spike_and_one_that_falls_is_none() -> None:
    losses = [9.0, 7.0, 5.0, 9.5, 5.0, 3.0, 9.0]
    found = run_log([Iteration(n, 1.0, loss=loss) for n, loss in enumerate(losses)], 0)
    assert [one.number for one in found.kept] == [0, 1, 2, 4, 5, 6]
    assert found.dropped == {SPIKE: 1}


def test_of_several_ranks_the_one_with_most_losses_counts_and_else_the_one_with_most_lines() -> None:
    placeholders = [Iteration(n, 9.0, rank="0", loss=-1.0) for n in (1, 2, 3)]
    assert {one.rank for one in run_log([*placeholders, *lines(1, 2, rank="7")], 0).kept} == {"7"}
    assert {one.rank for one in run_log([*lines(1, rank="3"), *lines(1, 2, rank="5")], 0).kept} == {"5"}
    assert {one.rank for one in run_log([*lines(1, 2, rank="3"), *lines(1, rank="5")], 0).kept} == {"3"}


def test_time_energy_and_power_are_medians_and_energy_is_that_of_all_gpus() -> None:
    found = [
        Iteration(n, s, energy_per_gpu_j=j, power_per_gpu_w=w, loss=2.5)
        for n, s, j, w in ((1, 1.0, 500.0, 400.0), (2, 2.0, math.nan, 410.0), (3, 4.0, 700.0, 480.0))
    ]
    row = result_columns(run_log(found, 0, 40.0, "a remark"), 8)
    assert (row["iteration_time_s"], row["peak_memory_gib"]) == (2.0, 40.0)
    assert (row["energy_j"], row["avg_power_w"]) == (8 * 600.0, 410.0)
    assert row["notes"] == "3 iterations, spread 150.0%, loss 2.5, a remark"


def test_a_meter_that_shows_anything_has_measured() -> None:
    assert result_columns(run_log([Iteration(1, 1.0, energy_per_gpu_j=0.5)], 0), 8)["energy_j"] == 4.0
    assert math.isnan(result_columns(run_log([Iteration(1, 1.0, energy_per_gpu_j=0.0)], 0), 8)["energy_j"])


def test_what_is_left_out_and_not_measured_stands_in_the_notes() -> None:
    log = run_log([*lines(1, 2), *lines(3, 4, fault=NAN)], 0)
    notes = result_columns(log, 8)["notes"]
    assert notes == "2 iterations, spread 0.0%, loss 0.5, 2 with NaN left out, energy not measured"
    assert "energy" not in result_columns(log, 8, metered=True)["notes"]
    with pytest.raises(ValueError, match="2 iterations in the log, of which 2 with NaN"):
        run_log(lines(3, 4, fault=NAN), 0)
