"""Held-out errors of `jointopt calibrate` per file, GPU and model, and coverage of its 90 % intervals.

    python tests/bench/bench_calibrate.py [DATA_FOLDER]

The default folder is ../shared/data beside the repository. Every figure is of rows that the fit did not see, queried
as a query of the same columns without results.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

import numpy as np
import pandas as pd

from jointopt.workflows.calibrate import calibrate

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROFILE_RESULTS = ["time_s", "energy_j", "avg_power_w"]
RANK_RESULTS = ["forward_time_sum_s", "backward_time_sum_s", "iteration_time_s", "energy_j", "avg_power_w"]
FIVE = [(855, 990, 1095, 1245, 1410), (855, 990, 1125, 1260, 1410), (855, 1005, 1110, 1260, 1410),
        (855, 1080, 1170, 1275, 1410), (855, 1095, 1200, 1320, 1410)]  # fmt: skip
THREE = [(855, 1095, 1410), (855, 1110, 1410), (855, 1155, 1410)]


def figures(known: pd.DataFrame, queried: pd.DataFrame, results: list[str], columns: dict[str, str], gpu: str) -> str:
    """Mean absolute error and coverage of the held-out rows, per predicted column."""
    found = calibrate(known, gpu, queried.drop(columns=results)).predictions
    texts = []
    for measured, predicted in columns.items():
        y, p = queried[measured].to_numpy(), found[predicted].to_numpy()
        inside = (y >= found[predicted + "_low"]) & (y <= found[predicted + "_high"])
        texts.append(f"{measured} {np.mean(np.abs(p / y - 1)):6.2%} ({inside.mean():4.0%} inside)")
    return ", ".join(texts)


def profile(known: pd.DataFrame, queried: pd.DataFrame, gpu: str = "a100-sxm4-80gb") -> str:
    columns = {"time_s": "predicted_time_s", "avg_power_w": "predicted_avg_power_w", "energy_j": "predicted_energy_j"}
    return figures(known, queried, PROFILE_RESULTS, columns, gpu)


def profiles(data: pathlib.Path) -> None:
    rows = pd.read_csv(data / "clock_stage_profiles.csv")
    for clocks in (*FIVE, *THREE):
        print(f"A100-SXM profiles, fitted on {clocks}:")
        for name, model in (("both models", rows), *rows.groupby("model")):
            seen = model.clock_mhz.isin(clocks)
            print(f"  {name:12} {profile(model[seen], model[~seen])}")
    print("A100-SXM profiles, every clock of one model and one reading of the other:")
    for clock in (1095, 1110, 1155, 1200, 1410):
        for model in rows.model.unique():
            seen = (rows.model == model) | (rows.clock_mhz == clock)
            print(f"  {clock} MHz of the other than {model:10} {profile(rows[seen], rows[~seen])}")
    low = rows.clock_mhz < 1200
    print(f"A100-SXM profiles, extrapolated below 1200 MHz: {profile(rows[~low], rows[low])}")


def minima(data: pathlib.Path) -> None:
    """The clock of the least energy and savings, measured against the law fitted to every clock."""
    rows = pd.read_csv(data / "clock_stage_profiles.csv")
    work = calibrate(rows, "a100-sxm4-80gb").calibration.work
    rows["profile"] = rows.groupby(["model", "instruction", "clock_mhz"]).cumcount() + 1
    for entry in work:
        model, kind, _, number = str(entry["work"]).split()
        own = rows[(rows.model == model) & (rows.instruction == kind) & (rows.profile == int(number))]
        top = own.loc[own.clock_mhz.idxmax()]
        best = own.loc[own.energy_j.idxmin()]
        saved = [1 - own.energy_j[own.time_s <= top.time_s * (1 + p / 100)].min() / top.energy_j for p in (1, 5, 10)]
        law = [entry[f"saving_percent_at_{p}_percent_slowdown"] for p in (1, 5, 10)]
        print(
            f"  {entry['work']:30} measured {best.clock_mhz / 1410:.3f} f_max, {1 - best.energy_j / top.energy_j:5.1%};"
            f" law {entry['least_energy_clock_mhz'] / 1410:.3f}, {entry['least_energy_saving_percent']:.1f}%;"
            f" saved at 1, 5, 10 % slowdown: measured {', '.join(f'{100 * s:.1f}' for s in saved)};"
            f" law {', '.join(f'{s:.1f}' for s in law)}"
        )


def pipelines(data: pathlib.Path, draws: int = 4) -> None:
    rows = pd.read_csv(data / "energy_pipeline_ranks.csv")
    for (gpu, model), own in rows.groupby(["gpu", "model"]):
        clocked = own[own.method.isin(["perseus", "envpipe"])]
        plan = clocked.method + clocked.plan.astype(str)
        names = plan[clocked.method == "perseus"].unique()
        for draw in range(draws):
            seen = plan.isin(np.random.default_rng(draw).choice(names, 5, replace=False))
            print(f"{gpu} {model}, five plans, draw {draw}: {ranks(clocked[seen], clocked[~seen], gpu)}")
        uniform = own.method == "zeus_global"
        local = own[own.method == "zeus_local"]
        print(f"{gpu} {model}, a limit per stage from uniform ones: {ranks(own[uniform], local, gpu)}")
        print(f"  the same with pass times known: {ranks(own[uniform], local, gpu, RANK_RESULTS[2:])}")
        measured_low = local[local.power_limit_w >= own[uniform].power_limit_w.min()]
        whole = measured_low[measured_low.groupby("plan")["rank"].transform("size") == own["rank"].nunique()]
        print(f"  the same without limits below the uniform ones: {ranks(own[uniform], whole, gpu)}")


def ranks(known: pd.DataFrame, queried: pd.DataFrame, gpu: str, hidden: list[str] = RANK_RESULTS) -> str:
    """Errors of whole plans, and coverage of the intervals of ranks."""
    found = calibrate(known, gpu, queried.drop(columns=hidden)).predictions
    keys = [queried.method, queried.plan]
    time = found.predicted_iteration_time_s.groupby(keys).max() / queried.iteration_time_s.groupby(keys).max() - 1
    energy = found.predicted_energy_j.groupby(keys).sum() / queried.energy_j.groupby(keys).sum() - 1
    inside = [
        np.mean((queried[m] >= found[f"{p}_low"]) & (queried[m] <= found[f"{p}_high"]))
        for m, p in (("iteration_time_s", "predicted_iteration_time_s"), ("energy_j", "predicted_energy_j"))
    ]
    own = np.abs(found.predicted_energy_j / queried.energy_j - 1).mean()
    return (f"iteration time {np.abs(time).mean():.2%} ({inside[0]:.0%} inside), energy {np.abs(energy).mean():.2%}, "
            f"of ranks {own:.2%} ({inside[1]:.0%} inside)")  # fmt: skip


def power_limits(data: pathlib.Path) -> None:
    """V100 and A40 networks of the Zeus trace: every other power limit held out."""
    rows = pd.read_csv(data / "power_limit_zeus_nsdi23.csv")
    columns = {"epoch_time_s": "predicted_time_s", "energy_j": "predicted_energy_j"}
    for (gpu, model), own in rows.groupby(["gpu", "model"]):
        limits = np.sort(own.power_limit_w.unique())
        seen = own.power_limit_w.isin([*limits[::2], limits[-1]])
        errors = figures(own[seen], own[~seen], ["epoch_time_s", "energy_j", "avg_power_w"], columns, gpu)
        print(f"{gpu} {model}, every other limit: {errors}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "data", nargs="?", type=pathlib.Path, default=ROOT.parent / "shared/data", help="folder of the recorded runs"
    )
    folder = parser.parse_args().data
    if not folder.is_dir():
        sys.exit(f"No recorded runs at {folder}.")
    profiles(folder)
    minima(folder)
    pipelines(folder)
    power_limits(folder)
