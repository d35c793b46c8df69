"""What the surrogate is worth on runs that it has not seen, against physics and boosting alone; and its seconds.

    .venv/bin/python tests/bench/bench_surrogate.py [--runs N] [--plans N] [--no-seconds] [DATA_FOLDER]

The default folder is ../shared/data beside the repository; sources are those that the shipped surrogate was trained
on, each judged by learners that never saw it but for the runs that the protocol gives. All timed rows are judged,
also those that are far off; of nanotron those that its README calls clean: tp <= 8, no ZeRO-0 with pipelines, at
least 5 % of the peak.

- group out: a source's groups (model, batch, GPUs, sequence length) in five folds, each predicted from the others;
- source out: nothing of the source is known;
- +3 runs, +10 runs: so many runs, drawn at random, of each group that has more of them, pooled; the others of these
  groups are judged, smaller groups neither give runs nor are judged. Means over `DRAWS` draws.

Seconds are of synthetic runs: the physics' own times, a factor per source, 3 % noise. The marks are 60 s on 2 cores to
retrain on 10,000 runs and 10 s to predict 1,000,000 plans.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import xgboost
from bench_accuracy import ROOT, clean
from bench_predict import CODES
from scipy.stats import kendalltau

from jointopt.core.schema import RECOMPUTE_NAMES, SCHEDULE, Floats, Ints
from jointopt.jobs.jobfile import load_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.runs.table import write_table
from jointopt.surrogate.dataset import timed_runs
from jointopt.surrogate.files import load_surrogate
from jointopt.surrogate.held_out import group_folds, measured_split
from jointopt.surrogate.surrogate import Surrogate
from jointopt.surrogate.training import TrainingSet, fit, learn_kernel, source_weights, training_set  # fmt: skip
from jointopt.workflows.predict import predict

DRAWS = 3
LEAST_TO_RANK = 12
PROTOCOLS = ("group out", "source out", "+3 runs", "+10 runs")
LEARNERS = ("physics", "raw boosting", "residual boosting", "surrogate")
Learner = Callable[[Ints, Ints], tuple[Floats, Floats]]  # measured and judged rows to mean and half-width


# --- accuracy ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """Runs of all sources, their measured times, and the features that every learner gets."""

    data: TrainingSet
    timed: pd.DataFrame
    features: Floats

    @property
    def log_time(self) -> Floats:
        return np.log(self.timed["iteration_time_s"].to_numpy(float))


def read(folder: Path) -> Bench:
    surrogate = load_surrogate("default")
    assert surrogate is not None
    parts = [clean(name, pd.read_csv(folder / f"layouts_{name}.csv")) for name in surrogate.card["data"]]
    table = pd.concat(parts, ignore_index=True)
    data = training_set(table, broken=np.inf)
    timed = timed_runs(table).loc[data.known.rows].reset_index(drop=True)
    return Bench(data, timed, data.known.runs.matrix(sorted(data.known.runs.features)))


def splits(bench: Bench, name: str) -> Iterator[tuple[str, int, Ints, Ints]]:
    """(protocol, draw, measured rows, judged rows) of one source."""
    rows = bench.data.of({name})
    group = bench.data.known.runs.group[rows]
    for train, test in group_folds(group):
        yield "group out", 0, rows[train], rows[test]
    yield "source out", 0, rows[:0], rows
    for protocol, count in (("+3 runs", 3), ("+10 runs", 10)):
        for draw in range(DRAWS):
            split = measured_split(group, count, draw)
            if split is not None:
                yield protocol, draw, rows[split[0]], rows[split[1]]


def learners(bench: Bench, name: str, surrogate: Surrogate) -> dict[str, Learner]:
    """How each predicts log(measured / physics) of judged rows from other sources' rows and the measured ones."""
    data = bench.data
    others = np.setdiff1d(np.arange(len(data.source)), data.of({name}))
    physics_log_time = bench.log_time - data.known_residual

    def boosted(target: Floats, measured: Ints, judged: Ints) -> Floats:
        rows = np.concatenate([others, measured])
        trees = xgboost.XGBRegressor(max_depth=4, n_estimators=200, learning_rate=0.1, n_jobs=1, random_state=0)
        trees.fit(bench.features[rows], target[rows], sample_weight=source_weights(data.source[rows]))
        return np.asarray(trees.predict(bench.features[judged]), dtype=float)

    def own(measured: Ints, judged: Ints) -> tuple[Floats, Floats]:
        mean, half = np.empty(len(judged)), np.empty(len(judged))
        source, runs = data.known.runs.source, data.known.runs
        for each in np.unique(source[judged]):
            at = np.flatnonzero(source[judged] == each)
            given = (runs.take(measured), data.known_residual[measured])
            mean[at], half[at], _ = surrogate.predict(runs.take(judged[at]), True, given)
        return mean, half

    unknown = np.nan
    return {
        "physics": lambda _, judged: (np.zeros(len(judged)), np.full(len(judged), unknown)),
        "raw boosting": lambda measured, judged: (
            boosted(bench.log_time, measured, judged) - physics_log_time[judged], np.full(len(judged), unknown),
        ),
        "residual boosting": lambda measured, judged: (
            boosted(data.known_residual, measured, judged), np.full(len(judged), unknown),
        ),
        "surrogate": own,
    }  # fmt: skip


