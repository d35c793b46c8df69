"""Every result answers as a mapping, a table and a text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jointopt.jobs.calibration import Calibration, Constants
from jointopt.report.results import Calibrated, Evaluation, Explanation, Proposal, Retrained
from jointopt.report.tables import Result, json_text

ROWS = {"Proposal": 5, "Explanation": 2, "Evaluation": 1, "Retrained": 2, "Calibrated": 1}


@pytest.fixture
def results(make_proposal: Callable[..., Proposal], make_explanation: Callable[..., Explanation]) -> dict[str, Result]:
    scores = pd.DataFrame({"source": ["a", "mean"], "physics": [0.2, 0.2], "group out": [np.nan, 0.1]})
    work = ({"work": "forward", "clock_sensitive_share": 0.5},)
    calibration = Calibration("a40", Constants(1740.0, 60.0, 0.7, 1.3), work=work,
                              fitted_on={"kind": "stage profile", "rows": 5})  # fmt: skip
    found = (
        make_proposal(5), make_explanation(), Calibrated(calibration, None),
        Evaluation(pd.DataFrame({"group": ["g"], "rows": [3], "kendall_tau": [np.nan]}), {"rows": 3}),
        Retrained((), scores, None, (), Path("out")),
    )  # fmt: skip
    return {type(result).__name__: result for result in found}


@pytest.mark.parametrize("name", ROWS)
def test_a_result_is_a_document_a_table_and_a_text(results: dict[str, Result], name: str) -> None:
    assert json.loads(json_text(results[name].to_dict())) == results[name].to_dict()
    assert len(results[name].to_frame()) == ROWS[name]
    assert max(map(len, results[name].text().splitlines())) <= 100


def test_a_figure_that_a_group_does_not_have_is_not_in_the_document(results: dict[str, Result]) -> None:
    assert results["Evaluation"].to_dict()["groups"] == [{"group": "g", "rows": 3}]
    assert "group out" not in results["Retrained"].to_dict()["sources"][0]


def test_the_errors_of_several_sources_fit_a_terminal_in_as_many_tables_as_they_need() -> None:
    names = ("physics", "group out", "source out", "+3 runs", "+10 runs", "framework unknown", "differences")
    scores = pd.DataFrame({"source": ["a" * 40, "mean"], **{name: [0.123, np.nan] for name in names}})
    scores = scores.assign(**{f"{name} covered": 0.9 for name in names[1:]})
    lines = Retrained(("b" * 30 + ":\n  time: " + "word " * 30,), scores, None, (), Path("out")).text().splitlines()
    assert max(map(len, lines)) <= 100
    cells = [line.split() for line in lines if line.startswith("a")]
    assert len(cells) == 4
    assert [sum(cell.count(value) for cell in cells) for value in ("12.3", "90.0")] == [7, 6]
    assert lines[1].startswith("  time: word")


def test_work_without_a_clock_of_least_energy_has_blanks(results: dict[str, Result]) -> None:
    line = next(line for line in results["Calibrated"].text().splitlines() if "forward" in line)
    assert line.split() == ["forward", "0.5"]


def test_an_error_of_temperature_has_its_unit_in_words() -> None:
    figures = {"rows": 2, "temperature_error_k": 0.859}
    assert "temperature error 0.859 K." in Evaluation(pd.DataFrame([figures]), figures).text()
