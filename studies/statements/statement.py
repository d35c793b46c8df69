"""One statement of a paper: its check, its grade, and in what share of the plausible constants the grade stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from jointopt.core.schema import Floats
from jointopt.core.units import Z_90
from jointopt.studies.evidence import NOMINAL, Constants
from jointopt.surrogate.intervals import CLOCK_POWER, CLOCK_TIME, LAYOUT_POWER, physics_errors
from jointopt.surrogate.memory import memory_margin

# The model's own error of a comparison, as `propose` states it: 90 % half-widths, of logarithms. Time of two layouts of
# one job (experts: of plans that no recorded run supports), their power, their energy.
TIME, EXPERT_TIME = (float(physics_errors()["difference"][support]) for support in ("known", "unknown"))
POWER = LAYOUT_POWER
# memory as of software that no run is recorded of
MEMORY = Z_90 * float(np.hypot(memory_margin().source_sd, memory_margin().plan_sd))
ENERGY, EXPERT_ENERGY = float(np.hypot(TIME, POWER)), float(np.hypot(EXPERT_TIME, POWER))
MOST_OFF = 0.25  # of a figure, relative


class Grade(StrEnum):
    """How a statement fares; of a sentence with parts, the worst of theirs counts, in this order."""

    REPRODUCED = "reproduced"
    ORDER = "in order only"
    TIE = "tie within model error"
    UNTOLD = "cannot be told"
    CONTRADICTED = "contradicted"
    INPUT = "restates an input"


@dataclass(frozen=True)
class Finding:
    """The model's answer in words and its grade; ``off`` from the paper's figure, relative."""

    ours: str
    grade: Grade
    off: float | None = None


Check = Callable[[Constants], Finding]


@dataclass(frozen=True)
class Statement:
    """A row of the table: without a ``check`` it cannot be told, and the ``note`` says what would be needed."""

    key: str
    where: str
    says: str
    paper: str  # its figure, or what its text states of the sign and order
    check: Check | None = None
    note: str = ""
    also: tuple[tuple[str, Check], ...] = ()  # variants and stand-ins by name, which are not counted
    varies: bool = True  # with the constants that the paper leaves open

    def found(self, constants: Constants = NOMINAL) -> Finding:
        """The check, under the catalogue's constants or others."""
        return self.check(constants) if self.check else Finding("", Grade.UNTOLD)

    def ours(self) -> str:
        """The model's answer, those to variants, and the note."""
        variants = [f"({name}: {check(NOMINAL).ours})" for name, check in self.also]
        return " ".join(filter(None, (self.found().ours, *variants, self.note and f"*{self.note}*")))

    def share(self, draws: Sequence[Constants]) -> float | None:
        """Share of the draws in which the grade is today's; None where there is nothing to vary."""
        if self.check is None or not self.varies:
            return None
        today = self.found().grade
        return sum(self.found(draw).grade is today for draw in draws) / len(draws)


def response(top_mhz: ArrayLike, low_mhz: ArrayLike) -> Floats:
    """The same error of one layout's time or energy at two clocks: so much of the logarithm of their ratio."""
    return np.asarray(np.hypot(CLOCK_TIME, CLOCK_POWER) * np.log(np.divide(top_mhz, low_mhz)))


def near(ours: float, paper: float, words: str) -> Finding:
    """A figure beside the paper's: reproduced within `MOST_OFF`."""
    off = ours / paper - 1.0
    return Finding(words, Grade.REPRODUCED if abs(off) <= MOST_OFF else Grade.CONTRADICTED, off)


def order(words: str, ratios: ArrayLike, error: ArrayLike = TIME, sized: bool = True) -> Finding:
    """Ratios of what the paper has larger over what it has smaller; ``sized``: the size is as stated too.

    One beyond the error and reversed contradicts; unless more than half are beyond it, the statement is a tie.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # of what is never reached under some constants
        apart = np.log(np.asarray(ratios, float))
    beyond = np.abs(apart) > np.asarray(error)
    if (apart[beyond] < 0.0).any():
        return Finding(words, Grade.CONTRADICTED)
    if beyond.mean() <= 0.5:
        return Finding(words, Grade.TIE)
    return Finding(words, Grade.REPRODUCED if sized else Grade.ORDER)


def alike(words: str, ratios: ArrayLike, error: ArrayLike = TIME) -> Finding:
    """What the paper has equal: reproduced where no difference is beyond the error."""
    with np.errstate(divide="ignore", invalid="ignore"):
        same = bool((np.abs(np.log(np.asarray(ratios, float))) <= np.asarray(error)).all())
    return Finding(words, Grade.REPRODUCED if same else Grade.CONTRADICTED)


def whole(*parts: Finding) -> Finding:
    """A sentence of several parts: the worst grade of theirs."""
    grades = list(Grade)
    worst = max(parts, key=lambda part: grades.index(part.grade))
    return Finding("; ".join(filter(None, (part.ours for part in parts))), worst.grade)


def either(*readings: Finding) -> Finding:
    """One question under readings that the paper leaves open: told where all have one grade."""
    grades = {one.grade for one in readings}
    words = "; or ".join(filter(None, (one.ours for one in readings)))
    return Finding(words, grades.pop() if len(grades) == 1 else Grade.UNTOLD)
