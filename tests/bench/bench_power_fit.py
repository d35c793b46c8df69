"""How well the power model and its catalogue constants match recorded runs, and what it costs to evaluate.

    python tests/bench/bench_power_fit.py [DATA_FOLDER]

The default folder is ../shared/data beside the repository.
"""

from __future__ import annotations

import argparse
import pathlib
import time
from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from jointopt.jobs.catalog.gpus import load_gpu, power_constants
from jointopt.physics import clock_law

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEQ = 2048  # of the Perseus stages, with one sequence per micro-batch: inferred, the artifact does not state it
STAGES = {("bloom", 0): (8, 14336, 112), ("bloom", 1): (9, 14336, 112),
          ("gpt3-175b", 0): (12, 12288, 96), ("gpt3-175b", 1): (13, 12288, 96)}  # fmt: skip
FIT_BELOW_MHZ = 1320.0  # above, the 500 W board no longer follows the requested clock


def stage_work(model: str, stage: int, instruction: str) -> tuple[float, float]:
    """Flops and bytes of one GPU of a TP-8 stage; unfused attention."""
    layers, h, heads = STAGES[model, stage]
    times = 2 if instruction == "backward" else 1
    flops = layers * (24 * SEQ * h * h + 4 * SEQ * SEQ * h) / 8
    moved = layers * (24 * h * h / 8 + 2 * SEQ * h * (10 + 24 / 8) + 10 * heads * SEQ * SEQ / 8)
    return times * flops, times * moved


def stage_profiles(data: pathlib.Path) -> pd.DataFrame:
    """The profiles with the stage recognised by its time: the file holds two stages per model, unlabelled."""
    rows = pd.read_csv(data / "clock_stage_profiles.csv")
    by_clock = rows.groupby(["model", "instruction", "clock_mhz"])
    rows["stage"] = by_clock.time_s.rank(method="first").astype(int) - 1
    work = [stage_work(r.model, r.stage, r.instruction) for r in rows.itertuples()]
    rows["flops"], rows["moved"] = zip(*work, strict=True)
    return rows


def a100_stages(data: pathlib.Path) -> None:
    rows, k = stage_profiles(data), power_constants(load_gpu("a100-sxm4-80gb"))
    below = rows[rows.clock_mhz <= FIT_BELOW_MHZ]
    watts = clock_law.busy_power_w(k, below.clock_mhz, 1410.0, below.time_s, below.flops, below.moved)
    error = np.abs(watts / below.avg_power_w - 1)
    print(f"A100-SXM stages below the limit: power off by {error.mean():.2%} on average, {error.max():.1%} at most")
    for (model, kind, stage), g in rows.groupby(["model", "instruction", "stage"]):
        g = g.sort_values("clock_mhz")
        best, top = g.loc[g.energy_j.idxmin()], g.iloc[-1]
        print(f"  {model} {kind} {stage}: measured minimum at {best.clock_mhz / 1410:.3f} f_max, "
              f"{1 - best.energy_j / top.energy_j:.1%} less energy, {best.time_s / top.time_s - 1:.1%} more time; "
              f"top {top.avg_power_w:.0f} W; {predicted_minimum(g)}")  # fmt: skip


def predicted_minimum(profile: pd.DataFrame) -> str:
    """The same figures by the model, from the time law of the profile and its work."""
    k, top = power_constants(load_gpu("a100-sxm4-80gb")), profile.iloc[-1]
    low = profile[profile.clock_mhz <= FIT_BELOW_MHZ]
    sm_s, other_s = np.polyfit(1410.0 / low.clock_mhz, low.time_s, 1)
    cap = clock_law.capped_clock_mhz(k, sm_s, other_s, top.flops, top.moved, top.avg_power_w, 1410.0, 210.0)
    clock = np.minimum(profile.clock_mhz.to_numpy(), cap)
    time_s = clock_law.scaled_time_s(sm_s, other_s, clock, 1410.0)
    energy = time_s * clock_law.busy_power_w(k, clock, 1410.0, time_s, top.flops, top.moved)
    best = int(np.argmin(energy))
    return (f"model {clock[best] / 1410:.3f}, {1 - energy[best] / energy[-1]:.1%}, "
            f"{time_s[best] / time_s[-1] - 1:.1%}, clock under the limit {float(cap):.0f} MHz")  # fmt: skip


