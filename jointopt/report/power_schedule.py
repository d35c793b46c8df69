"""The answer of ``follow``: the clocks of a plan over a signal, what that loses, and the power that the site draws."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jointopt.core.atomic_write import write_whole
from jointopt.core.facts import Assumption
from jointopt.core.schema import Floats
from jointopt.core.units import KILO
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import format_stage_clocks
from jointopt.report.effective_time import days
from jointopt.report.page.power_page import LIMIT, power_page, stepped_figure
from jointopt.report.page.render import Page
from jointopt.report.tables import (
    COUNT_UNITS,
    RUN_ENERGY_UNITS,
    Block,
    Result,
    TextColumn,
    figure,
    format_values,
    lay_out,
    paragraphs,
    quantity,
)
from jointopt.runs.site_signal import SiteSignal

_WIDTH, _LINES, _ROWS, _LEAST_ROWS = 80, 23, 7, 4  # of the text: two lines more are a table's first and last
_HEADS = {"limit_kw": "limit", "reduce_percent": "% less", "price_per_kwh": "price", "carbon_g_per_kwh": "g/kWh"}
_SIGNALS = {  # of signals that have a figure of their own on the page: its heading, and the unit
    "reduce_percent": ("Reduction that is asked for", "%"), "price_per_kwh": ("Price of electricity", "per kWh"),
    "carbon_g_per_kwh": ("Carbon of electricity", "g/kWh"),
}  # fmt: skip
_PICTURE = 60, 4  # characters, lines
_FLAT = 0.1  # of the plan's power: what varies less is no picture
_CLEAR_GAP = 1e-6  # of the cost: less is rounding
_EDGE_S = 1e-3  # between the end of a step and the start of the next one, where a trace is interpolated
_HOUR_S = 3600.0


@dataclass(frozen=True, repr=False)
class PowerSchedule(Result):
    """The rungs of a plan over the steps of a signal."""

    rows = "schedule"
    keys = (
        "job=job.name plan signal=signal.source kind=signal.kind aim schedule=steps tokens energy_j lost_tokens lost_s "
        "plan_tokens plan_energy_j plan_power_kw=own_kw cost plan_cost cost_unit pauses pause_power_kw=idle_kw "
        "checkpoint_s restart_s gap remarks=signal.remarks assumed"
    )
    job: Job
    plan: Mapping[str, Any]
    plan_text: str  # as --plan takes it
    signal: SiteSignal
    aim: str
    steps: tuple[dict[str, Any], ...]
    own_kw: float  # of the site at the plan's own clocks
    own_tokens_per_s: float
    cost: float | None  # by a signal of prices or carbon, in ``cost_unit``
    plan_cost: float | None  # the same at the plan's own clocks
    cost_unit: str
    gap: float  # most that another schedule could cost less, as a share
    checkpoint_s: float
    restart_s: float
    idle_kw: float
    assumed: tuple[Assumption, ...] = ()

    def _column(self, name: str) -> Floats:
        return np.array([one[name] for one in self.steps], np.float64)

    @property
    def seconds(self) -> Floats:
        """The length of each step."""
        return self._column("to_s") - self._column("from_s")

    @property
    def tokens(self) -> float:
        """Tokens that are made over the signal."""
        return float(self.seconds @ self._column("tokens_per_s"))

    @property
    def plan_tokens(self) -> float:
        """Tokens that the plan makes at its own clocks."""
        return self.own_tokens_per_s * float(self.seconds.sum())

    @property
    def lost_tokens(self) -> float:
        """Tokens that the plan would make and the schedule does not."""
        return self.plan_tokens - self.tokens

    @property
    def lost_s(self) -> float:
        """Time in s in which the plan makes the tokens that are lost."""
        return self.lost_tokens / self.own_tokens_per_s

    @property
    def energy_j(self) -> float:
        """Energy at the meter of the site: GPUs and hosts, times PUE."""
        return KILO * float(self.seconds @ self._column("power_kw"))

    @property
    def plan_energy_j(self) -> float:
        """The same at the plan's own clocks."""
        return KILO * self.own_kw * float(self.seconds.sum())

    @property
    def pauses(self) -> int:
        """How often the run pauses at a checkpoint."""
        return sum(paused for paused, _ in itertools.groupby(one["paused"] for one in self.steps))

    def write_load(self, path: Path) -> str:
        """Write the power as a training trace of OpenG2G (``t_s``, ``power_W`` of a GPU); return how it is read.

        A GPU's share of the power at the meter: hosts and PUE are in it.
        """
        watts, start_s = KILO * self._column("power_kw") / self.job.cluster.num_gpus, self.steps[0]["from_s"]
        lines = ["t_s,power_W"]
        for one, power_w in zip(self.steps, watts.tolist(), strict=True):
            end_s = one["to_s"] - min(_EDGE_S, 0.5 * (one["to_s"] - one["from_s"])) * (one is not self.steps[-1])
            lines += [f"{one['from_s'] - start_s!r},{power_w!r}", f"{end_s - start_s!r},{power_w!r}"]
        write_whole(path, "\n".join([*lines, ""]))
        return (
            f'TrainingRun(n_gpus={self.job.cluster.num_gpus}, trace=TrainingTrace.load("{path}"), '
            f"target_peak_W_per_gpu={float(watts.max())!r})"
        )

    def report(self) -> Page:
        """The schedule as one HTML page that needs no network: what is lost, power against the limit, clocks."""
        hours = [(one["from_s"] - self.steps[0]["from_s"]) / _HOUR_S for one in self.steps]
        hours.append(hours[-1] + float(self.seconds[-1]) / _HOUR_S)
        power: dict[str, Any] = {"high end (95 %)": self._column("power_kw_high"), "mean": self._column("power_kw")}
        if "limit_kw" in self.steps[0]:
            power[LIMIT] = [kw if np.isfinite(kw) else None for kw in self._column("limit_kw").tolist()]
        clocks = [one["stage_clock_mhz"] for one in self.steps]
        stages = max(map(len, clocks)) if any(len({*some}) > 1 for some in clocks) else 1
        by_stage = {f"stage {n}": [some[n] if n < len(some) else None for some in clocks] for n in range(stages)}
        figures = {"Power of the site": stepped_figure(hours, power, "kW")}
        if kind := _SIGNALS.get(self.signal.kind):
            unit = f"{self.job.cluster.currency} {kind[1]}".strip() if "price" in self.signal.kind else kind[1]
            figures[kind[0]] = stepped_figure(hours, {kind[0]: self._column(self.signal.kind).tolist()}, unit)
        figures["Clocks"] = stepped_figure(hours, by_stage if stages > 1 else {"clock": by_stage["stage 0"]}, "MHz")
        runs = itertools.groupby(range(len(self.steps)), lambda at: self.steps[at]["paused"])
        rows = [[*run] for pauses, run in runs if pauses]
        paused = [f"hour {hours[run[0]]:.2f} to {hours[run[-1] + 1]:.2f}" for run in rows]
        more = [f"Paused in {', '.join(paused[:_ROWS])}{' and later' if len(paused) > _ROWS else ''}."] * bool(paused)
        share, peak = self.tokens / self.plan_tokens, float(self._column("power_kw_high").max())
        cards = [
            ("Tokens", f"{100 * share:.2f} %", "of what the plan makes at its own clocks"),
            ("Energy at the meter", quantity(self.energy_j, RUN_ENERGY_UNITS),
             f"{quantity(self.plan_energy_j, RUN_ENERGY_UNITS)} at the plan's own clocks"),
            ("Highest power", f"{figure(round(peak, 2))} kW", "the high end, 95 %"),
            ("Pauses", f"{self.pauses}", f"{float(self.seconds @ self._column('paused')) / _HOUR_S:.4g} h in all"),
        ]  # fmt: skip
        if self.cost is not None and self.plan_cost is not None:
            name = self.cost_unit[0].upper() + self.cost_unit[1:]
            cards.insert(1, (name, figure(self.cost), f"{figure(self.plan_cost)} at the plan's own clocks"))
        return power_page(
            f"{self.job.name}: power over time", f"Plan {self.plan_text}. Aim: {self.aim}.",
            " ".join([*itertools.islice(self._totals(), 2), *more]), cards, figures, self.text(verbose=True),
            [*self.signal.remarks, *map(str, self.assumed if self.pauses else ())],
        )  # fmt: skip

    def blocks(self, *, verbose: bool = False) -> Iterator[Block]:
        """What is lost and paid, the power as a picture, and the steps; ``verbose``: all of them."""
        share, lasts_s = 100.0 * self.tokens / self.plan_tokens, float(self.seconds.sum())
        lasts = f"{lasts_s / _HOUR_S:.4g} h" if lasts_s >= _HOUR_S else days(lasts_s)
        gap = f" (within {100 * self.gap:.2g} %)" if self.gap > _CLEAR_GAP else ""
        parts = [
            _lines(
                f"{self.job.name}: {share:.2f} % of the tokens that the plan makes in {lasts} of {self.signal.source}.",
                f"Plan: {self.plan_text}",
                f"Aim: {self.aim}{gap}.",
            ),
            _lines(*self._totals()),
        ]
        picture = self._picture() if float(np.ptp(self._column("power_kw"))) > _FLAT * self.own_kw else []
        remarks = _lines(*self._remarks())
        left = _LINES - sum(len(some) + bool(some) for some in (*parts, picture, remarks))
        yield from parts
        yield [picture]
        yield [self._table(len(self.steps) if verbose else min(max(left, _LEAST_ROWS), _ROWS))]
        yield remarks

    def _totals(self) -> Iterator[str]:
        if abs(self.lost_s) >= 1.0:
            word = "Lost" if self.lost_tokens > 0.0 else "Gained"
            count = quantity(abs(self.lost_tokens), COUNT_UNITS)
            yield f"{word}: {count} tokens, which the plan makes in {days(abs(self.lost_s))}."
        now, before = (quantity(joules, RUN_ENERGY_UNITS) for joules in (self.energy_j, self.plan_energy_j))
        cost = ""
        if self.cost is not None and self.plan_cost is not None:
            cost = f"; {self.cost_unit} {figure(self.cost)} ({figure(self.plan_cost)})"
        yield f"Energy at the meter {now} ({before} at the plan's own clocks){cost}."
        if self.pauses:
            paused_s = float(self.seconds @ self._column("paused"))
            yield (
                f"{self.pauses} pause{'s' * (self.pauses != 1)} at a checkpoint, {days(paused_s)} in all at "
                f"{figure(round(self.idle_kw, 1))} kW; a pause lasts {days(self.checkpoint_s)} or more (the "
                f"checkpoint), and {days(self.restart_s)} of restart follow."
            )

    def _picture(self) -> list[str]:
        """Mean power over time as bars of characters."""
        width, height = _PICTURE
        bounds_s = np.append(self._column("from_s"), self.steps[-1]["to_s"])
        used = np.concatenate([[0.0], np.cumsum(self.seconds * self._column("power_kw"))])
        edges = np.linspace(bounds_s[0], bounds_s[-1], width + 1)
        mean_kw = np.diff(np.interp(edges, bounds_s, used)) / np.diff(edges)
        levels = np.ceil(mean_kw / mean_kw.max() * height - 1e-9)
        labels = [f"{figure(round(float(mean_kw.max()), 1))} kW", *[""] * (height - 2), "0 kW"]
        margin = max(map(len, labels))
        return [
            f"{label:>{margin}} |{''.join('*' if level >= height - line else ' ' for level in levels).rstrip()}"
            for line, label in enumerate(labels)
        ]

    def _table(self, most: int) -> list[str]:
        """The steps, equal ones in a row as one, with the strictest limit or the mean of a price; the first so many."""
        runs = [list(run) for _, run in itertools.groupby(self.steps, _rung_of)]
        shown, kind = runs[:most], self.signal.kind
        strictest = {"limit_kw": min, "reduce_percent": max}.get(kind, lambda some: float(np.mean(list(some))))
        start_s = self.steps[0]["from_s"]
        unit_s, head, form = (_HOUR_S, "hour", ".2f") if self.seconds.sum() >= _HOUR_S else (1.0, "second", ".4g")
        times = ([(run[at][end] - start_s) / unit_s for run in shown] for at, end in ((0, "from_s"), (-1, "to_s")))
        made = [sum(one["tokens_per_s"] * (one["to_s"] - one["from_s"]) for one in run) for run in shown]
        rates = [tokens / (run[-1]["to_s"] - run[0]["from_s"]) for tokens, run in zip(made, shown, strict=True)]
        columns = [TextColumn(name, format_values(some, form)) for name, some in zip((head, "to"), times, strict=True)]
        columns += [
            TextColumn(_HEADS[kind], [figure(float(strictest(one[kind] for one in run))) for run in shown]),
            TextColumn("kW", [figure(run[0]["power_kw"]) for run in shown]),
            TextColumn("95 %", [figure(run[0]["power_kw_high"]) for run in shown]),
            TextColumn("tok/s", format_values(rates, ",.0f")),
            TextColumn("clocks in MHz", [_words(run[0]) for run in shown], left=True),
        ]
        more = len(runs) - len(shown)
        return [*lay_out(columns), *([f"... {more:,} more (-v; --json has each step)"] if more else [])]

    def _remarks(self) -> Iterator[str]:
        asked_s = self.seconds * [one.get("reduce_percent", 0.0) > 0.0 for one in self.steps]
        if asked_s.any():
            less = 1.0 - float(asked_s @ self._column("power_kw") / asked_s.sum()) / self.own_kw
            yield (
                f"Reductions are kept at the high end (95 %): the mean falls by {figure(round(100.0 * less, 1))} %; "
                "runs measured on this cluster narrow that."
            )
        yield from self.signal.remarks
        if self.pauses and self.assumed:
            known = {"restart_s", "storage_gbytes_per_s"}
            names = {one.key.removeprefix("reliability."): one.value for one in self.assumed}
            shown = ", ".join(f"{name} {value:g}" for name, value in names.items() if name in known)
            yield f"Assumed (--json has the sources): {shown}."


def _rung_of(step: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(step["stage_clock_mhz"]), step.get("power_limit_w"), step.get("plan")


def _words(step: Mapping[str, Any]) -> str:
    """The clocks of a step, once where all stages have the same; with another layout its plan."""
    if step["paused"]:
        return "paused"
    clocks = step["stage_clock_mhz"]
    text = format_stage_clocks(clocks if len({*clocks}) > 1 else clocks[:1])
    text += f", {step['power_limit_w']:g} W" if "power_limit_w" in step else ""
    return f"{text} (layout {step['layout']})" if step.get("layout") else text


def _lines(*sentences: str) -> list[str]:
    return paragraphs(sentences, most=_WIDTH)
