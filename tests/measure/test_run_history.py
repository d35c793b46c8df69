"""What a run has been through, from logs and tables of sacct as programs write them."""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import permutations
from pathlib import Path

import pytest

from jointopt.core.errors import UsageError
from jointopt.frameworks.logs import Batch
from jointopt.measure.run_history import History, read_history

LOGS = Path(__file__).parents[1] / "data" / "failures"
MEGATRON = ("megatron-1.log", "megatron-2.log", "megatron-3.log")
BATCH = Batch(80, 8192, 16)


def history(*names: str) -> History:
    return read_history([LOGS / name for name in names], BATCH, 4)


def of_text(folder: Path, **texts: str) -> History:
    paths = [folder / f"{name}.log" for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text)
    return read_history(paths, BATCH, 4)


@pytest.fixture(scope="module")
def first() -> str:
    return (LOGS / MEGATRON[0]).read_text()


def test_three_logs_of_megatron_tell_failures_restarts_and_lost_iterations() -> None:
    found = history(*MEGATRON)
    assert (found.starts, found.failures, found.planned_stops) == (3, 2, 0)
    assert found.causes == {"nccl": 1, "unknown": 1}
    assert (found.iterations, found.lost_iterations) == (200, 30 + 50)  # killed while it saved 150: from 100 again
    assert found.restart_s == (300 + 360) / 2
    assert found.detection_s == 95 / 2  # of a log that is cut off nothing tells when its program ended
    assert (found.checkpoint_s, found.checkpoint_interval_s) == (13.0, 280 * 6 / 4)


def test_shares_of_the_calendar_time_add_up() -> None:
    found = history(*MEGATRON)
    assert found.effective_time_ratio + sum(found.lost.values()) == pytest.approx(1.0)
    assert found.effective_time_ratio * found.calendar_s == pytest.approx(200 * 6)
    assert found.lost["work"] * found.calendar_s == pytest.approx(80 * 6)
    assert found.lost["checkpoint"] * found.calendar_s == pytest.approx(2 * 12 + 2 * 14)


@pytest.mark.parametrize("name", [*MEGATRON, "torchtitan.log"])
def test_a_log_that_is_cut_off_anywhere_adds_up_or_is_refused(tmp_path: Path, name: str) -> None:
    text, found = (LOGS / name).read_text(), []
    for end in range(100, len(text), 97):
        with suppress(UsageError):
            found.append(of_text(tmp_path, cut=text[:end]))
    assert len(found) > 10
    for one in found:
        assert one.effective_time_ratio + sum(one.lost.values()) == pytest.approx(1.0)
        assert min(one.effective_time_ratio, one.ran_s, one.calendar_s, *one.lost.values()) >= 0.0


def test_files_may_be_given_in_any_order_and_twice() -> None:
    found = {
        (one.calendar_s, one.lost_iterations, one.restart_s)
        for one in (history(*names) for names in permutations(MEGATRON))
    }
    assert len(found) == 1
    assert history(*MEGATRON, MEGATRON[0]).failures == 2


def test_a_clock_that_goes_back_goes_on() -> None:
    found = history(MEGATRON[2])
    assert "its clock went back once" in found.remarks[0]
    assert found.calendar_s == 60 + 10 * 60 + 2 * 14


def test_sacct_says_when_programs_ended_and_why() -> None:
    found = history(*MEGATRON, "sacct.txt")
    assert found.causes == {"nccl": 1, "FAILED": 1}
    assert found.detection_s == (116 + 31) / 2
    assert found.node_hours == pytest.approx(4 * (1070 + 480 + 847) / 3600, rel=0.01)


def test_sacct_alone_counts_failures_and_planned_stops_of_jobs_but_not_of_steps() -> None:
    found = history("sacct.txt")
    assert (found.failures, found.planned_stops, found.trained) == (2, 1, False)
    assert found.causes == {"NODE_FAIL": 1, "FAILED": 1}
    assert math.isnan(found.restart_s)
    assert math.isnan(found.effective_time_ratio)


def test_a_table_of_sacct_may_have_blank_lines_and_a_last_one_that_is_cut_off(tmp_path: Path) -> None:
    text = (LOGS / "sacct.txt").read_text()
    found = of_text(tmp_path, sacct=text.replace("\n", "\r\n\n") + "4892|NODE_FAIL|2026-03-0")
    assert (found.failures, found.ran_s) == (2, history("sacct.txt").ran_s)


def test_a_log_of_torchtitan_holds_two_starts() -> None:
    found = history("torchtitan.log")
    assert (found.starts, found.failures, found.causes) == (2, 1, {"cuda": 1})
    assert (found.iterations, found.lost_iterations) == (100, 10)
    assert found.iteration_time_s == pytest.approx(5.0)
    assert found.checkpoint_s == 3.0
    assert found.detection_s + found.restart_s == 30 + 120 + 30


def test_a_checkpoint_without_a_timer_took_what_the_lines_around_it_leave(tmp_path: Path, first: str) -> None:
    lines = [line for line in first.splitlines() if "save-checkpoint" not in line]
    assert of_text(tmp_path, cut="\n".join(lines)).checkpoint_s == 12.0


def test_an_asynchronous_checkpoint_is_whole_later(tmp_path: Path, first: str) -> None:
    done = "  successfully saved checkpoint from iteration      50 to /ckpt/run [ t 1/2, p 1/1 ]"
    lines = [line for line in first.splitlines() if "save-checkpoint" not in line and line != done]
    late = next(number for number, line in enumerate(lines) if "iteration       70/" in line) + 1
    found = of_text(tmp_path, late="\n".join([*lines[:late], done, *lines[late:]]))
    assert found.checkpoint_write_s == pytest.approx(132 - 12)


def test_a_rank_that_logs_beside_another_counts_once(tmp_path: Path, first: str) -> None:
    labelled = ["".join(f"[rank{rank}]: {line}\n" for line in first.splitlines()) for rank in (0, 1)]
    found = of_text(tmp_path, a=labelled[0], b=labelled[1])
    assert (found.starts, found.iterations) == (1, 130)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("[2026-03-02 ", "["), "its iterations have no times; expected a log of Megatron-LM"),
        (lambda _: "hello\n", "it holds no iteration; expected a log"),
        (lambda _: "JobID|State|Start\n1|FAILED|2026-03-02T10:00:00\n", "lacks the column End; expected the output of"),
        (lambda _: "JobID|State|Start|End|Restarts\n7|FAILED|2026-03-02T10:00:00|2026-03-02T11:00:00|3\n",
         "job 7 was started 4 times, of which 1 is listed; expected the output of sacct --duplicates"),
        (lambda _: "State|Start|End\nEXPLODED|2026-03-02T10:00:00|2026-03-02T11:00:00\n", "'EXPLODED' is no state"),
        (lambda _: "State|Start|End\nFAILED|noon|2026-03-02T11:00:00\n", "'noon' to '2026-03-02T11:00:00' is no time"),
        (lambda _: "State|Start|End\nPENDING|Unknown|Unknown\n", "no start of the run has ended or was seen to train"),
    ],
)  # fmt: skip
def test_what_tells_no_history_is_refused_in_a_sentence(tmp_path: Path, first: str, change: object, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        of_text(tmp_path, bad=change(first))  # type: ignore[operator]
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_logs_of_two_runs_at_once_are_refused(tmp_path: Path, first: str) -> None:
    other = first.replace("iteration     ", "iteration    7")
    with pytest.raises(UsageError, match=r"b\.log and a\.log ran at the same time"):
        of_text(tmp_path, a=first, b=other)
