"""Files and words of the other frameworks, read back."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import assume, given

from jointopt.core.errors import ExportError
from jointopt.frameworks.intent import Intent, intent_of
from jointopt.frameworks.targets import TARGETS, _without
from tests.frameworks.exports.conftest import job_named, layouts, plan_of

LLAMA = job_named("llama-3-8b", gpus=64)


def file_of(intent: Intent, target: str, name: str, version: str = "") -> Any:
    text = TARGETS[target].export(intent, version).files[name]
    return json.loads(text) if name.endswith("json") else yaml.safe_load(text)


def titan(intent: Intent) -> dict[str, Any]:
    """The sections of torchtitan 0.2's TOML."""
    return tomllib.loads(TARGETS["torchtitan"].export(intent, "0.2.2").files["torchtitan.toml"])


def flags(intent: Intent) -> dict[str, str]:
    """The options of torchtitan 0.3's command line."""
    words = TARGETS["torchtitan"].export(intent).words
    return dict(zip(words, (*words[1:], ""), strict=True))


@given(layouts)
def test_torchtitan_s_mesh_is_the_plan_s_in_both_versions(columns: dict[str, Any]) -> None:
    tp, pp, cp = (columns[name] for name in ("tp", "pp", "cp"))
    assume(64 % (tp * pp * cp) == 0)
    made = intent_of(LLAMA, plan_of(LLAMA, **columns | {"zero_stage": 3}))
    old = titan(made)["parallelism"]
    names = (
        "data_parallel_replicate",
        "data_parallel_shard",
        "tensor_parallel",
        "pipeline_parallel",
        "context_parallel",
    )
    mesh = [1, made["dp"], tp, pp, cp]
    assert [old[f"{name}_degree"] for name in names] == mesh
    new = flags(made)
    assert [int(new[f"--parallelism.{name}_degree"]) for name in names] == mesh


@pytest.mark.parametrize(("stage", "replicate", "shard"), [(0, 8, 1), (2, 1, 8), (3, 1, 8)])
def test_torchtitan_shards_by_the_stage(intent: Any, stage: int, replicate: int, shard: int) -> None:
    mesh = titan(intent("llama-3-8b", zero_stage=stage))["parallelism"]
    assert (mesh["data_parallel_replicate_degree"], mesh["data_parallel_shard_degree"]) == (replicate, shard)
    assert mesh["fsdp_reshard_after_forward"] == ("always" if stage == 3 else "never")


def test_a_pipeline_takes_all_micro_batches_as_one_local_batch(intent: Any) -> None:
    piped, flat = (titan(intent("llama-3-8b", pp=pp, micro_batch_size=2)) for pp in (4, 1))
    assert piped["training"]["local_batch_size"] == 512 // 2
    assert piped["parallelism"]["pipeline_parallel_microbatch_size"] == 2
    assert flat["training"]["local_batch_size"] == 2


def test_a_split_of_its_own_names_the_modules_of_each_chunk(intent: Any) -> None:
    made = intent("llama-3-8b", pp=2, stage_layers="15;17")
    parts = titan(made)["parallelism"]["module_fqns_per_model_part"]
    assert parts[0] == ["tok_embeddings", *(f"layers.{i}" for i in range(15))]
    assert parts[1] == [*(f"layers.{i}" for i in range(15, 32)), "norm", "output"]
    new = TARGETS["torchtitan"].export(made)
    assert new.words[:2] == ("--module", "plan_config")
    assert "'layers.31', 'norm', 'lm_head'" in new.files["plan_config.py"]


def test_torchtitan_knows_a_model_by_its_shape(intent: Any) -> None:
    assert titan(intent("llama-3-8b"))["model"] == {"name": "llama3", "flavor": "8B"}
    with pytest.raises(ExportError, match=r"no model of the shape of opt-6\.7b; it has llama-3-8b"):
        titan(intent("opt-6.7b"))


def test_torchtitan_trains_in_fp8_what_it_has_so(intent: Any) -> None:
    made = intent("deepseek-v3", gpus=64, ep=8, dtype="fp8", zero_stage=3)
    assert "deepseek_v3_671b_float8" in TARGETS["torchtitan"].export(made).words
    for model, dtype in (("llama-3-8b", "fp8"), ("llama-3-405b", "bf16")):
        with pytest.raises(ExportError, match=f"cannot express training {model} in {dtype}"):
            TARGETS["torchtitan"].export(intent(model, dtype=dtype, zero_stage=3))


