"""``@each(names, rows)``: one test of many rows, whose one failure lists every row that fails, and why.

As ``pytest.mark.parametrize``, for rows of the catalogue and the like, of which a thousand tests would take longer to
collect and report than to run. Fixtures are made once for all rows. Rows that skip are passed over; the test skips if
all do.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

import pytest


def each(names: str | tuple[str, ...], rows: Collection[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator; ``rows`` are values of the one name, or tuples of values of the names."""

    def over_rows(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def every_row(**fixtures: Any) -> None:
            failed: dict[str, BaseException] = {}
            skipped = []
            for row in rows:
                values = {names: row} if isinstance(names, str) else dict(zip(names, row, strict=True))
                try:
                    test(**values, **fixtures)
                except pytest.skip.Exception as skip:
                    skipped.append(skip)
                except (Exception, pytest.fail.Exception) as error:
                    failed[" ".join(f"{name}={value!r}" for name, value in values.items())] = error
            if failed:
                listed = "\n".join(f"{row}: {type(error).__name__}: {error}" for row, error in failed.items())
                raise AssertionError(f"{len(failed)} rows fail:\n{listed}") from next(iter(failed.values()))
            if len(skipped) == len(rows):
                raise skipped[0]

        given = {names} if isinstance(names, str) else set(names)
        others = [one for one in inspect.signature(test).parameters.values() if one.name not in given]
        every_row.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
        return every_row

    return over_rows