def pipelines(data: pathlib.Path, gpu_id: str, fixed_share: float = 0.15) -> None:
    """Energy per rank with the catalogue's voltage curve; one power per stage and direction is fitted."""
    rows = pd.read_csv(data / "energy_pipeline_ranks.csv")
    rows = rows[(rows.gpu == gpu_id) & rows.forward_clock_mhz_mean.notna()]
    gpu = load_gpu(gpu_id)
    k, top = power_constants(gpu), gpu.need("clock_max_mhz", "fit pipelines")
    at = pd.factorize(rows.model + rows["rank"].astype(str))[0]
    n = at.max() + 1

    def shape(clock: pd.Series) -> np.ndarray:
        v2 = clock_law.squared_voltage(clock, top, k.knee_fraction, k.voltage_ratio)
        return np.asarray(clock / top * ((1 - fixed_share) * v2 + fixed_share))

    forward, backward = shape(rows.forward_clock_mhz_mean), shape(rows.backward_clock_mhz_mean)
    busy_f, busy_b = rows.forward_time_sum_s.to_numpy(), rows.backward_time_sum_s.to_numpy()
    idle_j = k.wait_w * (rows.iteration_time_s.to_numpy() - busy_f - busy_b)

    def residual(p: np.ndarray) -> np.ndarray:
        watts = [np.minimum(k.static_w + p[at + i * n] * s, 300.0) for i, s in enumerate((forward, backward))]
        return (idle_j + busy_f * watts[0] + busy_b * watts[1]) / rows.energy_j.to_numpy() - 1

    # the limit hides the power of a stage that starts above it: several starts, the lowest cost counts
    starts = (least_squares(residual, np.full(2 * n, watts)) for watts in (150.0, 200.0, 250.0, 300.0, 350.0))
    fit = min(starts, key=lambda f: f.cost)
    print(f"{gpu_id} pipelines: energy per rank off by {np.abs(fit.fun).mean():.2%} in sample, {len(rows)} rows, "
          f"{np.median(fit.x):.0f} W above static at f_max")  # fmt: skip


def h200_products(data: pathlib.Path, full_clock_flops: float = 818e12) -> None:
    """Throughput of large products under the 700 W limit, from the rate of those that stay below it."""
    rows = pd.read_csv(data / "gemm_bf16.csv.gz")
    rows = rows[(rows.gpu == "h200-sxm-141gb") & (rows[["m", "n", "k"]].min(axis=1) >= 4096)]
    rows = rows[rows.avg_power_w > 685]
    k = power_constants(load_gpu("h200-sxm-141gb"))
    flops = 2.0 * rows.m * rows.n * rows.k
    moved = 2.0 * (rows.m * rows.k + rows.k * rows.n + rows.m * rows.n)
    full_s = flops / full_clock_flops
    clock = clock_law.capped_clock_mhz(k, full_s, 0.0, flops, moved, rows.avg_power_w, 1980.0, 345.0)
    error = np.abs(full_s * 1980.0 / clock / rows.time_s - 1)
    uncapped = clock_law.busy_power_w(k, 1980.0, 1980.0, full_s, flops, moved)
    print("H200 products at the limit, calibrated on their median: "
          f"time off by {error.median():.1%}, clock {np.median(clock):.0f} MHz, "
          f"would draw {np.median(uncapped):.0f} W unlimited ({len(rows)} rows)")  # fmt: skip


def speed(plans: int = 20_000, stages: int = 16) -> None:
    """Nanoseconds per (plan, stage) element with a tenth of the elements over the limit."""
    k, rng, shape = power_constants(load_gpu("a100-sxm4-80gb")), np.random.default_rng(0), (plans, stages)
    sm_s = rng.uniform(0.02, 0.2, shape)
    other_s = sm_s * rng.uniform(0.05, 1.0, shape)
    flops = rng.uniform(0.3, 0.8, shape) * 312e12 * (sm_s + other_s)
    moved = rng.uniform(0.2, 0.9, shape) * 1.5e12 * (sm_s + other_s)
    limit = np.percentile(clock_law.busy_power_w(k, 1410.0, 1410.0, sm_s + other_s, flops, moved), 90)
    clock = clock_law.capped_clock_mhz(k, sm_s, other_s, flops, moved, limit, 1410.0, 210.0)
    calls: dict[str, Callable[[], object]] = {
        "capped_clock_mhz": lambda: clock_law.capped_clock_mhz(k, sm_s, other_s, flops, moved, limit, 1410.0, 210.0),
        "energy_parts_j": lambda: clock_law.energy_parts_j(k, clock, 1410.0, 2 * sm_s, sm_s, flops, moved, 0.0),
        "busy_power_w": lambda: clock_law.busy_power_w(k, clock, 1410.0, sm_s, flops, moved),
    }
    for name, call in calls.items():
        print(f"{name}: {best_seconds(call) / sm_s.size * 1e9:.1f} ns per element, 10 % capped")


def best_seconds(call: Callable[[], object], repeats: int = 7) -> float:
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "data", nargs="?", type=pathlib.Path, default=ROOT.parent / "shared/data", help="folder of the recorded runs"
    )
    folder = parser.parse_args().data
    if folder.is_dir():
        a100_stages(folder)
        pipelines(folder, "a100-pcie-80gb")
        pipelines(folder, "a40")
        h200_products(folder)
    else:
        print(f"No recorded runs at {folder}: only the speed is measured.")
    speed()
