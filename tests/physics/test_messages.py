"""What messages of a plan reach of their links: as `traffic` prices them, by the link that they cross."""

from __future__ import annotations

import pytest

from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import Message, messages
from jointopt.physics.traffic import collective_time_s


def of_plan(plan: str, job_name: str = "llama-3-70b-4x8-h200") -> tuple[dict[str, Message], CostModel]:
    job = shipped_job(job_name)
    physics = CostModel(job, parse_plan(plan, job).layouts)
    return {f"{one.parallelism} {one.kind}": one for one in messages(physics, 0)}, physics


def test_a_send_between_stages_is_the_shard_of_the_residual_stream_over_the_network() -> None:
    found, physics = of_plan("tp=8 pp=4")
    job = physics.job
    assert found["pp p2p"].size_bytes == 2 * job.training.seq_length * job.model.hidden_size / 8
    seconds = collective_time_s(
        "p2p", found["pp p2p"].size_bytes, 4, 1, physics.hardware.constants.collectives, physics.hardware.links
    )
    assert found["pp p2p"].time_s == pytest.approx(float(seconds))
    assert found["pp p2p"].reached_gbytes_per_s == pytest.approx(1e-9 * found["pp p2p"].size_bytes / float(seconds))
    assert found["pp p2p"].link == "inter_node"


def test_shares_are_of_the_link_that_is_crossed_and_larger_messages_reach_more() -> None:
    found, physics = of_plan("tp=8 dp=4 micro_batch_size=1")
    larger, _ = of_plan("tp=8 dp=4 micro_batch_size=4")
    assert {one.link for one in (found["tp all_gather"], larger["tp all_gather"])} == {"intra_node"}
    assert found["tp all_gather"].share < larger["tp all_gather"].share < 1.0
    gradients = 70.55e9 / 8 * physics.job.training.gradient_comm_bytes  # of Llama 3 70B, an eighth on each rank
    shards = found["dp reduce_scatter"]
    assert shards.size_bytes == pytest.approx(gradients, rel=0.01)
    assert shards.share == shards.reached_gbytes_per_s / physics.job.cluster.inter_node_gbytes_per_s


def test_groups_of_one_send_nothing_and_experts_exchange_tokens() -> None:
    alone, _ = of_plan("tp=1 pp=4 dp=8")
    assert set(alone) == {"pp p2p", "dp reduce_scatter", "dp all_gather"}
    experts, _ = of_plan("tp=1 pp=8 ep=8 dp=8", "mixtral-8x22b-8x8-h100")
    assert experts["ep all_to_all"].members == 8


def test_weights_are_gathered_under_zero_and_gradients_reduced_whole_without_it() -> None:
    found, physics = of_plan("tp=8 dp=4 zero=3")
    training = physics.job.training
    ratio = training.weight_gather_bytes / training.gradient_comm_bytes
    assert found["dp all_gather"].size_bytes == pytest.approx(ratio * found["dp reduce_scatter"].size_bytes)
    without, _ = of_plan("tp=8 dp=4 zero=0")
    assert {name for name in without if name.startswith("dp")} == {"dp all_reduce"}
    assert without["dp all_reduce"].size_bytes == found["dp reduce_scatter"].size_bytes


def test_gradients_of_experts_are_messages_of_their_own_group() -> None:
    found, physics = of_plan("tp=1 pp=4 ep=8 dp=16", "mixtral-8x22b-8x8-h100")
    experts = found["expert_dp reduce_scatter"]
    assert (experts.members, found["dp reduce_scatter"].members) == (2, 16)
    weights = 56 / 4 * 3 * 6144 * 16384  # of one expert of eight on a stage's layers
    assert experts.size_bytes == pytest.approx(weights * physics.job.training.gradient_comm_bytes)


def test_the_largest_message_of_gradients_is_that_of_the_stage_that_holds_most() -> None:
    found, physics = of_plan("tp=1 pp=4 dp=8")
    model, training = physics.job.model, physics.job.training
    attention = 2 * 8192 * 8192 + 2 * 8192 * 1024
    layers = model.num_layers / 4 * (attention + 3 * 8192 * 28672 + 2 * 8192)
    last = layers + 128256 * 8192 + 8192  # with the head and the last norm
    assert found["dp reduce_scatter"].size_bytes == pytest.approx(last * training.gradient_comm_bytes, rel=1e-6)
