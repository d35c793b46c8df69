"""Logs of torchtitan, nanotron, DeepSpeed and NeMo by their own format strings: rows right to the digit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.frameworks.logs import (
    DEEPSPEED,
    DEEPSPEED_PHASES,
    DEEPSPEED_PIPELINE,
    FORMATS,
    NANOTRON,
    NEMO,
    PLAIN,
    TORCHTITAN,
    Batch,
    Format,
)

BATCH = Batch(sequences=64, seq_length=8192, num_gpus=8)


def titan(step: int, tps: int, loss: float = 8.2, rank: int = 0) -> str:
    """As torchtitan/components/metrics.py writes it, colours and all."""
    return (
        f"[rank{rank}]:[titan] 2026-11-22 04:16:36,380 - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss: "
        f"{loss:8.5f}  \x1b[38;2;180;60;0mgrad_norm: {2.4333:7.4f}  \x1b[36mmemory: {61.25:5.2f}GiB({77.40:.2f}%)  "
        f"\x1b[34mtps: {tps:,}  \x1b[36mtflops: {400.5:,.2f}  \x1b[35mmfu: {40.49:.2f}%\x1b[39m\n"
    )


def nanotron(step: int, ms: str, loss: str = "11.1") -> str:
    """As nanotron's LoggerWriter writes it, figures by its human_format."""
    return (
        f"\x1b[2;3m11/22 04:16:36 [INFO|DP=0|PP=1|TP=0]\x1b[0m: iteration: {step} / 15 | consumed_tokens: 1.05M | "
        f"elapsed_time_per_iteration_ms: {ms} | tokens_per_sec: 426K | tokens_per_sec_per_gpu: 53.3K | "
        f"global_batch_size: 64 | lm_loss: {loss} | lr: 0.00015 | model_tflops_per_gpu: 120 | grad_norm: 24.6\n"
    )


def deepspeed(step: int, rate: float, skipped: int = 0) -> str:
    """As DeepSpeed's engine and ThroughputTimer write it."""
    head = "[2026-11-22 04:16:36,380] [INFO] "
    return (
        f"{head}[logging.py:96:log_dist] [Rank 0] step={step}, skipped={skipped}, lr=[0.001], mom=[(0.9, 0.999)]\n"
        f"{head}[timer.py:260:stop] epoch=0/micro_step={step}/global_step={step}, RunningAvgSamplesPerSec=50.1, "
        f"CurrSamplesPerSec={rate}, MemAllocated=4.75GB, MaxMemAllocated=15.59GB\n"
    )


def pipeline(step: int, seconds: float) -> str:
    return f"steps: {step} loss: {5.7824:0.4f} iter time (s): {seconds:0.3f} samples/sec: {64 / seconds:0.3f}\n"


def phases(backward: float) -> str:
    return f"[Rank 0] time (ms) | fwd: 8.04 | bwd: {backward:.2f} | bwd_inner: 2.32 | bwd_allreduce: 1.2 | step: 4.35\n"


def nemo(step: int, seconds: float) -> str:
    return (
        f"Training epoch 0, iteration {step}/99 | lr: 1.5e-06 | global_batch_size: 64 | global_step: {step} | "
        f"reduced_train_loss: 11.03 | train_step_timing in s: {seconds} | consumed_samples: 128\n"
    )


CASES = {
    "torchtitan": (TORCHTITAN, titan(1, 90) + titan(10, 7213) + titan(20, 7000), (64 * 1024 / 7213, 64 * 1024 / 7000)),
    "nanotron": (NANOTRON, nanotron(1, "9.1K") + nanotron(2, "1.23K") + nanotron(3, "987"), (1.23, 0.987)),
    "deepspeed": (DEEPSPEED, deepspeed(10, 30.0) + deepspeed(20, 32.5) + deepspeed(30, 16.0), (64 / 32.5, 4.0)),
    "pipeline": (DEEPSPEED_PIPELINE, pipeline(1, 9.0) + pipeline(2, 0.097) + pipeline(3, 0.094), (0.097, 0.094)),
    "plain": (PLAIN, "".join(f"step {n} loss 5.7 time 0.{n}74\n" for n in (1, 2, 3)), (0.274, 0.374)),
    "phases": (DEEPSPEED_PHASES, phases(90.5) + phases(26.72) + phases(27.0), (0.03911, 0.03939)),
    "nemo": (NEMO, nemo(0, 20.5) + nemo(1, 7.91) + nemo(2, 7.89), (7.91, 7.89)),
}


