"""Why intervals are wider, in one form for every table: what holds for all of its plans once, then what is of some."""

from __future__ import annotations

from collections import Counter
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
    gpus: list[str] = []  # whose runs a surrogate in a folder remembers; none of one that can be read no more
    with suppress(TableError):
        if surrogate not in (*known, *surrogate_names()) and Path(surrogate).is_dir():
            found = load_surrogate(surrogate)
            gpus = sorted({Source.parse(key).gpu for key in np.unique(found.support.source).tolist()}) if found else []
    if not gpus:
        return f"beyond the runs that {known.get(surrogate, f'{surrogate} was trained on')}"
    runs, measure = f"beyond the runs on {', '.join(gpus)} that {surrogate} learned from", "with `jointopt validate`"
    if job is None or job.cluster.gpu.id in gpus:
        return f"{runs} (measure some plans {measure} and retrain)"
    here = f"{runs}, and this job has {job.cluster.gpu.id}"
    return f"{here} (measure a few plans there {measure} and retrain, or leave --surrogate out)"


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


def own_reasons(reasons: Reasons) -> list[tuple[str, ...]]:
    """Of each plan the reasons that not all have: those that its ``?`` stands for."""
    return [tuple(why for why in own if not all(why in other for other in reasons)) for own in reasons]


def wider_lines(reasons: Reasons, names: Sequence[str] = (), interval: str = "interval (±)") -> list[str]:
    """Sentences of a legend on why intervals are wider, those of all plans first; none where nothing widens any.

    ``names``: of the plans, where a table has no room for ``?``; those of the same reasons are named together.
    Reasons that only some of the marked plans have are counted.
    """
    own = own_reasons(reasons)
    common = [why for why in reasons[0] if why not in own[0]] if reasons else []
    every = " for every plan here" if len(reasons) > 1 else ""
    lines = [f"The {interval} is wider{every}: {'; '.join(common)}."] if common else []
    still = " still" if common else ""
    marked = [one for one in own if one]
    if names:
        for whys in dict.fromkeys(marked):
            *most, last = (name for name, one in zip(names, own, strict=True) if one == whys)
            together = f"{', '.join(most)} and {last}" if most else last
            lines.append(f"The {interval} of {together} is wider{still}: {'; '.join(whys)}.")
    elif marked:
        counts = Counter(why for one in marked for why in one)
        words = [why if count == len(marked) else f"{why} ({count} plan{'s' * (count != 1)})"
                 for why, count in counts.items()]  # fmt: skip
        lines.append(f"? the {interval} is wider{still}: {'; '.join(words)}.")
    return lines
