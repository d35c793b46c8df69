"""Each rule of the checker, broken alone, yields one sentence that names the figures."""

from dataclasses import replace

import pytest

from jointopt.core.errors import JobError
from jointopt.core.schema import encode_cells
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.catalog.frameworks import framework_names, framework_rules, load_framework
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import Search
from jointopt.jobs.plans.rules import abilities, check_abilities, check_plan, check_splits, layout_rules, violations
from tests.each import each
from tests.jobs.plans.brute_force import USUAL

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


@each(
    ("change", "sentence"),
    [
        ({"dp": 3}, "dp*tp*pp*cp is 12; it must be the cluster's 8 GPUs."),
        ({"etp": 2}, "etp 2 needs experts, and dense is a dense model."),
        ({"stage_layers": "3;4"}, "stage_layers 3;4 must be pp*vpp = 2 numbers that add up to the 8 layers."),
        ({"stage_layers": "4;4"}, "stage_layers 4;4 is the same plan as none."),
        ({"schedule": "zb-h1"}, "generic has no pipeline schedule zb-h1; it runs 1f1b alone."),
        (
            {"recompute": "selective", "recompute_modules": "moe_act"},
            "recompute_modules moe_act: dense has not all of these.",
        ),
        ({"recompute_num_layers": 1}, "recompute_num_layers 1 needs full recompute."),
        ({"tp": 1, "dp": 4}, "sequence_parallel needs tp > 1."),
        ({"vpp": 3}, "pp*vpp is 6, which does not divide the 8 layers as interleaving needs."),
        ({"vpp": 2, "pp": 1, "dp": 4}, "vpp 2 needs pp > 1."),
        ({"vpp": 2, "micro_batch_size": 4}, "pp 2 does not divide the 3 micro-batches as interleaving needs."),
        ({"micro_batch_size": 5}, "dp*micro_batch_size is 10, which does not divide the global batch of 24 sequences."),
        (
            {"power_limit_w": 2000.0},
            "power_limit_w states a limit, and nothing is known of the power of GPU 'gpu-x', so that what it "
            "does cannot be predicted.",
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


@pytest.mark.parametrize(("column", "listed"), [("tp", (1, 4)), ("micro_batch_size", (2,)), ("zero_stage", (0, 3))])
def test_a_plan_outside_the_job_s_search_is_refused_once(make_job, column, listed):
    job = replace(make_job(), search=Search(**{column: listed}))
    names = ", ".join(map(str, listed))
    assert check_plan(job, GOOD) == [f"{column} {GOOD[column]} is outside the job's search.{column} ({names})."]
    assert check_plan(job, GOOD | {"dp": 3})[0].startswith("dp*tp*pp*cp is 12")  # what cannot start comes first


@pytest.mark.parametrize(
    "change",
    [{"recompute": "full"}, {"recompute": "selective", "recompute_modules": "mlp;moe"}, {"offload": "activations"}],
)
def test_graphs_of_layers_exclude_what_megatron_core_refuses_under_them(make_job, change):
    refused = []
    for kind in ("", "transformer_engine", "full_iteration"):
        job = make_job(framework=load_framework("megatron-bridge"), cuda_graph=kind)
        refused.append(sum("CUDA graphs" in line for line in check_plan(job, GOOD | change)))
    assert refused == [0, 1, 0]


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
        (
            Framework("f", rules=("whole_kv_groups",)),
            {"tp": 8, "dp": 1, "pp": 1, "zero_stage": 0},
            "tp 8 does not divide the 4 KV groups.",
        ),
        (Framework("f", rules=("no_pipelines",)), {}, "f has no pipelines: pp must be 1, not 2."),
        (Framework("f"), {"stage_layers": "3;5"}, "f cannot build stage_layers 3;5."),
        (Framework("f"), {"dp": 4, "pp": 1, "dp_replicate": 2}, "f shards over dp*cp: dp_replicate must be 1, not 2."),
        (Framework("f", replicates=True), {"dp_replicate": 3}, "dp_replicate 3 does not divide dp*cp, which is 2."),
        (
            Framework("f", rules=("no_offload",)),
            {"offload": "optimizer"},
            "f keeps nothing in host memory: offload must be none, not optimizer.",
        ),
        (Framework("f", sequence_parallel=(False,)), {}, "f does not train with sequence_parallel True where tp > 1."),
    ],
)
def test_what_a_framework_cannot_do_is_refused_under_its_name(make_job, framework, change, sentence):
    assert check_plan(make_job(framework=framework), GOOD | change) == [sentence]


def test_context_parallelism_cuts_the_sequence_into_twice_as_many_chunks(make_job):
    plan = GOOD | {"cp": 2, "dp": 1}
    assert check_plan(make_job(seq_length=124), plan) == []
    sentence = "2*cp is 4, which does not divide the sequence length 126."
    assert sentence in check_plan(make_job(seq_length=126), plan)


def test_a_plan_outside_the_search_names_the_key_and_its_values(make_job):
    job = make_job(search={"tp": (1, 4), "zero_stage": (1,)})
    assert check_plan(job, GOOD) == ["tp 2 is outside the job's search.tp (1, 4)."]


def test_a_plan_without_modules_recomputes_attention_where_that_is_what_the_job_lists(make_job):
    job = make_job(search={"recompute_modules": ("core_attn",)}, attention="unfused")
    selective = GOOD | {"recompute": "selective"}
    assert check_plan(job, selective) == []
    assert "outside the job's search.recompute_modules" in check_plan(job, selective | {"recompute_modules": "mlp"})[0]


def test_experts_must_split_over_the_ranks_of_a_stage(make_job, moe):
    job = make_job(model=moe)
    assert check_plan(job, GOOD | {"ep": 4}) == []
    assert check_plan(job, GOOD | {"ep": 4, "etp": 2}) == [
        "ep*etp is 8, which does not divide the 4 ranks of a stage (dp*cp*tp)."
    ]
    inside = make_job(model=moe, framework=Framework(experts_span_tp=False))
    assert check_plan(inside, GOOD | {"cp": 2, "dp": 1, "ep": 2}) == []
    assert check_plan(inside, GOOD | {"ep": 4}) == ["ep 4 does not divide dp*cp, which is 2."]


def test_megatron_names_the_rule_of_each_plan_that_it_cannot_start(make_job, moe):
    job = make_job(model=replace(moe, num_layers=9), framework=load_framework("megatron-lm"))
    layouts = {
        name: encode_cells(name, [value] * 4) for name, value in (GOOD | {"pp": 4, "dp": 1, "etp": 1} | USUAL).items()
    }
    layouts["sequence_parallel"][1] = False
    layouts["stage_layers"] = encode_cells("stage_layers", ["2;2;2;3", "3;2;2;2", "", "3;1;2;3"])
    layouts["etp"][3] = 32
    assert violations(job, layouts).tolist() == [
        "", "experts_sequence_parallel", "even_stages", "expert_ffn;expert_ranks",
    ]  # fmt: skip


HIDDEN = "where all-to-alls of experts overlap (training.ep_overlap)"


@pytest.mark.parametrize(
    ("change", "rule", "sentence"),
    [
        ({"ep": 1}, "a2a_overlap_ranks", f"ep must be above 1 {HIDDEN}, not 1."),
        ({"vpp": 1}, "a2a_overlap_chunks", f"pp 2 needs vpp above 1 {HIDDEN}."),
        ({"recompute": "full"}, "a2a_overlap_recompute", f"recompute full does not run {HIDDEN}."),
        (
            {"recompute": "selective", "recompute_modules": "layernorm;moe"},
            "a2a_overlap_modules",
            f"recompute_modules layernorm;moe: moe does not run {HIDDEN}.",
        ),
    ],
)
def test_megatron_refuses_what_its_overlap_of_all_to_alls_does_not_run_with(make_job, moe, change, rule, sentence):
    plan = GOOD | USUAL | {"ep": 2, "vpp": 2, "etp": 1}
    for framework in ("megatron-lm", "nemo"):
        job = make_job(model=moe, framework=load_framework(framework), ep_overlap=True)
        off = replace(job, training=replace(job.training, ep_overlap=False))
        assert (check_plan(job, plan), check_plan(off, plan | change)) == ([], [])
        assert check_plan(job, plan | change) == [sentence]
        assert violations(job, {name: encode_cells(name, [v]) for name, v in (plan | change).items()}).tolist() == [
            rule
        ]
    assert check_plan(make_job(model=moe, ep_overlap=True), plan | {"vpp": 1}) == []  # no framework of that family


def test_deepspeed_names_what_its_engine_does_not_have(make_job, moe):
    job = make_job(model=moe, framework=load_framework("deepspeed"))
    plan = GOOD | USUAL | {"etp": 1, "sequence_parallel": False}
    changes = [{"cp": 2, "dp": 1}, {"pp": 2, "stage_layers": "3;5", "dp": 1}, {"ep": 2, "pp": 2, "dp": 2, "tp": 2}]
    layouts = {name: encode_cells(name, [(plan | change)[name] for change in changes]) for name in plan}
    names = violations(job, layouts).tolist()
    expected = ("context_parallel", "stage_layers_offered", "experts_tp_piped")
    assert [name in found for name, found in zip(expected, names, strict=True)] == [True] * 3


def test_torchtitan_shards_over_context_parallel_ranks_and_has_no_zb_h1(make_job):
    job, plan = make_job(framework=load_framework("torchtitan")), GOOD | USUAL | {"etp": 1}
    layouts = {name: encode_cells(name, [plan[name]] * 2) for name in plan}
    layouts |= {
        "cp": encode_cells("cp", [2, 1]),
        "dp": encode_cells("dp", [1, 2]),
        "zero_stage": encode_cells("zero_stage", [0, 0]),
    }
    layouts |= {"pp": encode_cells("pp", [1, 2]), "schedule": encode_cells("schedule", ["1f1b", "zb-h1"])}
    first, second = violations(job, layouts).tolist()
    assert ("cp_shards" in first, "schedule" in second, "cp_shards" in second) == (True, True, False)


def test_a_measured_row_does_not_state_that_its_attention_is_latent(make_job):
    plan = GOOD | {"etp": 1} | USUAL | {"recompute": "selective", "recompute_modules": "mla_up_proj;layernorm"}
    layouts = {name: encode_cells(name, [value]) for name, value in plan.items()}
    assert check_plan(make_job(), plan) != []
    assert violations(make_job(), layouts).tolist() == [""]


def test_every_rule_that_stops_a_start_is_in_the_table_with_its_source(make_job, moe):
    table = read_yaml("framework_rules.yaml")
    families = {load_framework(name).family for name in framework_names()} - {""}
    assert set(table) - {"every"} <= families
    assert all(len(entry["source"]) > 20 for rules in table.values() for entry in rules.values())
    everything = Framework(rules=tuple(name for family in families & set(table) for name in table[family]))
    names = {rule.name for rule in layout_rules(make_job(model=moe, framework=everything)) if rule.prevents_start}
    names |= {rule.name for rule in layout_rules(make_job()) if rule.prevents_start}
    shared = replace(moe, num_shared_experts=1, num_dense_layers=1)
    names |= {rule.name for rule in layout_rules(make_job(model=shared)) if rule.prevents_start}
    assert names == {name for rules in table.values() for name in rules}


def test_older_versions_of_megatron_have_their_own_rules():
    assert "whole_kv_groups" in framework_rules("megatron-core", "0.15.1")
    assert "whole_kv_groups" not in framework_rules("megatron-core", "0.16.1")
    assert framework_rules("megatron-core") == load_framework("nemo").rules


def test_a_plan_without_a_choice_can_be_started_all_the_same(make_job):
    plan = GOOD | {"dp": 1, "tp": 8, "pp": 1, "etp": 1} | USUAL | {"stage_layers": "8", "recompute": "selective"}
    layouts = {name: encode_cells(name, [value]) for name, value in plan.items()}
    assert check_plan(make_job(), plan) != []
    assert violations(make_job(), layouts).tolist() == [""]


def test_a_search_for_what_the_framework_cannot_run_names_the_first_such_value(make_job):
    training = make_job(framework=Framework("f", zero_stages=(0, 1), recomputes=("none", "full"))).training
    check_abilities(Search(zero_stage=(1, 0), recompute=("full", "none"), tp=(7,)), training)
    with pytest.raises(JobError, match=r"search\.zero_stage 3: f has no such zero_stage; expected 0, 1, got 1, 3\."):
        check_abilities(Search(zero_stage=(1, 3)), training)


@pytest.mark.parametrize(
    ("attention", "offered", "counted"),
    [
        ("flash", ("none", "full"), {"none", "selective", "full"}),
        ("flash", ("full",), {"full"}),
        ("unfused", ("none", "full"), {"none", "full"}),
    ],
)
def test_selective_recompute_counts_as_offered_where_it_is_none(make_job, attention, offered, counted):
    training = make_job(framework=Framework("f", recomputes=offered)).training
    assert set(abilities(replace(training, attention=attention))["recompute"]) == counted


@pytest.mark.parametrize(("mtp", "splits"), [(0, ("4;4", "3;5")), (1, ("4;4", "4;5"))])
def test_a_listed_split_adds_up_to_the_layers_with_or_without_those_of_several_tokens(make_job, mtp, splits):
    """The model has 8 layers."""
    model = replace(make_job().model, mtp_num_layers=mtp)
    check_splits(Search(stage_layers=splits), model)
    with pytest.raises(
        JobError, match=r"search\.stage_layers lists 8;8, which adds up to 16 layers; the model has 8\."
    ):
        check_splits(Search(stage_layers=("4;4", "8;8")), model)
