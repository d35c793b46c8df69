"""Learning curves of what a cluster's own runs teach, on clusters whose truth is known: see README.md.

python -m jointopt.studies.learning.learn [--rows 30 100 300] [--seeds 2] [--clocks] [--table TABLE.csv] [--plot PNG]

Without --table, nanotron's recorded runs are the real cluster where ../shared/data beside the repository has them.
With --learners or --truths a part is computed; --plot keeps the other figures that the CSV beside the plot has.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import xgboost
from threadpoolctl import threadpool_limits

from jointopt.core.schema import CONSTANTS, DEGREES, Floats, Ints
from jointopt.studies.learning import truths
from jointopt.surrogate.files import load_surrogate
from jointopt.surrogate.kernel import Kernel, Runs, default_kernel
from jointopt.surrogate.own_cluster import LEAST_RUNS, OwnRuns, remembered_rows
from jointopt.surrogate.own_mix import cross_fitted, folds_by_model, inputs
from jointopt.surrogate.posterior import condition
from jointopt.surrogate.training import OWN_BROKEN, TrainingSet, learn_source, training_set

ROWS = (30, 100, 300, 1000, 3000, 10_000)
RECORDED = Path(__file__).resolve().parents[3] / "shared" / "data" / "layouts_nanotron_ultrascale.csv"
MOST_HELD_OUT = 3  # models, and of few models a third
RAW = (*DEGREES, "vpp", "micro_batch_size", "zero_stage", "num_gpus", "seq_length", "global_batch_size")
OWN_PROCESS, WITH_PROCESS, BOTH = "own process", "trees with the process", "both, by weight"
LEARNERS = ("physics", "trees on raw columns", "process", OWN_PROCESS, "trees on residual", WITH_PROCESS, BOTH)
KEYS = ["truth", "left out", "rows"]


@dataclass(frozen=True)
class Cluster:
    """All runs of one cluster as training reads them, and what they would be without physics: (n, columns), (n,)."""

    data: TrainingSet
    raw: Floats
    log_time_s: Floats
    model: np.ndarray

    @classmethod
    def of(cls, table: pd.DataFrame) -> Cluster:
        """The timed runs of a table, none left out."""
        data = training_set(table.assign(source="own cluster"), broken=1e9)
        rows = table[(table["status"] == "ok") & (table["iteration_time_s"] > 0)].iloc[data.known.rows]
        raw = rows.reindex(columns=[*RAW, "hidden_size", "num_layers"]).astype(float).to_numpy()
        names = np.array([group.split("|")[0] for group in data.known.runs.group.tolist()])
        codes = np.unique(names, return_inverse=True)[1][:, None].astype(float)
        return cls(data, np.hstack([raw, codes]), np.log(rows["iteration_time_s"].to_numpy(float)), names)

    def __len__(self) -> int:
        return len(self.log_time_s)


def splits(cluster: Cluster, count: int, seeds: int) -> Iterator[tuple[str, Ints, Ints]]:
    """(kind, train, test): a third of the models left out but at most three, or runs drawn at random."""
    models = np.unique(cluster.model)
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        held = rng.choice(models, max(1, min(MOST_HELD_OUT, len(models) // 3)), replace=False)
        test = np.isin(cluster.model, held)
        yield "unseen models", rng.permutation(np.flatnonzero(~test))[:count], np.flatnonzero(test)
        order = rng.permutation(len(cluster))
        yield "random runs", order[:count], order[count:]


def trees(columns: Floats, target: Floats) -> Callable[[Floats], Floats]:
    """XGBoost of depth 5 on columns (n, k)."""
    return (
        xgboost.XGBRegressor(max_depth=5, n_estimators=250, learning_rate=0.06, n_jobs=1).fit(columns, target).predict
    )


def answers(
    cluster: Cluster, fit: Ints, at: Ints, kernel: Kernel, learners: Sequence[str] = LEARNERS
) -> dict[str, Floats]:
    """log(measured / physics) of the runs ``at`` by each of ``learners``, from those ``fit``."""
    runs, residual = cluster.data.known.runs, cluster.data.known_residual
    fit = fit[np.abs(residual[fit]) < np.log(OWN_BROKEN)]
    new, known, y = runs.take(at), runs.take(fit), residual[fit]
    log_physics_s = cluster.log_time_s - residual
    own = functools.cache(lambda: own_answers(cluster, fit, at, kernel))
    every: Mapping[str, Callable[[], Floats]] = {
        "physics": lambda: np.zeros(len(at)),
        "trees on raw columns": lambda: (
            trees(cluster.raw[fit], cluster.log_time_s[fit])(cluster.raw[at]) - log_physics_s[at]
        ),
        "process": lambda: condition(kernel, runs.take(kept := remembered_rows(fit)), residual[kept]).mean(new),
        "trees on residual": lambda: trees(inputs(known, runs.names), y)(inputs(new, runs.names)),
    } | {name: lambda name=name: own()[name] for name in (OWN_PROCESS, WITH_PROCESS, BOTH)}
    return {name: every[name]() for name in learners}


def own_answers(cluster: Cluster, fit: Ints, at: Ints, kernel: Kernel) -> dict[str, Floats]:
    """As `answers`, by what is learned of the cluster alone; of too few runs for it, by the shared kernel."""
    data, new = cluster.data, cluster.data.known.take(at)
    source = str(data.known.runs.source[0])
    own, known, residual = OwnRuns(source), data.known.runs.take(fit), data.known_residual[fit]
    if len(fit) >= LEAST_RUNS:
        found = learn_source(source, data, fit, kernel)
        own, known, residual = found.own, found.runs, found.residual
    process = process_of(own, kernel, known, residual)
    every = process(np.arange(len(known)), new.runs)
    stacked = with_process(process, known, residual)(new.runs, every)
    kept = remembered_rows(np.arange(len(known), dtype=np.int64))
    both = own.mean(own.process(kernel, known.take(kept), residual[kept]), new.runs, known)
    return {OWN_PROCESS: every, WITH_PROCESS: stacked, BOTH: both}


def process_of(own: OwnRuns, kernel: Kernel, known: Runs, residual: Floats) -> Callable[[Ints, Runs], Floats]:
    """A function of rows of ``known`` and of new runs (n,): what the process says of these (n,) after those."""

    def mean(rows: Ints, new: Runs) -> Floats:
        kept = remembered_rows(rows)
        return own.process(kernel, known.take(kept), residual[kept]).mean(new)

    return mean


def with_process(
    process: Callable[[Ints, Runs], Floats], known: Runs, residual: Floats
) -> Callable[[Runs, Floats], Floats]:
    """XGBoost one feature of which is what the process says of a run: of ``known`` ones, after those of other models.

    Its answers (n,) are a function of new runs and of what the process says of these (n,) after all known ones.
    """
    before = cross_fitted(folds_by_model(known)[0], lambda fit, at: process(fit, known.take(at)))

    def columns(runs: Runs, means: Floats) -> Floats:
        return np.column_stack([inputs(runs, known.names), means])

    fitted = trees(columns(known, before), residual)
    return lambda new, means: fitted(columns(new, means))


def shared_kernel() -> Kernel:
    """The kernel of the shipped surrogate."""
    shipped = load_surrogate("default")
    return default_kernel(len(CONSTANTS)) if shipped is None else shipped.kernel


def curves(
    name: str, cluster: Cluster, counts: Sequence[int], seeds: int, learners: Sequence[str] = LEARNERS
) -> pd.DataFrame:
    """Median errors in percent: a row per truth, rows learned from and kind of runs left out.

    A recorded cluster has fewer runs than the largest counts need: its curves end where they run out.
    """
    kernel, found = shared_kernel(), []
    for count in counts:
        for kind, fit, at in splits(cluster, count, seeds):
            if len(fit) < count or not len(at):
                continue
            truth = cluster.data.known_residual[at]
            found_by = answers(cluster, fit, at, kernel, learners)
            error = {k: 100 * np.median(np.abs(np.expm1(v - truth))) for k, v in found_by.items()}
            found.append({"truth": name, "rows": count, "left out": kind} | error)
            print(".", end="", flush=True)
    return pd.DataFrame(found).groupby(KEYS, as_index=False).mean()


def beside_others(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The figures of ``table``, and all others that the CSV ``path`` has, in the order of clusters and learners."""
    if not path.is_file():
        return table
    before = pd.read_csv(path).set_index(KEYS)
    found = table.set_index(KEYS).combine_first(before)
    order = list(dict.fromkeys([*before.index.get_level_values("truth"), *table["truth"]]))
    found = found.sort_index(key=lambda keys: keys.map(order.index) if keys.name == "truth" else keys)
    return found[[name for name in LEARNERS if name in found]].reset_index()


