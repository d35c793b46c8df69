"""From five clock-controlled plans of a pipeline to its power limits, and from five limits to its clocks.

    python tests/bench/bench_limits.py [DATA_FOLDER] [DRAWS]

The default folder is ../shared/data beside the repository. Every row is of plans that the fit did not see, queried
without results: mean error of iteration time and energy of whole plans, and how many 90 % intervals of ranks held.
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import pandas as pd

from jointopt.workflows.calibrate import calibrate

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ["forward_time_sum_s", "backward_time_sum_s", "iteration_time_s", "energy_j", "avg_power_w"]
CLOCKS, LIMITS = ("perseus", "envpipe"), ("zeus_global", "zeus_local")
DIRECTIONS = {
    "clocks to one limit": (CLOCKS, LIMITS[:1]),
    "clocks to a limit per stage": (CLOCKS, LIMITS[1:]),
    "one limit to clocks": (LIMITS[:1], CLOCKS),
    "limits per stage to clocks": (LIMITS[1:], CLOCKS),
    "clocks to clocks": (CLOCKS, CLOCKS),
}


def plans(rows: pd.DataFrame) -> pd.Series:
    return rows.method + rows.plan.astype(str)


def drawn(rows: pd.DataFrame, methods: tuple[str, ...], draw: int, count: int = 5) -> pd.Series:
    """Which rows are of ``count`` plans of these methods, drawn at random."""
    names = plans(rows)
    own = names[rows.method.isin(methods)].unique()
    return names.isin(np.random.default_rng(draw).choice(own, count, replace=False))


def errors(known: pd.DataFrame, queried: pd.DataFrame, gpu: str) -> dict[str, float]:
    """Mean errors of whole plans, and shares of ranks inside of their intervals."""
    found = calibrate(known, gpu, queried.drop(columns=RESULTS)).predictions
    names = plans(queried)
    time = found.predicted_iteration_time_s.groupby(names).max() / queried.iteration_time_s.groupby(names).max() - 1
    energy = found.predicted_energy_j.groupby(names).sum() / queried.energy_j.groupby(names).sum() - 1
    ends = {name: f"predicted_{name}" for name in ("iteration_time_s", "energy_j")}
    held = {
        name: np.mean(queried[name].between(found[f"{end}_low"], found[f"{end}_high"])) for name, end in ends.items()
    }
    return {
        "time": float(time.abs().mean()), "worst": float(time.abs().max()), "energy": float(energy.abs().mean()),
        "time held": float(held["iteration_time_s"]), "energy held": float(held["energy_j"]),
    }  # fmt: skip


def table(data: pathlib.Path, draws: int) -> pd.DataFrame:
    """Errors of every direction, GPU and model, averaged over the draws."""
    rows = pd.read_csv(data / "energy_pipeline_ranks.csv")
    found = []
    for (gpu, model), own in rows.groupby(["gpu", "model"]):
        for name, (seen_methods, methods) in DIRECTIONS.items():
            for draw in range(draws):
                seen = drawn(own, seen_methods, draw)
                queried = own[own.method.isin(methods) & ~seen]
                found.append({"what": name, "gpu": gpu, "model": model} | errors(own[seen], queried, str(gpu)))
    return pd.DataFrame(found).groupby(["what", "gpu", "model"], sort=False).mean()


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "shared/data"
    if not folder.is_dir():
        sys.exit(f"No recorded runs at {folder}.")
    result = table(folder, int(sys.argv[2]) if len(sys.argv) > 2 else 4)
    print(result.round(4).to_string())
    print(result.groupby("what", sort=False).mean().round(4).to_string())
