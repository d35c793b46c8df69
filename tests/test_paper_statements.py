"""Statements of the papers: what is reproduced stays so, and what is contradicted is known to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from jointopt.jobs.jobfile import shipped_job
from jointopt.studies.evidence import NOMINAL, SPANS, scenarios, varied
from jointopt.studies.statements import table
from jointopt.studies.statements.statement import Statement

pytestmark = pytest.mark.long  # each searches plans

STUDIES = Path(__file__).parents[1] / "studies"
STATEMENTS = [one for module in table.PAPERS.values() for one in module.STATEMENTS]
CHECKED = [
    pytest.param(one, id=f"{one.key}-{one.says}", marks=[pytest.mark.xfail(reason=one.why)] if one.contradicted else [])
    for one in STATEMENTS
    if one.check
]


@pytest.mark.parametrize("statement", CHECKED)
def test_a_statement_holds_under_the_constants_of_the_catalogue(statement: Statement) -> None:
    found = statement.found()
    assert found is not None
    assert found.holds, found.ours


def test_statements_without_a_check_have_a_reason_and_keys_are_unique() -> None:
    assert [one.key for one in STATEMENTS if one.check is None and not one.why] == []
    assert len({one.key for one in STATEMENTS}) == len(STATEMENTS)


def test_the_readme_has_every_statement_with_its_verdict() -> None:
    lines = (STUDIES / "README.md").read_text(encoding="utf-8").splitlines()
    written = {line.split(" | ")[0].lstrip("| "): line for line in lines if line.startswith("| ")}
    for one in STATEMENTS:
        expected = "contradicted" if one.contradicted else "reproduced" if one.check else "cannot be judged"
        cell = written[one.key].split(" | ")[5]
        assert cell.replace("within", "reproduced").split(" ")[0].rstrip(",") == expected.split(" ")[0]


def test_draws_of_the_open_constants_are_the_same_each_time_and_within_their_spans() -> None:
    draws = scenarios(SPANS, 8)
    assert draws == scenarios(SPANS, 8)
    for name, (low, high) in SPANS.items():
        values = [getattr(draw, name) for draw in draws]
        assert low <= min(values) < max(values) <= high


def test_other_constants_are_those_of_the_job_and_the_catalogue_s_leave_it_alone() -> None:
    job = shipped_job("opt-350m-2x4-a100")
    draw = scenarios(SPANS, 1)[0]
    other = varied(job, draw)
    assert varied(job, NOMINAL) is job
    assert other.training.framework.host_floor_s == pytest.approx(job.training.framework.host_floor_s * draw.host)
    assert other.training.global_batch_size == round(256 * draw.batch)
