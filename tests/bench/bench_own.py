"""What a source's own runs are worth on its runs left out, weights chosen without these: no gain should be negative.

    OMP_NUM_THREADS=1 python tests/bench/bench_own.py [DATA_FOLDER] [PART OF A SOURCE'S NAME ...]

The default folder is ../shared/data beside the repository: every source of twenty timed runs or more, runs further than
five times from the physics aside, as `jointopt retrain --table` would learn from it alone, by the shipped kernel.
Fewer than fifty: groups left out one by one (`leave_size_out`). From fifty on: models (groups where these are fewer
than three) left out in fifths. *physics*: nothing learned; *printed*: what `retrain` prints, with weights that the runs
left out had a say in; *nested*: everything chosen by the others alone, which is what a new group or model meets.
Medians of the relative error over all runs, in brackets means of the absolute logarithm; a minute or two in all.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from bench_accuracy import ROOT

from jointopt.core.schema import Floats, Ints
from jointopt.core.system import one_blas_thread
from jointopt.surrogate.dataset import timed_runs
from jointopt.surrogate.files import load_surrogate
from jointopt.surrogate.held_out import HeldOut, judge_new_groups
from jointopt.surrogate.kernel import Kernel
from jointopt.surrogate.new_sources import NewGroups, size_groups
from jointopt.surrogate.own_cluster import LEAST_RUNS, OwnRuns, remembered_rows
from jointopt.surrogate.own_mix import folds_by_model, units_left_out
from jointopt.surrogate.surrogate import Surrogate
from jointopt.surrogate.training import LEAST_ROWS, OWN_BROKEN, TrainingSet, learn_source, leave_size_out, training_set


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "shared" / "data"
    base, found = load_surrogate("default"), []
    assert base is not None
    for path in sorted(folder.glob("layouts_*.csv")):
        name = path.stem.removeprefix("layouts_")
        table = timed_runs(pd.read_csv(path)).assign(source=name)
        if len(table) >= LEAST_ROWS and (len(sys.argv) < 3 or any(part in name for part in sys.argv[2:])):
            found += list(lines(training_set(table, OWN_BROKEN), base))
            print(".", end="", flush=True)
    shown = pd.DataFrame(found)
    print("\n" + shown.drop(columns="gain").to_string(index=False))
    print(f"\nnested gains below 0: {', '.join(shown['source'][shown['gain'] < 0.0]) or 'none'}")


@one_blas_thread
def lines(data: TrainingSet, base: Surrogate) -> Iterator[dict[str, object]]:
    """A line for each cluster and software of many runs, one for all of few."""
    keys, counts = np.unique(data.known.runs.source, return_counts=True)
    for key in keys[counts >= LEAST_RUNS].tolist():
        yield of_many(key, data, np.flatnonzero(data.known.runs.source == key).astype(np.int64), base.kernel)
    if (counts < LEAST_RUNS).all():
        yield of_few(data, base)


def of_few(data: TrainingSet, base: Surrogate) -> dict[str, object]:
    """The line of a source of few runs."""
    runs, bare = data.known.runs, replace(base.without_runs(), own=(), training_range={})
    held = leave_size_out(data, bare, np.arange(len(runs)).astype(np.int64))
    assert held is not None
    group, nested, chosen = size_groups(runs)[held.rows], np.empty(len(held.rows)), []
    whole, judged = judge_new_groups(held, runs)
    for one in np.unique(group):
        at, rest = np.flatnonzero(group == one), np.flatnonzero(group != one)
        new, _ = judge_new_groups(_taken(held, rest), runs)
        parts = new.parts(runs.take(held.rows[at]), runs.take(held.rows[rest]), held.mean[at], held.half_width[at])
        nested[at], chosen = parts[0] * held.mean[at], [*chosen, _words(new)]
    answers = {"physics": 0.0 * nested, "printed": judged.mean, "nested": nested}
    return _line(str(data.source[0]), f"{len(np.unique(group))} groups", held.truth, answers, _words(whole), chosen)


def _taken(held: HeldOut, rows: Ints) -> HeldOut:
    return HeldOut(held.truth[rows], held.mean[rows], held.half_width[rows], held.rows[rows], held.known)


def _words(new: NewGroups) -> str:
    return "as sure" if new.as_sure else "all" if new.weight else "none"


def of_many(key: str, data: TrainingSet, rows: Ints, kernel: Kernel) -> dict[str, object]:
    """The line of a source of many runs."""
    runs, residual = data.known.runs.take(rows), data.known_residual[rows]
    fold, what = folds_by_model(runs)
    whole, nested, chosen = learn_source(key, data, rows, kernel), np.empty(len(rows)), []
    for one in np.unique(fold):
        at = np.flatnonzero(fold == one).astype(np.int64)
        found = learn_source(key, data, rows[fold != one], kernel)
        kept = remembered_rows(np.arange(len(found.rows), dtype=np.int64))
        process = found.own.process(kernel, found.runs.take(kept), found.residual[kept])
        nested[at] = found.own.mean(process, runs.take(at), found.runs)
        chosen.append(_parts(found.own))
    answers = {"physics": 0.0 * nested, "printed": whole.mean, "nested": nested}
    left_out = f"{len(np.unique(units_left_out(runs)[0]))} {what}"
    return _line(key, left_out, residual, answers, _parts(whole.own), chosen)


def _parts(own: OwnRuns) -> str:
    kernel = "own" if own.kernel else "shared"
    return (
        kernel
        + " as sure" * (own.as_sure and own.of_new > 0.0)
        + " none of it" * (not own.of_new)
        + f", trees {own.time.weight:g}{' on its rest' * own.time.beyond}" * bool(own.time.weight)
    )


def _line(
    source: str, left_out: str, truth: Floats, answers: dict[str, Floats], whole: str, chosen: list[str]
) -> dict[str, object]:
    origin, _, gpu = source.split("|")[:3] if "|" in source else (source, "", "")
    error = {name: float(np.median(np.abs(np.expm1(mean - truth)))) for name, mean in answers.items()}
    shown = {
        name: f"{100 * error[name]:.1f} ({100 * np.abs(mean - truth).mean():.1f})" for name, mean in answers.items()
    }
    often = ", ".join(f"{words} {count}x" for words, count in Counter(chosen).most_common())
    first = {"source": f"{origin} {gpu}".strip(), "runs": len(truth), "left out": left_out}
    return first | shown | {"weights": whole, "without each": often, "gain": error["physics"] - error["nested"]}


if __name__ == "__main__":
    main()
