"""Which rung of a ladder keeps a limit of power: by what is predicted at first, then by what is drawn."""

from __future__ import annotations

import math

import numpy as np

from jointopt.core.schema import Floats

SETTLE_S = 1.0  # after a change, in which clocks, sensors and iterations of the old clocks fade
_WINDOW_S = (2.0, 5.0)  # of measured power: an iteration, within these
_MARGIN = 1.01  # of the drawn power, below which a limit is kept
_STEEPEST = 2.0  # times the predicted slope of power, which is taken until two rungs were measured
_HOLD_S, _HEADROOM = 10.0, 0.95  # before a faster rung without a new limit, and how far below the limit it must be


class PowerControl:
    """The choice among rungs (n,) in order of preference, each with its predicted mean and high power in kW.

    ``iteration_s``: of the first rung, which is the plan's own; drawn power is averaged over about one iteration.
    """

    def __init__(self, power_kw: Floats, power_kw_high: Floats, iteration_s: float = 0.0) -> None:
        self.rung, self.window_s = 0, float(np.clip(iteration_s, *_WINDOW_S))
        self.power_kw = np.asarray(power_kw, np.float64)
        self.expected_kw = np.asarray(power_kw_high, np.float64)  # until power is measured
        self._limit_kw, self._changed_s = math.inf, -math.inf
        self._measured: dict[int, float] = {}  # kW of the last two rungs

    def lowest(self) -> int:
        """The rung of least power."""
        return int(self.power_kw.argmin())

    def is_settled(self, now_s: float) -> bool:
        """Whether a window of measured power lies after the last change."""
        return now_s - self._changed_s >= SETTLE_S + self.window_s

    def choose(self, limit_kw: float, drawn_kw: float, now_s: float, own_first: bool = True) -> int:
        """The rung for now. ``drawn_kw``: mean over the last window; NaN where it is not known.

        ``own_first``: the plan's own rung is taken where it keeps the limit, even if others are faster.

        Slower at once where more is drawn than the limit, or the limit falls; faster where it rises, or after a while.
        """
        if self._changed_s == -math.inf:  # what was drawn before the first choice was not at these clocks
            self._changed_s = now_s
        if math.isfinite(drawn_kw) and self.is_settled(now_s):
            self.expected_kw = self._expected_kw(drawn_kw)
        within = np.flatnonzero(self.expected_kw <= limit_kw)
        within = within if own_first else within[within > 0]
        wanted = int(within[0]) if len(within) else self.lowest()
        if wanted < self.rung and limit_kw == self._limit_kw:
            roomy = within[self.expected_kw[within] <= _HEADROOM * limit_kw]
            held = now_s - self._changed_s >= _HOLD_S
            wanted = min(int(roomy[0]), self.rung) if held and len(roomy) else self.rung
        self._limit_kw = limit_kw
        return self.move(wanted, now_s)

    def _expected_kw(self, drawn_kw: float) -> Floats:
        """Power (n,) of all rungs by what this one draws, and the slope from the one before it where that is known."""
        self._measured.pop(self.rung, None)
        others, ratio = list(self._measured.items())[-1:], drawn_kw / self.power_kw[self.rung]
        self._measured = dict([*others, (self.rung, drawn_kw)])
        apart = self.power_kw - self.power_kw[self.rung]
        slope = np.where(apart > 0.0, _STEEPEST, 1.0) * ratio
        for other, other_kw in others:
            if abs(apart[other]) > (1.0 - _HEADROOM) * self.power_kw[self.rung]:
                slope = np.clip((other_kw - drawn_kw) / apart[other], ratio, _STEEPEST * ratio)
        return np.asarray(_MARGIN * (drawn_kw + slope * apart))

    def move(self, rung: int, now_s: float) -> int:
        """Take that rung from now on."""
        if rung != self.rung:
            self.rung, self._changed_s = rung, now_s
        return rung
