"""The words and tables of a report, from the document of a proposal and its chosen plans taken apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from jointopt.core.schema import LAYOUT_COLUMNS, POWER_LIMIT
from jointopt.jobs.job import Job
from jointopt.jobs.objectives import words
from jointopt.physics.cooling import THROTTLE_C, Cooler
from jointopt.report import tables
from jointopt.report.joint_saving import joint_words
from jointopt.report.layout_table import NEAR, Layout, steps
from jointopt.report.page import figures
from jointopt.report.page.choice import Entry
from jointopt.report.page.chosen_plan import Pictured, encoded
from jointopt.report.plans import (
    COMPARED,
    SITE_FIGURES,
    are_against_first,
    better_words,
    differing,
    half_difference,
    plan_words,
    probability_of_fitting,
    rate_words,
    short_clocks,
    shows_site,
)
from jointopt.report.published_plans import Beside, under_limits
from jointopt.report.reasons import reasons_of, wider_lines
from jointopt.surrogate.memory import FEASIBLE

Cells = Sequence[str]
Column = tuple[str, Cells]  # its head, and a cell of each row


@dataclass(frozen=True)
class Table:
    """A table of the page: its head, its rows, and what it is about in words for a screen reader."""

    caption: str
    head: Cells
    rows: Sequence[Cells]

    @classmethod
    def of(cls, caption: str, columns: Sequence[Column]) -> Table:
        """The table of columns, each its head and its cells."""
        return cls(caption, [head for head, _ in columns], list(zip(*(cells for _, cells in columns), strict=True)))


@dataclass(frozen=True)
class Content:
    """All that the template shows, and the figures that the page draws."""

    title: str
    lead: str
    alert: str  # what makes the answer none; blank where nothing does
    cards: Sequence[tuple[str, str, str]]
    plans: Table
    layouts: Table
    costs: Table | None  # of the site; None where the job states neither prices nor its PUE
    rates: str
    joint: str
    beside: Sequence[str]
    exports: Sequence[Mapping[str, Any]]
    nodes: Sequence[Mapping[str, Any]]
    assumed: Sequence[str]
    dropped: Table
    space: str
    provenance: Sequence[tuple[str, str]]
    job_file: str
    notes: Sequence[str]
    doubts: Sequence[str]  # what speaks against the first row, the strongest first, then against others
    next: Mapping[str, str] | None  # command that comes after, and a word on it
    data: Mapping[str, Any]


def content(
    job: Job, document: Mapping[str, Any], plans: Sequence[Pictured], cooler: Cooler, job_file: str, drift: float
) -> Content:
    """The report of a proposal's document; ``drift``: by how much parts priced now differ from the totals stored."""
    front: list[Entry] = document["front"]
    return Content(
        title=str(document["job"]), lead=_lead(job, front, document), alert=_alert(front),
        cards=_cards(front, document),
        plans=_plan_table(plans), layouts=_layout_table(document), costs=_cost_table(job, plans),
        rates=rate_words(job, plans[0].chosen.entry),
        joint=_joint(document.get("joint")), beside=_beside(document), exports=[_export(plan) for plan in plans],
        nodes=[_node(job, cooler, plan) for plan in plans], assumed=document.get("assumed") or [],
        dropped=_dropped(document.get("space") or {}), space=_space(document.get("space") or {}, job),
        provenance=_provenance(job, document), job_file=job_file,
        notes=_notes(job, plans, drift, document), doubts=document.get("doubts") or [],
        next=document.get("next"), data=_data(job, document, plans, cooler),
    )  # fmt: skip


