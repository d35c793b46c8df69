"""Stages of ranks by the order of a program, against lists of ranks as the programs' own code gives them."""

from __future__ import annotations

import ast
import functools
import itertools
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.errors import UsageError
from jointopt.jobs.plans.placement import (
    DEFAULT_ORDER,
    NANOTRON_04_EXPERTS_ORDER,
    NANOTRON_EXPERTS_ORDER,
    TP_PP_DP_ORDER,
    check_order,
    same_stages,
    stage_of_rank,
)
from tests.each import each
from tests.places import ROOT

PEERS = ROOT.parent / "shared" / "peers"
TWO: dict[str, int] = {"tp": 2, "cp": 1, "ep": 1, "dp": 2, "pp": 2}
ORDERS = ["-".join(axes) for axes in itertools.permutations(("tp", "cp", "dp", "pp"))]
degrees = st.fixed_dictionaries({name: st.integers(1, 3) for name in ("tp", "cp", "dp", "pp")})


@pytest.mark.parametrize(
    ("order", "plan", "stages"),
    [
        (DEFAULT_ORDER, TWO, [0, 0, 0, 0, 1, 1, 1, 1]),  # pipelines [0, 4], [1, 5], [2, 6], [3, 7]
        (TP_PP_DP_ORDER, TWO, [0, 0, 1, 1, 0, 0, 1, 1]),  # [0, 2], [1, 3], [4, 6], [5, 7]
        (TP_PP_DP_ORDER, TWO | {"ep": 2}, [0, 0, 1, 1, 0, 0, 1, 1]),
        (DEFAULT_ORDER, TWO | {"tp": 1, "cp": 2}, [0, 0, 0, 0, 1, 1, 1, 1]),
        ("pp-dp-tp-cp", TWO, [0, 1, 0, 1, 0, 1, 0, 1]),
        (NANOTRON_EXPERTS_ORDER, TWO | {"ep": 2}, [0, 0, 1, 1, 0, 0, 1, 1]),  # reshape(dp, pp, cp, tp)
        # nanotron 0.4: reshape(ep 2, pp 2, dp 2, tp 1), where the plan's dp is 4
        (NANOTRON_04_EXPERTS_ORDER, {"tp": 1, "cp": 1, "ep": 2, "dp": 4, "pp": 2}, [0, 0, 1, 1, 0, 0, 1, 1]),
    ],
)
def test_stages_are_those_of_lists_worked_out_by_hand(order: str, plan: dict[str, int], stages: list[int]) -> None:
    assert stage_of_rank(plan, np.arange(8), order).tolist() == stages


@given(degrees, st.sampled_from(ORDERS))
def test_every_order_gives_each_stage_as_many_ranks(plan: dict[str, int], order: str) -> None:
    ranks = np.arange(plan["tp"] * plan["cp"] * plan["dp"] * plan["pp"])
    counts = np.bincount(stage_of_rank(plan, ranks, order), minlength=plan["pp"])
    assert (counts == len(ranks) // plan["pp"]).all()


@given(degrees)
def test_with_one_replica_the_mapping_changes_nothing(plan: dict[str, int]) -> None:
    assert same_stages(plan | {"dp": 1}, DEFAULT_ORDER, TP_PP_DP_ORDER)
    assert same_stages(plan, DEFAULT_ORDER, TP_PP_DP_ORDER) == (plan["dp"] == 1 or plan["pp"] == 1)


@pytest.mark.parametrize("order", ["", "tp-dp", "tp-cp-dp-pp-dp", "tp-cp-dp-pp-xp", "tp,cp,dp,pp"])
def test_what_is_no_order_is_refused_with_an_example(order: str) -> None:
    with pytest.raises(UsageError, match="as in tp-cp-ep-dp-pp; got"):
        check_order(order)


@functools.cache
def rank_generator(archive: Path) -> Any:
    """Megatron Core's ``RankGenerator``, without what else its module imports."""
    with tarfile.open(archive) as files:
        text = files.extractfile("megatron/core/parallel_state.py").read().decode()  # type: ignore[union-attr]
    wanted = ("RankGenerator", "generate_masked_orthogonal_rank_groups")
    parts = [node for node in ast.parse(text).body if getattr(node, "name", "") in wanted]
    names: dict[str, Any] = {}
    future = ast.parse("from __future__ import annotations\nfrom typing import List").body
    exec(compile(ast.Module([*future, *parts], []), str(archive), "exec"), names)
    return names["RankGenerator"]


@each("version", ["core_v0.12.0", "core_v0.16.1", "main"])
@each("order", [*ORDERS, DEFAULT_ORDER, TP_PP_DP_ORDER])
def test_stages_are_those_of_megatron_s_own_generator(version: str, order: str) -> None:
    if not (archive := PEERS / f"megatron-lm-{version}.tar.xz").is_file():
        pytest.skip("Megatron-LM's archives are not beside the repository")
    make = rank_generator(archive)
    for tp, cp, dp, pp in itertools.product((1, 2, 3), (1, 2), (1, 2, 4), (1, 2, 4)):
        plan = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
        for pipeline in make(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order=order).get_ranks("pp"):
            assert stage_of_rank(plan, np.array(pipeline), order).tolist() == list(range(pp)), plan