@given(layouts)
def test_deepspeed_s_batch_is_the_product_of_its_parts(columns: dict[str, Any]) -> None:
    columns = columns | {"cp": 1, "vpp": 1, "sequence_parallel": False}
    assume(64 % (columns["tp"] * columns["pp"]) == 0)
    made = intent_of(LLAMA, plan_of(LLAMA, **columns))
    found = file_of(made, "deepspeed", "ds_config.json")
    parts = found["train_micro_batch_size_per_gpu"] * found["gradient_accumulation_steps"]
    assert found["train_batch_size"] == parts * made["dp"] == 512
    assert found["zero_optimization"]["stage"] == columns["zero_stage"]


@given(layouts)
def test_nanotron_s_degrees_and_batch_are_the_plan_s(columns: dict[str, Any]) -> None:
    columns = columns | {"vpp": 1}
    assume(64 % (columns["tp"] * columns["pp"] * columns["cp"]) == 0)
    made = intent_of(LLAMA, plan_of(LLAMA, **columns))
    found = file_of(made, "nanotron", "nanotron.yaml")
    parallel, tokens = found["parallelism"], found["tokens"]
    assert [parallel[name] for name in ("dp", "tp", "pp")] == [made[name] for name in ("dp", "tp", "pp")]
    assert parallel["context_parallel_size"] == columns["cp"]
    assert tokens["micro_batch_size"] * tokens["batch_accumulation_per_replica"] * parallel["dp"] == 512


def test_nanotron_of_the_registry_has_fewer_words(intent: Any) -> None:
    assert "rope_theta" in file_of(intent("llama-3-8b"), "nanotron", "nanotron.yaml")["model"]["model_config"]
    assert "data" in file_of(intent("llama-3-8b"), "nanotron", "nanotron.yaml", "0.4")
    with pytest.raises(ExportError, match=r"nanotron 0\.4 cannot express recompute full"):
        TARGETS["nanotron"].export(intent("llama-3-8b", recompute="full"), "0.4")


@pytest.mark.parametrize(
    ("columns", "kind", "degrees"),
    [
        ({"zero_stage": 3, "tp": 2}, "FSDP", {"parallelism_config_tp_size": 2, "parallelism_config_dp_shard_size": 4}),
        ({"zero_stage": 1, "pp": 2}, "MEGATRON_LM", {"megatron_lm_pp_degree": 2, "megatron_lm_tp_degree": 1}),
        ({}, "MULTI_GPU", {}),
    ],
)
def test_accelerate_takes_the_plugin_that_has_the_plan(
    intent: Any, columns: dict[str, Any], kind: str, degrees: dict[str, int]
) -> None:
    found = file_of(intent("llama-3-8b", **columns), "accelerate", "accelerate.yaml")
    assert (found["distributed_type"], found["num_processes"]) == (kind, 8)
    section = found.get("parallelism_config") or found.get("megatron_lm_config") or {}
    assert degrees.items() <= section.items()


def test_bridge_s_words_and_file_agree(intent: Any) -> None:
    made = TARGETS["megatron-bridge"].export(intent("mixtral-8x7b", tp=2, pp=2, ep=2, sequence_parallel=True))
    overrides = dict(word.split("=", 1) for word in made.words)
    for section, values in yaml.safe_load(made.files["overrides.yaml"]).items():
        for name, value in values.items() if isinstance(values, dict) else ():
            word = overrides[f"{section}.{name}"]
            assert word == value or json.loads(word) == value
    assert overrides["model.num_moe_experts"] == "8"


@pytest.mark.parametrize("target", ["megatron", "nanotron", "torchtitan"])
def test_targets_without_adapters_refuse_them_by_name(intent: Any, target: str) -> None:
    made = intent("llama-3-8b", framework="megatron-bridge")
    made = replace(made, job=replace(made.job, training=replace(made.job.training, lora_dim=8)))
    with pytest.raises(ExportError, match=r"cannot express adapters beside frozen weights \(training.lora_dim\)"):
        TARGETS[target].export(made)


def test_scripts_of_ones_own_get_their_adapters_in_the_words_of_peft(intent: Any) -> None:
    made = intent("llama-3-8b", framework="deepspeed")
    training = replace(made.job.training, lora_dim=8, lora_alpha=16, lora_target_modules=("linear_qkv",))
    (note,) = (n for n in TARGETS["deepspeed"].export(replace(made, job=replace(made.job, training=training))).notes
               if "LoraConfig" in n)  # fmt: skip
    assert "r=8, lora_alpha=16, target_modules=['q_proj', 'k_proj', 'v_proj']" in note


