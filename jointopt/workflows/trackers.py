"""Runs in an experiment tracker, MLflow or Weights & Biases: the one file that knows these packages, both optional."""

from __future__ import annotations

import importlib.util
import math
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jointopt.core.errors import UsageError, nearest_hint

_PROJECT = "jointopt"  # where the tracker's own variable names no other


@dataclass(frozen=True)
class TrackedRun:
    """One run as a tracker takes it: what was set, what came of it, and what it is found by."""

    name: str
    params: Mapping[str, Any]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    succeeded: bool = True


def _log_to_mlflow(run: TrackedRun) -> None:
    import mlflow

    mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT))
    mlflow.start_run(run_name=run.name, tags=dict(run.tags), nested=True)
    try:
        mlflow.log_params(dict(run.params))
        mlflow.log_metrics(dict(run.metrics))
    finally:
        mlflow.end_run("FINISHED" if run.succeeded else "FAILED")


def _log_to_wandb(run: TrackedRun) -> None:
    import wandb

    settings = wandb.Settings(silent=True, console="off", reinit="create_new")
    begun = wandb.init(
        project=os.environ.get("WANDB_PROJECT", _PROJECT), name=run.name, group=run.tags.get("study"),
        config={**run.params, **run.tags}, tags=[tag[:64] for tag in run.tags.values()], settings=settings,
    )  # fmt: skip
    begun.log(dict(run.metrics))
    begun.finish(exit_code=int(not run.succeeded))


TRACKERS = {"mlflow": _log_to_mlflow, "wandb": _log_to_wandb}


class Tracker:
    """The tracker of a name in `TRACKERS`; UsageError where there is none such, or its package is missing."""

    def __init__(self, name: str) -> None:
        if name not in TRACKERS:
            raise UsageError(f"Runs are logged to {' or '.join(TRACKERS)}; got {name!r}{nearest_hint(name, TRACKERS)}.")
        # a folder of that name, which Weights & Biases leaves where it ran, is no package
        if getattr(importlib.util.find_spec(name), "origin", None) is None:
            raise UsageError(
                f"To log runs to {name} its package is needed; install it: pip install 'jointopt[{name}]'."
            )
        self.name = name
        self._waiting: deque[TrackedRun] = deque()

    def log(self, run: TrackedRun) -> str:
        """Log a run, after those before it that could not be; why some still are not, in a sentence."""
        finite = {name: value for name, value in run.metrics.items() if math.isfinite(value)}
        self._waiting.append(TrackedRun(run.name, run.params, finite, run.tags, run.succeeded))
        try:
            while self._waiting:
                TRACKERS[self.name](self._waiting[0])
                self._waiting.popleft()
        except Exception as error:  # of whatever kind: a tracker that is away ends no campaign
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            return f"Runs not logged to {self.name} yet: {len(self._waiting)}, which the next run brings: {reason}"
        return ""
