import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jointopt
from jointopt.core.errors import JobError, JointOptError, UsageError
from jointopt.jobs.catalog.frameworks import named_class, recognise_framework
from jointopt.jobs.clocks import clock_grid_mhz
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import Job, Search, Training
from jointopt.jobs.jobfile import (
    dump_job,
    job_from_options,
    job_mapping,
    load_job,
    parse_job,
    shipped_job,
    shipped_jobs,
)
from jointopt.jobs.objectives import OBJECTIVES
from jointopt.jobs.plans.rules import check_abilities, check_plan
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.reading import parse_yaml
from jointopt.physics.throughput import peak_tflops
from tests.each import each

FULL: dict[str, Any] = {
    "name": "opt-350m-2x4-a100",
    "model": {
        "num_layers": 24, "hidden_size": 1024, "ffn_hidden_size": 4096, "num_attention_heads": 16,
        "num_query_groups": 16, "vocab_size": 50272, "gated_mlp": False, "tied_embeddings": True,
        "num_experts": 0, "moe_router_topk": 0, "moe_ffn_hidden_size": 0, "num_shared_experts": 0,
    },
    "training": {
        "seq_length": 2048, "global_batch_size": 256, "dtype": "bf16", "attention": "flash2",
        "framework": "megatron-lm", "run_tokens": 15e12,
    },
    "cluster": {
        "gpu": "a100-sxm4-40gb", "nodes": 2, "gpus_per_node": 4, "intra_node_gbytes_per_s": 300,
        "inter_node_gbytes_per_s": 12.5, "inter_node_latency_us": 10, "intra_node_pj_per_bit": 1.3,
        "inter_node_pj_per_bit": 20, "inlet_temperature_c": 22, "exhaust_rise_k": 5, "host_power_w": 1000, "pue": 1.1,
        "power_limit_w": 300, "carbon_kg_per_kwh": 0.35, "price_per_kwh": 0.12, "currency": "EUR",
    },
    "search": {
        **{key: [1, 2, 4] for key in ("tp", "dp", "pp", "cp", "ep", "vpp", "micro_batch_size")},
        "zero_stage": [0, 1], "recompute": ["none", "selective", "full"], "sequence_parallel": [True],
        "clock_mhz": {"min": 600, "max": 1410, "step": 15}, "per_stage_clocks": True,
    },
    "constraints": {
        "iteration_time_s": 12.0, "energy_j": 9000, "facility_energy_j": 2e4, "avg_power_w": 320,
        "cluster_power_kw": 30, "memory_fraction": 0.92,
    },
    "objectives": ["iteration_time_s", "energy_j"],
}  # fmt: skip
SMALL: dict[str, Any] = {
    "model": "opt-350m",
    "training": {"seq_length": 2048, "global_batch_size": 256},
    "cluster": {"gpu": "a100-sxm4-40gb", "nodes": 2, "gpus_per_node": 4},
}


def parse(mapping: dict[str, Any]) -> Job:
    return parse_job(mapping, "stem", Path())


