"""Runs that `tune` needs to come within 1 % of the best plan of each recorded group; by hand, prints tables.

    .venv/bin/python tests/bench/bench_replay.py [tune | others | models | choices | parts]

Reads ../shared/data beside the repository. ``tune`` (the default) replays every group through `workflows.tune.tune`,
``others`` with the runs of the source's other groups at hand, ``models`` compares what predicts the plans that are
left, ``choices`` how they are chosen, one or several at a time, ``parts`` spreads on random parts of every group.
Constants were chosen on the first, third, ... group by name and are reported on the others too.
"""

from __future__ import annotations

import itertools
import math
import pathlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from jointopt.jobs.jobfile import parse_job
from jointopt.measure.replay import ReplayLauncher
from jointopt.search.acquire import SAMPLES, acquire
from jointopt.surrogate.dataset import price
from jointopt.surrogate.files import load_surrogate
from jointopt.surrogate.kernel import Kernel, Runs, joined_runs
from jointopt.surrogate.memory import MemoryEvidence, fit_draws, fit_probability, memory_margin, source_weights
from jointopt.surrogate.plan_process import INFORMED, USUAL, after_runs, plan_kernel, plan_runs
from jointopt.surrogate.posterior import Joint
from jointopt.workflows.campaign.candidates import Candidates, listed_candidates
from jointopt.workflows.tune import tune

DATA = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data"
BUDGET = 12
FEWEST = 9  # runs that succeeded, of a group
SHAPE = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "vocab_size",
)  # fmt: skip
TIME = ("iteration_time_s",)
HALF = 1.6448536269514722


def groups() -> Iterator[tuple[str, str, pd.DataFrame]]:
    """(file, group, rows) with enough runs, each with its commonest software stack."""
    for path in sorted(DATA.glob("layouts_*.csv")):
        table = pd.read_csv(path)
        if not {"vocab_size", "gpus_per_node"} <= set(table):
            continue
        for name, rows in table[table["status"].isin(["ok", "oom"])].groupby("group"):
            for column in ("attention", "fused_norm"):
                if column in rows and rows[column].nunique() > 1:
                    rows = rows[rows[column] == rows[column].mode()[0]]
            if (rows["status"] == "ok").sum() >= FEWEST:
                yield path.stem, str(name), rows


def job_document(rows: pd.DataFrame) -> dict[str, Any]:
    """A job file with no word on the software."""
    first = rows.iloc[0]
    model: dict[str, Any] = {k: int(first[k]) for k in SHAPE if k in rows and pd.notna(first[k])}
    if pd.notna(first.get("gated_mlp")):
        model["gated_mlp"] = bool(first["gated_mlp"])
    per_node = int(first["gpus_per_node"])
    return {
        "model": {"vocab_size": 50257} | model,
        "training": {
            "seq_length": int(first["seq_length"]),
            "global_batch_size": int(first["global_batch_size"]),
            "dtype": str(first["dtype"]),
        },
        "cluster": {
            "gpu": first["gpu"], "gpus_per_node": per_node, "nodes": int(first["num_gpus"]) // per_node,
        },
        "objectives": ["iteration_time_s"],
    }  # fmt: skip


def runs_needed(rows: pd.DataFrame, others: pd.DataFrame | None = None) -> tuple[float, int]:
    """(runs of `tune` until one within 1 % of the fastest row, runs out of memory); ``others``: runs at hand."""
    job = parse_job(job_document(rows), "replay", pathlib.Path())
    tuned = tune(job, "replay", BUDGET, table=rows, measured=others)
    goal = 1.01 * rows["iteration_time_s"].min()
    reached = [i + 1 for i, run in enumerate(tuned.runs) if run.result("iteration_time_s") <= goal]
    return min(reached, default=math.inf), sum(run.status == "oom" for run in tuned.runs)


def random_order(rows: pd.DataFrame) -> float:
    """Expected position of the first good row in a random order: (n + 1) / (good + 1)."""
    good = (rows["iteration_time_s"] <= 1.01 * rows["iteration_time_s"].min()).sum()
    return (len(rows) + 1) / (good + 1)


def summary(counts: list[float]) -> str:
    k = np.array(counts)
    return (
        f"median {np.median(k):4.1f}, mean (13 = never) {np.minimum(k, 13).mean():5.2f}, within 1 run "
        f"{np.mean(k <= 1):.2f}, 3 {np.mean(k <= 3):.2f}, 5 {np.mean(k <= 5):.2f} of {len(k)}"
    )


