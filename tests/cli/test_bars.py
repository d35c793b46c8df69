"""Bars on a terminal: after a while, with rate and time left, gone in the end; nothing anywhere else."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from jointopt.cli import common
from jointopt.cli.common import Bars, rate_words
from jointopt.cli.main import jointopt
from jointopt.core.progress import LEVEL


@contextmanager
def screen_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Stderr is a terminal; what is written to it, read until a text has come."""
    parent, child = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(common, "AFTER_S", 0.0)

    def until(text: str) -> str:
        seen = b""
        while text not in seen.decode(errors="ignore"):
            assert select.select([parent], [], [], 30.0)[0], f"{text!r} never came after {seen!r}"
            seen += os.read(parent, 4096)
        return seen.decode(errors="ignore")

    with os.fdopen(child, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        yield until
    os.close(parent)


def test_a_bar_counts_has_a_rate_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen_of(monkeypatch) as screen:
        shown = Bars()
        shown.step("runs", 1, 5)
        screen("1/5")
        shown.step("runs", 2, 5)
        screen("2/5")
        shown.step("runs", 3, 5)
        assert re.search(r"3/5.* (\d+/s|[\d.]+/s|\d+ s each)", screen("3/5") + screen("\r"))
        assert shown.say("a line [of] words")
        assert "a line [of] words" in screen("words")
        shown.step("runs", 5, 5)
        assert not shown.say("no bar is left")
        screen("\x1b[?25h")  # the cursor is back


def test_without_colours_bars_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with screen_of(monkeypatch) as screen:
        shown = Bars()
        shown.step("runs", 1, 4)
        assert not re.search(r"\x1b\[[0-9;]*[39][0-9]m", screen("1/4"))
        shown.end()


def test_a_loop_that_ends_at_once_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    shown = Bars()
    shown.step("runs", 0, 4)
    shown.step("runs", 4, 4)
    assert not shown.say("nothing")
    assert sys.stderr.getvalue() == ""


def test_progress_of_loops_is_logged_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen_of(monkeypatch):
        assert common.log_level() == LEVEL
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert common.log_level() > LEVEL


def test_quiet_and_pipes_have_no_bars() -> None:
    words = ["scale", "opt-350m-2x4-a100", "--gpus", "8", "--storage", "none"]
    assert "clusters: 0 of 1" not in CliRunner().invoke(jointopt, words).stderr
    assert CliRunner().invoke(jointopt, [*words, "--quiet"]).stderr == ""


@pytest.mark.parametrize(
    ("speed", "words"), [(None, ""), (25.2, "25/s"), (1.25, "1.2/s"), (0.1, "10 s each"), (1 / 300, "5 min each")]
)
def test_a_rate_has_the_unit_that_suits(speed: float | None, words: str) -> None:
    assert rate_words(speed) == words
