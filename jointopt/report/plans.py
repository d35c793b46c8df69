"""Plans for people: one in a line, the one table of plans, what predictions rest on, and layouts in their order."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from jointopt.core.facts import Assumption
from jointopt.core.schema import (
    COLUMNS,
    LAYOUT_COLUMNS,
    NEUTRAL,
    POWER_LIMIT,
    POWER_PROFILE,
    STAGE_LAYERS,
    Columns,
    decode_cells,
)
from jointopt.core.short_repr import ShortRepr
from jointopt.jobs.job import Job
from jointopt.jobs.objectives import OBJECTIVES, RUN_OBJECTIVES
from jointopt.jobs.plans.text import PLAN_KEYS, format_plan, plain_number, stage_clocks_to_text
from jointopt.physics.cost_model import HEAT
from jointopt.physics.site import bill
from jointopt.physics.throughput import peak_tflops, with_rates
from jointopt.report import tables
from jointopt.report.doubts import distinct_reasons, reasons_of
from jointopt.report.tables import RUN_TIME_UNITS, TextColumn, quantity, result_text
from jointopt.search.exact import MOST
from jointopt.search.pareto import take
from jointopt.surrogate.memory import FEASIBLE, NOT_TIGHT

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]
MOST_LINES = 8  # of assumptions
_SHORTEST_CLOCKS = 10  # "1200..1410"
_CLOCKS_IN_WORDS = 40
_HEADS = {name: COLUMNS[name].head for name in (*LAYOUT_COLUMNS, POWER_LIMIT)} | {
    "stage_power_limit_w": "stage_power_limit_w", "stage_clock_mhz": "clock", POWER_PROFILE: "profile",
}  # fmt: skip
_NEUTRAL = {name: COLUMNS[name].decode(value) for name, value in NEUTRAL.items()}
_CELLS: dict[Any, str] = {False: "-", True: "y", "none": "-", "selective": "sel", "full": "all"}
_IN_TABLES = ("dp", "tp", "pp", "micro_batch_size")  # where all plans have the same value, too
_LIMITS = (POWER_LIMIT, "stage_power_limit_w")
_IN_WORDS = (*_IN_TABLES, "recompute", "zero_stage", POWER_PROFILE)


def short_clocks(clocks_mhz: Sequence[float], width: int) -> str:
    """The clocks of one plan: ``1410×14,1200×2`` in at most ``width`` characters, else lowest and highest."""
    whole = [round(clock) for clock in clocks_mhz]
    text = _counted(whole, "×")
    return text if len(text) <= width else tables.range_text(min(whole), max(whole))


def _counted(clocks: Sequence[object], times: str) -> str:
    """Clocks with a comma between them, runs of equal ones once with their number; one clock alone without."""
    runs = tables.equal_runs(map(str, clocks))
    return ",".join(f"{clocks[run[0]]}{f'{times}{len(run)}' if len(run) > 1 < len(runs) else ''}" for run in runs)


def short_plan(plans: Columns, row: int) -> str:
    """The plan of a row as `jointopt.jobs.plans.text.parse_plan` reads it, runs of equal clocks as ``1680x7,1755``."""
    layout = format_plan(plans, plans["stage_clock_mhz"], row).rsplit(" ", 1)[0]
    clocks = [plain_number(clock) for clock in plans["stage_clock_mhz"][row].tolist() if clock == clock]
    return f"{layout} clock_mhz={_counted(clocks, 'x')}"


def differing_columns(plans: Iterable[Row]) -> frozenset[str]:
    """Plan columns in which ``plans`` (records) differ; a power limit that some do not have is a difference."""
    met = {(name, str(value)) for plan in plans for name, value in (dict.fromkeys(_LIMITS) | dict(plan)).items()}
    return frozenset(name for name, count in Counter(name for name, _ in met).items() if count > 1)


def plan_words(plan: Row, varied: Collection[str]) -> str:
    """A plan in one line: the columns that distinguish most plans, and those that are ``varied`` among these.

    Without columns at the value that has no effect, and without the clocks of a power profile, which chooses its own.
    """
    left_out = {name for name, value in _NEUTRAL.items() if plan.get(name) == value}
    left_out |= {"stage_clock_mhz"} if plan.get(POWER_PROFILE) else set()
    shown = [name for name in _HEADS if name in plan and (name in _IN_WORDS or name in varied)]
    return " ".join(f"{_HEADS[name]}={_word(name, _shown(name, plan))}" for name in shown if name not in left_out)


def _shown(name: str, plan: Row) -> Any:
    """A plan's cell of a column, runs of equal numbers in a list in one."""
    value = plan.get(name, _NEUTRAL.get(name))
    return STAGE_LAYERS.short(STAGE_LAYERS.code(value)) if name == "stage_layers" else value


