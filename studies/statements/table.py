"""The table of all statements, as rows and in the words of the README."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from types import ModuleType

from jointopt.studies.evidence import scenarios
from jointopt.studies.statements import charllm, euromlsys26, rack_scale
from jointopt.studies.statements.statement import Finding, Statement

PAPERS: dict[str, ModuleType] = {"EuroMLSys'26": euromlsys26, "CharLLM-PPT": charllm, "Rack scale": rack_scale}
WORKERS = 2
CORNER = 0.25  # share of the draws below which a statement holds in a corner only
BEGIN, END = "<!-- statements -->", "<!-- end of statements -->"


@dataclass(frozen=True)
class Row:
    """A statement, what today's predictions come to, and the share of the open constants in which it holds."""

    statement: Statement
    found: Finding | None
    share: float | None

    @property
    def verdict(self) -> str:
        """The verdict in words; what holds in few of the draws is marked."""
        verdict = self.statement.verdict(self.found)
        corner = verdict != "contradicted" and self.share is not None and self.share < CORNER
        return f"{verdict}, in a corner" if corner else verdict

    def cells(self) -> tuple[str, ...]:
        """The row's cells as text."""
        one = self.statement
        share = "" if self.share is None else f"{self.share:.0%}"
        ours = " ".join(filter(None, (self.found.ours if self.found else "", f"*{one.why}*" if one.why else "")))
        return one.key, one.where, one.says, one.paper, ours, self.verdict, share


HEADER = ("", "where", "statement", "paper", "ours, *and why*", "verdict", "holds in")


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
    """The table of the README, a part for each paper, and the count of verdicts before them."""
    parts = [summary(found)]
    for paper in dict.fromkeys(name for name, _ in found):
        lines = [HEADER, ("---",) * len(HEADER), *(row.cells() for name, row in found if name == paper)]
        parts.append(f"### {paper}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines))
    return "\n\n".join(parts)


def summary(found: list[tuple[str, Row]]) -> str:
    """How many statements have which verdict, in a sentence."""
    verdicts = Counter(row.verdict.split(" ")[0].rstrip(",") for _, row in found)
    corners = sum(row.verdict.endswith("corner") for _, row in found)
    good, bad = verdicts["reproduced"] + verdicts["within"], verdicts["contradicted"]
    return (
        f"Of {len(found)} statements {len(found) - verdicts['cannot']} can be judged: {good} come out "
        f"({good / max(good + bad, 1):.0%}; {verdicts['within']} of them figures within a stated difference, "
        f"{corners} in a corner of the constants only), "
        f"{bad} are contradicted, {verdicts['cannot']} cannot be judged."
    )