def through_tune() -> None:
    found = list(groups())
    for known in (True, False):
        counts, ooms = [], 0
        for _, group, rows in found:
            k, failed = runs_needed(rows if known else rows.assign(framework="unknown"))
            counts.append(k)
            ooms += failed
            if known:
                print(f"{k:4} runs, random {random_order(rows):5.1f}, {len(rows):4} rows: {group}", flush=True)
        print("framework known:" if known else "framework unknown:", summary(counts), f"{ooms} OOMs")
        print("  chosen on  ", summary(counts[::2]))
        print("  reported on", summary(counts[1::2]))
        large = [k for k, (_, _, rows) in zip(counts, found, strict=True) if len(rows) >= 20]
        print("  20 or more rows", summary(large), flush=True)


def after_other_groups() -> None:
    """Each group with all runs of its source's other groups known."""
    counts = []
    for source, group, rows in groups():
        table = pd.read_csv(DATA / f"{source}.csv")
        others = table[(table["group"] != group) & table["status"].isin(["ok", "oom"])]
        counts.append(runs_needed(rows, others)[0])
        print(f"{counts[-1]:4} runs, {len(rows):4} rows, {len(others):5} of others: {group}", flush=True)
    print("other groups known:", summary(counts))


@dataclass
class Group:
    """One recorded group with everything that does not change from run to run."""

    source: str
    candidates: Candidates
    runs: Runs
    fitted: bool
    log_physics: np.ndarray
    log_time: np.ndarray  # measured, NaN where the run failed
    oom: np.ndarray
    plans: Runs  # as the process of one job has them


def prepared(known: bool) -> list[Group]:
    out = []
    for source, _, rows in groups():
        rows = rows if known else rows.assign(framework="unknown")
        job = parse_job(job_document(rows), "replay", pathlib.Path())
        launcher = ReplayLauncher(rows)
        candidates = listed_candidates(launcher.candidates(job), job)
        answers = [launcher.run(job, candidates.question(i)) for i in range(candidates.size)]
        priced = price(candidates.rows)
        order = np.argsort(priced.rows)
        ran = [a["iteration_time_s"] if a["status"] == "ok" else np.nan for a in answers]
        out.append(
            Group(
                source, candidates, priced.runs.take(order), bool(priced.fitted[0]),
                np.log(priced.physics["iteration_time_s"][order]), np.log(np.array(ran, float)),
                np.array([a["status"] == "oom" for a in answers]), plan_runs(candidates.plans),
            )
        )  # fmt: skip
    return out


Model = Callable[[Group, np.ndarray], Joint]
Choice = Callable[..., np.ndarray]


def independent(mean: np.ndarray, deviation: np.ndarray) -> Joint:
    return Joint(mean, np.diag(deviation), 0.0)


def physics_alone(group: Group, index: np.ndarray) -> Joint:
    return independent(group.log_physics, np.full(group.candidates.size, 0.1))


def local(group: Group, index: np.ndarray, kernel: Kernel = USUAL, around: np.ndarray | None = None) -> Joint:
    around = group.log_physics if around is None else around
    return after_runs(kernel, group.plans, index, group.log_time[index] - around[index]).joint(group.plans, around)


def surrogate(group: Group, index: np.ndarray) -> Joint:
    """The shipped Gaussian process conditioned on the group's own runs (it has seen these tables: a lenient trial)."""
    known = (group.runs.take(index), group.log_time[index] - group.log_physics[index])
    mean, half, _ = load_surrogate("default").predict(group.runs, group.fitted, known)
    return independent(group.log_physics + mean, half / HALF)


def after_others(everything: list[Group]) -> Model:
    """The local model, on the surrogate conditioned on the source's other groups."""
    moved = {}
    for group in everything:
        others = [g for g in everything if g.source == group.source and g is not group]
        known = None
        for other in others:
            ran = np.flatnonzero(np.isfinite(other.log_time))
            own = other.runs.take(ran), (other.log_time - other.log_physics)[ran]
            known = own if known is None else (joined_runs([known[0], own[0]]), np.concatenate([known[1], own[1]]))
        factor = 0.0
        if known is not None:
            factor = load_surrogate("default").predict(group.runs, group.fitted, known)[0]
        moved[id(group)] = group.log_physics + factor

    def model(group: Group, index: np.ndarray) -> Joint:
        return local(group, index, INFORMED, moved[id(group)])

    return model


def gain(found: Joint, fits: np.ndarray, draws: dict, known: np.ndarray, left: np.ndarray, k: int, rng: Any):
    half = HALF * found.deviation
    columns = {
        "iteration_time_s": np.exp(found.mean), "iteration_time_s_low": np.exp(found.mean - half),
        "iteration_time_s_high": np.exp(found.mean + half), "probability_fits": fits,
    }  # fmt: skip
    costs = 120.0 + 20.0 * columns["iteration_time_s"]
    measured = {"iteration_time_s": known}
    spread = {"iteration_time_s": found.reducible_deviation(len(known) > 0)}
    return acquire(columns, measured, costs, k, rng, objectives=TIME, allowed=left, draws=draws, spread=spread)