def _word(name: str, value: Any) -> str:
    """A cell of a plan in words."""
    if isinstance(value, bool):
        return "y" if value else "n"
    if isinstance(value, list | tuple):
        if name in _LIMITS:
            return ";".join(f"{watts:g}" for watts in value)
        return f"{short_clocks(value, _CLOCKS_IN_WORDS)} MHz"
    return f"{value:g} W" if isinstance(value, float) else str(value)


def plan_table(
    plans: Sequence[Row], left: Sequence[TextColumn], right: Iterable[TextColumn], repeated: Collection[int] = ()
) -> list[str]:
    """Lines of a table of plans (records) between two groups of columns, no wider than the text.

    Layout columns in which all plans agree go above the table; on the right, those of which nothing is known go.
    ``repeated``: rows whose layout is that of the row above, and is not printed again.
    """
    columns, equal, right = [*left], [], tables.known_columns(right)
    for name in LAYOUT_COLUMNS:
        values = [_shown(name, plan) for plan in plans]
        if all(value == _NEUTRAL.get(name) for value in values):
            continue
        if name in _IN_TABLES or len(plans) == 1 or len(set(values)) > 1:
            words = [_CELLS.get(value, value) if isinstance(value, bool | str) else value for value in values]
            cells = ["" if row in repeated else str(word) for row, word in enumerate(words)]
            columns.append(TextColumn(_HEADS[name], cells))
        else:
            equal.append(f"{_HEADS[name]}={_word(name, values[0])}")
    if any(plan.get(POWER_LIMIT) for plan in plans):
        limits = [plan.get(POWER_LIMIT) for plan in plans]
        columns.append(TextColumn("limit\nW", [f"{watts:g}" if watts else "-" for watts in limits]))
    left_over = tables.line_width() - tables.table_width(columns, " ") - _SHORTEST_CLOCKS - 2
    right = tables.fit_columns(right, left_over, " ")
    room = max(_SHORTEST_CLOCKS, tables.line_width() - tables.table_width([*columns, *right], " ") - 1)
    cells = [plan.get(POWER_PROFILE) or short_clocks(plan["stage_clock_mhz"], room) for plan in plans]
    clocks = TextColumn("clock\nMHz", cells)
    sentence = [f"All plans: {' '.join(equal)}"] if equal else []
    return [*tables.paragraphs(sentence), *tables.lay_out([*columns, clocks, *right], " ")]


