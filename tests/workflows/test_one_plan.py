"""A plan with blanks means the same to `explain`, to `script` and to a row of a table."""

import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import jointopt
from jointopt.core.errors import PlanError
from jointopt.core.schema import DEGREES, LAYOUT_COLUMNS
from jointopt.runs.workloads import workloads
from jointopt.spec.catalog.frameworks import framework_names
from jointopt.spec.defaults import canonical
from jointopt.spec.jobfile import job_from_options
from jointopt.spec.plans.parse import parse_plan, plan_records

GPUS = ("a100-sxm4-80gb", "h100-sxm5-80gb", "v100-sxm2-16gb", "gh200-96gb")
SIZES = {"num_gpus": 16, "global_batch_size": 64, "seq_length": 2048}
CHOICES = {
    "vpp": st.sampled_from([1, 2]), "micro_batch_size": st.sampled_from([1, 2, 4]),
    "sequence_parallel": st.booleans(), "recompute": st.sampled_from(["none", "selective", "full"]),
    "zero_stage": st.integers(0, 3), "ep": st.sampled_from([1, 2]),
}  # fmt: skip


@st.composite
def blank_plans(draw):
    """Some of the fields of a plan on 16 GPUs."""
    left, plan = 16, {}
    for name in draw(st.permutations(DEGREES))[: draw(st.integers(0, 3))]:
        plan[name] = draw(st.sampled_from([d for d in (1, 2, 4, 8) if left % d == 0]))
        left //= plan[name]
    return plan | draw(st.fixed_dictionaries({}, optional=CHOICES))


def both(framework, gpu, model, plan):
    """The job of the options, and the workload of the table's row."""
    job = job_from_options(model, gpu, 16, 64, 2048, framework=framework)
    row = {"model": model, "gpu": gpu, "framework": framework, **SIZES, **plan}
    return job, pd.DataFrame([row])


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(framework_names()), st.sampled_from(GPUS), st.sampled_from(["llama-2-13b", "mixtral-8x7b"]),
    blank_plans(),
)  # fmt: skip
def test_a_plan_with_blanks_is_the_same_plan_everywhere(framework, gpu, model, plan):
    job, table = both(framework, gpu, model, plan)
    parsed = parse_plan(plan, job)
    (work,), _ = workloads(table)
    row = canonical(work.job, work.plans)
    clocks = parsed.stage_clock_mhz
    assert plan_records(row, work.stage_clock_mhz, [0]) == plan_records(parsed.layouts, clocks, [0])
    for name in ("dtype", "attention", "fused_norm", "framework", "global_batch_size"):
        assert getattr(work.job.training, name) == getattr(job.training, name)
    # a degree that the others imply is an assumption of a plan alone
    implied = {*DEGREES} & {*parsed.assumed}
    assert {*work.assumed[0].split()} & {*LAYOUT_COLUMNS} - implied == {*parsed.assumed} & {*LAYOUT_COLUMNS} - implied


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(framework_names()), st.sampled_from(GPUS[:3]), blank_plans())
def test_a_plan_with_blanks_has_one_prediction(framework, gpu, plan):
    job, table = both(framework, gpu, "llama-2-13b", plan)
    try:
        explained = jointopt.explain(job, as_text(plan), surrogate="none")
    except PlanError:
        assume(False)
    (row,) = jointopt.predict(table, surrogate="none").to_dict("records")
    for name in ("iteration_time_s", "energy_j", "peak_memory_gib"):
        assert row[f"predicted_{name}"] == pytest.approx(getattr(explained, name), rel=1e-9)


def as_text(plan):
    return " ".join(f"{name}={value}" for name, value in plan.items())
