"""Runs of a job's kind of cluster, and of their kin, as those of one source, whatever tables and surrogates call it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.facts import Source
from jointopt.core.schema import Ints
from jointopt.jobs.catalog.frameworks import conflict, job_of_class, of_efficiency, same_efficiency
from jointopt.jobs.job import ATTENTIONS, Job
from jointopt.surrogate.evidence import Evidence, kind, renamed, sources_of_kind
from jointopt.surrogate.kernel import Runs
from jointopt.surrogate.surrogate import Surrogate

if TYPE_CHECKING:
    from jointopt.surrogate.measurements import Measurements


_log = logging.getLogger(__name__)
HERE = "this job"  # the origin of runs that are known of a job, which states none


def source_here(job: Job) -> str:
    """Key of the source that a job's runs are of: its kind of cluster, by the origin `HERE`."""
    gpu, gpus_per_node, framework = kind(job)
    return str(Source(HERE, framework, gpu, gpus_per_node))


def as_one(keys: Iterable[str], own: Iterable[str], source: str) -> dict[str, str]:
    """The key of ``keys`` of sources when those that are ``own`` are one, ``source``: their kin are then its kin."""
    there, own = Source.parse(source), set(own)
    parsed = [Source.parse(key) for key in own]
    origins, software = {one.origin for one in parsed}, {one.framework for one in parsed}
    names = {}
    for key in keys:
        one = Source.parse(key)
        framework = there.framework if one.framework in software else one.framework
        moved = str(replace(one, origin=there.origin, framework=framework))
        names[key] = source if key in own else moved if one.origin in origins else key
    return names


def answering(surrogate: Surrogate, source: str, job: Job, measured: bool) -> tuple[Surrogate, str]:
    """A surrogate of the user's own as it answers for ``source``, on the job's kind of cluster, and the source's key.

    Where many runs of that kind were learned from, they are the source's. Of few, all of the kind stand for a source of
    another name, with their kin (on other GPUs, or of other software) as its kin; where there are none of the kind, but
    all runs are of one origin, they are its kin. ``measured`` runs at hand displace
    them: of few, features are kept and no rows, so that they cannot be priced anew, and runs that both have would count
    twice. (Shipped surrogates learned from clusters of others: to share their runs across clusters made held-out errors
    worse, vtrain 10 % to 27 % with bigscience's. So a surrogate of several clusters has nothing of one that a table
    calls by a name of its own: bigscience's 90 % intervals held 20 % of its runs by vtrain's.)
    """
    if _of_another_cluster(surrogate, source):
        return surrogate, source
    if many := of_kind([own.source for own in surrogate.own], source, job):
        return surrogate, many[0]
    if measured:
        return surrogate, source_here(job)
    keys = np.unique(surrogate.support.source).tolist()
    own = of_kind(keys, source, job)
    if not own:
        return _as_kin(surrogate, keys, source), source
    if source in own:
        return surrogate, source
    largest = max(own, key=lambda key: np.count_nonzero(surrogate.support.source == key))
    # runs were priced by the class of their source, and residuals of two classes are no evidence of each other
    own = [key for key in own if surrogate.class_of(key) == surrogate.class_of(largest)]
    return _renamed(surrogate, as_one(keys, own, source), {source: surrogate.class_of(largest)}), source


def _of_another_cluster(surrogate: Surrogate, source: str) -> bool:
    """Whether a source has a name, and a surrogate learned from several others and not from that."""
    origin = Source.parse(source).origin
    keys = (*np.unique(surrogate.support.source).tolist(), *(own.source for own in surrogate.own))
    learned = {Source.parse(key).origin for key in keys}
    return origin not in ("", HERE, *learned) and len(learned) > 1


def _as_kin(surrogate: Surrogate, keys: Iterable[str], source: str) -> Surrogate:
    """The surrogate with its runs as kin of ``source``, where all are of one origin; else as it is."""
    parsed, origin = {key: Source.parse(key) for key in keys}, Source.parse(source).origin
    origins = {one.origin for one in parsed.values()}
    if len(origins) != 1 or origin in origins:
        return surrogate
    return _renamed(surrogate, {key: str(replace(one, origin=origin)) for key, one in parsed.items()}, {})


def _renamed(surrogate: Surrogate, names: Mapping[str, str], classes: Mapping[str, str | None]) -> Surrogate:
    """The surrogate with sources of other ``names``, and recipe ``classes`` by these."""
    support = replace(surrogate.support, source=renamed(surrogate.support.source, names))
    new = tuple(replace(one, sources=tuple(names.get(key, key) for key in one.sources)) for one in surrogate.new_groups)
    known = dict(surrogate.card.get("recipe_classes", {})) | {key: of for key, of in classes.items() if of is not None}
    card = dict(surrogate.card) | {"recipe_classes": known}
    return replace(surrogate, support=support, new_groups=new, card=card)


