"""The table of all statements, as rows and in the words of the README."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from types import ModuleType

from jointopt.studies.evidence import scenarios
from jointopt.studies.statements import charllm, euromlsys26, rack_scale
from jointopt.studies.statements.statement import Finding, Grade, Statement

PAPERS: dict[str, ModuleType] = {"EuroMLSys'26": euromlsys26, "CharLLM-PPT": charllm, "Rack scale": rack_scale}
WORKERS = 2
OPEN = 0.75  # of the draws: below it what a paper leaves open decides as much as the model
BEGIN, END = "<!-- statements -->", "<!-- end of statements -->"


@dataclass(frozen=True)
class Row:
    """A statement, what today's predictions come to, and the share of the open constants in which its grade stays."""

    statement: Statement
    found: Finding
    share: float | None

    def cells(self) -> tuple[str, ...]:
        """The row's cells as text."""
        one, off = self.statement, self.found.off
        share = "" if self.share is None else f"{self.share:.0%}"
        share = f"**{share}**" if share and self.share is not None and self.share < OPEN else share
        grade = self.found.grade if off is None else f"{self.found.grade} ({off:+.0%})"
        return one.key, one.where, one.says, one.paper, one.ours(), grade, share


HEADER = ("", "where", "statement", "paper", "ours (variants), *and a note*", "grade", "stays in")


def rows(sensitive: bool = True) -> list[tuple[str, Row]]:
    """(paper, row) of every statement; the shares take most of the time, and two processes share the papers."""
    papers = sorted(PAPERS, key=lambda paper: len(PAPERS[paper].STATEMENTS))
    if not sensitive:
        return [pair for paper in PAPERS for pair in paper_rows(paper, sensitive)]
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        found = dict(zip(papers, pool.map(paper_rows, papers), strict=True))
    return [pair for paper in PAPERS for pair in found[paper]]


def paper_rows(paper: str, sensitive: bool = True) -> list[tuple[str, Row]]:
    """The rows of one paper."""
    module = PAPERS[paper]
    draws = scenarios(module.OPEN) if sensitive else []
    return [(paper, Row(one, one.found(), one.share(draws) if draws else None)) for one in module.STATEMENTS]


def markdown(found: list[tuple[str, Row]]) -> str:
    """The table of the README, a part for each paper, and the counts of grades before them."""
    papers, graded = list(dict.fromkeys(paper for paper, _ in found)), Counter((p, r.found.grade) for p, r in found)
    by_grade = [("", *papers, "all"), ("---",) * (len(papers) + 2)]
    for grade in Grade:
        each = [graded[paper, grade] for paper in papers]
        by_grade.append((str(grade), *map(str, each), str(sum(each))))
    parts = [summary(found), _lines(by_grade)]
    for paper in dict.fromkeys(name for name, _ in found):
        lines = [HEADER, ("---",) * len(HEADER), *(row.cells() for name, row in found if name == paper)]
        parts.append(f"### {paper}\n\n{_lines(lines)}")
    return "\n\n".join(parts)


def _lines(rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def summary(found: list[tuple[str, Row]]) -> str:
    """How many statements are reproduced, in words."""
    known = counts(found)
    return f"{known[Grade.REPRODUCED]} of {known['all']} statements are reproduced."


def counts(found: list[tuple[str, Row]]) -> dict[str, int]:
    """How many statements have each grade, and how many there are."""
    return {str(grade): sum(row.found.grade is grade for _, row in found) for grade in Grade} | {"all": len(found)}