def changed(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of the mapping with the value at a dotted path replaced, ``...`` removing it."""
    result = copy.deepcopy(base)
    *sections, key = path.split(".")
    place = result
    for section in sections:
        place = place.setdefault(section, {})
    place[key] = value
    if value is ...:
        del place[key]
    return result


def test_every_key_of_the_job_file_is_read() -> None:
    job = parse(FULL)
    assert job.cluster.assumed == ()
    assert (job.search.tp, job.search.zero_stage, job.search.sequence_parallel) == ((1, 2, 4), (0, 1), (True,))
    assert job.search.clock_mhz == tuple(float(c) for c in range(600, 1411, 15))
    assert (job.constraints.memory_fraction, job.training.framework.name) == (0.92, "megatron-lm")


def test_the_smallest_job_has_the_documented_defaults() -> None:
    job = parse(SMALL)
    assert (job.name, job.training.dtype, job.training.attention) == ("stem", "bf16", "flash2")
    assert job.search.clock_mhz == clock_grid_mhz(job.cluster.gpu)
    assert (job.search.tp, job.search.per_stage_clocks, job.objectives) == (None, True, OBJECTIVES)
    assert job.training.framework.name == "generic"


def test_carbon_price_and_tokens_are_read_and_survive_being_saved() -> None:
    job = parse(FULL)
    site = job.cluster
    assert (site.carbon_kg_per_kwh, site.price_per_kwh, site.currency) == (0.35, 0.12, "EUR")
    assert (job.training.run_tokens, job.training.run_iterations) == (15 * 10**12, 28_610_230)
    assert parse(dict(parse_yaml(dump_job(job)))) == job


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("cluster.carbon_kg_per_kwh", 400, "carbon_kg_per_kwh.*10"),
        ("cluster.price_per_kwh", -0.1, "price_per_kwh"),
        ("cluster.currency", "EUR", "cluster.price_per_kwh is missing"),
        ("training.run_tokens", 0, "run_tokens"),
        ("training.run_tokens", 1.5, "run_tokens"),
    ],
)
def test_a_site_that_makes_no_sense_is_refused(path: str, value: Any, sentence: str) -> None:
    with pytest.raises(JobError, match=sentence):
        parse(changed(SMALL, path, value))


def test_a_saved_job_states_what_experts_do_where_its_model_has_some() -> None:
    stated = {"ep_overlap", "moe_load_imbalance", "moe_routing"}
    dense, experts = (job_mapping(shipped_job(name)) for name in ("llama-3-8b-1x8-h100", "mixtral-8x22b-8x8-h100"))
    assert not stated & set(dense["training"])
    assert stated & set(experts["training"]) == {"moe_load_imbalance"}
    forced = changed(SMALL, "training.moe_routing", "forced")
    assert parse(job_mapping(parse(forced))) == parse(forced)


OLDER: list[tuple[dict[str, Any], dict[str, Any]]] = [  # names of earlier job files, and what they state by today's
    ({"overlap_moe_a2a": True}, {"ep_overlap": True}), ({"tp_comm_overlap": False}, {"tp_overlap": False}),
    ({"overlap_grad_reduce": True}, {"dp_overlap": True}), ({"overlap_grad_reduce": True, "dp_overlap": 0.5},
                                                            {"dp_overlap": 0.5}),
    ({"moe_router_force_load_balancing": True}, {"moe_routing": "forced"}),
    ({"moe_force_load_balancing": False}, {"moe_routing": "natural"}),
]  # fmt: skip


@each(("written", "meant"), OLDER)
def test_a_job_file_of_before_today_s_names_means_what_it_said(written: dict[str, Any], meant: dict[str, Any]) -> None:
    base = changed(SMALL, "model", "mixtral-8x7b")
    job, today = (parse(base | {"training": SMALL["training"] | one}) for one in (written, meant))
    assert job == today
    assert job.training.settings == meant
    assert parse(parse_yaml(dump_job(job))) == job


@each(("key", "value"), [("dp_overlap", 0.7), ("tp_overlap", True), ("tp_overlap", False), ("dp_overlap", 0),
                         ("compile", True), ("fp8_activations", False), ("cuda_graph", "none"),
                         ("cross_entropy", "linear"), ("logits_chunks", 8),
                         ("framework_release", "25.10"), ("framework_release", "0.16.1")])  # fmt: skip
def test_a_setting_of_the_software_is_kept_as_it_is_stated(key: str, value: Any) -> None:
    job = parse(changed(SMALL, f"training.{key}", value))
    assert job.training.settings == {key: value}
    assert parse(parse_yaml(dump_job(job))) == job


@each(("theirs", "ours"), [("native", "compiled"), ("te", "fused")])
def test_a_loss_may_be_stated_by_megatron_s_words(theirs: str, ours: str) -> None:
    assert parse(changed(SMALL, "training.cross_entropy", theirs)).training.cross_entropy == ours


@each(("key", "value", "sentence"), [
    ("dp_overlap", 1.5, "true, false or a share from 0 to 1; got 1.5"), ("tp_overlap", "some", "training.tp_overlap"),
    ("framework_release", "newest", "a release such as 26.06 or 0.16.1, in quotes; got 'newest'"),
    ("framework_release", 25.1, "in quotes; got 25.1"),  # which YAML makes of 25.10 too
    ("moe_routing", "random", "one of forced, natural"), ("compile", "sometimes", "training.compile"),
    ("cross_entropy", "flash", "one of unfused, compiled, fused, linear, native, te; got 'flash'"),
    ("logits_chunks", 0, "training.logits_chunks must be a whole number"),
])  # fmt: skip
def test_a_setting_that_says_nothing_is_refused(key: str, value: Any, sentence: str) -> None:
    with pytest.raises(JobError, match=re.escape(sentence)):
        parse(changed(SMALL, f"training.{key}", value))


def test_one_value_means_a_list_of_one() -> None:
    job = parse(SMALL | {"search": {"tp": 4, "recompute": "full", "clock_mhz": 1410, "sequence_parallel": False}})
    assert (job.search.tp, job.search.recompute, job.search.clock_mhz) == ((4,), ("full",), (1410.0,))
    assert job.search.sequence_parallel == (False,)


@pytest.mark.parametrize("name", shipped_jobs())
def test_every_shipped_job_loads_under_its_own_name_and_survives_being_saved(name: str) -> None:
    job = shipped_job(name)
    assert job.name == name
    assert parse(dict(parse_yaml(dump_job(job)))) == job


def test_the_shipped_jobs_are_the_real_systems() -> None:
    sizes = {name: shipped_job(name).cluster.num_gpus for name in shipped_jobs()}
    assert sizes["opt-350m-2x4-a100"] == 8
    assert sizes["gpt3-175b-128x8-a100"] == 1024
    assert sizes["llama-3-405b-2048x8-h100"] == 16384
    assert len(sizes) == 8


def test_a_shipped_job_is_found_by_its_name_alone() -> None:
    assert jointopt.load_job("olmoe-1b-7b-8x4-gh200") == shipped_job("olmoe-1b-7b-8x4-gh200")


def test_the_config_json_of_a_shipped_job_is_the_catalogue_model() -> None:
    model = shipped_job("llama-3-8b-1x8-h100").model
    assert model.parameters == 8_030_261_248


def test_a_model_by_path_is_sought_beside_the_job_file(tmp_path: Path) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128}
    config |= {"num_attention_heads": 4, "vocab_size": 1000}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    for model in ("mine", "mine/config.json", str(tmp_path / "mine")):
        (tmp_path / "job.yaml").write_text(dump_job(SMALL | {"model": model}))
        assert load_job(tmp_path / "job.yaml").model.name == "mine"


@each(
    ("path", "value", "sentence"),
    [
        ("modle", 1, r"The key 'modle' is unknown \(did you mean 'model'\?\)"),
        ("nodes", 1, r"The key 'nodes' is unknown \(did you mean 'cluster.nodes'\?\)"),
        ("training.seq_len", 1, r"'seq_len' in training is unknown \(did you mean 'seq_length'"),
        ("model", ..., "model is missing"),
        ("model", "opt-350", "did you mean 'opt-350m'"),
        ("model", "./none.json", "none.json does not exist"),
        ("training", [], "training"),
        ("training.seq_length", 0, "training.seq_length .*; got 0"),
        ("training.global_batch_size", True, "training.global_batch_size"),
        ("training.dtype", "fp8", "fp8 .*'a100-sxm4-40gb'"),
        ("training.dtype", "bf-16", "did you mean 'bf16'"),
        ("training.fused_norm", "yes", "training.fused_norm"),
        ("cluster", ..., "cluster is missing"),
        ("cluster.nodes", ..., "cluster.nodes is missing"),
        ("search.tp", [], r"search\.tp must be a whole number, or a list of 1 to 1000 of them; got \[\]"),
        ("search.zero_stage", 4, "search.zero_stage .* 0 to 3; got 4"),
        ("search.clock_mhz", 1000, "1000.0 MHz"),
        ("constraints.memory_fraction", 1.2, "constraints.memory_fraction"),
        ("constraints.energy_j", float("nan"), "constraints.energy_j"),
        ("objectives", [], "objectives"),
        ("name", 7, "name"),
    ],
)
def test_a_bad_key_or_value_is_one_sentence_with_its_place(path: str, value: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        parse(changed(SMALL, path, value))
    assert "\n" not in str(caught.value)


def test_an_error_in_a_file_begins_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(dump_job(changed(SMALL, "cluster.nodes", 0)))
    with pytest.raises(JobError, match=r"bad.yaml: cluster.nodes must be") as caught:
        load_job(path)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b", "", "/", "\udcff", "none.yaml"])
def test_a_path_that_leads_nowhere_is_one_sentence(path: str) -> None:
    with pytest.raises(JobError):
        load_job(path)


def test_a_mistyped_shipped_job_names_the_one_meant() -> None:
    sentence = "opt-350m-2x4-a10 is neither a file nor a shipped job (did you mean 'opt-350m-2x4-a100'?); `jointopt"
    with pytest.raises(JobError, match=re.escape(sentence)):
        load_job("opt-350m-2x4-a10")


def test_a_job_like_no_other_is_answered_with_the_listing():
    with pytest.raises(JobError, match=r"^zzz is neither a file nor a shipped job; `jointopt catalog jobs` lists"):
        load_job("zzz")


def test_a_gpu_without_a_known_clock_step_is_searched_openly() -> None:
    job = job_from_options("llama-3-8b", "mi300x", 16, 512, 8192)
    assert (job.search.clock_mhz[0], job.search.clock_mhz[-1]) == (375.0, 2100.0)
    assert "clock range: no source states the lower clocks of mi300x" in job.assumed_clocks


def test_options_make_the_job_that_a_file_would() -> None:
    job = job_from_options("llama-3-8b", "h100-sxm5-80gb", 64, 512, 8192)
    assert (job.cluster.nodes, job.cluster.gpus_per_node) == (8, 8)
    assert parse(dict(parse_yaml(dump_job(job)))) == job


def test_few_gpus_are_one_node_and_odd_ones_are_refused() -> None:
    assert job_from_options("opt-350m", "a100-sxm4-40gb", 3, 6, 2048).cluster.gpus_per_node == 3
    with pytest.raises(JobError, match="12 GPUs do not fill whole nodes of 8"):
        job_from_options("opt-350m", "a100-sxm4-40gb", 12, 6, 2048)
    with pytest.raises(JobError, match="gpus must be a whole number"):
        job_from_options("opt-350m", "a100-sxm4-40gb", 0, 6, 2048)


DEGREES = st.none() | st.lists(st.integers(1, 64), min_size=1, max_size=4)
CLOCKS = st.lists(st.integers(0, 80).map(lambda i: 210 + 15 * i), min_size=1, max_size=5) | st.none()
ANY_SEARCH = st.fixed_dictionaries(
    dict.fromkeys(("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size"), DEGREES),
    optional={
        "clock_mhz": CLOCKS,
        "zero_stage": st.lists(st.integers(0, 1), min_size=1),
        "per_stage_clocks": st.booleans(),
        "recompute": st.sampled_from(["none", "full", ["full", "none"]]),
        "sequence_parallel": st.booleans(),
    },
)
ANY_CLUSTER = st.fixed_dictionaries(
    {"gpu": st.sampled_from(["a100-sxm4-40gb", "a100-sxm4-80gb"]), "nodes": st.integers(1, 100)},
    optional={
        "gpus_per_node": st.integers(1, 16),
        "pue": st.floats(1, 2),
        "inlet_temperature_c": st.floats(0, 60),
        "exhaust_rise_k": st.floats(0, 40),
        "power_limit_w": st.floats(100, 500),
        "host_power_w": st.sampled_from([0, 2800, 3300.0, 17.5]),
        "cooling": st.sampled_from(["air", "liquid"]),
        "carbon_kg_per_kwh": st.floats(0, 10),
        "price_per_kwh": st.floats(0, 1e9) | st.integers(0, 1000),
        "inter_node_gbytes_per_s": st.sampled_from([25, 25.0, 12.5]),
        "name": st.text(min_size=1, max_size=9).filter(lambda t: t.isprintable() and t.strip()),
    },
)
ANY_JOB = st.fixed_dictionaries(
    {
        "name": st.text(min_size=1, max_size=20).filter(lambda t: t.isprintable() and bool(t.strip())),
        "model": st.sampled_from(["opt-350m", "Mixtral-8x7B", FULL["model"], FULL["model"] | {"name": "1e5"}]),
        "training": st.sampled_from([SMALL["training"], FULL["training"], SMALL["training"] | {"run_tokens": 1}]),
        "cluster": ANY_CLUSTER,
        "search": ANY_SEARCH,
    },
    optional={
        "constraints": st.dictionaries(st.sampled_from(["energy_j", "avg_power_w"]), st.floats(1e-3, 2e4)),
        "objectives": st.sampled_from([["energy_j"], ["facility_energy_j"], ["energy_j", "iteration_time_s"]]),
    },
)


@settings(deadline=None, max_examples=40)
@given(ANY_JOB)
def test_a_job_that_is_saved_and_loaded_is_the_same_job(mapping: dict[str, Any]) -> None:
    job = parse(mapping)
    assert parse(dict(parse_yaml(dump_job(job)))) == job


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.just(5000).map(lambda n: 10**n),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
SENTENCE = r"\S+ [^\n]+[.?)]"
PLACES = [f"{section}.{key}" for section, keys in FULL.items() if isinstance(keys, dict) for key in keys] + list(FULL)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), JUNK), min_size=1, max_size=3))
def test_a_valid_job_with_junk_anywhere_is_a_job_or_one_of_our_errors(junk: list[tuple[str, Any]]) -> None:
    mapping = copy.deepcopy(FULL)
    for path, value in junk:
        section, _, key = path.partition(".")
        place = mapping.get(section) if key else mapping
        if isinstance(place, dict):
            place[key or section] = value
    sentence = "It is a job."
    try:
        parse(mapping)
    except JointOptError as error:
        sentence = str(error)
    assert re.fullmatch(SENTENCE, sentence)


@settings(deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_bytes_make_the_loader_fail_otherwise(raw: bytes) -> None:
    path, sentence = Path(__file__).parent / "fuzz", "It is a job."
    try:
        parse_job(parse_yaml(raw.decode("utf-8-sig", "replace")), path.stem, path)
    except JointOptError as error:
        sentence = str(error)
    assert re.fullmatch(SENTENCE, sentence)


@settings(deadline=None)
@given(
    st.integers(0, 2000), st.sampled_from([b"", b"\x00", b"\t", b"- ", b"{", b"&a ", b"*a", b"!!int ", b": ", b"\xff"])
)
def test_a_shipped_file_with_a_cut_or_a_stain_is_a_job_or_one_of_our_errors(
    tmp_path_factory: pytest.TempPathFactory, place: int, stain: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "stained.yaml"
    raw = dump_job(FULL).encode()
    path.write_bytes(raw[:place] + stain + raw[place + (0 if stain else 7) :])
    try:
        load_job(path)
    except JointOptError as error:
        sentence = str(error)
    else:
        sentence = str(path)
    assert str(path) in sentence


def test_loading_a_job_imports_nothing_heavy() -> None:
    heavy = "pandas optuna sklearn xgboost torch scipy"
    load = "import sys, jointopt; jointopt.load_job('opt-350m-2x4-a100')"
    code = f"{load}; print(set('{heavy}'.split()) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_precision_that_is_not_stated_is_the_gpus_own_16_bit_format(tmp_path: Path) -> None:
    shape = {"model": "opt-350m", "training": {"seq_length": 128, "global_batch_size": 8}}
    for gpu, dtype in (("v100-sxm2-16gb", "fp16"), ("a100-sxm4-80gb", "bf16")):
        job = parse_job({**shape, "cluster": {"gpu": gpu, "nodes": 1, "gpus_per_node": 8}}, "job", tmp_path)
        assert job.training.dtype == dtype
        stated = [str(a) for a in job.cluster.assumed if a.key == "dtype"]
        assert stated == ["dtype is not given and v100-sxm2-16gb has no bf16; fp16 is assumed"] * (dtype == "fp16")
        assert parse_job(parse_yaml(dump_job(job)), "job", tmp_path) == job


def test_tf32_is_fp32_on_tensor_cores_and_is_written_back() -> None:
    def job(dtype: str, gpu: str = "a100-sxm4-80gb") -> Job:
        return job_from_options(model="llama-3-8b", gpu=gpu, gpus=8, global_batch_size=64, seq_length=2048, dtype=dtype)

    found = job("tf32")
    assert (found.training.dtype, found.training.framework.tf32) == ("fp32", True)
    assert parse_job(parse_yaml(dump_job(found)), "job", Path()).training == found.training
    assert [round(peak_tflops(one), 1) for one in (found, job("fp32"))] == [156.0, 19.5]
    with pytest.raises(JobError, match=r"dtype: GPU 'v100-sxm2-16gb' has no tf32; expected fp32"):
        job("tf32", "v100-sxm2-16gb")


def test_the_dtype_of_a_pandas_row_is_no_precision_and_the_job_names_what_stands_in(tmp_path: Path) -> None:
    training = {"seq_length": 128, "global_batch_size": 8, "dtype": "object"}
    cluster = {"gpu": "a100-sxm4-80gb", "nodes": 1, "gpus_per_node": 8}
    job = parse_job({"model": "opt-350m", "training": training, "cluster": cluster}, "job", tmp_path)
    assert job.training.dtype == "bf16"
    assert job.cluster.assumed[-1].key == "dtype"


@pytest.mark.parametrize(
    ("framework", "search", "sentence"),
    [
        ("nanotron", {"zero_stage": 3}, "search.zero_stage 3: nanotron has no .*; expected 0, 1, got 3"),
        ("torchtitan", {"zero_stage": [1]}, "expected 0, 2, 3, got 1"),
        ("megatron-deepspeed", {"vpp": [1, 2]}, "search.vpp 2: .*; expected 1, got 1, 2"),
    ],
)
def test_a_searched_value_that_the_framework_lacks_is_refused(
    framework: str, search: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(JobError, match=sentence):
        parse({**SMALL, "training": {**SMALL["training"], "framework": framework}, "search": search})


def test_a_framework_with_zero_3_keeps_layouts_that_have_nothing_to_shard() -> None:
    one_gpu = {"gpu": "a100-sxm4-40gb", "nodes": 1, "gpus_per_node": 1}
    training = {**SMALL["training"], "framework": "deepspeed"}
    job = parse({**SMALL, "training": training, "cluster": one_gpu, "search": {"zero_stage": 3}})
    assert set(enumerate_layouts(job).layouts["zero_stage"].tolist()) == {0}


def test_recompute_sequence_and_context_parallelism_are_checked_alike() -> None:
    framework = Framework(recomputes=("full",), sequence_parallel=(True,), context_parallel=False)
    training = Training(2048, 8, attention="unfused", framework=framework)
    for search in (Search(recompute=("none",)), Search(sequence_parallel=(False,)), Search(cp=(2,))):
        with pytest.raises(JobError, match="generic has no such"):
            check_abilities(search, training)
    check_abilities(Search(recompute=("full",), sequence_parallel=(True,), cp=(1,)), training)


@pytest.mark.parametrize(
    ("gpu", "kernel"),
    [
        ("v100-sxm2-32gb", "flash2"), ("v100-sxm2-32gb", "flash1"), ("a100-sxm4-40gb", "flash3"),
        ("b200-sxm-180gb", "flash3"), ("mi300x", "flash3"),
    ],
)  # fmt: skip
def test_an_attention_kernel_that_the_gpu_cannot_run_is_refused(gpu: str, kernel: str) -> None:
    mapping = changed(changed(SMALL, "cluster.gpu", gpu), "training.attention", kernel)
    with pytest.raises(JobError, match=f"training.attention: {kernel} does not run on GPU '{gpu}'"):
        parse(mapping)


@pytest.mark.parametrize(("gpu", "kernel"), [("v100-sxm2-32gb", "fused"), ("h100-sxm5-80gb", "flash2")])
def test_the_usual_attention_kernel_is_one_that_runs(gpu: str, kernel: str) -> None:
    assert parse(changed(SMALL, "cluster.gpu", gpu)).training.attention == kernel


def test_a_gpu_without_a_usual_network_needs_the_option_that_its_error_names() -> None:
    size = {"gpus_per_node": 4, "framework": "megatron-lm"}
    with pytest.raises(JobError, match="--inter-node-gbytes-per-s"):
        job_from_options("opt-350m", "l40s", 8, 64, 2048, **size)
    job = job_from_options("opt-350m", "l40s", 8, 64, 2048, **size, inter_node_gbytes_per_s=12.5)
    assert job.cluster.inter_node_gbytes_per_s == 12.5


CORES = {**SMALL, "cluster": {"gpu": "cpu-core", "nodes": 1, "gpus_per_node": 4}}


def test_where_nothing_is_known_of_power_the_objective_is_time_alone_as_a_named_assumption() -> None:
    job = parse(CORES)
    assert job.objectives == ("iteration_time_s",)
    assert "power_limit_w" in {assumption.key for assumption in job.cluster.assumed}
    assert parse(parse_yaml(dump_job(job))) == job


@pytest.mark.parametrize("key", ["objectives", "constraints.energy_j", "constraints.avg_power_w"])
def test_energy_of_cores_is_refused_in_one_sentence(key: str) -> None:
    value = ["iteration_time_s", "energy_j"] if key == "objectives" else 100
    with pytest.raises(JobError, match=f"{key}: nothing is known of the power of GPU 'cpu-core'"):
        parse(changed(CORES, key, value))


def test_a_job_may_state_the_memory_of_its_gpus() -> None:
    job = parse(changed(CORES, "cluster.memory_gib", 11.5))
    assert job.cluster.gpu.memory_gib == 11.5
    assert parse(parse_yaml(dump_job(job))) == job
    with pytest.raises(JobError, match=r"cluster\.memory_gib"):
        parse(changed(CORES, "cluster.memory_gib", -1))


def test_cuda_graphs_are_those_of_megatron_core_alone() -> None:
    graphs = {"framework": "nemo", "cuda_graph": "transformer_engine"}
    job = parse(SMALL | {"training": SMALL["training"] | graphs})
    assert job.training.cuda_graph == "transformer_engine"
    assert parse(parse_yaml(dump_job(job))) == job
    with pytest.raises(JobError, match=r"training\.cuda_graph: the memory of torchtitan's CUDA graphs is unknown"):
        parse(SMALL | {"training": SMALL["training"] | graphs | {"framework": "torchtitan"}})


def test_the_ranks_of_the_exhaust_row_are_read_in_order_and_survive_being_saved() -> None:
    job = parse(changed(SMALL, "cluster.exhaust_ranks", [3, 2]))
    assert job.cluster.exhaust_ranks == (2, 3)
    assert parse(parse_yaml(dump_job(job))) == job


def test_nodes_cooled_by_liquid_have_no_fans_and_survive_being_saved() -> None:
    air, liquid = (parse(changed(SMALL, "cluster.cooling", cooling)) for cooling in ("air", "liquid"))
    assert air.cluster.host_load_share - liquid.cluster.host_load_share == pytest.approx(0.11)
    assert parse(SMALL).cluster.host_load_share == air.cluster.host_load_share
    assert parse(parse_yaml(dump_job(liquid))) == liquid
    with pytest.raises(JobError, match=r"cluster\.cooling must be one of air, liquid"):
        parse(changed(SMALL, "cluster.cooling", "water"))


@pytest.mark.parametrize("ranks", [[], [4], [-1], [1, 1], [0, 1, 2, 3], "2;3", 2, [1.5]])
def test_an_exhaust_row_that_makes_no_sense_is_refused(ranks: Any) -> None:
    with pytest.raises(
        JobError, match=r"cluster\.exhaust_ranks must be a list of some, not all, local ranks from 0 to 3"
    ):
        parse(changed(SMALL, "cluster.exhaust_ranks", ranks))


LORA = {"framework": "megatron-bridge", "lora_dim": 8, "lora_target_modules": ["linear_fc2", "linear_qkv"]}


def test_adapters_are_read_in_their_order_and_survive_being_saved() -> None:
    job = parse(SMALL | {"training": SMALL["training"] | LORA})
    assert job.training.adapted == ("linear_qkv", "linear_fc2")
    assert parse(parse_yaml(dump_job(job))) == job
    assert not parse(SMALL).training.adapted


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"framework": "megatron-lm"}, r"training\.lora_dim: megatron-lm trains no adapters .* expected one of .*nemo"),
        ({"lora_dim": 0}, r"training\.lora_dim must be a whole number from 1"),
        ({"lora_dim": None}, r"training\.lora_dim is missing"),
        ({"lora_target_modules": ["q_proj"]}, r"training\.lora_target_modules must be a list of some of linear_qkv"),
    ],
)
def test_adapters_that_make_no_sense_are_refused_by_name(stated: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        parse(SMALL | {"training": SMALL["training"] | LORA | stated})


def test_tensor_ranks_of_megatron_must_divide_the_rank_of_adapters() -> None:
    job = parse(SMALL | {"training": SMALL["training"] | LORA | {"lora_dim": 1}})
    plan = dict.fromkeys(("dp", "pp", "cp", "ep", "vpp", "micro_batch_size"), 1) | {"tp": 2, "recompute": "none"}
    sentences = check_plan(job, plan | {"zero_stage": 0, "sequence_parallel": False})
    assert "tp 2 does not divide training.lora_dim 1, which megatron-bridge cuts by tp." in sentences


MIXTURE = changed(SMALL, "model", "mixtral-8x7b")


def test_how_unevenly_experts_are_loaded_is_read_and_survives_being_saved() -> None:
    stated: tuple[dict[str, Any], ...] = ({"moe_load_imbalance": 1.25}, {"moe_routing": "forced"})
    for one in stated:
        job = parse(MIXTURE | {"training": SMALL["training"] | one})
        assert {key: getattr(job.training, key) for key in one} == one
        assert parse(parse_yaml(dump_job(job))) == job


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"moe_load_imbalance": 0.9}, r"training\.moe_load_imbalance must be a number from 1 \(balanced\) on; got 0.9"),
        ({"moe_load_imbalance": 4.5}, r"must be at most 4 for .*each token goes to 2 of 8 experts.*got 4.5"),
        ({"moe_load_imbalance": 1.2, "moe_routing": "forced"}, r"1.2 contradicts moe_routing forced"),
    ],
)
def test_impossible_loads_of_experts_are_refused(stated: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        parse(MIXTURE | {"training": SMALL["training"] | stated})


def test_a_dense_model_has_no_imbalance() -> None:
    with pytest.raises(JobError, match=r"must be at most 1 for .* \(no experts\); got 1.2"):
        parse(SMALL | {"training": SMALL["training"] | {"moe_load_imbalance": 1.2}})


NARROW = {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 1000}


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (SMALL, {}, r"ep_overlap: .* has no experts; expected false"),
        (MIXTURE, {"framework": "megatron-lm", "dtype": "fp32"}, "needs bf16 or fp16, and dtype is fp32"),
        (
            changed(SMALL, "model", NARROW | {"num_experts": 8, "moe_router_topk": 2, "mtp_num_layers": 2}),
            {"framework": "nemo"},
            "at most one multi-token-prediction layer, and .* has 2",
        ),
    ],
)
def test_all_to_alls_that_no_plan_could_overlap_are_refused(base: Any, changes: Any, message: str) -> None:
    stated = SMALL["training"] | changes
    parse(base | {"training": stated})
    with pytest.raises(JobError, match=message):
        parse(base | {"training": stated | {"ep_overlap": True}})


def test_formats_of_states_are_read_refused_and_survive_being_saved() -> None:
    stated = {"dtype": "fp8", "grad_reduce_dtype": "bf16", "exp_avg_dtype": "fp8", "fp8_param_gather": True}
    job = parse(changed(SMALL, "cluster.gpu", "h100-sxm5-80gb") | {"training": SMALL["training"] | stated})
    assert (job.training.gradient_bytes, job.training.optimizer_bytes) == (2.0, 4.0 + 1.0 + 1.0)
    assert job.training.weight_gather_bytes == 1.0
    assert parse(parse_yaml(dump_job(job))) == job
    with pytest.raises(JobError, match=r"training\.exp_avg_dtype must be one of fp32"):
        parse(SMALL | {"training": SMALL["training"] | {"exp_avg_dtype": "wide"}})


@pytest.mark.parametrize(
    ("gpu", "dtype", "recipe", "message"),
    [
        ("h100-sxm5-80gb", "fp8", "mxfp8", r"fp8_recipe: mxfp8 does not run on GPU 'h100.*Hopper.*delayed, tenso"),
        ("l40s", "fp8", "blockwise", r"blockwise does not run on GPU 'l40s' \(Ada Lovelace\), but on Hopper, Black"),
        ("gb200", "bf16", "delayed", r"delayed scales products in fp8, and dtype is bf16; expected dtype fp8"),
        ("gb200", "fp8", "nvfp4", r"nvfp4 scales products in fp4, and dtype is fp8; expected.* or dtype fp4"),
        ("gb200", "fp8", "per_row", r"training\.fp8_recipe must be one of delayed, tensorwise, rowwise"),
    ],
)  # fmt: skip
def test_a_recipe_that_the_precision_or_the_gpu_has_not_is_refused(
    gpu: str, dtype: str, recipe: str, message: str
) -> None:
    stated = SMALL["training"] | {"dtype": dtype, "fp8_recipe": recipe}
    with pytest.raises(JobError, match=message):
        parse(SMALL | {"training": stated, "cluster": {"gpu": gpu, "nodes": 1, "gpus_per_node": 4}})


@pytest.mark.parametrize(("dtype", "recipe"), [("fp8", "mxfp8"), ("fp8", "rowwise"), ("fp4", "nvfp4")])
def test_a_recipe_is_read_and_survives_being_saved(dtype: str, recipe: str) -> None:
    stated = SMALL["training"] | {"dtype": dtype, "fp8_recipe": recipe}
    job = parse(changed(SMALL, "cluster.gpu", "gb200") | {"training": stated})
    assert job.training.fp8_recipe is not None
    assert (job.training.precision_words, job.training.fp8_recipe.dtype) == (f"{dtype} ({recipe})", dtype)
    assert parse_yaml(dump_job(job))["training"]["fp8_recipe"] == recipe
    assert parse(parse_yaml(dump_job(job))) == job


@pytest.mark.parametrize(
    ("gpu", "dtype", "recipe"),
    [("gb200", "fp4", "nvfp4"), ("b300-sxm-270gb", "fp4", "nvfp4"), ("gb200", "fp8", None), ("mi355x", "fp4", None)],
)
def test_fp4_without_a_recipe_is_nvfp4_which_is_a_named_assumption_again_after_saving(
    gpu: str, dtype: str, recipe: str
) -> None:
    base = SMALL | {"cluster": {"gpu": gpu, "nodes": 1, "gpus_per_node": 4}}
    job = parse(base | {"training": SMALL["training"] | {"dtype": dtype}})
    found, named = job.training.fp8_recipe, [one for one in job.cluster.assumed if one.key == "fp8_recipe"]
    assert (found and found.name, [one.value for one in named]) == (recipe, [recipe] if recipe else [])
    assert "fp8_recipe" not in parse_yaml(dump_job(job))["training"]
    assert parse(parse_yaml(dump_job(job))) == job
    if recipe:
        stated = parse(base | {"training": SMALL["training"] | {"dtype": dtype, "fp8_recipe": recipe}})
        assert (stated.training, "fp8_recipe" in str(stated.cluster.assumed)) == (job.training, False)
        assert named[0].reason == f"fp8_recipe is not given; nvfp4, the only one of fp4 on {gpu}, is assumed"


def test_a_recipe_class_moves_the_profile_is_refused_by_name_and_survives_being_saved() -> None:
    usual, job = (parse(SMALL | {"training": SMALL["training"] | {"framework": "nemo"} | more}) for more in CLASSES)
    assert (usual.training.software, job.training.software) == ("nemo", "nemo (community recipe)")
    assert job.training.framework.compute_factor > 1.1 * usual.training.framework.compute_factor
    assert parse(parse_yaml(dump_job(job))) == job
    with pytest.raises(JobError, match=r"training\.recipe_class must be one of submission, vendor, community"):
        parse(SMALL | {"training": SMALL["training"] | {"recipe_class": "tuned"}})


CLASSES: tuple[dict[str, str], ...] = ({}, {"recipe_class": "community"})


@pytest.mark.parametrize(("text", "named"), [
    ("MLPerf submission, torchtitan", {"framework": "torchtitan", "recipe_class": "submission"}),
    ("NeMo 24.07", {"framework": "nemo", "framework_release": "24.07"}),
    ("torchtitan, community runs", {"framework": "torchtitan", "recipe_class": "community"}),
])  # fmt: skip
def test_a_framework_in_words_is_the_profile_and_class_that_a_table_reads_there(text: str, named: Any) -> None:
    job, stated = (parse(SMALL | {"training": SMALL["training"] | more}) for more in ({"framework": text}, named))
    assert job == stated
    assert parse(parse_yaml(dump_job(job))) == job
    assert job.training.framework.name == recognise_framework(text)[0].name
    assert job.training.recipe_class == named_class(text)


@pytest.mark.parametrize("text", ["nemoo", "megatron deepsped", "not NeMo", "our own trainer"])
def test_a_framework_that_is_misspelt_or_unknown_is_refused(text: str) -> None:
    with pytest.raises(JobError, match=rf"training\.framework must be one of .*; got '{text}'"):
        parse(SMALL | {"training": SMALL["training"] | {"framework": text}})
