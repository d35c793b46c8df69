"""Record how accurate predictions of the sampled runs are: rewrites accuracy.json beside this program.

    python tests/data/record_accuracy.py

tests/test_accuracy_gate.py fails where a figure is worse than the recorded one by more than a point. Run this after a
change that makes predictions better, so that they stay so; after one that makes them worse, run it only where that is
meant, and say why in the commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from jointopt.workflows.predict import predict
from tests.data.sample import LEAST_TO_RANK, SAMPLE

RECORDED = Path(__file__).with_name("accuracy.json")
SURROGATES = ("none", "default")
POINT = 0.01
HIGHER_IS_BETTER = ("kendall_tau", "failures_found")

Figures = dict[str, dict[str, float]]  # of every source, by name


def figures(surrogate: str) -> Figures:
    """Accuracy of ``surrogate`` on each source of the sample; a source lacks the figures that its rows cannot give.

    All figures are shares or ranks without unit, see README.md beside this file.
    """
    judged = predict(pd.read_csv(SAMPLE), surrogate)
    return {str(source): dict(_of_source(rows)) for source, rows in judged.groupby("source")}


def _of_source(rows: pd.DataFrame) -> Iterator[tuple[str, float]]:
    ran = rows["status"] == "ok"
    fits = rows["predicted_fits"].astype(bool)
    yield "not_predicted", _figure(rows["predicted_iteration_time_s"].isna().mean())
    for name, column in (("time", "iteration_time_s"), ("memory", "peak_memory_gib")):
        ratio = (rows[f"predicted_{column}"] / rows[column])[ran].dropna()
        if len(ratio):
            yield f"{name}_median_error", _figure((ratio - 1).abs().median())
            yield f"{name}_bias", _figure(abs(ratio.median() - 1))
    taus = [_tau(group) for _, group in rows[ran].groupby("group") if len(group) >= LEAST_TO_RANK]
    if taus:
        yield "kendall_tau", _figure(float(np.mean(taus)))
    if not ran.all():
        yield "failures_found", _figure((~fits[~ran]).mean())
    yield "false_alarms", _figure((~fits[ran]).mean())


def _tau(group: pd.DataFrame) -> float:
    return float(kendalltau(group["predicted_iteration_time_s"], group["iteration_time_s"])[0])


def _figure(value: float) -> float:
    """Five digits: less than a hundredth of what the gate lets pass, and the same on every machine."""
    return round(float(value), 5)


def worse(recorded: Figures, now: Figures) -> list[str]:
    """A sentence for each figure that is gone, or worse than ``recorded`` by more than a point."""
    return [
        f"{source}: {name} was recorded as {was:.3f}, is now {_named(now, source, name)}"
        for source, known in recorded.items()
        for name, was in known.items()
        if not _loss(name, was, now.get(source, {}).get(name, np.nan)) <= POINT
    ]


def _loss(name: str, was: float, now: float) -> float:
    return was - now if name in HIGHER_IS_BETTER else now - was


def _named(now: Figures, source: str, name: str) -> str:
    return f"{now[source][name]:.3f}" if name in now.get(source, {}) else "missing"


def main() -> None:
    recorded = {surrogate: figures(surrogate) for surrogate in SURROGATES}
    RECORDED.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    for surrogate, found in recorded.items():
        print(f"{surrogate}:\n{pd.DataFrame(found).T.round(3).to_string(na_rep='')}\n")


if __name__ == "__main__":
    main()
