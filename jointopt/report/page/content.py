"""The words and tables of a report, from the document of a proposal and its chosen plans taken apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from jointopt.core.quote import our_command
from jointopt.core.schema import LAYOUT_COLUMNS, POWER_LIMIT
from jointopt.jobs.job import Job
from jointopt.jobs.objectives import OBJECTIVE_COLUMNS, OBJECTIVES, objective_words
from jointopt.physics.cooling import THROTTLE_C, Cooler
from jointopt.report import tables
from jointopt.report.alternatives import AlternativePlan, joint_words, under_limits
from jointopt.report.decision import SLOWER, recommended_entry
from jointopt.report.doubts import reasons_of, wider_lines
from jointopt.report.page import figures
from jointopt.report.page.choice import Entry, PlanPicture, encoded_passes
from jointopt.report.plans import (
    COMPARED,
    NEAR,
    SITE_FIGURES,
    LayoutSummary,
    against_first,
    are_against_first,
    better_words,
    difference_column,
    differing_columns,
    plan_words,
    probability_of_fitting,
    rate_words,
    run_words,
    short_clocks,
    shows_site,
    steps_in_words,
)
from jointopt.surrogate.memory import FEASIBLE, NOT_TIGHT

Column = tuple[str, Sequence[str]]  # its head, and a cell of each row
Card = tuple[str, str, str]  # label, value, and a note
# of figures of a plan by name: their head, and the format of cells that their head has the unit of
_HEADS = {
    "iteration_time_s": ("time", ""), "energy_j": ("energy", ""), "avg_power_w": ("W/GPU", "{:.0f}"),
    "peak_memory_gib": ("memory", ""), "fit_probability": ("fits", "{:.2f}"),
    "tokens_per_s_per_gpu": ("tok/s /GPU", "{:,.0f}"), "mfu": ("MFU", "{:.1%}"),
}  # fmt: skip
_COMPARED = ", ± its 90 % interval; better: probability, %, of being really faster | leaner"


def table_of(caption: str, columns: Sequence[Column]) -> dict[str, Any]:
    """A table of the page: its head, its rows, and in its caption what it is about."""
    return {
        "caption": caption, "head": [head for head, _ in columns],
        "rows": list(zip(*(cells for _, cells in columns), strict=True)),
    }  # fmt: skip


def content(
    job: Job, document: Mapping[str, Any], plans: Sequence[PlanPicture], cooler: Cooler, job_file: str, drift: float
) -> dict[str, Any]:
    """What the template shows of a proposal's document, and the figures that the page draws.

    ``drift``: by how much parts priced now differ from the totals stored.
    """
    training, cluster, front = job.training, job.cluster, document["front"]
    row, why = recommended_entry(job, front)
    words = plan_words(front[row], set(front[row]) & set(LAYOUT_COLUMNS) | {"stage_clock_mhz"})
    layouts, space, joint = len(figures.by_layout(front)), document.get("space") or {}, document.get("joint")
    lead = (
        f"{job.model_words}, {training.global_batch_size:,} sequences of {training.seq_length:,} tokens in "
        f"{training.precision} with {training.software}, on {cluster.nodes:,} x {cluster.gpus_per_node} "
        f"{cluster.gpu.id}. {len(front):,} plan{'s' * (len(front) != 1)} of {layouts:,} "
        f"layout{'s' * (layouts != 1)} that no other plan beats in {objective_words(job.objectives)}."
    )
    most = max(probability_of_fitting(entry) for entry in front)
    alert = f"Not feasible: none of these plans is expected to fit in memory (probability {most:.2f} at most)."
    searched = space.get("searched_layouts", space.get("feasible_layouts", 0))
    dropped = sorted((space.get("infeasible") or {}).items(), key=lambda item: -item[1])
    considered = space and (
        f"{space['considered']:,} combinations were considered, "
        f"{space['layouts']:,} layouts keep the rules{under_limits(job)}, {space['feasible_layouts']:,} are feasible; "
        f"{space['covered_plans']:,} plans are covered by the answer, {space['evaluated_plans']:,} were evaluated."
    )
    reasons = reasons_of([plan.chosen.entry for plan in plans], str(document.get("surrogate") or ""), job)
    moved = (
        f"Parts, passes and power are priced now, without the measured runs or files that moved the proposal: "
        f"their totals differ from it by up to {drift:.1%}."
    )
    return {
        "title": str(document["job"]), "alert": "" if most >= FEASIBLE else alert,
        "lead": lead + (f" Assumed {job.assumed_clocks}." if job.assumed_clocks else ""),
        "recommended": f"Plan {row + 1:,} of {len(front):,}, {why}: {words}." if len(front) > 1 else f"{why}: {words}.",
        "letter": next((plan.letter for plan in plans if "recommended" in plan.chosen.name), plans[0].letter),
        "cards": _cards(job, document, front[row]),
        "plans": _plan_table(plans), "layouts": _layout_table(document), "costs": _cost_table(job, plans),
        "rates": rate_words(job, plans[0].chosen.entry), "joint": joint_words(joint) if joint else "",
        "beside": [f"{AlternativePlan(**plan).sentence(searched)}." for plan in document.get("beside") or []],
        "exports": [{"letter": plan.letter, "name": plan.chosen.name, "plan": plan.text, **plan.started}
                    for plan in plans],
        "nodes": [_node_temperatures(job, cooler, plan) for plan in plans], "assumed": document.get("assumed") or [],
        "dropped": table_of("Layouts dropped, by the first rule that they break", [
            ("reason", [reason for reason, _ in dropped]), ("layouts", [f"{count:,}" for _, count in dropped]),
        ]),
        "space": considered or "", "provenance": _provenance(job, document), "job_file": job_file,
        "notes": [moved] * (drift > 0.005) + wider_lines(reasons, [plan.letter for plan in plans], "interval"),
        "doubts": document.get("doubts") or [], "next": document.get("next"),
        "data": _figures_by_place(job, document, plans, cooler) | {"choice": _choice(job, document, row)},
    }  # fmt: skip


def _cards(job: Job, document: Mapping[str, Any], plan: Entry) -> list[Card]:
    """The recommended plan's time, what it gives against the reference, its memory, and what joint search saves."""
    joint = document.get("joint")
    name = "Time" if probability_of_fitting(plan) >= FEASIBLE else "Time, would it fit"
    time, low, high = (_result(plan, f"iteration_time_s{end}") for end in ("", "_low", "_high"))
    cards = [(name, time, "" if "-" in (low, high) else f"90 %: {low} to {high}")]
    if plan.get("time_to_train_s") is not None:
        whole, _, how = run_words(job, plan).partition(" to train, ")
        cards.insert(0, ("Time to train", whole, how))
    usual = f"the baseline, {base}" if (base := document.get("baseline")) else "the fastest plan at the top clock"
    for quantity in COMPARED:
        ends = against_first(plan, quantity)
        if all(map(math.isfinite, ends)):
            value, low, high = (f"{end:+z.1f}" for end in ends)
            cards.append((f"{quantity.title()} against {usual}", f"{value} %", f"90 %: {low} to {high} %"))
    if plan.get("mfu") is not None:
        cards.append(("MFU", f"{plan['mfu']:.1%}", f"{plan['tokens_per_s_per_gpu']:,.0f} tokens/s per GPU"))
    fits, gib = probability_of_fitting(plan), job.cluster.gpu.memory_gib
    cards.append(("Memory", _result(plan, "peak_memory_gib"), f"of {gib:.0f} GiB; fits with probability {fits:.2f}"))
    if joint:
        savings = [joint.get(f"largest_energy_saving_{end}") for end in ("low", "high")]
        percent = [f"{100.0 * end:+z.0f}" for end in savings if end is not None]
        sure = f" (90 %: {' to '.join(percent)} %)" if len(percent) == 2 and any(savings) else ""
        saved = OBJECTIVE_COLUMNS[joint.get("objectives", OBJECTIVES)[1]].word.replace("_", " ")
        note = f"of {saved} at equal time, at most, against two steps{sure}"
        cards.append(("Joint search saves", f"{joint['largest_energy_saving']:z.1%}", note))
    return cards


