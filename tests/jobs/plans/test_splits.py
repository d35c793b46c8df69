"""Splits of layers over model chunks: those that the space lists, and what frameworks can be given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.schema import SCHEDULE, STAGE_LAYERS
from jointopt.jobs.catalog.frameworks import load_framework
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import Job
from jointopt.jobs.model import Model
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.stages import balanced_split, can_be_built, framework_split, offered_splits, recipe_split
from jointopt.jobs.plans.text import parse_plan, plan_records

MEGATRON = load_framework("megatron-lm")
ANY = Framework(stage_splits=("any",))


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "split"),
    [
        # arXiv:2407.21783, section 3.3.2: one layer less on the first and on the last stage
        ("llama-3.1-405b", 16, 8, (0, *(1,) * 126, 0)),
        ("llama-3.1-405b", 16, 1, (7, *(8,) * 14, 7)),
        ("qwen3-235b-a22b", 16, 3, (1, *(2,) * 46, 1)),
        ("deepseek-v3", 16, 2, (1, *(2,) * 30, 0)),
        ("deepseek-v3", 16, 1, (3, *(4,) * 14, 2)),
        ("gpt-3-175b", 8, 6, ()),
    ],
)
def test_published_splits_are_among_those_listed(
    make_job: Callable[..., Job], name: str, pp: int, vpp: int, split: tuple[int, ...]
) -> None:
    job = make_job(model=load_model(name), framework=MEGATRON)
    assert split in offered_splits(job, pp, vpp)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 130), st.integers(1, 16), st.integers(1, 12), st.sampled_from([MEGATRON, ANY, Framework()]))
def test_every_split_listed_holds_all_layers_and_can_be_built(
    make_job: Callable[..., Job], dense: Model, layers: int, pp: int, vpp: int, framework: Framework
) -> None:
    job = make_job(model=replace(dense, num_layers=layers), framework=framework)
    found = offered_splits(job, pp, vpp)
    own = framework_split(job, pp, vpp) if pp <= layers else ()
    assert len(found) == len(set(found)) <= 3
    for split in filter(None, found):
        assert (len(split), sum(split)) == (pp * vpp, layers)
        assert can_be_built(framework, split)
        assert split != own or framework is MEGATRON


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 12), st.integers(1, 8), st.integers(0, 60), st.floats(0.0, 4.0))
def test_a_balanced_split_moves_no_layer_to_a_lighter_rank(pp: int, vpp: int, more: int, head: float) -> None:
    split = balanced_split(pp * vpp + more, pp, vpp, head)
    assert sum(split) == pp * vpp + more
    assert min(split[1:-1], default=1) >= 1
    loads = [float(sum(split[rank::pp])) for rank in range(pp)]
    loads[-1] += head
    room = [load for rank, load in enumerate(loads) if sum(split[rank::pp]) > vpp]
    assert max(room, default=0.0) <= min(loads) + 1.0 + 1e-9


def test_chunks_of_a_rank_differ_by_at_most_a_layer_but_for_those_with_embedding_and_head() -> None:
    split = balanced_split(61, 8, 4, 1.5)
    ranks = [split[rank::8] for rank in range(1, 7)]
    assert all(max(chunks) - min(chunks) <= 1 for chunks in ranks)
    assert split[-1] < max(split[7::8])


def test_the_space_holds_each_split_listed_and_no_other(make_job: Callable[..., Job], dense: Model) -> None:
    job = make_job(1, 8, model=replace(dense, num_layers=14), framework=MEGATRON)
    layouts = enumerate_layouts(job).layouts
    found: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    for p, v, code in zip(*(layouts[name].tolist() for name in ("pp", "vpp", "stage_layers")), strict=True):
        found.setdefault((p, v), set()).add(STAGE_LAYERS.numbers(code))
    assert found == {(p, v): set(offered_splits(job, p, v)) for p, v in found}
    assert (3, 4, 4, 3) in found[4, 1]


def test_a_blank_means_the_split_of_megatrons_recipes_and_no_other_is_started(
    make_job: Callable[..., Job], dense: Model
) -> None:
    job = make_job(1, 8, model=replace(dense, num_layers=14), framework=MEGATRON)
    parsed = parse_plan("dp=2 pp=4 micro_batch_size=1 zero_stage=0", job)
    plan = plan_records(parsed.layouts, parsed.stage_clock_mhz, [0])[0]
    assert STAGE_LAYERS.numbers(STAGE_LAYERS.code(plan["stage_layers"])) == (3, 4, 4, 3)
    assert check_plan(job, plan) == []
    assert len(check_plan(job, plan | {"stage_layers": ""})) == 1


@pytest.mark.parametrize(("framework", "split"), [(Framework(), (3, 4, 4, 3)), (MEGATRON, (7, 0, 4, 3))])
def test_a_split_that_cannot_be_built_is_named(
    make_job: Callable[..., Job], dense: Model, framework: Framework, split: tuple[int, ...]
) -> None:
    job = make_job(1, 8, model=replace(dense, num_layers=14), framework=framework)
    cells = ";".join(map(str, split))
    parsed = parse_plan(f"dp=2 pp=4 micro_batch_size=1 zero_stage=0 stage_layers={cells}", job)
    broken = check_plan(job, plan_records(parsed.layouts, parsed.stage_clock_mhz, [0])[0])
    assert broken == [f"{framework.name} cannot build stage_layers {cells}."]


def test_a_listed_split_is_searched_alone(make_job: Callable[..., Job], dense: Model) -> None:
    search = {"pp": (4,), "vpp": (1,), "stage_layers": ("2;4;4;4",)}
    job = make_job(1, 8, replace(dense, num_layers=14), search, MEGATRON)
    codes = enumerate_layouts(job).layouts["stage_layers"]
    assert {STAGE_LAYERS.numbers(code) for code in codes.tolist()} == {(2, 4, 4, 4)}


def test_a_listed_even_split_is_the_blank(make_job: Callable[..., Job], dense: Model) -> None:
    search = {"pp": (4,), "vpp": (1,), "stage_layers": ("2;2;2;2", "1;2;2;3")}
    job = make_job(1, 8, dense, search, MEGATRON)
    codes = enumerate_layouts(job).layouts["stage_layers"]
    assert {STAGE_LAYERS.numbers(code) for code in codes.tolist()} == {(), (1, 2, 2, 3)}


def test_a_schedule_of_the_space_has_its_chunks_and_a_pipeline(make_job: Callable[..., Job], dense: Model) -> None:
    framework = Framework(schedules=("1f1b", "zb-h1", "zbv"))
    layouts = enumerate_layouts(make_job(1, 8, dense, framework=framework, global_batch_size=30)).layouts
    h1, v = (layouts["schedule"] == SCHEDULE.code(name) for name in ("zb-h1", "zbv"))
    assert set(layouts["vpp"][h1]) == {1}
    assert set(layouts["vpp"][v]) == {2}
    assert layouts["pp"][h1 | v].min() > 1
    micro_batches = 30 // (layouts["dp"] * layouts["micro_batch_size"])
    assert (micro_batches % layouts["pp"])[v].any()  # pp need not divide them


def test_megatron_runs_no_zero_bubbles(make_job: Callable[..., Job], dense: Model) -> None:
    job = make_job(1, 8, dense, framework=MEGATRON)
    parsed = parse_plan("dp=4 pp=2 micro_batch_size=1 zero_stage=0 schedule=zb-h1", job)
    broken = check_plan(job, plan_records(parsed.layouts, parsed.stage_clock_mhz, [0])[0])
    assert broken == ["megatron-lm has no pipeline schedule zb-h1; it runs 1f1b alone."]


@pytest.mark.parametrize(
    ("pp", "vpp", "split"),
    [(16, 1, (7, *(8,) * 14, 7)), (16, 8, (0, *(1,) * 126, 0)), (9, 1, ()), (1, 1, ()), (43, 3, ())]
)  # fmt: skip
def test_where_uneven_stages_must_be_stated_a_blank_counts_both_ends_as_layers_or_is_balanced(
    make_job: Callable[..., Job], pp: int, vpp: int, split: tuple[int, ...]
) -> None:
    framework = replace(MEGATRON, rules=(*MEGATRON.rules, "even_stages"), stage_splits=("ends",))
    job = make_job(model=load_model("llama-3.1-405b"), framework=framework)
    assert recipe_split(job, pp, vpp) == split
