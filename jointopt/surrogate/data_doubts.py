"""Measured cells so far from the physics that their unit is in doubt: times, then power, then peaks and temperature.

Of times, whole sources are doubted, and outliers within one. Each part finds the cells, then says it in a sentence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from jointopt.core.errors import TableError
from jointopt.core.facts import Source
from jointopt.core.schema import Bools, Columns, Floats, Ints
from jointopt.jobs.catalog.gpus import known_gpu
from jointopt.runs.row_names import row_names
from jointopt.surrogate.features import HEAT_COLUMNS, PEAK, RISE

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.dataset import Priced


_log = logging.getLogger(__name__)
Sources = np.ndarray[Any, Any]  # the key of the source of each run, (n,)
DOUBTED, REFUSED = 5.0, 50.0  # measured over predicted time, or its inverse: of a source's median, of rows set apart
# No runs of a source are set apart from its others by so much where all are in seconds: nanotron's 1,542 timed runs
# take 0.2 to 60 times what the physics says, and neighbours among them differ by 1.8 times at most; those of the other
# published tables of layouts take 0.73 to 1.7 times. A broken network may do it: such rows count up to `REFUSED`.
GAP = 5.0
QUESTION = "is iteration_time_s in seconds, and of one iteration?"
_SAYS = "what the physics says"


def doubted_sources(log_ratio: Floats, source: Sources) -> dict[str, float]:
    """Median measured over predicted time of each source that is beyond `DOUBTED` either way.

    ``log_ratio``: log(measured / predicted) of every run, (n,), NaN where unknown; ``source``: its source, (n,).
    """
    known = np.isfinite(log_ratio)
    found = {str(name): np.median(log_ratio[known & (source == name)]) for name in np.unique(source[known])}
    return {name: float(np.exp(value)) for name, value in found.items() if abs(value) > np.log(DOUBTED)}


def unit_outliers(log_ratio: Floats, source: Sources) -> dict[str, Bools]:
    """Masks (n,) by source of runs beyond `DOUBTED` with a `GAP` to others of their source within it; else no entry.

    Arguments as of `doubted_sources`.
    """
    found, doubted = {}, np.log(DOUBTED)
    for name in np.unique(source[np.isfinite(log_ratio)]).tolist():
        of_source, apart = np.where(source == name, log_ratio, np.nan), np.zeros(len(source), bool)
        for ratio in (of_source, -of_source):  # above the first gap over those within `DOUBTED`
            order = np.sort(ratio[np.isfinite(ratio)])
            gaps = (np.diff(order) >= np.log(GAP)) & (order[1:] > doubted) & (np.abs(order[:-1]) <= doubted)
            apart |= ratio >= (order[1:][gaps][0] if gaps.any() else np.inf)
        if apart.any():
            found[str(name)] = apart
    return found


def impossible_outliers(log_ratio: Floats, apart: Mapping[str, Bools]) -> Bools:
    """A mask (n,) of the `unit_outliers` that are beyond `REFUSED`, and so not used."""
    beyond = np.abs(np.nan_to_num(log_ratio)) > np.log(REFUSED)
    return np.asarray(beyond & np.logical_or.reduce([np.zeros(len(beyond), bool), *apart.values()]))


def outlier_lines(
    log_ratio: Floats, rows: npt.NDArray[np.int64], apart: Mapping[str, Bools], source: Sources, predicted: str = _SAYS
) -> list[str]:
    """One sentence for each source with `unit_outliers`; ``rows`` (n,): positions of the runs in the table."""
    lines = []
    for name, odd in apart.items():
        others = np.isfinite(log_ratio) & (source == name) & ~odd
        of_odd, of_others = (_times(float(np.exp(np.median(log_ratio[some])))) for some in (odd, others))
        end = " These times are not used." if impossible_outliers(log_ratio, {name: odd}).any() else ""
        lines.append(
            f"{odd.sum():,} of {(odd | others).sum():,} measured runs{named_source(name)} take {of_odd} {predicted} "
            f"(the first is row {rows[odd].min() + 1}), the others {of_others}: {QUESTION}{end}"
        )
    return lines


def unit_lines(found: Mapping[str, float], predicted: str = _SAYS, but: Collection[str] = ()) -> list[str]:
    """One sentence for each of the `doubted_sources` (or groups), ``but`` those whose likelier reason is known."""
    lines = []
    for name, times in found.items():
        if name not in but:
            units = {"milliseconds": 1e3, "microseconds": 1e6}
            guess = "".join(
                f" They look like {unit}: divide them by {factor:,.0f}."
                for unit, factor in units.items()
                if 1 / DOUBTED < times / factor < DOUBTED
            )
            lines.append(f"Measured runs{named_source(name)} take {_times(times)} {predicted}: {QUESTION}{guess}")
    return lines


def check_scale(log_ratio: Floats, source: Sources) -> None:
    """TableError for a source beyond `REFUSED`, of which nothing can be learned; arguments as of `doubted_sources`."""
    found = doubted_sources(log_ratio, source)
    for name, value in found.items():
        if max(value, 1 / value) > REFUSED:
            raise TableError(
                f"Nothing can be learned from the measured runs{named_source(name)}: they take {_times(value)} {_SAYS};"
                f" expected less than {REFUSED:g} times either way. {QUESTION.capitalize()} Correct the "
                "column, or leave these runs out."
            )


def span_of_doubt(residual: Floats) -> tuple[float, float] | None:
    """(lowest, highest) log(time / physics) by a source's ``residual`` (n,), where its unit is in doubt; else None.

    Either the physics is right or the times are, so that the span holds both.
    """
    one = np.zeros(len(residual), str)
    apart = unit_outliers(residual, one).get("", np.zeros(len(residual), bool))
    medians = [float(np.median(residual[rows])) for rows in (apart, ~apart) if rows.any()]
    if all(abs(median) <= np.log(DOUBTED) for median in medians):
        return None
    return min(0.0, *medians), max(0.0, *medians)


def widen_to_doubt(columns: Columns, mean: Floats, span: tuple[float, float] | None) -> Columns:
    """``columns`` (n,) with intervals of time and energy widened to a `span_of_doubt`; None: unchanged.

    ``mean`` (n,): log(time / physics) of the predicted times.
    """
    if span is None:
        return columns
    lower, higher = np.exp(np.minimum(span[0] - mean, 0.0)), np.exp(np.maximum(span[1] - mean, 0.0))
    names = [name for name in ("iteration_time_s", "energy_j") if f"{name}_low" in columns]
    low = {f"{name}_low": columns[f"{name}_low"] * lower for name in names}
    return columns | low | {f"{name}_high": columns[f"{name}_high"] * higher for name in names}


def named_source(name: str) -> str:
    """A source or group as it stands behind "measured runs"."""
    try:
        text = Source.parse(name).to_text()
    except ValueError:  # a group's name
        text = name
    return f" ({text})" if text else ""


def _times(value: float) -> str:
    return f"{value:,.3g} times" if value < 1000 else f"{value:,.0f} times"


# Measured mean power over that of the physics, and which of it is of something else than one GPU in watts.


# Measured over predicted power, or its inverse. Boards of one kind differ by some per cent and catalogued constants by
# up to a third (`power.SOURCE_SD`, of which the first is three); no run draws half of what its GPUs need for the
# work that they do in the time measured, nor twice what they draw where nothing holds them up.
POWER_DOUBTED, POWER_REFUSED = 1.6, 2.0
_EXPLAINED = 1.25  # times the factor of a usual mistake that a median may be off for that to be the reason
_POWER, _ENERGY = "avg_power_w", "energy_j"
_EXPECTED = {_POWER: "the mean power of one GPU in W", _ENERGY: "J of all GPUs of the job for one iteration"}
_OTHERWISE = {_POWER: "of one GPU, in W", _ENERGY: "in J, of all GPUs and of one iteration"}
_UNUSED = "this power is not learned from"
# Usual mistakes of a column in words, and the factor that each puts on the power of runs, by GPUs of a job and a node.
_MISTAKES: Mapping[str, Mapping[str, Callable[[Floats, Floats], Floats]]] = {
    _ENERGY: {
        "in kJ": lambda gpus, _: np.full(len(gpus), 1e-3), "in Wh": lambda gpus, _: np.full(len(gpus), 1 / 3600.0),
        "of one GPU": lambda gpus, _: 1 / gpus, "of one node": lambda gpus, per_node: per_node / gpus,
        "the energy of a GPU times the GPUs of the job once more": lambda gpus, _: gpus,
    },
    _POWER: {
        "in kW": lambda gpus, _: np.full(len(gpus), 1e-3), "that of a whole node": lambda _, per_node: per_node,
        "that of the whole job": lambda gpus, _: gpus,
        "divided by the GPUs of a node once more": lambda _, per_node: 1.0 / per_node,
        "divided by the GPUs of the job once more": lambda gpus, _: 1 / gpus,
    },
}  # fmt: skip


@dataclass(frozen=True)
class MeasuredWatts:
    """Mean power of a GPU in n runs, arrays (n,): NaN, or blank, where it was not measured."""

    watts: Floats
    off: Floats  # logarithm of how far it is beyond what the physics allows, 0 within
    column: np.ndarray[tuple[int], np.dtype[np.str_]]  # of the table, that states it
    num_gpus: Floats
    gpus_per_node: Floats

    @classmethod
    def of(cls, table: pd.DataFrame, predicted_w: Floats, slower: Floats, static_w: Floats) -> MeasuredWatts:
        """Those of the rows of ``table``, as `with_results` reads it: a column, or energy over time and GPUs.

        ``predicted_w``, ``slower`` (n,): power by the physics, and measured over predicted time; ``static_w`` (n,): of
        the power what a GPU draws whatever runs. A run that takes longer may draw less, as its GPUs wait.
        """
        blank, names = np.full(len(table), np.nan), (_POWER, _ENERGY, "iteration_time_s", "num_gpus", "gpus_per_node")
        power_w, energy_j, time_s, gpus, per_node = (np.asarray(table.get(n, blank), float) for n in names)
        stated = power_w > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            watts = np.where(stated, power_w, energy_j / (time_s * gpus))
            watts = np.where((table["status"].to_numpy(str) == "ok") & (watts > 0) & np.isfinite(watts), watts, np.nan)
            waiting = np.where(slower > 1.0, static_w + (predicted_w - static_w) / slower, predicted_w)
            off = np.log(watts / np.clip(watts, np.fmin(waiting, predicted_w), predicted_w))
        column = np.where(np.isfinite(watts), np.where(stated, _POWER, _ENERGY), "")
        return cls(watts, off, column, gpus, per_node)

    def refused(self, source: Sources) -> Bools:
        """Rows (n,) whose power teaches nothing; ``source`` (n,): the key of each.

        Each that is beyond `POWER_REFUSED`, and all of a source and column of which half are, or whose median is off by
        more than `POWER_DOUBTED` where a usual mistake explains it.
        """
        wrong = np.abs(np.nan_to_num(self.off)) > np.log(POWER_REFUSED)
        for _, rows in self._parts(source):
            doubted = abs(np.median(self.off[rows])) > np.log(POWER_DOUBTED)
            if wrong[rows].mean() >= 0.5 or (doubted and self._mistake(rows)):
                wrong |= rows
        return np.asarray(wrong)

    def _parts(self, source: Sources) -> Iterator[tuple[str, Bools]]:
        """Each source, and which rows (n,) of it one column states."""
        known = np.isfinite(self.off)
        for name in np.unique(source[known]).tolist():
            for column in (_POWER, _ENERGY):
                rows = known & (source == name) & (self.column == column)
                if rows.any():
                    yield name, rows

    def lines(self, source: Sources, rows: Ints, named: Callable[[int], str], effect: str = _UNUSED) -> list[str]:
        """One sentence for each source and column with power that is `refused`, or that is used and doubtful.

        ``rows`` (n,): positions in the table, ``named``: what messages call one of these, ``effect``: of a refusal.
        """
        found, refused = [], self.refused(source)
        for name, known in self._parts(source):
            odd, end = known & refused, f"correct the column; until then {effect}."
            if not odd.any():
                if abs(np.median(self.off[known])) <= np.log(POWER_DOUBTED):
                    continue
                odd, end = known, "it is used all the same."
            column, times = str(self.column[odd][0]), float(np.exp(np.median(self.off[odd])))
            reason = self._mistake(odd & (np.abs(self.off) > np.log(_EXPLAINED))) or _OTHERWISE[column]
            found.append(
                f"{column} of {odd.sum():,} of {known.sum():,} measured runs{named_source(name)} is {times:,.3g} times "
                f"what the physics allows ({named(int(rows[odd].min()))} is the first): is it {reason}? Expected "
                f"{_EXPECTED[column]}: {end}"
            )
        return found

    def _mistake(self, rows: Bools) -> str:
        """The usual mistake by which these rows of one column are off, in words; blank where none explains it."""
        if not rows.any():
            return ""
        gpus, per_node = self.num_gpus[rows], self.gpus_per_node[rows]
        per_node = np.fmin(np.where(np.isfinite(per_node), per_node, 8.0), gpus)
        near = np.log(_EXPLAINED)
        with np.errstate(divide="ignore", invalid="ignore"):
            misses = {"": near}
            for words, factor_of in _MISTAKES[str(self.column[rows][0])].items():
                factor = np.log(factor_of(gpus, per_node))
                if abs(np.nanmedian(factor) if np.isfinite(factor).any() else 0.0) > near:
                    misses[words] = float(np.median(np.abs(np.nan_to_num(self.off[rows] - factor, nan=np.inf))))
        return min(misses, key=lambda words: misses[words])


def measured_watts(table: pd.DataFrame, priced: Priced) -> MeasuredWatts:
    """Mean power of the priced rows of ``table``, in the order of ``priced.rows``."""
    rows = table.iloc[priced.rows]
    slower = rows["iteration_time_s"].to_numpy(float) / priced.physics["iteration_time_s"]
    static_w = np.array([static_power_w(work.job.cluster.gpu.id) for work in priced.works])
    return MeasuredWatts.of(rows, priced.physics["avg_power_w"], slower, static_w[priced.work])


def power_log_ratio(table: pd.DataFrame, priced: Priced) -> Floats:
    """log(measured / predicted) average power (n,) in the order of ``priced.rows``.

    NaN where it was not measured or is `MeasuredWatts.refused`; ``table`` as `with_results` reads it.
    """
    found = measured_watts(table, priced)
    watts = np.where(found.refused(priced.runs.source), np.nan, found.watts)
    return np.asarray(np.log(watts / priced.physics["avg_power_w"]))


def power_lines(table: pd.DataFrame, priced: Priced, named: Callable[[int], str]) -> list[str]:
    """`MeasuredWatts.lines` of the priced rows of ``table``; ``named``: what messages call a row of it."""
    return measured_watts(table, priced).lines(priced.runs.source, priced.rows, named)


def static_power_w(gpu: object) -> float:
    """The power in W that a GPU of that name draws whatever runs; NaN where it is not known."""
    known = known_gpu(gpu)
    return known.power.static_w if known is not None and known.power else np.nan


# Measured peak power and temperature, and which cells of them are of something else.


AGREEMENT = 0.05  # by which a peak may be below the mean, as tables are checked
BELIEVED = 5.0  # times the physics or its inverse: a measured value beyond is of something else
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


def heat_log_ratios(
    table: pd.DataFrame, priced: Priced, named: Callable[[int], str] | None = None
) -> dict[str, Floats]:
    """log(measured / predicted) peak power and temperature over the air, (n,) each in the order of ``priced.rows``.

    NaN where a run has none, did not end well, or has one that cannot be true, which is logged by its cause; ``table``
    as `with_results` reads it, ``named``: what messages call a row. Nothing where ``priced`` has none of the physics.
    """
    if PEAK not in priced.physics:
        return {}
    named = named or row_names(table)
    blank, rows = np.full(len(table), np.nan), priced.rows
    lost, mean_w = table["status"].to_numpy(str)[rows] != "ok", np.asarray(table.get("avg_power_w", blank), float)
    air_c = np.array([work.job.cluster.inlet_temperature_c for work in priced.works])[priced.work]
    found = {}
    for name, column in HEAT_COLUMNS.items():
        cells = np.asarray(table.get(column, blank), float)
        values = cells[rows] - air_c * (name == RISE)
        off = np.log(np.where(values > 0.0, values, np.nan) / np.maximum(priced.physics[name], 1e-9))
        low = cells[rows] < (1.0 - AGREEMENT) * mean_w[rows] if name == PEAK else values <= 0.0
        far, unpriced = np.abs(off) >= np.log(BELIEVED), np.ones(len(table), bool)
        unpriced[rows] = lost
        causes = {"low": rows[low & ~lost], "far": rows[far & ~low & ~lost]}
        for cause, unused in (causes | {"unpriced": np.flatnonzero(unpriced & np.isfinite(cells))}).items():
            if len(unused):
                why, advice = _ADVICE.get((name, cause), _UNPRICED)
                _log.warning(
                    "%s of %s cells of %s are not learned from, as they are %s (%s is the first): %s%s",
                    f"{len(unused):,}", f"{np.isfinite(cells).sum():,}", column, why, named(int(unused.min())), advice,
                    "" if advice.endswith("?") else ".",
                )  # fmt: skip
        found[name] = np.where(low | far | lost, np.nan, off)
    return found
