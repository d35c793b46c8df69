"""Seconds that casts to fp8 and fp4 take within one plan: outputs alone, which nothing of time or energy reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, Floats
from jointopt.jobs.scaling_recipe import ScalingRecipe
from jointopt.physics.cost_model import CostModel
from jointopt.physics.costs import stage_costs

_FREE = ScalingRecipe("", "", 0.0, copies=0.0, reads=0.0, launches=0)


def cast_times_s(physics: CostModel, index: int) -> Floats:
    """Seconds of one iteration in which a GPU of each stage of layout row ``index`` casts operands of products, (pp,).

    The same stages priced once more with casts that move nothing; memory-bound, so that no clock changes them.
    """
    free = replace(physics.hardware, kernels=replace(physics.hardware.kernels, recipe=_FREE))
    layout = {name: physics.layouts[name][[index]] for name in LAYOUT_COLUMNS}
    costs = [stage_costs(physics.job, hardware, layout).of_all_ranks() for hardware in (physics.hardware, free)]
    whole, without = (each.forward_memory_s + each.backward_memory_s for each in costs)
    return np.asarray(float(costs[0].num_micro_batches[0]) * (whole - without)[0])