def _lead(job: Job, front: Sequence[Entry], document: Mapping[str, Any]) -> str:
    training, cluster = job.training, job.cluster
    layouts = len(figures.by_layout(front))
    return (
        f"{job.model.name}, {training.global_batch_size:,} sequences of {training.seq_length:,} tokens in "
        f"{training.precision} with {training.software}, on {cluster.nodes:,} x {cluster.gpus_per_node} "
        f"{cluster.gpu.id}. {len(front):,} plan{'s' * (len(front) != 1)} of {layouts:,} "
        f"layout{'s' * (layouts != 1)} that no other plan beats in {words(job.objectives)}."
        + (f" Assumed {job.assumed_clocks}." if job.assumed_clocks else "")
    )


def _alert(front: Sequence[Entry]) -> str:
    """That no plan is expected to fit in memory, with the probabilities; blank where one is."""
    odds = [probability_of_fitting(entry) for entry in front]
    if max(odds) >= FEASIBLE:
        return ""
    return f"Not feasible: none of these plans is expected to fit in memory (probability {max(odds):.2f} at most)."


def _cards(front: Sequence[Entry], document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    first = front[0]
    name = "Fastest plan" if probability_of_fitting(first) >= FEASIBLE else "Would be fastest, but does not fit"
    cards = [(name, tables.result("iteration_time_s", first["iteration_time_s"]), _interval(first))]
    if first.get("mfu") is not None:
        cards.append(("MFU", f"{first['mfu']:.1%}", f"{first['tokens_per_s_per_gpu']:,.0f} tokens/s per GPU"))
    if first.get("energy_j") is None:
        return cards
    cards.append(("Energy of its iteration", tables.result("energy_j", first["energy_j"]),
                  f"{first['avg_power_w']:.0f} W per GPU"))  # fmt: skip
    least = min(front, key=lambda entry: float(entry["energy_j"]))
    less, more = 1.0 - least["energy_j"] / first["energy_j"], least["iteration_time_s"] / first["iteration_time_s"] - 1
    cards.append(("Least energy", f"{-less:+z.1%}", f"for {more:+z.1%} of time"))
    if joint := document.get("joint"):
        ends = [joint.get(f"largest_energy_saving_{end}") for end in ("low", "high")]
        sure = "" if None in ends or not any(ends) else f" (90 %: {100.0 * ends[0]:+z.0f} to {100.0 * ends[1]:+z.0f} %)"
        cards.append(("Joint search saves", f"{joint['largest_energy_saving']:z.1%}",
                      f"of energy at equal time, at most, against two steps{sure}"))  # fmt: skip
    return cards


def _interval(entry: Entry) -> str:
    low, high = entry.get("iteration_time_s_low"), entry.get("iteration_time_s_high")
    if not low or not high:
        return ""
    return f"90 %: {tables.result('iteration_time_s', low)} to {tables.result('iteration_time_s', high)}"


# of figures of a plan by name: their head, and the format of cells that their head has the unit of
_HEADS = {
    "iteration_time_s": ("time", ""), "energy_j": ("energy", ""), "avg_power_w": ("W/GPU", "{:.0f}"),
    "peak_memory_gib": ("memory", ""), "fit_probability": ("fits", "{:.2f}"),
    "tokens_per_s_per_gpu": ("tok/s /GPU", "{:,.0f}"), "mfu": ("MFU", "{:.1%}"),
}  # fmt: skip
_PLAN_CAPTION = "Chosen plans; Δ% is against the first"
_COMPARED = ", ± its 90 % interval; better: probability, %, of being really faster | leaner"


def _plan_table(plans: Sequence[Pictured]) -> Table:
    entries = [plan.chosen.entry for plan in plans]
    varied = differing(entries) - {"stage_clock_mhz"}
    columns = [
        ("", [plan.letter for plan in plans]),
        ("plan", [plan.chosen.name for plan in plans]),
        ("layout", [_layout_words(entry, varied) for entry in entries]),
        ("clock, MHz", [short_clocks(entry["stage_clock_mhz"], 10) for entry in entries]),
        _figure("iteration_time_s", entries),
        ("90 %", list(map(_ends, entries))),
        _against("time", entries),
        _figure("energy_j", entries),
        _against("energy", entries),
        ("better", better_words(entries)),
        *(_figure(name, entries) for name in _HEADS if name not in COMPARED.values()),
    ]
    return Table.of(_PLAN_CAPTION + _COMPARED * are_against_first(entries), columns)


def _figure(name: str, entries: Sequence[Entry]) -> Column:
    """The column of the figure of that name."""
    head, form = _HEADS[name]
    return head, [_form(entry, name, form) if form else _result(entry, name) for entry in entries]


def _cost_table(job: Job, plans: Sequence[Pictured]) -> Table | None:
    """Energy, carbon and money at the site's meter, and of the whole run, per chosen plan."""
    entries = [plan.chosen.entry for plan in plans]
    known = [name for name in SITE_FIGURES if all(entry.get(name) is not None for entry in entries)]
    if not shows_site(job) or not known:
        return None
    columns: list[Column] = [("", [plan.letter for plan in plans])]
    for name in known:
        _, head, units = SITE_FIGURES[name]
        columns.append((head, [_cost(entry[name], units, job.cluster.currency) for entry in entries]))
    caption = f"At the site's meter (PUE {job.cluster.pue:g}), per iteration"
    if job.training.run_iterations is not None:
        caption += f", and for a run of {job.training.run_tokens:,} tokens"
    return Table.of(caption, columns)


def _cost(value: float, units: tables.Units, currency: str) -> str:
    return tables.quantity(value, units) if units else f"{tables.figure(value)} {currency}".strip()


def _layout_words(entry: Entry, varied: frozenset[str] | set[str]) -> str:
    wanted = (*LAYOUT_COLUMNS, POWER_LIMIT)
    return plan_words({name: value for name, value in entry.items() if name in wanted}, varied)


def _result(entry: Entry, name: str) -> str:
    return "-" if entry.get(name) is None else tables.result(name, entry[name])


def _form(entry: Entry, name: str, form: str) -> str:
    return "-" if entry.get(name) is None else form.format(entry[name])


def _ends(entry: Entry) -> str:
    low, high = (entry.get(f"iteration_time_s_{end}") for end in ("low", "high"))
    return f"{_percent(low, entry)}\u2009..\u2009{_percent(high, entry)}" if low and high else "-"


def _percent(value: float, entry: Entry) -> str:
    return f"{100 * (value / entry['iteration_time_s'] - 1):+z.0f}%"


def _against(name: str, entries: Sequence[Entry]) -> Column:
    """The column of time or energy against the first plan, with half of its interval where that is known."""
    column, first = COMPARED[name], entries[0].get(COMPARED[name])
    halves = [math.nan, *(half_difference(entry, name) for entry in entries[1:])]
    if not are_against_first(entries):
        halves = [math.nan] * len(entries)
    cells = [
        "-" if entry.get(column) is None or not first
        else tables.plus_minus([f"{100 * (entry[column] / first - 1):+z.1f}"], [half])[0]
        for entry, half in zip(entries, halves, strict=True)
    ]  # fmt: skip
    return "Δ%", cells


def _layout_table(document: Mapping[str, Any]) -> Table:
    """One row per split of the GPUs: its fastest plan, knee and least energy, and the step from the one above."""
    layouts = [Layout(**one) for one in document.get("layouts") or []]
    if not layouts:
        return _front_layouts(document["front"])
    varied = differing([layout.plans[0] for layout in layouts]) - {"stage_clock_mhz"}
    columns = [
        ("rank", [str(layout.rank) for layout in layouts]),
        ("layout", [_layout_words(layout.plans[0], varied) for layout in layouts]),
        ("fastest", [_point(layout.plans[0]) for layout in layouts]),
        ("knee", [_point(layout.plans[len(layout.plans) // 2]) for layout in layouts]),
        ("least energy", [_point(layout.plans[-1]) for layout in layouts]),
        ("than the one above", [why or "-" for why in steps(layouts)]),
        ("on front", [str(layout.on_front or "-") for layout in layouts]),
        ("near", [f"{layout.near} within {NEAR:.0%}" if layout.near else "-" for layout in layouts]),
    ]
    return Table.of("Splits of the GPUs by the time of their fastest plan, each with its clocks condensed", columns)


def _point(plan: Entry) -> str:
    parts = [_result(plan, "iteration_time_s"), _result(plan, "energy_j"), short_clocks(plan["stage_clock_mhz"], 10)]
    return ", ".join(parts) + " MHz"


def _front_layouts(front: Sequence[Entry]) -> Table:
    """One row per layout of the front: where on it the layout is best, and its clocks there."""
    groups = figures.by_layout(front)
    varied = differing([group[0] for group in groups]) - {"stage_clock_mhz"}
    fastest = [group[0] for group in groups]
    columns = [
        ("layout", [_layout_words(entry, varied) for entry in fastest]),
        ("plans", [str(len(group)) for group in groups]),
        ("clocks, MHz", list(map(_clocks, groups))),
        *(_between(name, groups) for name in COMPARED.values()),
        *(_figure(name, fastest) for name in ("peak_memory_gib", "fit_probability")),
    ]
    return Table.of("Layouts of the front, by their fastest plan", columns)


def _clocks(group: Sequence[Entry]) -> str:
    clocks = [clock for entry in group for clock in entry["stage_clock_mhz"]]
    return tables.span(f"{min(clocks):.0f}", f"{max(clocks):.0f}", " to ")


def _between(name: str, groups: Sequence[Sequence[Entry]]) -> Column:
    """The column of that figure from each group's fastest plan to the slowest, under any objectives."""
    cells = []
    for group in groups:
        ordered = sorted(group, key=lambda entry: float(entry.get(name) or 0.0), reverse=name == "energy_j")
        cells.append(tables.span(_result(ordered[0], name), _result(ordered[-1], name), " to "))
    return _HEADS[name][0], cells


def _joint(joint: Mapping[str, Any] | None) -> str:
    if not joint:
        return ""
    return joint_words(joint)


def _beside(document: Mapping[str, Any]) -> list[str]:
    space = document.get("space") or {}
    layouts = space.get("searched_layouts", space.get("feasible_layouts", 0))
    return [f"{Beside(**plan).sentence(layouts)}." for plan in document.get("beside") or []]


def _export(plan: Pictured) -> dict[str, Any]:
    return {"letter": plan.letter, "name": plan.chosen.name, "plan": plan.text, **asdict(plan.started)}


def _node(job: Job, cooler: Cooler, plan: Pictured) -> dict[str, Any]:
    """A node whose GPUs all are of the hottest stage: temperature by row, the first row at the inlet."""
    positions = {  # of the stages with GPUs there
        name: max((celsius for celsius in values.tolist() if celsius == celsius), default=math.nan)
        for name, values in plan.parts.stage_position_c.items()
    }
    per_node, throttle_c = job.cluster.gpus_per_node, job.cluster.gpu.throttle_temperature_c or THROTTLE_C
    if not all(math.isfinite(value) for value in positions.values()):
        return {"letter": plan.letter, "rows": []}
    behind = per_node // 2 if len(positions) > 1 else 0
    counts = {"inlet": per_node - behind} | ({"exhaust": behind} if behind else {})
    rows = [
        {"name": name, "celsius": f"{celsius:.0f}", "count": count, "share": _share(celsius, cooler, throttle_c)}
        for (name, count), celsius in zip(counts.items(), positions.values(), strict=True)
    ]
    stage = int(plan.parts.stage_temperature_c.argmax()) + 1
    air = f"{cooler.inlet_c:.0f} °C" + (f", {cooler.hottest_inlet_c:.0f} °C behind it" if len(rows) > 1 else "")
    return {"letter": plan.letter, "rows": rows, "stage": stage, "air": air, "throttle": f"{throttle_c:.0f}"}


def _share(celsius: float, cooler: Cooler, throttle_c: float) -> str:
    """The share of the way from the air to throttling at which a temperature lies, in percent."""
    return f"{100 * min(max((celsius - cooler.inlet_c) / (throttle_c - cooler.inlet_c), 0.0), 1.0):.0f}"


def _dropped(space: Mapping[str, Any]) -> Table:
    reasons = sorted((space.get("infeasible") or {}).items(), key=lambda item: -item[1])
    columns = [("reason", [reason for reason, _ in reasons]), ("layouts", [f"{count:,}" for _, count in reasons])]
    return Table.of("Layouts dropped, by the first rule that they break", columns)


def _space(space: Mapping[str, Any], job: Job) -> str:
    if not space:
        return ""
    return (
        f"{space['considered']:,} combinations were considered, "
        f"{space['layouts']:,} layouts keep the rules{under_limits(job)}, {space['feasible_layouts']:,} are feasible; "
        f"{space['covered_plans']:,} plans are covered by the answer, {space['evaluated_plans']:,} were evaluated."
    )


def _provenance(job: Job, document: Mapping[str, Any]) -> list[tuple[str, str]]:
    informed = ", ".join(f"{count:,} in {place}" for place, count in (document.get("informed_by") or {}).items())
    study = document.get("study") or {}
    seconds = sum((document.get("seconds") or {}).values())
    rows = [
        ("jointopt", version("jointopt")), ("surrogate", str(document.get("surrogate"))),
        ("seed", str(document.get("seed"))),
        ("measured runs on such a cluster", informed or "none"), ("seconds of the search", f"{seconds:.1f}"),
        ("PUE", f"{job.cluster.pue:g} ({job.cluster.origin('pue')})"),
    ]  # fmt: skip
    if study.get("name"):
        rows.append(("study", f"{study['name']} in {study['storage']}"))
    return rows


def _notes(job: Job, plans: Sequence[Pictured], drift: float, document: Mapping[str, Any]) -> list[str]:
    notes = []
    if drift > 0.005:
        notes.append(
            f"Parts, passes and power are priced now, without the measured runs or files that moved the proposal: "
            f"their totals differ from it by up to {drift:.1%}."
        )
    reasons = reasons_of([plan.chosen.entry for plan in plans], str(document.get("surrogate") or ""), job)
    return notes + wider_lines(reasons, [plan.letter for plan in plans], "interval")


def _data(job: Job, document: Mapping[str, Any], plans: Sequence[Pictured], cooler: Cooler) -> dict[str, Any]:
    """The figures, by the place where the page draws them; those of one plan by its letter."""
    front, joint = document["front"], document.get("joint") or {}
    powered = all(entry.get("energy_j") is not None for entry in front)
    shown: dict[str, Any] = {"time": figures.part_figure(plans, "time_s", tables.TIME_UNITS)}
    if powered:
        lettered = [(plan.letter, plan.chosen) for plan in plans]
        shown["front"] = figures.front_figure(front, lettered, joint.get("two_step_front") or [])
        shown["energy"] = figures.part_figure(plans, "energy_by_part_j", tables.ENERGY_UNITS)
    shown["memory"] = figures.part_figure(plans, "memory_gib", tables.MEMORY_UNITS)
    throttle_c = job.cluster.gpu.throttle_temperature_c or THROTTLE_C
    of_plans = {}
    for plan in plans:
        of_plans[plan.letter] = {"passes": encoded(plan.timeline)}
        if powered:
            of_plans[plan.letter] |= {"stages": figures.stage_figure(plan), "power": figures.power_figure(plan)}
            heat = figures.heat_figure(plan, cooler, throttle_c)
            of_plans[plan.letter] |= {"heat": heat} if heat else {}
    return {"figures": shown, "plans": of_plans}
