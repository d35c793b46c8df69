"""Errors of a surrogate on each source's runs that it has not seen, as a table, and the widths that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from jointopt.surrogate.held_out import HeldOut, calibrated, conformal
from jointopt.surrogate.model import Surrogate, Widths
from jointopt.surrogate.new_sources import NewSource, bounds_of_clusters, bounds_of_software


@dataclass(frozen=True)
class Scores:
    """Held-out errors of one source, and the held-out predictions behind them."""

    source: str
    physics: float
    group_out: HeldOut | None
    source_out: HeldOut | None
    three: HeldOut | None
    ten: HeldOut | None
    unseen: HeldOut | None  # as source_out and three, under a framework without a profile
    unseen_three: HeldOut | None
    few: HeldOut | None = None  # three runs of each cluster and software, with a profile of it and without
    unseen_few: HeldOut | None = None
    pairs: Mapping[str, HeldOut | None] = field(default_factory=dict)  # of differences: source_out, three, and unseen
    new: NewSource | None = None  # what it was off by where nothing of it was known
    by_size: HeldOut | None = None  # as group_out, by `leave_size_out`: where all that is known of it are few runs


def with_calibrated_widths(surrogate: Surrogate, scores: list[Scores]) -> Surrogate:
    """The surrogate, whose widths are 1, with those that the held-out predictions need."""
    # By how much was known: runs of the source, a profile of its framework, neither. Profiles were fitted to recorded
    # sources, so that a cluster of one's own lies between these under their profile and under none.
    kinds = {
        "measured": ("group_out",), "few": ("few", "unseen_few"),
        "fitted": ("source_out", "unseen"), "unknown": ("unseen",),
    }  # fmt: skip
    held = {k: [h for s in scores for name in names if (h := getattr(s, name))] for k, names in kinds.items()}
    pairs = {k: [h for s in scores for name in names if (h := s.pairs.get(name))] for k, names in kinds.items()}
    found, new = calibrated(surrogate, held, pairs), [s.new for s in scores if s.new is not None]
    widths = replace(
        found.widths, new_cluster=bounds_of_clusters(new), new_software=bounds_of_software(new),
        difference_new=_of_new_pairs(scores, "source_out"), difference_unknown=_of_new_pairs(scores, "unseen"),
    )  # fmt: skip
    return replace(found, widths=widths)


def _of_new_pairs(scores: list[Scores], kind: str) -> float | None:
    """The factor on the roots of half-widths of differences of that kind; None where there are none.

    What plans of one job differ by hardly depends on whose runs a profile was fitted to, since one factor cancels.
    """
    held = [h.by_root for s in scores if (h := s.pairs.get(kind))]
    return conformal(held) if held else None


def score_table(scores: list[Scores], widths: Widths | None = None) -> pd.DataFrame:
    """Median errors and coverage per source, one row each, and their means; intervals have the factors ``widths``."""
    w = widths or Widths()
    rows = []
    for s in scores:
        held = {
            "group out": (s.group_out, w.measured), "source out": (s.source_out, w.fitted),
            "+3 runs": _after(s.three, w), "+10 runs": _after(s.ten, w), "framework unknown": (s.unseen, w.unknown),
            "framework unknown, +3 runs": _after(s.unseen_three, w),
        }  # fmt: skip
        row: dict[str, Any] = {"source": s.source, "physics": s.physics}
        row |= {name: h.median_error if h else np.nan for name, (h, _) in held.items()}
        held |= {"differences": _by_root(s.pairs.get("source_out"), w.difference_new, w.fitted * w.difference)}
        if (three := s.pairs.get("three")) and w.difference_after is not None:
            held |= {"differences, +3 runs": (three.by_root, w.difference_after)}
        row |= {f"{name} covered": h.covered(by) if h else np.nan for name, (h, by) in held.items()}
        if s.new is not None and w.new_cluster is not None and w.new_software is not None:
            own, generic = s.new.covered(w.new_cluster, w.new_software)
            row |= {"source out covered": own, "framework unknown covered": generic}
        rows.append(row)
    table = pd.DataFrame(rows)
    mean = {"source": "mean", **table.drop(columns="source").mean().to_dict()}
    return pd.concat([table, pd.DataFrame([mean])], ignore_index=True)


def _by_root(held: HeldOut | None, factor: float | None, of_card: float) -> tuple[HeldOut | None, float]:
    """Held-out differences and the factor on their half-widths; on the roots of these where the card has such."""
    return (held, of_card) if held is None or factor is None else (held.by_root, factor)


def _after(held: HeldOut | None, widths: Widths) -> tuple[HeldOut | None, float]:
    """Held-out predictions after some runs of the source, and the factor on their half-widths."""
    return held, widths.of_measured(held.known) if held else 1.0
