"""The leaderboard: every source judged by a surrogate that never saw it, through `predict`.

    .venv/bin/python tests/bench/bench_leaderboard.py [--write] [--draws N] [DATA_FOLDER] [SOURCE ...]

The default folder is ../shared/data beside the repository; with SOURCE only those are judged. Rows are those that
bench_accuracy.py calls clean. Of each source the kernel is learned without it, no run of it is remembered, and the
widths of intervals are calibrated on the other sources. The *own* framework profile was fitted to these same runs but
for the sources marked *. *Refitted* is that profile with the products and the network that suit the other sources,
those of the same framework where there are such (`new_sources.factors_by_others`; of * the own one): known software on
a new cluster. *Generic* is the profile of a framework that none describes.

- raw: nothing measured;
- 3 runs, 10 runs: so many rows of each kind of GPU given, all others of such a GPU judged, means over the draws;
- tau, regret: as in bench_accuracy.py, nothing measured;
- covered, width: share of measured times in the 90 % interval and its mean half-width, as `predict` gives it;
- differences: pairs of runs of one group; off: 90 % quantile of how far the log of the ratio of their times is off;
  twins: the same of measured times alone, of pairs that are equal in every column of the plan and the job;
- called OOM: share of the runs that ran and are predicted not to fit.

``--write`` puts the tables into docs/appendix/accuracy-by-source.md and records their figures (docs/figures.json),
which pages quote. Tables of other sources in the folder are judged by bench_classes.py.

Peers stand below: what others publish or were measured at (peers.yaml), and llm-analysis on these rows as
bench_peers.py measured it (peers.csv), beside ours.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from bench_accuracy import ROOT, SOURCES, clean
from bench_classes import NOT_FITTED, classes, named, timed
from bench_few import drawn
from bench_peers import beside, means, published
from scipy.stats import kendalltau
from threadpoolctl import threadpool_limits

import jointopt
from jointopt.core.schema import Ints
from jointopt.jobs.catalog import frameworks
from jointopt.jobs.framework import Framework
from jointopt.studies import figures
from jointopt.surrogate.dataset import price, timed_runs
from jointopt.surrogate.files import load_surrogate, save
from jointopt.surrogate.held_out import HeldOut, Scores, predict_pairs, run_pairs, with_calibrated_widths
from jointopt.surrogate.new_sources import NewSource, factors_by_others
from jointopt.surrogate.surrogate import Surrogate
from jointopt.surrogate.training import TrainingSet, cross_validate, fit, learn_kernel, training_set

PAGE, HEADING = ROOT / "docs" / "appendix" / "accuracy-by-source.md", "## Leaderboard"
COMMAND = "python tests/bench/bench_leaderboard.py --write DATA_FOLDER"
FITTED_EXPERTS = (
    "nvidia_nemo_docs",
    "megatron_bridge_a",
)  # tables with the runs that experts' constants were fitted to
COUNTS = (3, 10)
LEAST_TO_RANK = 12
NOT_OF_A_PLAN = ("iteration_time_s", "peak_memory_gib", "energy_j", "avg_power_w", "notes", "status", "provenance")
NONE = np.empty(0, np.int64)
COLUMNS = [
    "rows", "raw", "3 runs", "10 runs", "tau", "regret", "covered", "width", "covered 3", "width 3",
    "in domain", "called OOM", "pairs", "off", "twins", "diff covered", "diff width", "diff covered 3", "diff width 3",
]  # fmt: skip


def error(found: pd.DataFrame) -> float:
    """Median error of time; no answer counts as 100 % off."""
    predicted = found["predicted_iteration_time_s"].fillna(2.0 * found["iteration_time_s"])
    return float((predicted / found["iteration_time_s"] - 1.0).abs().median())


def held(found: pd.DataFrame, suffix: str = "") -> dict[str, float]:
    """Coverage and mean half-width of the intervals of time."""
    time, low, high = (found[name] for name in ("iteration_time_s", *_ENDS))
    half = (high - low) / (2.0 * found["predicted_iteration_time_s"])
    return {f"covered{suffix}": float(((time >= low) & (time <= high)).mean()), f"width{suffix}": float(half.mean())}


_ENDS = ("predicted_iteration_time_s_low", "predicted_iteration_time_s_high")


def ranking(found: pd.DataFrame) -> dict[str, float]:
    """Kendall's tau and regret within groups of 12 or more plans."""
    taus, regrets = [], []
    for _, group in found.groupby("group"):
        if len(group) >= LEAST_TO_RANK:
            time, predicted = group["iteration_time_s"], group["predicted_iteration_time_s"]
            taus.append(float(np.nan_to_num(kendalltau(predicted, time)[0])))
            regrets.append(time[predicted.idxmin()] / time.min() - 1.0)
    return {"tau": float(np.mean(taus)), "regret": float(np.median(regrets))} if taus else {}


