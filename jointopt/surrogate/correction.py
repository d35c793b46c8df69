"""Predictions corrected by what was measured: a surrogate's support, and runs that the user brings along."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.errors import UsageError, nearest
from jointopt.core.schema import Bools, Columns, Floats
from jointopt.physics.estimate import memory_limit_gib
from jointopt.spec.job import Job
from jointopt.surrogate.dataset import Part, Priced, power_log_ratio, price, timed_runs, together
from jointopt.surrogate.intervals import supported, with_power_interval, with_time_interval
from jointopt.surrogate.memory import move_memory
from jointopt.surrogate.power_scale import PowerScale, power_scale
from jointopt.surrogate.residual_gp import Runs

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.model import Surrogate

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
    shipped = _MODELS / name
    if (shipped / "card.json").is_file():
        return load(shipped)
    if Path(name).is_dir():
        return load(Path(name))
    known = (*surrogate_names(), "none")
    raise UsageError(
        f"The surrogate {name!r} is neither shipped nor a folder; expected one of {', '.join(known)}, or the folder "
        f"that `jointopt retrain --out` wrote{nearest(name, known)}."
    )


@dataclass(frozen=True)
class Move:
    """What is learned of plans: mean and 90 % half-width of log(time / physics), whether inside of what is known."""

    mean: Floats
    half_width: Floats
    inside: Bools
    known: bool = False  # runs of the same source and kind are
    power: PowerScale = field(default_factory=PowerScale)

    def applied(self, job: Job, columns: Columns) -> Columns:
        """Columns of `add_intervals` with time, power, energy and their intervals moved."""
        factor, watts = np.exp(self.mean), self.power.factor
        moved = {name: watts * v for name, v in columns.items() if name.startswith("avg_power_w")}
        moved |= {"iteration_time_s": columns["iteration_time_s"] * factor}
        moved |= {"energy_j": columns["energy_j"] * factor * watts}
        if self.power.half_width is not None:
            moved = with_power_interval(moved, self.power.half_width)
        inside = self.inside & supported(job, columns, self.known)
        widened = self.inside if self.known else inside
        out = with_time_interval(job, columns | moved, self.half_width, widened, self.known)
        return out | {"in_domain": inside}


@dataclass(frozen=True)
class Correction:
    """A surrogate, and runs at hand with their residuals, which its predictions adapt to."""

    surrogate: Surrogate
    known: tuple[Runs, Floats] | None = None
    power: Mapping[str, PowerScale] = field(default_factory=dict)  # by source

    @classmethod
    def after(cls, surrogate: Surrogate, measured: pd.DataFrame | None) -> Correction:
        """The surrogate told of ``measured``; rows without a time tell nothing."""
        return cls(surrogate) if measured is None else cls(surrogate, *_measured(measured))

    def moves(self, parts: Sequence[Runs], job: Job) -> list[Move]:
        """What is learned of the runs of each of ``parts``, all of one source, whose software ``job`` says."""
        answer = self.surrogate.predict(together(parts), job.training.framework.fitted, self.known)
        ends = np.cumsum([len(runs) for runs in parts])[:-1]
        known = self.surrogate.knows_kinds(parts, self.known)
        pieces = zip(*(np.split(values, ends) for values in answer), known, strict=True)
        power = self.power.get(str(parts[0].source[0]), PowerScale())
        return [Move(mean, half, inside.astype(bool), told, power) for mean, half, inside, told in pieces]


def correct_memory(out: pd.DataFrame, parts: Sequence[Part], measured: pd.DataFrame | None) -> pd.DataFrame:
    """Predictions ``out``, by row of the table, with memory moved by what was measured; ``parts`` were predicted."""
    works = [part.work for part in parts]
    lengths = [len(work.rows) for work in works]
    rows = np.concatenate([work.rows for work in works])
    names = np.array([part.source for part in parts], dtype=object)  # not a copy of the text for every row
    source, blank = np.repeat(names, lengths), np.broadcast_to("", len(rows))
    priced = Priced(
        rows=rows,
        runs=Runs(np.empty((len(rows), 0)), {}, source, blank),  # memory is corrected by source alone
        physics={"peak_memory_gib": out["predicted_peak_memory_gib"].to_numpy()[rows]},
        fitted=np.repeat([work.job.training.framework.fitted for work in works], lengths),
        assumed=blank,
        memory_limit_gib=np.repeat([memory_limit_gib(work.job) for work in works], lengths),
        reasons={},
    )
    move_memory(out, priced, measured)
    return out


def _measured(measured: pd.DataFrame) -> tuple[tuple[Runs, Floats] | None, Mapping[str, PowerScale]]:
    """(runs with a measured time and their residuals, power by source); (None, none) where no run was timed."""
    timed = timed_runs(measured)
    if timed.empty:
        return None, {}
    priced = price(timed)
    ratio, source = power_log_ratio(timed, priced), priced.runs.source
    power = {str(name): power_scale(ratio[source == name]) for name in np.unique(source)}
    return (priced.runs, priced.residual(timed["iteration_time_s"].to_numpy(float)[priced.rows])), power
