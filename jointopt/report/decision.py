"""The decision that a proposal comes to: one plan, what it gives, how sure that is, and what starts it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jointopt.core.errors import UsageError
from jointopt.core.quote import our_command, sh_lines
from jointopt.core.schema import Columns
from jointopt.jobs.catalog.clusters import with_host_at
from jointopt.jobs.job import Job
from jointopt.jobs.objectives import OBJECTIVE_COLUMNS, OBJECTIVES, RUN_OBJECTIVES
from jointopt.physics.site import bill, facility_energy_j, run_costs
from jointopt.report.doubts import OpenSetting, above_best, reasons_of, settings_lines, wider_lines
from jointopt.report.plans import (
    against_first,
    are_alike,
    entry_with_rates,
    has_site_costs,
    probability_of_fitting,
    probability_text,
    run_words,
    short_plan,
)
from jointopt.report.tables import (
    BRIEF_WIDTH,
    ENERGY_UNITS,
    RUN_ENERGY_UNITS,
    TIME_UNITS,
    Block,
    Result,
    TextColumn,
    lay_out,
    paragraphs,
    pick,
    plan_entries,
    quantity,
    result_text,
    unit_of,
)
from jointopt.runs.database import STORAGE
from jointopt.search.local_search import energy_saving, time_saving
from jointopt.search.pareto import below_chord
from jointopt.surrogate.memory import FEASIBLE, NOT_TIGHT

SLOWER = 0.01  # than the fastest plan of the front: most that a recommended plan of least energy may be
WIDTH, LINES, SETTINGS = BRIEF_WIDTH, 25, 3  # characters of a line, lines in all, open settings that are named
PICTURE = 60, 3, 6  # characters, fewest and most lines
_MONEY = ("cost", "gpu_cost")
_INDENT = "  "


def recommended_row(job: Job, front: Columns) -> tuple[int, str]:
    """The row of a front that is recommended, and why that one.

    Where the job states the price of a GPU-hour and of a kWh, or is about money, the cheapest plan; where it bounds the
    time of an iteration, the one of least energy; else the one of least energy at most `SLOWER` slower than the
    fastest. Plans that surely fit in memory go before others. Time and energy are those of the job's goals.
    """
    time_s, energy_j = (front[name] for name in job.goals[:2])
    if len(time_s) == 1 or not np.isfinite(energy_j).any():
        return int(time_s.argmin()), "the one plan that no other beats" if len(time_s) == 1 else "the fastest"
    paid, within = bill(job, *(front[name] for name in OBJECTIVES)), np.full(len(time_s), True)
    money = paid["cost"] + paid["gpu_cost"] if all(name in paid for name in _MONEY) else np.zeros(1)
    if job.is_of_run and (money.max() > 0.0 or "money" in job.objectives):
        money = front["money"]
    score, why = energy_j, "least energy within the deadline"
    if money.max() > 0.0:
        score, why = money, "least money for " + ("the whole run" if job.is_of_run else "GPUs and electricity")
    elif job.constraints.iteration_time_s is None:
        within = time_s <= (1.0 + SLOWER) * time_s.min()
        why = f"least energy{' of the run' * job.is_of_run} within {SLOWER:.0%} of the fastest's time"
    sure = within & (np.asarray(front.get("fit_probability", np.ones(len(time_s)))) >= NOT_TIGHT)
    rows = np.flatnonzero(sure if sure.any() else within)
    return int(rows[np.lexsort([time_s[rows], score[rows]])[0]]), why


def recommended_entry(job: Job, front: Sequence[Mapping[str, Any]]) -> tuple[int, str]:
    """As `recommended_row`, of the entries of a document."""
    names = [name for name in (*OBJECTIVES, *RUN_OBJECTIVES, "fit_probability") if name in front[0]]
    return recommended_row(job, {name: np.array([entry[name] for entry in front], np.float64) for name in names})


@dataclass(frozen=True)
class Difference:
    """How much more of something a plan takes than the reference, in percent, with its 90 % interval where known."""

    name: str  # time | energy | money
    percent: float
    low: float = math.nan
    high: float = math.nan

    def moved(self, name: str, percent: float) -> Difference:
        """The difference of something else that is as surely known, around another percentage."""
        return Difference(name, percent, *(end + percent - self.percent for end in (self.low, self.high)))

    @property
    def cells(self) -> tuple[str, str, str]:
        """Name, percent, interval."""
        interval = "" if self.low != self.low else f"{self.low:+z.1f} to {self.high:+z.1f} %"
        return f"{_INDENT}{self.name.replace('_', ' ')}", f"{self.percent:+z.1f} %", interval


@dataclass(frozen=True, repr=False)
class Decision(Result):
    """The recommended plan of a front; ``reference`` (one row, or none) is what it is compared with."""

    job: Job
    front: Columns
    reference: Columns
    surrogate: str = ""
    baseline: str = ""  # what runs today, where that is the reference
    reference_breaks: Sequence[str] = ()  # why the reference could not be run, a sentence each
    hangs_on: Sequence[OpenSetting] = ()
    next_command: Mapping[str, str] | None = None
    study: tuple[str, str] | None = None  # its name and storage
    run_note: str = ""  # on the plan with the fastest iteration, where the objectives are of a whole run

    @functools.cached_property
    def _recommended(self) -> tuple[int, str]:
        return recommended_row(self.job, self.front)

    @property
    def row(self) -> int:
        """The row of the front that is recommended."""
        return self._recommended[0]

    @property
    def reason(self) -> str:
        """Why that row."""
        return self._recommended[1]

    @functools.cached_property
    def plan(self) -> dict[str, Any]:
        """The recommended plan with its predictions and rates."""
        return entry_with_rates(self.job, self.front, self.row)

    @property
    def differences(self) -> list[Difference]:
        """Of time, energy and (where both prices are stated) money against the reference; none where there is none."""
        plan, reference = self.plan, next(iter(plan_entries(self.reference)), None)
        if reference is None:
            return []
        time, energy = (
            Difference(name, _percent(plan[key], reference[key]), *against_first(plan, name)[1:])
            for name, key in zip(("time", "energy"), OBJECTIVES, strict=True)
        )
        found = [time, energy, *self._money(plan, reference, time, energy)]
        if self.job.is_of_run:  # whose intervals are as wide as those of an iteration
            found = [
                (Difference if key == "money" else one.moved)(
                    OBJECTIVE_COLUMNS[key].word, _percent(plan[key], reference[key])
                )
                for key, one in zip(self.job.goals[:2], (time, energy), strict=True)
            ]
        return [one for one in found if math.isfinite(one.percent)]

    def _money(
        self, plan: Mapping[str, Any], reference: Mapping[str, Any], time: Difference, energy: Difference
    ) -> Iterator[Difference]:
        """Of the bill for GPUs and electricity, whose parts follow time and energy; its ends as if both erred alike."""
        now, before = (bill(self.job, *(entry[name] or math.nan for name in OBJECTIVES)) for entry in (plan, reference))
        if not all(name in before for name in _MONEY):
            return
        total = float(before["cost"] + before["gpu_cost"])
        if total <= 0.0:
            return
        of_gpus_j = float(facility_energy_j(self.job.cluster, 0.0, reference["energy_j"] or math.nan))
        share = float(before["cost"]) * of_gpus_j / float(before["facility_energy_j"]) / total
        low, high = ((1.0 - share) * t + share * e for t, e in ((time.low, energy.low), (time.high, energy.high)))
        yield Difference("money", _percent(float(now["cost"] + now["gpu_cost"]), total), low, high)

    @functools.cached_property
    def savings(self) -> dict[str, dict[str, Any]]:
        """The most that a plan of the front saves over the reference: time at no more energy, energy in no more time.

        Each with the plan's number and the probability that it saves anything, where that is known.
        """
        front, reference = (
            plans | {"energy_j": np.nan_to_num(plans["energy_j"], nan=1.0)} for plans in (self.front, self.reference)
        )
        found = {"time": time_saving(front, reference), "energy": energy_saving(front, reference)}
        sure = {"time": "faster_probability", "energy": "leaner_probability"}
        return {
            name: {
                "percent": 100.0 * one.share,
                "probability": float(front[sure[name]][one.plan]) if sure[name] in front else None,
                "plan_number": one.plan + 1,
            }
            for name, one in found.items()
            if one is not None
        }

    def worse_than_front(self, percent: float | None) -> str:
        """Why the baseline is worse than the front by so many percent, in a sentence; blank where it is not."""
        if percent is None:
            return ""
        if not self.baseline:
            raise UsageError(
                "What is to be compared with the front? --baseline takes a plan, a script, a config or a log."
            )
        if self.reference_breaks:
            return f"The baseline could not be run: {self.reference_breaks[0]}"
        words = {"time": "less time at no more energy", "energy": "less energy in no more time"}
        found = []
        for name, saving in self.savings.items():
            if saving["percent"] >= percent:
                odds = "" if saving["probability"] is None else f", probability {saving['probability']:.2f}"
                found.append(f"{saving['percent']:.1f} % {words[name]} (plan {saving['plan_number']}{odds})")
        return f"Against the baseline, plans take {' or '.join(found)}; allowed: {percent:g} %." if found else ""

    def document(self) -> dict[str, Any]:
        """The number of the plan in the front (from 1), why it is recommended, and what it gives."""
        against = {one.name: pick(one, "percent low high") for one in self.differences}
        return {"plan_number": self.row + 1, "reason": self.reason, "against_reference": against} | pick(
            self, "savings"
        )

    def blocks(self) -> Iterator[Block]:
        """The plan, what it gives, what its time hangs on, the front as a picture, and the commands that go on.

        The picture has the lines that are left of `LINES`.
        """
        plan, front = self.plan, self.front
        count = len(front["pp"])
        of = f" (of {count:,} Pareto plans)" if count > 1 else ""
        reasons = reasons_of([plan], self.surrogate, self.job)
        head = [f"{job_words(self.job)}.", *plan_warnings(self.job, plan, *reasons), f"Recommended{of}: {self.reason}"]
        first = [line for sentence in head for line in narrow_lines(sentence)] + self._plan_lines(plan)
        hangs_on = self.hangs_on if {OBJECTIVES[0], RUN_OBJECTIVES[0]} & {*self.job.objectives} else ()
        last, second = [line for part in self._commands() for line in part], self._difference_lines()
        room = LINES - len([*first, *second, *last]) - 3  # beside blank lines and a head
        second += settings_lines(hangs_on, max(1, min(SETTINGS, room)), width=WIDTH)
        yield from ([first], [second])
        width, fewest, most = PICTURE
        height = min(most, LINES - len([*first, *second, *last]) - 4)  # with blank lines between, and an axis
        if count > 1 and height >= fewest and np.isfinite(front["energy_j"]).all():
            yield [front_picture(front, self.reference, self.row, width, height, self.job.goals[:2])]
        yield [last]

    def _plan_lines(self, plan: Mapping[str, Any]) -> list[str]:
        """The plan as ``--plan`` takes it, and its time with its interval, energy, power, MFU and memory."""
        run = run_words(self.job, plan) if self.job.is_of_run else ""
        run = run or (cost_words(self.job, plan) if has_site_costs(self.job) else "")
        words = narrow_lines(result_words(self.job, plan), _INDENT)
        return [*narrow_lines(short_plan(self.front, self.row), _INDENT), *narrow_lines(run, _INDENT), *words]

    def _difference_lines(self) -> list[str]:
        """What the plan gives against the reference, and what a slower one would."""
        found, plan = self.differences, self.plan
        if not found:
            return ["With all clocks at their maximum no plan is feasible to compare it with."]
        usual = "the fastest plan at the GPU's maximum clock"
        against = f"the baseline, {self.baseline}" if self.baseline else usual
        spares = [one.get("spares") for one in (plan, plan_entries(self.reference)[0])]
        if are_alike(plan, plan_entries(self.reference)[0]) and spares[0] == spares[1]:
            return [*narrow_lines(f"That is {against}."), *self._slower_lines()]
        breaks = f", which could not be run: {self.reference_breaks[0]}" if self.reference_breaks else ""
        note = narrow_lines(self.run_note) if self.run_note else []
        return [*narrow_lines(f"Against {against}{breaks}"), *difference_lines(found), *note, *self._slower_lines()]

    def _slower_lines(self) -> list[str]:
        """The knee of the front where that is slower than the plan: what waiting buys."""
        time_s, energy_j = (self.front[name] for name in self.job.goals[:2])
        if not np.isfinite(energy_j).all():
            return []
        knee = int(below_chord(time_s, energy_j).argmax())
        if time_s[knee] <= (1.0 + SLOWER) * time_s[self.row]:
            return []
        more, less = (_percent(values[knee], values[self.row]) for values in (time_s, energy_j))
        saved = OBJECTIVE_COLUMNS[self.job.goals[1]].word.split("_")[-1]
        knee_words = f"plan {knee + 1} takes {more:+z.1f} % of its time, {less:+z.1f} % of its {saved}"
        return narrow_lines(f"Who can wait: {knee_words}.")

    def start_lines(self) -> list[str]:
        """The note on what starts the plan, and the command, by the study's name where there is one; else Python's."""
        if not (found := self.next_command):
            return [] if self.study else ["What starts it: proposal.recommended.export(); all plans: proposal.text()."]
        command = found["command"]
        if self.study:  # it holds the job too
            place = {"plan": f"{self.study[0]}:{self.row + 1}", "storage": self._storage}
            to = {"to": found["to"]} if "to" in found else {}
            tight = " --allow-tight" * (probability_of_fitting(self.plan) < FEASIBLE)
            command = sh_lines(our_command(command.split()[1], **place, **to) + tight)
        return command_lines({"note": found["note"], "command": command})

    @property
    def _storage(self) -> str | None:
        """The storage of the study, None for the usual one."""
        return self.study[1] if self.study and self.study[1] != STORAGE else None

    def _commands(self) -> Iterator[list[str]]:
        if start := self.start_lines():
            yield start
        if self.study:
            page = our_command("report", self.study[0], studies=self._storage, out="report.html")
            yield narrow_lines(f"All plans: -v. A page: {page}")


def plan_warnings(job: Job, plan: Mapping[str, Any], reasons: Sequence[str] = ()) -> Iterator[str]:
    """Sentences on what makes a plan (an entry) doubtful; ``reasons``: why its interval is wider."""
    if (odds := probability_of_fitting(plan)) < NOT_TIGHT:
        words = "NOT FEASIBLE: it is not expected to fit" if odds < FEASIBLE else "Tight: it may not fit"
        yield f"{words} in memory (probability {probability_text(odds)})."
    if job.assumed_clocks:
        yield f"Assumed {job.assumed_clocks}."
    yield from filter(None, [above_best(job, plan, "The plan's")])
    yield from wider_lines([reasons], interval="interval of its time")


def result_words(job: Job, plan: Mapping[str, Any]) -> str:
    """The time of a plan (an entry) with its interval, then its energy, power, MFU and memory, as far as known."""
    factor, unit = unit_of(plan["iteration_time_s"], TIME_UNITS)
    ends = [plan.get(f"iteration_time_s_{end}") for end in ("low", "high")]
    span = " to ".join(f"{end / factor:.4g}" for end in ends if end is not None)
    span = f" (90 %: {span})" * bool(span)
    known = {name: value for name, value in plan.items() if isinstance(value, float) and math.isfinite(value)}
    parts = [f"{plan['iteration_time_s'] / factor:.4g} {unit}{span}"]
    parts += [quantity(known["energy_j"], ENERGY_UNITS)] if "energy_j" in known else []
    parts += [f"{known['avg_power_w']:.0f} W/GPU"] if "avg_power_w" in known else []
    parts += [f"MFU {known['mfu']:.1%}"] if "mfu" in known else []
    if "peak_memory_gib" in known:
        parts.append(f"{known['peak_memory_gib']:.1f} of {job.cluster.gpu.memory_gib:.0f} GiB")
    return ", ".join(parts)


def cost_words(job: Job, plan: Mapping[str, Any]) -> str:
    """The time of a plan's run with its interval, its energy and its money, then the power of the site."""
    costs, low, high = (run_costs_at(job, plan, end) for end in ("", "_low", "_high"))
    factor, unit = (1, "days") if costs["for_run"] else (24, "h per billion tokens")
    span = f" (90 %: {factor * low['days']:.3g} to {factor * high['days']:.3g})" * (low["days"] < high["days"])
    words = [f"{factor * costs['days']:.3g} {unit}{span}"]
    if math.isfinite(costs["energy_j"]):
        words.append(f"{quantity(costs['energy_j'], RUN_ENERGY_UNITS)} (PUE {job.cluster.pue:g})")
    words += [f"cost {costs['money']:,.0f} {job.cluster.currency}".strip()] if costs["money"] is not None else []
    words += [f"{plan['cluster_power_kw']:,.0f} kW"] if plan["energy_j"] is not None else []
    return ", ".join(words)