def without(bench: Bench, names: set[str], seed: int = 0) -> Surrogate:
    """A surrogate of all sources but ``names``, widths of intervals as shipped."""
    shipped = load_surrogate("default")
    assert shipped is not None
    allowed = set(bench.data.source.tolist()) - names
    rows = bench.data.of(allowed)
    surrogate = fit(bench.data, rows, learn_kernel(bench.data, rows, seed), seed)
    return replace(surrogate, widths=shipped.widths)


def judged(bench: Bench) -> pd.DataFrame:
    """One line per judged row, protocol, draw and learner: how far off in logarithms, and whether covered."""
    lines = []
    for name in np.unique(bench.data.source).tolist():
        surrogate = without(bench, {name})
        for learner, predicted in learners(bench, name, surrogate).items():
            for protocol, draw, measured, rows in splits(bench, name):
                mean, half = predicted(measured, rows)
                off = mean - bench.data.known_residual[rows]
                lines.append(pd.DataFrame({
                    "source": name, "learner": learner, "protocol": protocol, "draw": draw, "row": rows, "off": off,
                    "covered": np.where(np.isnan(half), np.nan, np.abs(off) <= half),
                }))  # fmt: skip
        print(f"judged {name}", file=sys.stderr, flush=True)
    return pd.concat(lines, ignore_index=True)


def error_tables(lines: pd.DataFrame) -> str:
    """Median errors per source and their means, one table per protocol."""
    error = lines.assign(error=np.abs(np.expm1(lines["off"])))
    medians = error.groupby(["protocol", "learner", "source", "draw"])["error"].median()
    per_source = medians.groupby(["protocol", "learner", "source"]).mean()
    out = []
    for protocol in PROTOCOLS:
        table = per_source[protocol].unstack("learner")[list(LEARNERS)]
        covered = error[(error["protocol"] == protocol) & (error["learner"] == "surrogate")]
        table["covered"] = covered.groupby("source")["covered"].mean()
        table.loc["mean"] = table.mean()
        table.index.name = None
        out.append(f"{protocol}\n{table.map('{:.1%}'.format).to_string()}")
    return "\n\n".join(out)


def ranking(bench: Bench, lines: pd.DataFrame) -> str:
    """Kendall tau and regret of group-out predictions in groups of 12 or more plans."""
    out = []
    for learner in LEARNERS:
        of = lines[(lines["protocol"] == "group out") & (lines["learner"] == learner)].set_index("row")["off"]
        predicted = bench.log_time[of.index] + of.to_numpy()
        group = bench.timed["group"].to_numpy()[of.index]
        taus, regrets = [], []
        for name in np.unique(group):
            at = np.flatnonzero(group == name)
            if len(at) < LEAST_TO_RANK:
                continue
            time = np.exp(bench.log_time[of.index[at]])
            taus.append(float(kendalltau(predicted[at], time)[0]))
            regrets.append(time[predicted[at].argmin()] / time.min() - 1.0)
        out.append({"learner": learner, "groups": len(taus), "tau": np.mean(taus), "median regret": np.median(regrets)})
    return pd.DataFrame(out).round(3).to_string(index=False)


def worst_groups(bench: Bench, lines: pd.DataFrame, count: int = 5) -> str:
    """Groups of three or more runs with the largest median error when held out."""
    of = lines[(lines["protocol"] == "group out") & (lines["learner"] == "surrogate")].set_index("row")
    rows = of.assign(group=bench.timed["group"].to_numpy()[of.index], residual=bench.data.known_residual[of.index])
    found = rows.groupby("group").agg(
        runs=("off", "size"), error=("off", lambda v: np.abs(np.expm1(v)).median()),
        common=("off", "median"), physics=("residual", lambda v: np.abs(np.expm1(-v)).median()),
        spread=("off", lambda v: (v - v.median()).abs().median()),
    )  # fmt: skip
    found = found[found["runs"] >= 3].sort_values("error", ascending=False).head(count)
    return found.round(3).rename_axis(None).to_string()


def domain(bench: Bench) -> str:
    """Share of runs predicted to be outside what is known: of GPUs that training had, and of each GPU left out."""
    data = bench.data
    gpu = bench.timed["gpu"].to_numpy()
    keys = np.array([f"{s}|{g}" for s, g in zip(data.source, data.known.runs.group, strict=True)])
    seen = [_outside(data, train, test) for train, test in group_folds(keys)]
    unseen = {name: _outside(data, np.flatnonzero(gpu != name), np.flatnonzero(gpu == name)) for name in np.unique(gpu)}
    lines = [f"out of domain, groups held out of GPUs that training had: {np.concatenate(seen).mean():.0%} of runs"]
    each = ", ".join(f"{name} {flags.mean():.0%}" for name, flags in unseen.items())
    everything = np.concatenate(list(unseen.values())).mean()
    mean = np.mean([flags.mean() for flags in unseen.values()])
    lines.append(f"out of domain, a GPU left out: {everything:.0%} of runs, {mean:.0%} averaged over GPUs ({each})")
    return "\n".join(lines)


