"""BLAS on one thread for as long as a context lasts."""

from __future__ import annotations

from threading import Event, Thread

import numpy as np  # noqa: F401 - a BLAS library to hold
import pandas as pd
import pytest
import threadpoolctl

from jointopt.core.system import one_blas_thread
from jointopt.workflows import predict as prediction


def threads() -> set[int]:
    return {one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"}


def test_blas_has_one_thread_within_the_context_and_its_own_number_after() -> None:
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        with one_blas_thread:
            assert threads() == {1}
        assert threads() == {2}


def test_a_library_loaded_later_is_held_too() -> None:
    with one_blas_thread:
        pass
    import scipy.linalg  # noqa: F401 - it brings a BLAS of its own

    with threadpoolctl.threadpool_limits(2, user_api="blas"), one_blas_thread:
        assert threads() == {1}


def test_the_first_of_two_threads_to_leave_does_not_end_it_and_the_last_restores_all() -> None:
    left, leave = Event(), Event()

    def other() -> None:
        with one_blas_thread:
            leave.wait(60)
        left.set()

    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        with one_blas_thread:
            Thread(target=other).start()
            leave.set()
            assert left.wait(60)
            assert threads() == {1}
        assert threads() == {2}


def test_a_table_is_predicted_on_one_thread_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    found, answered = list[set[int]](), prediction._answers
    monkeypatch.setattr(prediction, "_answers", lambda *given: found.append(threads()) or answered(*given))
    row = {"model": "llama-3-8b", "gpu": "h100-sxm5-80gb", "num_gpus": 8, "dp": 8, "seq_length": 8192}
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        prediction.predict(pd.DataFrame([row | {"global_batch_size": 64}]))
        assert threads() == {2}
    assert found == [{1}]
