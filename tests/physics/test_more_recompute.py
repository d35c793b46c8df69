"""More recomputation never needs more memory, nor less time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.schema import MODULES
from jointopt.jobs.model import Model
from jointopt.physics.cost_model import CostModel
from tests.physics.hand.plain_machine import DENSE, LATENT, MOE, physics

MODELS = (DENSE, LATENT, replace(MOE, num_shared_experts=1), replace(MOE, num_dense_layers=1))
WHERE = st.sampled_from(
    ({}, {"tp": 2}, {"tp": 2, "sequence_parallel": True}, {"pp": 2}, {"pp": 2, "vpp": 2}, {"dp": 2, "zero_stage": 1})
)
NAMES = st.sets(st.sampled_from(MODULES.names))


def found(model: Model, **cells: Any) -> tuple[float, float]:
    """Bytes of the fullest rank, and seconds of an iteration."""
    priced: CostModel = physics(model=model, **cells)
    clocks = np.full((1, int(cells.get("pp", 1))), priced.top_mhz)
    return float(priced.memory_bytes[0]), float(priced.iteration_time_s(np.array([0]), clocks)[0])


def cells(names: set[str]) -> dict[str, int]:
    return {"recompute": int(bool(names)), "recompute_modules": MODULES.code(";".join(names))}


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(MODELS), WHERE, NAMES, NAMES, st.sampled_from(("flash2", "fused", "unfused")))
def test_more_modules_never_need_more_memory_nor_less_time(
    model: Model, where: dict[str, Any], some: set[str], others: set[str], attention: str
) -> None:
    fewer, more = (found(model, **where, **cells(names), attention=attention) for names in (some, some | others))
    assert more[0] <= fewer[0] * (1 + 1e-12)
    assert more[1] >= fewer[1] * (1 - 1e-12)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(MODELS), WHERE, st.integers(1, 5), st.integers(1, 5))
def test_more_layers_never_need_more_memory_nor_less_time(
    model: Model, where: dict[str, Any], first: int, second: int
) -> None:
    none = found(model, **where)
    fewer, more = (found(model, **where, recompute=2, recompute_num_layers=n) for n in sorted((first, second)))
    whole = found(model, **where, recompute=2)
    for less, most in ((none, fewer), (fewer, more), (more, whole)):
        assert most[0] <= less[0] * (1 + 1e-12)
        assert most[1] >= less[1] * (1 - 1e-12)