def one_model_at_a_time(cluster: Cluster, learners: Sequence[str] = LEARNERS) -> pd.DataFrame:
    """Median errors in percent of a recorded cluster, each model predicted from the others."""
    kernel, every = shared_kernel(), np.arange(len(cluster))
    found = {name: np.zeros(len(cluster)) for name in learners}
    for model in np.unique(cluster.model):
        at = np.flatnonzero(cluster.model == model)
        for name, values in answers(cluster, np.setdiff1d(every, at), at, kernel, learners).items():
            found[name][at] = values
    truth = cluster.data.known_residual
    kinds = {"all runs": every, "within twice the physics": np.flatnonzero(np.abs(truth) < np.log(2.0))}
    rows = [
        {"runs": kind} | {n: 100 * np.median(np.abs(np.expm1(v - truth))[at]) for n, v in found.items()}
        for kind, at in kinds.items()
    ]
    return pd.DataFrame(rows)


def plot(table: pd.DataFrame, path: Path) -> None:
    """Errors over rows, a column of panels per truth and a row per kind of runs left out."""
    import matplotlib.pyplot as plt

    truths_, kinds = table["truth"].unique(), sorted(table["left out"].unique(), reverse=True)
    size = (3.8 * len(truths_), 3.1 * len(kinds))
    figure, axes = plt.subplots(
        len(kinds), len(truths_), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    for column, truth in enumerate(truths_):
        for row, kind in enumerate(kinds):
            axis, rows = axes[row, column], table[(table["truth"] == truth) & (table["left out"] == kind)]
            for name in (name for name in LEARNERS if name in rows):
                axis.loglog(rows["rows"], rows[name], marker="o", markersize=4, label=name)
            axis.set(title=f"{truth}, {kind}", xlabel="runs learned from")
            axis.set_xticks(rows["rows"].unique(), [f"{n:,}" for n in rows["rows"].unique()], minor=False)
            axis.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"], minor=False)
            axis.grid(alpha=0.3)
    for axis in axes[:, 0]:
        axis.set_ylabel("median error of time, %")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=len(LEARNERS))
    figure.savefig(path, dpi=110)


