"""One statement of a paper, its check, and in what share of the plausible constants it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jointopt.studies.evidence import NOMINAL, Constants


@dataclass(frozen=True)
class Finding:
    """The model's answer in words, and whether the statement holds; ``off`` from the paper's figure, relative."""

    ours: str
    holds: bool
    off: float | None = None


Check = Callable[[Constants], Finding]


@dataclass(frozen=True)
class Statement:
    """A row of the table: without a ``check`` it cannot be judged, with one and a ``why`` it is contradicted."""

    key: str
    where: str
    says: str
    paper: str  # its figure, or what its text states of the sign and order
    check: Check | None = None
    why: str = ""
    varies: bool = True  # with the constants that the paper leaves open

    @property
    def contradicted(self) -> bool:
        """Whether it is known to be contradicted."""
        return self.check is not None and bool(self.why)

    def verdict(self, found: Finding | None) -> str:
        """Reproduced, within x %, contradicted or cannot be judged."""
        if found is None:
            return "cannot be judged"
        if not found.holds:
            return "contradicted"
        return "reproduced" if found.off is None else f"within {max(abs(found.off), 0.01):.0%}"

    def share(self, draws: Sequence[Constants]) -> float | None:
        """Share of the draws in which the statement holds; None where there is nothing to vary."""
        if self.check is None or not self.varies:
            return None
        holds = [self.check(constants).holds for constants in draws]
        return sum(holds) / len(holds)

    def found(self) -> Finding | None:
        """The check under the catalogue's constants."""
        return self.check(NOMINAL) if self.check else None


def near(ours: float, paper: float, words: str, most: float = 0.25) -> Finding:
    """A figure beside the paper's: it holds within ``most``, relative."""
    off = ours / paper - 1.0
    return Finding(words, abs(off) <= most, off)
