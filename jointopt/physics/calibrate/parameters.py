"""Parameters of the clock law for a GPU and its work, and what is known of them before any reading."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from jointopt.core.errors import CatalogError
from jointopt.core.schema import Floats, Ints
from jointopt.jobs.catalog.gpus import load_gpu, response_figures
from jointopt.jobs.cluster import Gpu
from jointopt.physics.calibrate.tables import ResponseTable
from jointopt.physics.clock_law import Shape, Work

_SHARED = 9  # parameters of the GPU
_FLOOR = 0.92  # clock below which limits pause work, over that of the knee: 0.89-0.95 on A100-PCIe and A40
_SHARE, _SHARE_SD = 0.3, 0.7  # logit of the share of time that follows the clock: 0.35 to 0.85 on A40 and A100
_CURVE_FIELDS = 5


@dataclass(frozen=True)
class ResponsePrior:
    """Prior of a GPU before any reading: values and, as ``_sd``, how sure (relative where not a fraction)."""

    knee: float = 0.75
    knee_sd: float = 0.05
    rise: float = 0.22
    rise_sd: float = 0.35
    static_w: float = 62.0
    static_sd: float = 0.2
    wait_w: float = 100.0  # at the maximum clock
    wait_sd: float = 0.15
    pause_w: float = 75.0  # of a GPU that a limit pauses
    limit_w: float = 400.0
    limit_sd: float = 0.12
    lowest: float = 0.12  # clock over the maximum clock
    scatter: float = 0.05  # of a pass's time under a limit, standard deviation of the logarithm

    def scaled(self, watts: float) -> ResponsePrior:
        """The same for a board with that many times the power."""
        own = {name: watts * getattr(self, name) for name in ("static_w", "wait_w", "pause_w", "limit_w")}
        return replace(self, **own)


@dataclass(frozen=True)
class Hierarchy:
    """Parameters of a GPU, of its kinds of work (forward, backward), and of every curve, in one vector.

    Kinds and curves are departures from the GPU's values with narrow priors, so that few readings suffice.
    """

    kind_of: Ints  # (curves,)
    kinds: int
    lowest: float = 0.12  # clock over the maximum clock

    @property
    def curves(self) -> int:
        """Number of curves."""
        return len(self.kind_of)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return _SHARED + 2 * self.kinds + _CURVE_FIELDS * self.curves

    def shape(self, theta: Floats) -> Shape:
        """Parameters of the law that all work on the GPU shares."""
        knee = float(np.clip(theta[0], 0.2, 0.98))
        rise, softness, floor, idle_w = np.exp(theta[1:5]).tolist()
        return Shape(knee, rise, softness, floor, idle_w, self.lowest)

    def limit_w(self, theta: Floats) -> float:
        """The power limit of the board itself."""
        return float(np.exp(theta[7]))

    def work(self, theta: Floats) -> Work:
        """Constants of every curve, (curves,)."""
        share, static = theta[_SHARED : _SHARED + 2 * self.kinds].reshape(2, self.kinds)[:, self.kind_of]
        own = theta[_SHARED + 2 * self.kinds : self.size].reshape(_CURVE_FIELDS, self.curves)
        return Work(
            log_time_s=own[0],
            share=1.0 / (1.0 + np.exp(-(theta[5] + share + own[2]))),
            static_w=np.exp(theta[6] + static + own[3]),
            switching_w=np.exp(theta[8] + own[1]),
            limit_factor=np.exp(own[4]),
        )

    def follows(self, curve: Ints) -> Ints:
        """Parameters (k, n) on which readings (n,) of these curves depend: the GPU's, their kind's, their own."""
        shared = np.repeat(np.arange(_SHARED)[:, None], len(curve), axis=1)
        kinds = _SHARED + np.arange(2)[:, None] * self.kinds + self.kind_of[curve]
        own = _SHARED + 2 * self.kinds + np.arange(_CURVE_FIELDS)[:, None] * self.curves + curve
        return np.concatenate([shared, kinds, own])

    def prior(
        self, known: ResponsePrior, log_time_s: Floats, switching_w: Floats, limit_sd: float = 0.02
    ) -> tuple[Floats, Floats]:
        """Means and deviations; ``log_time_s`` and ``switching_w`` (curves,) are first guesses from the readings."""
        shared = [known.knee, *np.log([known.rise, 0.025, _FLOOR * known.knee, known.pause_w])]
        shared += [_SHARE, *np.log([known.static_w, known.limit_w, np.median(switching_w)])]
        shared_sd = [known.knee_sd, known.rise_sd, 0.5, 0.08, 0.08, _SHARE_SD, known.static_sd, known.limit_sd, 0.7]
        nothing = np.zeros(2 * self.kinds)
        kinds_sd = np.repeat([0.4, 0.03], self.kinds)
        own = np.concatenate([log_time_s, np.zeros(4 * self.curves)])
        own_sd = np.repeat([0.7, 0.15, 0.25, 0.02, limit_sd], self.curves)
        return np.concatenate([shared, nothing, own]), np.concatenate([shared_sd, kinds_sd, own_sd])


def take(work: Work, index: Ints) -> Work:
    """The constants of the curve of every row."""
    return Work(*(getattr(work, field.name)[index] for field in fields(work)))


def matern(distance: Floats, length: float) -> Floats:
    """Correlation at that distance of a function that is smooth once: Matérn 3/2 (Rasmussen and Williams 2006)."""
    z = np.sqrt(3.0) * distance / length
    return np.asarray((1.0 + z) * np.exp(-z))


CLOCK_COLUMNS = "clock_mhz", "forward_clock_mhz_mean", "backward_clock_mhz_mean"

# Of a GPU that was measured before.
_SURE = {"knee_sd": 0.01, "rise_sd": 0.1, "static_sd": 0.08, "wait_sd": 0.1}
# Relative, of the board's power limit.
_LIMIT_SD_MEASURED, _LIMIT_SD, _LIMIT_SD_OTHER_BOARD = 0.015, 0.03, 0.1
# Of GPUs that were not: waiting at the maximum clock over the waiting that the catalogue states, which is one of lower
# clocks too, and a GPU that a limit pauses over static power, both as on A100-PCIe and A40.
_WAIT_AT_TOP, _PAUSE = 1.2, 1.2
_LOWEST = 0.88  # clock that the deepest limits leave, over the lowest that can be set: of A40 under 100 W


@dataclass(frozen=True)
class Board:
    """A GPU whose response is to be found: its clocks, and the prior of its constants."""

    id: str
    max_clock_mhz: float
    step_mhz: float
    prior: ResponsePrior


def highest_clock_mhz(measured: ResponseTable) -> float | None:
    """The highest clock of the readings in MHz; None where they have none."""
    seen = measured.rows.reindex(columns=list(CLOCK_COLUMNS)).to_numpy(float)
    return float(np.nanmax(seen)) if np.isfinite(seen).any() else None


def board_of(gpu: str, measured: ResponseTable) -> Board:
    """The GPU as the catalogue knows it; one that it does not know as its readings show it."""
    try:
        known = load_gpu(gpu)
    except CatalogError:
        known = None
    max_clock = (known.clock_max_mhz if known else None) or highest_clock_mhz(measured) or 1.0
    drawn_w = float(np.nanmax(measured.rows["power_w"])) if "power_w" in measured.rows else 0.0
    return Board(gpu, max_clock, (known.clock_step_mhz if known else None) or 15.0, _prior(known, drawn_w))


def _prior(gpu: Gpu | None, drawn_w: float) -> ResponsePrior:
    """Prior of the GPU before its readings, of which the strongest drew ``drawn_w``."""
    usual = ResponsePrior()
    rated_w = (gpu.tdp_w if gpu else None) or max(1.1 * drawn_w, 1.0)
    prior = usual.scaled(rated_w / usual.limit_w)
    if gpu and gpu.power:
        static_w = max(gpu.power.static_w, 0.1 * rated_w)
        wait_w = max(_WAIT_AT_TOP * gpu.power.wait_w, static_w)
        prior = replace(prior, static_w=static_w, wait_w=wait_w, pause_w=_PAUSE * static_w)
    if gpu and gpu.clock_min_mhz and gpu.clock_max_mhz:
        prior = replace(prior, lowest=_LOWEST * gpu.clock_min_mhz / gpu.clock_max_mhz)
    figures = response_figures(gpu) if gpu else {}
    if figures:
        watts = {name: figures[name] for name in ("static_w", "wait_w", "pause_w", "limit_w") if name in figures}
        knee, rise = figures["knee_fraction"], figures["voltage_ratio"] - 1.0
        scatter = figures.get("limit_scatter", prior.scatter)
        prior = replace(prior, knee=knee, rise=rise, scatter=scatter, **watts | _SURE)
    if gpu is None or gpu.tdp_w is None or drawn_w > 1.02 * rated_w:  # another board of that GPU
        return replace(prior, limit_w=max(1.03 * drawn_w, rated_w), limit_sd=_LIMIT_SD_OTHER_BOARD)
    return replace(prior, limit_sd=_LIMIT_SD_MEASURED if "limit_w" in figures else _LIMIT_SD)
