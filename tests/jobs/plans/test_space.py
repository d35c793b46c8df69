"""The joint space against plain Python loops, its accounting, and each of its rules."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.schema import COLUMNS, LAYOUT_COLUMNS
from jointopt.jobs.catalog.frameworks import load_framework
from jointopt.jobs.framework import Framework
from jointopt.jobs.model import Model
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.space import divisors, enumerate_layouts
from jointopt.jobs.plans.text import plan_records, uniform_stage_clocks
from tests.jobs.plans.brute_force import USUAL, allowed_plans, is_allowed

LLAMA_405B = Model("llama-3-405b", 126, 16384, 53248, 128, 8, 128256, 128)
GPT3 = Model("gpt3-175b", 96, 12288, 49152, 96, 96, 50304, 128, gated_mlp=False)
FRAMEWORKS = (
    Framework(),
    Framework(zero_stages=(1,), recomputes=("selective", "full"), sequence_parallel=(True,)),
    Framework(interleaving=False, context_parallel=False, expert_tensor_parallel=False),
    Framework(zero_stages=(0, 2, 3), zero_stages_with_pipeline=(0, 2), sequence_parallel=(False,)),
    load_framework("megatron-lm"),
    load_framework("megatron-deepspeed"),
    load_framework("nanotron"),
    load_framework("fsdp"),
    replace(load_framework("torchtitan"), schedules=("1f1b", "zb-h1", "zbv", "dualpipev")),
)
SEARCHES = (
    {},
    {"tp": (1, 2), "micro_batch_size": (1, 2, 5), "zero_stage": (1,), "recompute": ("selective",)},
    {"pp": (2, 4), "vpp": (1, 2, 3), "sequence_parallel": (True,), "ep": (1, 3)},
)

SMALL = {"tp": (1, 2), "micro_batch_size": (1, 2), "cp": (1, 2)}
NEWER = (  # experts, and what is searched
    (0, {"stage_layers": ("", "1;3", "2;2", "1;1;0;2"), "schedule": ("1f1b", "zb-h1", "zbv", "dualpipev")}),
    (0, {"recompute_modules": ("", "core_attn", "mlp;layernorm", "moe_act"), "recompute_num_layers": (0, 1, 2)}),
    (2, {"dp_replicate": (1, 2), "offload": ("none", "optimizer"), "recompute": ("none",)}),
    (2, {"gtp": (1, 2, 4), "egtp": (1, 2), "dp_replicate": (1, 2), "recompute": ("none",)}),
    (0, {"overlap": ("", "none", "dp", "tp", "dp;tp"), "zero_stage": (0, 1)}),
    (0, {"overlap": ("tp",), "recompute": ("none",)}),
    (2, {"etp": (1, 2, 3), "recompute_modules": ("", "moe", "mla_up_proj"), "recompute": ("selective", "full")}),
)


def records(space):
    return plan_records(space.layouts, uniform_stage_clocks(space.layouts["pp"], 1.0), range(space.size))


def layout_tuple(plan):
    return tuple(plan[name] for name in LAYOUT_COLUMNS)


@pytest.mark.parametrize(
    ("framework", "search"),
    [*((framework, SEARCHES[0]) for framework in FRAMEWORKS), *itertools.product(FRAMEWORKS[:4], SEARCHES[1:])],
)
def test_the_space_is_what_plain_loops_find(make_job, dense, framework, search):
    model = replace(dense, num_layers=4, num_attention_heads=4)
    job = make_job(1, 4, model, search, framework, global_batch_size=10, attention="unfused")
    found = [layout_tuple(plan) for plan in records(enumerate_layouts(job))]
    assert len(found) == len(set(found))
    assert set(found) == allowed_plans(job)


@pytest.mark.parametrize("framework", [FRAMEWORKS[0], FRAMEWORKS[4], FRAMEWORKS[8]], ids=lambda one: one.name)
@pytest.mark.parametrize(("experts", "search"), NEWER)
def test_the_space_of_newer_columns_is_what_plain_loops_find(make_job, dense, moe, framework, search, experts):
    model = replace(moe if experts else dense, num_layers=4, num_attention_heads=4, num_query_groups=2)
    model = replace(model, num_experts=experts, num_dense_layers=int(experts > 0))
    job = make_job(1, 4, model, SMALL | search, framework, global_batch_size=4, attention="unfused")
    found = [layout_tuple(plan) for plan in records(enumerate_layouts(job))]
    assert len(found) == len(set(found))
    assert set(found) == allowed_plans(job)


@pytest.mark.parametrize("attention", ["fused", "flash2"])
def test_the_space_of_an_moe_job_is_what_plain_loops_find(make_job, moe, attention):
    model = replace(moe, num_layers=6, num_experts=6, num_dense_layers=1, num_shared_experts=1)
    job = make_job(3, 2, model, attention=attention, global_batch_size=6, seq_length=96)
    found = [layout_tuple(plan) for plan in records(enumerate_layouts(job))]
    assert set(found) == allowed_plans(job)
    assert found


def test_the_space_of_overlapped_all_to_alls_is_what_plain_loops_find(make_job, moe):
    model = replace(moe, num_layers=4, num_experts=4, num_attention_heads=4)
    search = SMALL | {"recompute_modules": ("", "moe", "layernorm"), "zero_stage": (1,)}
    job = make_job(1, 4, model, search, FRAMEWORKS[4], global_batch_size=4, overlap_moe_a2a=True)
    found = {layout_tuple(plan) for plan in records(enumerate_layouts(job))}
    assert found == allowed_plans(job)
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
    special = {name: COLUMNS[name].array_dtype for name in LAYOUT_COLUMNS}
    assert all(column.dtype == special.get(name, np.int64) for name, column in layouts.items())


def test_the_clocks_to_choose_from_come_from_the_job(make_job):
    assert enumerate_layouts(make_job()).clocks_mhz.tolist() == [600.0, 1005.0, 1410.0]


def test_tensor_parallelism_may_cross_nodes(make_job):
    tp = enumerate_layouts(make_job(2, 2)).layouts["tp"]
    assert tp.max() == 4


def test_uneven_layers_without_a_stated_split_are_for_plain_pipelines_only(make_job, dense):
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


def test_combinations_outside_the_search_are_counted_by_the_column_that_leaves_them_out(make_job):
    dropped = enumerate_layouts(make_job(search={"tp": (1,), "micro_batch_size": (2,)})).dropped
    assert {"outside the job's search.tp", "outside the job's search.micro_batch_size"} <= dropped.keys()
    assert "outside the job's search.pp" not in dropped


def test_an_empty_space_counts_what_emptied_it(make_job):
    space = enumerate_layouts(make_job(global_batch_size=7, search={"tp": (1,), "pp": (1,), "cp": (1,)}))
    assert space.size == 0
    assert space.dropped["dp does not divide the global batch of 7 sequences"] > 0


def test_the_divisors_of_a_number_are_all_of_them():
    assert divisors(1) == [1]
    assert divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
    assert divisors(100_352) == [d for d in range(1, 100_353) if 100_352 % d == 0]


@pytest.mark.parametrize(("model", "nodes", "batch"), [(GPT3, 2048, 6144), (LLAMA_405B, 12544, 12544)])
def test_the_space_of_a_huge_cluster_is_counted_whole(make_job, model, nodes, batch):
    space = enumerate_layouts(make_job(nodes, 8, model, seq_length=8192, global_batch_size=batch))
    assert space.size > 10_000
    assert space.considered == space.size + sum(space.dropped.values())


@settings(max_examples=40, deadline=None)
@given(changes=JOBS, is_moe=st.booleans(), data=st.data())
def test_the_check_of_one_plan_refuses_what_the_space_lacks_and_nothing_else(
    make_job, dense, moe, changes, is_moe, data
):
    gpus = changes["nodes"] * changes["gpus_per_node"]
    every_cp = {"cp": tuple(divisors(gpus))}  # the check takes a degree that the space leaves out for its few tokens
    job = make_job(model=moe if is_moe else dense, **(changes | {"search": changes["search"] | every_cp}))
    plan = {name: data.draw(st.sampled_from(divisors(gpus))) for name in ("tp", "pp", "cp")}
    plan["dp"] = max(gpus // (plan["tp"] * plan["pp"] * plan["cp"]), 1)
    plan |= {name: data.draw(st.integers(1, 3)) for name in ("ep", "vpp", "micro_batch_size")}
    plan |= {"sequence_parallel": data.draw(st.booleans()), "zero_stage": data.draw(st.integers(0, 3))}
    plan["recompute"] = data.draw(st.sampled_from(["none", "selective", "full"]))
    plan |= {"etp": data.draw(st.sampled_from([1, plan["tp"]])) if is_moe else 1} | USUAL
    found = {layout_tuple(known) for known in records(enumerate_layouts(job))}
    assert (check_plan(job, plan) == []) == (layout_tuple(plan) in found)
    assert (layout_tuple(plan) in found) == (
        is_allowed(job, plan) and plan["dp"] * plan["tp"] * plan["pp"] * plan["cp"] == gpus
    )
