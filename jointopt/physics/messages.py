"""Bandwidth that links reach with the messages of one plan: outputs alone, which nothing of time or energy reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, Floats
from jointopt.core.units import GB
from jointopt.jobs.plans.placement import Group
from jointopt.physics import traffic
from jointopt.physics.collectives import collective_time_s, link_bytes
from jointopt.physics.cost_model import CostModel
from jointopt.physics.costs import Laid


@dataclass(frozen=True)
class Message:
    """One collective of a plan; ``link`` is the slowest class that it crosses, intra_node or inter_node."""

    parallelism: str  # tp, cp, ep, pp, dp, expert_dp (data parallelism of experts)
    kind: str  # of `collectives.KINDS`
    size_bytes: float  # one rank's full buffer
    members: int
    time_s: float
    link: str
    reached_gbytes_per_s: float  # that a GPU sends over that link, on average over the collective
    share: float  # of the link's nominal bandwidth


def messages(physics: CostModel, index: int) -> list[Message]:
    """The largest message of each collective of layout row ``index``, alone on its links.

    Gradients and weights of data parallelism count as one message of a stage's; frameworks send them in buckets.
    """
    laid = Laid.of(physics.job, {name: physics.layouts[name][[index]] for name in LAYOUT_COLUMNS})
    return [_message(physics, *one) for one in _largest(physics, laid) if one[3].size.flat[0] > 1]


def _largest(physics: CostModel, laid: Laid) -> Iterator[tuple[str, str, Floats, Group]]:
    """(parallelism, kind of collective, bytes, group) as `traffic` and `expert_traffic` have them."""
    job, lay, groups, element = physics.job, laid.lay, laid.groups, physics.hardware.kernels.element_bytes
    yield (
        "tp",
        "all_gather" if lay.sp.any() else "all_reduce",
        traffic.hidden_bytes(job.model, lay.tokens, element),
        (groups["tp"]),
    )
    if job.model.has_attention:
        yield "cp", "all_gather", traffic.context_bytes(job.model, lay.tokens, lay.cp, lay.tp, element), groups["cp"]
    if job.model.is_moe:
        yield "ep", "all_to_all", traffic.routed_bytes(job.model, lay.tokens, lay.token_share, element), groups["ep"]
    yield "pp", "p2p", traffic.pipeline_bytes(job.model, lay.tokens, lay.tp, lay.sp, element), groups["pp"]
    for one in traffic.gradient_messages(job, lay, groups, laid.parameters, laid.trained):
        if one.sent.any():
            yield "dp" if one.parameters == "dense" else "expert_dp", one.kind, one.size_bytes.max(axis=1), one.group


def _message(physics: CostModel, name: str, kind: str, moved: Floats, group: Group) -> Message:
    size_bytes, size, local = (float(np.ravel(x)[0]) for x in (moved, group.size, group.local))
    cluster, hw = physics.job.cluster, physics.hardware
    seconds = float(collective_time_s(kind, size_bytes, size, local, hw.constants.collectives, hw.links))
    within, between = (float(sent) for sent in link_bytes(kind, size_bytes, size, local))
    link, sent, nominal = "intra_node", within, cluster.intra_node_gbytes_per_s
    if local < size:
        link, sent, nominal = "inter_node", between, cluster.inter_node_gbytes_per_s
    reached = sent / seconds / GB if seconds else 0.0
    return Message(name, kind, size_bytes, int(size), seconds, link, reached, reached / nominal)
