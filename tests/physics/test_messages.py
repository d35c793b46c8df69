"""What messages of a plan reach of their links: as `collectives` prices them, by the link that they cross."""

from __future__ import annotations

import pytest

from jointopt.physics.collectives import collective_time_s
from jointopt.physics.cost_model import CostModel
from jointopt.physics.messages import Message, messages
from jointopt.spec.jobfile import shipped_job
from jointopt.spec.plans.parse import parse_plan


def of_plan(plan: str, job_name: str = "llama-3-70b-4x8-h200") -> tuple[dict[str, Message], CostModel]:
    job = shipped_job(job_name)
    physics = CostModel(job, parse_plan(plan, job).layouts)
    return {one.parallelism: one for one in messages(physics, 0)}, physics


def test_a_send_between_stages_is_the_shard_of_the_residual_stream_over_the_network() -> None:
    found, physics = of_plan("tp=8 pp=4")
    job = physics.job
    assert found["pp"].size_bytes == 2 * job.training.seq_length * job.model.hidden_size / 8
    seconds = collective_time_s(
        "p2p", found["pp"].size_bytes, 4, 1, physics.hardware.constants.collectives, physics.hardware.links
    )
    assert found["pp"].time_s == pytest.approx(float(seconds))
    assert found["pp"].reached_gbytes_per_s == pytest.approx(1e-9 * found["pp"].size_bytes / float(seconds))
    assert found["pp"].link == "inter_node"


def test_shares_are_of_the_link_that_is_crossed_and_larger_messages_reach_more() -> None:
    found, physics = of_plan("tp=8 dp=4 micro_batch_size=1")
    larger, _ = of_plan("tp=8 dp=4 micro_batch_size=4")
    assert {one.link for one in (found["tp"], larger["tp"])} == {"intra_node"}
    assert found["tp"].share < larger["tp"].share < 1.0
    gradients = 70.55e9 / 8 * physics.job.training.gradient_comm_bytes  # of Llama 3 70B, an eighth on each rank
    assert found["dp"].size_bytes == pytest.approx(gradients, rel=0.01)
    assert found["dp"].share == found["dp"].reached_gbytes_per_s / physics.job.cluster.inter_node_gbytes_per_s


def test_groups_of_one_send_nothing_and_experts_exchange_tokens() -> None:
    alone, _ = of_plan("tp=1 pp=4 dp=8")
    assert set(alone) == {"pp", "dp"}
    experts, _ = of_plan("tp=1 pp=8 ep=8 dp=8", "mixtral-8x22b-8x8-h100")
    assert experts["ep"].kind == "all_to_all"
    assert experts["ep"].members == 8
