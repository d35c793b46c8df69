"""The joint space against plain Python loops, its accounting, and each of its rules."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.spec.framework import Framework
from jointopt.spec.model import Model
from jointopt.spec.plans.check import check_plan
from jointopt.spec.plans.clocks import uniform_stage_clocks
from jointopt.spec.plans.parse import plan_records
from jointopt.spec.plans.space import divisors, enumerate_layouts, unused_search_values

LLAMA_405B = Model("llama-3-405b", 126, 16384, 53248, 128, 8, 128256, 128)
GPT3 = Model("gpt3-175b", 96, 12288, 49152, 96, 96, 50304, 128, gated_mlp=False)
FRAMEWORKS = (
    Framework(),
    Framework(zero_stages=(1,), recomputes=("selective", "full"), sequence_parallel=(True,)),
    Framework(interleaving=False, context_parallel=False, expert_tensor_parallel=False),
    Framework(zero_stages=(0, 2, 3), zero_stages_with_pipeline=(0, 2), sequence_parallel=(False,)),
)
SEARCHES = (
    {},
    {"tp": (1, 2), "micro_batch_size": (1, 2, 5), "zero_stage": (1,), "recompute": ("selective",)},
    {"pp": (2, 4), "vpp": (1, 2, 3), "sequence_parallel": (True,), "ep": (1, 3)},
)


def records(space):
    return plan_records(space.layouts, uniform_stage_clocks(space.layouts["pp"], 1.0), range(space.size))


def layout_tuple(plan):
    return tuple(plan[name] for name in LAYOUT_COLUMNS)


def by_loops(job):
    """Every plan that the checker accepts, by loops over all values any column could have."""
    gpus, experts = job.cluster.num_gpus, max(job.model.num_experts, 1)
    columns = [range(1, gpus + 1)] * 4 + [range(1, experts + 1), range(1, job.model.num_layers + 1)]
    degrees = [d for d in itertools.product(*columns[:4]) if math.prod(d) == gpus]
    rest = itertools.product(
        *columns[4:],
        range(1, job.training.global_batch_size + 1),
        (False, True),
        ("none", "selective", "full"),
        range(4),
    )
    plans = (dict(zip(LAYOUT_COLUMNS, d + r, strict=True)) for r in rest for d in degrees)
    return {layout_tuple(plan) for plan in plans if not check_plan(job, plan)}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("search", SEARCHES)
def test_the_space_is_what_plain_loops_over_the_checker_find(make_job, dense, framework, search):
    model = replace(dense, num_layers=4, num_attention_heads=4)
    job = make_job(1, 4, model, search, framework, global_batch_size=10, attention="unfused")
    found = [layout_tuple(plan) for plan in records(enumerate_layouts(job))]
    assert len(found) == len(set(found))
    assert set(found) == by_loops(job)


@pytest.mark.parametrize("attention", ["fused", "flash2"])
def test_the_space_of_an_moe_job_is_what_plain_loops_find(make_job, moe, attention):
    model = replace(moe, num_layers=6, num_experts=6, num_dense_layers=1, num_shared_experts=1)
    job = make_job(3, 2, model, attention=attention, global_batch_size=6, seq_length=96)
    found = [layout_tuple(plan) for plan in records(enumerate_layouts(job))]
    assert set(found) == by_loops(job)
    assert found


JOBS = st.fixed_dictionaries(
    {
        "nodes": st.integers(1, 6),
        "gpus_per_node": st.sampled_from([1, 3, 4, 8]),
        "seq_length": st.sampled_from([96, 128, 250]),
        "global_batch_size": st.integers(1, 60),
        "attention": st.sampled_from(["unfused", "flash2"]),
        "framework": st.sampled_from(FRAMEWORKS),
        "search": st.sampled_from(SEARCHES),
    }
)


@settings(max_examples=40, deadline=None)
@given(changes=JOBS, is_moe=st.booleans())
def test_kept_and_dropped_combinations_add_up_to_all_considered(make_job, dense, moe, changes, is_moe):
    space = enumerate_layouts(make_job(model=moe if is_moe else dense, **changes))
    assert space.considered == space.size + sum(space.dropped.values())
    assert all(count > 0 for count in space.dropped.values())


@settings(max_examples=25, deadline=None)
@given(changes=JOBS, is_moe=st.booleans())
def test_no_layout_occurs_twice_and_each_passes_the_checker(make_job, dense, moe, changes, is_moe):
    job = make_job(model=moe if is_moe else dense, **changes)
    plans = records(enumerate_layouts(job))
    assert len({layout_tuple(plan) for plan in plans}) == len(plans)
    assert [check_plan(job, plan) for plan in plans[:300]] == [[]] * len(plans[:300])


def test_each_column_has_its_own_dtype(make_job):
    layouts = enumerate_layouts(make_job()).layouts
    assert tuple(layouts) == LAYOUT_COLUMNS
    special = {"sequence_parallel": np.bool_, "recompute": np.int8}
    assert all(column.dtype == special.get(name, np.int64) for name, column in layouts.items())


def test_the_clocks_to_choose_from_come_from_the_job(make_job):
    assert enumerate_layouts(make_job()).clocks_mhz.tolist() == [600.0, 1005.0, 1410.0]


def test_tensor_parallelism_may_cross_nodes(make_job):
    tp = enumerate_layouts(make_job(2, 2)).layouts["tp"]
    assert tp.max() == 4


def test_uneven_layers_are_for_plain_pipelines_only(make_job, dense):
    layouts = enumerate_layouts(make_job(model=replace(dense, num_layers=10))).layouts
    uneven = 10 % layouts["pp"] != 0
    assert uneven.any()
    assert set(layouts["vpp"][uneven]) == {1}


def test_selective_recompute_under_flash_attention_is_none(make_job):
    space = enumerate_layouts(make_job(search={"recompute": ("selective",)}, attention="flash3"))
    assert set(space.layouts["recompute"].tolist()) == {0}
    assert "selective recompute with flash3 is the same plan as none" in space.dropped


def test_a_searched_zero_stage_keeps_layouts_that_have_nothing_to_shard(make_job):
    layouts = enumerate_layouts(make_job(search={"zero_stage": (1,)})).layouts
    alone = layouts["dp"] * layouts["cp"] == 1
    assert set(layouts["zero_stage"][alone]) == {0}
    assert set(layouts["zero_stage"][~alone]) == {1}


@settings(max_examples=30, deadline=None)
@given(tp=st.sets(st.sampled_from([1, 2, 4, 8]), min_size=1), mbs=st.sets(st.integers(1, 24), min_size=1))
def test_a_restricted_search_is_the_matching_part_of_the_whole_space(make_job, tp, mbs):
    whole = records(enumerate_layouts(make_job()))
    search = {"tp": tuple(tp), "micro_batch_size": tuple(mbs)}
    part = records(enumerate_layouts(make_job(search=search)))
    assert part == [plan for plan in whole if plan["tp"] in tp and plan["micro_batch_size"] in mbs]


@pytest.mark.parametrize(
    ("search", "sentence"),
    [
        ({"tp": (2, 3)}, "search.tp 3 is in no layout: tp must divide the 8 GPUs (nearest: 2 and 4)."),
        ({"tp": (8, 1)}, "search.tp 8 is in no layout: tp does not divide the 4 KV groups."),
        ({"ep": (1, 2)}, "search.ep 2 is in no layout: ep > 1 needs experts and dense is a dense model."),
        (
            {"micro_batch_size": (1, 7)},
            "search.micro_batch_size 7 is in no layout: "
            "dp*micro_batch_size does not divide the global batch of 24 sequences.",
        ),
    ],
)
def test_a_searched_value_that_fits_nowhere_is_explained(make_job, search, sentence):
    job = make_job(search=search)
    assert unused_search_values(job, enumerate_layouts(job)) == [sentence]


def test_searched_values_that_occur_need_no_explanation(make_job):
    job = make_job(search={"tp": (1, 2), "zero_stage": (1,), "vpp": (1, 2)})
    assert unused_search_values(job, enumerate_layouts(job)) == []


def test_an_empty_space_says_what_emptied_it(make_job):
    space = enumerate_layouts(make_job(global_batch_size=7, search={"tp": (1,), "pp": (1,), "cp": (1,)}))
    assert space.size == 0
    assert space.top_reasons(1) == ["dp does not divide the global batch of 7 sequences"]


def test_the_divisors_of_a_number_are_all_of_them():
    assert divisors(1) == [1]
    assert divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
    assert divisors(100_352) == [d for d in range(1, 100_353) if 100_352 % d == 0]


@pytest.mark.parametrize(
    ("model", "nodes", "batch"),
    [(GPT3, 2048, 6144), (LLAMA_405B, 2048, 2048), (LLAMA_405B, 12544, 12544)],
)
def test_the_space_of_a_huge_cluster_is_enumerated_whole(make_job, model, nodes, batch):
    job = make_job(nodes, 8, model, seq_length=8192, global_batch_size=batch)
    space = enumerate_layouts(job)
    assert space.size > 10_000
