"""Groups of experts and of sharded states against lists of ranks as Megatron Core's RankGenerator gives them."""

from __future__ import annotations

from typing import Any

import numpy as np

from jointopt.core.schema import SPLIT_COLUMNS
from jointopt.jobs.plans.placement import placement
from tests.each import each

Groups = list[list[int]]
# Order tp-cp-ep-dp-pp of megatron/core/parallel_state.py: the first groups of one stage, worked out by hand.
LAYOUTS: list[tuple[dict[str, int], dict[str, Groups]]] = [
    ({"tp": 2, "dp": 4, "ep": 4, "etp": 1}, {
        "etp": [[0], [1]], "ep": [[0, 1, 2, 3], [4, 5, 6, 7]], "expert_dp": [[0, 4], [1, 5], [2, 6], [3, 7]],
    }),
    ({"tp": 2, "dp": 4, "ep": 4, "etp": 2}, {
        "etp": [[0, 1], [2, 3]], "ep": [[0, 2, 4, 6], [1, 3, 5, 7]], "expert_dp": [[0], [1], [2]],
    }),
    ({"tp": 4, "dp": 2, "pp": 2, "ep": 8, "etp": 1}, {  # ep over the tensor ranks: more than dp*cp
        "ep": [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]], "expert_dp": [[0], [8]],
    }),
    ({"tp": 2, "cp": 2, "dp": 4, "ep": 2, "etp": 2}, {
        "ep": [[0, 2], [1, 3], [4, 6]], "expert_dp": [[0, 4, 8, 12], [1, 5, 9, 13]],
        "dp_cp": [[0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15]],
    }),
    ({"tp": 2, "cp": 2, "dp": 4, "ep": 2, "etp": 2, "dp_replicate": 2}, {  # num_distributed_optimizer_instances
        "shard": [[0, 2, 4, 6], [8, 10, 12, 14], [1, 3, 5, 7]], "replica": [[0, 8], [2, 10], [7, 15]],
        "expert_shard": [[0, 4], [8, 12], [3, 7]], "expert_replica": [[0, 8], [4, 12]],
    }),
    # num_weight_shards of twice tp and of twice etp: ranks that gather weights lie after tp, of experts after ep
    ({"tp": 2, "cp": 2, "dp": 4, "ep": 2, "etp": 2, "gtp": 2, "egtp": 2}, {
        "gtp": [[0, 2], [1, 3], [4, 6]], "cp": [[0, 4], [2, 6]], "dp_cp": [[0, 4, 8, 12], [2, 6, 10, 14]],
        "ep": [[0, 2], [1, 3]], "egtp": [[0, 4], [2, 6], [9, 13]], "expert_dp": [[0, 8], [4, 12], [7, 15]],
    }),
    ({"tp": 8, "dp": 1, "pp": 2, "ep": 4, "etp": 2}, {"ep": [[0, 2, 4, 6], [1, 3, 5, 7]], "etp": [[0, 1], [2, 3]]}),
]  # fmt: skip


def columns(**cells: Any) -> dict[str, Any]:
    return {name: np.array([cells.get(name, 1)]) for name in SPLIT_COLUMNS}


@each("domain", [2, 4, 8, 16])
@each(("layout", "lists"), LAYOUTS)
def test_groups_lie_as_megatron_s_lists_of_ranks(layout: dict[str, int], lists: dict[str, Groups], domain: int) -> None:
    found = placement(columns(**layout), domain)
    for name, groups in lists.items():
        assert found[name].size[0] == len(groups[0]), name
        fewest = min(np.unique(np.array(group) // domain, return_counts=True)[1].min() for group in groups)
        assert found[name].local[0] == fewest, name


def test_experts_kept_within_the_data_parallel_ranks_are_a_tensor_group_apart() -> None:
    # Megatron-DeepSpeed: ranks 0, 2, 4, 6 of tp 2
    found = placement(columns(tp=2, dp=4, ep=4), 4, experts_span_tp=False)
    assert (found["ep"].size[0], found["ep"].local[0]) == (4, 2)


def test_without_replicas_a_state_is_sharded_over_all_its_ranks() -> None:
    found = placement(columns(tp=2, cp=2, dp=8, ep=4, etp=1), 8)
    assert found["shard"] == found["dp_cp"]
    assert found["expert_shard"] == found["expert_dp"]
    assert found["replica"].size[0] == found["expert_replica"].size[0] == 1
