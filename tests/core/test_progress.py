"""How far a loop is: logged below INFO."""

from __future__ import annotations

import logging

import pytest

from jointopt.core.progress import LEVEL, steps


def counted(caplog: pytest.LogCaptureFixture) -> list[tuple[str, float, float]]:
    return [record.progress for record in caplog.records]  # type: ignore[attr-defined]


def test_each_item_is_reported_and_that_none_is_left(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(LEVEL, "jointopt"):
        assert list(steps(["a", "b"], "items")) == ["a", "b"]
    assert counted(caplog) == [("items", 0, 2), ("items", 1, 2), ("items", 2, 2)]


def test_a_loop_that_is_left_early_has_ended_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(LEVEL, "jointopt"):
        for _ in steps([1, 2, 3], "items"):
            break
    assert counted(caplog)[-1] == ("items", 3, 3)


def test_at_the_usual_log_level_progress_is_hidden(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "jointopt"):
        list(steps([1, 2], "items"))
    assert caplog.records == []
