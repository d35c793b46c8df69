"""The answer of ``explain``: one plan with time, energy and memory by part, by stage, and why it is not feasible."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from jointopt.core.facts import Assumption
from jointopt.core.schema import POWER_LIMIT
from jointopt.jobs.cluster import Cluster
from jointopt.jobs.job import Job
from jointopt.physics.site import bill, facility_parts_j
from jointopt.report import tables
from jointopt.report.doubts import OpenSetting, first_doubts, first_lines
from jointopt.report.layout_table import Rank
from jointopt.report.plans import basis_lines, has_site_costs, odds, plan_words, rate_words, site_table
from jointopt.report.reasons import beyond
from jointopt.report.shortage import Shortage
from jointopt.report.tables import Result, TextColumn, pick, tidy_parts
from jointopt.surrogate.memory import SURE

_ENDS = ("_low", "_high")
_TIMES = ("compute", "tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm", "bubble", "optimizer")  # in every document
_PHASES = {
    "compute_bound": "in compute-bound kernels", "memory_bound": "in memory-bound kernels",
    "communication": "in collectives and sends", "waiting": "while it waits",
}  # fmt: skip
_WORDS = {
    "tensor_parallel_rereads": "activations re-read by tp", "intra_node": "within nodes", "inter_node": "between nodes",
    "expert_dp": "dp of experts",
    "registers": "registers and instructions", "l2": "L2",
    "memory_read": "memory, read", "memory_written": "memory, written",
}  # fmt: skip


@dataclass(frozen=True)
class Explanation(Result):
    """One plan by part: every breakdown adds up to its total.

    ``communication_energy_j`` is the part communication by kind of parallelism, then by link.
    """

    rows = "stages"
    keys = (
        "job=job.name plan feasible violations exceeded iteration_time_s energy_j avg_power_w peak_memory_gib "
        "fit_probability time_s "
        "energy_by_part_j memory_energy_j communication_energy_j memory_gib assumed in_domain surrogate "
        "informed_by learned rank utilization energy_by_level_j messages "
        "power_by_phase power_swing power_excursion temperature_swing"
    )
    job: Job
    plan: Mapping[str, Any]  # plan columns of one plan; stage_clock_mhz is a list of floats
    feasible: bool
    violations: tuple[str, ...]  # sentences: rules of the job and its framework that keep it from being started
    iteration_time_s: float
    energy_j: float  # all GPUs, one iteration
    avg_power_w: float  # per GPU
    peak_memory_gib: float  # worst GPU
    time_s: Mapping[str, float]  # part -> seconds on the critical path; adds up to iteration_time_s
    energy_by_part_j: Mapping[str, float]  # part -> joules; adds up to energy_j
    memory_gib: Mapping[str, float]  # part -> GiB of the worst GPU; adds up to peak_memory_gib
    stages: tuple[Stage, ...]
    assumed: tuple[Assumption, ...] = ()  # what no source states, and what stands in
    memory_energy_j: Mapping[str, float] = field(default_factory=dict)  # of the part memory, by purpose
    communication_energy_j: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # result -> 90 % interval
    fit_probability: float = 1.0  # that it fits in memory
    in_domain: bool = True  # recorded runs support such a plan
    doubts: tuple[str, ...] = ()  # why they do not
    surrogate: str = "none"
    informed_by: Mapping[str, int] = field(default_factory=dict)  # as in `Proposal`
    learned: tuple[str, ...] = ()  # sentences: what a cluster's own runs move the time by, where there are many
    throughput: Mapping[str, float] = field(default_factory=dict)  # `jointopt.physics.throughput.THROUGHPUT`
    # shares of the time in which kernels run, and in which passes occupy the GPU (means over the stages); of a link's
    # bandwidth in use by the GPU that sends most: intra_node, inter_node
    utilization: Mapping[str, float] = field(default_factory=dict)
    # the parts compute and memory, attributed to arithmetic, registers, l2, memory_read and memory_written
    energy_by_level_j: Mapping[str, float] = field(default_factory=dict)
    messages: tuple[Mapping[str, Any], ...] = ()  # fields of `jointopt.physics.explain.parts.Message`
    # of a stated recipe: seconds of casts, time of products over one scale per tensor, bytes of a kept input's element
    quantization: Mapping[str, float] = field(default_factory=dict)
    # means over window_s, as meters show them: highest and lowest of any GPU (W), and of all GPUs together (kW)
    power_by_phase: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # s, W of a GPU; mean of stages
    power_swing: Mapping[str, float] = field(default_factory=dict)
    # of the stage that draws most: watts before the limit acts, the limit, how long at a stretch and what share of time
    power_excursion: Mapping[str, float] = field(default_factory=dict)
    # of the hottest stage: extremes within an iteration, seconds until they are there, and to throttling without pauses
    temperature_swing: Mapping[str, float] = field(default_factory=dict)
    exceeded: tuple[str, ...] = ()  # sentences: bounds of time, energy and power that the job states
    shortage: Shortage | None = None  # of memory; None where it is likelier to fit than not
    rank: Rank | None = None  # None where it was not looked for, or the plan is none of the space
    hangs_on: tuple[OpenSetting, ...] = ()  # what the job leaves open, by how much it moves the plan's time

    @property
    def first(self) -> dict[str, Any]:
        """The plan as an entry that doubts of a front's first row are told by."""
        ends = self.intervals.get("iteration_time_s", (None, None))
        return {"mfu": self.throughput.get("mfu"), "iteration_time_s_high": ends[1]}

    @property
    def against(self) -> tuple[str, ...]:
        """Sentences: why it is not feasible."""
        return (*self.violations, *self.exceeded, *([self.shortage.sentence()] if self.shortage else []))

    def refusal(self, *, allow_tight: bool = False) -> str:
        """Why it is not feasible; one that only lacks memory is an answer all the same if ``allow_tight``."""
        if self.feasible or (allow_tight and not self.violations and not self.exceeded):
            return ""
        return f"The plan is not feasible for job {self.job.name!r}: {' '.join(self.against)}"

    def document(self) -> dict[str, Any]:
        """The totals, every breakdown, what the site pays, the intervals and the stages."""
        job, time_s, energy_j = self.job, self.iteration_time_s, self.energy_j
        breakdowns = ("time_s", "energy_by_part_j", "memory_gib")
        out = pick(self, self.keys) | {name: tidy_parts(getattr(self, name)) for name in breakdowns}
        out["time_s"] = dict.fromkeys(_TIMES, 0.0) | out["time_s"]
        out["doubts"] = [*first_doubts(job, self.first, self.hangs_on, "The plan's"), *self.doubts]
        out["hangs_on"] = [one.document() for one in self.hangs_on]
        out |= {"quantization": self.quantization} if self.quantization else {}
        out |= self.shortage.document() if self.shortage else {}
        out["facility_energy_by_part_j"] = facility_parts_j(job.cluster, time_s, energy_j)
        ends = {f"{n}{end}": v for n, both in self.intervals.items() for end, v in zip(_ENDS, both, strict=True)}
        out["links"] = {name: {"value": v, "origin": origin} for name, (v, origin) in _links(job.cluster).items()}
        return out | dict(self.throughput) | bill(job, time_s, energy_j) | ends | {"stages": self.stages}

    def text(self) -> str:
        """Totals, the breakdowns with percentages, the stages; without energy where the GPU's power is not known."""
        blocks = [
            _totals(self),
            shares("Time on the critical path", tidy_parts(self.time_s), tables.TIME_UNITS),
            shares("Memory of the fullest GPU", tidy_parts(self.memory_gib), tables.MEMORY_UNITS),
            stage_table(self.stages),
        ]
        if math.isfinite(self.energy_j):
            job, time_s, energy_j = self.job, self.iteration_time_s, self.energy_j
            paid = {name: float(joules) for name, joules in facility_parts_j(job.cluster, time_s, energy_j).items()}
            site = shares(f"Energy of the site (PUE {job.cluster.pue:g})", paid, tables.ENERGY_UNITS)
            costs = site_table(job, ["this plan"], [time_s], [energy_j]) if has_site_costs(job) else []
            levels = (
                shares("Energy of kernels by level", _levels(self), tables.ENERGY_UNITS)
                if self.energy_by_level_j
                else []
            )
            blocks[2:2] = [energy_table(self), levels, site, costs]
            blocks.append(stage_energy_table(self.stages))
        basis = [*basis_lines(self.assumed, self.informed_by), *tables.paragraphs(self.learned)]
        return tables.blocks_text(*blocks, link_lines(self.job.cluster), basis)


