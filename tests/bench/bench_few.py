"""What three and ten measured runs of a source are worth: errors and intervals of its other runs, source by source.

    .venv/bin/python tests/bench/bench_few.py [--draws N] [--slower-network F] [DATA_FOLDER]

The default folder is ../shared/data beside the repository. Of each kind of GPU of a source three (ten) rows are drawn
and given, all others of such a GPU are judged; means over the draws. Rows are those that bench_accuracy.py calls clean.

Hyperparameters are learned without the source, and no run of it is remembered. *own* is the framework's own profile,
which was fitted to these same runs but for aleph_layouts, fms_fsdp and nvidia_nemo_docs; *generic* the one of a
framework that no profile describes. A source of software that is known on a cluster that is not lies between the two.

- raw: nothing measured; constant: the raw prediction times one factor, the median of measured over predicted of what
  was given of the same GPU and software; geometric: the same, the geometric mean;
- after 3, after 10: the surrogate; covered, width: share of judged times inside its 90 % interval, and mean half-width;
- worse than one constant: after less constant (and less geometric), with the standard error of that mean over draws in
  brackets, ! where it is more than twice that above zero; the last line counts these;
- ``--slower-network``: every run as if the network between nodes were slower by that factor than the physics is given.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from bench_accuracy import ROOT, SOURCES, clean
from threadpoolctl import threadpool_limits

from jointopt.core.facts import Source
from jointopt.core.schema import Floats, Ints
from jointopt.physics.sensitivities import NETWORK, one_constant
from jointopt.runs.workloads import workloads
from jointopt.surrogate.correction import Correction, Described
from jointopt.surrogate.dataset import Priced, price, source_keys, timed_runs
from jointopt.surrogate.evidence import evidence_by_source, with_kin
from jointopt.surrogate.files import load_surrogate
from jointopt.surrogate.surrogate import Surrogate
from jointopt.surrogate.training import TrainingSet, learn_kernel, training_set

PROFILES = ("own", "generic")
COUNTS = (3, 10)
CONSTANTS_OF: Mapping[str, Callable[[Floats], float]] = {"constant": np.median, "geometric": np.mean}
COLUMNS = [
    "raw", "constant 3", "geometric 3", "after 3", "constant 10", "geometric 10", "after 10", "covered 0", "width 0",
    "covered 3", "width 3",
    "covered 10", "width 10",
]  # fmt: skip


NONE = pd.Series(dtype=float)


@dataclass(frozen=True)
class Recorded:
    """Timed rows of one source as the physics prices them under one profile."""

    table: pd.DataFrame
    priced: Priced

    @property
    def log_time(self) -> Floats:
        return np.log(self.table["iteration_time_s"].to_numpy(float)[self.priced.rows])

    def slowed(self, factor: float) -> Recorded:
        """The same runs on a network that is slower by ``factor``."""
        there = self.priced.with_constants(one_constant(NETWORK, np.log(factor)))
        slow = there.physics["iteration_time_s"] / self.priced.physics["iteration_time_s"]
        times = self.table["iteration_time_s"].to_numpy(float, copy=True)
        times[self.priced.rows] *= slow
        return replace(self, table=self.table.assign(iteration_time_s=times))


def read(folder: Path, profile: str) -> dict[str, Recorded]:
    """The tables of the folder, those of `SOURCES`, as the physics prices them under that profile."""
    paths = {name: folder / f"layouts_{name}.csv" for name in SOURCES}
    return {name: recorded(timed(name, pd.read_csv(path)), profile) for name, path in paths.items() if path.exists()}


def timed(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """The timed rows of a source that are judged."""
    return timed_runs(clean(name, table.reset_index(drop=True))).assign(source=name)


def recorded(table: pd.DataFrame, profile: str) -> Recorded:
    """Timed rows as the physics prices them under that profile."""
    priced = price(table if profile == "own" else table.assign(framework=""))
    if profile != "own":
        priced = replace(priced, runs=replace(priced.runs, source=_labels(table)[priced.rows]))
    return Recorded(table, priced)


def _labels(table: pd.DataFrame) -> np.ndarray:
    """The key of each row's source: software is distinguished by its name whatever profile stands for it."""
    keys_of, out = source_keys(table), np.full(len(table), "", object)
    for work in workloads(table)[0]:
        names, source = keys_of(work)
        out[work.rows] = names[source]
    return out.astype(str)


def drawn(gpu: pd.Series, count: int, draw: int) -> tuple[Ints, Ints] | None:
    """(given, judged) positions, as the judge draws them."""
    groups = [rows for rows in gpu.groupby(gpu).indices.values() if len(rows) > count]
    if not groups:
        return None
    given = np.concatenate([np.random.default_rng(draw).choice(rows, count, replace=False) for rows in groups])
    same = np.flatnonzero(gpu.isin(gpu.iloc[given].unique()))
    return given.astype(np.int64), np.setdiff1d(same, given)


def predicted(surrogate: Surrogate, recorded: Recorded, given: Ints, judged: Ints) -> tuple[Floats, Floats]:
    """Mean and 90 % half-width of the log of the time of judged rows, after the given ones."""
    priced, table = recorded.priced, recorded.table
    evidence = evidence_by_source(table, priced.take(given), "given")
    mean, half = np.empty(len(judged)), np.empty(len(judged))
    for source in np.unique(priced.runs.source[judged]):
        at = np.flatnonzero(priced.runs.source[judged] == source)
        some = priced.take(judged[at])
        correction = Correction(
            surrogate, str(source), bool(some.fitted[0]), with_kin(evidence, Source.parse(str(source)))
        )
        again = some.with_constants(correction.shifts)
        move = correction.plan_corrections([Described(again.runs, again.runs, None, None)])[0]
        mean[at], half[at] = np.log(again.physics["iteration_time_s"]) + move.mean, move.half_width
    return mean, half


