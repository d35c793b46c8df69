"""The protocol of launchers, which run a plan and measure it, and launchers by name."""

from __future__ import annotations

import inspect
import os
import time
import types
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, Union, get_args, get_origin, runtime_checkable

from jointopt.core.errors import UsageError, nearest_hint
from jointopt.core.schema import Columns
from jointopt.jobs.job import Job
from jointopt.jobs.reading import is_number, is_whole, quoted_value

GROUP = "jointopt.launchers"  # entry points: shipped ones are in pyproject.toml, other packages add theirs
_KINDS: dict[Any, tuple[str, Callable[[object], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number from 0 on", lambda value: is_whole(value) and int(str(value)) >= 0),
    float: ("a number", is_number),
    str: ("text", lambda value: isinstance(value, str)),
    Path: ("a path", lambda value: isinstance(value, str | os.PathLike)),
    type(None): ("", lambda value: value is None),
    Sequence: ("a list", lambda value: isinstance(value, list | tuple)),
}
_PLAIN = (bool, int, float, str, list, tuple, dict)  # values that a command line or a file can hold


class Launcher(Protocol):
    """Runs plans of a job, one at a time (`ManyAtOnce`: several).

    ``tests/contracts/test_launchers.py`` holds what each must keep.
    """

    name: str

    def candidates(self, job: Job) -> Columns | None:
        """The only plans that can be run, with the workload columns they run under; None = any plan of the job.

        Columns are those of a measurement table without its results, blank cells NaN. LauncherError where none can run.
        """

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run ``plan`` (plan columns; of candidates all columns) and return its row of the measurement table.

        A run that fails is a row too: ``status`` oom, failed or timeout; its `Failure` may stand beside the columns as
        ``failure``. LauncherError only where no run could be started. Nothing that was started is left.
        """


@dataclass(frozen=True)
class EndedRun:
    """A run that has ended."""

    place: int  # of its plan among those of the call, from 0
    row: Mapping[str, Any]  # of the measurement table
    seconds: float  # for which it held its GPUs


ReportState = Callable[[int, str], None]  # takes the place of a plan, and the state of its run in words


@runtime_checkable
class ManyAtOnce(Launcher, Protocol):
    """A launcher that does not own the machine of its runs, so that several are on their way at once."""

    def run_all(
        self, job: Job, plans: Iterable[Mapping[str, Any]], report: ReportState
    ) -> Generator[EndedRun, None, None]:
        """Start runs of all ``plans``, and yield each as it ends.

        After a LauncherError nothing more is started; it is raised when all other runs have ended. KeyboardInterrupt
        and closing the generator end the runs on their way; after an interrupt, runs that had ended are still yielded.
        """


@runtime_checkable
class EndsEarly(Launcher, Protocol):
    """A launcher that ends runs early: after a few iterations that each took longer than ``behind_s`` (0: none is).

    The row of such a run is a timeout, whose iteration time is the shortest of these iterations, a lower bound.
    """

    behind_s: float


@runtime_checkable
class EndsDominated(EndsEarly, Protocol):
    """A launcher that meters runs while they go on, and ends those that are clearly behind in both time and energy.

    ``behind_both``: pairs of bounds, s and J per iteration (none: no run is ended for its energy). A run is ended if
    for one pair its first iterations all took longer, and the shortest of them at the least power that the meter allows
    for took more energy. Its row is that of `EndsEarly` with this energy, a lower bound.
    """

    behind_both: Sequence[tuple[float, float]]


def run_all(
    launcher: Launcher, job: Job, plans: Iterable[Mapping[str, Any]], report: ReportState
) -> Generator[EndedRun, None, None]:
    """Run ``plans`` and yield each run as it ends: several at once if the launcher is `ManyAtOnce`, else in order.

    A plan is drawn from ``plans`` when its run begins. Raises what the launcher raises.
    """
    if isinstance(launcher, ManyAtOnce):
        yield from launcher.run_all(job, plans, report)
        return
    for place, plan in enumerate(plans):
        started = time.monotonic()
        yield EndedRun(place, launcher.run(job, plan), time.monotonic() - started)


def narrow_search(launcher: Launcher, job: Job) -> Job:
    """The job, its search narrowed to the plans that ``launcher`` can run; LauncherError where there are none.

    The launcher's own ``narrow_search(job)`` is asked if it has one. A launcher that leaves clocks to the driver runs
    plans at the top clock alone, since GPUs run there whatever clock a plan states.
    """
    job = getattr(launcher, "narrow_search", lambda job: job)(job)
    if not getattr(launcher, "default_clocks", False):
        return job
    top_mhz = job.cluster.gpu.clock_max_mhz or max(job.search.clock_mhz)
    return replace(job, search=replace(job.search, clock_mhz=(top_mhz,), per_stage_clocks=False))


def script_of(launcher: Launcher, job: Job, plan: Mapping[str, Any]) -> str:
    """The shell text that ``launcher`` would start for ``plan``. Raises UsageError where it starts nothing."""
    script: Callable[..., str] | None = getattr(launcher, "script", None)
    if script is None:
        raise UsageError(
            f"The launcher {launcher.name!r} has no script to show; expected one that starts runs, such as torchrun."
        )
    return script(job, plan)


def launcher_names() -> tuple[str, ...]:
    """Names of the shipped launchers and of those that installed packages add."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def load_launcher(launcher: Launcher | str, **options: Any) -> Launcher:
    """The launcher of that name, made with ``options`` (those that are None are left out), or one that is made already.

    Raises UsageError for options beside a launcher that is made already; for an unknown name; for an option that the
    launcher does not have, one that it needs, or one of another type than its annotation; seconds (``..._s``) must be
    above 0.
    """
    if not isinstance(launcher, str):
        if options:
            raise UsageError(f"A launcher that is made already takes no options; got {', '.join(sorted(options))}.")
        if not callable(getattr(launcher, "candidates", None)):
            raise UsageError(f"launcher must be the name of a launcher, or one; got {type(launcher).__name__}.")
        return launcher
    name = launcher
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        known = launcher_names()
        raise UsageError(f"launcher must be one of {', '.join(known)}; got {name!r}{nearest_hint(name, known)}.")
    make: Callable[..., Launcher] = found[0].load()
    given = {key: value for key, value in options.items() if value is not None}
    parameters = inspect.signature(make).parameters
    with suppress(NameError, AttributeError, TypeError, SyntaxError):  # names that only a type checker sees
        parameters = inspect.signature(make, eval_str=True).parameters
    for key in given.keys() - parameters.keys():
        elsewhere = ": logs lie in the folder that is given as --folder"
        hint = elsewhere if key == "logs" and "folder" in parameters else nearest_hint(key, parameters)
        raise UsageError(f"The launcher {name!r} has no option {key!r}{hint}.")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in given:
            raise UsageError(f"The launcher {name!r} needs {key!r}; on the command line --{key.replace('_', '-')}.")
    return make(**{key: _option_value(name, key, parameters[key].annotation, value) for key, value in given.items()})


def _option_value(launcher: str, key: str, annotation: Any, value: Any) -> Any:
    """The value if it is of its annotated type, paths as `Path`."""
    union = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else [annotation]
    kinds = [get_origin(kind) or kind for kind in union]
    in_seconds = key.endswith("_s") and float in kinds
    if not any(_fits(kind, value) for kind in kinds) or (in_seconds and is_number(value) and value <= 0):
        words = [_KINDS[kind][0] for kind in kinds if kind in _KINDS]
        expected = "a number of seconds above 0" if in_seconds else " or ".join(filter(None, words))
        raise UsageError(f"{key} of the launcher {launcher!r} must be {expected}; got {quoted_value(value)}.")
    return Path(value) if Path in kinds and str not in kinds and isinstance(value, str) else value


def _fits(kind: Any, value: Any) -> bool:
    """Whether a value is of a type; of one that no command line can state, all objects are but plain ones."""
    if kind in (Any, inspect.Parameter.empty) or isinstance(kind, str):
        return True
    if kind in _KINDS:
        return _KINDS[kind][1](value)
    return isinstance(value, kind) if kind in _PLAIN else not isinstance(value, _PLAIN)
