"""What is to be said where real runs have found no plan to use, or all end for the same cause."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jointopt.report.results import MeasuredRun
from jointopt.report.runs_text import differing, plan_words
from jointopt.report.table import figure
from jointopt.spec.job import Job
from jointopt.workflows.campaign.outlook import held_to

_ALIKE = 3  # failures in a row for one cause: a fourth would tell nothing new
_OF_ONE_RUN = re.compile(r"/\S+|\d+")  # paths and numbers: what two runs that failed alike may differ in


def why_none(job: Job, runs: Sequence[MeasuredRun]) -> str:
    """One sentence: why none of ``runs`` is a plan to use; empty where one is."""
    good = [run for run in runs if run.status == "ok"]
    if any(not run.broken for run in good):
        return ""
    if good:
        return _beyond(job, good)
    if not runs:
        return "No plan was run: none is likely to fit in memory and to keep the job's constraints."
    return f"{_share(len(runs))}: {_commonest(runs)}."


def same_cause(rows: Sequence[Mapping[str, Any]], launcher: object, retry: str) -> str:
    """Sentences, where the last three of ``rows`` (runs as they ended) failed for one cause and none succeeded.

    Runs out of memory do not count: they tell which plans fit. Blank elsewhere, and where no cause is known.
    ``retry`` is the option with which plans that failed are run again.
    """
    failures = [row for row in rows if row["status"] != "oom"]
    if len(failures) < _ALIKE or any(row["status"] == "ok" for row in failures):
        return ""
    status, cause = failures[-1]["status"], _first_cause(failures[-1])
    if not cause or len({(row["status"], _general(_first_cause(row))) for row in failures[-_ALIKE:]}) > 1:
        return ""
    return (
        f"{_ALIKE} runs in a row failed for the same cause and none has succeeded, so no other is begun: {status} "
        f"({cause.rstrip('.')}). {_where_logs_are(launcher)}Mend the cause, then run the same command with {retry}."
    )


class GoingOn:
    """Whether runs of one call go on: the first reason to begin no other, and how many runs could not be stored.

    ``retry`` as in `same_cause`; ``note`` is told of every reason.
    """

    def __init__(self, launcher: object, retry: str, note: Callable[[str], None]) -> None:
        self.reason = ""
        self.unstored = 0
        self._launcher, self._retry, self._note = launcher, retry, note
        self._ended: list[Mapping[str, Any]] = []  # rows, in the order in which they ended

    def after(self, row: Mapping[str, Any], trouble: str, run: str) -> None:
        """A run, called ``run`` in words, has ended; ``trouble`` says why its ``row`` is not stored, blank if it is."""
        self._ended.append(row)
        if trouble:
            self.unstored += 1
            self.give_up(f"{run} is not stored: {trouble}")
        elif not self.reason and (cause := same_cause(self._ended, self._launcher, self._retry)):
            self.give_up(cause)

    def give_up(self, reason: str) -> None:
        self.reason = self.reason or reason
        self._note(reason)


def _first_cause(row: Mapping[str, Any]) -> str:
    notes = row.get("notes")
    return notes.split("; ")[0] if isinstance(notes, str) else ""


def _general(cause: str) -> str:
    return _OF_ONE_RUN.sub("#", cause)


def _where_logs_are(launcher: object) -> str:
    """Of the launchers that start programs; nothing of others."""
    if hasattr(launcher, "logs"):
        kept = launcher.logs
        return f"The logs are in {kept}. " if kept else "No log was kept; --logs FOLDER keeps them. "
    folder = getattr(launcher, "folder", None)
    return f"The logs are in {folder}/*/*/log.txt. " if folder else ""


def _share(count: int) -> str:
    return "The only run did not succeed" if count == 1 else f"None of the {count} runs succeeded"


def _commonest(runs: Sequence[MeasuredRun]) -> str:
    """The reason that most runs tell, as the first of them tells it."""
    told = [(run.status, _first_cause(run.row) or "no reason known") for run in runs]
    alike = [(status, _general(reason)) for status, reason in told]
    key, count = Counter(alike).most_common(1)[0]
    status, reason = told[alike.index(key)]
    share = f"{count} of them " if 1 < count < len(runs) else "the commonest is " if count < len(runs) else ""
    return f"{share}{status} ({reason.rstrip('.')})"


def _beyond(job: Job, good: Sequence[MeasuredRun]) -> str:
    """The run whose worst excess is least, and every constraint that it breaks by how much."""
    held = [held_to(job, run.row) for run in good]
    worst = [max(value / bound for value, bound in each.values() if value > bound) for each in held]
    best = worst.index(min(worst))
    broken = [
        f"{name} by {100.0 * (value / bound - 1.0):.3g} % ({figure(value)} over a limit of {figure(bound)})"
        for name, (value, bound) in held[best].items()
        if value > bound
    ]
    runs = "The only run that succeeded does not keep" if len(good) == 1 else (
        f"None of the {len(good)} runs that succeeded keeps"
    )  # fmt: skip
    return f"{runs} the job's constraints; the closest, {_words(good[best], good)}, breaks {' and '.join(broken)}."


def _words(run: MeasuredRun, beside: Sequence[MeasuredRun]) -> str:
    return plan_words(run.plan, differing(other.plan for other in beside))
