"""The protocol of launchers, which run a plan and measure it, and launchers by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

from jointopt.core.errors import UsageError, nearest
from jointopt.core.schema import Columns
from jointopt.measure.launchers.options import checked_options
from jointopt.spec.job import Job

GROUP = (
    "jointopt.launchers"  # entry points: the shipped ones stand in pyproject.toml, other packages add theirs
)


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

        A run that fails is a row too: ``status`` oom, failed or timeout; its `Failure` may stand beside the columns as
        ``failure``. Raises LauncherError only where no run of this launcher could be started. Whatever happens, an
        interrupt too, nothing that was started is left.
        """


@dataclass(frozen=True)
class Ended:
    """A run that has ended: its place among the plans of the call, its row, and how long it held its GPUs in s."""

    place: int
    row: Mapping[str, Any]
    seconds: float


Report = Callable[[int, str], None]  # called with the place of a plan and the state of its run in words


@runtime_checkable
class ManyAtOnce(Launcher, Protocol):
    """A launcher that does not own the machine of its runs, so that several are on their way at once."""

    def run_all(
        self, job: Job, plans: Iterable[Mapping[str, Any]], report: Report
    ) -> Generator[Ended, None, None]:
        """Start runs of all ``plans``, and give each as it ends.

        Nothing more is started after a LauncherError, which is raised when all that were started have ended.
        KeyboardInterrupt, and closing the generator, end what is on its way; runs that had ended by then are still
        given, where the generator is not closed.
        """


def run_all(
    launcher: Launcher, job: Job, plans: Iterable[Mapping[str, Any]], report: Report
) -> Generator[Ended, None, None]:
    """Runs of ``plans``, each given as it ends: at once where the launcher is one of `ManyAtOnce`, else in order.

    A plan is drawn from ``plans`` when its run begins. Raises what the launcher raises.
    """
    if isinstance(launcher, ManyAtOnce):
        yield from launcher.run_all(job, plans, report)
        return
    for place, plan in enumerate(plans):
        started = time.monotonic()
        row = launcher.run(job, plan)
        yield Ended(place, row, time.monotonic() - started)


def script_of(launcher: Launcher, job: Job, plan: Mapping[str, Any]) -> str:
    """The shell text that ``launcher`` would start for ``plan``. Raises UsageError where it starts nothing."""
    script: Callable[..., str] | None = getattr(launcher, "script", None)
    if script is None or not callable(script):
        raise UsageError(
            f"The launcher {launcher.name!r} has no script to show; expected one that starts runs, such as torchrun."
        )
    return script(job, plan)


def launcher_names() -> tuple[str, ...]:
    """Names of the shipped launchers and of those that installed packages add."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def load_launcher(name: str, **options: Any) -> Launcher:
    """The launcher of that name, made with ``options`` (those that are None are left out).

    Raises UsageError for an unknown name, and as `checked_options` does.
    """
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        known = launcher_names()
        raise UsageError(f"--launcher must be one of {', '.join(known)}; got {name!r}{nearest(name, known)}.")
    make: Callable[..., Launcher] = found[0].load()
    given = {key: value for key, value in options.items() if value is not None}
    return make(**checked_options(name, make, given))
