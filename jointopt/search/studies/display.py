"""Notes and plots of a study for optuna-dashboard: the front in words and as a figure, and its plans explained."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.quote import our_command
from jointopt.core.schema import DEGREES, LAYOUT_COLUMNS, POWER_LIMIT, Columns, Floats, Ints
from jointopt.jobs.objectives import objective_words
from jointopt.jobs.plans.text import format_plan
from jointopt.search.pareto import OBJECTIVES, evenly_spaced, front_rows, objectives, take
from jointopt.search.studies.storage import set_attributes

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

LISTED = 12  # plans of the front in the study's note, each with a note of its own
DRAWN = 400  # plans beside the front in the plot, so that it stays small
PIECE = 20_000  # characters of an attribute: escaped, they fit into the smallest text column of any database
FIT_NOTE = "peak_memory_gib", "avg_power_w"
PLOT = "dashboard:plot_data:"  # attributes of a study in which optuna-dashboard looks for plotly figures of its own


def plan_text(plans: Columns, row: int) -> str:
    """The plan as `jointopt explain --plan` takes it."""
    layout = {name: plans[name] for name in (*LAYOUT_COLUMNS, POWER_LIMIT) if name in plans}
    return format_plan(layout, plans["stage_clock_mhz"], row)


def front_note(plans: Columns, goals: Sequence[str] = OBJECTIVES) -> str:
    """The front in words, in Markdown: its plans (at most `LISTED`, evenly) and what each costs beside the fastest."""
    rows = front_rows(plans, goals)
    if not len(rows):
        return "## The front\n\nNo plan of this study keeps its constraints.\n"
    listed = rows[evenly_spaced(take(plans, rows), LISTED)]
    more = goals[len(OBJECTIVES) :]
    lines = [f"| {plans[OBJECTIVES[0]][row]:.4g} | {plans[OBJECTIVES[1]][row]:.6g} | "
             f"{''.join(f'{plans[name][row]:.4g} | ' for name in more)}{_relative(plans, row, rows[0])} "
             f"| `{plan_text(plans, row)}` |" for row in listed.tolist()]  # fmt: skip
    beaten = "both time and energy" if not more else f"time, energy, {' and '.join(more)} together"
    beaten = beaten if tuple(goals[:2]) == OBJECTIVES else objective_words(goals)
    head = (
        f"## The front: {len(rows)} plans that no other one beats in {beaten}\n\n"
        "A feasible trial has constraint `violation` <= 0: the largest relative excess over any limit.\n\n"
        f"| time s | energy J | {''.join(f'{name} | ' for name in more)}beside the fastest | plan |\n"
        f"|---|---|{'---|' * len(more)}---|---|\n"
    )
    return head + "\n".join(lines) + "\n"


_SHARED_WORK = {  # what GPUs share, by degree
    "tp": "every layer over {} GPUs (tp)", "pp": "layers over {} stages (pp)", "vpp": "{} chunks a stage (vpp)",
    "cp": "every sequence over {} GPUs (cp)", "ep": "experts over {} GPUs (ep)",
}  # fmt: skip


def plan_note(plans: Columns, row: int, fastest: int) -> str:
    """One plan of the front explained beside the ``fastest``, in Markdown: how GPUs share the work, and clocks."""
    degree = {name: int(plans[name][row]) for name in ("dp", *_SHARED_WORK)}
    parts = [f"{degree['dp']} replicas (dp)"]
    parts += [words.format(degree[name]) for name, words in _SHARED_WORK.items() if degree[name] > 1]
    stages = plans["stage_clock_mhz"][row]
    low, high = np.nanmin(stages), np.nanmax(stages)
    slower = f"Stages run at {high:g} MHz, down to {low:g} MHz where a stage has slack."
    known = [f"{name} {plans[name][row]:.4g}" for name in FIT_NOTE if name in plans]
    clocks = f"{slower if low < high else f'All GPUs run at {high:g} MHz.'} {', '.join(known)}".strip()
    gpus = math.prod(degree[name] for name in DEGREES)
    return (
        f"On the front: {_relative(plans, row, fastest)} beside the fastest plan.\n\n"
        f"{gpus:,} GPUs: {', '.join(parts)}; micro-batches of {int(plans['micro_batch_size'][row])}.\n\n"
        f"{clocks}\n\n`{our_command('explain', 'JOB', plan=plan_text(plans, row))}`\n"
    )


def _relative(plans: Columns, row: int, fastest: int) -> str:
    time_s, energy_j = (values[row] / values[fastest] - 1.0 for values in objectives(plans))
    return f"time {time_s:+z.1%}, energy {energy_j:+z.1%}"


def front_figure(plans: Columns, goals: Sequence[str] = OBJECTIVES) -> dict[str, Any]:
    """The plans and their front as a plotly figure; on hover a plan of the front says what it is.

    Colours are the first goal beyond time and energy.
    """
    front = front_rows(plans, goals)
    others = np.setdiff1d(np.arange(len(plans["violation"])), front)
    others = others[:: -(-len(others) // DRAWN) or 1]
    feasible = plans["violation"][others] <= 0.0
    traces: list[dict[str, Any]] = []
    for rows, name, mode, color in (
        (others[~feasible], "breaks a constraint", "markers", "#bbbbbb"),
        (others[feasible], "feasible", "markers", "#7fa7d6"),
        (front, "front", "lines+markers", "#d62728"),
    ):
        x, y = (_figures(values[rows]) for values in objectives(plans))
        traces.append({"type": "scatter", "x": x, "y": y, "name": name, "mode": mode, "marker": {"color": color}})
    traces[-1]["text"] = [plan_text(plans, row) for row in front.tolist()]
    for name in goals[len(OBJECTIVES) :][:1]:
        scale = {"colorscale": "Viridis", "showscale": True, "colorbar": {"title": {"text": name}}}
        traces[-1] |= {"mode": "markers", "marker": {"color": _figures(plans[name][front])} | scale}
    titles = ("iteration time (s)", "energy per iteration (J)")
    values = zip("xy", titles, objectives(plans), strict=True)
    axes = {f"{name}axis": {"title": {"text": title}} | _shown_part(v, front) for name, title, v in values}
    return {"data": traces, "layout": {"title": {"text": "The front"}, "hovermode": "closest", **axes}}


def _shown_part(values: Floats, front: Ints) -> dict[str, Any]:
    """The range of an axis: the front and its length beyond it, so that no outlier squeezes it; a double click has all.

    A front over more than a decade has a logarithmic axis.
    """
    if not len(front):
        return {}
    low, high = float(values[front].min()), float(values[front].max())
    if high > 10.0 * low > 0.0:
        return {"type": "log", "range": [math.log10(0.8 * low), math.log10(1.25 * high)]}
    length = max(high - low, 0.1 * high)
    near = values[values <= high + length]
    return {"range": [low - 0.08 * length, float(near.max()) + 0.08 * length]}


def _figures(values: Floats) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]


def show(
    storage: BaseStorage, study: str, plans: Columns, note: str, numbers: Sequence[int],
    background: Columns | None = None, goals: Sequence[str] = OBJECTIVES,
) -> None:  # fmt: skip
    """Set what optuna-dashboard shows of a study beside its trials, which have these ``numbers``.

    The figure draws the ``background``, by default the ``plans`` themselves.
    """
    study_id = storage.get_study_id_from_name(study)
    attributes = dict(note_attributes(f"{note}\n{front_note(plans, goals)}".strip()))
    figure = front_figure(plans if background is None else background, goals)
    attributes |= dict(pieces(f"{PLOT}front:", json.dumps(figure)))
    front = front_rows(plans, goals)
    for row in front[evenly_spaced(take(plans, front), LISTED)].tolist():
        trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, numbers[row])
        attributes |= dict(note_attributes(plan_note(plans, row, front[0]), trial_id))
    set_attributes(storage, study, attributes.items())


def note_attributes(body: str, trial_id: int | None = None) -> Iterator[tuple[str, Any]]:
    """The study attributes in which optuna-dashboard looks for a note (Markdown) of the study or of a trial."""
    owner = "" if trial_id is None else f"{trial_id}:"
    yield from pieces(f"dashboard:{owner}note_str:", body)
    yield f"dashboard:{owner}note_ver", 1


def pieces(prefix: str, text: str) -> Iterator[tuple[str, str]]:
    """Numbered attributes that hold a text together, of at most `PIECE` characters each."""
    for number, start in enumerate(range(0, len(text), PIECE)):
        yield f"{prefix}{number}", text[start : start + PIECE]