def run_costs_at(job: Job, plan: Mapping[str, Any], end: str = "") -> dict[str, Any]:
    """As `run_costs`, at that ``end`` (_low, _high) of the plan's 90 % intervals and of what is assumed of hosts."""
    if not end or plan.get(f"iteration_time_s{end}") is None:
        return run_costs(job, plan)
    at_end = replace(job, cluster=with_host_at(job.cluster, end.removeprefix("_")))
    found = run_costs(at_end, {name: plan[f"{name}{end}"] for name in OBJECTIVES})
    if plan.get("time_to_train_s") is None:
        return found
    # failures take the same share of the run at both ends
    with_failures, without = (run_costs(job, one) for one in (plan, {name: plan[name] for name in OBJECTIVES}))
    scaled = {
        name: found[name] and found[name] * with_failures[name] / without[name]
        for name in ("days", "energy_j", "money")
    }
    return found | scaled


def front_picture(
    front: Columns, reference: Columns, row: int, width: int, height: int, pair: Sequence[str] = OBJECTIVES
) -> list[str]:
    """Energy over time (the ``pair``) of a front as characters: R the recommended plan, = the reference, * others."""
    time_s, energy_j = (np.concatenate([front[name], reference[name]]) for name in pair)
    known = np.isfinite(energy_j)
    spans = [np.ptp(values[known]) or 1.0 for values in (time_s, energy_j)]
    places = [np.zeros(len(time_s), np.int64)] * 2
    for axis, (values, size) in enumerate(zip((time_s, energy_j), (width, height), strict=True)):
        shares = np.nan_to_num((values - values[known].min()) / spans[axis])
        places[axis] = np.round(shares * (size - 1)).astype(np.int64)
    cells = np.full((height, width), " ")
    marks = ["*"] * len(front["pp"]) + ["="] * len(reference["pp"])
    for index in [*np.flatnonzero(known).tolist(), row]:
        cells[height - 1 - places[1][index], places[0][index]] = "R" if index == row else marks[index]
    labels = [result_text(pair[1], float(end)).rstrip() for end in (energy_j[known].max(), energy_j[known].min())]
    margin = max(map(len, labels))
    heads = [labels[0], *[""] * (height - 2), labels[1]]
    lines = [f"{head:>{margin}} |{''.join(line).rstrip()}" for head, line in zip(heads, cells, strict=True)]
    start, end = (result_text(pair[0], float(value)) for value in (time_s[known].min(), time_s[known].max()))
    legend = "R recommended, = reference, * others"
    return [*lines, f"{'':>{margin}}  {start}{legend:^{max(width - len(start) - len(end), len(legend) + 2)}}{end}"]


