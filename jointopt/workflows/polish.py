"""The verb `polish`: a clock for every forward and backward pass of a micro-batch of one plan."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import InfeasibleError, UsageError, nearest_hint
from jointopt.core.progress import steps
from jointopt.core.schema import LAYOUT_COLUMNS, Floats, Ints
from jointopt.jobs.catalog.limits import limit_of
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.text import ParsedPlan, parse_plan, plan_assumptions
from jointopt.physics.cost_model import CostModel
from jointopt.physics.instructions import (
    InstructionCosts,
    Options,
    Problem,
    beyond_schedule_s,
    efficient_options,
    extend_choice,
    instruction_costs,
    least_energy,
    lowtime_schedules,
    need_lowtime,
    stretch_of_plan,
    windowed_problem,
)
from jointopt.physics.schedule import schedule_graph
from jointopt.report.results import Polished, PolishedPoint
from jointopt.search.pareto import take
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.answers import accepts_paths, model_of
from jointopt.workflows.remedy import shortage_of

if TYPE_CHECKING:
    from jointopt.workflows.answers import CalibrationLike, JobLike, MachineLike, TableLike

_log = logging.getLogger(__name__)
SOLVERS = ("lowtime", "linear")
SLOWDOWNS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3)
_MOST_INSTRUCTIONS = {"lowtime": 512, "linear": 1536}  # that are solved for at once
_SAMPLES = 24  # schedules of a window, slow to fast, that are tried as the ends of a whole one
_PACES = 3  # of the micro-batches between, that are tried for each
_STEP_S_PER_INSTRUCTION = 1.1e-4  # one step of lowtime 0.3, 512 instructions, one core of a 2-core server
_FINEST = 64  # units in the shortest pass: finer ones are below what a step of the clock changes


@accepts_paths
def polish(
    job: JobLike, plan: str | Mapping[str, Any], *, slowdown: float = 0.0, solver: str = "lowtime",
    seconds: float = 8.0, surrogate: str = "default", measured: TableLike | None = None,
    calibration: CalibrationLike | None = None, storage: str | None = None, machine: MachineLike | None = None,
) -> Polished:  # fmt: skip
    """Turn the stage clocks of ``plan`` into a clock per instruction, and price the schedules exactly.

    Parameters
    ----------
    job : Job, JobModel or path
        What to train and where; the path of a job file and the name of a shipped job stand for it too.
    plan : str or mapping
        Words such as ``"dp=4 tp=2 clock_mhz=1410"``, or the fields of a plan; dp fills the cluster where it is left
        out.
    slowdown : float, optional
        Share of the plan's iteration time that may be added (0.01 = 1 %); ``chosen`` uses the least energy within it,
        and never more time or energy than the plan.
    solver : str, optional
        lowtime (the extra ``polish``), or linear (scipy).
    seconds : float, optional
        Seconds in which lowtime ends, about.
    surrogate : str, optional
        Name of a shipped surrogate, folder that `retrain` wrote, or "none" for physics alone.
    measured : DataFrame, Measurements or path, optional
        Runs measured on the same cluster, which correct the predictions.
    calibration : Calibration or path, optional
        Clock response of the GPU, as ``jointopt calibrate`` writes it.
    storage : str, optional
        URL of the database whose measured runs correct the predictions too; none by default.
    machine : Machine or path, optional
        Links, products and memory of the nodes, as ``jointopt doctor --probe`` measures them.

    Returns
    -------
    Polished
        ``points`` of time (s) and energy (J), and the ``chosen`` one with its clocks (MHz).

    Raises
    ------
    PlanError
        For text that is no plan.
    InfeasibleError
        Where the plan breaks a rule or a limit or has no pipeline.
    UsageError
        Where lowtime is missing.
    """
    started = time.perf_counter()
    if solver not in SOLVERS:
        raise UsageError(f"solver must be one of {', '.join(SOLVERS)}; got {solver!r}{nearest_hint(solver, SOLVERS)}.")
    if not 0.0 <= slowdown <= 1.0:
        raise UsageError(f"slowdown must be a share of the iteration time, 0 to 1 (0.01 = 1 %); got {slowdown}.")
    if not 0.0 < seconds < float("inf"):
        raise UsageError(f"seconds must be a number above 0; got {seconds}.")
    if solver == "lowtime":
        need_lowtime()
    model = model_of(job, surrogate, measured, calibration, storage, machine)
    job = model.job
    parsed = parse_plan(plan, job)
    record = parsed.record
    physics = _feasible(model, record, parsed)
    schedule = Schedule(physics, parsed.stage_clock_mhz[0])
    part = windowed_problem(schedule.problem, _MOST_INSTRUCTIONS[solver])
    unit_s = schedule.unit_s(part, seconds) if solver == "lowtime" else None
    batches, all_batches = part.graph.num_micro_batches, schedule.problem.graph.num_micro_batches
    size = f"{part.graph.pp} stages x {batches} micro-batches"
    words = size if batches == all_batches else f"{size} that stand for {all_batches:,}"
    _log.info("%s ...", (f"polishing {words}" + (f" in units of {1e3 * unit_s:.3g} ms" if unit_s else "")))
    points = _points(schedule, part, unit_s, slowdown)
    limit_s = schedule.limit_s(slowdown) * (1.0 + 1e-9)
    # `JobModel.differences` of the points from the plan, (points,) each, by the clocks that all passes reach
    graph, each = schedule.problem.graph, [schedule.plan_s, *(point.iteration_time_s for point in points)]
    columns = {name: np.repeat(parsed.layouts[name], len(each)) for name in LAYOUT_COLUMNS}
    columns["iteration_time_s"] = np.array(each)
    columns["energy_j"] = np.array([schedule.plan_j, *(point.energy_j for point in points)])
    clocks = np.stack([parsed.stage_clock_mhz[0][graph.rank], *(point.clock_mhz for point in points)])
    columns["stage_clock_mhz"] = np.minimum(clocks, schedule.highest_mhz[graph.rank])
    return Polished(
        job=job, plan=record, iteration_time_s=schedule.plan_s, energy_j=schedule.plan_j,
        slowdown=slowdown, solver=solver, unit_s=unit_s, shortest_pass_s=schedule.shortest_s,
        solved_micro_batches=part.graph.num_micro_batches, graph=schedule.problem.graph, points=points,
        chosen=[p for p in points if p.iteration_time_s <= limit_s][-1], informed_by=model.evidence.counts,
        against_plan=take(model.differences(columns, 0), slice(1, None)),
        seconds=time.perf_counter() - started,
        assumed=(*plan_assumptions(parsed), *job.cluster.assumed, *schedule.assumed),
    )  # fmt: skip


class Schedule:
    """One plan's instructions, their options, and exact time and energy of any choice among them."""

    def __init__(self, physics: CostModel, stage_clock_mhz: Floats) -> None:
        costs = physics.groups[0]
        pp, vpp, batches = costs.depth, int(costs.layouts["vpp"][0]), int(costs.num_micro_batches[0])
        if (turns := 2 * pp * vpp * batches) > limit_of("plan.instructions"):
            raise InfeasibleError(
                f"The plan's {batches:,} micro-batches over {pp * vpp:,} chunks are {turns:,} passes, and at most "
                f"{limit_of('plan.instructions'):,} are polished; choose larger micro-batches, more replicas or fewer "
                "stages."
            )
        grid = np.unique(np.concatenate((physics.job.search.clock_mhz, stage_clock_mhz)))
        slower = stretch_of_plan(physics, 0, stage_clock_mhz)
        passes = instruction_costs(physics, 0, grid, slower)
        self._waiting_w = float(physics.energy_slope_w[0])
        options = _options(passes, vpp, stage_clock_mhz, self._waiting_w / pp)
        self.problem = Problem(schedule_graph(pp, vpp, batches), options)
        self.shortest_s = min(float(o.duration_s[0]) for o in self.problem.options)
        self._beyond_s = beyond_schedule_s(physics, 0, slower)
        values = physics.evaluate(np.zeros(1, np.int64), stage_clock_mhz[None])
        self.plan_s, self.plan_j = (float(values[name][0]) for name in ("iteration_time_s", "energy_j"))
        each_j = batches * (passes.forward_j + passes.backward_j) + passes.step_j  # (pp, clocks)
        self._plan_passes_j = float(each_j[np.arange(pp), np.searchsorted(grid, stage_clock_mhz)].sum())
        self._plan_clocks = stage_clock_mhz
        self.assumed = physics.power.assumed
        # (pp,), of the stages within their power limits
        self.highest_mhz = physics.reached_mhz(0, np.zeros(1, np.int64), np.full((1, pp), physics.top_mhz))[0]

    def limit_s(self, slowdown: float) -> float:
        """Seconds of an iteration slower by that share than the plan's, within rounding."""
        return self.plan_s * (1.0 + slowdown) * (1.0 + 1e-9)

    def beyond_s(self, choice: Ints) -> float:
        """Seconds of the iteration beyond its schedule under a choice of options, (N,), seconds."""
        graph, seconds = self.problem.graph, self.problem.durations_s(choice)
        first = ~graph.backward & (graph.micro_batch == 0)
        last = graph.backward & (graph.micro_batch == graph.num_micro_batches - 1)
        totals = [np.bincount(graph.rank, seconds * which, graph.pp).astype(float) for which in (first, last)]
        return self._beyond_s(totals[0], totals[1])

    def time_s(self, choice: Ints) -> float:
        """Seconds of the iteration under a choice of options, (N,)."""
        return self.problem.makespan_s(choice) + self.beyond_s(choice)

    def point(self, choice: Ints) -> PolishedPoint:
        """The choice priced: exact in time, and in energy by difference to the plan as the physics prices it."""
        seconds = self.time_s(choice)
        passes_j = self.problem.energy_j(choice) - self._plan_passes_j
        waiting_j = self._waiting_w * (seconds - self.plan_s)
        return PolishedPoint(seconds, self.plan_j + passes_j + waiting_j, self.problem.clocks_mhz(choice))

    def plan_choice(self, problem: Problem) -> Ints:
        """The plan's stage clocks as a choice of options."""
        return problem.at_clocks(self._plan_clocks)

    def unit_s(self, part: Problem, seconds: float) -> float:
        """Unit of time with which lowtime gets from the slowest schedule to the plan's in about ``seconds``."""
        range_s = part.makespan_s(part.slowest()) - part.makespan_s(self.plan_choice(part))
        steps = seconds / (_STEP_S_PER_INSTRUCTION * len(part.graph))
        return max(range_s / steps, self.shortest_s / _FINEST)


