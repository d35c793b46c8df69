"""What runs one plan and measures it: the protocol, and launchers by name."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from jointopt.core.errors import UsageError, nearest
from jointopt.core.schema import COLUMNS, STATUSES, Columns
from jointopt.measure.launchers.failures import Failure
from jointopt.measure.launchers.options import checked_options
from jointopt.spec.job import Job

GROUP = (
    "jointopt.launchers"  # entry points: the shipped ones stand in pyproject.toml, other packages add theirs
)
RESULTS = tuple(column.name for column in COLUMNS.values() if column.role == "result")


class Launcher(Protocol):
    """Runs plans of a job, one at a time (`ManyAtOnce`: several).

    ``tests/contracts/test_launchers.py`` holds what each must keep.
    """

    name: str

    def candidates(self, job: Job) -> Columns | None:
        """The only plans that can be run, with the workload columns they run under; None = any plan of the job.

        Columns are those of a measurement table without its results, blank cells NaN. Raises LauncherError where
        none can be run.
        """

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run ``plan`` (plan columns; of candidates all columns) and return its row of the measurement table.

        A run that fails is a row too: ``status`` oom, failed or timeout. Raises LauncherError only where no run
        of this launcher could be started. Whatever happens, an interrupt too, nothing that was started is left.
        """


@dataclass(frozen=True)
class Ended:
    """A run of several that was asked for: its place among their plans, its row, and how long it held its GPUs."""

    place: int
    row: Mapping[str, Any]
    seconds: float


Say = Callable[[int, str], None]  # the place of a plan, and what becomes of its run


@runtime_checkable
class ManyAtOnce(Launcher, Protocol):
    """A launcher that does not own the machine of its runs, so that several are on their way at once."""

    def run_all(self, job: Job, plans: Iterable[Mapping[str, Any]], say: Say) -> Generator[Ended, None, None]:
        """Start runs of all ``plans``, and give each as it ends.

        Nothing more is started after a LauncherError, which is raised when all that were started have ended.
        KeyboardInterrupt, and closing the generator, end what is on its way; runs that had ended by then are still
        given, where the generator is not closed.
        """


def run_all(
    launcher: Launcher, job: Job, plans: Iterable[Mapping[str, Any]], say: Say
) -> Generator[Ended, None, None]:
    """Runs of ``plans``, each given as it ends: at once where the launcher is one of `ManyAtOnce`, else in order.

    A plan is drawn from ``plans`` when its run begins. Raises what the launcher raises.
    """
    if isinstance(launcher, ManyAtOnce):
        yield from launcher.run_all(job, plans, say)
        return
    for place, plan in enumerate(plans):
        started = time.monotonic()
        row = launcher.run(job, plan)
        yield Ended(place, row, time.monotonic() - started)


def script_of(launcher: Launcher, job: Job, plan: Mapping[str, Any]) -> str:
    """What ``launcher`` would start for ``plan``, as text of a shell. Raises UsageError where it starts nothing."""
    script: Callable[..., str] | None = getattr(launcher, "script", None)
    if script is None or not callable(script):
        raise UsageError(
            f"The launcher {launcher.name!r} has no script to show; expected one that starts runs, such as torchrun."
        )
    return script(job, plan)


def result_row(status: str, notes: str, **known: float) -> dict[str, Any]:
    """The result columns of a run, blank but for what is ``known``; ``notes`` of one that failed are its reason."""
    return dict.fromkeys(RESULTS, math.nan) | {"status": status, "notes": notes} | known


def judged(told: Mapping[str, Any] | None, whole: bool, failure: Failure) -> dict[str, Any]:
    """The result columns of a run: what it told of itself, unless its end contradicts that.

    ``whole``: it ended well; ``failure`` is what its end and its log say if not. A log that speaks of short memory
    is believed before a result that says nothing of it: that may be half written.
    """
    if told is not None and (whole or (told["status"] != "ok" and failure.status != "oom")):
        return dict(told)
    return result_row(failure.status, failure.reason)


def with_log(row: Mapping[str, Any], log: Path, kept: bool) -> dict[str, Any]:
    """The result columns of a run; one that failed says in ``notes`` where its ``log`` is, if that is ``kept``.

    A run out of memory is what it is: only of another failure its log is missed.
    """
    where = ""
    if row["status"] != STATUSES[0] and kept and log.is_file():
        where = f"log: {log.absolute()}"
    elif row["status"] in ("failed", "timeout") and not kept:
        where = "no log is kept without --logs"
    return dict(row) | {"notes": "; ".join(filter(None, [row["notes"], where]))}


def label(plan: Mapping[str, Any]) -> str:
    """A plan's layout as the beginning of a file's name: ``dp4-tp1-pp2-...-mbs1-zero1-none-``."""
    degrees = "".join(f"{name}{plan[name]}-" for name in ("dp", "tp", "pp", "cp", "ep", "vpp"))
    return f"{degrees}mbs{plan['micro_batch_size']}-zero{plan['zero_stage']}-{plan['recompute']}-"


def new_log(folder: Path, plan: Mapping[str, Any]) -> Path:
    """An empty file in ``folder`` for the log of one run of ``plan``; logs of earlier runs stay as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, path = tempfile.mkstemp(prefix=label(plan), suffix=".log", dir=folder)
    os.close(handle)
    return Path(path)


def launcher_names() -> tuple[str, ...]:
    """Names of the shipped launchers and of those that installed packages add."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def load_launcher(name: str, **options: Any) -> Launcher:
    """The launcher of that name, made with ``options`` (those that are None are left out).

    Raises UsageError for an unknown name, and as `checked_options` does.
    """
    make = _factory(name)
    given = {key: value for key, value in options.items() if value is not None}
    return make(**checked_options(name, make, given))


def _factory(name: str) -> Callable[..., Launcher]:
    for entry in entry_points(group=GROUP, name=name):
        make: Callable[..., Launcher] = entry.load()
        return make
    known = launcher_names()
    raise UsageError(f"--launcher must be one of {', '.join(known)}; got {name!r}{nearest(name, known)}.")
