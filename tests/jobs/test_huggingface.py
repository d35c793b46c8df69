import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from jointopt.core.errors import JobError
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.details import details_of
from jointopt.jobs.huggingface import model_from_config, read_config
from tests.each import each

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
FAMILIES = tuple(read_yaml("families.yaml")["families"])
CATALOGUE = {name: entry["config"] for name, entry in read_yaml("models.yaml").items()}
# Falcon 7B, GPT-J 6B and Gemma 2 9B, with the parameters of their files (less the copy of Falcon's tied head)
OTHERS: dict[str, tuple[int, dict[str, Any]]] = {
    "falcon": (6_921_720_704, {"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
                               "vocab_size": 65024}),
    "gptj": (6_050_882_784, {"n_embd": 4096, "n_layer": 28, "n_head": 16, "vocab_size": 50400}),
    "gemma2": (9_241_705_984, {"hidden_size": 3584, "num_hidden_layers": 42, "num_attention_heads": 16,
                               "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 256000}),
}  # fmt: skip
SAMPLES = {config["model_type"]: config for config in CATALOGUE.values()} | {
    family: {"model_type": family} | config for family, (_, config) in OTHERS.items()
}
OPTIONAL = {
    "num_key_value_heads", "head_dim", "word_embed_proj_dim", "do_layer_norm_before", "resid_pdrop", "no_bias",
    "attn_config", "q_lora_rank", "first_k_dense_replace", "n_shared_experts", "n_routed_experts", "max_seq_len",
    "n_group", "topk_group", "layer_types",
}  # fmt: skip


def write(folder: Path, config: Any) -> Path:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def test_every_family_has_a_sample() -> None:
    assert set(SAMPLES) == set(FAMILIES)


@pytest.mark.parametrize("family", OTHERS)
def test_families_without_a_model_in_the_catalogue_count_theirs_to_a_thousandth(family: str) -> None:
    assert model_from_config(SAMPLES[family], "m").parameters == pytest.approx(OTHERS[family][0], rel=1e-3)


@each("family", FAMILIES)
def test_a_needed_field_that_is_missing_is_named(family: str) -> None:
    config = SAMPLES[family]
    for key in set(config) - OPTIONAL - {"model_type"}:
        with pytest.raises(JobError, match=f"{key} is missing"):
            model_from_config({k: v for k, v in config.items() if k != key}, "m")


@each("family", FAMILIES)
def test_a_field_with_nonsense_is_refused(family: str) -> None:
    config = SAMPLES[family]
    numbers = set(config) - {"model_type", "attn_config", "do_layer_norm_before", "no_bias", "max_seq_len"}
    for key, value in itertools.product(numbers, (-1, "many", True, float("nan"), [1], 10**30)):
        with pytest.raises(JobError):
            model_from_config(config | {key: value}, "m")


def test_a_model_without_a_type_is_recognised_by_its_architecture() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "model_type"}
    known = model_from_config(config | {"architectures": ["LlamaForCausalLM"]}, "m")
    assert known == model_from_config(LLAMA, "m")


def test_an_unknown_family_lists_the_known_ones() -> None:
    with pytest.raises(JobError, match=r"one of llama, mistral.*mpt; got 'lama' \(did you mean 'llama'\?\)"):
        model_from_config(LLAMA | {"model_type": "lama"}, "m")


def test_keys_that_do_not_shape_the_model_are_passed_over() -> None:
    extras = {"rope_theta": 5e5, "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}
    assert model_from_config(LLAMA | extras, "m") == model_from_config(LLAMA, "m")


def test_opt_350m_embeds_narrower_than_its_hidden_size() -> None:
    opt = model_from_config(CATALOGUE["opt-350m"], "m")
    assert (opt.embedding_size, opt.final_norm, opt.max_position_embeddings) == (512, False, 2050)


def test_deepseek_has_latent_attention_shared_experts_and_leading_dense_layers() -> None:
    m = model_from_config(CATALOGUE["deepseek-v3"], "m")
    assert (m.kv_lora_rank, m.q_lora_rank, m.num_shared_experts, m.num_dense_layers) == (512, 1536, 1, 3)


def test_a_shared_expert_of_qwen2_counts_in_routed_ones() -> None:
    assert model_from_config(CATALOGUE["qwen2-57b-a14b"], "m").num_shared_experts == 8


@pytest.mark.parametrize("change", [{"mlp_only_layers": [5]}, {"decoder_sparse_step": 2}, {"mlp_only_layers": "x"}])
def test_experts_on_some_later_layers_only_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(JobError, match=f"{next(iter(change))} must be"):
        model_from_config(CATALOGUE["qwen3-30b-a3b"] | change, "m")


def test_a_config_file_is_named_after_itself_or_its_folder(tmp_path: Path) -> None:
    assert read_config(write(tmp_path, LLAMA)).name == tmp_path.name
    assert read_config(write(tmp_path, LLAMA | {"_name_or_path": "meta/Llama-X"})).name == "Llama-X"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": NaN}', '{"a": 1, "a": 2}', "[" * 100_000, "1" * 5000])
def test_a_config_file_that_is_no_object_is_one_sentence_with_its_path(tmp_path: Path, text: str) -> None:
    with pytest.raises(JobError, match=r"config\.json: "):
        read_config(write(tmp_path, text))


@pytest.mark.parametrize(("heads", "groups"), [(32, 5), (31, 31)])
def test_the_error_of_a_shape_that_contradicts_itself_follows_the_path_alone(tmp_path, heads, groups):
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 4096, "intermediate_size": 64,
        "num_attention_heads": heads, "num_key_value_heads": groups, "vocab_size": 100,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(JobError) as caught:
        read_config(path)
    message = str(caught.value).removeprefix(f"{path}: ")
    assert message.startswith(("num_query_groups (5)", "31 attention heads"))


# h 2880, 64 heads and 8 KV heads of 64, experts of 2880: 26,542,080 weights of attention with 8,000 biases, 64 sinks,
# 24,883,200 of an expert with 8,640 biases, 2,881 of the router per expert, two norms; two tables of 201,088 rows
@pytest.mark.parametrize(
    ("layers", "experts", "parameters", "active"),
    [(24, 32, 20_914_757_184, 4_187_440_704), (36, 128, 116_829_156_672, 5_711_982_912)],
)
def test_gpt_oss_has_the_parameters_of_its_model_card_to_the_last_bias(
    layers: int, experts: int, parameters: int, active: int
) -> None:
    config = CATALOGUE["gpt-oss-20b"] | {"num_hidden_layers": layers, "num_local_experts": experts}
    model = model_from_config(config, "m")
    layer = 26_542_080 + 8_000 + 64 + experts * (24_883_200 + 8_640 + 2_881) + 2 * 2880
    assert layers * layer + 2 * 201_088 * 2880 + 2880 == parameters  # 20.91B and 116.83B in arXiv:2508.10925
    assert (model.parameters, model.active_parameters) == (parameters, active)


def test_gpt_oss_takes_blank_fields_from_its_class_and_every_other_layer_looks_back_a_window() -> None:
    stated = CATALOGUE["gpt-oss-20b"] | {
        "head_dim": 64, "num_key_value_heads": 8, "attention_bias": True, "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
    }  # fmt: skip
    blank = {key: stated[key] for key in set(stated) - {"head_dim", "num_key_value_heads", "layer_types"}}
    assert model_from_config(blank, "m") == model_from_config(stated, "m")
    assert sum(model_from_config(stated, "m").windowed_layers) == 12


def test_gpt_oss_may_name_the_experts_of_a_token_as_its_first_files_did() -> None:
    config = {key: value for key, value in CATALOGUE["gpt-oss-20b"].items() if key != "num_experts_per_tok"}
    assert model_from_config(config | {"experts_per_token": 4}, "m").moe_router_topk == 4


# mini: 4 h^2 + 3 h x 8192 and two norms of 3072; medium: 10 KV heads of 40; two tables of 32,064 rows
@pytest.mark.parametrize(("name", "parameters"), [("phi-3-mini", 3_821_079_552), ("phi-3-medium", 13_960_238_080)])
def test_phi_3_has_no_bias_and_counts_its_fused_matrices_as_several(name: str, parameters: int) -> None:
    model = model_from_config(CATALOGUE[name] | {"attention_bias": True}, "m")  # a key that its class does not read
    h, groups = model.hidden_size, model.num_query_groups
    layer = 2 * h * h + 2 * h * groups * model.head_dim + 3 * h * model.ffn_hidden_size + 2 * h
    assert model.num_layers * layer + 2 * 32_064 * h + h == model.parameters == parameters


def test_phi_3_drops_out_where_its_file_says_so_and_rotates_a_part_of_each_head() -> None:
    phi = CATALOGUE["phi-3-mini"]
    dropped = model_from_config(phi | {"resid_pdrop": 0.1}, "m")
    assert (dropped.dropout, dropped.score_dropout) == (True, False)
    rotated = phi | {"rope_parameters": {"rope_type": "longrope", "partial_rotary_factor": 0.75}}
    assert details_of(model_from_config(rotated, "m")).rotary_percent == 0.75


def test_gpt_oss_gates_otherwise_than_its_file_states_and_reaches_far_by_yarn() -> None:
    details = details_of(model_from_config(CATALOGUE["gpt-oss-20b"] | {"hidden_act": "silu"}, "m"))
    assert (details.activation, details.rotary_base) == ("quick_gelu", 150000.0)
    assert details.rope_scaling is not None
    assert (details.rope_scaling.kind, details.rope_scaling.factor) == ("yarn", 32.0)