_LINKS = {
    "intra_node_gbytes_per_s": "{:g} GB/s inside a node", "inter_node_gbytes_per_s": "{:g} GB/s between nodes",
    "inter_node_latency_us": "{:g} µs between nodes",
}  # fmt: skip


def _links(cluster: Cluster) -> dict[str, tuple[float, str]]:
    """(figure, where it is from) of the links that the cluster has, by its name in the job file."""
    present = {name: cluster.nodes > 1 or name.startswith("intra") for name in _LINKS}
    return {name: (getattr(cluster, name), cluster.origin(name)) for name in _LINKS if present[name]}


def link_lines(cluster: Cluster) -> list[str]:
    """The links that predictions rest on, each with where it is from; none for a single GPU."""
    if cluster.num_gpus == 1:
        return []
    texts = [f"{_LINKS[name].format(value)} ({origin})" for name, (value, origin) in _links(cluster).items()]
    return tables.paragraphs([f"Links of a GPU, each way: {', '.join(texts)}."])


def phase_words(found: Mapping[str, Mapping[str, float]], stages: Sequence[Stage]) -> str:
    """Sentences on the power of a GPU by what it does, and on how peak and limit are to be read beside it.

    Blank where it is not known.
    """
    whole = sum(phase["time_s"] for phase in found.values())
    words: list[str] = []
    for name, phase in found.items():
        if phase["time_s"] > 0.005 * whole:
            of = "" if words else " of the time"
            words.append(f"{phase['power_w']:.0f} W {_PHASES[name]} ({phase['time_s'] / whole:.0%}{of})")
    return f"A GPU draws {', '.join(words)}.{_above_words(found, stages)}" if words else ""


