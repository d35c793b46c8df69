"""The one correction of predictions, by a surrogate and measured runs of a source."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.errors import UsageError, nearest
from jointopt.core.schema import Bools, Columns, Floats
from jointopt.spec.job import Job
from jointopt.surrogate.evidence import Evidence
from jointopt.surrogate.intervals import RESULTS, add_intervals, supported, with_power_interval, with_time_interval
from jointopt.surrogate.residual_gp import Runs, together

if TYPE_CHECKING:
    from jointopt.surrogate.model import Conditioned, Surrogate

_MODELS = Path(__file__).parents[1] / "models"


def surrogate_names() -> tuple[str, ...]:
    """Names of the surrogates that come with jointopt."""
    return tuple(sorted(card.parent.name for card in _MODELS.glob("*/card.json")))


@functools.cache
def load_surrogate(name: str) -> Surrogate | None:
    """The shipped surrogate of that name, the one in that folder, or None for ``none``; UsageError names the known."""
    from jointopt.surrogate.model import load

    if name == "none":
        return None
    if ((shipped := _MODELS / name) / "card.json").is_file():
        return load(shipped)
    if Path(name).is_dir():
        return load(Path(name))
    known = (*surrogate_names(), "none")
    raise UsageError(
        f"The surrogate {name!r} is neither shipped nor a folder; expected one of {', '.join(known)}, or the folder "
        f"that `jointopt retrain --out` wrote{nearest(name, known)}."
    )


@dataclass(frozen=True)
class Correction:
    """A surrogate conditioned on the runs of one source, whose framework has a ``fitted`` profile or none."""

    surrogate: Surrogate
    source: str
    fitted: bool
    evidence: Evidence = field(default_factory=Evidence)

    @functools.cached_property
    def _conditioned(self) -> Conditioned:
        return self.surrogate.conditioned(self.source, self.fitted, self.evidence.known)

    @property
    def moves_time(self) -> bool:
        """Whether the predicted time of any plan changes."""
        return self.evidence.runs is not None or self.surrogate.moves_unseen_sources

    def log_factor(self, runs: Runs) -> Floats:
        """Mean of log(time / physics), (n,)."""
        return self._conditioned.predict(runs)[0]

    def moves(self, parts: Sequence[Runs]) -> list[Move]:
        """The correction of the plans of each of ``parts``, which are of one job each."""
        ends = np.cumsum([len(runs) for runs in parts])[:-1]
        answer = self._conditioned.predict(together(parts))
        pieces = zip(parts, *(np.split(values, ends) for values in answer), strict=True)
        return [
            Move(mean, half, inside.astype(bool), self._conditioned.knows_kind(runs), self.evidence)
            for runs, mean, half, inside in pieces
        ]


@dataclass(frozen=True)
class Move:
    """Correction of plans: mean and 90 % half-width of log(time / physics), and whether training supports them."""

    mean: Floats
    half_width: Floats
    inside: Bools
    known: bool  # runs of the same source, dtype and kind of model are among those learned from
    evidence: Evidence

    def scaled(self, columns: Columns) -> Columns:
        """Results of the physics alone, corrected."""
        factor, power = np.exp(self.mean), self.evidence.power.over(columns["avg_power_w"])
        by = (factor, factor * power, power, self.evidence.memory_posterior().factor)
        return columns | {name: columns[name] * move for name, move in zip(RESULTS, by, strict=True)}

    def bounded(self, job: Job, columns: Columns) -> Columns:
        """Corrected plans and results with ``_low`` and ``_high`` of every result (90 %) and ``in_domain``."""
        out = add_intervals(job, columns)
        if self.evidence.power.half_width is not None:
            out = with_power_interval(out, self.evidence.power.half_width)
        supports, at_top = supported(job, columns, self.known)
        out = with_time_interval(job, out, self.half_width, self.inside & at_top, self.known)
        return out | {"in_domain": self.inside & supports}
