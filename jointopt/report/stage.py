"""One pipeline stage of an explained plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from jointopt.report.documents import tidy_parts


@dataclass(frozen=True)
class Stage:
    """One pipeline stage of an explained plan; power and memory are those of each GPU of the stage."""

    clock_mhz: float
    busy_s: float
    idle_s: float
    energy_j: float  # all GPUs of the stage, one iteration
    memory_gib: float
    num_layers: int = 0
    power_w: float | None = None
    temperature_c: float | None = None  # of the hottest GPU
    num_gpus: int | None = None
    peak_power_w: float | None = None  # of the hottest GPU, while a micro-batch's kernels run
    power_limit_w: float | None = None  # the cluster's, or a lower one of the plan
    held_by: str = ""  # power_limit or temperature, where it keeps the clock below the plan's
    energy_by_part_j: Mapping[str, float] = field(default_factory=dict)  # adds up to energy_j
    temperature_by_position_c: Mapping[str, float] = field(default_factory=dict)  # inlet, exhaust

    def document(self) -> dict[str, Any]:
        """Every field."""
        return asdict(self) | {"energy_by_part_j": tidy_parts(self.energy_by_part_j)}