def predicted_table(
    plans: Sequence[Row], marks: Sequence[str], repeated: Collection[int] = (), goals: Collection[str] = ()
) -> list[str]:
    """A table of plans with their predictions, and with time and energy against the first plan.

    These have intervals and probabilities of being better (``faster|leaner``) where entries state them against that
    very plan. ``repeated`` as in `plan_table`; ``goals``: with the columns of heat among them, and those of whole runs
    where they are of such. Marks get a ``?``
    where a reason for a wider interval is not that of all plans, and a ``~`` where the plan may not fit in memory.
    """
    doubted = map(bool, distinct_reasons(reasons_of(plans)))
    tight = (probability_of_fitting(plan) < NOT_TIGHT for plan in plans)
    marks = [f"{mark}{'?' * why}{'~' * near}" for mark, why, near in zip(marks, doubted, tight, strict=True)]
    first, sure = [plans[0]] * len(plans), plans if are_against_first(plans) else ()
    columns = [
        tables.figure_column("iteration_time_s", plans),
        TextColumn("±\n%", tables.format_values(map(interval_half_width, plans), ".0f")),
        tables.figure_column("energy_j", plans),
        tables.figure_column("avg_power_w", plans),
        *(tables.figure_column(name, plans) for name in HEAT if name in goals),
        *(_run_columns(plans) if not set(RUN_OBJECTIVES).isdisjoint(goals) else []),
        tables.figure_column("peak_memory_gib", plans),
        tables.figure_column("tokens_per_s_per_gpu", plans, spare=True),
        tables.figure_column("mfu", plans, spare=True),
        *(difference_column(name, plans, first, sure, itself="0") for name in COMPARED),
        TextColumn("better\nt|E %", better_words(plans), spare=True),
    ]
    return plan_table(plans, [TextColumn("", marks, left=True)], columns, repeated)


def _run_columns(plans: Sequence[Row]) -> list[TextColumn]:
    """What whole runs of the plans come to; money, spares and policy where they are known and not all the same."""
    of = {name: [plan.get(name) for plan in plans] for name in ("money", "spares", "policy")}
    shown = [name for name in ("money", "spares") if any(of[name]) and (name == "money" or len(set(of[name])) > 1)]
    names = ["time_to_train_s", "useful_energy_j", *shown, "effective_time_ratio", "checkpoint_interval_s"]
    policies = [TextColumn("policy", list(map(str, of["policy"])), left=True)] * (len(set(of["policy"])) > 1)
    return [*(tables.figure_column(name, plans) for name in names), *policies]


def run_words(job: Job, plan: Row) -> str:
    """What the whole run of a plan comes to: time, energy and money, and how it saves and goes on after failures."""
    parts = [f"{result_text('time_to_train_s', plan['time_to_train_s'])} to train"]
    parts += [f"{plan['effective_time_ratio']:.2%} of it useful"]
    parts += [result_text("useful_energy_j", plan["useful_energy_j"])] if plan["useful_energy_j"] else []
    parts += [f"{plan['money']:,.0f} {job.cluster.currency}".rstrip()] if plan["money"] else []
    every = f"{plan['checkpoint_interval_s']:.0f} s"
    if (minutes := plan["checkpoint_interval_s"] / 60.0) >= 1.0:
        every = quantity(minutes * 60.0, RUN_TIME_UNITS)
    spares = f", {plan['spares']} spare{'s' * (plan['spares'] != 1)}" if plan.get("spares") is not None else ""
    return f"{', '.join(parts)}; a checkpoint every {every}, {plan['policy']}{spares}"


def interval_half_width(plan: Row) -> float | None:
    """Half of the 90 % interval of a plan's time, in percent of it; None where it is not known."""
    low, high = (plan.get(f"iteration_time_s_{end}") for end in ("low", "high"))
    return None if low is None or high is None else 50.0 * (high - low) / plan["iteration_time_s"]


def rank_words(rank: int | None, of: int) -> str:
    """A layout's place among all; None: too far behind to be counted."""
    return f"rank {rank:,} of {of:,}" if rank is not None else f"beyond rank {MOST:,} of {of:,}"


def rate_words(job: Job, rates: Mapping[str, float]) -> str:
    """The throughput of a plan (the columns of `THROUGHPUT`, or none) in a sentence, each figure where it is known."""
    peak = f"of {peak_tflops(job):,.0f} TFLOP/s in {job.training.precision}"
    known = {name: rate for name, rate in rates.items() if name in _RATE_WORDS and rate is not None and rate == rate}
    if known.get("hfu") == known.get("mfu"):  # nothing is recomputed
        known.pop("hfu", None)
    words = [_RATE_WORDS[name](known[name]).format(peak=peak) for name in _RATE_WORDS if name in known]
    return f"{', '.join(words)}." if words else ""


