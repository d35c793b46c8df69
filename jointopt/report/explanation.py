"""The answer of ``explain``: one plan with time, energy and memory by part, by stage, and why it is not feasible."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.physics.facility import bill, facility_parts_j
from jointopt.report import table
from jointopt.report.assumed import assumptions, informed_lines
from jointopt.report.documents import Result, pick, tidy_parts
from jointopt.report.plans import is_neutral
from jointopt.report.site import has_site_costs, site_table
from jointopt.report.table import TextColumn
from jointopt.spec.job import Job


@dataclass(frozen=True)
class Stage:
    """One pipeline stage of an explained plan; power and memory are those of one GPU of the stage.

    All GPUs of a stage do the same, so a rank's energy is the stage's over ``num_gpus``.
    """

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


@dataclass(frozen=True)
class Explanation(Result):
    """One plan by part: every breakdown adds up to its total.

    ``communication_energy_j`` is the part communication by kind of parallelism, then by link.
    """

    rows = "stages"
    keys = (
        "job=job.name plan feasible violations exceeded iteration_time_s energy_j avg_power_w peak_memory_gib time_s "
        "energy_by_part_j memory_energy_j communication_energy_j memory_gib assumed in_domain surrogate informed_by"
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
    assumed: tuple[object, ...] = ()  # as in `Proposal`
    memory_energy_j: Mapping[str, float] = field(default_factory=dict)  # of the part memory, by purpose
    communication_energy_j: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # result -> 90 % interval
    in_domain: bool = True  # recorded runs support such a plan
    surrogate: str = "none"
    informed_by: Mapping[str, int] = field(default_factory=dict)  # as in `Proposal`
    exceeded: tuple[str, ...] = ()  # sentences: bounds of memory, power and what the job constrains

    def document(self) -> dict[str, Any]:
        """The totals, every breakdown, what the site pays, the intervals and the stages."""
        job, time_s, energy_j = self.job, self.iteration_time_s, self.energy_j
        breakdowns = ("time_s", "energy_by_part_j", "memory_gib")
        out = pick(self, self.keys) | {name: tidy_parts(getattr(self, name)) for name in breakdowns}
        out["assumed"] = list(map(str, self.assumed))
        out["facility_energy_by_part_j"] = facility_parts_j(job.cluster, time_s, energy_j)
        intervals: dict[str, float] = {}
        for name, (low, high) in self.intervals.items():
            intervals |= {f"{name}_low": low, f"{name}_high": high}
        return out | bill(job, time_s, energy_j) | intervals | {"stages": self.stages}

    def text(self) -> str:
        """Totals, the breakdowns with percentages, the stages; without energy where the GPU's power is not known."""
        powered = math.isfinite(self.energy_j)
        verdict = "Feasible." if self.feasible else "Not feasible:"
        broken = [] if self.feasible else [f"- {text}" for text in (*self.violations, *self.exceeded)]
        return table.blocks_text(
            [*_title(self, powered), *_certainty(self), verdict, *table.paragraphs(broken)],
            shares("Time on the critical path", tidy_parts(self.time_s), table.TIME_UNITS),
            energy_table(self) if powered else [],
            _site(self) if powered else [],
            shares("Memory of the fullest GPU", tidy_parts(self.memory_gib), table.MEMORY_UNITS),
            [*stage_table(self.stages, self.iteration_time_s, self.energy_j), *held_back(self)],
            stage_energy_table(self.stages) if powered else [],
            assumptions(self.assumed),
        )


def _title(found: Explanation, powered: bool) -> list[str]:
    job, cluster = found.job, found.job.cluster
    totals = table.quantity(found.iteration_time_s, table.TIME_UNITS)
    totals += f" and {table.quantity(found.energy_j, table.ENERGY_UNITS)}" if powered else ""
    power = f", {found.avg_power_w:.0f} W per GPU" if powered else ""
    return table.paragraphs(
        [
            f"{job.name}: {job.model.name} on {cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu.id}",
            f"Plan: {_plan(found.plan)}",
            f"{totals} per iteration{power}, {found.peak_memory_gib:.1f} GiB on the fullest GPU.",
        ]
    )


def _plan(plan: Mapping[str, Any]) -> str:
    layout = {name: plan[name] for name in LAYOUT_COLUMNS if name in plan and not is_neutral(name, plan[name])}
    layout["sequence_parallel"] = "yes" if plan["sequence_parallel"] else "no"
    limits = plan.get("stage_power_limit_w") or [plan[name] for name in ("power_limit_w",) if name in plan]
    if limits:
        layout["power_limit_w"] = ";".join(f"{watts:g}" for watts in limits)
    return " ".join(f"{name}={value}" for name, value in layout.items())


def _certainty(found: Explanation) -> list[str]:
    """The 90 % intervals of time and energy, and the measured runs that corrected them."""
    if not found.intervals:
        return []
    ranges = []
    for word, name in (("time", "iteration_time_s"), ("energy", "energy_j")):
        if math.isfinite(value := getattr(found, name)):
            low, high = (100.0 * (bound / value - 1.0) for bound in found.intervals[name])
            ranges.append(f"{word} {low:+.0f} to {high:+.0f} %")
    words = f"90 % interval{'s' * (len(ranges) > 1)}: {', '.join(ranges)}."
    if not found.in_domain:
        words += " No recorded runs support such a plan (cluster, model, framework or clocks)."
    return [*table.wrapped(words), *informed_lines(found.informed_by)]