def best_predicted(found: Joint, fits: np.ndarray, draws: dict, known: np.ndarray, left: np.ndarray, k: int, rng: Any):
    likely = left & (fits >= memory_margin().cut)
    likely = likely if likely.any() else left
    return np.flatnonzero(likely)[np.argsort(found.mean[likely], kind="stable")[:k]]


def random_from_front(
    found: Joint, fits: np.ndarray, draws: dict, known: np.ndarray, left: np.ndarray, k: int, rng: Any
):
    """Of the plans that are left, fit and are predicted within 10 % of the best: the front of one objective."""
    likely = left & (fits >= memory_margin().cut)
    likely = np.flatnonzero(likely if likely.any() else left)
    near = likely[found.mean[likely] <= found.mean[likely].min() + 0.1]
    return rng.permutation(near)[:k]


def played(group: Group, model: Model, choice: Choice, k: int, seed: int = 0) -> float:
    """Runs until one within 1 % of the best of the group."""
    rng, margin, load = np.random.default_rng(seed), memory_margin(), group.candidates.log_load
    index, left = np.empty(0, np.int64), np.ones(group.candidates.size, bool)
    goal = np.nanmin(group.log_time) + np.log(1.01)
    while len(index) < BUDGET and left.any():
        ran = index[np.isfinite(group.log_time[index])]
        evidence = MemoryEvidence(ok_load=load[ran], oom_load=load[index[group.oom[index]]])
        weights = source_weights(margin, evidence)
        found = model(group, ran)
        draws = {"fits": fit_draws(load, weights, margin, SAMPLES, rng)}
        draws["iteration_time_s"] = np.exp(found.draws(SAMPLES, rng))
        fits = fit_probability(load, weights, margin)
        for plan in choice(found, fits, draws, np.exp(group.log_time[ran]), left, k, rng):
            index, left[plan] = np.append(index, plan), False
            if group.log_time[plan] <= goal:
                return len(index)
    return math.inf


def models() -> None:
    for known in (True, False):
        found = prepared(known)
        print("framework known" if known else "framework unknown")
        tried = {"physics alone": physics_alone, "local model": local, "surrogate": surrogate}
        tried |= {"local, other groups known": after_others(found)}
        for name, model in tried.items():
            print(f"  {name:26}", summary([played(g, model, gain, 1) for g in found]), flush=True)


def choices() -> None:
    ways = {"expected gain": gain, "best predicted": best_predicted, "random from the front": random_from_front}
    for known in (True, False):
        found = prepared(known)
        print("framework known" if known else "framework unknown")
        for k in (1, 2, 4):
            for name, way in ways.items():
                counts = [played(g, local, way, k, seed) for g in found for seed in range(5)]
                print(f"  {k} at a time, {name:22}", summary(counts), flush=True)


def part(group: Group, keep: np.ndarray) -> Group:
    """The group with some of its plans."""
    known = group.candidates
    plans = {name: values[keep] for name, values in known.plans.items()}
    predicted = {name: values[keep] for name, values in known.predicted.items()}
    rows = known.rows[keep].reset_index(drop=True)
    some = Candidates(rows, plans, predicted, known.log_load[keep], known.log_room[keep])
    return replace(
        group, candidates=some, runs=group.runs.take(np.flatnonzero(keep)), log_physics=group.log_physics[keep],
        log_time=group.log_time[keep], oom=group.oom[keep], plans=plan_runs(plans),
    )  # fmt: skip


def parts() -> None:
    """More problems from the same groups: eight parts of each, of seven in ten of its plans and eight runs at least."""
    rng = np.random.default_rng(11)
    for known in (True, False):
        found = []
        for group in prepared(known):
            drawn = (rng.random(group.candidates.size) < 0.7 for _ in range(200))
            some = [keep for keep in drawn if np.isfinite(group.log_time[keep]).sum() >= 8][:8]
            found += [group, *(part(group, keep) for keep in some)]
        for spread in ((0.03, 0.07), *itertools.product((0.02, 0.03, 0.04), (0.05, 0.08))):
            model = partial(local, kernel=plan_kernel(0.2, *spread))
            counts = summary([played(g, model, gain, 1) for g in found])
            print("known" if known else "unknown", spread, counts, flush=True)


if __name__ == "__main__":
    ways = {"tune": through_tune, "others": after_other_groups, "models": models, "choices": choices, "parts": parts}
    ways[(sys.argv[1:] or ["tune"])[0]]()