_RATE_WORDS: dict[str, Callable[[float], str]] = {
    "tokens_per_s": "{:,.0f} tokens/s".format,
    "tokens_per_s_per_gpu": "{:,.0f} per GPU".format,
    "model_tflops_per_gpu": "{:,.0f} model TFLOP/s per GPU".format,
    "mfu": "MFU {:.1%} {{peak}}".format,
    "hfu": "HFU {:.1%}".format,
    "tokens_per_j": lambda rate: f"{tables.figure(rate)} tokens/J",
    "kwh_per_billion_tokens": lambda rate: f"{tables.figure(rate)} kWh of the GPUs per billion tokens",
}


def probability_of_fitting(plan: Row) -> float:
    """The probability that a predicted plan fits in memory, 1 where nothing states it."""
    known = plan.get("fit_probability")
    return 1.0 if known is None or math.isnan(known) else float(known)


def probability_text(probability: float) -> str:
    """A probability to two digits, rounded down: 0.496 is not even odds, nor is 0.799 the 0.80 of an unmarked plan."""
    return f"{math.floor(100.0 * probability + 1e-9) / 100.0:.2f}"


def tight_lines(plans: Sequence[Row]) -> list[str]:
    """The sentence on plans marked ~, where there are any."""
    fitting = sorted(map(probability_of_fitting, plans))
    least, most = probability_text(fitting[0]), probability_text(fitting[-1])
    if fitting[0] >= NOT_TIGHT:
        return []
    if fitting[-1] < FEASIBLE:
        none = "none of these is" if len(plans) > 1 else "this plan is not"
        span = least if least == most else f"{least} to {most}"
        return [
            f"~ {none} expected to fit in memory: probability {span}. More nodes, or GPUs with more memory, would help."
        ]
    return [f"~ tight: may not fit in memory (probability {least} at least)."]


def are_against_first(plans: Sequence[Row]) -> bool:
    """Whether the differences that entries of plans have are those from the first of them."""
    ends = (f"{name}_vs_first_percent{end}" for name in ("time", "energy") for end in ("_low", "_high"))
    known = len(plans) > 1 and plans[0].get("time_vs_first_percent") is not None
    return known and all(plans[0].get(end) in (0.0, None) for end in ends)


def compared_lines(plans: Sequence[Row], drawn: Sequence[str]) -> list[str]:
    """The legend of how sure differences of ``plans`` are, as far as their table as ``drawn`` has room for it."""
    if not are_against_first(plans):
        return []
    shown = "\n".join(drawn)
    parts = {
        "± there: its 90 % interval, in which errors that both plans share cancel": re.search(r"\d±\d", shown),
        "better: probability in % that the plan is really faster | leaner": "t|E" in shown,
    }
    found = [words for words, has in parts.items() if has]
    if not found:
        return ["  The intervals of Δ% do not fit: a wider terminal shows them, and --json has them."]
    more = "both" if len(found) > 1 else "how likely either is better"
    return [f"  {'; '.join(found)} (--json has {more})."]


def against_first(plan: Row, name: str) -> tuple[float, float, float]:
    """How much more time or energy a plan takes than what it was compared with, in percent, and the ends of that.

    NaN where it is not known.
    """
    found = [plan.get(f"{name}_vs_first_percent{end}") for end in ("", "_low", "_high")]
    percent, low, high = (math.nan if value is None else float(value) for value in found)
    return percent, low, high


def entry_with_rates(job: Job, front: Columns, row: int) -> dict[str, Any]:
    """One plan of a front as an entry, with its rates."""
    return tables.plan_entries(with_rates(job, take(front, np.array([row]))))[0]


COMPARED = {"time": "iteration_time_s", "energy": "energy_j"}  # what plans are compared in, and its column


