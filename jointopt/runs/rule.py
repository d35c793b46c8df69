"""Rules that the cells of one row must keep, and the rows that break them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pandas as pd

from jointopt.runs.cells import is_known, spelled


@dataclass(frozen=True)
class Rule:
    """A rule that the cells of one run must keep. ``broken`` is false wherever a cell that it needs is blank."""

    columns: tuple[str, ...]  # the first one is blamed
    expected: str | Callable[[pd.Series], str]  # of all runs, or of the one that breaks it
    broken: Callable[[pd.DataFrame], pd.Series]
    may_fail: bool = False  # no contradiction where the run failed: that may be just why
    use: str = "used"  # of the first column where the rule is but a doubt

    def complaint(self, run: pd.Series) -> str:
        """The expectation, and the cells that contradict it."""
        known = {name: spelled(run[name]) for name in self.columns if name in run and is_known(run[name])}
        cells = (f"{name}={f'{v:.6g}' if isinstance(v, float) else v}" for name, v in known.items())
        expected = self.expected if isinstance(self.expected, str) else self.expected(run)
        return f"expected {expected}, got {' '.join(cells)}"


def broken_rules(runs: pd.DataFrame, rules: Iterable[Rule]) -> Iterator[tuple[Rule, pd.Series]]:
    """(rule, which rows break it) for rows as `clean_runs` leaves them; columns may be missing."""
    for rule in rules:
        yield rule, rule.broken(runs.reindex(columns=pd.Index(rule.columns)))


def above(larger: str, smaller: str, factor: float = 1.0) -> Callable[[pd.DataFrame], pd.Series]:
    """Whether one column exceeds ``factor`` times another."""
    return lambda runs: runs[larger] > factor * runs[smaller]