def few(table: pd.DataFrame, folder: str, draws: int) -> dict[str, float]:
    """Errors, and for three runs intervals, after a few runs of each kind of GPU; means over draws."""
    lines: list[dict[str, float]] = []
    for count in COUNTS:
        for draw in range(draws):
            if (split := drawn(table["gpu"], count, draw)) is None:
                break
            given, judged = split
            measured, rest = table.iloc[given], table.iloc[judged].reset_index(drop=True)
            found = jointopt.predict(rest.drop(columns="status"), surrogate=folder, measured=measured)
            lines.append({f"{count} runs": error(found)} | (held(found, " 3") if count == 3 else {}))
    return pd.DataFrame(lines).mean().to_dict() if lines else {}


def differences(surrogate: Surrogate, table: pd.DataFrame) -> dict[str, float]:
    """Intervals of differences between runs of a group, with nothing known and after three runs of each GPU."""
    priced = price(table)
    runs, residual = priced.runs, priced.residual(table["iteration_time_s"].to_numpy(float)[priced.rows])
    fitted, every = bool(priced.fitted.any()), np.arange(len(priced.rows))
    none = predict_pairs(surrogate, runs, residual, every, NONE, fitted)
    if none is None:
        return {}
    split = drawn(table["gpu"].iloc[priced.rows].reset_index(drop=True), 3, 0)
    three = split and predict_pairs(surrogate, runs, residual, split[1], split[0], fitted)
    off = float(np.quantile(np.abs(none.mean - none.truth), 0.9))
    line = {"pairs": float(len(none.truth)), "off": off, "twins": twins(table, run_pairs(runs, every), priced.rows)}
    return line | _of_pairs(none, "") | (_of_pairs(three, " 3") if three else {})


def _of_pairs(found: HeldOut, suffix: str) -> dict[str, float]:
    width = float(np.expm1(found.half_width).mean())
    return {f"diff covered{suffix}": found.coverage, f"diff width{suffix}": width}


def twins(table: pd.DataFrame, of: tuple[Ints, Ints], rows: Ints) -> float:
    """90 % quantile of |log of the ratio of times| of pairs that differ in no column."""
    stated = table.drop(columns=[name for name in NOT_OF_A_PLAN if name in table]).astype(str)
    code = stated.groupby(list(stated)).ngroup().to_numpy()[rows]
    log_time = np.log(table["iteration_time_s"].to_numpy(float))[rows]
    first, second = of
    same = code[first] == code[second]
    return float(np.quantile(np.abs(log_time[first] - log_time[second])[same], 0.9)) if same.sum() >= 3 else np.nan


def judged(surrogate: Surrogate, table: pd.DataFrame, draws: int) -> dict[str, float]:
    """The line of one source."""
    with tempfile.TemporaryDirectory() as folder:
        save(surrogate, Path(folder))
        found = jointopt.predict(table.drop(columns="status"), surrogate=folder)
        line = {"rows": float(len(found)), "raw": error(found), **ranking(found), **held(found)}
        line |= {"in domain": float((found["in_domain"] == True).mean())}  # noqa: E712  blanks are there too
        line |= {"called OOM": float((found["fit_probability"] < 0.5).mean())}  # blank where not predicted
        return line | few(table, folder, draws) | differences(surrogate, table)


def without(data: TrainingSet, scores: list[Scores], name: str) -> Surrogate:
    """A surrogate of all sources but that one, the widths of its intervals too."""
    rows = data.of(set(data.source.tolist()) - {name})
    found = fit(data, rows, learn_kernel(data, rows))
    return with_calibrated_widths(found, [score for score in scores if score.source != name])


def new_sources(data: TrainingSet) -> dict[str, NewSource]:
    """Every source as one of which no run is known."""
    return {
        str(data.source[at[0]]): NewSource.of(
            data.known.take(at), data.known_residual[at], data.unknown.take(at), data.unknown_residual[at]
        )
        for at in data.by_source(np.arange(len(data.source)))
    }


def by_others(new: dict[str, NewSource], name: str) -> dict[str, Framework]:
    """All profiles, those of a source's frameworks as the other sources have them."""
    profiles = frameworks._profiles()
    found = factors_by_others(new[name], [new[n] for n in new if n != name]) if name in new else {}
    factors = {of: np.exp(logs).tolist() for of, logs in found.items()}
    return profiles | {
        of: replace(profiles[of], compute_factor=products, network_efficiency=network)
        for of, (products, network) in factors.items()
    }


def tables(folder: Path) -> dict[str, pd.DataFrame]:
    """Clean rows of every source."""
    found = {}
    for name in SOURCES:
        found[name] = timed_runs(clean(name, pd.read_csv(folder / f"layouts_{name}.csv"))).assign(source=name)
    return found


