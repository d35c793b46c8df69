"""A source's own runs, as a surrogate learned from them, in its card and its files of trees."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jointopt.surrogate.clock_response import ClockResponse, LearnedResponse
from jointopt.surrogate.heat_names import HEAT_NAMES
from jointopt.surrogate.own_mix import Mix
from jointopt.surrogate.own_runs import OwnRuns
from jointopt.surrogate.own_targets import OwnTarget
from jointopt.surrogate.power_scale import PowerScale
from jointopt.surrogate.residual_gp import Kernel
from jointopt.surrogate.trees import Trees

OWN_TREES = "own-{}-{}.json"  # number of the source, and what of its runs they predict


def entry_of_own(own: OwnRuns, folder: Path, number: int) -> dict[str, Any]:
    """A card's entry on a source's own runs, whose trees are written into ``folder``."""
    kept: dict[str, Any] = {
        name: getattr(own, name)
        for name in (
            "source",
            "width",
            "width_of_known",
            "held_out",
            "off_below",
            "clock_remark",
            "power_limit_w",
            "as_sure",
            "of_new",
            "of_known",
        )
    }
    for name, of, mix in (("time", "time", own.time), ("power_mix", "power", own.power_mix)):
        kept[name] = _of_mix(mix, folder / OWN_TREES.format(number, of))
    kept["heat"] = {
        name: {
            "scale": dataclasses.asdict(target.scale),
            "mix": _of_mix(target.mix, folder / OWN_TREES.format(number, name)),
            "overshoot": target.overshoot,
        }
        for name, target in own.heat.items()
    }
    kept["kernel"] = None if own.kernel is None else dataclasses.asdict(own.kernel)
    power = dataclasses.asdict(own.power)
    return kept | {
        "response": own.response and dataclasses.asdict(own.response), "power": power, "clocks": list(own.clocks),
        "errors": dict(own.errors), "importance": {of: dict(sizes) for of, sizes in own.importance.items()},
    }  # fmt: skip


def _of_mix(mix: Mix, path: Path) -> dict[str, Any]:
    """A card's entry on trees beside something else, which are written to ``path``."""
    booster = mix.trees and mix.trees.save(path)
    return {"weight": mix.weight, "beyond": mix.beyond, "names": list(mix.names), "booster": booster}


def read_own(folder: Path, number: int, values: dict[str, Any]) -> OwnRuns:
    """The `OwnRuns` that a card describes; KeyError, TypeError or ValueError for another shape."""
    mixes: dict[str, Any] = {
        name: _mix(folder / OWN_TREES.format(number, of), values[name])
        for name, of in (("time", "time"), ("power_mix", "power"))
    }
    low, high = map(float, values["clocks"])
    heat = {
        name: OwnTarget(
            _scale(target["scale"]), _mix(folder / OWN_TREES.format(number, name), target["mix"]),
            number_or_none(target.get("overshoot")),
        )
        for name, target in heat_of(values).items()
    }  # fmt: skip
    return OwnRuns(
        source=str(values["source"]), kernel=values["kernel"] and read_kernel(values["kernel"]),
        width=float(values["width"]), width_of_known=number_or_none(values.get("width_of_known")),
        power=_scale(values["power"]), clocks=(low, high), heat=heat,
        power_limit_w=number_or_none(values.get("power_limit_w")),
        errors={str(name): float(error) for name, error in values["errors"].items()},
        held_out=str(values["held_out"]), **mixes, response=_response(values.get("response")),
        off_below=float(values.get("off_below", 0.0)), clock_remark=str(values.get("clock_remark", "")),
        as_sure=bool(values.get("as_sure", False)), of_new=float(values.get("of_new", 1.0)),
        of_known=float(values.get("of_known", 1.0)),
        importance=_importance(values["importance"]),
    )  # fmt: skip


def _importance(values: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Importance of features by quantity, the largest first; an earlier version had that of time alone."""
    by = values if all(isinstance(sizes, Mapping) for sizes in values.values()) else {"time": values}
    return {
        str(of): {str(name): float(size) for name, size in sorted(sizes.items(), key=lambda one: -one[1])}
        for of, sizes in by.items()
    }


def heat_of(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A card's peak power and temperature; none by a version that learned neither. ValueError for another quantity."""
    heat: Mapping[str, Any] = values.get("heat", {})
    if unknown := set(heat) - set(HEAT_NAMES):
        raise ValueError(f"it has learned of {', '.join(sorted(unknown))}, expected {' or '.join(HEAT_NAMES)}")
    return heat


def _scale(values: Mapping[str, Any]) -> PowerScale:
    log_sd = values["log_sd"]
    factor, offset_w = (float(values[name]) for name in ("factor", "offset_w"))
    return PowerScale(factor, number_or_none(log_sd), offset_w)


def number_or_none(value: Any) -> float | None:
    """A card's number; None where it has none."""
    return None if value is None else float(value)


def _mix(path: Path, values: dict[str, Any]) -> Mix:
    trees = Trees.read(path, values["booster"])
    return Mix(trees, float(values["weight"]), bool(values["beyond"]), tuple(map(str, values["names"])))


def _response(values: Mapping[str, Any] | None) -> LearnedResponse | None:
    """The learned clock response of a card; None where nothing was learned, or by a version that learned none."""
    if values is None:
        return None
    response = ClockResponse(*(float(values["response"][name]) for name in ("compute", "memory")))
    if not (0.0 < response.compute <= 1.0 and 0.0 <= response.memory <= 1.0):
        raise ValueError("a share that follows the clock is not between 0 and 1")
    return LearnedResponse(response, float(values["before"]), float(values["after"]))


def read_kernel(values: dict[str, Any]) -> Kernel:
    """The kernel that a card describes, of a cluster's own runs where it says which constants vary."""
    read: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else float(v) for k, v in values.items()}
    return Kernel(**read)
