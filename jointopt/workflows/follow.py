"""``follow``: the clocks of a plan over a signal of the site: a limit, a reduction, a price or carbon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from jointopt.core.errors import InfeasibleError, TableError, UsageError
from jointopt.core.schema import LAYOUT_COLUMNS, Columns, Floats, Ints
from jointopt.core.units import KILO
from jointopt.jobs.plans.text import plan_records
from jointopt.physics.site import HOUR_S
from jointopt.report.plans import short_plan
from jointopt.report.power_schedule import PowerSchedule
from jointopt.report.tables import figure
from jointopt.runs.site_signal import SiteSignal, read_signal
from jointopt.search.dispatch import PAUSED, Dispatch, Rungs, Schedule, Steps
from jointopt.search.pareto import concat_plans, take
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.answers import accepts_paths, model_of
from jointopt.workflows.ladder import Ladder, ladder_of
from jointopt.workflows.propose import propose

if TYPE_CHECKING:
    from jointopt.workflows.answers import CalibrationLike, JobLike, MachineLike, TableLike

LIMITS = ("limit_kw", "reduce_percent")
_SAME = 1e-9  # relative
_FAR = 100.0  # times the power of the site: a limit that is as far off is in another unit
_LEAST_G, _MOST_G = 2.0, 5000.0  # carbon of a kWh: what is below is in kg, what is above in mg


@accepts_paths
def follow(
    job: JobLike, plan: str | Mapping[str, Any] | None = None, *, signal: SiteSignal | pd.DataFrame | str | Path,
    tokens_by: float | None = None, dwell_s: float = 0.0, ramp_kw_per_min: float | None = None,
    change_layouts: int = 0, allow_tight: bool = False, surrogate: str = "default",
    measured: TableLike | None = None, calibration: CalibrationLike | None = None,
    storage: str | None = None, machine: MachineLike | None = None,
) -> PowerSchedule:  # fmt: skip
    """The schedule of a plan's clocks over a signal: within its limits with 95 %, and so that least is lost.

    Under limits it makes most tokens, never at more power than the plan's own clocks. By prices it pays least, by
    carbon it emits least, with as many tokens as the plan makes; where the job states the price of a GPU-hour, tokens
    may come later, and cost that.

    Parameters
    ----------
    job : Job, JobModel or path
        What to train and where; the path of a job file and the name of a shipped job stand for it too.
    plan : str or mapping, optional
        Words such as ``"dp=4 tp=2 clock_mhz=1410"``, or the fields of a plan; by default the plan that
        `propose` recommends.
    signal : SiteSignal, DataFrame or path
        Steps by their start ``time_s`` (s) with one of ``limit_kw`` (kW at the site's meter), ``reduce_percent`` (of
        the plan's own power), ``price_per_kwh`` and ``carbon_g_per_kwh`` (g); the last row is the end.
    tokens_by : float, optional
        Tokens that must be made by the end; then it draws, pays or emits least.
    dwell_s : float, optional
        Least time between changes of clocks, s.
    ramp_kw_per_min : float, optional
        Most that the power of the site may change in a minute, kW.
    change_layouts : int, optional
        How many other layouts of the job's front may be changed to, by a checkpoint and a restart.
    allow_tight : bool, optional
        Take a plan that is likelier not to fit in memory than to fit.
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
    PowerSchedule
        Clocks (MHz), power (kW) and tokens/s of each step, ``tokens``, ``energy_j`` (J) and ``lost_tokens``.

    Raises
    ------
    TableError
        For a signal that is none.
    InfeasibleError
        Where nothing keeps it.
    """
    for name, value in {"tokens_by": tokens_by, "dwell_s": dwell_s, "ramp_kw_per_min": ramp_kw_per_min}.items():
        if value is not None and not 0.0 <= value < np.inf:
            raise UsageError(f"{name} must be a number from 0 on; got {value:g}.")
    model = model_of(job, surrogate, measured, calibration, storage, machine)
    asked = signal if isinstance(signal, SiteSignal) else _signal(signal)
    proposal = propose(model, allow_tight=allow_tight) if plan is None or change_layouts else None
    chosen = proposal.recommended.plan if plan is None and proposal else plan or {}
    ladders = [ladder_of(model, chosen, allow_tight=allow_tight)]
    if proposal and change_layouts:
        ladders += _other_ladders(model, ladders[0], proposal.front, change_layouts)
    _check_unit(asked, ladders[0])
    rungs, own = _rungs(ladders), ladders[0].own
    own_kw, own_tokens_per_s = (float(own[name][0]) for name in ("cluster_power_kw", "tokens_per_s"))
    is_limit, seconds = asked.kind in LIMITS, np.diff(asked.bounds_s)
    steps = Steps(asked.bounds_s, _limits_kw(asked, own_kw), np.ones(len(seconds)) if is_limit else asked.values)
    _check_pause(steps, ladders[0], asked)
    every = np.arange(len(rungs.layout))
    if is_limit and tokens_by is None:
        every = np.flatnonzero(rungs.power_kw <= own_kw * (1.0 + _SAME))
    elif not is_limit:
        every = rungs.on_hull()
    dispatch = Dispatch(rungs.take(every), steps, dwell_s, np.inf if ramp_kw_per_min is None else ramp_kw_per_min)
    least, worth, aim = _aim(ladders[0], asked, tokens_by)
    scale = KILO if asked.kind == "carbon_g_per_kwh" else 1.0  # from g to kg
    found = dispatch.best(worth, float(not is_limit)) if least is None else dispatch.least_cost(least)
    if found is None:
        raise InfeasibleError(_refusal(dispatch, least))
    return PowerSchedule(
        job=model.job, plan=plan_records(own, own["stage_clock_mhz"], [0])[0], plan_text=short_plan(own, 0),
        signal=replace(asked, remarks=(*asked.remarks, *_doubts(dispatch, found))), aim=aim,
        steps=_entries(found, rungs, every, ladders, asked, steps), own_kw=own_kw, own_tokens_per_s=own_tokens_per_s,
        cost=None if is_limit else found.totals[0] / scale,
        plan_cost=None if is_limit else float((seconds * asked.values).sum()) / HOUR_S * own_kw / scale,
        cost_unit="CO2 in kg" if scale != 1.0 else f"electricity {model.job.cluster.currency}".strip(), gap=found.gap,
        checkpoint_s=ladders[0].checkpoint_s, restart_s=ladders[0].restart_s, idle_kw=ladders[0].idle_kw,
        assumed=ladders[0].assumed,
    )  # fmt: skip


def _signal(signal: pd.DataFrame | str | Path) -> SiteSignal:
    return SiteSignal.of(signal) if isinstance(signal, pd.DataFrame) else read_signal(Path(signal))


def _check_unit(asked: SiteSignal, ladder: Ladder) -> None:
    """TableError where the values are so far off that they are in another unit."""
    least, most, top_kw = float(asked.values.min()), float(asked.values.max()), float(ladder.power_kw_high.max())
    if asked.kind == "limit_kw" and np.isfinite(most) and (least > _FAR * top_kw or most < ladder.idle_kw / _FAR):
        unit = "W" if least > top_kw else "MW"
        raise TableError(
            f"{asked.source}: limit_kw is {figure(least)} to {figure(most)} and the site draws {figure(top_kw)} kW at "
            f"most, as if it were in {unit}; expected kW at the meter of the site."
        )
    if asked.kind == "carbon_g_per_kwh" and (0.0 < most < _LEAST_G or least > _MOST_G):
        unit = "kg" if most < _LEAST_G else "mg"
        raise TableError(
            f"{asked.source}: carbon_g_per_kwh is {figure(least)} to {figure(most)}, as if it were in {unit}; expected "
            "g of CO2 per kWh."
        )


def _limits_kw(asked: SiteSignal, own_kw: float) -> Floats:
    """The limit of each step in kW: none where no reduction is asked."""
    if asked.kind == "reduce_percent":
        return np.where(asked.values > 0.0, (1.0 - asked.values / 100.0) * own_kw, np.inf)
    return asked.values if asked.kind == "limit_kw" else np.full(len(asked.values), np.inf)


def _check_pause(steps: Steps, ladder: Ladder, asked: SiteSignal) -> None:
    """InfeasibleError where a limit is below what the site draws while the run is paused."""
    at, least_kw = int(steps.limit_kw.argmin()), min(ladder.idle_kw_high, float(ladder.power_kw_high.min()))
    if steps.limit_kw[at] < least_kw:
        raise InfeasibleError(
            f"A limit of {figure(float(steps.limit_kw[at]))} kW at time_s {steps.bounds_s[at]:.10g} of {asked.source} "
            f"cannot be kept: {figure(least_kw - float(steps.limit_kw[at]))} kW are missing, since GPUs that idle and "
            f"their hosts draw up to {figure(least_kw)} kW in a pause; switch nodes off, or ask for less."
        )


def _rungs(ladders: Sequence[Ladder]) -> Rungs:
    """The rungs of the ladders one after the other, the pause last."""
    first = ladders[0]
    parts = [(one.tokens_per_s, one.power_kw, one.power_kw_high) for one in ladders]
    parts.append((np.zeros(1), np.array([first.idle_kw]), np.array([first.idle_kw_high])))
    layout = np.repeat([*range(len(ladders)), PAUSED], [len(part[0]) for part in parts])
    tokens_per_s, power_kw, high_kw = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Rungs(tokens_per_s, power_kw, high_kw, layout, first.checkpoint_s, first.restart_s)


def _aim(ladder: Ladder, asked: SiteSignal, tokens_by: float | None) -> tuple[float | None, float, str]:
    """(tokens that have to be made, None where none have; what a token is worth then; the aim in words)."""
    own, cluster, seconds = ladder.own, ladder.job.cluster, np.diff(asked.bounds_s)
    rate, power_kw = (float(own[name][0]) for name in ("tokens_per_s", "cluster_power_kw"))
    if asked.kind in LIMITS:
        if tokens_by is None:
            return None, 1.0, "most tokens within the limits, at no more power than the plan's own clocks"
        return tokens_by, 0.0, f"least energy for {figure(tokens_by)} tokens within the limits"
    what = "least money for electricity" if asked.kind == "price_per_kwh" else "least carbon"
    if tokens_by is not None:
        return tokens_by, 0.0, f"{what}, with {figure(tokens_by)} tokens"
    if asked.kind == "price_per_kwh" and cluster.price_per_gpu_hour is not None:
        mean_price = float((seconds * asked.values).sum() / seconds.sum())
        worth = (cluster.price_per_gpu_hour * cluster.num_gpus + mean_price * power_kw) / HOUR_S / rate
        later = f"{figure(1e6 * worth)} {cluster.currency}".rstrip()
        return None, worth, f"least money, where a million tokens that are made later cost {later} (GPUs, electricity)"
    return rate * float(seconds.sum()) * (1.0 - _SAME), 0.0, f"{what}, with as many tokens as the plan makes"


def _refusal(dispatch: Dispatch, least: float | None) -> str:
    """Why there is no schedule."""
    most = dispatch.best(1.0, 0.0)
    if most is None or least is None:
        return (
            f"No schedule keeps the limits with a dwell time of {dispatch.dwell_s:g} s and a ramp of "
            f"{dispatch.ramp_kw_per_min:g} kW per minute; allow a shorter dwell time or a steeper ramp."
        )
    made = most.totals[1]
    return (
        f"At most {figure(made)} tokens can be made, {figure(least - made)} fewer than asked for; ask for fewer, or "
        "raise the limits."
    )


def _doubts(dispatch: Dispatch, found: Schedule) -> Iterator[str]:
    """A sentence where only the ramp is why no step runs."""
    pauses = dispatch.rungs.layout == PAUSED
    free = replace(dispatch, ramp_kw_per_min=np.inf).best(1.0, 0.0)
    if np.isfinite(dispatch.ramp_kw_per_min) and pauses[found.rung].all() and free and not pauses[free.rung].all():
        yield (
            f"All is paused because of the ramp of {dispatch.ramp_kw_per_min:g} kW per minute; without one the run "
            "would go on; allow a steeper ramp."
        )


def _other_ladders(model: JobModel, ladder: Ladder, front: Columns, most: int) -> list[Ladder]:
    """The ladders of other layouts of a front: those with most of its plans, at most so many."""
    cells = [tuple(front[name][row] for name in LAYOUT_COLUMNS) for row in range(len(front["pp"]))]
    own = tuple(ladder.own[name][0] for name in LAYOUT_COLUMNS)
    counts = {cell: cells.count(cell) for cell in dict.fromkeys(cells) if cell != own}
    best = sorted(counts, key=lambda cell: -counts[cell])[:most]
    plans = [take(front, np.array([cells.index(cell)])) for cell in best]
    return [ladder_of(model, plan_records(one, one["stage_clock_mhz"], [0])[0], allow_tight=True) for one in plans]


def _entries(
    found: Schedule, rungs: Rungs, rows: Ints, ladders: Sequence[Ladder], asked: SiteSignal, steps: Steps
) -> tuple[dict[str, Any], ...]:
    """What a run does in each step of the schedule, whose rungs are ``rows`` of the rungs."""
    plans = concat_plans([one.plans for one in ladders])
    of = np.searchsorted(asked.bounds_s, found.bounds_s[:-1], side="right") - 1
    entries = []
    for step, rung in enumerate(rows[found.rung].tolist()):
        (start, end), at = found.bounds_s[step : step + 2].tolist(), int(of[step])
        made, paused = float(found.tokens[step]), bool(rungs.layout[rung] == PAUSED)
        clocks = [] if paused else [mhz for mhz in plans["stage_clock_mhz"][rung].tolist() if mhz == mhz]
        one: dict[str, Any] = {
            "from_s": start, "to_s": end, "stage_clock_mhz": clocks, "power_kw": float(rungs.power_kw[rung]),
            "power_kw_high": float(rungs.power_kw_high[rung]), "tokens_per_s": made / (end - start),
            "paused": paused, asked.kind: float(asked.values[at]),
        }  # fmt: skip
        if asked.kind == "reduce_percent":
            one["limit_kw"] = float(steps.limit_kw[at])
        if not paused and "power_limit_w" in plans:
            one["power_limit_w"] = float(plans["power_limit_w"][rung])
        if len(ladders) > 1:
            one |= {"layout": int(rungs.layout[rung]), "plan": None if paused else short_plan(plans, rung)}
        entries.append(one)
    return tuple(entries)
