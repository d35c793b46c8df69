"""The answer of ``explain``: one plan with time, energy and memory by part, by stage, and why it is not feasible."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from jointopt.core.facts import Assumption
from jointopt.core.schema import POWER_LIMIT
from jointopt.jobs.cluster import Cluster
from jointopt.jobs.job import Job, Training
from jointopt.jobs.objectives import OBJECTIVES
from jointopt.physics.site import bill, facility_parts_j
from jointopt.report import tables
from jointopt.report.decision import command_lines
from jointopt.report.doubts import OpenSetting, doubt_lines, plan_doubts, settings_lines, unlike_recorded_runs
from jointopt.report.plans import (
    Rank,
    basis_lines,
    has_site_costs,
    plan_words,
    probability_text,
    rate_words,
    site_table,
)
from jointopt.report.tables import Block, Result, TextColumn, pick, tidy_parts
from jointopt.surrogate.memory import NOT_TIGHT

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
_LINKS = {
    "intra_node_gbytes_per_s": "{:g} GB/s inside a node", "inter_node_gbytes_per_s": "{:g} GB/s between nodes",
    "inter_node_latency_us": "{:g} µs between nodes",
}  # fmt: skip
_HEAT = {"peak_power_w": "W at the peak", "temperature_c": "°C"}


@dataclass(frozen=True)
class Shortage:
    """Memory per GPU that a plan lacks to be as likely to fit as not, in GiB, on its fullest GPU."""

    predicted_gib: float
    allowed_gib: float  # up to which predictions are as likely to fit as not
    probability: float  # of fitting
    changes: Sequence[str] = ()  # words for a plan after which it would fit, such as recompute=full
    ran_out: bool = False  # in a measured run, or it needs as much as a layout that did

    @property
    def cause(self) -> str:
        """Why it is not expected to fit."""
        if self.ran_out:
            return "the same layout, or one that needs no more, ran out of memory in a measured run"
        missing_gib = math.ceil(self.missing_gib * 10.0 - 1e-9) / 10.0  # rounded up: a shortage of nothing is none
        return f"its fullest GPU needs {self.predicted_gib:.1f} GiB, {missing_gib:.1f} GiB too many"

    @property
    def missing_gib(self) -> float:
        """GiB too many; NaN where runs alone say so."""
        missing = self.predicted_gib - self.allowed_gib
        return math.nan if self.ran_out and missing <= 0.0 else missing

    def document(self) -> dict[str, Any]:
        """The GiB that are missing, and the changes that help."""
        return {"missing_gib": self.missing_gib, "would_fit_with": list(self.changes)}

    def sentence(self) -> str:
        """The shortage in a sentence, and in another what would help."""
        needs = f"It is not expected to fit in memory (probability {probability_text(self.probability)}): {self.cause}."
        return needs + (f" It would fit with {', or with '.join(self.changes)}." if self.changes else "")


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


@dataclass(frozen=True, repr=False)
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
    next_command: Mapping[str, str] | None = None  # that starts it, a note; None: not feasible, or no shell named it

    @property
    def _entry(self) -> dict[str, Any]:
        """The plan as an entry that its doubts are told by."""
        _, high_s = self.intervals.get("iteration_time_s", (None, None))
        return {"mfu": self.throughput.get("mfu"), "iteration_time_s_high": high_s}

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
        out = pick(self, self.keys)
        out |= {name: tidy_parts(out[name]) for name in ("time_s", "energy_by_part_j", "memory_gib")}
        out["time_s"] = dict.fromkeys(_TIMES, 0.0) | out["time_s"]
        out["doubts"] = [*plan_doubts(job, self._entry, self.hangs_on), *self.doubts]
        out["hangs_on"] = self.hangs_on
        out |= {"quantization": self.quantization} if self.quantization else {}
        out |= self.shortage.document() if self.shortage else {}
        out["facility_energy_by_part_j"] = facility_parts_j(job.cluster, time_s, energy_j)
        out["links"] = {name: {"value": v, "origin": origin} for name, (v, origin) in _links(job.cluster).items()}
        out |= dict(self.throughput) | bill(job, time_s, energy_j)
        for name, (low, high) in self.intervals.items():
            out |= {f"{name}_low": low, f"{name}_high": high}
        return out | {"stages": self.stages}

    def blocks(self, *, brief: bool = False) -> Iterator[Block]:
        """Totals, the breakdowns with percentages, the stages; without energy where the GPU's power is not known.

        ``brief``: totals, whether it is feasible, what its time hangs on, and the largest parts.
        """
        if brief:
            yield [
                *_totals(self),
                "Feasible." if self.feasible else "Not feasible:",
                *(f"- {why}" for why in self.against),
            ]
            yield [largest_parts(self), settings_lines(self.hangs_on, most=3, whose="The plan's")]
            if has_site_costs(self.job) and math.isfinite(self.energy_j):
                yield [
                    site_table(self.job, ["this plan"], [self.iteration_time_s], [self.energy_j], tables.BRIEF_WIDTH)
                ]
            yield [
                "-v: power by kernel, heat, links, energy by level, stages, and what is assumed.",
                command_lines(self.next_command) if "to" in (self.next_command or {}) else [],
            ]
            return
        cluster, time_s, energy_j = self.job.cluster, self.iteration_time_s, self.energy_j
        rank = self.rank.sentence() if self.rank else ""
        yield [
            *_totals(self), *_use_sentences(self), *_power_sentences(self),
            f"Feasible. {rank}" if self.feasible else "Not feasible:", *(f"- {text}" for text in self.against),
            doubt_lines(self.job, self._entry, self.hangs_on),
        ]  # fmt: skip
        yield [share_table("Time on the critical path", tidy_parts(self.time_s), tables.TIME_UNITS)]
        if math.isfinite(energy_j):
            yield [energy_table(self)]
            if levels := {_WORDS.get(name, name): joules for name, joules in self.energy_by_level_j.items()}:
                yield [share_table("Energy of kernels by level", levels, tables.ENERGY_UNITS)]
            paid = {name: float(joules) for name, joules in facility_parts_j(cluster, time_s, energy_j).items()}
            yield [share_table(f"Energy of the site (PUE {cluster.pue:g})", paid, tables.ENERGY_UNITS)]
            if has_site_costs(self.job):
                yield [site_table(self.job, ["this plan"], [time_s], [energy_j])]
        memory_gib = tidy_parts(self.memory_gib)
        yield [share_table("Memory of the fullest GPU", memory_gib, tables.MEMORY_UNITS)]
        if memory_gib.get("logits"):
            yield [_logits_sentence(self.job.training)]
        yield [stage_table(self.stages)]
        if math.isfinite(energy_j):
            yield [stage_energy_table(self.stages)]
        if cluster.num_gpus > 1:
            links = [f"{_LINKS[name].format(v)} ({origin})" for name, (v, origin) in _links(cluster).items()]
            yield [f"Links of a GPU, each way: {', '.join(links)}."]
        yield [basis_lines(self.assumed, self.informed_by), *self.learned]


LARGEST = 5  # parts of each breakdown, in a brief answer


def largest_parts(found: Explanation) -> list[str]:
    """The largest parts of time, energy and memory, side by side, with their shares of the total in percent."""
    parts = {"time": found.time_s, "energy, all GPUs": found.energy_by_part_j, "memory, fullest GPU": found.memory_gib}
    known = {head: tidy_parts(values) for head, values in parts.items() if math.isfinite(sum(values.values()))}
    columns = []
    for head, values in known.items():
        shown = sorted(values.items(), key=lambda part: -part[1])
        total = sum(values.values())
        cells = [(name, f"{100.0 * value / total:.1f} %") for name, value in shown[:LARGEST] if value > 0.0]
        if rest := sum(value for _, value in shown[LARGEST:]):
            cells.append(("others", f"{100.0 * rest / total:z.1f} %"))
        cells += [("", "")] * (LARGEST + 1 - len(cells))
        columns += [
            TextColumn(head, [name for name, _ in cells], left=True),
            TextColumn("", [share for _, share in cells]),
        ]
    return [line for line in tables.lay_out(columns) if line]


def _logits_sentence(training: Training) -> str:
    """What a logit takes while the loss is computed, by the cross-entropy that the job states, or as usual."""
    loss, chunks = training.cross_entropy, training.logits_chunks
    known = f"cross_entropy {loss}" if loss else f"usual of {training.framework.name}: cross_entropy is not given"
    of_chunk = f", of one of {chunks} chunks at a time" if chunks else ", of a chunk at a time" * (loss == "linear")
    return f"Logits: {training.logit_bytes:g} bytes each ({known}){of_chunk}."


def _links(cluster: Cluster) -> dict[str, tuple[float, str]]:
    """(figure, where it is from) of the links that the cluster has, by its name in the job file."""
    return {
        name: (getattr(cluster, name), cluster.origin(name))
        for name in _LINKS
        if cluster.nodes > 1 or name.startswith("intra")
    }


def _totals(found: Explanation) -> Iterator[str]:
    """Job and plan, then totals with their 90 % intervals."""
    job, cluster, plan = found.job, found.job.cluster, dict(found.plan)
    # the framework, where its recipe class is not the usual one
    recipe = "" if job.training.software == job.training.framework.name else f", {job.training.software}"
    yield f"{job.name}: {job.model_words} on {cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu.id}{recipe}"
    limits = f" {POWER_LIMIT}={plan.pop(POWER_LIMIT):g}" if POWER_LIMIT in plan else ""
    yield f"Plan: {plan_words(plan, plan)}{limits}"
    totals = []
    for name in OBJECTIVES:
        if math.isfinite(value := getattr(found, name)):
            ends = tables.percent_of(found.intervals.get(name, ()), value, "+.0f")
            interval = f" (90 % interval {' to '.join(ends)} %)" if ends else ""
            totals.append(f"{tables.result_text(name, value)}{interval}")
    words = f"{' and '.join(totals)} per iteration"
    words += f", {found.avg_power_w:.0f} W per GPU" if math.isfinite(found.energy_j) else ""
    for name, unit in _HEAT.items():
        if ends_of_heat := found.intervals.get(name):
            highest = max(getattr(stage, name) or 0.0 for stage in found.stages)
            words += f", {highest:.0f} {unit} ({ends_of_heat[0]:.0f} to {ends_of_heat[1]:.0f})"
    tight = (
        f": fits with probability {probability_text(found.fit_probability)}"
        if found.fit_probability < NOT_TIGHT
        else ""
    )
    why = "; ".join(found.doubts) or unlike_recorded_runs(found.surrogate, job)
    wider = f" Its interval is wider: {why}." * (not found.in_domain)
    yield f"{words}, {found.peak_memory_gib:.1f} GiB on the fullest GPU{tight}.{wider}"


def _use_sentences(found: Explanation) -> Iterator[str]:
    """Sentences on throughput, on how busy GPUs and links are, and on the recipe that scales products."""
    job, cluster, used, recipe = found.job, found.job.cluster, found.utilization, found.quantization
    yield rate_words(job, found.throughput)
    if used:
        present = {"intra_node": cluster.gpus_per_node > 1, "inter_node": cluster.nodes > 1}
        links = zip((link for link in present if present[link]), ("its bandwidth", "that"), strict=False)
        of_links = " and ".join(f"{used[link]:.1%} of {of} {_WORDS[link]}" for link, of in links)
        yield (
            f"Kernels run {used['kernels']:.0%} of the time; forward and backward passes, waiting for their inputs "
            f"included, take {used['occupied']:.0%}." + (f" A GPU uses {of_links}." if of_links else "")
        )
    words = []
    for one in found.messages:
        factor, unit = tables.unit_of(one["size_bytes"], tables.MESSAGE_UNITS)
        size = f"{float(format(one['size_bytes'] / factor, '.3g')):,g} {unit}"
        kind = _WORDS.get(one["parallelism"], one["parallelism"])
        words.append(f"{kind} {one['share']:.0%} {_WORDS[one['link']]} ({one['kind']}, {size})")
    if words:
        yield f"Share of a link's bandwidth that messages reach: {', '.join(words)}."
    if recipe:
        slower = recipe["product_time_factor"]
        products = f", products take {slower:g} times those with one scale per tensor" if slower != 1.0 else ""
        yield (
            f"Products in {job.training.precision_words}: casts take {tables.figure(recipe['casts_s'])} s of an "
            f"iteration{products}; a kept input takes {recipe['input_bytes']:.4g} B an element."
        )


def _power_sentences(found: Explanation) -> Iterator[str]:
    """Sentences on power by what a GPU does, and on power and temperature within an iteration, as far as known."""
    whole = sum(phase["time_s"] for phase in found.power_by_phase.values())
    words: list[str] = []
    for name, phase in found.power_by_phase.items():
        if phase["time_s"] > 0.005 * whole:
            of = "" if words else " of the time"
            words.append(f"{phase['power_w']:.0f} W {_PHASES[name]} ({phase['time_s'] / whole:.0%}{of})")
    if words:
        most_w, stages = max(phase["power_w"] for phase in found.power_by_phase.values()), found.stages
        bounds = {
            "limit": max((stage.power_limit_w or math.inf for stage in stages), default=math.inf),
            "peak": max((stage.peak_power_w or math.inf for stage in stages), default=math.inf),
        }
        above = [f"the {name} of {watts:.0f} W" for name, watts in bounds.items() if round(most_w) > round(watts)]
        means = f"{' and '.join(above)} {'is a mean' if len(above) == 1 else 'are means'}"
        short = f" Such kernels last milliseconds; {means} over all kernels of a micro-batch." if above else ""
        yield f"A GPU draws {', '.join(words)}.{short}"
    if swing := found.power_swing:
        low_kw, high_kw = (tables.figure(swing[f"cluster_{end}_kw"]) for end in ("trough", "peak"))
        low_w, high_w = (f"{swing[f'gpu_{end}_w']:.0f}" for end in ("trough", "peak"))
        of_gpu, of_all = tables.range_text(low_w, high_w, " to "), tables.range_text(low_kw, high_kw, " to ")
        yield f"In means over {swing['window_s']:g} s a GPU draws {of_gpu} W, all GPUs {of_all} kW."
    excursion = found.power_excursion
    if excursion.get("lasts_s"):
        peak_w, limit_w, lasts = excursion["peak_w"], excursion["limit_w"], f"{1e3 * excursion['lasts_s']:.0f} ms after"
        yield f"For up to {lasts} a pause a GPU draws up to {peak_w:.0f} W, {peak_w - limit_w:.0f} above its limit."
    if heat := found.temperature_swing:
        celsius = tables.range_text(f"{heat['trough_c']:.1f}", f"{heat['peak_c']:.1f}", " to ")
        late = f"; without pauses it would throttle after {heat['throttles_s']:.0f} s" if "throttles_s" in heat else ""
        settles = f"some {heat['settles_s']:.0f} s after the start{late}"
        yield f"The hottest GPU is at {celsius} °C within an iteration, {settles}."


def share_table(
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
    percent = tables.format_values([100 * value / total if total else None for value in values], ".1f")
    amounts = tables.unit_column("", values, units, total)
    return tables.lay_out([TextColumn(title, names, left=True), amounts, TextColumn("%", percent)])


def _largest_first(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    """The parts that are not nothing, by their size."""
    return sorted(((name, value) for name, value in parts.items() if value), key=lambda part: -part[1])


def energy_table(found: Explanation) -> list[str]:
    """Energy of all GPUs by part; memory and communication with what they are made of."""
    links = {
        f"{kind} {_WORDS.get(link, link)}": joules
        for kind, by_link in found.communication_energy_j.items()
        for link, joules in by_link.items()
    }
    memory = {_WORDS.get(name, name): joules for name, joules in found.memory_energy_j.items()}
    return share_table("Energy of all GPUs", tidy_parts(found.energy_by_part_j), tables.ENERGY_UNITS, {
        "memory": memory, "communication": links,
    })  # fmt: skip


def _by_stage(columns: Sequence[TextColumn], memory_gib: Sequence[float] = ()) -> list[str]:
    """A table with one line per run of stages that print the same, and the range of their memory."""
    runs = tables.equal_runs(zip(*(column.cells for column in columns), strict=True))
    stages = TextColumn("stage", [tables.range_text(run[0] + 1, run[-1] + 1, "-") for run in runs])
    shown = [TextColumn(c.header, [c.cells[run[0]] for run in runs]) for c in columns]
    if memory_gib:
        ends = ([f"{end(memory_gib[i] for i in run):.1f}" for end in (min, max)] for run in runs)
        shown.append(TextColumn("memory\nGiB", list(itertools.starmap(tables.range_text, ends))))
    return tables.lay_out([stages, *tables.known_columns(shown)])


def stage_table(stages: Sequence[Stage]) -> list[str]:
    """One line per stage, or per neighbours that print the same, with the range of their memory.

    ``held by``: the power limit (W), or heat, that keeps the clock below the plan's.
    """
    longest_s = max(stage.busy_s + stage.idle_s for stage in stages)
    held = {"power_limit": "{:g} W", "temperature": "heat"}
    columns = [
        TextColumn("layers", [str(stage.num_layers) for stage in stages]),
        tables.figure_column("clock_mhz", stages),
        *(tables.figure_column(name, stages, longest_s) for name in ("busy_s", "idle_s")),
        tables.figure_column("energy_j", stages, max(stage.energy_j for stage in stages)),
        *(tables.figure_column(name, stages) for name in ("power_w", "peak_power_w", "temperature_c")),
        TextColumn("clock\nheld by", [held.get(s.held_by, "-").format(s.power_limit_w or 0) for s in stages]),
    ]
    return _by_stage(columns, [stage.memory_gib for stage in stages])


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
        TextColumn(name, tables.format_numbers([parts.get(name, 0.0) for parts in per_gpu], most))
        for name, _ in _largest_first(total)
    ]
    return ["Energy of one GPU of each stage, J", *_by_stage(columns)]