def _choice(job: Job, document: Mapping[str, Any], row: int) -> dict[str, Any] | None:
    """What the page chooses plans by, as limits and prices move; None where a front has one plan or no energies."""
    front, cluster = document["front"], job.cluster
    if len(front) < 2 or any(entry.get("energy_j") is None for entry in front):
        return None
    axes, study = figures.Axes(front), (document.get("study") or {}).get("name")
    target = (document.get("next") or {}).get("to")
    started = our_command("export", plan=f"{study}:NUMBER", to=target) if study else ""
    return {
        "time_s": [entry["iteration_time_s"] for entry in front], "energy_j": [entry["energy_j"] for entry in front],
        "fits": [probability_of_fitting(entry) for entry in front],
        "words": [plan_words(entry, set(entry) & set(LAYOUT_COLUMNS) | {"stage_clock_mhz"}) for entry in front],
        "recommended": row, "slower": SLOWER, "sure": NOT_TIGHT, "start": started,
        "reference": [(document.get("reference") or front[0]).get(name) for name in COMPARED.values()],
        "time_unit": axes.time[0], "energy_unit": axes.energy[0], "gpus": cluster.num_gpus,
        "pue": cluster.pue, "host_w": cluster.host_power_w * cluster.nodes,
        "host_share": cluster.host_load_share, "currency": cluster.currency,
        "given": {
            "price_gpu": cluster.price_per_gpu_hour, "price_kwh": cluster.price_per_kwh,
            "carbon": cluster.carbon_kg_per_kwh, "deadline": job.constraints.iteration_time_s,
            "kw": job.constraints.cluster_power_kw,
        },
    }  # fmt: skip