@pytest.mark.parametrize(("form", "text", "seconds"), CASES.values(), ids=CASES)
def test_times_are_those_of_the_log_to_the_digit(form: Format, text: str, seconds: tuple[float, ...]) -> None:
    assert next(known for known in FORMATS if known.is_log(text)) is form
    assert form.read(text, 1, BATCH).iteration_s == pytest.approx(seconds, rel=1e-12)


def test_placeholder_losses_of_other_stages_do_not_count() -> None:
    text = "".join(titan(n, 5000, -1.0, rank=0) + titan(n, 7213, rank=3) for n in (1, 10, 20))
    assert TORCHTITAN.read(text, 1, BATCH).iteration_s == pytest.approx((64 * 1024 / 7213,) * 2)


@pytest.mark.parametrize("beside", [
    "[titan] - root - INFO - Saving the checkpoint (or staging if async is enabled).\n",
    "[titan] - root - INFO - validate step:  10  loss:  8.2000  memory: 60.00GiB(75.00%)  tps: 9,000\n",
])  # fmt: skip
def test_the_step_after_a_checkpoint_or_a_validation_does_not_count(beside: str) -> None:
    run = TORCHTITAN.read(titan(1, 90) + titan(10, 7213) + beside + titan(20, 3000) + titan(30, 7213), 1, BATCH)
    assert len(run.kept) == 2
    assert run.peak_memory_gib == 61.25


def test_memory_is_that_of_the_fullest_rank_in_gib() -> None:
    text = "".join(titan(n, 7213).replace("61.25", size) for n, size in ((1, "50.00"), (2, "62.50"), (3, "40.00")))
    assert TORCHTITAN.read(text, 1, BATCH).peak_memory_gib == 62.5
    lines = "".join(f" Peak reserved: {mb}MiB\n" for mb in ("40960.00", "51200.00", "1024.00"))
    assert NANOTRON.read(nanotron(1, "900") + lines, 0, BATCH).peak_memory_gib == 50.0


def test_overflows_of_deepspeed_are_skipped_iterations() -> None:
    text = deepspeed(1, 30.0) + deepspeed(2, 60.0, skipped=1) + deepspeed(3, 30.0, skipped=1)
    text += "[INFO] [logging.py:96:log_dist] [Rank 0] Overflow detected. Skipping step.\n" + deepspeed(
        4, 90.0, skipped=1
    )
    assert DEEPSPEED.read(text, 0, BATCH).iteration_s == pytest.approx((64 / 30.0,) * 2)


def test_a_loss_that_is_nan_is_no_measurement_and_a_cut_line_none_either() -> None:
    text = nanotron(1, "900") + nanotron(2, "1K", loss="nan") + nanotron(3, "800")[:150] + "\n" + nanotron(4, "700")
    assert NANOTRON.read(text, 0, BATCH).iteration_s == (0.9, 0.7)


def test_phases_of_deepspeed_add_up_where_nothing_else_is_written() -> None:
    text = "[Rank 0] time (ms) | fwd: 219.97 | bwd: 382.75 | bwd_inner: 277.58 | bwd_allreduce: 105.09 | step: 188.88\n"
    run = DEEPSPEED_PHASES.read(text * 2, 0, BATCH)
    assert run.iteration_s == pytest.approx((0.7916, 0.7916))
    assert "without what lies between" in run.remark


def test_lines_without_a_number_are_counted_from_one() -> None:
    run = DEEPSPEED_PHASES.read(phases(90.0) * 2 + phases(26.0) + phases(27.0), 0, BATCH)
    assert [one.number for one in run.kept] == [1, 2, 3, 4]


@pytest.mark.parametrize(("form", "text"), [(form, text) for form, text, _ in CASES.values()], ids=CASES)
@settings(max_examples=40)
@given(cut=st.integers(0, 400), other=st.integers(0, 400))
def test_lines_that_are_cut_or_written_into_each_other_give_no_false_time(
    form: Format, text: str, cut: int, other: int
) -> None:
    first, *_, last = text.splitlines()
    broken = f"{first[:cut]}{last[:other]}\n{last[:cut]}\n"
    times = form.read(text, 0, BATCH).iteration_s
    assert {round(one, 6) for one in form.read(broken + text, 0, BATCH).iteration_s} <= {round(one, 6) for one in times}
