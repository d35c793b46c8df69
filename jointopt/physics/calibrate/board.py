"""What is known of a GPU before its readings: its clocks, and how sure its power figures are."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from jointopt.core.errors import CatalogError
from jointopt.physics.calibrate.tables import ResponseTable
from jointopt.physics.clock_response import ResponsePrior
from jointopt.spec.catalog.gpus import load_gpu
from jointopt.spec.catalog.power import response_figures
from jointopt.spec.cluster import Gpu

CLOCK_COLUMNS = "clock_mhz", "forward_clock_mhz_mean", "backward_clock_mhz_mean"

# Of a GPU that was measured before.
_SURE = {"knee_sd": 0.01, "rise_sd": 0.1, "static_sd": 0.08, "wait_sd": 0.08}
_LIMIT_SD, _LIMIT_SD_OTHER_BOARD = 0.03, 0.1  # relative, of the board's power limit


@dataclass(frozen=True)
class Board:
    """A GPU whose response is to be found: its clocks, and the prior of its constants."""

    id: str
    max_clock_mhz: float
    step_mhz: float
    prior: ResponsePrior


def board_of(gpu: str, measured: ResponseTable, asked: ResponseTable | None) -> Board:
    """The GPU as the catalogue knows it; one that it does not know as the tables show it."""
    try:
        known = load_gpu(gpu)
    except CatalogError:
        known = None
    top = _highest_clock_mhz(measured, asked)
    listed = (known.clock_max_mhz or 0.0) if known else 0.0
    max_clock = listed if listed > 0.0 and top <= 1.01 * listed else top or 1.0
    drawn_w = float(np.nanmax(measured.rows["power_w"])) if "power_w" in measured.rows else 0.0
    return Board(gpu, max_clock, (known.clock_step_mhz if known else None) or 15.0, _prior(known, drawn_w))


def _highest_clock_mhz(measured: ResponseTable, asked: ResponseTable | None) -> float:
    """Of both tables, in columns that ``measured`` has; 0 where they state none."""
    names = [name for name in CLOCK_COLUMNS if name in measured.rows]
    tables = [measured] if asked is None else [measured, asked]
    seen = [float(table.rows[name].max()) for table in tables for name in names if name in table.rows]
    return max((clock for clock in seen if np.isfinite(clock)), default=0.0)


def _prior(gpu: Gpu | None, drawn_w: float) -> ResponsePrior:
    """What is known of the GPU before its readings, of which the strongest drew ``drawn_w``."""
    usual = ResponsePrior()
    rated_w = (gpu.tdp_w if gpu else None) or max(1.1 * drawn_w, 1.0)
    prior = usual.scaled(rated_w / usual.limit_w)
    if gpu and gpu.power:
        static_w = max(gpu.power.static_w, 0.1 * rated_w)
        prior = replace(prior, static_w=static_w, wait_w=max(gpu.power.wait_w, static_w))
    figures = response_figures(gpu) if gpu else {}
    if figures:
        rise = figures["voltage_ratio"] - 1.0
        prior = replace(prior, knee=figures["knee_fraction"], rise=rise, static_w=figures["static_w"])
        prior = replace(prior, **_SURE)
    if gpu is None or gpu.tdp_w is None or drawn_w > 1.02 * rated_w:  # another board of that GPU
        return replace(prior, limit_w=max(1.03 * drawn_w, rated_w), limit_sd=_LIMIT_SD_OTHER_BOARD)
    return replace(prior, limit_sd=_LIMIT_SD)
