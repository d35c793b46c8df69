"""Figures of README and docs are those that commands printed, of today's predictions, and each has a source."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.studies import figures
from jointopt.workflows.answers import ReferencePlan
from jointopt.workflows.propose import propose
from tests.places import ROOT

DATE = "*Figures as of 1a2b3c4d (2026-11-20) and earlier; measured by hand{}.*"
JOINT = ROOT / "studies" / "joint-or-not"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what figures rest on, with a README and nothing else."""
    for file in (figures.ACCURACY, *(figures.GOLDEN.format(table) for table in ("fronts", "plans", "rows", "spaces"))):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("Off by <!--figure lab.error percent-->9.9 %<!--/-->.\n")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "RECORD", tmp_path / "docs" / "figures.json")
    monkeypatch.setattr(figures, "commit", lambda: "1a2b3c4d")
    return tmp_path


def test_the_figures_of_readme_and_docs_are_of_today_and_each_has_a_source() -> None:
    assert figures.faults() == []


def test_another_number_in_the_readme_is_named_with_what_it_should_be() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    mark = next(figures.MARK.finditer(text))
    changed = text.replace(mark[0], mark[0].replace(mark[2], "1,398"))
    assert figures.differing("README.md", text, figures.read()) == []
    found = figures.differing("README.md", changed, figures.read())
    assert len(found) == 1
    assert "'1,398' is 1397 in docs/figures.json (accuracy.runs)" in found[0]


def test_a_number_without_a_mark_is_named() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8") + "\nIt saves 23 % in 12 s.\n"
    found = figures.loose("README.md", text)
    assert [one.split(" has no source")[0].split(": ")[1] for one in found] == ["'23 %'", "'12 s'"]


@pytest.mark.parametrize("name", ["accuracy", "classes", "follow", "joint-or-not", "leaderboard", "run-or-iteration"])
def test_a_prediction_that_moves_makes_the_figures_that_rest_on_it_old(name: str, tree: Path) -> None:
    entry = figures.read_of(ROOT / "docs" / "figures.json")[name]
    entry["predictions"] = {
        file: [*figures.predictions(file)] for file in entry["predictions"] if (tree / file).exists()
    }
    assert figures.stale(name, entry) == []
    file = next(file for file in entry["predictions"])
    text = (tree / file).read_text()
    digits = next(number for number in reversed(figures.NUMBER.findall(text)) if len(number) > 4 and "," not in number)
    (tree / file).write_text(text.replace(digits, str(float(digits) * 1.5)))
    found = figures.stale(name, entry)
    assert len(found) == 1
    assert f"moved since {entry['commit']} ({entry['date']}): run {entry['command']}" in found[0]


def test_further_rows_and_columns_of_golden_files_make_no_figure_old(tree: Path) -> None:
    file = figures.GOLDEN.format("fronts")
    before, table = figures.predictions(file), pd.read_csv(tree / file)
    more = pd.concat([table, table[:1].assign(job="another")]).assign(new_column=1.0)
    more.to_csv(tree / file, index=False)
    assert before < figures.predictions(file)


def test_a_command_records_its_figures_and_puts_them_into_the_pages(tree: Path) -> None:
    figures.record("lab", "make lab", [figures.ACCURACY], {"error percent": 7.19})
    assert (tree / "README.md").read_text() == "Off by <!--figure lab.error percent-->7.2 %<!--/-->.\n"
    assert figures.faults() == []


def test_a_dated_section_says_where_predictions_have_moved_since(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "README.md").write_text(DATE.format("") + "\n\n5 %\n")
    assert figures.faults() == []  # that commit is not at hand
    monkeypatch.setattr(figures, "moved_since", lambda commit: True)
    assert [fault for fault in figures.faults() if "predictions have moved since 1a2b3c4d" in fault]
    figures.write({})
    assert DATE.format(", and predictions have moved since") in (tree / "README.md").read_text()
    assert figures.faults() == []


def test_predictions_of_this_commit_have_not_moved_since_and_of_an_unknown_one_nothing_is_known() -> None:
    if not subprocess.run(["git", "-C", str(ROOT), "diff", "--quiet", "HEAD", "--", *figures.HELD]).returncode:
        assert figures.moved_since("HEAD") is False
    assert figures.moved_since("0" * 8) is None