def _options(passes: InstructionCosts, vpp: int, stage_clock_mhz: Floats, waiting_w: float) -> list[Options]:
    """Options of each kind of instruction, three per rank: forward, backward, and last backward with the step.

    As in Perseus, no clock is below the one at which the pass alone takes least energy (or the plan's): slower passes
    would but take the place of waiting, whose power at such clocks is not measured. ``waiting_w``: of a stage.
    """
    out = []
    for rank, plan_mhz in enumerate(stage_clock_mhz.tolist()):
        forward = (passes.forward_s[rank] / vpp, passes.forward_j[rank] / vpp)
        seconds, joules = passes.backward_s[rank] / vpp, passes.backward_j[rank] / vpp
        for time_s, energy_j in (forward, (seconds, joules), (seconds, joules + passes.step_j[rank])):
            alone_j = energy_j + waiting_w * time_s
            at = passes.clock_mhz >= min(plan_mhz, float(passes.clock_mhz[alone_j.argmin()]))
            out.append(efficient_options(passes.clock_mhz[at], time_s[at], energy_j[at]))
    return out


def _points(schedule: Schedule, part: Problem, unit_s: float | None, slowdown: float) -> tuple[PolishedPoint, ...]:
    """Schedules by time, none beaten in both time and energy: one per slowdown that still saves."""
    limits = [schedule.limit_s(s) for s in sorted({*SLOWDOWNS, slowdown})]
    candidates = list(_by_linear(schedule, part, limits) if unit_s is None else _by_lowtime(schedule, part, unit_s))
    plan = schedule.plan_choice(schedule.problem)
    points = []
    for limit in steps(limits, "slowdowns"):
        starts = [plan, *_best_within(schedule, part, candidates, limit)]
        filled = [schedule.problem.spend_slack(start, limit - schedule.beyond_s(start)) for start in starts]
        points.append(min(map(schedule.point, filled), key=lambda point: point.energy_j))
    kept: list[PolishedPoint] = []
    for point in sorted(points, key=lambda p: (p.iteration_time_s, p.energy_j)):
        if not kept or point.energy_j < kept[-1].energy_j * (1.0 - 1e-9):  # by more than rounding
            kept.append(point)
    return tuple(kept)


