"""Runs of a job's kind of cluster, and of its kin, as those of one source, whatever tables and surrogates call it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.facts import Source
from jointopt.core.schema import ATTENTIONS, Ints
from jointopt.jobs.catalog.frameworks import conflict_sentence, job_of_class, job_of_efficiency, same_efficiency
from jointopt.jobs.job import Job
from jointopt.surrogate.evidence import Evidence, renamed, source_of_job
from jointopt.surrogate.kernel import Runs
from jointopt.surrogate.surrogate import Surrogate

if TYPE_CHECKING:
    from jointopt.surrogate.measurements import Measurements


_log = logging.getLogger(__name__)
HERE = "this job"  # the origin of runs that are known of a job, which states none


def as_one(own: Collection[Source], source: Source) -> Callable[[Source], Source]:
    """The name of any source when those that are ``own`` are one, ``source``: their kin are then its kin."""
    origins, software = {one.origin for one in own}, {one.framework for one in own}

    def name(one: Source) -> Source:
        if one in own:
            return source
        framework = source.framework if one.framework in software else one.framework
        return replace(one, origin=source.origin, framework=framework) if one.origin in origins else one

    return name


def answering(surrogate: Surrogate, source: Source, job: Job, measured: bool) -> tuple[Surrogate, Source]:
    """A surrogate of the user's own as it answers for ``source``, on the job's kind of cluster, and that source.

    Where many runs of that kind were learned from, they are the source's. Of few, all of the kind stand for a source of
    another name, with their kin (on other GPUs, or of other software) as its kin; where there are none of the kind, but
    all runs are of one origin, they are its kin. ``measured`` runs at hand displace
    them: of few, features are kept and no rows, so that they cannot be priced anew, and runs that both have would count
    twice. (Shipped surrogates learned from clusters of others: to share their runs across clusters made held-out errors
    worse, vtrain 10 % to 27 % with bigscience's. So a surrogate of several clusters has nothing of one that a table
    calls by a name of its own: bigscience's 90 % intervals held 20 % of its runs by vtrain's.)
    """
    keys, many = np.unique(surrogate.support.source).tolist(), [own.source for own in surrogate.own]
    learned = {Source.parse(key).origin for key in (*keys, *many)}
    if source.origin not in ("", HERE, *learned) and len(learned) > 1:
        return surrogate, source
    if of_many := of_kind(many, source, job):
        return surrogate, of_many[0]
    if measured:
        return surrogate, source_of_job(job, HERE)
    own = of_kind(keys, source, job)
    if not own:
        origins = {Source.parse(key).origin for key in keys}
        if len(origins) != 1 or source.origin in origins:
            return surrogate, source
        return _renamed(surrogate, lambda one: replace(one, origin=source.origin)), source
    if source in own:
        return surrogate, source
    largest = max(own, key=lambda one: np.count_nonzero(surrogate.support.source == str(one)))
    # runs were priced by the class of their source, and residuals of two classes are no evidence of each other
    recipe_class = surrogate.class_of(str(largest))
    own = [one for one in own if surrogate.class_of(str(one)) == recipe_class]
    found = _renamed(surrogate, as_one(own, source))
    if recipe_class is not None:
        classes = dict(surrogate.card.get("recipe_classes", {})) | {str(source): recipe_class}
        found = replace(found, card=dict(surrogate.card) | {"recipe_classes": classes})
    return found, source


def _renamed(surrogate: Surrogate, name: Callable[[Source], Source]) -> Surrogate:
    """The surrogate with its remembered runs as those of other sources."""
    support = replace(surrogate.support, source=renamed(surrogate.support.source, name))
    groups = [(one, renamed(np.array(one.sources, str), name).tolist()) for one in surrogate.new_groups]
    return replace(
        surrogate, support=support, new_groups=tuple(replace(one, sources=tuple(names)) for one, names in groups)
    )


def of_kind(keys: Iterable[str], source: Source, job: Job) -> list[Source]:
    """The sources of ``keys``: that one alone, else those of its software, GPU and node size, else of the job's."""
    every = [Source.parse(key) for key in keys]
    if source in every:
        return [source]
    if alike := [one for one in every if replace(one, origin=source.origin) == source]:
        return alike
    kind = source_of_job(job)
    return [one for one in every if replace(one, origin="", framework=one.framework if kind.framework else "") == kind]


def remembered(surrogate: Surrogate, source: Source) -> tuple[Ints, Ints]:
    """Positions of the runs that a surrogate remembers of a source, and of its kin."""
    every = surrogate.remembered(str(source))
    own = surrogate.support.source[every] == str(source)
    return every[own], every[~own]


def at_hand(evidence: Evidence, before: Source, after: Source) -> Evidence:
    """Evidence on the source ``before`` as of ``after``, that of its kin as of the kin of that."""
    if evidence.runs is None or before == after:
        return evidence
    names = renamed(evidence.runs.source, as_one([before], after))
    return replace(evidence, runs=replace(evidence.runs, source=names))


def in_part(place: str) -> str:
    """Where runs are from, in `Evidence.counts`, that count in part, as of kin."""
    return f"{place} (on other GPUs or nodes, or of other software: counted in part)"


# One recipe class and one attention kernel for a job that names none and the runs that its predictions rest on.


def as_measured(job: Job, measurements: Sequence[Measurements]) -> Job:
    """The job by the recipe class and the attention kernel that runs measured on its kind of cluster state.

    A conflict of classes is logged, and a class or kernel that the job does not state.
    """
    stated, own = [runs.stated(job) for runs in measurements], job.training.recipe_class
    classes = sorted({own}.union(*(names for names, _ in stated)) - {""})
    if classes and not same_efficiency(classes):
        _log.warning("%s", conflict_sentence("the job's cluster and the job itself", classes))
    elif classes and not own:
        _log.info("The job is priced as a %s recipe, as the measured runs state.", classes[0])
        job = job_of_class(job, classes[0])
    return _of_one_attention(job, set[str]().union(*(kernels for _, kernels in stated)))


def as_learned(job: Job, recipe_class: str | None, runs: Runs) -> Job:
    """The job by the recipe class and the attention kernel that a surrogate's own runs of it were priced by."""
    codes = np.unique(np.rint(runs.features.get("attention", np.empty(0)))).astype(np.int64)
    return _of_one_attention(of_learned_class(job, recipe_class), {ATTENTIONS[code] for code in codes.tolist()})


def of_learned_class(job: Job, name: str | None) -> Job:
    """The job by the class that a surrogate's own runs of it were priced by, None for none; a change is logged."""
    found = job if name is None else job_of_efficiency(job, name)
    if found is not job:
        stated, learned = job.training.recipe_class, found.training.recipe_class
        _log.warning(
            "%s: the surrogate learned this cluster's efficiency from its own runs, whose recipe class is %s.",
            f"Recipe class {stated} is passed over" if stated else f"The job is priced as a {learned} recipe",
            learned or "not stated",
        )
    return found


def _of_one_attention(job: Job, stated: Collection[str]) -> Job:
    """The job by the kernel that runs of its source state, where it names none; a change is logged."""
    kernel = next(iter(stated)) if len(stated) == 1 else job.training.attention
    if not job.training.attention_assumed or kernel == job.training.attention:
        return job
    _log.info("The job is priced with %s attention, as the runs measured on such a cluster are.", kernel)
    return replace(job, training=replace(job.training, attention=kernel))
