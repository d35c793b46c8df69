"""Which stored rows a job or a table needs: a store keeps a `Kind` of each row, and reads rows of the kinds wanted."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from jointopt.core.schema import DEGREES, Columns
from jointopt.jobs.catalog.frameworks import recognise_framework
from jointopt.jobs.catalog.gpus import gpu_id
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import Job

if TYPE_CHECKING:
    import pandas as pd


_WORDS = ("gpu", "framework", "model")
_LONGEST = 200  # characters of a word
_KEYED = (*DEGREES, "micro_batch_size")


class Kind(NamedTuple):
    """The GPU, nodes, software, model and sizes of a row, as it spells them; blank and 0: not stated."""

    gpu: str
    gpus_per_node: int
    framework: str
    model: str
    num_gpus: int = 0
    seq_length: int = 0
    global_batch_size: int = 0

    @property
    def canonical(self) -> Kind:
        """The kind with ids of the catalogue in place of spellings, equal for rows of one workload."""
        gpu, framework = _id(self.gpu) or self.gpu, _profile(self.framework)
        return self._replace(gpu=gpu, framework=framework, model=self.model.lower())


Related = Callable[[Kind], bool]


@dataclass(frozen=True)
class Wanted:
    """Which stored rows to read: those of ``related`` kinds, or where these are too many the nearest and newest."""

    related: Related
    all_up_to: int | None = None  # so many related rows are all read; None: any number
    most_rows: int | None = None  # that are read where there are more; None: as ``all_up_to``
    most_kinds: int = 100  # of which these are, by `Kind.canonical`, the nearest first
    distance: Callable[[Kind], int] = lambda _: 0  # of a kind from what is asked for; 0 is nearest
    plans: tuple[str, ...] = ()  # `plan_key` of plans whose rows come first among those of the nearest kind


def kind_of(content: Mapping[str, Any]) -> Kind:
    """The kind of a row with these cells."""
    words = {name: str(content.get(name) or "")[:_LONGEST] for name in _WORDS}
    numbers = {name: _whole(content.get(name)) for name in Kind._fields if name not in words}
    return Kind(**words, **numbers)  # type: ignore[arg-type]


def plan_key(content: Mapping[str, Any]) -> str:
    """The degrees and micro-batch of a row's plan in the order of `_KEYED`, ``4/2/1/1/8``; 0: not stated.

    A blank dp is what the GPUs leave it, a blank cp is 1.
    """
    numbers = {name: _whole(content.get(name)) for name in _KEYED} | {"cp": _whole(content.get("cp")) or 1}
    others = math.prod(numbers[name] for name in DEGREES if name != "dp")
    numbers["dp"] = numbers["dp"] or _whole(content.get("num_gpus")) // max(others, 1)
    return "/".join(str(number)[:18] for number in numbers.values())


def plan_keys(layouts: Columns) -> tuple[str, ...]:
    """`plan_key` of n plans, with and without the micro-batch, which rows may leave blank; each key once."""
    rows = [dict(zip(_KEYED, row, strict=True)) for row in zip(*(layouts[k].tolist() for k in _KEYED), strict=True)]
    return tuple(dict.fromkeys(plan_key(row | blank) for row in rows for blank in ({}, {"micro_batch_size": 0})))


def related_to(
    gpu_ids: Collection[str], gpus_per_node: int | None = None, framework: Framework | None = None
) -> Related:
    """A test of kinds: on one of these GPUs, and where given, in such nodes and by that framework's profile."""
    profile = framework.name if framework is not None and framework.fitted else ""

    def related(kind: Kind) -> bool:
        if _id(kind.gpu) not in gpu_ids or (gpus_per_node is not None and kind.gpus_per_node not in (0, gpus_per_node)):
            return False
        return framework is None or _profile(kind.framework) == profile

    return related


def wanted_by(job: Job, all_up_to: int, most_rows: int, most_kinds: int, plans: tuple[str, ...] = ()) -> Wanted:
    """Rows on the job's kind of cluster and framework: nearest are those of its model, sequences, batch and GPUs."""
    cluster = job.cluster
    related = related_to({cluster.gpu.id}, cluster.gpus_per_node, job.training.framework)
    return Wanted(related, all_up_to, most_rows, most_kinds, distance_from([job]), plans)


def wanted_elsewhere(job: Job, most_rows: int, most_kinds: int) -> Wanted:
    """Rows by a job's framework on other GPUs or nodes, or of other software on its GPU; nearest as in `wanted_by`."""
    cluster, framework = job.cluster, job.training.framework
    own, here = related_to({cluster.gpu.id}, cluster.gpus_per_node, framework), related_to({cluster.gpu.id})
    profile = framework.name if framework.fitted else ""

    def related(kind: Kind) -> bool:
        return (here(kind) or _profile(kind.framework) == profile) and not own(kind)

    return Wanted(related, most_rows, most_rows, most_kinds, distance_from([job]))


def wanted_by_table(table: pd.DataFrame, most_rows: int) -> Wanted:
    """Rows on the GPUs or by the frameworks of a table: nearest are those of its GPUs, frameworks, then models."""
    words = {name: set(map(str, table[name].dropna().unique())) if name in table else set() for name in _WORDS}
    gpus, profiles = ({_id(name) for name in words["gpu"]}, {_profile(name) for name in words["framework"] or {""}})
    models = {name.lower() for name in words["model"]}

    def distance(kind: Kind) -> int:
        same = (_id(kind.gpu) in gpus, _profile(kind.framework) in profiles, kind.model.lower() in models)
        return sum(weight for weight, one in zip((4, 2, 1), same, strict=True) if not one)

    return Wanted(lambda kind: distance(kind) < 6, most_rows, distance=distance)


def distance_from(jobs: Iterable[Job]) -> Callable[[Kind], int]:
    """A function: the distance of a kind from the nearest of ``jobs``, 4 for another model, 1 for each other size."""
    known = [
        (job.model.name.lower(), (job.cluster.num_gpus, job.training.seq_length, job.training.global_batch_size))
        for job in jobs
    ]

    def distance(kind: Kind) -> int:
        stated = (kind.num_gpus, kind.seq_length, kind.global_batch_size)
        apart = (
            4 * (kind.model.lower() != model) + sum(a not in (0, b) for a, b in zip(stated, numbers, strict=True))
            for model, numbers in known
        )
        return min(apart, default=0)

    return distance


@functools.cache
def _profile(name: str) -> str:
    found = recognise_framework(name)[0]
    return found.name if found.fitted else ""


_id = functools.cache(gpu_id)


def _whole(value: Any) -> int:
    """A whole number as a row states it; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else 0
