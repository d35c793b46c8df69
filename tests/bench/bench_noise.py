"""What noise alone leaves of tau and regret: a predictor that knows every plan's time, judged on runs that scatter.

    .venv/bin/python tests/bench/bench_noise.py [DATA_FOLDER]

The default folder is ../shared/data beside the repository; rows are those that bench_accuracy.py calls clean, groups
those of `LEAST` plans and more, as there. Measured times stand for what plans take in the mean, and runs scatter around
them by a factor; tau and regret are those of ranking by the mean, averaged (regret: its median over groups) over
`DRAWS` draws. Measured times hold noise of their own, so plans look further apart than they are: both are bounds.

- noise: deviation of a logarithm of time, of runs that are equal in every column (bigscience), or by what is stated
  where hardly a plan is run twice: repeats of nanotron differ by about 10 %; for Aleph that of bigscience is assumed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from bench_accuracy import ROOT, clean
from bench_leaderboard import NOT_OF_A_PLAN
from scipy.stats import kendalltau

import jointopt

LEAST, DRAWS = 12, 200
STATED = {"nanotron_ultrascale": 0.07, "aleph_layouts": 0.03}  # of a run: two differ by 1.4 times as much


def of_twins(rows: pd.DataFrame) -> float:
    """Deviation of a run's logarithm of time, from runs that differ in no column; NaN without enough of them."""
    plan = rows.groupby([c for c in rows if c not in NOT_OF_A_PLAN], dropna=False).ngroup()
    log_time = np.log(rows["iteration_time_s"])
    off = log_time - log_time.groupby(plan).transform("mean")
    free = len(rows) - plan.nunique()
    return float(np.sqrt(off.pow(2).sum() / free)) if free >= 5 else float("nan")


def floor(time_s: np.ndarray, noise: float, rng: np.random.Generator) -> tuple[float, float]:
    """Tau and regret of the order of the mean times against runs that scatter, over the draws."""
    runs = time_s * np.exp(noise * rng.standard_normal((DRAWS, len(time_s))))
    taus = [kendalltau(time_s, run)[0] for run in runs]
    return float(np.mean(taus)), float(np.mean(runs[:, time_s.argmin()] / runs.min(axis=1) - 1))


def line(source: str, table: pd.DataFrame) -> dict[str, object] | None:
    """The figures of one source; None without a group that is large enough."""
    rows = clean(source, table)
    groups = [at for at in rows.groupby("group").indices.values() if len(at) >= LEAST]
    if not groups:
        return None
    measured = rows["iteration_time_s"].to_numpy()
    predicted = jointopt.predict(rows, surrogate="none")["predicted_iteration_time_s"].to_numpy()
    noise = STATED.get(source) or of_twins(rows)
    rng = np.random.default_rng(0)
    best = [floor(measured[at], noise, rng) for at in groups] if noise == noise else [(np.nan, np.nan)]
    most, least = np.array(best).T
    ranked = [kendalltau(predicted[at], measured[at])[0] for at in groups]
    chosen = [measured[at][predicted[at].argmin()] / measured[at].min() - 1 for at in groups]
    return {
        "source": source, "groups": len(groups), "noise": noise, "tau": np.mean(ranked), "tau at most": most.mean(),
        "regret": np.median(chosen), "regret at least": np.median(least),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "data", nargs="?", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the recorded runs"
    )
    folder = parser.parse_args().data
    paths = sorted(folder.glob("layouts_*.csv"))
    found = [line(path.stem.removeprefix("layouts_"), pd.read_csv(path)) for path in paths]
    table = pd.DataFrame([one for one in found if one])
    print(table.round(3).to_string(index=False))
    print(table[["tau", "tau at most", "regret", "regret at least"]].mean().round(3).to_string())


if __name__ == "__main__":
    main()
