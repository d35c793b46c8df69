"""Objects or the paths of their files: callers of the verbs may give either, as on the command line."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from jointopt.core.errors import UsageError, of_table
from jointopt.jobs.calibration import Calibration, load_calibration
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import load_job, load_jobs
from jointopt.jobs.machine import Machine, load_machine
from jointopt.jobs.reading import is_number, is_whole, shown
from jointopt.surrogate.job_model import JobModel

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.measurements import Measurements

P = ParamSpec("P")
R = TypeVar("R")


def from_files(verb: Callable[P, R]) -> Callable[P, R]:
    """The verb with every job, table, calibration and machine read where the path of its file is given.

    UsageError where an argument is neither, or where a text or a number is something else than its annotation says.
    """
    signature = inspect.signature(verb)

    @functools.wraps(verb)
    def run(*args: P.args, **options: P.kwargs) -> R:
        given = signature.bind(*args, **options)
        table = given.arguments.get("table")
        for name in _READERS.keys() & given.arguments.keys():
            if given.arguments[name] is not None or signature.parameters[name].default is not None:
                given.arguments[name] = _read(name, given.arguments[name])
        for name in given.arguments.keys() - _READERS.keys():
            given.arguments[name] = _plain(name, given.arguments[name], str(signature.parameters[name].annotation))
        with of_table(table) if isinstance(table, str | Path) else nullcontext():
            return verb(*given.args, **given.kwargs)

    return run


def listed(plans: Any) -> list[Any]:
    """The plans as a list, of one where a single one is given; UsageError where they are neither."""
    if isinstance(plans, str | Mapping):
        return [plans]
    if not isinstance(plans, Iterable):
        raise UsageError(f"plans must be a plan as text or a mapping, or a list of them; got {type(plans).__name__}.")
    return list(plans)


def paths(name: str, value: Any) -> list[Path]:
    """The argument of that name as paths, of one where a single one is given; UsageError where it is neither."""
    each = [value] if not isinstance(value, Iterable) or isinstance(value, str) else list(value)
    if not all(isinstance(one, str | Path) for one in each):
        raise UsageError(f"{name} must be the path of a file, or a list of them; got {type(value).__name__}.")
    return [Path(one) for one in each]


def _read(name: str, value: Any) -> Any:
    """The argument of that name as an object."""
    read, types, expected = _READERS[name]
    if isinstance(value, str | Path):
        return read(Path(value))
    if type(value).__name__ in types:
        return value
    raise UsageError(f"{name} must be {expected}; got {type(value).__name__}.")


def _plain(name: str, value: Any, annotation: str) -> Any:
    """The argument as its annotation has it, where that is of text and numbers alone; a path is text too."""
    kinds = annotation.split(" | ")
    if not _PLAIN.keys() >= {*kinds} or (value is None and "None" in kinds):
        return value
    if "str" in kinds:
        if isinstance(value, str | Path):
            return value if "Path" in kinds else str(value)
        raise UsageError(f"{name} must be {_TEXTS.get(name, 'a text')}; got {type(value).__name__}.")
    fits, expected = _PLAIN[kinds[0]]
    low, high = _SPANS.get(name, (-math.inf, math.inf))
    if not fits(value) or (name in _SPANS and not low <= value <= high):
        raise UsageError(f"{name} must be {expected}{_span(low, high)}; got {shown(value)}.")
    return value


def _span(low: float, high: float) -> str:
    """How a message writes the bounds of a number: `` from 0 on``, or nothing."""
    return (f" from {low:.0f} " + ("on" if high == math.inf else f"to {high:.0f}")) if low > -math.inf else ""


def _table(path: Path) -> pd.DataFrame:
    from jointopt.runs.table import read_table

    return read_table(path)


def _measured(path: Path) -> Measurements:
    from jointopt.surrogate.measurements import Measurements

    return Measurements.of(_table(path), str(path))


# The kinds of plain arguments by the name in an annotation: what fits, and words for it.
_PLAIN: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "int": (is_whole, "a whole number"),
    "float": (lambda value: isinstance(value, float) or is_number(value), "a number"),
    "bool": (lambda value: type(value).__name__ in ("bool", "bool_"), "True or False"),
    **dict.fromkeys(("str", "Path", "None"), (lambda value: False, "a text")),
}  # fmt: skip
_SPANS = {"trials": (0, math.inf), "seed": (0, 2**32 - 1), "top": (1, math.inf), "batch": (1, math.inf)}
_TEXTS = {
    "source": "the path of a file or a folder, or the name of a study",
    "baseline": "a plan as text, or the path of a run's file",
    "surrogate": "the name of a shipped surrogate, the path of a folder, or 'none'",
    "out": "the path of a folder",
    "storage": "the URL of a database",
}

# How a file is read in place of an argument, names of its types (pandas is not imported for them), and words for both.
_READERS: Mapping[str, tuple[Callable[[Path], Any], tuple[str, ...], str]] = {
    "job": (load_job, (Job.__name__, JobModel.__name__), "a Job (`jointopt.load_job`) or the path of a job file"),
    "jobs": (load_jobs, ("list", "tuple", Job.__name__), "Jobs (`jointopt.load_jobs`) or the path of a job file"),
    "table": (_table, ("DataFrame",), "a pandas DataFrame or the path of a CSV file"),
    "measured": (_measured, ("DataFrame", "Measurements"), "a pandas DataFrame or the path of a CSV file"),
    "calibration": (load_calibration, (Calibration.__name__,), "a Calibration or the path of its file"),
    "machine": (load_machine, (Machine.__name__,), "a Machine or the path of the file that `doctor --probe` wrote"),
}
