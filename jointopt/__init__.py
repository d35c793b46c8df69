"""Joint optimisation of parallel layout and GPU clocks for training large language models.

The public verbs are imported on first use, so that ``import jointopt`` stays cheap. Every error that they raise on
purpose is a `JointOptError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jointopt.core.errors import InfeasibleError, JointOptError, UsageError

if TYPE_CHECKING:  # what `__getattr__` imports, for type checkers and editors
    from jointopt.jobs.arguments import job as job
    from jointopt.jobs.jobfile import load_job as load_job
    from jointopt.jobs.jobfile import load_jobs as load_jobs
    from jointopt.measure.hardware.stage_hook.sitecustomize import report_stage as report_stage
    from jointopt.workflows.check import check as check
    from jointopt.workflows.compare import compare as compare
    from jointopt.workflows.evaluate import evaluate as evaluate
    from jointopt.workflows.explain import explain as explain
    from jointopt.workflows.fleet import fleet as fleet
    from jointopt.workflows.follow import follow as follow
    from jointopt.workflows.goodput import goodput as goodput
    from jointopt.workflows.import_ import import_ as import_
    from jointopt.workflows.optuna_objective import enqueue as enqueue
    from jointopt.workflows.optuna_objective import optuna_objective as optuna_objective
    from jointopt.workflows.page import page as page
    from jointopt.workflows.polish import polish as polish
    from jointopt.workflows.predict_plans import predict as predict
    from jointopt.workflows.propose import propose as propose
    from jointopt.workflows.retrain import retrain as retrain
    from jointopt.workflows.scale import scale as scale
    from jointopt.workflows.select import select as select
    from jointopt.workflows.tune import tune as tune
    from jointopt.workflows.validate import validate as validate
    from jointopt.workflows.watch import watch as watch

__version__ = "0.1.0"

_VERBS = {
    "job": "jointopt.jobs.arguments",
    "load_job": "jointopt.jobs.jobfile",
    "load_jobs": "jointopt.jobs.jobfile",
    "check": "jointopt.workflows.check",
    "propose": "jointopt.workflows.propose",
    "page": "jointopt.workflows.page",
    "explain": "jointopt.workflows.explain",
    "compare": "jointopt.workflows.compare",
    "scale": "jointopt.workflows.scale",
    "goodput": "jointopt.workflows.goodput",
    "follow": "jointopt.workflows.follow",
    "fleet": "jointopt.workflows.fleet",
    "polish": "jointopt.workflows.polish",
    "select": "jointopt.workflows.select",
    "predict": "jointopt.workflows.predict_plans",
    "retrain": "jointopt.workflows.retrain",
    "import_": "jointopt.workflows.import_",
    "evaluate": "jointopt.workflows.evaluate",
    "tune": "jointopt.workflows.tune",
    "validate": "jointopt.workflows.validate",
    "watch": "jointopt.workflows.watch",
    "optuna_objective": "jointopt.workflows.optuna_objective",
    "enqueue": "jointopt.workflows.optuna_objective",
    "report_stage": "jointopt.measure.hardware.stage_hook.sitecustomize",
}
__all__ = ["InfeasibleError", "JointOptError", "UsageError", "__version__", *_VERBS]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _VERBS:
        raise AttributeError(f"module 'jointopt' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_VERBS[name]), name)
