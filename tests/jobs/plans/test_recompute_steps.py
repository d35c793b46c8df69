"""What recomputes more than it needs never reaches a front."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.core.schema import LAYOUT_COLUMNS, MODULES, NEUTRAL, RECOMPUTE_CODES, Columns, Floats
from jointopt.jobs.jobfile import job_from_options
from jointopt.jobs.plans.space import add_recompute_steps, enumerate_layouts
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cost_model import CostModel
from jointopt.physics.memory import peak_memory_bytes

JOB = job_from_options(
    model="llama-2-7b", gpu="a100-sxm4-80gb", gpus=8, global_batch_size=64, seq_length=4096, framework="megatron-lm"
)


def fits_below(gib: float) -> object:
    def fits(layouts: Columns) -> Floats:
        return (peak_memory_bytes(JOB, layouts) <= gib * 2**30).astype(float)

    return fits


def rows(layouts: Columns, at: np.ndarray) -> Columns:
    return {name: values[at] for name, values in layouts.items()}


@pytest.mark.parametrize("gib", [20.0, 40.0, 74.0])
def test_no_layout_that_is_left_out_beats_all_that_stay(gib: float) -> None:
    fits = fits_below(gib)
    layouts = enumerate_layouts(JOB).layouts
    found, fitting, needed = add_recompute_steps(JOB, layouts, fits(layouts), fits, 0.05)
    physics = CostModel(JOB, found)
    clocks = uniform_stage_clocks(found["pp"], physics.top_mhz)
    plans = physics.evaluate(np.arange(len(needed)), clocks)
    out, kept = (fitting > 0) & ~needed, (fitting > 0) & needed
    for name in ("iteration_time_s", "energy_j"):
        assert plans[name][kept].min() <= plans[name][out].min(initial=np.inf)


def test_where_nothing_is_comfortable_without_full_recompute_finer_steps_join() -> None:
    fits = fits_below(40.0)
    layouts = enumerate_layouts(JOB).layouts
    found, fitting, needed = add_recompute_steps(JOB, layouts, fits(layouts), fits, 0.05)
    chosen = rows(found, (fitting > 0) & needed)
    assert (chosen["recompute_num_layers"] > 0).any()
    assert (found["recompute_modules"] & MODULES.bit("layernorm") > 0).any()


def test_a_comfortable_layout_keeps_no_variant_that_recomputes() -> None:
    plain = {name: np.array([1, 1]) for name in LAYOUT_COLUMNS} | {n: np.full(2, v) for n, v in NEUTRAL.items()}
    plain["recompute"] = np.array([RECOMPUTE_CODES["none"], RECOMPUTE_CODES["full"]])
    _, _, needed = add_recompute_steps(JOB, plain, np.array([0.95, 1.0]), fits_below(1e9), 0.05)
    assert needed.tolist() == [True, False]
    _, _, tight = add_recompute_steps(JOB, plain, np.array([0.5, 0.99]), fits_below(1e9), 0.05)
    assert tight[:2].tolist() == [True, False]  # a finer step is comfortable first


def test_quarters_of_a_chunk_are_as_many_whole_layers_as_recompute_a_quarter_at_least() -> None:
    # of 6 layers 1.5, 3 and 4.5
    job = replace(JOB, model=replace(JOB.model, num_layers=6))
    whole = {name: np.ones(1, np.int64) for name in LAYOUT_COLUMNS} | {n: np.full(1, v) for n, v in NEUTRAL.items()}
    whole["recompute"] = np.array([RECOMPUTE_CODES["full"]])
    found, _, _ = add_recompute_steps(job, whole, np.array([0.5]), fits_below(1e9), 0.05)
    full = found["recompute"] == RECOMPUTE_CODES["full"]
    assert found["recompute_num_layers"][full].tolist() == [0, 2, 3, 5]
