"""Terms of rules, splits and groups that no other rule stands in for, each alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jointopt.core.errors import PlanError
from jointopt.core.schema import DEGREES, MODULES, NEUTRAL, STAGE_LAYERS, evaluate, num_gpus
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.catalog.frameworks import framework_names, load_framework
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import Job
from jointopt.jobs.model import Model
from jointopt.jobs.plans.placement import (
    DEFAULT_ORDER,
    TP_PP_DP_ORDER,
    even_domain,
    members_per_domain,
    placement,
    stage_of_rank,
)
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.stages import _with_ends, offered_splits
from jointopt.jobs.plans.text import parse_plan

ANY = Framework(stage_splits=("any",))
PLAN: dict[str, Any] = {
    "dp": 4, "tp": 1, "pp": 2, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1, "sequence_parallel": False,
    "recompute": "none", "zero_stage": 0,
}  # fmt: skip


@pytest.mark.parametrize(("split", "holds"), [("3;5", True), ("4;5", True), ("3;4", False), ("5;5", False)])
def test_stated_splits_hold_the_layers_with_those_that_predict_further_tokens_or_without(
    split: str, holds: bool, make_job: Callable[..., Job], dense: Model
) -> None:
    job = make_job(model=replace(dense, mtp_num_layers=1), framework=ANY)
    found = check_plan(job, PLAN | {"stage_layers": split})
    assert [line for line in found if "numbers that add up" in line] == ([] if holds else found[:1])


@pytest.mark.parametrize("words", ["core_attn", "mlp", "moe", "layernorm;mlp"])
def test_a_framework_without_recompute_modules_refuses_each_of_them(
    words: str, make_job: Callable[..., Job], moe: Model
) -> None:
    without = [one for one in map(load_framework, framework_names()) if "no_recompute_modules" in one.rules]
    for framework in without:
        job = make_job(model=moe, framework=framework)
        found = check_plan(job, PLAN | {"recompute": "selective", "recompute_modules": words})
        assert f"{framework.name} cannot choose recompute_modules." in found
    assert without
    assert MODULES.code("core_attn") == 1  # the least of all codes


@pytest.mark.parametrize("value", [True, False, 0, -1, 1.5, "x", "", None, 10**7])
def test_a_degree_that_is_no_whole_number_of_at_least_one_is_refused(value: Any, make_job: Callable[..., Job]) -> None:
    with pytest.raises(PlanError, match="The tp of a plan must be a whole number 1 to"):
        parse_plan(PLAN | {"tp": value}, make_job())


@pytest.mark.parametrize("name", DEGREES)
def test_a_degree_outside_of_the_search_is_to_blame_before_all_rules(name: str, make_job: Callable[..., Job]) -> None:
    # of the ordered degrees of 8 GPUs, 2³: as many as ways to give three twos to four places
    space = enumerate_layouts(make_job(search={name: (1,)}))
    without = 10 / 20  # to three places: 10 of 20
    assert space.dropped[f"outside the job's search.{name}"] == space.considered * (1 - without)


def test_a_listed_split_of_interleaved_chunks_is_in_the_space(make_job: Callable[..., Job], dense: Model) -> None:
    split = "1;2;3;2"
    job = make_job(model=dense, framework=ANY, search={"stage_layers": (split,), "vpp": (2,), "pp": (2,)})
    assert check_plan(job, PLAN | {"vpp": 2, "stage_layers": split}) == []
    assert STAGE_LAYERS.code_of((1, 2, 3, 2)) in enumerate_layouts(job).layouts["stage_layers"].tolist()


def test_a_dense_plan_has_no_groups_of_experts(dense: Model) -> None:
    cells = {"dp": 2, "tp": 4, "pp": 1, "cp": 1, "ep": 1, "etp": NEUTRAL["etp"]}
    found = placement({name: np.array([value]) for name, value in cells.items()}, 8)
    assert {name: found[name].size.tolist() for name in ("etp", "ep", "expert_dp")} == {
        "etp": [1], "ep": [1], "expert_dp": [8],
    }  # fmt: skip


@pytest.mark.parametrize(("nodes", "domain"), [(33, 9), (10, 5), (13, 7), (8, 8), (16, 8), (55, 5), (44, 9)])
def test_an_equal_share_of_less_than_half_a_rack_is_not_taken(
    nodes: int, domain: int, make_job: Callable[..., Job]
) -> None:
    # 33 nodes: 3 in each of 11 racks, or all 9 of three and 6 of a fourth
    cluster = make_job(nodes, 1).cluster
    assert even_domain(replace(cluster, gpu=replace(cluster.gpu, scale_up_gpus=9))) == domain


def test_an_equal_share_of_half_a_rack_is_taken(make_job: Callable[..., Job]) -> None:
    # 44 nodes on racks of 8: 4 in each of 11
    cluster = make_job(44, 1).cluster
    assert even_domain(replace(cluster, gpu=replace(cluster.gpu, scale_up_gpus=8))) == 4


@pytest.mark.parametrize(
    ("size", "stride", "gpus", "domain", "fewest"),
    [(4, 1, 12, 6, 2), (2, 1, 4, 3, 1), (3, 1, 9, 6, 3), (3, 1, 9, 9, 3), (4, 2, 16, 12, 2), (6, 1, 12, 9, 3)],
)
def test_a_border_leaves_some_group_so_few_members(size: int, stride: int, gpus: int, domain: int, fewest: int) -> None:
    # 4 ranks each of 12 on domains of 6: the second group has two on either side
    found = members_per_domain(np.array([size]), np.array([stride]), np.array([gpus]), domain)
    assert found.tolist() == [fewest]


@pytest.mark.parametrize(("layers", "fault"), [(8, False), (10, True)])
def test_two_chunks_per_rank_need_layers_that_they_divide(
    layers: int, fault: bool, make_job: Callable[..., Job], dense: Model
) -> None:
    found = check_plan(make_job(model=replace(dense, num_layers=layers)), PLAN | {"vpp": 2})
    line = f"pp*vpp is 4, which does not divide the {layers} layers as interleaving needs."
    assert found == ([line] if fault else [])


def test_embedding_and_head_as_layers_leave_the_ends_one_less_down_to_none() -> None:
    assert _with_ends(6, 8) == [(0, 1, 1, 1, 1, 1, 1, 0)]
    assert _with_ends(7, 8) == [(1, 1, 1, 1, 1, 1, 1, 0)]
    assert _with_ends(14, 8) == [(1, 2, 2, 2, 2, 2, 2, 1)]
    assert _with_ends(2, 2) == []
    assert _with_ends(8, 8) == []


@pytest.mark.parametrize(("pp", "vpp", "some"), [(9, 1, False), (10, 1, False), (5, 2, True), (5, 3, False)])
def test_a_chunk_has_a_layer_unless_it_has_embedding_or_head(
    pp: int, vpp: int, some: bool, make_job: Callable[..., Job], dense: Model
) -> None:
    assert any(offered_splits(make_job(model=dense, framework=ANY), pp, vpp)) == some


def test_a_listed_split_counts_where_it_has_as_many_chunks_and_is_not_even(make_job: Callable[..., Job]) -> None:
    search = {"stage_layers": ("3;5", "4;4", "1;3;2;2"), "vpp": (1,)}
    layouts = enumerate_layouts(make_job(framework=ANY, search=search)).layouts
    of_two = {STAGE_LAYERS.text(code) for code in layouts["stage_layers"][layouts["pp"] == 2]}
    of_four = {STAGE_LAYERS.text(code) for code in layouts["stage_layers"][layouts["pp"] == 4]}
    assert (of_two, of_four) == ({"", "3;5"}, {"1;3;2;2"})


@pytest.mark.parametrize("ep", [1, 2, 4])
@pytest.mark.parametrize(
    ("order", "stages"),
    [
        (DEFAULT_ORDER, [0] * 8 + [1] * 8),
        (TP_PP_DP_ORDER, [0, 0, 1, 1] * 4),
        ("tp-cp-dp-pp", [0] * 8 + [1] * 8),
        ("tp-ep-cp-dp-pp", [0] * 8 + [1] * 8),
        ("tp-cp-pp-dp-ep", [0, 0, 1, 1] * 4),
        ("pp-tp-cp-dp-ep", [0, 1] * 8),
    ],
)
def test_experts_move_no_stage_unless_their_axis_lies_beyond_a_pipeline_with_dp_inside(
    order: str, stages: list[int], ep: int
) -> None:
    plan = {"tp": 2, "cp": 1, "ep": ep, "dp": 4, "pp": 2}
    assert stage_of_rank(plan, np.arange(16), order).tolist() == stages


def test_a_group_of_experts_that_does_not_divide_the_ranks_is_refused_with_their_number(
    make_job: Callable[..., Job], moe: Model
) -> None:
    job = make_job(3, 4, moe, framework=Framework(experts_span_tp=False), global_batch_size=24)
    found = check_plan(job, PLAN | {"dp": 3, "cp": 2, "ep": 4, "zero_stage": 1})
    assert "ep 4 does not divide dp*cp, which is 6." in found


def test_figures_of_sentences_are_those_of_the_plan(make_job: Callable[..., Job]) -> None:
    plan = PLAN | {"dp": 4, "tp": 3, "pp": 2, "cp": 5, "ep": 7, "etp": 2, "vpp": 6, "micro_batch_size": 2}
    figures = {"training": make_job(seq_length=100).training, "num_gpus": num_gpus}
    table = read_yaml("layout_rules.yaml")["figures"]
    assert {name: evaluate(expression, plan, figures) for name, expression in table.items()} == {
        "product": 120, "step": 8, "shards": 20, "twice_cp": 10, "micro_batches": 3, "chunks": 12, "tokens": 20,
        "stage_ranks": 60, "expert_ranks": 14,
    }  # fmt: skip
