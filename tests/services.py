"""Tests that need more than a bare clone bear the mark ``services``; in CI no test is skipped for want of one.

Programs of studies bear it too: they take seconds, for which tests of services wait anyway. Those that train, kill,
fuzz, check papers or run what pages show need no more than a bare clone and bear the mark ``long``.

`make test` leaves both out, `make test-services` runs them alone, so that nothing runs twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

# Fixtures, and parameters of fixtures, that need an extra, a server, a browser or root: tests with them bear the mark.
NEEDY = {
    "torch", "dask", "mlflow", "wandb", "openg2g", "cluster", "postgres", "postgres_server", "page", "small_disk",
    "shared_url=postgresql", "setting=slurm", "setting=torchrun", "setting=megatron", "setting=torchtitan",
    "setting=nanotron", "setting=deepspeed", "setting=megatron-bridge", "setting=nanotron by command",
}  # fmt: skip
LONG = {"trained"}  # fixtures that train a surrogate
# Why a test may be skipped in CI: what is there or not is none of CI's making.
ALLOWED = (
    "the recorded measurements are not beside the repository",
    "no TDP or no 16-bit peak in the catalogue",
    "Megatron-LM's archives are not beside the repository",
    "PyTorch sees a GPU here",
    "no file system can be mounted here",
    "SCIPY_ARRAY_API is not set",
    "no checkout of git here",
    "root reads everything here",
)


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch, for tests of real trainings."""
    return pytest.importorskip("torch", reason="real trainings need PyTorch: pip install 'jointopt[torch]'")


@pytest.fixture(scope="session")
def dask() -> Any:
    """Dask, for tests of its workers."""
    return pytest.importorskip("distributed", reason="workers need Dask: pip install 'jointopt[dask]'")


@pytest.fixture(scope="session")
def mlflow() -> Any:
    """MLflow's client, for tests of trackers."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    return pytest.importorskip("mlflow", reason="its runs need MLflow: pip install 'jointopt[mlflow]'")


@pytest.fixture(scope="session")
def wandb() -> Any:
    """The client of Weights & Biases, for tests of trackers."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    return pytest.importorskip("wandb", reason="its runs need Weights & Biases: pip install 'jointopt[wandb]'")


@pytest.fixture(scope="session")
def openg2g() -> Any:
    """OpenG2G, which takes the power of a schedule as a load."""
    return pytest.importorskip("openg2g.datacenter", reason="loads need OpenG2G: pip install openg2g")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        named = {f"{name}={value}" for name, value in parameters.items() if isinstance(value, str)}
        used = named | set(getattr(item, "fixturenames", ()))
        if NEEDY & used:
            item.add_marker(pytest.mark.services)
        if LONG & used:
            item.add_marker(pytest.mark.long)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[Any]:
    report = yield
    _refuse(report, call)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[Any]:
    report = yield
    _refuse(report, getattr(report, "call", None))
    return report


def _refuse(report: Any, call: pytest.CallInfo[Any] | None) -> None:
    """Turns a skip for a reason that is not on the list into a failure, where ``$CI`` is set."""
    skipped = call is not None and call.excinfo is not None and call.excinfo.errisinstance(pytest.skip.Exception)
    if skipped and os.environ.get("CI") and not str(call.excinfo.value).startswith(ALLOWED):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI for a reason that tests/services.py does not allow: {call.excinfo.value}"
