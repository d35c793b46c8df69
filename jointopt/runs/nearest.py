"""Which rows of a store matter most, by its indexes alone: a bounded number of them, however many there are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import sqlalchemy as sa

from jointopt.runs.kinds import Kind, Wanted
from jointopt.runs.migrations import KINDS, MEASURED

_MOST_KINDS = 20_000  # that are looked at, the newest
_OF_PLANS = 4  # a share of the rows, as a divisor


def nearest_rows(connection: sa.Connection, wanted: Wanted, kept: sa.ColumnElement[bool]) -> tuple[list[int], bool]:
    """(ids, ascending, of the rows that are wanted, whether these are all related ones); ``kept``: of which at all."""
    ids = sa.select(MEASURED.c.id).where(kept).order_by(MEASURED.c.id.desc())
    kinds, few = _enough(connection, wanted)
    most = None if few else wanted.most or wanted.whole
    found: dict[Kind, list[int]] = {}
    first: list[int] = []
    for number, kind in kinds:
        # one by one, each along the index: together SQLite would read all of them to find the newest
        rows = ids.where(MEASURED.c.kind_id == number)
        for plan in wanted.plans if kind.plain == next(iter(found), kind.plain) else ():
            of_plan = rows.where(MEASURED.c.plan_key == plan)
            first += connection.scalars(of_plan.limit((wanted.most or wanted.whole or 0) // _OF_PLANS))
        found.setdefault(kind.plain, []).extend(connection.scalars(rows.limit(most)))
    groups = [sorted(group, reverse=True)[:most] for group in found.values() if group]
    return shared(first, groups, most or sum(map(len, groups)), wanted.kinds), few


def _enough(connection: sa.Connection, wanted: Wanted) -> tuple[list[tuple[int, Kind]], bool]:
    """(the related kinds to read, the nearest first, whether all of their rows are): counted in the index alone."""
    kinds, total = _kinds(connection, wanted), 0
    if wanted.whole is None:
        return kinds, True
    for place, (number, _) in enumerate(kinds, 1):
        of_kind = sa.select(MEASURED.c.id).where(MEASURED.c.kind_id == number).limit(wanted.whole + 1).subquery()
        total += connection.scalar(sa.select(sa.func.count()).select_from(of_kind)) or 0
        if total > wanted.whole and len({kind.plain for _, kind in kinds[:place]}) > wanted.kinds:
            return kinds[:place], False
    return kinds, total <= wanted.whole


def shared(first: Sequence[int], groups: Sequence[Sequence[int]], most: int, kinds: int) -> list[int]:
    """At most ``most`` ids, ascending, of ``groups`` (the nearest first, each newest first), with ``first`` before all.

    Where not all have room, half is of the nearest group and the rest in equal parts of ``kinds`` - 1 others; what
    these leave goes to the nearest that have more.
    """
    if sum(map(len, groups)) <= most:
        return sorted(itertools.chain.from_iterable(groups))
    groups = groups[:kinds]
    part = most // 2 // max(len(groups) - 1, 1)
    order = [*first, *groups[0][: most // 2], *itertools.chain.from_iterable(group[:part] for group in groups[1:])]
    return sorted(list(dict.fromkeys([*order, *itertools.chain.from_iterable(groups)]))[:most])


def _kinds(connection: sa.Connection, wanted: Wanted) -> list[tuple[int, Kind]]:
    """Numbers and fields of the related kinds, the nearest first, of those the newest."""
    fields = (KINDS.c[name] for name in Kind._fields)
    rows = connection.execute(sa.select(KINDS.c.id, *fields).order_by(KINDS.c.id.desc()).limit(_MOST_KINDS))
    related = ((row[0], kind) for row in rows if wanted.related(kind := Kind(*row[1:])))
    return sorted(related, key=lambda one: wanted.distance(one[1]))
