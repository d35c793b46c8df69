"""Power, peak power and temperature as runs teach them: a line in what the physics predicts, and trees on its rest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.facts import Source
from jointopt.core.schema import Floats, Ints
from jointopt.jobs.catalog.gpus import known_gpu
from jointopt.runs.table import row_names
from jointopt.surrogate.clock_response import CLOCK
from jointopt.surrogate.heat_names import HEAT_COLUMNS, PEAK, RISE
from jointopt.surrogate.kernel import Runs
from jointopt.surrogate.own_mix import crossed
from jointopt.surrogate.power import PowerScale

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.dataset import Priced
    from jointopt.surrogate.own_mix import Mix

_log = logging.getLogger(__name__)
LINE_CLOCKS, LEAST_APART = 4, 0.03  # shares of clock and power by which clocks must differ to show what follows them
AGREEMENT = 0.05  # by which a peak may be below the mean, as tables are checked
BELIEVED = 5.0  # times the physics or its inverse: a measured value beyond is of something else
LEAST_ABOVE, MOST_ABOVE = 5, 0.95  # runs with peaks above their limit that show by how much, and the share of these
REST = 0.4  # of static power, which is drawn at rest at the least: 0.42 in air of 0 °C, 0.65 of 22 °C
LEAST_SLOPE = 0.2  # of a layout's power over that of the physics: by how much less it may follow the clock


@dataclass(frozen=True)
class OwnTarget:
    """A quantity that runs were measured of: ``scale`` on what the physics predicts, ``mix`` with trees on its rest.

    ``overshoot``: of peak power, `limit_overshoot`; None: of another quantity, or by a version that knew of none.
    """

    scale: PowerScale
    mix: Mix
    overshoot: float | None = None

    def log_ratio(self, runs: Runs, values: Floats) -> Floats:
        """log(measured / predicted) (n,) of ``runs``, which the physics has at ``values`` (n,)."""
        return self.mix(np.log(self.scale.over(values)), runs)

    def line(self, runs: Runs, values: Floats, clocks: Sequence[float], rest_w: float = 0.0) -> PowerScale:
        """A line in the physics' power for the layout of each of ``runs`` (n,), learned at shares of the top clock.

        ``values`` (clocks, n): of the physics there. A line of least relative squares, so that what the search is
        promised of energy at other clocks holds: its bounds are of work that no clock saves, and of GPUs that rest for
        the least time, which is a bound of a longer one too as long as these draw something. So the line is nowhere
        negative from ``rest_w`` on, which no GPU is predicted to draw less than.
        """
        found = np.stack([
            v * np.exp(self.log_ratio(at_clock(runs, clock), v)) for v, clock in zip(values, clocks, strict=True)
        ])  # fmt: skip
        weight = 1.0 / found**2
        mean_of_physics, mean = ((weight * v).sum(axis=0) / weight.sum(axis=0) for v in (values, found))
        spread = (weight * (values - mean_of_physics) ** 2).sum(axis=0)
        level = mean / mean_of_physics
        apart = spread > (LEAST_APART * mean_of_physics) ** 2 * weight.sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = (weight * (values - mean_of_physics) * (found - mean)).sum(axis=0) / spread
        steepest = level * mean_of_physics / (mean_of_physics - rest_w)  # through nothing at rest
        slope = np.where(apart, np.clip(slope, LEAST_SLOPE * level, steepest), level)
        return PowerScale(slope, self.scale.log_sd, mean - slope * mean_of_physics)


def at_rest_w(source: str) -> float:
    """Power in W that no GPU of a source is predicted to draw less than, 0 where it is not known.

    `REST` of its static power, which is that of a warm one; `jointopt.physics.bounds.idle_power_w` says how much less a
    cold one draws.
    """
    gpu = known_gpu(Source.parse(source).gpu)
    return REST * gpu.power.static_w if gpu is not None and gpu.power else 0.0


def limit_overshoot(peak_w: Floats | None, limit_w: Floats | None) -> float | None:
    """The share of a power limit that boards hold peaks to, by measured peaks (n,) and the limit of each run (n,).

    That of nearly all peaks above their limit; 1, the limit itself, where fewer than `LEAST_ABOVE` are: peaks
    below teach nothing of what holds them. None where either is unknown.
    """
    if peak_w is None or limit_w is None:
        return None
    above = peak_w[peak_w > limit_w] / limit_w[peak_w > limit_w]
    return round(float(np.quantile(above, MOST_ABOVE)), 4) if len(above) >= LEAST_ABOVE else 1.0


def limit_cut(
    fold: Ints, log_ratio: Floats, values: Floats, limits_w: Floats | None
) -> tuple[float | None, Floats | float]:
    """`limit_overshoot` of the peaks of runs, and log(highest / physics) (n,) at which each is cut by other folds'.

    ``log_ratio``, ``values`` (n,): of the peaks, and what the physics says. None and infinity where limits are unknown.
    """
    if limits_w is None:
        return None, np.inf
    peak_w = np.exp(log_ratio) * values

    def most(fit: Ints, at: Ints) -> Floats:
        return np.log((limit_overshoot(peak_w[fit], limits_w[fit]) or np.inf) * limits_w[at] / values[at])

    return limit_overshoot(peak_w, limits_w), crossed(fold, most)


def line_clocks(clocks: tuple[float, float]) -> tuple[float, ...]:
    """Shares of the top clock at which what was learned is read: over all that were measured, from the lowest on."""
    low, high = clocks
    return tuple(np.linspace(low, high, LINE_CLOCKS).tolist()) if high - low > LEAST_APART else (high,)


def at_clock(runs: Runs, share: float) -> Runs:
    """The runs with a share of the top clock as their feature."""
    return replace(runs, features=dict(runs.features) | {CLOCK: np.full(len(runs), share)})


def measures_heat(table: pd.DataFrame) -> bool:
    """Whether a table has peak power or temperature of any run."""
    return any(name in table and bool(table[name].notna().any()) for name in HEAT_COLUMNS.values())


def heat_log_ratios(
    table: pd.DataFrame, priced: Priced, named: Callable[[int], str] | None = None
) -> dict[str, Floats]:
    """log(measured / predicted) peak power and temperature over the air, (n,) each in the order of ``priced.rows``.

    NaN where a run has none, did not end well, or has one that cannot be true, which is logged; ``table`` as
    `with_results` reads it, ``named``: what messages call a row. Nothing where ``priced`` has none of the physics.
    """
    if PEAK not in priced.physics:
        return {}
    blank = np.full(len(table), np.nan)
    ended, mean_w = table["status"].to_numpy(str) == "ok", np.asarray(table.get("avg_power_w", blank), float)
    air_c = np.array([work.job.cluster.inlet_temperature_c for work in priced.works])[priced.work]
    found = {}
    for name, column in HEAT_COLUMNS.items():
        cells = np.asarray(table.get(column, blank), float)
        values = cells[priced.rows] - air_c * (name == RISE)
        off = np.log(np.where(values > 0.0, values, np.nan) / np.maximum(priced.physics[name], 1e-9))
        low = cells[priced.rows] < (1.0 - AGREEMENT) * mean_w[priced.rows] if name == PEAK else values <= 0.0
        far, lost = np.abs(off) >= np.log(BELIEVED), ~ended[priced.rows]
        unpriced = np.ones(len(table), bool)
        unpriced[priced.rows] = lost
        of_rows = {cause: priced.rows[rows & ~lost] for cause, rows in (("low", low), ("far", far & ~low))}
        causes = of_rows | {"unpriced": np.flatnonzero(unpriced & np.isfinite(cells))}
        for line in _unused_lines(name, causes, int(np.isfinite(cells).sum()), named or row_names(table)):
            _log.warning("%s", line)
        found[name] = np.where(low | far | lost, np.nan, off)
    return found


_ADVICE = {
    (PEAK, "low"): ("below the mean power of their run",
                    "state the highest power of any GPU in W, not below avg_power_w, or leave the cell blank"),
    (RISE, "low"): ("no warmer than the inlet air",
                    "state the temperature of the hottest GPU at work in °C, or leave the cell blank"),
    (PEAK, "far"): (f"more than {BELIEVED:g} times off the physics", "is it of one GPU, in W?"),
    (RISE, "far"): (f"more than {BELIEVED:g} times as far above the inlet air as the physics says, or less than its "
                    "inverse", "is it of the hottest GPU at work, in °C?"),
}  # fmt: skip
_UNPRICED = (
    "of runs of which no time is learned", "correct what other sentences say of these runs, or leave the cell blank"
)  # fmt: skip


def _unused_lines(name: str, causes: Mapping[str, Ints], given: int, named: Callable[[int], str]) -> list[str]:
    """One sentence for each of the ``causes`` why cells of a quantity are not used, by the rows of each.

    ``given``: how many cells there are.
    """
    lines = []
    for cause, rows in causes.items():
        if len(rows):
            why, advice = _ADVICE.get((name, cause), _UNPRICED)
            end = "" if advice.endswith("?") else "."
            lines.append(
                f"{len(rows):,} of {given:,} cells of {HEAT_COLUMNS[name]} are not learned from, as they are {why} "
                f"({named(int(rows.min()))} is the first): {advice}{end}"
            )
    return lines
