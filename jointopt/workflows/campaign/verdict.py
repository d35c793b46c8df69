"""Sentences on runs: known before, all ended for one cause, no plan to use among them, objectives not measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jointopt.core.facts import failure_in
from jointopt.jobs.job import Job
from jointopt.physics.cost_model import with_unit
from jointopt.report.plans import differing, plan_words
from jointopt.report.results import MeasuredRun
from jointopt.report.tables import figure
from jointopt.runs.rows import is_bounded
from jointopt.workflows.campaign.earlier import Earlier
from jointopt.workflows.campaign.outlook import ENOUGH_TO_JUDGE, held_to

_CURABLE = ("failed", "timeout")  # a full disk may be mended; too little memory stays too little
UNLIKELY_LEFT = "No plan that is left is likely to fit, each is likelier to run out of memory: a run decides."
OUT_ALREADY = "the same layout, or one that needs no more memory, ran out of it"
_ALIKE = 3  # failures in a row for one cause: a fourth would be no news


def why_none(job: Job, runs: Sequence[MeasuredRun]) -> str:
    """One sentence: why none of ``runs`` is a plan to use; empty where one is."""
    good = [run for run in runs if run.status == "ok"]
    if any(not run.broken for run in good):
        return ""
    if good:
        return _beyond(job, good)
    if not runs:
        return "No plan was run: none is likely to fit in memory and to keep the job's constraints."
    share = "The only run did not succeed" if len(runs) == 1 else f"None of the {len(runs)} runs succeeded"
    return f"{share}: {_commonest(runs)}."


def same_cause(rows: Sequence[Mapping[str, Any]], launcher: object, retry: str) -> str:
    """Sentences, where the last three of ``rows`` (runs as they ended) failed for one cause and none succeeded.

    Runs out of memory and those ended early do not count: they are evidence on plans. Blank elsewhere, and where no
    cause is known. ``retry`` is the option with which plans that failed are run again.
    """
    judged = [row for row in rows if row["status"] != "oom" and not is_bounded(row)]
    if len(judged) < _ALIKE or any(row["status"] == "ok" for row in judged):
        return ""
    last = [failure_in(row) for row in judged[-_ALIKE:]]
    if not last[-1].detail or len({failure.cause for failure in last}) > 1:
        return ""
    return (
        f"{_ALIKE} runs in a row failed for the same cause and none has succeeded, so no other is begun: "
        f"{last[-1].status} ({last[-1].detail.rstrip('.')}). {_where_logs_are(launcher)}Mend the cause, then run the "
        f"same command with {retry}."
    )


def _where_logs_are(launcher: object) -> str:
    """A sentence of the launchers that start programs; blank of others."""
    if hasattr(launcher, "logs"):
        kept = launcher.logs
        return f"The logs are in {kept}. " if kept else "No log was kept; --logs FOLDER keeps them. "
    folder = getattr(launcher, "folder", None)
    return f"The logs are in {folder}/*/*/log.txt. " if folder else ""


def _commonest(runs: Sequence[MeasuredRun]) -> str:
    """The cause of most runs, in the words of the first of them."""
    failures = [failure_in(run.row) for run in runs]
    causes = [failure.cause for failure in failures]
    cause, count = Counter(causes).most_common(1)[0]
    first = failures[causes.index(cause)]
    share = f"{count} of them " if 1 < count < len(runs) else "the commonest is " if count < len(runs) else ""
    return f"{share}{first.status} ({(first.detail or 'no reason known').rstrip('.')})"


def _beyond(job: Job, good: Sequence[MeasuredRun]) -> str:
    """The run whose worst excess is least, and every constraint that it breaks by how much."""
    held = [held_to(job, run.row) for run in good]
    worst = [max(value / bound for value, bound in each.values() if value > bound) for each in held]
    best = worst.index(min(worst))
    broken = [
        f"{name} by {100.0 * (value / bound - 1.0):.3g} % ({with_unit(name, figure(value))} over a limit of "
        f"{with_unit(name, figure(bound))})"
        for name, (value, bound) in held[best].items()
        if value > bound
    ]
    several = f"None of the {len(good)} runs that succeeded keeps"
    runs = "The only run that succeeded does not keep" if len(good) == 1 else several
    closest = plan_words(good[best].plan, differing(run.plan for run in good))
    return f"{runs} the job's constraints; the closest, {closest}, breaks {' and '.join(broken)}."


def unmeasured(
    job: Job, lost: Sequence[str], kept: Sequence[str], predicted: Sequence[str], good: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Sentences on objectives that are left out (``lost``), and on constraints that cannot be checked.

    ``kept`` are the other objectives, ``predicted`` those lost ones that are known; ``good`` rows of sound runs.
    """
    sentences = []
    for name in lost:
        unknown = f"no power of {job.cluster.gpu.id} is known to predict it"
        why = "no run measures it" if name in predicted else unknown
        compared = f"plans are compared by {' and '.join(kept)} alone"
        sentences.append(f"The objective {name} is left out, since {why}; {compared}.")
    held = [held_to(job, row) for row in good]
    for name in held[0] if held else ():
        if all(np.isnan(one[name][0]) for one in held):
            sentences.append(f"The constraint {name} cannot be checked, since no run measures it.")
    return sentences


def is_curable(row: Mapping[str, Any]) -> bool:
    """Whether a run failed in a way that its plan may not be to blame for."""
    return row["status"] in _CURABLE and not is_bounded(row)


def unlikely(plans: int, of: int) -> str:
    """A sentence on so many ``of`` the plans to be run that are likelier not to fit in memory than to fit."""
    verb = "are" if 1 < plans < of else "is"
    some = f"Each of the {of}" if plans == of else f"{plans} of the {of}"
    return f"{some} plans to be run {verb} likelier to run out of memory than to fit: a run decides."


def known_before(runs: int, failed: int, forgotten: int, earlier: Earlier, out: int = 0) -> list[str]:
    """Sentences on what is known before a tune begins: ``runs`` of the job, ``failed`` among them, and other jobs.

    ``forgotten``: plans that failed and may run again; ``out``: those that were not run, and surely run out of memory.
    """
    sentences = []
    if runs:
        was, are = ("was", "is") if runs == 1 else ("were", "are")
        again = f" {failed} of them failed; --retry-failed lets such plans run again." if failed else ""
        sentences.append(f"{_plans(runs)} of this job {was} measured before (run -) and {are} not run again.{again}")
    if forgotten:
        sentences.append(f"{_plans(forgotten)} of this job that failed before may be run again.")
    if out:
        sentences.append(f"{_plans(out)} more {'is' if out == 1 else 'are'} not run: {OUT_ALREADY}.")
    if earlier.others:
        later = f"as soon as {ENOUGH_TO_JUDGE} runs of this job are predicted better that way"
        since = f"from the first run on ({earlier.first})" if earlier.first else later
        cluster = f"{earlier.others:,} earlier runs on this kind of cluster are known"
        sentences.append(f"{cluster}; predictions rest on them {since}.")
    return sentences


def _plans(number: int) -> str:
    return "1 plan" if number == 1 else f"{number} plans"
