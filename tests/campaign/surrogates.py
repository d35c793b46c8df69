"""A surrogate with parts of one source's own, and predictions by it after one of its files was changed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.surrogate.correction import load_surrogate
from jointopt.surrogate.files import CARD, load, save, write_card
from jointopt.surrogate.heat_names import PEAK
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.own_cluster import OwnRuns
from jointopt.surrogate.own_mix import Mix
from jointopt.surrogate.own_targets import OwnTarget
from jointopt.surrogate.power import PowerScale
from jointopt.surrogate.surrogate import Surrogate
from jointopt.surrogate.trees import Trees

JOB = shipped_job("opt-350m-2x4-a100")
SOURCE, RUNS = "my cluster|megatron-deepspeed|a100-sxm4-40gb|4", 60
FEATURES, TREES = 6, 4
_NUMBERS = {
    f"{name}{end}" for name in ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib")
    for end in ("", "_low", "_high")
}  # fmt: skip
_KEPT: list[Any] = []  # folders that are removed at the end


@functools.cache
def good() -> Path:
    """The shipped surrogate as one folder, with sixty runs of a source and few, small trees of its time and power."""
    _KEPT.append(tempfile.TemporaryDirectory(prefix="good-surrogate-"))
    folder = Path(_KEPT[-1].name)
    default = load_surrogate("default")
    assert default is not None
    own = OwnRuns(
        SOURCE, default.kernel, _mix(default, 0), 1.2, power=PowerScale(1.1, 0.05, 3.0), power_mix=_mix(default, 1),
        clocks=(0.6, 1.0), errors={"time": 0.02, "process": 0.03}, held_out="groups",
        heat={PEAK: OwnTarget(PowerScale(1.1, 0.05), _mix(default, 0))},
    )  # fmt: skip
    save(replace(_small(default), own=(own,)), folder)
    return folder


def _small(default: Surrogate) -> Surrogate:
    """With runs of the source alone."""
    support = default.support.take(np.arange(RUNS))
    return replace(default, support=replace(support, source=np.full(RUNS, SOURCE)), residual=default.residual[:RUNS])


def _mix(default: Surrogate, seed: int) -> Mix:
    from jointopt.surrogate.residual_trees import ResidualBooster

    width = FEATURES + default.support.sensitivity.shape[1]
    features = np.random.default_rng(seed).uniform(-20, 20, (300, width))
    booster = ResidualBooster(max_depth=3, n_estimators=TREES, reg_lambda=1.0, min_child_weight=1.0)
    names = default.feature_names[:FEATURES]
    return Mix(Trees.of(booster.fit(features, np.tanh(features[:, 0]))), 0.5, bool(seed), names)


def read(path: Path) -> object:
    """Predictions by the good surrogate with one file replaced, whose name stands in the first line.

    The card has the hash of what it is replaced by, and its own, as whoever means harm would write it.
    """
    name, _, content = path.read_bytes().partition(b"\n")
    folder = path.with_name(f"surrogate-{time.monotonic_ns()}")  # one that was loaded is remembered by its name
    shutil.copytree(good(), folder)
    try:
        (folder / name.decode()).write_bytes(content)
        _seal_again(folder, name.decode(), content)
        return _predictions(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _seal_again(folder: Path, name: str, content: bytes) -> None:
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):  # a card that can have no hash
        card = json.loads((folder / CARD).read_bytes())
        if name != CARD:
            card["model"]["sha256"][name] = hashlib.sha256(content).hexdigest()
        write_card(folder, card)


def _predictions(folder: Path) -> object:
    """Times by all parts of a surrogate, whichever of them answer for the job."""
    for trees in _trees(load(folder)):
        columns = np.zeros((2, len(trees.low)))
        answers = trees.predict(columns), trees.regressor.predict(columns), trees.contributions(columns)
        if not all(np.isfinite(one).all() for one in answers):
            raise FloatingPointError("trees predict what is not finite")
    model = JobModel.of(JOB, str(folder))
    layouts = {name: values[::97] for name, values in enumerate_layouts(JOB).layouts.items()}
    index = np.arange(len(layouts["pp"]))
    clocks = uniform_stage_clocks(layouts["pp"], 1110.0)
    found = model.cost_model(layouts).evaluate(index, clocks)
    answers = model.intervals({**layouts, **found, "stage_clock_mhz": clocks})
    endless = [name for name, values in answers.items() if name in _NUMBERS and not np.isfinite(values).all()]
    if endless:
        raise FloatingPointError(f"{', '.join(endless)} are not finite")
    return answers


def _trees(surrogate: Surrogate) -> list[Trees]:
    mixes = [mix.trees for own in surrogate.own for mix in own.mixes.values()]
    return [trees for trees in (surrogate.trees, *mixes) if trees is not None]
