"""Statements of the papers: each keeps the grade that the README states, and no constant is fitted to one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import jointopt
from jointopt.jobs.jobfile import shipped_job
from jointopt.studies import figures
from jointopt.studies.evidence import NOMINAL, SPANS, scenarios, varied
from jointopt.studies.statements import table
from jointopt.studies.statements.statement import Finding, Grade, Statement, alike, either, near, order, whole

ROOT = Path(__file__).parents[1]
STATEMENTS = [one for module in table.PAPERS.values() for one in module.STATEMENTS]
CELLS = {
    line.split(" | ")[0].lstrip("| "): line.split(" | ")[5].split(" (")[0]
    for line in (ROOT / "studies" / "README.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| [A-Z]\d+ \|", line)
}
JUDGED = re.compile(
    r"euromlsys|charllm|rack-scale|2509\.10371|Lu, Hu, Zhu|published of OPT 350M and OLMoE|\bstatements?\b",
    re.IGNORECASE,
)
ENTRY = re.compile(r"(?:^ *#.*\n)*^ *([\w-]+):.*(?:\n +[^\s#:]+ [^:\n]*$)*", re.MULTILINE)


@pytest.mark.long  # some search plans
@pytest.mark.parametrize("statement", [pytest.param(one, id=f"{one.key}-{one.says}") for one in STATEMENTS])
def test_a_statement_has_the_grade_that_the_readme_states(statement: Statement) -> None:
    found = statement.found()
    assert found.grade == CELLS[statement.key], found.ours


def test_what_is_not_reproduced_has_a_note_and_keys_are_unique() -> None:
    explained = {Grade.ORDER, Grade.UNTOLD, Grade.CONTRADICTED}
    assert [one.key for one in STATEMENTS if CELLS[one.key] in explained and not one.note] == []
    assert list(CELLS) == [one.key for one in STATEMENTS]
    assert len(set(CELLS)) == len(STATEMENTS)


def test_both_readmes_state_how_many_statements_are_reproduced_and_no_other_grade_among_them() -> None:
    counted = f"{list(CELLS.values()).count(Grade.REPRODUCED)} of {len(STATEMENTS)} statements are reproduced"
    for page in ("README.md", "studies/README.md"):
        assert counted in " ".join(figures.unmarked((ROOT / page).read_text(encoding="utf-8")).split())


def test_an_order_within_the_model_s_error_is_a_tie_and_one_reversed_beyond_it_contradicts() -> None:
    grades = [order("", ratios, error=0.2).grade for ratios in (1.3, 1.1, 0.9, 0.7, [1.5, 1.1], [1.5, 1.5, 0.7])]
    assert grades == [
        Grade.REPRODUCED, Grade.TIE, Grade.TIE, Grade.CONTRADICTED, Grade.TIE, Grade.CONTRADICTED,
    ]  # fmt: skip
    assert order("", 1.3, sized=False).grade is Grade.ORDER
    assert [alike("", ratio, 0.2).grade for ratio in (1.1, 1.3)] == [Grade.REPRODUCED, Grade.CONTRADICTED]
    assert [near(ours, 100.0, "").grade for ours in (120.0, 130.0)] == [Grade.REPRODUCED, Grade.CONTRADICTED]


def test_a_sentence_is_graded_by_its_worst_part_and_an_open_question_is_told_only_where_its_readings_agree() -> None:
    good, tie, bad = (Finding("", grade) for grade in (Grade.REPRODUCED, Grade.TIE, Grade.CONTRADICTED))
    assert [whole(good, other).grade for other in (good, tie, bad)] == [good.grade, tie.grade, bad.grade]
    assert [either(good, other).grade for other in (good, bad)] == [Grade.REPRODUCED, Grade.UNTOLD]


def test_a_row_shows_readings_that_count_apart_from_variants_that_do_not() -> None:
    def reads(*grades: Grade) -> Finding:
        return either(*(Finding(grade.value, grade) for grade in grades))

    first, second = Grade.REPRODUCED, Grade.TIE
    assert [reads(first, first, last).grade for last in (first, second)] == [first, Grade.UNTOLD]
    row = Statement("X1", "1", "", "", lambda _: reads(first, second), "a note", (("aside", lambda _: reads(second)),))
    assert row.ours() == f"{first}; or {second} (aside: {second}) *a note*"


def test_no_constant_of_the_catalogue_is_fitted_to_a_paper_that_is_judged() -> None:
    found = set()
    for file in sorted((Path(jointopt.__file__).parent / "jobs" / "catalog").glob("*.yaml")):
        for entry in ENTRY.finditer(file.read_text(encoding="utf-8")):
            if JUDGED.search(entry[0]) and re.search(r"\b(fitted|tuned|chosen|want)\b", entry[0]):
                found.add(f"{file.stem}: {entry[1]}")
    assert not found


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
