"""Constants of the power model per GPU: measured where a measurement exists, else scaled from a named relative."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from jointopt.core.errors import CatalogError
from jointopt.core.facts import Assumption
from jointopt.spec.catalog.gpu_sheet import gpu_sheet, read_yaml
from jointopt.spec.cluster import Gpu, PowerConstants

_FILE = "power.yaml"
FIGURES = (
    "static_w", "wait_w", "active_w", "pj_per_flop", "pj_per_hbm_byte", "knee_fraction", "voltage_ratio",
)  # fmt: skip


def power_constants(gpu: Gpu) -> PowerConstants | None:
    """Constants of the GPU, or ``None`` where no figure scales to it (no TDP, no 16-bit peak).

    Where no measurement exists they are the relative's: unchanged for the same chip, else watts by TDP and pJ per
    flop by TDP over peak, so that full load draws the same share of the TDP. ``assumed`` has one entry per
    stand-in: by figure, or ``power`` with the GPU that stands in for all of them.
    """
    if gpu.id in read_yaml(_FILE)["measured"]:
        return _measured(gpu.id)
    same_chip = read_yaml(_FILE)["like"].get(gpu.id)
    if same_chip:
        reason = f"{gpu.id}: power constants are those of {same_chip} (same chip)"
        return _with_own_readings(gpu, _measured(same_chip), same_chip, reason)
    references = read_yaml(_FILE)["reference"]
    return _scaled(gpu, str(references.get(gpu.architecture, references["other"])))


@functools.cache
def _measured(gpu_id: str) -> PowerConstants:
    entry = read_yaml(_FILE)["measured"][gpu_id]
    values: dict[str, Any] = {figure: float(entry[figure][0]) for figure in FIGURES}
    remarks: dict[str, str] = {}  # by the first figure that each is about
    for figure, cell in entry.items():
        if cell[1] == "assumption" and cell[2] not in remarks.values():
            remarks[figure] = cell[2]
    assumed = (Assumption(figure, values[figure], f"{gpu_id}: {text}") for figure, text in remarks.items())
    return PowerConstants(**values, assumed=tuple(assumed))


def _scaled(gpu: Gpu, reference_id: str) -> PowerConstants | None:
    base, reference = _measured(reference_id), gpu_sheet(reference_id)
    peak = _peak_tflops(gpu)
    if gpu.tdp_w is None or peak is None:
        return None
    watts = gpu.tdp_w / reference.need("tdp_w", "scale its power constants to other GPUs")
    reference_peak = _peak_tflops(reference)
    if reference_peak is None:
        raise CatalogError(f"The catalogue has no 16-bit peak for GPU {reference_id!r}, whose power others scale from.")
    constants = replace(
        base,
        static_w=base.static_w * watts,
        wait_w=base.wait_w * watts,
        active_w=base.active_w * watts,
        pj_per_flop=base.pj_per_flop * watts * reference_peak / peak,
    )
    reason = (
        f"{gpu.id}: no power measurement; watts of {reference_id} scaled by TDP, pJ per flop by TDP over peak, "
        f"voltage curve and pJ per byte as there"
    )
    return _with_own_readings(gpu, constants, reference_id, reason)


def response_figures(gpu: Gpu) -> dict[str, float]:
    """Knee, voltage ratio and static power where a fit of new measurements of that GPU starts; empty: not measured."""
    response, same_chip = read_yaml(_FILE)["response"], read_yaml(_FILE)["like"].get(gpu.id)
    entry = response.get(gpu.id) or response.get(same_chip) or {}
    return {figure: float(cell[0]) for figure, cell in entry.items()}


def _peak_tflops(gpu: Gpu) -> float | None:
    return gpu.peak_tflops.get("bf16", gpu.peak_tflops.get("fp16"))


def _with_own_readings(gpu: Gpu, constants: PowerConstants, stand_in: str, reason: str) -> PowerConstants:
    """The GPU's own idle and waiting power in place of scaled ones, where the catalogue has them."""
    static_w = gpu.idle_w if gpu.idle_w is not None else constants.static_w
    wait_w = (
        gpu.wait_w
        if gpu.wait_w is not None
        else max(constants.wait_w, static_w * constants.wait_w / constants.static_w)
    )
    own = [name for name, value in (("idle_w", gpu.idle_w), ("wait_w", gpu.wait_w)) if value is not None]
    note = f"{reason}; its own {' and '.join(own)} measured" if own else reason
    assumed = (*constants.assumed, Assumption("power", stand_in, note))
    return replace(constants, static_w=static_w, wait_w=wait_w, assumed=assumed)