def shares(
    title: str, parts: Mapping[str, float], units: table.Units, inside: Mapping[str, Any] | None = None
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
    percent = table.fixed([100 * value / total if total else None for value in values], ".1f")
    amounts = table.measured("", values, units, unit_at=total, scale=total)
    return table.lay_out([TextColumn(title, names, left=True), amounts, TextColumn("%", percent)], gap="  ")


def _largest_first(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(((name, value) for name, value in parts.items() if value), key=lambda part: -part[1])


_WORDS = {
    "tensor_parallel_rereads": "activations re-read by tp", "intra_node": "within nodes",
    "inter_node": "between nodes",
}  # fmt: skip


def energy_table(found: Explanation) -> list[str]:
    """Energy of all GPUs by part; memory and communication with what they are made of."""
    links = {
        f"{kind} {_WORDS.get(link, link)}": joules
        for kind, by_link in found.communication_energy_j.items()
        for link, joules in by_link.items()
    }
    memory = {_WORDS.get(name, name): joules for name, joules in found.memory_energy_j.items()}
    inside = {"memory": memory, "communication": links}
    return shares("Energy of all GPUs", tidy_parts(found.energy_by_part_j), table.ENERGY_UNITS, inside)


def _site(found: Explanation) -> list[str]:
    """Energy of the site, and what it costs where the job has prices."""
    job, time_s, energy_j = found.job, found.iteration_time_s, found.energy_j
    parts = {name: float(joules) for name, joules in facility_parts_j(job.cluster, time_s, energy_j).items()}
    lines = shares(f"Energy of the site (PUE {job.cluster.pue:g})", parts, table.ENERGY_UNITS)
    costs = ["", *site_table(job, ["this plan"], [time_s], [energy_j])] if has_site_costs(job) else []
    return [*lines, *costs]


def _by_stage(columns: Iterable[TextColumn], runs: Sequence[range]) -> list[str]:
    """A table with one line per run of stages, whose cells are those of its first stage."""
    names = [table.span(str(run[0] + 1), str(run[-1] + 1)).replace("..", "-") for run in runs]
    shown = [TextColumn(c.header, [c.cells[run[0]] for run in runs]) for c in columns]
    known = [column for column in shown if set(column.cells) != {"-"}]
    return table.lay_out([TextColumn("stage", names), *known], gap="  ")


def stage_table(stages: Sequence[Stage], time_s: float, energy_j: float) -> list[str]:
    """One line per stage; neighbours that would print the same but for memory share one line, with its range.

    Iteration time and energy set the units.
    """

    def each(name: str) -> list[Any]:
        return [getattr(stage, name) for stage in stages]

    times = {"unit_at": time_s, "scale": max(stage.busy_s + stage.idle_s for stage in stages)}
    energies = {"unit_at": energy_j, "scale": max(each("energy_j"))}
    columns = [
        TextColumn("layers", [str(count) for count in each("num_layers")]),
        TextColumn("clock\nMHz", table.fixed(each("clock_mhz"), ".0f")),
        table.measured("busy", each("busy_s"), table.TIME_UNITS, **times),
        table.measured("idle", each("idle_s"), table.TIME_UNITS, **times),
        table.measured("energy", each("energy_j"), table.ENERGY_UNITS, **energies),
        TextColumn("power\nW/GPU", table.fixed(each("power_w"), ".0f")),
        TextColumn("peak\nW/GPU", table.fixed(each("peak_power_w"), ".0f")),
        TextColumn("temperature\n°C", table.fixed(each("temperature_c"), ".1f")),
    ]
    runs = table.equal_runs(zip(*(column.cells for column in columns), strict=True))
    memory = [""] * len(stages)
    for run in runs:
        gib = each("memory_gib")[run.start : run.stop]
        memory[run[0]] = table.span(f"{min(gib):.1f}", f"{max(gib):.1f}")
    columns.insert(-1, TextColumn("memory\nGiB", memory))
    return _by_stage(columns, runs)


def stage_energy_table(stages: Sequence[Stage]) -> list[str]:
    """Energy of one GPU of each stage by part, in J; none for a plan without a pipeline, whose parts say it already."""
    per_gpu = [
        {name: joules / (stage.num_gpus or 1) for name, joules in tidy_parts(stage.energy_by_part_j).items()}
        for stage in stages
    ]
    if len(stages) < 2 or not all(per_gpu) or not all(stage.num_gpus for stage in stages):
        return []
    total = {name: sum(parts.get(name, 0.0) for parts in per_gpu) for name in per_gpu[0]}
    most = max(max(parts.values()) for parts in per_gpu)
    columns = [
        TextColumn(name, table.numbers([parts.get(name, 0.0) for parts in per_gpu], most))
        for name, _ in _largest_first(total)
    ]
    runs = table.equal_runs(zip(*(column.cells for column in columns), strict=True))
    return ["Energy of one GPU of each stage, J", *_by_stage(columns, runs)]


def held_back(found: Explanation) -> list[str]:
    """A sentence for each limit that keeps stages below the plan's clock."""
    stages_of: dict[str, list[int]] = {}
    for number, stage in enumerate(found.stages, start=1):
        if stage.held_by == "power_limit" and stage.power_limit_w is not None:
            stages_of.setdefault(f"the power limit of {stage.power_limit_w:g} W", []).append(number)
        elif stage.held_by:
            stages_of.setdefault("the temperature", []).append(number)
    return table.paragraphs(
        f"Held below the clock asked for by {why}: {_stages(held)}." for why, held in stages_of.items()
    )


def _stages(held: Sequence[int]) -> str:
    if len(held) == 1:
        return f"stage {held[0]}"
    whole = list(held) == list(range(held[0], held[-1] + 1))
    return f"stages {held[0]} to {held[-1]}" if whole else f"stages {', '.join(map(str, held))}"
