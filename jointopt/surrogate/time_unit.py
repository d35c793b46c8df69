"""Measured times so far from the physics that their unit is in doubt: whole sources, and rows set apart in one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from jointopt.core.errors import TableError
from jointopt.core.facts import Source
from jointopt.core.schema import Bools, Columns, Floats

Sources = np.ndarray[Any, Any]  # the key of the source of each run, (n,)
DOUBTED, REFUSED = 5.0, 50.0  # measured over predicted time, or its inverse: of a source's median, of rows set apart
# No runs of a source are set apart from its others by so much where all are in seconds: nanotron's 1,542 timed runs
# take 0.2 to 60 times what the physics says, and neighbours among them differ by 1.8 times at most; those of the other
# published tables of layouts take 0.73 to 1.7 times. A broken network may do it: such rows count up to `REFUSED`.
GAP = 5.0
QUESTION = "is iteration_time_s in seconds, and of one iteration?"
_SAYS = "what the physics says"


def off_scale(log_ratio: Floats, source: Sources) -> dict[str, float]:
    """Median measured over predicted time of each source that is beyond `DOUBTED` either way.

    ``log_ratio``: log(measured / predicted) of every run, (n,), NaN where unknown; ``source``: its source, (n,).
    """
    known = np.isfinite(log_ratio)
    found = {str(name): np.median(log_ratio[known & (source == name)]) for name in np.unique(source[known])}
    return {name: float(np.exp(value)) for name, value in found.items() if abs(value) > np.log(DOUBTED)}


def set_apart(log_ratio: Floats, source: Sources) -> dict[str, Bools]:
    """Runs (n,) beyond `DOUBTED` that a `GAP` sets apart from others of their source within it; none: no entry.

    Arguments as of `off_scale`.
    """
    found = {}
    for name in np.unique(source[np.isfinite(log_ratio)]).tolist():
        ratio = np.where(source == name, log_ratio, np.nan)
        apart = _slower(ratio) | _slower(-ratio)
        if apart.any():
            found[str(name)] = apart
    return found


def _slower(ratio: Floats) -> Bools:
    """Runs (n,) above the first gap over those within `DOUBTED`, of one source; NaN are none."""
    order = np.sort(ratio[np.isfinite(ratio)])
    gaps = (np.diff(order) >= np.log(GAP)) & (order[1:] > np.log(DOUBTED)) & (np.abs(order[:-1]) <= np.log(DOUBTED))
    return np.asarray(ratio >= (order[1:][gaps][0] if gaps.any() else np.inf))


def impossible(log_ratio: Floats, apart: Mapping[str, Bools]) -> Bools:
    """Runs (n,) of those `set_apart` that are beyond `REFUSED`."""
    beyond = np.abs(np.nan_to_num(log_ratio)) > np.log(REFUSED)
    return np.asarray(beyond & np.logical_or.reduce([np.zeros(len(beyond), bool), *apart.values()]))


def apart_lines(
    log_ratio: Floats, rows: npt.NDArray[np.int64], apart: Mapping[str, Bools], source: Sources, predicted: str = _SAYS
) -> list[str]:
    """One sentence for each source with runs `set_apart`; ``rows``: their positions in the table, (n,)."""
    lines = []
    for name, odd in apart.items():
        others = np.isfinite(log_ratio) & (source == name) & ~odd
        total, first = (odd | others).sum(), rows[odd].min() + 1
        end = " These times are not used." if impossible(log_ratio, {name: odd}).any() else ""
        lines.append(
            f"{odd.sum():,} of {total:,} measured runs{named_source(name)} take {_median(log_ratio[odd])} {predicted} "
            f"(the first is row {first}), the others {_median(log_ratio[others])}: {QUESTION}{end}"
        )
    return lines


def doubts(found: Mapping[str, float], predicted: str = _SAYS, but: Collection[str] = ()) -> list[str]:
    """One sentence for each source (or group) that is `off_scale`, ``but`` those whose likelier reason is known."""
    return [
        f"Measured runs{named_source(name)} take {_times(v)} {predicted}: {QUESTION}{_guess(v)}"
        for name, v in found.items()
        if name not in but
    ]


def check_scale(log_ratio: Floats, source: Sources) -> None:
    """Raises TableError for a source beyond `REFUSED`, of which nothing can be learned; arguments as of `off_scale`."""
    found = off_scale(log_ratio, source)
    for name, value in found.items():
        if max(value, 1 / value) > REFUSED:
            raise TableError(
                f"Nothing can be learned from the measured runs{named_source(name)}: they take {_times(value)} {_SAYS};"
                f" expected less than {REFUSED:g} times either way. {QUESTION.capitalize()} Correct the "
                "column, or leave these runs out."
            )


def span_of_doubt(residual: Floats) -> tuple[float, float] | None:
    """(lowest, highest) that log(time / physics) may be where ``residual`` (n,) of a source leaves its unit in doubt.

    None where it does not. Either the physics is right or the times are, so that the span holds both.
    """
    one = np.zeros(len(residual), str)
    apart = set_apart(residual, one).get("", np.zeros(len(residual), bool))
    medians = [float(np.median(residual[rows])) for rows in (apart, ~apart) if rows.any()]
    if all(abs(median) <= np.log(DOUBTED) for median in medians):
        return None
    return min(0.0, *medians), max(0.0, *medians)


def as_wide_as_doubt(columns: Columns, mean: Floats, span: tuple[float, float] | None) -> Columns:
    """``columns`` with intervals of time and energy moved out to both ends of a `span_of_doubt`; None: as they are.

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


def _guess(times: float) -> str:
    """The unit that measured times seem to be in, in a sentence; blank where none of these."""
    units = {"milliseconds": 1e3, "microseconds": 1e6}
    near = [name for name, factor in units.items() if 1 / DOUBTED < times / factor < DOUBTED]
    return f" They look like {near[0]}: divide them by {units[near[0]]:,.0f}." if near else ""


def _median(log_ratio: Floats) -> str:
    return _times(float(np.exp(np.median(log_ratio))))


def _times(value: float) -> str:
    return f"{value:,.3g} times" if value < 1000 else f"{value:,.0f} times"
