"""What stops a training run, and how it goes on: the section ``reliability`` of a job file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from jointopt.core.errors import JobError
from jointopt.core.facts import Assumption
from jointopt.jobs.catalog.catalog_files import cite, read_yaml
from jointopt.jobs.catalog.limits import limited_number
from jointopt.jobs.cluster import Cluster
from jointopt.jobs.objectives import FURTHER_OBJECTIVES, RUN_OBJECTIVES
from jointopt.jobs.reading import Section

POLICIES = {  # what a run does after a failure, by its name
    "restart": "all restart from the last checkpoint",
    "spare": "a spare takes over, with the state of another replica",
    "drop_replica": "without a spare, the other replicas go on",
    "nonuniform_tp": "without a spare, the broken replica goes on with a GPU less",
}
_FILE = "reliability.yaml"
_RATES = ("failures_per_gpu_hour", "failures_per_node_hour")
_FROM_ZERO = (
    "detection_s", "restart_s", "checkpoint_s", "checkpoint_write_s", "planned_stops_per_day", "planned_stop_s",
    "rack_failure_share", "lemon_node_share",
)  # fmt: skip
_NEEDS = {  # a key that says nothing without another one
    "planned_stops_per_day": "planned_stop_s", "rack_failure_share": "rack_nodes",
    "lemon_node_share": "lemon_failure_factor",
}  # fmt: skip
_HOUR_S, _DAY_S = 3600.0, 86_400.0


@dataclass(frozen=True)
class Reliability:
    """Rates and times of failures, checkpoints and repairs; ``None`` = not stated."""

    failures_per_gpu_hour: float | None = None  # of what stops the run
    failures_per_node_hour: float | None = None
    detection_s: float | None = None
    restart_s: float | None = None  # from the decision to the first useful step
    checkpoint_s: float | None = None  # in which a checkpoint stops training; None = from bytes and the storage
    checkpoint_write_s: float | None = None  # from then until it has reached the storage, while training goes on
    storage_gbytes_per_s: float | None = None  # that a node writes
    storage_total_gbytes_per_s: float | None = None  # that all nodes write together
    checkpoint_interval_s: float | None = None  # of training; None = the best one
    spares: int | tuple[int, ...] | None = None  # nodes, or numbers to choose from; None = one is always at hand
    repair_s: float | None = None
    policy: tuple[str, ...] = ("restart",)  # of `POLICIES`; of several the one of least time
    planned_stops_per_day: float = 0.0
    planned_stop_s: float = 0.0  # each, of which nothing but the time is lost
    weibull_shape: float = 1.0  # of the time between failures; below 1 they are likelier soon after another
    rack_failure_share: float = 0.0  # of the failures, which take all nodes of a rack
    rack_nodes: int = 1
    lemon_node_share: float = 0.0  # of the nodes, which fail more often than the others
    lemon_failure_factor: float = 1.0  # times as often
    lemon_failures: float | None = None  # of a lemon node until it is replaced, in the mean; None = it never is

    @property
    def planned_share(self) -> float:
        """The share of the calendar time that planned stops take."""
        return self.planned_stops_per_day * self.planned_stop_s / _DAY_S

    def failure_s(self, cluster: Cluster) -> float:
        """Mean time between failures of a run on all of the cluster's GPUs, in s; with all of its lemon nodes."""
        of_gpus = (self.failures_per_gpu_hour or 0.0) * cluster.num_gpus
        rate = of_gpus + (self.failures_per_node_hour or 0.0) * cluster.nodes
        return _HOUR_S / (rate * (1.0 + self.lemon_node_share * (self.lemon_failure_factor - 1.0)))

    @property
    def spare_counts(self) -> tuple[int, ...]:
        """The numbers of spares to choose from; none where a replacement is always at hand."""
        return () if self.spares is None else self.spares if isinstance(self.spares, tuple) else (self.spares,)


RELIABILITY_KEYS = tuple(field.name for field in fields(Reliability))