def _result(entry: Entry, name: str) -> str:
    """A result of an entry, or an end of its interval, with its unit; a hyphen where it is not known."""
    value = entry.get(name)
    return "-" if value is None else tables.result_text(name.removesuffix("_low").removesuffix("_high"), value)


def _figure_columns(names: Sequence[str], entries: Sequence[Entry]) -> list[Column]:
    """The columns of the figures of those names."""
    columns: list[Column] = []
    for name in names:
        head, form = _HEADS[name]
        if form:
            cells = ["-" if entry.get(name) is None else form.format(entry[name]) for entry in entries]
        else:
            cells = [_result(entry, name) for entry in entries]
        columns.append((head, cells))
    return columns


def _layout_words(entries: Sequence[Entry]) -> list[str]:
    """The layout of each entry in words, in what the entries differ."""
    varied = differing_columns(entries) - {"stage_clock_mhz"}
    wanted = (*LAYOUT_COLUMNS, POWER_LIMIT)
    return [plan_words({name: v for name, v in entry.items() if name in wanted}, varied) for entry in entries]


def _plan_table(plans: Sequence[PlanPicture]) -> dict[str, Any]:
    """One row per chosen plan: its layout, clocks and predictions, and how it differs from the first."""
    entries = [plan.chosen.entry for plan in plans]
    sure, first, intervals = are_against_first(entries), [entries[0]] * len(entries), []
    time_change, energy_change = (
        [cell.strip() for cell in difference_column(name, entries, first, entries if sure else ()).cells]
        for name in COMPARED
    )
    for entry in entries:
        ends = [entry.get(f"iteration_time_s_{end}") for end in ("low", "high")]
        percent = [f"{100 * (end / entry['iteration_time_s'] - 1):+z.0f}%" for end in ends if end]
        intervals.append("\u2009..\u2009".join(percent) if all(ends) else "-")
    time, energy = _figure_columns(list(COMPARED.values()), entries)
    columns = [
        ("", [plan.letter for plan in plans]),
        ("plan", [plan.chosen.name for plan in plans]),
        ("layout", _layout_words(entries)),
        ("clock, MHz", [short_clocks(entry["stage_clock_mhz"], 10) for entry in entries]),
        time, ("90 %", intervals), ("Δ%", time_change),
        energy, ("Δ%", energy_change), ("better", better_words(entries)),
        *_figure_columns([name for name in _HEADS if name not in COMPARED.values()], entries),
    ]  # fmt: skip
    return table_of("Chosen plans; Δ% is against the first" + _COMPARED * sure, columns)


