"""The memory that a plan lacks, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jointopt.report.plans import odds


@dataclass(frozen=True)
class Shortage:
    """Memory per GPU that a plan lacks to be as likely to fit as not, in GiB, on its fullest GPU."""

    predicted_gib: float
    allowed_gib: float  # up to which predictions are as likely to fit as not
    probability: float  # of fitting
    changes: Sequence[str] = ()  # words for a plan after which it would fit, such as recompute=full
    ran_out: bool = False  # in a measured run, or it needs as much as a layout that did

    @property
    def cause(self) -> str:
        """Why it is not expected to fit."""
        if self.ran_out:
            return "the same layout, or one that needs no more, ran out of memory in a measured run"
        missing_gib = math.ceil(self.missing_gib * 10.0 - 1e-9) / 10.0  # rounded up: a shortage of nothing is none
        return f"its fullest GPU needs {self.predicted_gib:.1f} GiB, {missing_gib:.1f} GiB too many"

    @property
    def missing_gib(self) -> float:
        """GiB too many; NaN where runs alone say so."""
        missing = self.predicted_gib - self.allowed_gib
        return math.nan if self.ran_out and missing <= 0.0 else missing

    def document(self) -> dict[str, Any]:
        """The GiB that are missing, and the changes that help."""
        return {"missing_gib": self.missing_gib, "would_fit_with": list(self.changes)}

    def sentence(self) -> str:
        """The shortage in a sentence, and in another what would help."""
        needs = f"It is not expected to fit in memory (probability {odds(self.probability)}): {self.cause}."
        return needs + (f" It would fit with {', or with '.join(self.changes)}." if self.changes else "")