def experts(folder: Path) -> pd.DataFrame:
    """Predicted over measured of every mixture of experts that constants were fitted to, by the physics alone."""
    lines = []
    for path in sorted([*folder.glob("layouts_*.csv"), *folder.glob("recipes_*.csv")]):
        if named(path) not in FITTED_EXPERTS:
            continue
        table = timed(path)
        for gpu, rows in table[classes(table) == "experts"].groupby("gpu"):
            found = jointopt.predict(rows.reset_index(drop=True), surrogate="none")
            ratio = found["predicted_iteration_time_s"] / found["iteration_time_s"]
            lines.append({
                "source": named(path), "gpu": gpu, "rows": len(rows), "not predicted": int(ratio.isna().sum()),
                "median error": (ratio - 1.0).abs().median(), "lowest": ratio.min(), "highest": ratio.max(),
                **held(found),
            })  # fmt: skip
    return pd.DataFrame(lines)


def board(folder: Path, names: list[str], draws: int) -> tuple[str, dict[str, float]]:
    """The tables of the leaderboard, and their figures by name."""
    shipped, every = load_surrogate("default"), tables(folder)
    assert shipped is not None
    data = training_set(pd.concat([every[name] for name in shipped.card["data"]], ignore_index=True))
    scores, new = cross_validate(data, set(data.source.tolist())), new_sources(data)
    lines: dict[str, dict[str, Any]] = {"own": {}, "refitted": {}, "generic": {}}
    for name in names or list(every):
        surrogate = without(data, scores, name)
        starred = f"{name}{'*' * (name in NOT_FITTED)}"
        lines["own"][starred] = lines["refitted"][starred] = judged(surrogate, every[name], draws)
        if name in new:
            with patch.object(frameworks, "_profiles", return_value=by_others(new, name)):
                lines["refitted"][starred] = judged(surrogate, every[name], draws)
        lines["generic"][name] = judged(surrogate, every[name].assign(framework=""), draws)
        print(f"judged {name}", file=sys.stderr, flush=True)
    judged_by = {profile: pd.DataFrame(found).T for profile, found in lines.items()}
    parts = [f"{profile} profile\n{_text(found)}" for profile, found in judged_by.items()]
    moe = f"mixtures of experts that constants were fitted to\n{experts(folder).round(3).to_string(index=False)}"
    peers = f"peers: as published or measured before\n{published()}\n\npeers: llm-analysis on these rows\n"
    return "\n\n".join([*parts, moe, peers + beside(judged_by)]), summary(judged_by)


def summary(judged_by: dict[str, pd.DataFrame]) -> dict[str, float]:
    """The figures that pages quote, by profile, source and column: shares in percent."""
    shown = {f"llm-analysis mean {name}": 100.0 * value for name, value in means().items()}
    for profile, table in judged_by.items():
        every = table.reindex(columns=COLUMNS).astype(float)
        every.loc["mean"] = every.mean()
        for column in every:
            scale = 1.0 if column in ("rows", "pairs", "tau") else 100.0
            shown |= {f"{profile} {str(at).rstrip('*')} {column}": scale * one for at, one in every[column].items()}
    return shown


def _text(found: pd.DataFrame) -> str:
    found = found.reindex(columns=COLUMNS).dropna(axis=1, how="all")
    found.loc["mean"] = found.mean()
    whole, plain = ("rows", "pairs"), ("tau",)
    forms = {name: "{:.0f}" if name in whole else "{:.2f}" if name in plain else "{:.1%}" for name in found}
    shown = pd.DataFrame({n: ["" if v != v else forms[n].format(v) for v in found[n]] for n in found}, found.index)
    of_pairs = shown.columns.get_loc("pairs")
    return f"{shown.iloc[:, :of_pairs].to_string()}\n\n{shown.iloc[:, of_pairs:].to_string()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("source", nargs="*")
    given = parser.parse_args()
    if not given.folder.is_dir():
        sys.exit(f"No recorded runs in {given.folder}: give the folder that holds layouts_*.csv.")
    with threadpool_limits(1, user_api="blas"):
        text, shown = board(given.folder, given.source, given.draws)
    print(text)
    if given.write:
        before, rest = PAGE.read_text(encoding="utf-8").split(HEADING)
        words, table = rest.split("```text\n", 1)
        text = "\n".join(line.rstrip() for line in text.splitlines())
        PAGE.write_text(f"{before}{HEADING}{words}```text\n{text}\n```{table.split('```', 1)[1]}", encoding="utf-8")
        figures.record("leaderboard", COMMAND, [figures.ACCURACY], shown, [text])


if __name__ == "__main__":
    main()