def read_reliability(job: Section, cluster: Cluster) -> Reliability:
    """The section ``reliability`` of a job file; JobError where its figures cannot be, or exclude each other."""
    section = job.section("reliability", RELIABILITY_KEYS)
    found: dict[str, Any] = {}
    if all(map(section.has, _RATES)):
        raise JobError(f"{section.at(_RATES[0])} and {_RATES[1]} state the same rate twice; leave one of them out.")
    for key in RELIABILITY_KEYS:
        if section.has(key) and key not in ("spares", "policy", "rack_nodes"):
            found[key] = limited_number(section, key, f"reliability.{key}", zero=key in _FROM_ZERO)
    if section.has("rack_nodes"):
        found["rack_nodes"] = section.whole("rack_nodes", 1, cluster.nodes, why=", the cluster's nodes")
    for key, other in _NEEDS.items():
        if found.get(key) and other not in found:
            raise JobError(f"{section.at(other)} is missing; {key} says nothing without it.")
    spares = _spares(section, cluster) if section.has("spares") else None
    policies = _policies(section) if section.has("policy") else Reliability.policy
    if spares == 0 and "spare" in policies:
        raise JobError(f"{section.at('policy')}: spare needs reliability.spares of 1 or more, or none stated; got 0.")
    reliability = Reliability(**found, spares=spares, policy=policies)
    if reliability.planned_share >= 1.0:
        raise JobError(f"{section.at('planned_stop_s')}: planned stops take all of a day; expected less of both.")
    return reliability


def _spares(section: Section, cluster: Cluster) -> int | tuple[int, ...]:
    """A number of nodes, or several of a list or of ``{min, max, step}``."""
    value: Any = section.values["spares"]
    if isinstance(value, Mapping):
        ends = section.section("spares", ("min", "max", "step"))
        low, high = ends.whole("min", 0, cluster.nodes, 0), ends.whole("max", 0, cluster.nodes)
        if low > high:
            raise section.refuse("spares", "numbers of nodes with min not above max")
        value = list(range(low, high + 1, ends.whole("step", default=1)))
    several = [value] if not isinstance(value, list) or not value else value
    counts = [
        Section({"spares": one}, section.where).whole("spares", 0, cluster.nodes, why=", the cluster's nodes")
        for one in several
    ]
    return tuple(sorted(set(counts))) if len(set(counts)) > 1 else counts[0]


def _policies(section: Section) -> tuple[str, ...]:
    value: Any = section.values["policy"]
    names: Sequence[Any] = value if isinstance(value, list) and value else [value]
    found = [Section({"policy": name}, section.where).choice("policy", POLICIES) for name in names]
    return tuple(dict.fromkeys(found))


def check_run_objectives(
    objectives: Sequence[str], run_tokens: float | None, cluster: Cluster, reliability: Reliability
) -> None:
    """JobError where objectives of a whole run lack what they need, or stand beside others of an iteration."""
    of_run = [name for name in objectives if name in RUN_OBJECTIVES]
    others = [name for name in objectives if name not in (*RUN_OBJECTIVES, *FURTHER_OBJECTIVES)]
    if not of_run:
        return
    first = f"objectives: {of_run[0]}"
    if others:
        raise JobError(f"{first} is of a whole run and {others[0]} of one iteration; leave one of the two out.")
    if run_tokens is None:
        raise JobError(f"{first} needs training.run_tokens, the tokens of the whole run (--run-tokens 15.6e12).")
    if "money" in of_run and not cluster.has_price:
        raise JobError("objectives: money needs cluster.price_per_gpu_hour or price_per_kwh; state one or both.")
    if {*RUN_OBJECTIVES[1:]} <= {*of_run} and len(reliability.spare_counts) > 1:
        both = " and ".join(RUN_OBJECTIVES[1:])
        raise JobError(f"objectives: {both} rank several reliability.spares differently; leave one of the two out.")


def with_defaults(stated: Reliability) -> tuple[Reliability, tuple[Assumption, ...]]:
    """The figures with those of the catalogue in place of what is not stated, and what was assumed."""
    cells, needed = read_yaml(_FILE)["defaults"], {"detection_s", "restart_s"}
    needed |= {"failures_per_gpu_hour"} if stated.failures_per_node_hour is None else set()
    rates = (stated.storage_gbytes_per_s, stated.storage_total_gbytes_per_s)
    needed |= {"storage_gbytes_per_s"} if stated.checkpoint_s is None and rates == (None, None) else set()
    needed |= {"repair_s"} if stated.spares is not None else set()
    missing = [key for key in cells if key in needed and getattr(stated, key) is None]
    assumed = tuple(
        Assumption.not_given(f"reliability.{key}", cells[key][0], f"{cells[key][0]:g}", _sentence(key, cells[key]))
        for key in missing
    )
    return replace(stated, **{key: cells[key][0] for key in missing}), assumed


def _sentence(key: str, cell: list[Any]) -> str:
    return f"{cell[0]:g} is assumed ({cite(cell, _FILE)})"
