"""What jobs of one site share: priorities, deadlines and sizes of each, and limits of rows, racks and nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jointopt.core.errors import JobError, UsageError
from jointopt.jobs.job import Job
from jointopt.jobs.reading import Section, is_whole, parse_yaml, quoted_value, read_text

_MOST = 1e6


@dataclass(frozen=True)
class JobTerms:
    """What one job asks for."""

    priority: float = 1.0  # weight of its tokens/s
    deadline_days: float | None = None  # in which its ``run_tokens`` must be made
    gpus: tuple[int, ...] = ()  # sizes that it may have in place of its own


@dataclass(frozen=True)
class PowerLimit:
    """A limit of power at the meter that some jobs share, such as of a row or a rack."""

    name: str
    kw: float
    nodes: Mapping[str, int]  # of each job in it


@dataclass(frozen=True)
class FleetFile:
    """The terms of jobs by their names, and the limits besides that of the site."""

    jobs: Mapping[str, JobTerms] = field(default_factory=dict)
    limits: tuple[PowerLimit, ...] = ()


def read_fleet_file(source: Path | Mapping[str, Any], jobs: Mapping[str, Job]) -> FleetFile:
    """The terms of ``jobs`` in a YAML file, or its mapping; JobError for what is not known or cannot be."""
    where = f"{source}: " if isinstance(source, Path) else ""
    try:
        mapping = parse_yaml(read_text(source, "a fleet file")) if isinstance(source, Path) else source
        whole = Section(mapping, "").only(("jobs", "limits"))
        terms = whole.section("jobs", jobs)
        found = {name: _terms(terms.section(name, ("priority", "deadline_days", "gpus"))) for name in terms.values}
        given = whole.values.get("limits") or []
        if not isinstance(given, list):
            raise whole.refuse("limits", "a list of {name, kw, jobs}")
        return FleetFile(found, tuple(_limit(one, f"limits[{at}]", jobs) for at, one in enumerate(given, 1)))
    except UsageError as error:
        raise JobError(f"{where}{error}") from error


def _terms(one: Section) -> JobTerms:
    gpus: Any = one.values.get("gpus") or []
    sizes = gpus if isinstance(gpus, list) else [gpus]
    if not all(is_whole(count) and 0 < count <= _MOST for count in sizes):
        raise one.refuse("gpus", "a number of GPUs, or a list of them")
    deadline = one.number("deadline_days", _MOST) if one.has("deadline_days") else None
    return JobTerms(one.number("priority", _MOST, default=1.0), deadline, tuple(dict.fromkeys(sizes)))


def _limit(given: Any, where: str, jobs: Mapping[str, Job]) -> PowerLimit:
    """One limit; its jobs are a list of those that lie in it whole, or how many nodes of each do."""
    if not isinstance(given, Mapping):
        raise JobError(f"{where} must be a mapping with name, kw and jobs; got {quoted_value(given)}.")
    one = Section(given, where).only(("name", "kw", "jobs"))
    members: Any = one.values.get("jobs")
    if isinstance(members, Sequence) and not isinstance(members, str):
        members = {str(name): jobs[name].cluster.nodes if name in jobs else 1 for name in members}
    if not isinstance(members, Mapping) or not members:
        raise one.refuse("jobs", "a list of jobs, or a mapping of jobs to their nodes there")
    inside = Section(members, one.at("jobs")).only(jobs)
    nodes = {name: inside.whole(name, 1, jobs[name].cluster.nodes, why=", the job's nodes") for name in members}
    return PowerLimit(one.text("name"), one.number("kw", 1e9), nodes)