def difference_column(
    name: str, rows: Sequence[Any], references: Sequence[Any], sure: Sequence[Row] = (), *, form: str = "+.1f",
    head: str = "", itself: str = "",
) -> TextColumn:  # fmt: skip
    """The column of time or energy of rows, each against a reference, in percent, with half of its interval if known.

    ``sure``: entries of the rows with how surely they differ; ``itself``: what stands for the difference of the first
    row, which is its own reference.
    """
    column = COMPARED[name]
    values, bases = ([tables.value_of(row, column) for row in some] for some in (rows, references))
    changes = (100 * (v / base - 1) if v and base else None for v, base in zip(values, bases, strict=True))
    plain = tables.format_values(changes, form)
    if itself and plain[0] != "-":
        plain[0] = itself
    known = [math.nan] * len(plain)  # half of the interval of each difference; none of a row from itself
    for row, entry in enumerate(sure):
        _, low, high = against_first(entry, name)
        if plain[row] != "-":
            known[row] = 0.5 * (high - low) or math.nan
    return TextColumn(head or f"{name}\nΔ%", tables.plus_minus(plain, known), brief=plain)


def better_words(plans: Sequence[Row]) -> list[str]:
    """Of each plan the probabilities, in percent, that it is faster and leaner than the first; dashes: not known."""
    if not are_against_first(plans):
        return ["-"] * len(plans)
    names = ("faster_probability", "leaner_probability")
    shares = ([None if plan.get(name) is None else 100.0 * plan[name] for plan in plans[1:]] for name in names)
    pairs = zip(*(tables.format_values(share, ".0f") for share in shares), strict=True)
    return ["-", *("-" if "-" in pair else "|".join(pair) for pair in pairs)]


def plan_frame(plans: Columns) -> pd.DataFrame:
    """Plans as a table with the columns of a measurement table: recompute by name, stage clocks as ``1410;1395``."""
    import pandas as pd

    columns: dict[str, Any] = dict(plans)
    columns |= {name: decode_cells(name, plans[name]) for name in LAYOUT_COLUMNS if name in plans}
    columns["stage_clock_mhz"] = np.asarray(stage_clocks_to_text(plans["stage_clock_mhz"]))
    return pd.DataFrame({name: list(v) if np.ndim(v) > 1 else v for name, v in columns.items()})


def basis_lines(assumed: Sequence[Assumption], informed_by: Mapping[str, int]) -> list[str]:
    """The measured runs that corrected the predictions, then assumptions without their sources, a line per topic."""
    runs = ", ".join(f"{count:,} in {place}" for place, count in informed_by.items())
    informed = tables.paragraphs([f"Corrected by measured runs on such a cluster: {runs}."] if runs else [])
    topics: dict[str, list[str]] = {}
    for one in assumed:
        if text := one.reason if one.brief is None else one.brief:
            topics.setdefault(f"{one.topic}: " if one.topic else "", []).append(text)
    alone = topics.pop("", [])
    lines = tables.paragraphs(f"- {topic}{'; '.join(texts)}" for topic, texts in topics.items())
    lines += tables.paragraphs(f"- {text}" for text in alone)
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], "- and more, see --json"]
    return [*informed, *(["Assumed (--json has all of it and the sources):", *lines] if lines else [])]


# --- the site

# what a site pays of an iteration, then of the run: header in a text, header on a page, and units; none: money
_OF_SITE: dict[str, tuple[str, str, tables.Units, tables.Units]] = {
    "facility_energy_j": ("energy", "site energy", tables.ENERGY_UNITS, tables.RUN_ENERGY_UNITS),
    "carbon_kg": ("CO2", "CO2", tables.CARBON_UNITS, tables.CARBON_UNITS),
    "cost": ("power\ncost", "electricity", (), ()), "gpu_cost": ("GPUs\ncost", "GPUs", (), ()),
}  # fmt: skip
SITE_FIGURES = {name: (head, on_page, units) for name, (head, on_page, units, _) in _OF_SITE.items()} | {
    "run_time_s": ("run: time", "run: time", tables.RUN_TIME_UNITS),
    "run_gpu_hours": ("GPU-hours", "run: GPU-hours", tables.COUNT_UNITS),
    **{f"run_{name}": (head, f"run: {on_page}", units) for name, (head, on_page, _, units) in _OF_SITE.items()},
}


