"""Redrawn figures of papers: their programs run, and say what their README says."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[1] / "studies"


def test_figure_5_of_euromlsys_is_drawn_and_its_front_is_made_of_two_layouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = tmp_path / "figure.png"
    monkeypatch.setattr(sys, "argv", ["figure_5.py", str(drawn)])
    runpy.run_path(str(STUDIES / "opt-350m-2x4-a100" / "figure_5.py"), run_name="__main__")
    front = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("front:"))
    assert drawn.stat().st_size > 10_000
    assert [part.split(" of ")[1] for part in front.split(", ")] == ["dp4-pp1-tp2-mbs1", "dp2-pp2-tp2-mbs2"]
