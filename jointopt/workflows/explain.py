"""``explain``: time, energy and memory of one plan taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import InfeasibleError
from jointopt.core.schema import Floats
from jointopt.core.units import GIB
from jointopt.frameworks.exported import start_command
from jointopt.jobs.job import Job
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.text import is_of_trial, parse_plan, plan_assumptions
from jointopt.physics.cost_model import HEAT, CostModel
from jointopt.physics.explain.parts import (
    Breakdown,
    breakdown,
    cast_times_s,
    energy_by_level,
    messages,
    phases,
    utilization,
)
from jointopt.physics.explain.timeline import METER_S, excursion, power_swing, warming
from jointopt.physics.layouts import input_bytes
from jointopt.physics.throughput import throughput
from jointopt.report.explanation import Explanation, Stage
from jointopt.runs.relevance import plan_keys
from jointopt.surrogate.intervals import RESULTS
from jointopt.workflows.answers import accepts_paths, assumptions, check_priceable, model_of, predicted_plans
from jointopt.workflows.open_settings import settings_of_plan
from jointopt.workflows.remedy import shortage_of

if TYPE_CHECKING:
    from jointopt.workflows.answers import CalibrationLike, JobLike, MachineLike, TableLike


@accepts_paths
def explain(
    job: JobLike, plan: str | Mapping[str, Any], *, surrogate: str = "default",
    measured: TableLike | None = None, calibration: CalibrationLike | None = None,
    storage: str | None = None, machine: MachineLike | None = None, ranked: bool = False,
    source: str = "", given: str = "",
) -> Explanation:  # fmt: skip
    """Time, energy and memory of one plan taken apart, and why it is or is not feasible.

    Parameters
    ----------
    job : Job, JobModel or path
        What to train and where; the path of a job file and the name of a shipped job stand for it too.
    plan : str or mapping
        Words such as ``"dp=4 tp=2 clock_mhz=1410"``, or the fields of a plan; dp fills the cluster where it is left
        out. The parameters of a trial of Optuna (`jointopt.optuna_objective`) are a plan too.
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
    ranked : bool, optional
        State which rank the layout has among all, for which they are enumerated.
    source : str, optional
        How a shell names the job, for the next command.
    given : str, optional
        How it names the plan.

    Returns
    -------
    Explanation
        ``time_s`` (s on the critical path), ``energy_by_part_j`` (J, all GPUs) and ``memory_gib`` (GiB, worst GPU) by
        part, and the ``stages``.

    Raises
    ------
    PlanError
        For text that is no plan, or a plan that the physics cannot price (degrees, batch).

    Examples
    --------
    >>> found = jointopt.explain("opt-350m-2x4-a100", "tp=2 pp=2 clock_mhz=1200", surrogate="none")
    >>> round(sum(found.time_s.values()) / found.iteration_time_s, 6)
    1.0
    """
    plain = not is_of_trial(plan)
    stated = plan_keys(parse_plan(plan, job).layouts) if storage and isinstance(job, Job) and plain else ()
    model = model_of(job, surrogate, measured, calibration, storage, machine, stated)
    if ranked or not plain:
        from jointopt.workflows.feasible_layouts import layout_rank, plan_of_trial  # imports the search
    plan, ready = (plan, None) if plain else plan_of_trial(model, plan)
    record = (parsed := parse_plan(plan, model.job)).record
    check_priceable(model.job, record, broken := check_plan(model.job, record))
    physics = model.cost_model(parsed.layouts)
    only, clocks = np.zeros(1, np.int64), parsed.stage_clock_mhz
    values = physics.evaluate(only, clocks)
    answer = predicted_plans(model, physics, values | {"layout_index": only, "stage_clock_mhz": clocks})
    parts = breakdown(physics, 0, clocks[0])
    exceeded, short = physics.broken_limits(values), shortage_of(model, physics, record)
    used, recipe = utilization(physics, 0, clocks[0]), model.job.training.fp8_recipe
    results: dict[str, Any] = {name: float(values[name][0]) for name in RESULTS}
    within = {} if broken else _within_an_iteration(physics, clocks[0], parts)
    levels = {name: float(joules.sum()) for name, joules in energy_by_level(physics, 0, parts).items()}
    rates = throughput(model.job, parsed.layouts, values["iteration_time_s"], values["energy_j"])
    rank = None
    if ranked and not (broken or exceeded):
        with suppress(InfeasibleError):  # no layout is feasible that it could be compared with
            rank = layout_rank(model, parsed.layouts, ready)
    feasible = not (broken or exceeded or short)
    return Explanation(
        job=model.job, plan=record, feasible=feasible, violations=tuple(broken),
        exceeded=exceeded, shortage=short, **results, time_s=parts.time_s,
        hangs_on=() if broken else settings_of_plan(model, parsed.layouts, clocks), energy_by_part_j=parts.energy_j,
        memory_gib={name: value / GIB for name, value in parts.memory_bytes.items()},
        stages=_stages(parts), memory_energy_j=parts.memory_energy_j,
        communication_energy_j=parts.communication_energy_j,
        utilization={"kernels": float(used.kernels.mean()), "occupied": float(used.occupied.mean())}
        | {link: float(share.max()) for link, share in used.links.items()},
        energy_by_level_j=levels if np.isfinite(list(levels.values())).all() else {},
        messages=tuple(asdict(one) for one in messages(physics, 0)),
        quantization={} if recipe is None else {
            "casts_s": float(cast_times_s(physics, 0).max()), "product_time_factor": recipe.product_time_factor,
            "input_bytes": input_bytes(model.job.training),
        },
        power_by_phase=_phases(physics, clocks[0], parts), **within,
        throughput={name: float(rate[0]) for name, rate in rates.items()},
        assumed=(*plan_assumptions(parsed), *assumptions(model.job)),
        intervals={name: (float(answer[f"{name}_low"][0]), float(answer[f"{name}_high"][0]))
                   for name in (*RESULTS, *HEAT) if f"{name}_low" in answer},
        in_domain=bool(answer["in_domain"][0]), doubts=model.reasons(answer),
        fit_probability=float(model.fit_probability(physics)[0]), rank=rank,
        surrogate=model.name, informed_by=model.evidence.counts, learned=model.learned(parsed.layouts, clocks),
        next_command=start_command(model.job, record, source, given) if given and feasible else None,
    )  # fmt: skip


def _phases(physics: CostModel, stage_clock_mhz: Floats, parts: Breakdown) -> dict[str, dict[str, float]]:
    """Seconds of an iteration in each phase and watts of a GPU then, in the mean over stages; no phase without time."""
    if not np.isfinite(parts.stage_energy_j).all():
        return {}
    found = phases(physics, 0, stage_clock_mhz, parts)
    return {
        name: {
            "time_s": float(one.time_s.mean()),
            "power_w": float(np.nansum(one.power_w * one.time_s) / one.time_s.sum()),
        }
        for name, one in found.items()
        if one.time_s.any()
    }


def _within_an_iteration(physics: CostModel, stage_clock_mhz: Floats, parts: Breakdown) -> dict[str, Any]:
    """Swings of power and temperature, and power above the limit for milliseconds; empty where the GPU's is unknown."""
    found: dict[str, Any] = {}
    of_gpu, of_all = power_swing(physics, 0, stage_clock_mhz, parts=parts)
    if np.isfinite(of_all.mean_w).all():
        found["power_swing"] = {
            "window_s": METER_S, "gpu_peak_w": float(of_gpu.peak_w.max()),
            "gpu_trough_w": float(of_gpu.trough_w.min()), "cluster_peak_kw": float(of_all.peak_w[0]) / 1e3,
            "cluster_trough_kw": float(of_all.trough_w[0]) / 1e3,
        }  # fmt: skip
    above = excursion(physics, 0, stage_clock_mhz, parts)
    if np.isfinite(above.peak_w).all():
        most = int(above.peak_w.argmax())
        values = {"peak_w": above.peak_w, "limit_w": above.limit_w, "lasts_s": above.lasts_s, "share": above.share}
        found["power_excursion"] = {name: float(of[most]) for name, of in values.items()}
    heat = warming(physics, 0, stage_clock_mhz, parts)
    if np.isfinite(heat.peak_c).all():
        most = int(heat.peak_c.argmax())
        found["temperature_swing"] = {
            "peak_c": float(heat.peak_c[most]), "trough_c": float(heat.trough_c[most]), "settles_s": heat.settles_s,
        }  # fmt: skip
        if np.isfinite(after_s := float(heat.throttles_s[most])):
            found["temperature_swing"]["throttles_s"] = after_s
    return found


def _stages(parts: Breakdown) -> tuple[Stage, ...]:
    columns = (
        parts.clock_mhz, parts.busy_s, parts.idle_s, parts.stage_energy_j, parts.stage_memory_bytes / GIB,
        parts.layers, parts.stage_power_w, parts.stage_temperature_c,
        parts.stage_peak_power_w, parts.stage_power_limit_w,
    )  # fmt: skip
    return tuple(
        Stage(
            clock, busy, idle, energy, memory, int(layers), watts, celsius, parts.gpus_per_stage, peak, limit,
            parts.held_by[i],
            {name: float(joules[i]) for name, joules in parts.stage_energy_parts_j.items()},
            {name: float(degrees[i]) for name, degrees in parts.stage_position_c.items() if degrees[i] == degrees[i]},
        )
        for i, (clock, busy, idle, energy, memory, layers, watts, celsius, peak, limit) in enumerate(
            zip(*(c.tolist() for c in columns), strict=True)
        )
    )  # fmt: skip
