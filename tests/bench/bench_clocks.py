"""Runs at clocks of all kinds: errors that `jointopt retrain` prints, errors of `predict`, and those of plain learners.

    OMP_NUM_THREADS=1 python tests/bench/bench_clocks.py [--truths T T2 S] [--rows 300 1000 2200] [--seeds 3] [--plain]

Tables of `jointopt.studies.learning.truths`, ten models: three of them left out (unseen), and runs of the other seven
that were not learned from (seen), at the top clock and below it. Median errors in percent of time, power and energy;
*printed*: what `retrain` says of the same. ``--plain``: one line each of XGBoost, scikit-learn's gradient boosting and
Gaussian process, and CatBoost where it is installed, on the same features and the clock. A minute per truth and size.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jointopt.core.schema import Floats, Ints
from jointopt.core.system import one_blas_thread
from jointopt.studies.learning import truths
from jointopt.surrogate.files import load
from jointopt.surrogate.own_mix import inputs
from jointopt.surrogate.training import OWN_BROKEN, training_set
from jointopt.workflows.predict import predict
from jointopt.workflows.retrain import retrain

RESULTS = {"time": "iteration_time_s", "power": "avg_power_w", "energy": "energy_j"}
TABLE_ROWS, LEFT_OUT, JUDGED = 4000, 3, 600
TOP = 0.97  # share of the top clock from which a run is at it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truths", nargs="+", default=["T", "T2", "S"], choices=truths.TRUTHS)
    parser.add_argument("--rows", nargs="+", type=int, default=[1000])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    for truth in given.truths:
        table = truths.table(truth, TABLE_ROWS, seed=11, clocks=True).assign(source="own cluster")
        for rows in given.rows:
            found: list[dict[str, Any]] = []
            for seed in range(given.seeds):
                parts = split(table, rows, seed)
                found += [*judged(table, *parts), *(plain(table, *parts) if given.plain else ())]
            of_all = pd.DataFrame(found).groupby(["learner", "quantity", "runs"], sort=False).mean().round(2)
            print(f"\n{truth}, {rows:,} rows\n{of_all.to_string(na_rep='')}", flush=True)


def split(table: pd.DataFrame, rows: int, seed: int) -> tuple[Ints, dict[str, Ints]]:
    """Rows to learn from, and those that are judged by what they are."""
    rng, models = np.random.default_rng(100 + seed), table["model"].to_numpy(str)
    held = np.isin(models, rng.choice(np.unique(models), LEFT_OUT, replace=False))
    seen, unseen = (rng.permutation(np.flatnonzero(which)).astype(np.int64) for which in (~held, held))
    return seen[:rows], {"unseen": unseen[:JUDGED], "seen": seen[rows : rows + JUDGED]}


def judged(table: pd.DataFrame, fit: Ints, at: dict[str, Ints]) -> Iterator[dict[str, Any]]:
    """Errors of `predict` after `retrain` on the rows ``fit``, and what that printed."""
    with tempfile.TemporaryDirectory() as folder:
        runs, out = Path(folder) / "runs.csv", Path(folder) / "own"
        table.iloc[fit].to_csv(runs, index=False)
        start = time.process_time()
        retrain(tables=[runs], out=out)
        yield {"learner": "retrain", "quantity": "CPU s", "runs": "", "error": time.process_time() - start}
        printed = load(out).own[0].errors
        for kind, rows in at.items():
            some = table.iloc[rows]
            found = predict(some.drop(columns=list(RESULTS.values())), surrogate=str(out))
            top = (some["clock_mhz"] >= TOP * table["clock_mhz"].max()).to_numpy()
            parts = {kind: top | ~top} | ({"at top": top, "below top": ~top} if kind == "unseen" else {})
            for quantity, column in RESULTS.items():
                off = 100.0 * (found[f"predicted_{column}"] / some[column] - 1.0).abs().to_numpy()
                for part, which in parts.items():
                    name = f"{quantity} {({'unseen': 'of new', 'seen': 'of known'}).get(part, part)}"
                    said = 100.0 * printed.get(name, np.nan)
                    yield {"learner": "retrain", "quantity": quantity, "runs": part,
                           "error": float(np.nanmedian(off[which])), "printed": said}  # fmt: skip


def plain(table: pd.DataFrame, fit: Ints, at: dict[str, Ints]) -> Iterator[dict[str, Any]]:
    """Errors of plain learners of log(measured / physics) on features, sensitivities and the clock."""
    data = training_set(table, OWN_BROKEN)
    columns = inputs(data.known.runs, data.known.runs.power_names)
    place = {row: i for i, row in enumerate(data.known.rows.tolist())}
    learn, judge = (
        [place[row] for row in rows.tolist() if row in place] for rows in (fit, np.concatenate([*at.values()]))
    )
    unseen = set(at["unseen"].tolist())
    of = np.array(["unseen" if data.known.rows[i] in unseen else "seen" for i in judge])
    for quantity, truth in (("time", data.known_residual), ("power", data.log_power)):
        known = [i for i in learn if np.isfinite(truth[i])]
        for name, learner in learners().items():
            with one_blas_thread:
                answer = learner(columns[known], truth[known])(columns[judge])
            off = 100.0 * np.abs(np.expm1(answer - truth[judge]))
            for kind in at:
                yield {"learner": name, "quantity": quantity, "runs": kind,
                       "error": float(np.nanmedian(off[of == kind]))}  # fmt: skip


Learner = Callable[[Floats, Floats], Callable[[Floats], Floats]]


def learners() -> dict[str, Learner]:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from xgboost import XGBRegressor

    def process(x: Floats, y: Floats) -> Callable[[Floats], Floats]:
        kernel = ConstantKernel(0.05) * RBF(5.0) + WhiteKernel(1e-3)
        model = make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True))
        return model.fit(x, y).predict  # type: ignore[no-any-return]

    boosted = {"max_depth": 5, "n_estimators": 250, "learning_rate": 0.06, "n_jobs": 1}
    found: dict[str, Learner] = {
        "xgboost": lambda x, y: XGBRegressor(**boosted).fit(x, y).predict,
        "scikit-learn boosting": lambda x, y: HistGradientBoostingRegressor(max_iter=400).fit(x, y).predict,
        "scikit-learn process": process,
    }
    if importlib.util.find_spec("catboost"):
        from catboost import CatBoostRegressor

        quiet = {"verbose": 0, "thread_count": 1, "allow_writing_files": False}
        found["catboost"] = lambda x, y: CatBoostRegressor(**quiet).fit(x, y).predict
    return found


if __name__ == "__main__":
    main()
