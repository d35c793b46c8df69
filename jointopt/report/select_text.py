"""A selected plan for people: the plan, its limits, what relaxing them would buy, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from jointopt.report.plain import length, plan_entries
from jointopt.report.propose_text import plan_table
from jointopt.report.results import Limit, Relaxation, Selection
from jointopt.report.select_json import next_command
from jointopt.report.site import asks_for_site, site_table
from jointopt.report.table import figure, wrapped
from jointopt.spec.job import SITE_ENERGY

_WORDS = {
    "iteration_time_s": ("iteration time", "s"),
    "energy_j": ("energy of the GPUs", "J"),
    "facility_energy_j": ("energy of the site", "J"),
    "avg_power_w": ("mean power", "W per GPU"),
    "cluster_power_kw": ("power of the site", "kW"),
}
_BEST = {
    "time": "The fastest plan",
    "energy": "The plan of least energy",
    "edp": "The plan of least energy times time",
    "knee": "The knee of the front",
}
_BETTER = {"time": "faster", "energy": "less energy", "edp": "less energy times time"}
_POWER = ("avg_power_w", "cluster_power_kw")


def selection_text(selection: Selection) -> str:
    """The plan chosen (=) with those that a looser limit would buy (a, b, ...) or the two ends, and the limits."""
    others = _others(selection)
    marks = [*others]
    reference, *rows = plan_entries(selection.plans, [selection.row, *others.values()])
    lines = [
        *_title(selection),
        "",
        *plan_table(rows, reference, marks),
        *_legend(selection, others),
        *([""] if selection.limits else []),
        *(line for limit in selection.limits for line in _limit_lines(selection, limit, others)),
        *_remarks(selection),
        *_site(selection, others),
        "",
        "Next: take it apart"
        + ("" if "job.yaml" not in next_command(selection) else " (with your job's file)"),
        f"  {next_command(selection)}",
    ]
    return "\n".join(lines)


def _others(selection: Selection) -> dict[str, int]:
    """Rows to show beside the chosen one, by their mark."""
    if not selection.limits:
        named = zip(("f", "e"), selection.ends, strict=True)
        return {mark: row for mark, row in named if row != selection.row}
    rows = [_useful(limit).row for limit in selection.limits if _useful(limit).gain > 0]
    rows = [row for row in dict.fromkeys(rows) if row != selection.row]
    return dict(zip("abcd", rows, strict=False))


def _useful(limit: Limit) -> Relaxation:
    """What 5 % buy, or where that is nothing, what the nearest useful bound buys."""
    return limit.relaxed if limit.relaxed.gain > 0 or limit.nearest is None else limit.nearest


def _title(selection: Selection) -> list[str]:
    count = length(selection.plans)
    energy = ", hosts and PUE counted as energy" if selection.energy == SITE_ENERGY else ""
    kept = f"; {selection.satisfying:,} keep every limit" if selection.limits else ""
    measured = ", measured by real runs" if selection.measured else ""
    plans = f"{count:,} plan{'s' if count > 1 else ''} of {selection.source}{measured}{kept}."
    asked = (
        selection.reason
        if selection.reason == "as asked"
        else f"{selection.reason}; --objective changes that"
    )
    return wrapped(f"{selection.job_name or 'Plans'}: {plans}") + wrapped(
        f"{_BEST[selection.objective]} ({asked}){energy}:"
    )


def _legend(selection: Selection, others: dict[str, int]) -> list[str]:
    if selection.limits or not others:
        words = "= the plan chosen; Δ% is relative to it."
    else:
        words = "= the plan chosen, f the fastest, e that of least energy; Δ% is relative to the first."
    known = selection.plans.get("in_domain")
    if known is not None and any(known[row] is False for row in (selection.row, *others.values())):
        words += " ? outside of what was checked: its interval (±) is wider."
    return wrapped(words if selection.limits else f"{words} Limits (--max-...) choose another.")


def _limit_lines(selection: Selection, limit: Limit, others: dict[str, int]) -> list[str]:
    what, unit = _WORDS[limit.name]
    room = 100.0 * (1.0 - limit.held / limit.bound)
    reach = f", up to {figure(limit.held)}" if selection.at_high_end else ""
    text = f"{what} at most {figure(limit.bound)} {unit}: {figure(limit.value)}{reach}, {room:.1f} % room"
    if not limit.binds:
        return wrapped(f"- {text}; does not bind.", "    ")
    return wrapped(f"- {text}; binds. {_buys(selection, limit, others)}", "    ")


def _buys(selection: Selection, limit: Limit, others: dict[str, int]) -> str:
    first = _offer(selection, limit, limit.relaxed, others)
    if limit.relaxed.gain > 0:
        return f"5 % more ({first}."
    if limit.nearest is None:
        return "5 % more buys nothing, nor does any other amount buy 0.1 %."
    more = 100.0 * (limit.nearest.relaxed_to / limit.bound - 1.0)
    nearest = _offer(selection, limit, limit.nearest, others)
    return f"5 % more buys nothing; the least that helps is {more:.1f} % more ({nearest}."


def _offer(selection: Selection, limit: Limit, offer: Relaxation, others: dict[str, int]) -> str:
    mark = next((f" (row {mark})" for mark, row in others.items() if row == offer.row), "")
    gain = offer.gain_percent
    better = f"{gain:.1f}" if gain >= 0.1 else f"{gain:.1g}"
    better += f" % {_BETTER[selection.objective]}"
    return f"{figure(offer.relaxed_to)} {_WORDS[limit.name][1]}): {better}{mark}"


def _remarks(selection: Selection) -> list[str]:
    lines: list[str] = []
    if selection.binds_together:
        lines += wrapped("No limit binds alone: a better plan breaks several of them at once.")
    over = [
        _WORDS[limit.name][0]
        for limit in selection.limits
        if limit.high is not None and limit.high > limit.bound
    ]
    if over and not selection.at_high_end:
        lines += wrapped(
            f"The 90 % interval of {' and '.join(over)} goes beyond the limit; --at-high-end keeps that within."
        )
    powers = [limit.name for limit in selection.limits if limit.name in _POWER]
    if powers and not selection.measured:
        keys = " and ".join(f"constraints.{name}" for name in powers)
        lines += wrapped(
            f"The search kept plans for time and energy: with {keys} in the job file, `jointopt propose` may find a "
            f"better one under that power."
        )
    return lines


def _site(selection: Selection, others: dict[str, int]) -> Sequence[str]:
    job = selection.job
    if job is None or not (asks_for_site(job) or selection.energy == SITE_ENERGY):
        return []
    rows = [selection.row, *others.values()]
    time, energy = (selection.plans[name][rows] for name in ("iteration_time_s", "energy_j"))
    return ["", *site_table(job, ["=", *others], time, energy)]