def of_kind(keys: Iterable[str], source: str, job: Job) -> list[str]:
    """Of ``keys`` that of ``source`` alone, else those of its software, GPU and node size, else of the job's kind."""
    keys = list(keys)
    alike = [key for key in keys if key.split("|")[-3:] == source.split("|")[-3:]]
    return [source] if source in keys else alike or sources_of_kind(keys, job)


def remembered(surrogate: Surrogate, source: str) -> tuple[Ints, Ints]:
    """Positions of the runs that a surrogate remembers of a source, and of its kin."""
    every = surrogate.remembered(source)
    own = surrogate.support.source[every] == source
    return every[own], every[~own]


def at_hand(evidence: Evidence, before: str, after: str) -> Evidence:
    """Evidence on the source ``before`` as of ``after``, that of its kin as of the kin of that."""
    if evidence.runs is None or before == after:
        return evidence
    names = as_one(np.unique(evidence.runs.source).tolist(), [before], after)
    return replace(evidence, runs=replace(evidence.runs, source=renamed(evidence.runs.source, names)))


def in_part(place: str) -> str:
    """Where runs are from, in `Evidence.counts`, that count in part, as of kin."""
    return f"{place} (on other GPUs or nodes, or of other software: counted in part)"


def warn_of_left_aside(surrogate: Surrogate, name: str, source: str) -> None:
    """Log that few runs of a surrogate count for nothing beside measured ones (`answering`)."""
    if count := len(remembered(surrogate, source)[0]):
        _log.warning(
            "%s: the %s runs on this kind of cluster that it learned from are left aside for the measured "
            "ones; `jointopt retrain` on both together uses both.", name, f"{count:,}",
        )  # fmt: skip


# One recipe class and one attention kernel for a job that names none and the runs that its predictions rest on.


def as_measured(job: Job, measurements: Sequence[Measurements]) -> Job:
    """The job by the recipe class and the attention kernel that runs measured on its kind of cluster state."""
    job = of_one_class(job, set().union(*(runs.recipe_classes(job) for runs in measurements)))
    return of_one_attention(job, set().union(*(runs.attentions(job) for runs in measurements)))


def as_learned(job: Job, recipe_class: str | None, runs: Runs) -> Job:
    """The job by the recipe class and the attention kernel that a surrogate's own runs of it were priced by."""
    return of_one_attention(of_learned_class(job, recipe_class), kernels_of(runs))


def of_one_class(job: Job, stated: Set[str]) -> Job:
    """The job by the class that measured runs of its source state, where it states none; a conflict is logged."""
    own = job.training.recipe_class
    classes = sorted({*stated, own} - {""})
    if not classes:
        return job
    if not same_efficiency(classes):
        _log.warning("%s", conflict("the job's cluster and the job itself", classes))
        return job
    if not own:
        _log.info("The job is priced as a %s recipe, as the measured runs state.", classes[0])
    return job if own else job_of_class(job, classes[0])


def of_learned_class(job: Job, name: str | None) -> Job:
    """The job by the class that a surrogate's own runs of it were priced by, None for none; a change is logged."""
    found = job if name is None else of_efficiency(job, name)
    if found is not job:
        stated, learned = job.training.recipe_class, found.training.recipe_class
        _log.warning(
            "%s: the surrogate learned this cluster's efficiency from its own runs, whose recipe class is %s.",
            f"Recipe class {stated} is passed over" if stated else f"The job is priced as a {learned} recipe",
            learned or "not stated",
        )
    return found


def of_one_attention(job: Job, stated: Set[str]) -> Job:
    """The job by the kernel that measured runs of its source state, where it names none; a change is logged."""
    kernel = next(iter(stated)) if len(stated) == 1 else job.training.attention
    if not job.training.attention_assumed or kernel == job.training.attention:
        return job
    _log.info("The job is priced with %s attention, as the runs measured on such a cluster are.", kernel)
    return replace(job, training=replace(job.training, attention=kernel))


def kernels_of(runs: Runs) -> set[str]:
    """The attention kernels that runs which a surrogate remembers were priced by."""
    codes = np.unique(np.rint(runs.features.get("attention", np.empty(0)))).astype(np.int64)
    return {ATTENTIONS[code] for code in codes.tolist()}
