"""Each rule of the checker, broken alone, yields one sentence that names the figures."""

import pytest

from jointopt.core.errors import JobError
from jointopt.spec.framework import Framework
from jointopt.spec.job import Search
from jointopt.spec.plans.rules import check_abilities, check_plan

GOOD = {
    "dp": 2,
    "tp": 2,
    "pp": 2,
    "cp": 1,
    "ep": 1,
    "vpp": 1,
    "micro_batch_size": 1,
    "sequence_parallel": True,
    "recompute": "none",
    "zero_stage": 1,
}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dp": 3}, "dp*tp*pp*cp is 12; it must be the cluster's 8 GPUs."),
        ({"tp": 8, "dp": 1, "pp": 1, "zero_stage": 0}, "tp 8 does not divide the 4 KV groups."),
        ({"tp": 1, "dp": 4}, "sequence_parallel needs tp > 1."),
        ({"vpp": 3}, "pp*vpp is 6, which does not divide the 8 layers as interleaving needs."),
        ({"vpp": 2, "pp": 1, "dp": 4}, "vpp 2 needs pp > 1."),
        ({"vpp": 2, "micro_batch_size": 4}, "pp 2 does not divide the 3 micro-batches as interleaving needs."),
        ({"micro_batch_size": 5}, "dp*micro_batch_size is 10, which does not divide the global batch of 24 sequences."),
        (
            {"power_limit_w": 2000.0},
            "power_limit_w is above the 400 W that a GPU of the cluster may draw (cluster.power_limit_w).",
        ),
        ({"ep": 2}, "ep 2 needs experts, and dense is a dense model."),
        ({"zero_stage": 3}, "generic has no zero_stage 3 with pp > 1."),
        ({"recompute": "selective"}, "selective recompute with flash2 is the same plan as none."),
        ({"dp": 1, "pp": 4}, "zero_stage 1 needs dp*cp > 1."),
    ],
)
def test_a_broken_rule_is_one_sentence_with_its_figures(make_job, change, sentence):
    assert check_plan(make_job(), GOOD) == []
    assert check_plan(make_job(), GOOD | change) == [sentence]


@pytest.mark.parametrize(
    ("framework", "change", "sentence"),
    [
        (
            Framework("f", context_parallel=False),
            {"cp": 2, "dp": 1},
            "f has no context parallelism: cp must be 1, not 2.",
        ),
        (
            Framework("f", interleaving=False),
            {"vpp": 2},
            "f does not interleave pipeline stages: vpp must be 1, not 2.",
        ),
        (Framework("f", recomputes=("full",)), {}, "f has no recompute none."),
        (Framework("f", zero_stages=(0,)), {}, "f has no zero_stage 1."),
        (Framework("f", sequence_parallel=(False,)), {}, "f does not train with sequence_parallel True where tp > 1."),
    ],
)
def test_what_a_framework_cannot_do_is_said_by_its_name(make_job, framework, change, sentence):
    assert check_plan(make_job(framework=framework), GOOD | change) == [sentence]


def test_context_parallelism_cuts_the_sequence_into_twice_as_many_chunks(make_job):
    plan = GOOD | {"cp": 2, "dp": 1}
    assert check_plan(make_job(seq_length=124), plan) == []
    sentence = "2*cp is 4, which does not divide the sequence length 126."
    assert sentence in check_plan(make_job(seq_length=126), plan)


def test_a_plan_outside_the_search_names_the_key_and_its_values(make_job):
    job = make_job(search={"tp": (1, 4), "zero_stage": (1,)})
    assert check_plan(job, GOOD) == ["tp 2 is outside the job's search.tp (1, 4)."]


def test_experts_must_split_over_the_expert_parallel_ranks(make_job, moe):
    job = make_job(model=moe)
    assert check_plan(job, GOOD | {"ep": 2}) == []
    assert check_plan(job, GOOD | {"ep": 8}) == [
        "ep 8 does not divide the 12 experts.",
        "ep 8 does not divide dp*cp, which is 2.",
    ]


def test_a_search_for_what_the_framework_cannot_run_names_the_first_such_value(make_job):
    training = make_job(framework=Framework("f", zero_stages=(0, 1), recomputes=("none", "full"))).training
    check_abilities(Search(zero_stage=(1, 0), recompute=("full", "none"), tp=(7,)), training)
    with pytest.raises(JobError, match=r"search\.zero_stage 3: f has no such zero_stage; expected 0, 1, got 1, 3\."):
        check_abilities(Search(zero_stage=(1, 3)), training)