def clusters(names: Sequence[str], rows: int, recorded: Path | None, *, clocks: bool) -> Iterator[tuple[str, Cluster]]:
    """(name, cluster): made-up ones of so many rows, and the recorded one where there is such."""
    for name in names:
        yield name, Cluster.of(truths.table(name, rows, seed=11, clocks=clocks))
    if recorded is not None:
        yield recorded.stem.removeprefix("layouts_").split("_")[0], Cluster.of(pd.read_csv(recorded))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, write the plot and its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--truths", nargs="*", default=["T", "S"])
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=LEARNERS, metavar="LEARNER")
    parser.add_argument("--clocks", action="store_true", help="runs at clocks of all kinds, with power")
    parser.add_argument("--table", type=Path, help="measured runs of one cluster instead of nanotron's")
    parser.add_argument("--made-up-only", action="store_true", help="no recorded cluster")
    parser.add_argument("--plot", type=Path, help="a PNG; its figures are written beside it as CSV")
    given = parser.parse_args(arguments)
    recorded = None if given.made_up_only or given.clocks else given.table or RECORDED
    if recorded == RECORDED and not RECORDED.is_file():
        print(f"No recorded cluster: there is no {RECORDED}; --table names another.", file=sys.stderr)
        recorded = None
    with threadpool_limits(1, user_api="blas"):
        parts, each = [], None
        for name, cluster in clusters(given.truths, 2 * max(given.rows), recorded, clocks=given.clocks):
            parts.append(curves(name, cluster, given.rows, given.seeds, given.learners))
            each = one_model_at_a_time(cluster, given.learners) if name not in given.truths else None
        table = pd.concat(parts, ignore_index=True)
        print("\n" + table.round(2).to_string(index=False))
        if given.plot:
            table = beside_others(table, figures := given.plot.with_suffix(".csv"))
            plot(table, given.plot)
            table.round(2).to_csv(figures, index=False)
        if each is not None:
            print(f"\neach model from the others\n{each.round(2).to_string(index=False)}")


if __name__ == "__main__":
    main()