def constant(recorded: Recorded, given: Ints, judged: Ints, middle: Callable[[Floats], float] = np.median) -> Floats:
    """Log of the time of judged rows by one factor per source, the ``middle`` of those given."""
    physics = np.log(recorded.priced.physics["iteration_time_s"])
    off, source = recorded.log_time - physics, recorded.priced.runs.source
    out = physics[judged].copy()
    for name in np.unique(source[given]):
        out[source[judged] == name] += middle(off[given[source[given] == name]])
    return out


def splits(recorded: Recorded, draws: int) -> Iterator[tuple[int, tuple[Ints, Ints]]]:
    """(runs of each kind of GPU, (given, judged)) of every count and draw for which there are runs enough."""
    gpu = recorded.table["gpu"].iloc[recorded.priced.rows].reset_index(drop=True)
    for count, draw in itertools.product(COUNTS, range(draws)):
        if (split := drawn(gpu, count, draw)) is not None:
            yield count, split


def after_and_constant(surrogate: Surrogate, recorded: Recorded, given: Ints, judged: Ints) -> tuple[float, float]:
    """Errors of the judged rows after the given ones, and by one constant that was fitted to these."""
    truth, by_constant = recorded.log_time[judged], constant(recorded, given, judged)
    return error(predicted(surrogate, recorded, given, judged)[0], truth), error(by_constant, truth)


def scores(surrogate: Surrogate, recorded: Recorded, draws: int) -> Iterator[dict[str, float]]:
    """Figures of one source, one line per draw."""
    measured = recorded.log_time
    every = np.arange(len(measured))
    mean, half = predicted(surrogate, recorded, every[:0], every)
    yield {"raw": error(mean, measured), **_intervals(0, mean, half, measured)}
    for count, (given, judged) in splits(recorded, draws):
        truth = measured[judged]
        mean, half = predicted(surrogate, recorded, given, judged)
        by = {f"{n} {count}": constant(recorded, given, judged, f) for n, f in CONSTANTS_OF.items()}
        line = {name: error(values, truth) for name, values in by.items()}
        yield line | {f"after {count}": error(mean, truth), **_intervals(count, mean, half, truth)}


def error(mean: Floats, truth: Floats) -> float:
    """Median error of times whose logarithms are ``mean`` and should be ``truth``."""
    return float(np.median(np.abs(np.expm1(mean - truth))))


def _intervals(count: int, mean: Floats, half: Floats, truth: Floats) -> dict[str, float]:
    return {f"covered {count}": float((np.abs(mean - truth) <= half).mean()), f"width {count}": float(half.mean())}


def without(data: TrainingSet, name: str) -> Surrogate:
    """The shipped surrogate with a kernel learned without that source, and no run remembered."""
    shipped = load_surrogate("default")
    assert shipped is not None
    rows = data.of(set(data.source.tolist()) - {name})
    none = np.arange(0)
    kernel = learn_kernel(data, rows)
    return replace(shipped, kernel=kernel, support=shipped.support.take(none), residual=np.empty(0))


def judged(folder: Path, draws: int, slower: float) -> str:
    """The tables, one per profile."""
    shipped = load_surrogate("default")
    assert shipped is not None
    tables = {profile: read(folder, profile) for profile in PROFILES}
    data = training_set(pd.concat([tables["own"][name].table for name in shipped.card["data"]], ignore_index=True))
    lines: dict[str, dict[str, pd.DataFrame]] = {profile: {} for profile in PROFILES}
    for name in tables["own"]:
        surrogate = without(data, name)
        for profile in PROFILES:
            recorded = tables[profile][name]
            recorded = recorded if slower == 1.0 else recorded.slowed(slower)
            lines[profile][name] = pd.DataFrame(list(scores(surrogate, recorded, draws)))
        print(f"judged {name}", file=sys.stderr, flush=True)
    return "\n\n".join(
        f"{profile} profile\n{_table(pd.DataFrame({name: found.mean() for name, found in lines[profile].items()}).T)}"
        f"\n\nworse than one constant, in points\n{_never_worse(lines[profile])}"
        for profile in PROFILES
    )


def _never_worse(lines: dict[str, pd.DataFrame]) -> str:
    shown: dict[str, dict[str, str]] = {}
    worse = compared = 0
    for count, of in itertools.product(COUNTS, CONSTANTS_OF):
        for source, found in lines.items():
            difference = (found.get(f"after {count}", NONE) - found.get(f"{of} {count}", NONE)).dropna()
            if len(difference) < 2:
                continue
            mean, error_of_mean = difference.mean(), difference.std() / np.sqrt(len(difference))
            worse, compared = worse + int(mean > 2.0 * error_of_mean), compared + 1
            mark = "!" if mean > 2.0 * error_of_mean else ""
            shown.setdefault(f"{of} {count}", {})[source] = f"{100 * mean:+.2f} ({100 * error_of_mean:.2f}){mark}"
    return f"{pd.DataFrame(shown).fillna('').to_string()}\n{worse} of {compared} by more than twice the standard error"


def _table(found: pd.DataFrame) -> str:
    found = found.reindex(columns=COLUMNS)
    found.loc["mean"] = found.mean()
    return found.map(lambda v: "" if v != v else f"{v:.1%}").to_string()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--slower-network", type=float, default=1.0)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT.parent / "shared" / "data")
    options = parser.parse_args()
    with threadpool_limits(1, user_api="blas"):
        print(judged(options.folder, options.draws, options.slower_network))


if __name__ == "__main__":
    main()