def _outside(data: TrainingSet, train: Ints, test: Ints) -> Floats:
    shipped = load_surrogate("default")
    assert shipped is not None
    surrogate = fit(data, train, shipped.kernel, 0, 0.0)
    flags = np.empty(len(test))
    for source in np.unique(data.known.runs.source[test]):
        at = np.flatnonzero(data.known.runs.source[test] == source)
        flags[at] = ~surrogate.predict(data.known.runs.take(test[at]), True)[2]
    return flags


# --- seconds ----------------------------------------------------------------------------------------------------------

SOURCES = {
    "a100": ("a100-sxm4-40gb", "megatron-lm", 1.3),
    "a100-80": ("a100-sxm4-80gb", "nemo", 1.2),
    "h100": ("h100-sxm5-80gb", "megatron-lm", 0.9),
    "titan": ("h100-sxm5-80gb", "torchtitan", 1.1),
    "deepspeed": ("a100-sxm4-40gb", "deepspeed", 1.0),
}
BATCHES = (128, 256, 512, 1024)


def made_up(rows: int, seed: int = 0) -> pd.DataFrame:
    """So many runs of a shipped job, over all sources and batch sizes."""
    job, rng = load_job("opt-350m-2x4-a100"), np.random.default_rng(seed)
    layouts, model = enumerate_layouts(job).layouts, job.model
    at = rng.integers(0, len(layouts["pp"]), rows)
    runs = pd.DataFrame({name: values[at] for name, values in layouts.items()})
    runs = runs.drop(columns=[name for name in CODES if not runs[name].any()])  # 0 is a blank cell
    for name, words in (("recompute", RECOMPUTE_NAMES), ("schedule", SCHEDULE.names)):
        runs[name] = np.array(words)[runs[name]]
    runs["source"] = rng.choice(list(SOURCES), rows)
    for i, name in enumerate(("gpu", "framework", "factor")):
        runs[name] = runs["source"].map({source: values[i] for source, values in SOURCES.items()})
    runs["global_batch_size"] = rng.choice(BATCHES, rows)
    runs = runs.assign(
        model=model.name, num_layers=model.num_layers, hidden_size=model.hidden_size, vocab_size=model.vocab_size,
        ffn_hidden_size=model.ffn_hidden_size, num_attention_heads=model.num_attention_heads, gated_mlp=False,
        seq_length=job.training.seq_length, dtype="bf16", attention="flash2", fused_norm=True, num_gpus=8,
        gpus_per_node=4, status="ok", group=runs["global_batch_size"].astype(str),
    )  # fmt: skip
    noise = np.exp(0.03 * rng.standard_normal(rows))
    times = predict(runs, "none")["predicted_iteration_time_s"]
    return runs.assign(iteration_time_s=times * runs["factor"] * noise)


def seconds(*arguments: str | Path) -> float:
    """Wall seconds of one command, its start included."""
    start = time.perf_counter()
    command = [sys.executable, "-c", "from jointopt.cli.main import main; main()", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def timings(runs: int, plans: int) -> str:
    """Seconds of the two commands that learn and that predict."""
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_table(made_up(runs), folder / "runs.csv")
        retrained = seconds("retrain", "--table", folder / "runs.csv", "--out", folder / "surrogate")
        lines.append(f"retrain on {runs:,} runs: {retrained:.1f} s")
        write_table(made_up(plans, seed=1), folder / "plans.csv")
        measured = folder / "measured.csv"
        write_table(made_up(30, seed=2), measured)
        out = folder / "predicted.csv"
        for what, flags in (
            ("physics alone", ("--surrogate", "none")),
            ("shipped surrogate", ()),
            ("shipped surrogate and 30 measured runs", ("--measured", measured)),
        ):
            took = seconds("predict", folder / "plans.csv", *flags, "--out", out)
            lines.append(f"predict {plans:,} plans, {what}: {took:.1f} s, {1e6 * took / plans:.0f} µs each")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--no-seconds", action="store_true")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--plans", type=int, default=100_000)
    given = parser.parse_args()
    if not given.folder.is_dir():
        sys.exit(f"No recorded runs in {given.folder}: give the folder that holds layouts_*.csv.")
    bench = read(given.folder)
    lines = judged(bench)
    text = (
        f"{error_tables(lines)}\n\nranking within groups of {LEAST_TO_RANK} or more plans, group out\n"
        f"{ranking(bench, lines)}\n\n{domain(bench)}\n\nworst groups of three or more runs, group out\n"
        f"{worst_groups(bench, lines)}"
    )
    if not given.no_seconds:
        text += f"\n\n{timings(given.runs, given.plans)}"
    print(text)


if __name__ == "__main__":
    main()
