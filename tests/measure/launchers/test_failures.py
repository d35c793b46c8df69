"""Last words of real programs, and what they mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.facts import FailureKind
from jointopt.frameworks.failures import failure_of

LOGS = Path(__file__).parent / "failure_logs"  # of torchrun with 2 or 4 processes and gloo, PyTorch 2.13

CUDA = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of "
    "79.11 GiB of which 1.09 GiB is free."
)
NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2006, unhandled system error, NCCL "
    "version 2.21.5"
)


@pytest.mark.parametrize(
    "log",
    [
        CUDA,
        "RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        f"n0:7:7 [3] NCCL WARN Failed to CUDA calloc async 25165824 bytes\n{NCCL}",
        "Traceback (most recent call last):\ntorch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled "
        "error\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc 2516 bytes",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "[Fri Nov 21] Out of memory: Killed process 4711 (python) total-vm:1kB",
        f"n0:7:7 [3] NCCL WARN Cuda failure 2 'out of memory'\n{NCCL}",
        f"Traceback (most recent call last):\n{CUDA[9:]}\nTraceback (most recent call last):\n"
        "subprocess.CalledProcessError: Command 'train' returned non-zero exit status 1.",
    ],
)
def test_words_of_exhausted_memory_are_oom(log: str) -> None:
    assert failure_of(log, 1, False, 60).status == "oom"


@pytest.mark.parametrize(
    ("before", "error"),
    [
        ("INFO guard against CUDA out of memory is on", "ValueError: bad flag"),
        ("guard against CUDA out of memory is on", "Traceback (most recent call last):\nValueError: bad flag"),
        ("WARNING OutOfMemoryError: CUDA out of memory; batch 3 is skipped", "ValueError: bad flag"),
        ("[INFO] oom_kill guard: on", "exit"),
        ("UserWarning: CUDA out of memory was near", "train.py: bad flag"),
    ],
)
def test_a_line_that_speaks_of_memory_is_not_what_ended_a_run(before: str, error: str) -> None:
    failure = failure_of(f"{before}\n{error}\n", 1, False, 60)
    assert failure.status == "failed"
    assert "memory" not in failure.detail


def test_the_rank_that_failed_first_decides_whether_memory_ran_out() -> None:
    log = (LOGS / "one_rank_raises.txt").read_text()
    late = f"[rank1]: Traceback (most recent call last):\n{CUDA.replace('rank3', 'rank1')}\n"
    assert failure_of(late + log, 1, False, 60).status == "failed"
    first = log.replace("ValueError: tp 2", "torch.OutOfMemoryError: CUDA out of memory. tp 2")
    assert failure_of(first, 1, False, 60).detail.startswith("out of memory: torch.OutOfMemoryError: CUDA")


def test_out_of_memory_explains_a_hang_of_the_other_ranks() -> None:
    assert failure_of(f"{CUDA}\nwaiting for rank 3", -15, True, 60).status == "oom"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (NCCL, "communication failed"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("ModuleNotFoundError: No module named 'apex'", "a Python module is missing: ModuleNotFoundError: No module"),
        ("exitcode  : -9 (pid: 7)", "a process was killed"),
        ("Fatal: \x00\x01\x02", "exit code 7"),
        ("[default0]:pretrain_gpt.py: error: unrecognized arguments: --foo --bar 3", "unknown flag --foo --bar: unrec"),
        (
            "x.py: error: argument --moe-layer-freq: invalid choice: 'x'",
            "exit code 7: argument --moe-layer-freq: inval",
        ),
        ("0: /usr/bin/python: can't open file '/mlm/x.py': [Errno 2] No", "exit code 7: can't open file '/mlm/x.py'"),
    ],
)
def test_other_failures_name_their_first_cause(log: str, words: str) -> None:
    failure = failure_of(log, 7, False, 60)
    assert failure.status == "failed"
    assert words in failure.detail


@pytest.mark.parametrize(
    ("code", "words"), [(-9, "(SIGKILL)"), (137, "(SIGKILL)"), (-11, "(SIGSEGV)"), (139, "(SIGSEGV)"), (90, "code 90")]
)
def test_a_program_that_a_signal_ended_without_a_log_was_killed(code: int, words: str) -> None:
    """A shell that started it gives 128 and the signal."""
    assert words in failure_of("", code, False, 60).detail


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        (NCCL, FailureKind.NCCL),
        ("n0:7:7 [3] NCCL WARN socketProgress: closed by remote peer", FailureKind.NCCL),
        ("No space left on device", FailureKind.DISK_FULL),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", FailureKind.CUDA),
        ("train.py: error: unrecognized arguments: --tensor-parallel 2", FailureKind.UNKNOWN_FLAG),
        ((LOGS / "rank_killed.txt").read_text(), FailureKind.KILLED),
        ((LOGS / "aborted_while_ending.txt").read_text(), FailureKind.CRASHED),
        ((LOGS / "error_recorded.txt").read_text(), FailureKind.EXIT_CODE),
    ],
    ids=["nccl", "nccl alone", "disk", "cuda", "flag", "killed", "crashed", "error"],
)
def test_the_kind_of_a_failure_is_read_from_the_log(log: str, kind: FailureKind) -> None:
    assert failure_of(log, 2, False, 60).kind is kind


def test_a_run_without_an_end_is_a_timeout() -> None:
    failure = failure_of("iteration 3", -15, True, 60)
    assert (failure.status, failure.detail) == ("timeout", "did not end within 60 s")


@pytest.mark.parametrize(
    ("log", "detail"),
    [
        (
            "one_rank_raises",
            "exit code 1: ValueError: tp 2 does not divide the 1 query groups; the trainer splits heads",
        ),
        ("error_recorded", "exit code 1: ValueError: micro batch 3 does not divide 16"),
        ("caused_by_another", "exit code 1: KeyError: 'a'"),
        ("rank_killed", "rank 3 was killed (SIGKILL)"),
        ("rank_exits", "rank 1 ended with exit code 3"),
        ("aborted_while_ending", "rank 0 crashed (SIGABRT): terminate called without an active exception"),
    ],
)
def test_the_process_that_failed_first_is_named_not_torchrun(log: str, detail: str) -> None:
    text = (LOGS / f"{log}.txt").read_text()
    assert failure_of(text, 1, False, 60).detail == detail


@given(st.randoms(use_true_random=False))
def test_lines_of_ranks_in_any_mixture_name_the_same_error(random) -> None:
    lines = (LOGS / "one_rank_raises.txt").read_text().splitlines()
    ranks = [[line for line in lines if line.startswith(f"[rank{rank}]")] for rank in (1, 2, 3)]
    end = lines[lines.index("Traceback (most recent call last):") :]
    mixed = []
    while any(ranks):
        mixed.append(random.choice([rank for rank in ranks if rank]).pop(0))
    assert "ValueError: tp 2 does not divide" in failure_of("\n".join(mixed + end), 1, False, 60).detail


def test_what_torchrun_read_from_an_error_file_is_enough() -> None:
    text = (LOGS / "error_recorded.txt").read_text()
    only = text[text.index("ChildFailedError") :]
    assert failure_of(only, 1, False, 60).detail == "exit code 1: ValueError: micro batch 3 does not divide 16"


def test_words_that_every_run_on_gpus_prints_are_no_cause() -> None:
    log = (
        "[rank0]:[W1121 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called\n"
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File 'train.py', line 3\n[rank0]: KeyError: 'layers'\n"
    )
    assert failure_of(log, 1, False, 60).detail == "exit code 1: KeyError: 'layers'"


@given(st.text() | st.lists(st.sampled_from((LOGS / "error_recorded.txt").read_text().splitlines())).map("\n".join))
def test_any_log_is_one_failure_with_one_line(log: str) -> None:
    failure = failure_of(log, 1, False, 60)
    assert failure.status in ("failed", "oom")
    assert failure.detail.splitlines() == [failure.detail]
    assert len(failure.detail) < 400
