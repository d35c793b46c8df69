"""Objects or the paths of their files: callers of the verbs may give either, as on the command line."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from jointopt.core.errors import UsageError
from jointopt.spec.calibration import Calibration, load_calibration
from jointopt.spec.job import Job
from jointopt.spec.jobfile import load_job
from jointopt.spec.machine import Machine, load_machine
from jointopt.spec.sizes import load_jobs
from jointopt.surrogate.job_model import JobModel

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.measurements import Measurements

P = ParamSpec("P")
R = TypeVar("R")


def from_files(verb: Callable[P, R]) -> Callable[P, R]:
    """The verb with every job, table, calibration and machine read where the path of its file is given.

    UsageError where an argument is neither.
    """
    signature = inspect.signature(verb)

    @functools.wraps(verb)
    def run(*args: P.args, **options: P.kwargs) -> R:
        given = signature.bind(*args, **options)
        for name in _READERS.keys() & given.arguments.keys():
            if given.arguments[name] is not None or signature.parameters[name].default is not None:
                given.arguments[name] = _read(name, given.arguments[name])
        return verb(*given.args, **given.kwargs)

    return run


def _read(name: str, value: Any) -> Any:
    """The argument of that name as an object."""
    read, types, expected = _READERS[name]
    if isinstance(value, str | Path):
        return read(Path(value))
    if type(value).__name__ in types:
        return value
    raise UsageError(f"{name} must be {expected}; got {type(value).__name__}.")


def _table(path: Path) -> pd.DataFrame:
    from jointopt.runs.table import read_table

    return read_table(path)


def _measured(path: Path) -> Measurements:
    from jointopt.surrogate.measurements import Measurements

    return Measurements.of(_table(path), str(path))


# How a file is read in place of an argument, names of its types (pandas is not imported for them), and words for both.
_READERS: Mapping[str, tuple[Callable[[Path], Any], tuple[str, ...], str]] = {
    "job": (load_job, (Job.__name__, JobModel.__name__), "a Job (`jointopt.load_job`) or the path of a job file"),
    "jobs": (load_jobs, ("list", "tuple", Job.__name__), "Jobs (`jointopt.load_jobs`) or the path of a job file"),
    "table": (_table, ("DataFrame",), "a pandas DataFrame or the path of a CSV file"),
    "measured": (_measured, ("DataFrame", "Measurements"), "a pandas DataFrame or the path of a CSV file"),
    "calibration": (load_calibration, (Calibration.__name__,), "a Calibration or the path of its file"),
    "machine": (load_machine, (Machine.__name__,), "a Machine or the path of the file that `doctor --probe` wrote"),
}