@pytest.mark.parametrize(("kind", "impl"), [("transformer_engine", "transformer_engine"), ("full_iteration", "local")])
def test_bridge_captures_graphs_and_others_refuse_by_name(intent: Any, kind: str, impl: str) -> None:
    made = intent("mixtral-8x7b", framework="megatron-bridge")
    made = replace(made, job=replace(made.job, training=replace(made.job.training, cuda_graph=kind)))
    found = yaml.safe_load(TARGETS["megatron-bridge"].export(made).files["overrides.yaml"])
    assert (found["model"]["cuda_graph_impl"], found["rng"]["te_rng_tracker"]) == (impl, True)
    assert ("check_for_nan_in_grad" in found["ddp"]) == (kind == "full_iteration")
    with pytest.raises(ExportError, match=f"training.cuda_graph {kind}"):
        TARGETS["nanotron"].export(made)


@pytest.mark.parametrize(
    ("target", "columns", "point"),
    [
        ("torchtitan", {"zero_stage": 1}, "zero_stage 1"),
        ("torchtitan", {"recompute": "full", "recompute_num_layers": 2}, "full recompute of some layers"),
        ("deepspeed", {"cp": 2}, r"ring attention \(cp > 1\)"),
        ("deepspeed", {"recompute": "full", "recompute_num_layers": 2}, "full recompute of some layers"),
        ("deepspeed", {"pp": 2, "zero_stage": 2}, "zero_stage 2 with pp > 1"),
        ("nanotron", {"zero_stage": 3}, "zero_stage 3"),
        ("nanotron", {"pp": 2, "vpp": 2}, r"interleaved pipelines \(vpp > 1\)"),
        ("accelerate", {"pp": 2, "zero_stage": 3}, "zero_stage 3 with Megatron-LM"),
        ("megatron-bridge", {"pp": 2, "zero_stage": 3}, "zero_stage 3 with pp > 1"),
    ],
)
def test_a_target_names_what_it_cannot_express(intent: Any, target: str, columns: dict[str, Any], point: str) -> None:
    with pytest.raises(ExportError, match=f"cannot express {point}; choose another plan or target"):
        TARGETS[target].export(intent("llama-3-8b", **columns))


def test_a_window_of_attention_is_written_or_named(intent: Any) -> None:
    plain = intent("llama-3-8b")

    def made(**windows: Any) -> Intent:
        return replace(plain, job=replace(plain.job, model=replace(plain.model, **windows)))

    def overrides(one: Intent) -> Any:
        return yaml.safe_load(TARGETS["megatron-bridge"].export(one).files["overrides.yaml"])["model"]

    some = made(window_size=1024, window_attn_skip_freq=4)
    assert (overrides(some)["window_size"], overrides(some)["window_attn_skip_freq"]) == ([1024, 0], 4)
    words = "attention window of 1024 tokens in 24 of 32 layers"
    assert any(words in note for note in TARGETS["nanotron"].export(some).notes)
    assert "window_size" not in overrides(made(window_size=plain.job.training.seq_length))


def test_bridge_refuses_a_kernel_of_attention_that_its_overrides_cannot_choose(intent: Any) -> None:
    made = intent("llama-3-8b")
    made = replace(made, job=replace(made.job, training=replace(made.job.training, attention="unfused")))
    with pytest.raises(ExportError, match=r"Megatron-Bridge 0\.3\.1 cannot express training\.attention unfused"):
        TARGETS["megatron-bridge"].export(made)


@pytest.mark.parametrize("target", ["torchtitan", "deepspeed", "nanotron", "accelerate", "megatron-bridge"])
def test_formats_of_states_that_a_target_does_not_have_are_refused(intent: Any, target: str) -> None:
    made = intent("llama-3-8b", zero_stage=0)
    training = dataclasses.replace(made.job.training, exp_avg_dtype="bf16")
    job = dataclasses.replace(made.job, training=training)
    with pytest.raises(ExportError, match=r"cannot express training\.exp_avg_dtype bf16"):
        TARGETS[target].export(intent_of(job, made.plan))


def test_words_that_a_script_states_itself_replace_those_of_the_plan_with_their_values() -> None:
    words = ("--a=1", "--lr", "1e-4", "model.tp=2", "--kept=3")
    assert list(_without(words, ("--a=7", "--lr", "2e-4", "model.tp=4"))) == ["--kept=3"]


def test_arguments_stand_before_the_words_of_the_plan_and_replace_what_they_state_too(intent: Any) -> None:
    plain = intent("llama-3-8b", pp=2)
    made = dataclasses.replace(plain, arguments=("--my-own", "1e-4", "--seq-length=512"))
    words, before = (TARGETS["megatron"].export(one).words for one in (made, plain))
    at = before.index("--seq-length")
    assert words == ("--my-own", "1e-4", "--seq-length=512", *before[:at], *before[at + 2 :])
    script = TARGETS["slurm"].export(made, program="megatron").files["job.sbatch"]
    assert script.count("1e-4") == 1
