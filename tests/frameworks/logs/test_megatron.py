"""Logs of Megatron-LM by the format strings of its training_log: rows right to the digit, and no false ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.frameworks.logs import read_log, result_columns


def line(number: int, ms: float = 812.3, skipped: int = 0, nans: int = 0, loss: float = 2.401035, **more: Any) -> str:
    """One line as megatron/training/training.py writes it with --log-throughput and --log-energy."""
    text = " [2026-02-06 20:55:02.918469]"
    text += f" iteration {number:8d}/{500000:8d} |"
    text += f" consumed samples: {number * 128:12d} |"
    text += f" elapsed time per iteration (ms): {ms:.1f} |"
    text += f" throughput per GPU (TFLOP/s/GPU): {478.0:.1f} |"
    text += f" energy per GPU (J/iter/GPU): {more.get('joules', 1992.5):.1f} | power per GPU (W/GPU): {647.8:.1f} |"
    text += f" learning rate: {9.568256e-08:.6E} | global batch size: {128:5d} |"
    text += "" if skipped else f" lm loss: {loss:.6E} |"
    text += f" loss scale: {1.0:.1f} | grad norm: {1.797:.3f} |"
    return text + f" number of skipped iterations: {skipped:3d} | number of nan iterations: {nans:3d} |\n"


def test_figures_are_right_to_the_digit() -> None:
    log = read_log("".join(line(n, ms) for n, ms in ((1, 9000.4), (2, 812.3), (3, 810.1), (4, 850.0))), dropped=1)
    row = result_columns(log, num_gpus=64)
    assert log.iteration_s == (0.8123, 0.8101, 0.85)
    assert (row["iteration_time_s"], row["energy_j"], row["avg_power_w"]) == (0.8123, 1992.5 * 64, 647.8)


@pytest.mark.parametrize(("old", "new"), [
    ("lm loss: 2.401035E+00", "lm loss: NAN"), ("grad norm: 1.797", "grad norm: nan"),
    ("lm loss: 2.401035E+00", "lm-loss: nan"),
])  # fmt: skip
def test_nan_counts_in_any_letters_and_under_the_label_of_2021(old: str, new: str) -> None:
    text = line(1) + line(2) + line(3).replace(old, new)
    row = result_columns(read_log(text.replace("lm loss", "lm-loss") if "lm-" in new else text, dropped=1), 8)
    assert "1 iterations, spread 0.0%, loss 2.401, 1 of warm-up, 1 with NaN left out" in row["notes"].replace(
        "2.4010", "2.401"
    )


def test_skipped_and_nan_iterations_are_no_measurement() -> None:
    text = line(1) + "".join(line(n, 400.0, skipped=1) for n in range(2, 15)) + line(15, nans=1) + line(16, 812.3)
    row = result_columns(read_log(text, dropped=1), 8)
    assert row["iteration_time_s"] == 0.8123
    assert "13 skipped for gradients that were not finite, 1 with NaN left out" in row["notes"]


def test_a_run_of_skipped_iterations_alone_gives_no_row() -> None:
    with pytest.raises(ValueError, match="15 iterations in the log, of which 15 skipped"):
        read_log("".join(line(n, skipped=1) for n in range(1, 16)), dropped=5)


@pytest.mark.parametrize("beside", [
    "saving checkpoint at iteration       2 to checkpoints in torch_dist format",
    "  successfully saved checkpoint from iteration       2 to checkpoints [ t 1/2, p 1/1 ]",
    " validation loss at iteration 2 | lm loss value: 2.4E+00 | lm loss PPL: 1.1E+01 | ",
    "Evaluating on 1280 samples",
])  # fmt: skip
def test_the_iteration_after_a_checkpoint_or_an_evaluation_does_not_count(beside: str) -> None:
    text = line(1) + line(2) + beside + "\n" + line(3, 5000.0) + line(4, 800.0)
    assert read_log(text, dropped=0).iteration_s == (0.8123, 0.8123, 0.8)


def test_a_restart_warms_up_again() -> None:
    text = "".join(line(n) for n in range(1, 9)) + line(5, 30000.0) + line(6, 900.0) + line(7)
    assert read_log(text, dropped=2).iteration_s == (0.8123,) * 7


def test_a_line_that_spans_warm_up_does_not_count() -> None:
    text = "".join(line(n, ms) for n, ms in ((10, 9000.0), (20, 800.0), (30, 801.0), (40, 802.0)))
    assert read_log(text, dropped=5).iteration_s == (0.8, 0.801, 0.802)
    assert read_log(text, dropped=15).iteration_s == (0.801, 0.802)
    assert len(read_log(text, dropped=0).kept) == 4


def test_colours_ranks_and_returns_do_not_matter() -> None:
    plain = line(1) + line(2, 700.0)
    dressed = "".join(f"\x1b[36m[default7]:\x1b[0m{one}\r\n" for one in plain.splitlines())
    assert read_log(dressed, dropped=0).iteration_s == read_log(plain, dropped=0).iteration_s


@given(cut=st.integers(1, 400), other=st.integers(0, 400))
def test_lines_that_are_cut_or_written_into_each_other_give_no_false_time(cut: int, other: int) -> None:
    mixed = line(2, 111.1)[:cut].rstrip("\n") + line(3, 222.2, skipped=1)[:other].rstrip("\n") + line(4)
    text = line(1) + line(2, 111.1)[:cut] + "\n" + mixed + line(5)
    times = set(read_log(text, dropped=0).iteration_s)
    assert times <= {0.8123, 0.1111}  # 111.1 where the line is whole; never one that was skipped
    assert 0.2222 not in times


def test_memory_is_that_of_the_fullest_rank_whatever_the_unit() -> None:
    of_megatron = "[Rank {}] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | reserved: 3.0 | "
    text = line(1) + "".join(of_megatron.format(r) + f"max reserved: {mb}\n" for r, mb in ((0, 40960.0), (7, 51200.0)))
    assert read_log(text, dropped=0).peak_memory_gib == 50.0
    of_bridge = (
        "[Rank 0] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 9 | mem-max-reserved-gigabytes: 53.687\n"
    )
    assert read_log(line(1) + of_bridge, dropped=0).peak_memory_gib == pytest.approx(50.0, rel=1e-4)


def test_of_three_ranks_that_wrote_into_one_line_each_iteration_counts() -> None:
    mixed = "".join(line(n, ms).rstrip("\n") for n, ms in ((2, 111.1), (3, 222.2), (4, 333.3))) + "\n"
    assert read_log(line(1) + mixed + line(5), dropped=0).iteration_s == (0.8123, 0.1111, 0.2222, 0.3333, 0.8123)


def test_an_iteration_may_take_less_than_a_millisecond() -> None:
    assert read_log(line(1, 0.5) + line(2, 0.0), dropped=0).iteration_s == (0.0005,)


def test_no_meter_is_no_energy() -> None:
    row = result_columns(read_log(line(1, joules=0.0), dropped=0), 8)
    assert math.isnan(row["energy_j"])
    assert "energy not measured" in row["notes"]
