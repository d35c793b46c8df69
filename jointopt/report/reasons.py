"""Why intervals are wider, in one form for every table: what holds for all of its plans once, then what is of some."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from jointopt.core.errors import TableError
from jointopt.core.facts import Source
from jointopt.jobs.job import Job
from jointopt.surrogate.correction import load_surrogate, surrogate_names
from jointopt.surrogate.intervals import DOUBTS, NOT_AS_STATED, UNLIKE

Reasons = Sequence[Collection[str]]  # of each plan, in words; of one that recorded runs support none
NOT_KNOWN = "outside of what was checked (`jointopt explain` says why)"
_STANDS_IN = "another precision or attention kernel stands in for the plan's"


def beyond(surrogate: str, job: Job | None = None) -> str:
    """Reason for a plan that is like no recorded run in several ways at once; blank: measured runs correct it too.

    Of the ``job``'s GPU, where it is known, it says whether a surrogate in a folder learned from runs there.
    """
    known = {"none": "the physics was checked on", "": "predictions were learned from"}
    gpus = [] if surrogate in known else _gpus_of(surrogate)
    if not gpus:
        return f"beyond the runs that {known.get(surrogate, f'{surrogate} was trained on')}"
    runs, measure = f"beyond the runs on {', '.join(gpus)} that {surrogate} learned from", "with `jointopt validate`"
    if job is None or job.cluster.gpu.id in gpus:
        return f"{runs} (measure some plans {measure} and retrain)"
    here = f"{runs}, and this job has {job.cluster.gpu.id}"
    return f"{here} (measure a few plans there {measure} and retrain, or leave --surrogate out)"


def _gpus_of(surrogate: str) -> list[str]:
    """The GPUs whose runs a surrogate in a folder remembers; none of one that is shipped or can be read no more."""
    with suppress(TableError):
        if surrogate not in surrogate_names() and Path(surrogate).is_dir() and (found := load_surrogate(surrogate)):
            return sorted({Source.parse(key).gpu for key in np.unique(found.support.source).tolist()})
    return []


def reasons_of(
    plans: Sequence[Mapping[str, Any]], surrogate: str = "", job: Job | None = None
) -> list[tuple[str, ...]]:
    """Why the interval of each plan (records) is wider, by its ``in_domain`` and ``doubts``; none where it is not."""
    words = {**DOUBTS, UNLIKE: beyond(surrogate, job), NOT_AS_STATED: _STANDS_IN}
    return [
        tuple(words[name] for name in str(plan.get("doubts") or "").split() if name in words) or (NOT_KNOWN,)
        if plan.get("in_domain") is False
        else ()
        for plan in plans
    ]


def in_common(reasons: Reasons) -> list[str]:
    """The reasons that all plans have."""
    return [why for why in (reasons[0] if reasons else ()) if all(why in own for own in reasons)]


def own_reasons(reasons: Reasons) -> list[tuple[str, ...]]:
    """Of each plan the reasons that not all have: those that its ``?`` stands for."""
    common = in_common(reasons)
    return [tuple(why for why in own if why not in common) for own in reasons]


def wider_lines(reasons: Reasons, names: Sequence[str] = (), interval: str = "interval (±)") -> list[str]:
    """Sentences of a legend on why intervals are wider, those of all plans first; none where nothing widens any.

    ``names``: of the plans, where a table has no room for ``?``; those of the same reasons are named together.
    """
    common, own = in_common(reasons), own_reasons(reasons)
    every = " for every plan here" if len(reasons) > 1 else ""
    lines = [f"The {interval} is wider{every}: {'; '.join(common)}."] if common else []
    still = " still" if common else ""
    if not names:
        return [*lines, f"? the {interval} is wider{still}: {'; '.join(_counted(own))}."] if any(own) else lines
    for whys in dict.fromkeys(filter(None, own)):
        of = [name for name, one in zip(names, own, strict=True) if one == whys]
        lines.append(f"The {interval} of {_listed(of)} is wider{still}: {'; '.join(whys)}.")
    return lines


def _counted(own: Reasons) -> list[str]:
    """Each reason once, with its number of plans where some marked plan is without it."""
    marked = [one for one in own if one]
    counts = {why: sum(why in one for one in marked) for one in marked for why in one}
    return [
        why if count == len(marked) else f"{why} ({count} plan{'s' * (count != 1)})" for why, count in counts.items()
    ]


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
