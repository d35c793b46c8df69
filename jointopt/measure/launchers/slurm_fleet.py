"""The Slurm jobs of one call that are on their way: submitted, watched, handed over as they end, or cancelled."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jointopt.core.errors import ExportError, LauncherError
from jointopt.core.facts import Failure, FailureKind, joined_notes
from jointopt.jobs.job import Job
from jointopt.measure.launchers import slurm_control as control
from jointopt.measure.launchers.base import Ended, Report
from jointopt.measure.launchers.rows import failed_row
from jointopt.measure.launchers.slurm_control import NoAnswerError, RefusedError
from jointopt.measure.launchers.slurm_watch import End, Submission, written_in

if TYPE_CHECKING:
    from jointopt.measure.launchers.slurm import SlurmLauncher

DONE = "done"  # a file in the folder of a submission whose row has been handed over


class Fleet:
    """The jobs of one call that are on their way, by the place of their plan."""

    def __init__(
        self, launcher: SlurmLauncher, job: Job, plans: Iterator[tuple[int, Mapping[str, Any]]],
        report: Report,
    ) -> None:  # fmt: skip
        self._launcher, self._job, self._plans, self._report = launcher, job, plans, report
        self._flights: dict[int, Submission] = {}
        # to be submitted when another one has ended
        self._refused: tuple[int, Mapping[str, Any]] | None = None
        self._error: LauncherError | None = None
        self._without_words: list[Ended] = []  # plans that the framework has no words for

    def ended(self) -> Iterator[Ended]:
        """Every run as it ends; the first error when nothing is on its way any more."""
        self._submit()
        yield from self._given_up()
        waits = _backoff(self._launcher.poll_s)
        while self._flights:
            time.sleep(next(waits))
            for place in list(self._flights):
                if found := self._looked_at(place):
                    yield from self._handed_over(place, found)
                    waits = _backoff(self._launcher.poll_s)
                    self._submit()
                    yield from self._given_up()
        if self._error is not None:
            raise self._error

    def rescued(self) -> Iterator[Ended]:
        """The runs that have ended before an interrupt; all others are cancelled."""
        over = [place for place, flight in self._flights.items() if written_in(flight.folder) is not None]
        self.cancel()
        for place in over:
            if found := self._looked_at(place):
                yield from self._handed_over(place, found)

    def cancel(self) -> None:
        """End all jobs but those that have a result, which stays to be found, as does a job that goes on."""
        going = {place: f for place, f in self._flights.items() if written_in(f.folder) is None}
        numbers = list(filter(None, map(self._number, going.values())))
        trouble = control.cancel(numbers)
        for place, flight in going.items():
            if trouble:
                by_hand = f"scancel {' '.join(map(str, numbers))}"
                self._report(place, f"Slurm does not cancel it: {trouble}; {by_hand} does")
            else:
                _close(flight.folder)

    def _number(self, flight: Submission) -> int | None:
        if not flight.sent:  # interrupted while Slurm took it, or not
            return control.named(self._launcher.submission_name(flight.folder))
        return flight.number

    def _submit(self) -> None:
        """Everything that is left to be submitted and that Slurm takes."""
        while self._error is None:
            following = self._refused or next(self._plans, None)
            self._refused = None
            if following is None:
                return
            place, plan = following
            try:
                self._send(place, plan)
            except RefusedError as error:
                self._drop(place)
                if not self._flights:
                    self._error = error
                self._refused = following
                return
            except NoAnswerError:
                raise
            except ExportError as error:
                self._drop(place)
                row = dict(plan) | failed_row(Failure(FailureKind.EXPORT, str(error)))
                self._without_words.append(Ended(place, row, 0.0))
            except LauncherError as error:
                self._fail(place, error)

    def _given_up(self) -> Iterator[Ended]:
        """Rows of plans that were never submitted."""
        while self._without_words:
            yield self._without_words.pop(0)

    def _send(self, place: int, plan: Mapping[str, Any]) -> None:
        folder = self._launcher.open_folder(self._job, plan)
        report = partial(self._report, place)
        flight = self._flights[place] = Submission(plan, folder, report)
        flight.number, words = self._launcher.submitted(self._job, plan, folder, report)
        report(words)
        flight.sent = True

    def _looked_at(self, place: int) -> tuple[dict[str, Any], End] | None:
        """Row and end of a job that is over."""
        flight = self._flights[place]
        try:
            end = flight.look() if flight.sent else None
            if end is None:
                return self._behind(flight)
            return self._launcher.row(self._job, flight.plan, flight.folder, end), end
        except NoAnswerError:
            raise
        except LauncherError as error:
            self._fail(place, error)
            return None

    def _behind(self, flight: Submission) -> tuple[dict[str, Any], End] | None:
        """Row and end of a job whose log says that it is clearly behind, which is cancelled; None of others."""
        row = self._launcher.behind(self._job, flight.plan, flight.folder)
        if row is None or flight.number is None or control.cancel([flight.number]):
            return None
        end = End(control.state(flight.number, flight.report), None)
        return row | {"notes": joined_notes(row["notes"], end.remark)}, end

    def _handed_over(self, place: int, found: tuple[dict[str, Any], End]) -> Iterator[Ended]:
        """The row counts as handed over when the next one is drawn: until then the same plan finds it again."""
        flight, (row, end) = self._flights.pop(place), found
        yield Ended(place, row, end.seconds)
        _close(flight.folder)

    def _fail(self, place: int, error: LauncherError) -> None:
        """Nothing more is submitted; what is on its way goes on."""
        self._drop(place)
        if self._flights:
            self._report(place, str(error))
        self._error = self._error or error

    def _drop(self, place: int) -> None:
        if flight := self._flights.pop(place, None):
            _close(flight.folder)


def _backoff(most_s: float) -> Iterator[float]:
    """Waits between two looks: short at first, half as long again each time."""
    wait_s = min(0.5, most_s)
    while True:
        yield wait_s
        wait_s = min(wait_s * 1.5, most_s)


def _close(folder: Path) -> None:
    """The row has been handed over: the next run of the plan is a new one."""
    with suppress(OSError):
        (folder / DONE).touch()