def test_figures_of_rows_kept_from_before_keep_their_commit(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures.record("lab", "make lab", [figures.ACCURACY], {"error percent": 7.19})
    monkeypatch.setattr(figures, "commit", lambda: "9e962417")
    figures.record("lab", "make lab", [figures.ACCURACY], {"error percent": 3.0}, anew=False)
    assert figures.read()["lab"]["commit"] == "1a2b3c4d"
    figures.record("lab", "make lab", [figures.ACCURACY], {"error percent": 3.0})
    assert figures.read()["lab"]["commit"] == "9e962417"


def test_a_block_that_a_command_wrote_and_somebody_changed_is_named(tree: Path) -> None:
    (tree / "docs" / "table.md").write_text("```text\nerror 7.2\n```\n")
    figures.record("lab", "make lab", [], {"error percent": 7.19}, ["error 7.2"])
    assert figures.faults() == []
    (tree / "docs" / "table.md").write_text("```text\nerror 6.2\n```\n")
    assert [fault for fault in figures.faults() if "stands on no page as it was: run make lab" in fault]


@given(st.floats(0.0, 1e7), st.integers(0, 4))
def test_what_is_written_into_a_page_passes_the_check(value: float, decimals: int) -> None:
    text = f"off by <!--figure lab.error percent-->{1.0:.{decimals}f} %<!--/-->"
    record = {"lab": {"figures": {"error percent": value}}}
    written = figures.MARK.sub(lambda found: figures.shown(found, record), text)
    assert figures.differing("page", written, record) == []
    assert figures.unmarked(written) == f"off by {value:,.{decimals}f} %"


@pytest.mark.parametrize(
    ("text", "count"),
    [("# A\n\n<!--given: limits-->\n\nAt most 20 s.\n\n## B\n\n5 %\n\n# C\n\n6 %\n", 1),
     (f"# A\n\n## B\n\n{DATE.format('')}\n\n5 %\n\n### D\n\n6 %\n\n## E\n\n7 %\n", 1),
     ("At most <!--given-->20\ns<!--/-->, `5 %`, a 90 % interval.\n", 0),
     ("```text\n5 %\n```\n\n[5 %](a.md)\n", 1)],
)  # fmt: skip
def test_limits_dates_and_code_need_no_mark_and_a_section_ends_at_the_next_heading(text: str, count: int) -> None:
    assert len(figures.loose("page", text)) == count


@pytest.mark.parametrize(
    ("text", "fault"),
    [("```console\n$ run\n10.67 s\n```\n\nIt takes <!--shown-->10.7 s<!--/-->.\n", ""),
     ("```console\n$ run\n10.67 s\n```\n\nIt takes <!--shown-->9 s<!--/-->.\n", "9 is not what a block"),
     ("It takes\n<!--given-->9 s<!--/-->.\n", "ends the paragraph")],
)  # fmt: skip
def test_what_a_page_shows_of_its_own_blocks_is_there_and_no_mark_begins_a_line(text: str, fault: str) -> None:
    assert fault in " ".join(figures.misplaced("page", text))
    assert bool(fault) == bool(figures.misplaced("page", text))


@pytest.fixture
def joint_or_not(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(JOINT))
    return importlib.import_module("joint_or_not")


def test_the_recorded_figures_of_joint_or_not_are_those_of_its_rows(joint_or_not: ModuleType) -> None:
    found = joint_or_not.summary(pd.read_csv(JOINT / "results.csv"))
    assert figures.read()["joint-or-not"]["figures"] == {name: round(value, 6) for name, value in found.items()}


def test_a_job_of_joint_or_not_comes_to_its_recorded_row_today(joint_or_not: ModuleType) -> None:
    case = next(case for case in joint_or_not.cases() if case["model"] == "opt-2.7b")
    recorded = pd.read_csv(JOINT / "results.csv").query("model == 'opt-2.7b'")
    for now, (_, row) in zip(joint_or_not.rows_of(case), recorded.iterrows(), strict=False):
        for name in ("energy_saving", "energy_saving_low", "two_step_later", "two_step_later_high", "joint_later"):
            assert now[name] == pytest.approx(row[name], abs=5e-5), f"{name}: run {joint_or_not.COMMAND}"


def test_a_saving_of_joint_or_not_has_the_interval_that_a_proposal_states_of_that_plan(
    joint_or_not: ModuleType,
) -> None:
    case = next(case for case in joint_or_not.cases() if case["model"] == "opt-2.7b")
    found = propose(joint_or_not.job_of(case, None))
    saved = joint_or_not._saved_later("later", ReferencePlan(found.model, found.reference), found.front)
    row = np.abs(found.front["energy_vs_first_percent"] + 100.0 * saved["later"]).argmin()
    stated = [-found.front[f"energy_vs_first_percent_{end}"][row] / 100.0 for end in ("high", "low")]
    assert [saved["later_low"], saved["later_high"]] == pytest.approx(stated)
    assert saved["later_low"] < saved["later"] < saved["later_high"]