def _above_words(found: Mapping[str, Mapping[str, float]], stages: Sequence[Stage]) -> str:
    """Why kernels of one kind draw more than the peak or limit on the same page; blank where they do not."""
    most_w = max(phase["power_w"] for phase in found.values())
    bounds = {
        "limit": max((stage.power_limit_w or math.inf for stage in stages), default=math.inf),
        "peak": max((stage.peak_power_w or math.inf for stage in stages), default=math.inf),
    }
    words = [f"the {name} of {watts:.0f} W" for name, watts in bounds.items() if round(most_w) > round(watts)]
    if not words:
        return ""
    means = "is a mean" if len(words) == 1 else "are means"
    return f" Such kernels last milliseconds; {' and '.join(words)} {means} over all kernels of a micro-batch."


def swing_words(swing: Mapping[str, float]) -> str:
    """A sentence on power within an iteration; blank where none is known."""
    if not swing:
        return ""
    of_all = between(*(tables.figure(swing[f"cluster_{end}_kw"]) for end in ("trough", "peak")))
    of_gpu = between(*(f"{swing[f'gpu_{end}_w']:.0f}" for end in ("trough", "peak")))
    return f"In means over {swing['window_s']:g} s a GPU draws {of_gpu} W, all GPUs {of_all} kW."


def excursion_words(found: Mapping[str, float]) -> str:
    """A sentence on power above the limit; blank where there is none."""
    if not found.get("lasts_s"):
        return ""
    above, after = found["peak_w"] - found["limit_w"], f"{1e3 * found['lasts_s']:.0f} ms after a pause"
    return f"For up to {after} a GPU draws up to {found['peak_w']:.0f} W, {above:.0f} above its limit."


def utilization_words(cluster: Cluster, used: Mapping[str, float]) -> str:
    """A sentence on how busy GPUs and links are; blank where it is not known."""
    if not used:
        return ""
    words = (
        f"Kernels run {used['kernels']:.0%} of the time; forward and backward passes, waiting for their inputs "
        f"included, take {used['occupied']:.0%}."
    )
    present = {"intra_node": cluster.gpus_per_node > 1, "inter_node": cluster.nodes > 1}
    links = [link for link, there in present.items() if there]
    shares_of = zip(links, ("its bandwidth", "that"), strict=False)
    used_words = " and ".join(f"{used[link]:.1%} of {of} {_WORDS[link]}" for link, of in shares_of)
    return f"{words} A GPU uses {used_words}." if links else words