def narrow_lines(sentence: str, first: str = "") -> list[str]:
    """The lines of a sentence of a short answer."""
    return paragraphs([sentence], first=first, most=WIDTH)


def difference_lines(found: Sequence[Difference]) -> list[str]:
    """A line for each difference, with its interval where that is known."""
    names, changes, intervals = zip(*(one.cells for one in found), strict=True)
    columns = [TextColumn("", names, left=True), TextColumn("", changes)]
    columns += [TextColumn("", [f"(90 %: {text})" if text else "" for text in intervals], left=True)]
    return lay_out(columns)[1:]


def command_lines(found: Mapping[str, str] | None) -> list[str]:
    """The note on a command and the command, to copy; none without one."""
    command = found["command"].split("\n") if found else []
    return [*narrow_lines(found["note"]), *(f"{_INDENT}{line}" for line in command)] if found else []


def job_words(job: Job) -> str:
    """The model, the batch, the software and the cluster of a job."""
    training, cluster = job.training, job.cluster
    return (
        f"{job.model_words}, {training.global_batch_size:,} x {training.seq_length:,} tokens in "
        f"{training.precision_words}, {training.software}, {cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu.id}"
    )


def _percent(value: float | None, reference: float | None) -> float:
    return 100.0 * (value / reference - 1.0) if value and reference else math.nan