def has_site_costs(job: Job) -> bool:
    """True where the job states anything that turns energy into what the site pays."""
    cluster = job.cluster
    rates = (job.training.run_tokens, cluster.carbon_kg_per_kwh, cluster.price_per_kwh, cluster.price_per_gpu_hour)
    return any(rate is not None for rate in rates)


def shows_site(job: Job) -> bool:
    """True where energy at the site's meter belongs into an answer: its costs are stated, or its PUE is."""
    return has_site_costs(job) or job.cluster.origin("pue") == "stated"


def site_table(
    job: Job, names: Sequence[str], time_s: npt.ArrayLike, energy_j: npt.ArrayLike, most: int = tables.WIDTH
) -> list[str]:
    """Energy, carbon and money at the site's meter: a line per plan, per iteration and for the run where it is known.

    ``time_s`` and ``energy_j``, (n,), are those of an iteration and of all GPUs.
    A line of words has ``most`` characters.
    """
    cluster, iterations = job.cluster, job.training.run_iterations
    time_s, energy_j = np.asarray(time_s, np.float64), np.asarray(energy_j, np.float64)
    share = f" and {cluster.host_load_share:.0%} of their GPUs" if cluster.host_load_share else ""
    title = f"At the site's meter, GPUs and hosts ({cluster.nodes:,} x {cluster.host_power_w:,.0f} W{share}) times PUE "
    title += f"{cluster.pue:g}, per iteration"
    if iterations is not None:
        title += f" and for a run of {job.training.run_tokens:,} tokens ({iterations:,} iterations"
        title += ", its failures not counted)" if job.is_of_run else ")"
    paid = bill(job, time_s, energy_j)
    power = (paid["facility_energy_j"] / time_s).tolist()
    columns = [TextColumn("", [f"  {name}" for name in names], left=True)]
    columns.append(tables.unit_column("power", power, tables.SITE_POWER_UNITS))
    for name, values in paid.items():
        head, _, units = SITE_FIGURES[name]
        columns.append(tables.unit_column(head, values.tolist(), units or ((1.0, cluster.currency),)))
    return [*tables.paragraphs([f"{title}:"], most=most), *tables.lay_out(columns)]


_ALIKE = 1e-3


def are_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two plans are of one layout and differ in clocks that hardly matter."""
    close = all(math.isclose(one[name] or 0.0, other[name] or 0.0, rel_tol=_ALIKE) for name in OBJECTIVES)
    return close and all(one.get(name) == other.get(name) for name in LAYOUT_COLUMNS)


# The best layouts of a proposal, each with its clocks condensed, and the steps from one to the next in words.

MOST_PARTS = 3  # that a step names
NEAR = 0.01  # of the time: layouts of the same degrees that are counted beside a shown one
SMALL = 0.002  # of the time: parts that differ by less are not named
PARTS = {
    "tp_comm": "tensor-parallel traffic", "cp_comm": "context-parallel traffic", "ep_comm": "all-to-alls of experts",
    "gtp_comm": "gathers of weights beside tp", "pp_comm": "sends between stages", "zero_comm": "gathers of weights",
    "dp_comm": "gradient traffic", "host": "host time", "bubble": "bubble", "optimizer": "optimizer step",
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class LayoutSummary(ShortRepr):
    """One split of the GPUs: its best layout's fastest plan, its knee and its plan of least energy, as entries."""

    rank: int  # by the time of its fastest plan, among splits; 1 is the first
    plans: tuple[Mapping[str, Any], ...]  # by time, one to three
    time_s: Mapping[str, float]  # part -> seconds of the fastest of them
    on_front: int  # plans of the front that it has
    near: int  # more layouts of the same degrees, within `NEAR` of its time

    @property
    def fastest(self) -> dict[str, Any]:
        """The fields of its fastest plan, as every verb takes a plan."""
        return {name: value for name, value in self.plans[0].items() if name in PLAN_KEYS}