def _by_lowtime(schedule: Schedule, part: Problem, unit_s: float) -> Iterator[Ints]:
    """Choices of least energy, slow to fast, down to the plan's makespan."""
    fastest_s = part.makespan_s(schedule.plan_choice(part))
    for seconds in lowtime_schedules(part, unit_s):
        choice = part.within(seconds)
        yield choice
        if part.makespan_s(choice) <= fastest_s:
            return


def _by_linear(schedule: Schedule, part: Problem, limits_s: list[float]) -> Iterator[Ints]:
    """Choices of least energy: at the limits, or for a window over all that its clocks can do."""
    whole = schedule.problem
    if part.graph is whole.graph:
        beyond_s = sorted({schedule.beyond_s(choice) for choice in (schedule.plan_choice(whole), whole.fastest())})
        makespans = [limit - seconds for limit in limits_s for seconds in beyond_s]
    else:
        slow, fast = (part.makespan_s(choice) for choice in (part.slowest(), part.fastest()))
        makespans = np.linspace(fast * (1.0 + 1e-9), slow, _SAMPLES).tolist()
    for makespan in steps(makespans, "linear programmes"):
        found = least_energy(part, makespan)
        if found is not None:
            yield part.within(found[0])


def _best_within(schedule: Schedule, part: Problem, candidates: list[Ints], limit_s: float) -> list[Ints]:
    """The candidate of least energy that keeps to the limit, made whole where it is of a window; [] where none does."""
    whole = schedule.problem
    if part.graph is not whole.graph:
        every = max(1, len(candidates) // _SAMPLES)
        candidates = [_in_pace(schedule, part, choice, limit_s) for choice in candidates[::every]]
    fitting = [choice for choice in candidates if schedule.time_s(choice) <= limit_s]
    return [min(fitting, key=lambda choice: schedule.point(choice).energy_j)] if fitting else []


def _in_pace(schedule: Schedule, part: Problem, choice: Ints, limit_s: float) -> Ints:
    """A window's choice made whole, its middle at the pace with which the iteration ends at the limit."""
    whole = schedule.problem
    more = whole.graph.num_micro_batches - part.graph.num_micro_batches
    out = extend_choice(part, choice, whole, 0.0)
    pace_s = (limit_s - schedule.beyond_s(out) - part.makespan_s(choice)) / more
    for _ in range(_PACES):
        out = extend_choice(part, choice, whole, pace_s)
        excess_s = schedule.time_s(out) - limit_s
        if excess_s <= 0.0:
            break
        pace_s -= excess_s / more
    return out


def _feasible(model: JobModel, record: Mapping[str, Any], parsed: ParsedPlan) -> CostModel:
    """The physics of the plan as moved and corrected by what was measured, if it runs and has a pipeline."""
    job = model.job
    if job.cluster.gpu.power is None:
        job.cluster.gpu.need("tdp_w", "predict power and energy")
    broken = check_plan(job, record)
    if not broken:
        physics = model.cost_model(parsed.layouts)
        broken = list(physics.broken_limits(physics.evaluate(np.zeros(1, np.int64), parsed.stage_clock_mhz)))
        broken += [short.sentence()] if (short := shortage_of(model, physics, record)) else []
    if broken:
        raise InfeasibleError(
            f"The plan cannot be run as job {job.name!r}, so there is nothing to polish: {' '.join(broken)} "
            f"Choose a plan that `jointopt propose` prints."
        )
    if record["pp"] == 1:
        raise InfeasibleError(
            "The plan has no pipeline (pp=1), so no stage waits for another and there is nothing to polish: its "
            "forward and backward passes are best at one clock, which `jointopt propose` chooses; polish a plan with "
            "pp of 2 or more."
        )
    if record["schedule"] != "1f1b" or physics.groups[0].split.irregular.any():
        raise InfeasibleError(
            "Polishing supports 1F1B, and interleaved 1F1B whose chunks have equal layers; the plan has "
            f"schedule {record['schedule']}, vpp {record['vpp']} and stage_layers {record['stage_layers'] or 'even'}; "
            "polish a plan with schedule 1f1b, and vpp 1 or even stages."
        )
    return physics
