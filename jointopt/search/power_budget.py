"""Who gets how much power: one option for each job within limits that jobs share, as a mixed-integer programme.

Shapes: J jobs, n options of all of them (``job`` (n,) says whose), K limits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array

from jointopt.core.schema import Bools, Floats, Ints

_GAP, _MOST_S, _PART = 1e-7, 1.0, 0.1  # relative, to which the optimum is proved, and the time for that in s
_ROUNDING, _TOLERANCE = 1e-9, 5e-6  # of a limit; the latter is the solver's


@dataclass(frozen=True)
class PowerBudget:
    """Options by job, with their value and their power in each limit; `options[0]` of each job is its pause."""

    job: Ints  # (n,), ascending
    value: Floats  # (n,)
    power_kw: Floats  # (n, K)
    limit_kw: Floats  # (K,)

    def keeps(self, rows: Ints) -> bool:
        """Whether the options ``rows`` (J,) together keep every limit."""
        return bool((self.power_kw[rows].sum(axis=0) <= self.limit_kw * (1.0 + _ROUNDING)).all())

    @property
    def first(self) -> Ints:
        """The first option of each job, (J,)."""
        return np.flatnonzero(np.diff(self.job, prepend=-1))

    def best(self) -> tuple[Ints, float]:
        """(the options (J,) of the greatest value in all, by which share another could be better).

        The linear programme, of which only few jobs share options, says which options cannot be in a better answer than
        the one that rounding it gives: the others alone are left to branch and bound.
        """
        scaled = self.power_kw / self.limit_kw
        each = csr_array((np.ones(len(self.job)), (self.job, np.arange(len(self.job)))))
        relaxed = linprog(
            -self.value, scaled.T, np.ones(len(self.limit_kw)), each, np.ones(each.shape[0]), method="highs-ds"
        )
        greedy = self.greedy(self.first)
        if relaxed.x is None:
            return greedy, np.inf
        used = np.flatnonzero(relaxed.x > _ROUNDING)
        low = used[np.lexsort((scaled[used].max(axis=1), self.job[used]))]
        low = low[np.flatnonzero(np.diff(self.job[low], prepend=-1))]
        known = [greedy, *([self.greedy(low)] if self.keeps(low) else [])]
        best = max(known, key=self._worth)
        reduced = self.value + scaled @ relaxed.ineqlin.marginals
        lost = np.maximum.reduceat(reduced, self.first)[self.job] - reduced
        bound = -float(relaxed.fun)
        # few options first, of which a good answer leaves fewer to prove it; the solver may exceed a limit by its own
        # tolerance, so that a limit is a little lower at first
        for part, most in ((_PART, 1.0 - _TOLERANCE), (1.0, 1.0), (1.0, 1.0 - _TOLERANCE)):
            rows = np.flatnonzero(lost <= part * (bound - self._worth(best)) + _ROUNDING)
            found, above = self._exact(rows, scaled, most)
            bound = min(bound, max(above, self._worth(best))) if part == most == 1.0 else bound
            if found is not None and self.keeps(found):
                best = max(best, found, key=self._worth)
                if part == 1.0:
                    break
        total = self._worth(best)
        return best, max(bound - total, 0.0) / max(abs(total), 1e-300)

    def _worth(self, rows: Ints) -> float:
        return float(self.value[rows].sum())

    def _exact(self, rows: Ints, scaled: Floats, most: float) -> tuple[Ints | None, float]:
        """(the best options (J,) among ``rows``, None where no time was left; a bound of their value).

        Jobs with the same options are counted together, or each order of them would be tried.
        """
        parts = np.split(rows, np.flatnonzero(np.diff(self.job[rows])) + 1)
        alike: dict[bytes, list[int]] = {}
        for number, some in enumerate(parts):
            alike.setdefault(np.column_stack([self.value[some], scaled[some]]).tobytes(), []).append(number)
        kinds = list(alike.values())
        some = np.concatenate([parts[numbers[0]] for numbers in kinds])
        kind = np.repeat(np.arange(len(kinds)), [len(parts[numbers[0]]) for numbers in kinds])
        counts = np.array([len(numbers) for numbers in kinds], np.float64)
        each = csr_array((np.ones(len(some)), (kind, np.arange(len(some)))))
        with _muted():
            found = milp(
                -self.value[some], integrality=np.ones(len(some)), bounds=Bounds(0.0, counts[kind]),
                constraints=[LinearConstraint(each, counts, counts), LinearConstraint(scaled[some].T, -np.inf, most)],
                options={"mip_rel_gap": _GAP, "time_limit": _MOST_S},
            )  # fmt: skip
        bound = np.inf if found.mip_dual_bound is None else -float(found.mip_dual_bound)
        if found.x is None:
            return None, bound
        chosen, many = np.zeros(len(parts), np.int64), np.round(found.x).astype(np.int64)
        for number, numbers in enumerate(kinds):
            places = np.repeat(np.arange(int((kind == number).sum())), many[kind == number])
            chosen[numbers] = [parts[one][place] for one, place in zip(numbers, places.tolist(), strict=True)]
        return chosen, bound

    def greedy(self, rows: Ints) -> Ints:
        """The options (J,) of an operator who starts with ``rows`` and takes the step of most value per kW each time.

        A step costs the largest share of a limit that it takes.
        """
        while True:
            gain = self.value - self.value[rows][self.job]
            more_kw = self.power_kw - self.power_kw[rows][self.job]
            room_kw = self.limit_kw * (1.0 + _ROUNDING) - self.power_kw[rows].sum(axis=0)
            fits: Bools = (gain > 0.0) & (more_kw <= room_kw).all(axis=1)
            if not fits.any():
                return rows
            cost = np.maximum((more_kw / self.limit_kw).max(axis=1), 1e-12)
            step = int(np.where(fits, gain / cost, -np.inf).argmax())
            rows = np.where(np.arange(len(rows)) == self.job[step], step, rows)

    def equal_share(self) -> Ints:
        """The options (J,) where each job has the same part of the most that it may draw, its pause where none fits."""
        most_kw = np.maximum.reduceat(self.power_kw, self.first)
        part = self.limit_kw / np.maximum(most_kw.sum(axis=0), 1e-300)
        fits = (self.power_kw <= (most_kw * part)[self.job] * (1.0 + _ROUNDING)).all(axis=1)
        value = np.where(fits, self.value, -np.inf)
        value[self.first] = self.value[self.first]
        last = np.append(self.first[1:], len(self.job))
        return np.array([a + int(value[a:b].argmax()) for a, b in zip(self.first, last, strict=True)], np.int64)


@contextmanager
def _muted() -> Iterator[None]:
    """Nothing is printed meanwhile: the solver's own code writes to the standard output, on which answers are alone."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # it is closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