def _cost_table(job: Job, plans: Sequence[PlanPicture]) -> dict[str, Any] | None:
    """Energy, carbon and money at the site's meter, and of the whole run, per chosen plan."""
    entries = [plan.chosen.entry for plan in plans]
    known = [name for name in SITE_FIGURES if all(entry.get(name) is not None for entry in entries)]
    if not shows_site(job) or not known:
        return None
    columns: list[Column] = [("", [plan.letter for plan in plans])]
    for name in known:
        (_, head, units), values = SITE_FIGURES[name], [entry[name] for entry in entries]
        money = [f"{tables.figure(value)} {job.cluster.currency}".strip() for value in values]
        columns.append((head, [tables.quantity(value, units) for value in values] if units else money))
    caption = f"At the site's meter (PUE {job.cluster.pue:g}), per iteration"
    if job.training.run_iterations is not None:
        caption += f", and for a run of {job.training.run_tokens:,} tokens"
    return table_of(caption, columns)


def _layout_table(document: Mapping[str, Any]) -> dict[str, Any]:
    """One row per split of the GPUs: its fastest plan, knee and least energy, and the step from the one above."""
    layouts = [LayoutSummary(**one) for one in document.get("layouts") or []]

    def point(plan: Entry) -> str:
        clocks = short_clocks(plan["stage_clock_mhz"], 10)
        return f"{_result(plan, 'iteration_time_s')}, {_result(plan, 'energy_j')}, {clocks} MHz"

    columns = [
        ("rank", [str(layout.rank) for layout in layouts]),
        ("layout", _layout_words([layout.plans[0] for layout in layouts])),
        ("fastest", [point(layout.plans[0]) for layout in layouts]),
        ("knee", [point(layout.plans[len(layout.plans) // 2]) for layout in layouts]),
        ("least energy", [point(layout.plans[-1]) for layout in layouts]),
        ("than the one above", [why or "-" for why in steps_in_words(layouts)]),
        ("on front", [str(layout.on_front or "-") for layout in layouts]),
        ("near", [f"{layout.near} within {NEAR:.0%}" if layout.near else "-" for layout in layouts]),
    ]
    return table_of("Splits of the GPUs by the time of their fastest plan, each with its clocks condensed", columns)


def _node_temperatures(job: Job, cooler: Cooler, plan: PlanPicture) -> dict[str, Any]:
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
    rows = []
    for (name, count), celsius in zip(counts.items(), positions.values(), strict=True):
        way = (celsius - cooler.inlet_c) / (throttle_c - cooler.inlet_c)  # from the air to throttling
        share = f"{100 * min(max(way, 0.0), 1.0):.0f}"
        rows.append({"name": name, "celsius": f"{celsius:.0f}", "count": count, "share": share})
    stage = int(plan.parts.stage_temperature_c.argmax()) + 1
    air = f"{cooler.inlet_c:.0f} °C" + (f", {cooler.hottest_inlet_c:.0f} °C behind it" if len(rows) > 1 else "")
    return {"letter": plan.letter, "rows": rows, "stage": stage, "air": air, "throttle": f"{throttle_c:.0f}"}


def _provenance(job: Job, document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What made the proposal: versions, measured runs, and where it is stored."""
    informed = ", ".join(f"{count:,} in {place}" for place, count in (document.get("informed_by") or {}).items())
    study, seconds = document.get("study") or {}, sum((document.get("seconds") or {}).values())
    rows = [
        ("jointopt", version("jointopt")), ("surrogate", str(document.get("surrogate"))),
        ("seed", str(document.get("seed"))),
        ("measured runs on such a cluster", informed or "none"), ("seconds of the search", f"{seconds:.1f}"),
        ("PUE", f"{job.cluster.pue:g} ({job.cluster.origin('pue')})"),
    ]  # fmt: skip
    return rows + ([("study", f"{study['name']} in {study['storage']}")] if study.get("name") else [])


def _figures_by_place(
    job: Job, document: Mapping[str, Any], plans: Sequence[PlanPicture], cooler: Cooler
) -> dict[str, Any]:
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
    of_plans: dict[str, dict[str, Any]] = {plan.letter: {"passes": encoded_passes(plan.timeline)} for plan in plans}
    for plan in plans if powered else ():
        heat = figures.heat_figure(plan, cooler, throttle_c)
        of_plans[plan.letter] |= {"stages": figures.stage_figure(plan), "power": figures.power_figure(plan)}
        of_plans[plan.letter] |= {"heat": heat} if heat else {}
    return {"figures": shown, "plans": of_plans}