@dataclass(frozen=True)
class Rank:
    """The place of a plan's layout among all feasible layouts by time at the highest clock."""

    rank: int | None  # 1 is the first; None: too far behind to be counted
    of: int
    behind: float  # share of time behind the first: 0.04 is 4 % slower
    energy_behind: float | None = None  # the same of energy; None where it is not known

    def sentence(self) -> str:
        """The rank in a sentence, with time and energy beside the first."""
        words = f"Its layout is {rank_words(self.rank, self.of)} at the highest clock"
        if self.rank != 1:
            words += f", {abs(self.behind):.1%} {'slower' if self.behind >= 0.0 else 'faster'} than the first"
            if (energy := self.energy_behind) is not None:
                words += f", at {abs(energy):.1%} {'more' if energy >= 0.0 else 'less'} energy"
        return f"{words}."


def steps_in_words(layouts: Sequence[LayoutSummary]) -> list[str]:
    """The difference of each layout's fastest plan from the one before in words; blank for the first."""
    return ([""] + [step(before, after) for before, after in pairwise(layouts)])[: len(layouts)]


def step(before: LayoutSummary, after: LayoutSummary) -> str:
    """Which parts of the time make the difference between two layouts: ``less bubble, 2.1 s; more compute, 0.4 s``."""
    least = SMALL * sum(before.time_s.values())
    words = [
        f"{'more' if seconds > 0 else 'less'} {PARTS.get(name, name)}, "
        f"{tables.quantity(abs(seconds), tables.TIME_UNITS)}"
        for name, seconds in parts_between(before.time_s, after.time_s).items()
        if abs(seconds) >= least
    ]
    return "; ".join(words[:MOST_PARTS]) or "the same parts of time, within 0.2 %"


def parts_between(first: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The differences of parts by name, the largest first; parts that neither has are left out."""
    names = dict.fromkeys((*first, *other))
    found = {name: other.get(name, 0.0) - first.get(name, 0.0) for name in names}
    return dict(sorted(((n, d) for n, d in found.items() if d), key=lambda item: -abs(item[1])))


def layout_lines(
    reference: Sequence[Mapping[str, Any]], layouts: Sequence[LayoutSummary]
) -> tuple[list[str], list[Mapping[str, Any]]]:
    """(lines of the table of layouts, the plans in it): the reference first, then up to three plans of each layout.

    Where the reference is the fastest plan of the first layout it stands once.
    """
    same = "=" if reference and layouts and are_alike(reference[0], layouts[0].plans[0]) else ""
    if same:
        layouts = [replace(layouts[0], plans=(reference[0], *layouts[0].plans[1:])), *layouts[1:]]
        reference = []
    plans, marks, repeated = list(reference), ["="] * len(reference), set[int]()
    for layout in layouts:
        first = len(plans)
        plans += layout.plans
        marks += [f"{same if not first else ''}{layout.rank}", *[""] * (len(layout.plans) - 1)]
        repeated |= set(range(first + 1, len(plans)))
    lines = predicted_table(plans, marks, repeated)
    at = len(lines) - len(plans) + len(reference)  # behind the head and the reference
    out = lines[:at]
    for layout, text in zip(layouts, steps_in_words(layouts), strict=True):
        out += lines[at : at + len(layout.plans)]
        at += len(layout.plans)
        remarks = [f"than the one above: {text}"] if text else []
        remarks += [f"{layout.near} more of these degrees within {NEAR:.0%}"] if layout.near else []
        remarks += [] if layout.on_front else ["none of it on the front"]
        out += tables.paragraphs([f"     {'; '.join(remarks)}."] if remarks else [], "       ")
    return out, plans
