"""Redrawn figures of papers: their programs run, and say what their README says."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from jointopt.runs.table import checked_results
from jointopt.workflows.predict import predict

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


@pytest.fixture
def truths(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDIES / "learning"))
    return importlib.import_module("truths")


@pytest.mark.parametrize("truth", ["T", "S"])
def test_made_up_runs_are_sound_rows_that_the_physics_misses_by_less_than_half(truth: str, truths: ModuleType) -> None:
    table = truths.table(truth, 20, seed=1, clocks=True)
    assert checked_results(table)[1] == []
    found = predict(table.drop(columns=["iteration_time_s", "status"]))
    off = (found["predicted_iteration_time_s"] / table["iteration_time_s"] - 1.0).to_numpy(float)
    assert 0.05 < np.median(np.abs(off)) < 0.5
    assert table.equals(truths.table(truth, 20, seed=1, clocks=True))


@pytest.mark.parametrize(("depth", "count"), [(1, 4), (2, 2), (4, 8), (4, 60)])
def test_the_simulator_s_pipeline_of_equal_stages_has_the_bubble_of_1f1b(
    depth: int, count: int, truths: ModuleType
) -> None:
    assert truths._events([[1.0, 2.0]] * depth, count, 0.0) == pytest.approx(3.0 * (count + depth - 1))


def test_learning_curves_have_every_learner_and_a_plot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from jointopt.studies.learning import learn

    learn.main(["--rows", "60", "--seeds", "1", "--truths", "T", "--plot", str(tmp_path / "curves.png")])
    lines = capsys.readouterr().out.splitlines()
    assert all(name in lines[1] for name in learn.LEARNERS)
    assert {line.split()[0] for line in lines[2:]} == {"T"}
    assert (tmp_path / "curves.png").stat().st_size > 10_000


@pytest.fixture
def joint_or_not(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDIES / "joint-or-not"))
    return importlib.import_module("joint_or_not")


def test_the_jobs_of_joint_or_not_are_two_hundred_and_all_are_sound(joint_or_not: ModuleType) -> None:
    cases = list(joint_or_not.cases())
    assert sum(len(case["deadlines"]) for case in cases) == 200
    jobs = [joint_or_not.job_of(case, None) for case in cases]
    assert len({job.model.name for job in jobs}) > 10
    assert len({job.cluster.gpu.id for job in jobs}) > 15


def test_a_case_is_searched_freely_and_then_within_its_deadline(joint_or_not: ModuleType) -> None:
    free, hurried = joint_or_not.rows_of(next(iter(joint_or_not.cases())))
    assert (free["deadline"], hurried["deadline"]) == (None, 1.05)
    assert 0.0 <= hurried["slower_by"] <= 0.05
    assert min(free["energy_saving"], hurried["energy_saving"]) >= 0.0
    assert hurried["feasible_layouts"] == free["feasible_layouts"]


def test_the_table_and_plot_of_joint_or_not_are_those_of_its_rows(joint_or_not: ModuleType, tmp_path: Path) -> None:
    found = pd.read_csv(STUDIES / "joint-or-not" / "results.csv")
    shares = joint_or_not.by_property(found)
    written = (STUDIES / "joint-or-not" / "table.csv").read_text()
    assert written == f"{shares.to_csv(index=False)}\n{joint_or_not.by_cell(found).to_csv()}"
    joint_or_not.draw(found, tmp_path / "drawn.png")
    assert 10_000 < (tmp_path / "drawn.png").stat().st_size < 150_000
