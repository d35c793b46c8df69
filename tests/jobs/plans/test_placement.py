"""Groups on links against lists of ranks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.jobs.plans.placement import even_domain, members_per_domain, placement
from jointopt.jobs.plans.space import enumerate_layouts

NAMES = ("tp", "cp", "dp", "pp", "ep")


def rank_groups(tp, cp, dp, pp, ep):
    """Lists of ranks per kind of group, from the coordinates of every rank."""
    ranks = np.arange(tp * cp * dp * pp).reshape(pp, dp, cp, tp)
    experts = ranks.reshape(pp, dp * cp // ep, ep, tp)
    return {
        "tp": ranks.reshape(-1, tp),
        "cp": np.moveaxis(ranks, 2, 3).reshape(-1, cp),
        "dp": np.moveaxis(ranks, 1, 3).reshape(-1, dp),
        "dp_cp": np.moveaxis(ranks.reshape(pp, dp * cp, tp), 1, 2).reshape(-1, dp * cp),
        "ep": np.moveaxis(experts, 2, 3).reshape(-1, ep),
        "expert_dp": np.moveaxis(experts, 1, 3).reshape(-1, dp * cp // ep),
        "pp": np.moveaxis(ranks, 0, 3).reshape(-1, pp),
    }


def fewest_in_a_domain(groups, domain):
    return min(np.unique(group // domain, return_counts=True)[1].min() for group in groups)


def place(domain, **degrees):
    columns = {name: np.array([number]) for name, number in (dict.fromkeys(NAMES, 1) | degrees).items()}
    return {name: (int(g.size[0]), int(g.local[0])) for name, g in placement(columns, domain).items()}


@settings(max_examples=60, deadline=None)
@given(st.tuples(*[st.integers(1, 6)] * 4), st.integers(1, 20), st.data())
def test_local_members_are_what_a_list_of_ranks_shows(degrees, domain, data):
    tp, cp, dp, pp = degrees
    ep = data.draw(st.sampled_from([d for d in range(1, dp * cp + 1) if dp * cp % d == 0]))
    found = place(domain, tp=tp, cp=cp, dp=dp, pp=pp, ep=ep)
    for name, groups in rank_groups(tp, cp, dp, pp, ep).items():
        if name != "pp":
            assert found[name] == (groups.shape[1], fewest_in_a_domain(groups, domain)), name


@settings(deadline=None)
@given(st.tuples(*[st.integers(1, 6)] * 4), st.integers(1, 20))
def test_stage_neighbours_are_local_only_where_no_boundary_leaves_the_domain(degrees, domain):
    tp, cp, dp, pp = degrees
    groups = rank_groups(tp, cp, dp, pp, 1)["pp"] // domain
    inside = pp > 1 and np.all(groups[:, 1:] == groups[:, :-1])
    assert place(domain, tp=tp, cp=cp, dp=dp, pp=pp)["pp"] == (min(pp, 2), 2 if inside else 1)


def test_tensor_parallel_ranks_are_neighbours_in_a_node():
    found = place(8, tp=4, dp=4, pp=2)
    assert found["tp"] == (4, 4)
    assert found["dp"] == (4, 2)
    assert found["pp"] == (2, 1)


def test_a_group_that_straddles_nodes_counts_its_worst_place():
    # tp 6 on nodes of 4: ranks 0-3 | 4, 5, and 6, 7 | 8-11
    assert place(4, tp=6, dp=2)["tp"] == (6, 2)


@pytest.mark.parametrize("domain", [5, 6, 7, 9])
def test_members_that_share_a_domain_are_counted_wherever_groups_stand_in_it(domain):
    size, stride, blocks = (axis.ravel() for axis in np.meshgrid(np.arange(2, 8), np.arange(1, 5), np.arange(1, 4)))
    found = members_per_domain(size, stride, size * stride * blocks, domain)
    for members, apart, count, local in zip(size, stride, blocks, found, strict=True):
        ranks = np.arange(members * apart * count).reshape(count, members, apart)
        groups = ranks.transpose(0, 2, 1).reshape(-1, members)
        assert local == fewest_in_a_domain(groups, domain), (members, apart, count)


def test_everything_is_local_in_one_domain(make_job, moe):
    layouts = enumerate_layouts(make_job(2, 4, moe)).layouts
    groups = placement(layouts, 8)
    assert all(np.array_equal(group.size, group.local) for group in groups.values())


@pytest.mark.parametrize("domain", [3, 4, 6, 8])
def test_many_layouts_are_placed_as_each_is_alone(make_job, moe, domain):
    layouts = enumerate_layouts(make_job(3, 4, moe)).layouts
    groups = placement(layouts, domain)
    for i in range(0, len(layouts["dp"]), 97):
        alone = place(domain, **{name: int(layouts[name][i]) for name in (*NAMES, "etp", "dp_replicate")})
        assert {name: (int(g.size[i]), int(g.local[i])) for name, g in groups.items()} == alone


@given(st.integers(1, 16), st.integers(1, 16), st.integers(1, 4), st.integers(1, 24))
def test_a_bigger_domain_of_whole_domains_never_has_fewer_members(size, stride, blocks, domain):
    columns = [np.array([n]) for n in (size, stride, size * stride * blocks)]
    small = members_per_domain(*columns, domain)
    assert members_per_domain(*columns, 2 * domain)[0] >= small[0]


@pytest.mark.parametrize(("nodes", "expected"), [(1, 4), (16, 64), (18, 72), (36, 72), (128, 64), (19, 40), (25, 52)])
def test_racks_are_filled_evenly(make_job, nodes, expected):
    cluster = make_job(nodes, 4).cluster
    racks = replace(cluster, gpu=replace(cluster.gpu, scale_up_gpus=72))
    assert even_domain(racks) == expected


def test_no_layouts_have_no_groups():
    none = {name: np.array([], np.int64) for name in NAMES}
    assert all(len(group.local) == 0 for group in placement(none, 8).values())


def test_layouts_without_a_count_of_replicas_have_one_copy_of_sharded_states() -> None:
    plain = {name: np.array([value]) for name, value in {"dp": 8, "tp": 2, "pp": 2, "cp": 1, "ep": 1}.items()}
    found, stated = (placement(layouts, 8) for layouts in (plain, plain | {"dp_replicate": np.ones(1, np.int64)}))
    assert {name: group.size.tolist() for name, group in found.items()} == {
        name: group.size.tolist() for name, group in stated.items()
    }
