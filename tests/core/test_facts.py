"""Failures as data: their status, their cause, and how they are read back from a row."""

from __future__ import annotations

from jointopt.core.facts import Failure, FailureKind, failure_in, joined_notes
from tests.each import each


@each("kind", FailureKind)
def test_the_status_of_a_row_follows_from_the_kind(kind: FailureKind) -> None:
    known = {FailureKind.OOM: "oom", FailureKind.TIMEOUT: "timeout", FailureKind.BEHIND: "timeout"}
    expected = known.get(kind, "failed")
    assert Failure(kind, "").status == expected


def test_a_kind_that_names_its_cause_is_the_cause_whatever_the_words() -> None:
    first, second = (Failure(FailureKind.NCCL, words) for words in ("unhandled system error", "timeout"))
    assert first.cause == second.cause
    assert first.cause != Failure(FailureKind.CUDA, "unhandled system error").cause


def test_exit_codes_are_alike_where_their_errors_differ_in_paths_and_numbers_alone() -> None:
    first, second, other = (
        Failure(FailureKind.EXIT_CODE, words) for words in ("no /a/x.py of 3", "no /b/y.py of 4", "KeyError")
    )
    assert first.cause == second.cause != other.cause


def test_a_stored_row_holds_its_failure_before_the_remarks() -> None:
    notes = joined_notes("out of memory", None, float("nan"), "Slurm job 7 on n0")
    assert notes == "out of memory; Slurm job 7 on n0"
    assert failure_in({"status": "oom", "notes": notes}) == Failure(FailureKind.OOM, "out of memory")
    assert failure_in({"status": "failed", "notes": None}) == Failure(FailureKind.REPORTED, "")
