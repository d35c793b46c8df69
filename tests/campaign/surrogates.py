"""A surrogate with parts of one source's own, and predictions by it after one of its files was changed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import tempfile
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jointopt.core.schema import Columns, Floats
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cost_model import CostModel
from jointopt.surrogate.features import HEAT_NAMES, PEAK
from jointopt.surrogate.files import CARD, load, load_surrogate, save, write_card
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.kernel import Kernel
from jointopt.surrogate.new_sources import NewGroups
from jointopt.surrogate.own_cluster import OwnRuns
from jointopt.surrogate.own_mix import Mix, OwnTarget
from jointopt.surrogate.power import PowerScale
from jointopt.surrogate.surrogate import Surrogate
from jointopt.surrogate.trees import Trees, fit_trees

JOB = shipped_job("opt-350m-2x4-a100")
SOURCE, RUNS = "my cluster|megatron-deepspeed|a100-sxm4-40gb|4", 60
FEATURES, TREES = 6, 4
_NUMBERS = ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib")
_FAR = 1e4  # times what the physics alone predicts, or its inverse: no correction is meant to come near
_KEPT: list[Any] = []  # folders that are removed at the end


@functools.cache
def good() -> Path:
    """The shipped surrogate as one folder, with sixty runs of a source and few, small trees of its time and power."""
    _KEPT.append(tempfile.TemporaryDirectory(prefix="good-surrogate-"))
    folder = Path(_KEPT[-1].name)
    default = load_surrogate("default")
    assert default is not None
    of_power = {name: 0.05 for of in ("power", *HEAT_NAMES.values()) for name in (of, f"{of} physics", f"{of} process")}
    own = OwnRuns(
        SOURCE, Kernel.of_one_source(default.kernel), _mix(default, 0), 1.2, 1.1, PowerScale(1.1, 0.05, 3.0),
        _mix(default, 1), (0.6, 1.0), {"time": 0.02, "process": 0.03, "physics": 0.1} | of_power, "groups",
        {"time": {"log2_tp": 0.02}}, 300.0,
        {PEAK: OwnTarget(PowerScale(1.1, 0.05), _mix(default, 0), 1.02)}, as_sure=True, of_new=0.9,
    )  # fmt: skip
    few = NewGroups((SOURCE,), 0.5, 1.5, {"physics": 0.1, "process": 0.2, "time": 0.1}, as_sure=True)
    card = {name: of for name, of in default.card.items() if "per_group" not in name}  # half of it
    card |= {"recipe_classes": {SOURCE: "vendor"}}
    rows = np.arange(RUNS, dtype=np.uint64)
    save(replace(_small(default), own=(own,), new_groups=(few,), card=card, learned_rows=rows), folder)
    return folder


def _small(default: Surrogate) -> Surrogate:
    """With runs of the source alone."""
    support = replace(default.support.take(np.arange(RUNS)), source=np.full(RUNS, SOURCE))
    return replace(default, support=support, residual=default.residual[:RUNS])


def _mix(default: Surrogate, seed: int) -> Mix:
    trees = _trees_of(FEATURES + default.support.sensitivity.shape[1], seed)
    return Mix(trees, 0.5, bool(seed), tuple(default.training_range)[:FEATURES])


def _trees_of(width: int, seed: int) -> Trees:
    features = np.random.default_rng(seed).uniform(-20, 20, (300, width))
    small = {"max_depth": 3, "n_estimators": TREES, "reg_lambda": 1.0, "min_child_weight": 1.0}
    return fit_trees(features, np.tanh(features[:, 0]), **small)


def read(path: Path) -> object:
    """Predictions by the good surrogate with one file replaced, whose name stands in the first line.

    The card has the hash of what it is replaced by, and its own, as whoever means harm would write it.
    """
    name, _, content = path.read_bytes().partition(b"\n")
    folder = path.with_name(f"surrogate-{time.monotonic_ns()}")  # one that was loaded is remembered by its name
    shutil.copytree(good(), folder, copy_function=os.symlink)
    try:
        for changed in {name.decode(), CARD}:
            shutil.copy(good() / changed, changing := folder / f"{changed}.new")
            changing.replace(folder / changed)
        (folder / name.decode()).write_bytes(content)
        _seal_again(folder, name.decode(), content)
        return _predictions(folder, in_whole=not zlib.crc32(content) % 4)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _seal_again(folder: Path, name: str, content: bytes) -> None:
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):  # a card that can have no hash
        card = json.loads((folder / CARD).read_bytes())
        if name != CARD:
            card["model"]["sha256"][name] = hashlib.sha256(content).hexdigest()
        write_card(folder, card)


def _predictions(folder: Path, in_whole: bool) -> object:
    """What changed trees and what was learned of the source answer; ``in_whole``: other parts and words on them too."""
    surrogate = load(folder)
    for trees in filter(None, [mix.trees for own in surrogate.own for mix in own.mixes.values()]):
        columns = np.zeros((2, trees.width))
        answers = trees.predict(columns), trees.contributions(columns)
        if not all(np.isfinite(one).all() for one in answers):
            raise FloatingPointError("trees predict what is not finite")
    model = JobModel.of(JOB, str(folder))
    layouts, clocks, physics = _plans()
    shared = replace(surrogate, own=())  # the process of all sources in place of what was learned from many runs
    for one in (model, *[replace(model, surrogate=shared)] * in_whole):
        found = one.cost_model(layouts).evaluate(np.arange(len(clocks)), clocks)
        answers = one.bounded({**layouts, **found, "stage_clock_mhz": clocks})
        _check(physics, answers)
        apart = one.differences(answers, 0)
        if not all(np.isfinite(values).all() for values in apart.values() if values.dtype.kind == "f"):
            raise FloatingPointError("differences are not finite")
    words = model.learned(layouts) if in_whole else ()
    return [*words, *(one.to_text() for one in (*surrogate.own, *surrogate.new_groups))]


@functools.cache
def _plans() -> tuple[Columns, Floats, Columns]:
    """Some layouts of the job, clocks of a plan of each, and these by the physics alone."""
    layouts = {name: values[::97] for name, values in enumerate_layouts(JOB).layouts.items()}
    clocks = uniform_stage_clocks(layouts["pp"], 1110.0)
    return layouts, clocks, CostModel(JOB, layouts).evaluate(np.arange(len(clocks)), clocks)


def _check(physics: Columns, answers: Columns) -> None:
    """FloatingPointError for numbers of plans that are not finite, far from the physics or beyond their intervals."""
    for name in _NUMBERS:
        low, value, high = (answers[f"{name}{end}"] for end in ("_low", "", "_high"))
        if not all(np.isfinite(values).all() for values in (low, value, high)):
            raise FloatingPointError(f"{name} is not finite")
        if not ((low <= value * (1 + 1e-9)) & (value <= high * (1 + 1e-9))).all():
            raise FloatingPointError(f"{name} is beyond its interval")
        if not ((value > physics[name] / _FAR) & (value < _FAR * physics[name])).all():
            raise FloatingPointError(f"{name} is far from the physics")
