"""Joint optimisation of parallel layout and GPU clocks for training large language models.

The public verbs are imported on first use, so that ``import jointopt`` stays cheap.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_VERBS = {
    "load_job": "jointopt.spec.jobfile",
    "propose": "jointopt.workflows.propose",
    "explain": "jointopt.workflows.explain",
    "compare": "jointopt.workflows.compare",
    "polish": "jointopt.workflows.polish",
    "select": "jointopt.workflows.select",
    "predict": "jointopt.workflows.predict",
    "retrain": "jointopt.workflows.retrain",
    "import_": "jointopt.workflows.import_",
    "evaluate": "jointopt.workflows.evaluate",
    "tune": "jointopt.workflows.tune",
    "validate": "jointopt.workflows.validate",
    "report_stage": "jointopt.measure.devices.stage_hook.sitecustomize",
}
__all__ = ["__version__", *_VERBS]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _VERBS:
        raise AttributeError(f"module 'jointopt' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_VERBS[name]), name)