def message_words(found: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on what messages reach of their links; blank where none is sent."""
    words = [
        f"{_WORDS.get(one['parallelism'], one['parallelism'])} {one['share']:.0%} {_WORDS[one['link']]} ({_sent(one)})"
        for one in found
    ]
    return f"Share of a link's bandwidth that messages reach: {', '.join(words)}." if words else ""


def quantization_words(job: Job, found: Mapping[str, float]) -> str:
    """A sentence on the recipe that scales products and where it costs; blank where none is stated."""
    if not found:
        return ""
    slower = found["product_time_factor"]
    products = f", products take {slower:g} times those with one scale per tensor" if slower != 1.0 else ""
    return (
        f"Products in {job.training.precision_words}: casts take {tables.figure(found['casts_s'])} s of an "
        f"iteration{products}; a kept input takes {found['input_bytes']:.4g} B an element."
    )


def _sent(one: Mapping[str, Any]) -> str:
    factor, unit = tables.unit_of(one["size_bytes"], tables.MESSAGE_UNITS)
    return f"{one['kind']}, {float(format(one['size_bytes'] / factor, '.3g')):,g} {unit}"


def _tight(found: Explanation) -> str:
    return f": fits with probability {odds(found.fit_probability)}" if found.fit_probability < SURE else ""


def _recipe(job: Job) -> str:
    """The framework, where its recipe class is not the usual one."""
    return "" if job.training.software == job.training.framework.name else f", {job.training.software}"


def _totals(found: Explanation) -> list[str]:
    """Job, plan, totals with their 90 % intervals, and whether it can be run."""
    job, cluster, plan = found.job, found.job.cluster, found.plan
    limits = f" {POWER_LIMIT}={plan[POWER_LIMIT]:g}" if POWER_LIMIT in plan else ""
    plan = {name: value for name, value in plan.items() if name != POWER_LIMIT}
    totals = []
    for name in ("iteration_time_s", "energy_j"):
        if math.isfinite(value := getattr(found, name)):
            ends = tables.percent_of(found.intervals.get(name, ()), value, "+.0f")
            interval = f" (90 % interval {' to '.join(ends)} %)" if ends else ""
            totals.append(f"{tables.result(name, value)}{interval}")
    power = f", {found.avg_power_w:.0f} W per GPU" if math.isfinite(found.energy_j) else ""
    heat = heat_words(found.intervals, found.stages)
    memory = f"{heat}{found.peak_memory_gib:.1f} GiB on the fullest GPU{_tight(found)}"
    why = "; ".join(found.doubts) or beyond(found.surrogate, job)
    known = "" if found.in_domain else f" Its interval is wider: {why}."
    lines = [
        f"{job.name}: {job.model.name} on {cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu.id}{_recipe(job)}",
        f"Plan: {plan_words(plan, plan)}{limits}",
        f"{' and '.join(totals)} per iteration{power}, {memory}.{known}",
        rate_words(job, found.throughput),
        utilization_words(job.cluster, found.utilization),
        message_words(found.messages),
        quantization_words(job, found.quantization),
        phase_words(found.power_by_phase, found.stages),
        swing_words(found.power_swing),
        excursion_words(found.power_excursion),
        warming_words(found.temperature_swing),
        (f"Feasible. {found.rank.sentence() if found.rank else ''}" if found.feasible else "Not feasible:"),
        *(f"- {text}" for text in found.against),
    ]
    return [*tables.paragraphs(lines), *first_lines(job, found.first, found.hangs_on, "The plan's")]


def shares(
    title: str, parts: Mapping[str, float], units: tables.Units, inside: Mapping[str, Mapping[str, float]] | None = None
) -> list[str]:
    """One line per part, the largest first, with its share; parts of nothing are left out, the total comes last.

    ``inside`` has what some parts are made of, by name; it stands indented below them.
    """
    rows = []
    for name, value in _largest_first(parts):
        rows.append((f"  {name}", value))
        rows += [(f"    {n}", v) for n, v in _largest_first((inside or {}).get(name, {}))]
    total = sum(parts.values())
    names, values = zip(*rows, ("  total", total), strict=True)
    percent = tables.fixed([100 * value / total if total else None for value in values], ".1f")
    amounts = tables.measured("", values, units, total)
    return tables.lay_out([TextColumn(title, names, left=True), amounts, TextColumn("%", percent)])


def _largest_first(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(((name, value) for name, value in parts.items() if value), key=lambda part: -part[1])


def energy_table(found: Explanation) -> list[str]:
    """Energy of all GPUs by part; memory and communication with what they are made of."""
    links = {
        f"{kind} {_WORDS.get(link, link)}": joules
        for kind, by_link in found.communication_energy_j.items()
        for link, joules in by_link.items()
    }
    memory = {_WORDS.get(name, name): joules for name, joules in found.memory_energy_j.items()}
    inside = {"memory": memory, "communication": links}
    return shares("Energy of all GPUs", tidy_parts(found.energy_by_part_j), tables.ENERGY_UNITS, inside)


def _levels(found: Explanation) -> dict[str, float]:
    return {_WORDS.get(name, name): joules for name, joules in found.energy_by_level_j.items()}


def _by_stage(columns: Sequence[TextColumn], memory_gib: Sequence[float] = ()) -> list[str]:
    """A table with one line per run of stages that print the same, and the range of their memory."""
    runs = tables.equal_runs(zip(*(column.cells for column in columns), strict=True))
    stages = TextColumn("stage", [tables.span(run[0] + 1, run[-1] + 1, "-") for run in runs])
    shown = [TextColumn(c.header, [c.cells[run[0]] for run in runs]) for c in columns]
    if memory_gib:
        ends = ([f"{end(memory_gib[i] for i in run):.1f}" for end in (min, max)] for run in runs)
        shown.append(TextColumn("memory\nGiB", list(itertools.starmap(tables.span, ends))))
    return tables.lay_out([stages, *tables.known(shown)])


def stage_table(stages: Sequence[Stage]) -> list[str]:
    """One line per stage, or per neighbours that print the same, with the range of their memory.

    ``held by``: the power limit (W), or heat, that keeps the clock below the plan's.
    """

    def each(name: str) -> list[Any]:
        return [getattr(stage, name) for stage in stages]

    longest_s = max(stage.busy_s + stage.idle_s for stage in stages)
    held = {"power_limit": "{:g} W", "temperature": "heat"}
    columns = [
        TextColumn("layers", [str(count) for count in each("num_layers")]),
        tables.of("clock_mhz", stages),
        *(tables.of(name, stages, longest_s) for name in ("busy_s", "idle_s")),
        tables.of("energy_j", stages, max(each("energy_j"))),
        *(tables.of(name, stages) for name in ("power_w", "peak_power_w", "temperature_c")),
        TextColumn("clock\nheld by", [held.get(s.held_by, "-").format(s.power_limit_w or 0) for s in stages]),
    ]
    return _by_stage(columns, each("memory_gib"))


def stage_energy_table(stages: Sequence[Stage]) -> list[str]:
    """Energy of one GPU of each stage by part, in J; none for a plan without a pipeline, whose parts are those."""
    per_gpu = [
        {name: joules / (stage.num_gpus or 1) for name, joules in tidy_parts(stage.energy_by_part_j).items()}
        for stage in stages
    ]
    if len(stages) < 2 or not all(per_gpu):
        return []
    total = {name: sum(parts.get(name, 0.0) for parts in per_gpu) for name in per_gpu[0]}
    most = max(max(parts.values()) for parts in per_gpu)
    columns = [
        TextColumn(name, tables.numbers([parts.get(name, 0.0) for parts in per_gpu], most))
        for name, _ in _largest_first(total)
    ]
    return ["Energy of one GPU of each stage, J", *_by_stage(columns)]


# Words on peak power and temperature.


_UNITS = {"peak_power_w": "W at the peak", "temperature_c": "°C"}


def heat_words(intervals: Mapping[str, tuple[float, float]], stages: Sequence[Stage]) -> str:
    """Peak power and temperature of the hottest GPU with 90 % intervals, each with a comma; blank without these."""
    words = ""
    for name, unit in _UNITS.items():
        if ends := intervals.get(name):
            highest = max(getattr(stage, name) or 0.0 for stage in stages)
            words += f"{highest:.0f} {unit} ({ends[0]:.0f} to {ends[1]:.0f}), "
    return words


def warming_words(found: Mapping[str, float]) -> str:
    """A sentence on temperature within an iteration; blank where it is not known."""
    if not found:
        return ""
    swing = between(f"{found['trough_c']:.1f}", f"{found['peak_c']:.1f}")
    words = f"The hottest GPU is at {swing} °C within an iteration, some {found['settles_s']:.0f} s after the start"
    late = f"; without pauses it would throttle after {found['throttles_s']:.0f} s" if "throttles_s" in found else ""
    return f"{words}{late}."


def between(low: str, high: str) -> str:
    """A range of two figures, or one where they are alike."""
    return tables.span(low, high, " to ")


# One pipeline stage of an explained plan.


@dataclass(frozen=True)
class Stage:
    """One pipeline stage of an explained plan; power and memory are those of each GPU of the stage."""

    clock_mhz: float
    busy_s: float
    idle_s: float
    energy_j: float  # all GPUs of the stage, one iteration
    memory_gib: float
    num_layers: int = 0
    power_w: float | None = None
    temperature_c: float | None = None  # of the hottest GPU
    num_gpus: int | None = None
    peak_power_w: float | None = None  # of the hottest GPU, while a micro-batch's kernels run
    power_limit_w: float | None = None  # the cluster's, or a lower one of the plan
    held_by: str = ""  # power_limit or temperature, where it keeps the clock below the plan's
    energy_by_part_j: Mapping[str, float] = field(default_factory=dict)  # adds up to energy_j
    temperature_by_position_c: Mapping[str, float] = field(default_factory=dict)  # inlet, exhaust

    def document(self) -> dict[str, Any]:
        """Every field."""
        return asdict(self) | {"energy_by_part_j": tidy_parts(self.energy_by_part_j)}
