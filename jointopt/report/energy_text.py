"""Where the joules of one plan go: by part and what is inside a part, by stage, and which limit holds a clock back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from jointopt.report.parts import tidy_parts
from jointopt.report.results import Explanation, Stage
from jointopt.report.table import TextColumn, lay_out, numbers, wrapped

_NAMES = {"tensor_parallel_rereads": "activations re-read by tp"}
_LINKS = {"intra_node": "within nodes", "inter_node": "between nodes"}


def energy_table(explanation: Explanation, factor: float, unit: str) -> list[str]:
    """One line per part, the largest first, with its share; memory and communication with what they are made of."""
    parts = tidy_parts(explanation.energy_by_part_j)
    total = sum(parts.values())
    inside = {
        "memory": dict(explanation.memory_energy_j),
        "communication": _by_link(explanation.communication_energy_j),
    }
    named = []
    for name, joules in sorted(parts.items(), key=lambda part: -part[1]):
        details = [(f"    {_NAMES.get(k, k)}", v) for k, v in inside.get(name, {}).items() if v > 0]
        named += [(f"  {name}", joules), *sorted(details, key=lambda part: -part[1])] if joules else []
    named.append(("  total", total))
    return lay_out(
        [
            TextColumn("Energy of all GPUs", [name for name, _ in named], left=True),
            TextColumn(unit, numbers([joules / factor for _, joules in named], total / factor)),
            TextColumn("%", [f"{100 * joules / total:.1f}" if total else "-" for _, joules in named]),
        ],
        gap="  ",
    )


def _by_link(kinds: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {
        f"{kind} {_LINKS.get(link, link)}": joules
        for kind, links in kinds.items()
        for link, joules in links.items()
    }


def stage_energy_table(stages: Sequence[Stage]) -> list[str]:
    """Energy of one GPU of each stage by part, in J; none for a plan without a pipeline, whose parts say it already."""
    shares = [_per_gpu(stage) for stage in stages]
    if len(stages) < 2 or not all(shares):
        return []
    names = sorted(shares[0], key=lambda name: -sum(share.get(name, 0.0) for share in shares))
    names = [name for name in names if any(share.get(name) for share in shares)]
    most = max(max(share.values()) for share in shares)
    columns = [numbers([share.get(name, 0.0) for share in shares], most) for name in names]
    runs = [
        [i for i, _ in run]
        for _, run in groupby(enumerate(zip(*columns, strict=True)), key=lambda item: item[1])
    ]
    labels = [f"{run[0] + 1}" if len(run) == 1 else f"{run[0] + 1}-{run[-1] + 1}" for run in runs]
    table = [TextColumn("stage", labels)]
    table += [
        TextColumn(name, [cells[run[0]] for run in runs]) for name, cells in zip(names, columns, strict=True)
    ]
    return ["Energy of one GPU of each stage, J", *lay_out(table, gap="  ")]


def _per_gpu(stage: Stage) -> dict[str, float]:
    if not stage.energy_by_part_j or not stage.num_gpus:
        return {}
    return {name: joules / stage.num_gpus for name, joules in tidy_parts(stage.energy_by_part_j).items()}


def held_back(explanation: Explanation) -> list[str]:
    """A sentence for each limit that keeps stages below the clock that was asked for."""
    found: dict[str, list[int]] = {}
    for number, stage in enumerate(explanation.stages, start=1):
        if stage.held_by == "power_limit" and stage.power_limit_w is not None:
            found.setdefault(f"the power limit of {stage.power_limit_w:g} W", []).append(number)
        elif stage.held_by:
            found.setdefault("the temperature", []).append(number)
    return [
        line
        for why, numbers_ in found.items()
        for line in wrapped(f"Held below the clock asked for by {why}: {_stages(numbers_)}.")
    ]


def _stages(numbers_: Sequence[int]) -> str:
    if len(numbers_) == 1:
        return f"stage {numbers_[0]}"
    whole = list(numbers_) == list(range(numbers_[0], numbers_[-1] + 1))
    return f"stages {numbers_[0]} to {numbers_[-1]}" if whole else f"stages {', '.join(map(str, numbers_))}"
