"""Last words of real programs, and what they mean."""

from __future__ import annotations

import pytest

from jointopt.measure.failures import failure_of

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
        "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ],
)
def test_words_of_short_memory_are_oom(log: str) -> None:
    assert failure_of(log, 1, False, 60).status == "oom"


def test_out_of_memory_explains_a_hang_of_the_other_ranks() -> None:
    assert failure_of(f"{CUDA}\nwaiting for rank 3", -15, True, 60).status == "oom"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (NCCL, "communication failed"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        (
            "ModuleNotFoundError: No module named 'apex'",
            "a Python module is missing: ModuleNotFoundError: No module",
        ),
        ("exitcode  : -9 (pid: 7)", "a process was killed"),
        ("Fatal: \x00\x01\x02", "exit code 7"),
    ],
)
def test_other_failures_name_their_first_cause(log: str, words: str) -> None:
    failure = failure_of(log, 7, False, 60)
    assert failure.status == "failed"
    assert words in failure.reason


def test_a_run_without_an_end_is_a_timeout() -> None:
    failure = failure_of("iteration 3", -15, True, 60)
    assert (failure.status, failure.reason) == ("timeout", "did not end within 60 s")
