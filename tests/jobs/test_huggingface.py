import itertools
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from jointopt.core.errors import JobError
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.details import details_of
from jointopt.jobs.huggingface import model_from_config, read_config, text_part
from tests.each import each

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
FAMILIES = tuple(read_yaml("families.yaml")["families"])
PUBLISHED = yaml.safe_load((Path(__file__).parent / "configs.yaml").read_text())
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


def write(folder: Path, config: Any) -> Path:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


@each("name", PUBLISHED)
def test_a_published_config_is_read_to_a_thousandth_of_its_parameters(name: str) -> None:
    model = model_from_config(PUBLISHED[name]["config"], name)
    assert model.parameters == pytest.approx(PUBLISHED[name]["parameters"], rel=1e-3)


def test_every_row_of_the_families_is_that_of_a_model_whose_parameters_are_known() -> None:
    rows = read_yaml("families.yaml")["families"]
    kinds = {text_part(entry["config"])[0]["model_type"] for entry in PUBLISHED.values()} | SAMPLES.keys()
    unlike = [family for family in FAMILIES if not any(rows[family] == rows[kind] for kind in kinds)]
    assert not unlike


@pytest.mark.parametrize("family", OTHERS)
def test_families_without_a_model_in_the_catalogue_count_theirs_to_a_thousandth(family: str) -> None:
    assert model_from_config(SAMPLES[family], "m").parameters == pytest.approx(OTHERS[family][0], rel=1e-3)


def read_as_sizes(family: str, default: str) -> set[str]:
    """Keys of the sample that the family reads as whole numbers in any case; ``default``: what follows them there."""
    rows = read_yaml("families.yaml")["families"][family].values()
    stated = " ".join(row for row in rows if isinstance(row, str) and " if " not in row)
    return set(re.findall(rf'size\("(\w+)"{default}', stated)) & SAMPLES[family].keys()


@each("family", SAMPLES)
def test_a_needed_field_that_is_missing_is_named(family: str) -> None:
    config = SAMPLES[family]
    for key in read_as_sizes(family, r"\)"):
        with pytest.raises(JobError, match=f"{key} is missing"):
            model_from_config({k: v for k, v in config.items() if k != key}, "m")


@each("family", SAMPLES)
def test_a_field_with_nonsense_is_refused(family: str) -> None:
    config = SAMPLES[family]
    for key, value in itertools.product(read_as_sizes(family, ""), (-1, "many", True, float("nan"), [1], 10**30)):
        with pytest.raises(JobError):
            model_from_config(config | {key: value}, "m")


@each("name", PUBLISHED)
def test_a_key_of_the_wrong_type_never_ends_in_another_error(name: str) -> None:
    config = PUBLISHED[name]["config"]
    for key, value in itertools.product(config, (-1, "many", ["x"])):
        with suppress(JobError):
            model_from_config(config | {key: value}, "m")


def test_a_model_without_a_type_is_recognised_by_its_architecture() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "model_type"}
    known = model_from_config(config | {"architectures": ["LlamaForCausalLM"]}, "m")
    assert known == model_from_config(LLAMA, "m")


def test_a_model_type_that_is_not_read_says_what_to_state_and_names_no_other_family() -> None:
    with pytest.raises(JobError) as error:
        model_from_config(LLAMA | {"model_type": "lama"}, "m")
    message = str(error.value)
    assert message.startswith("model_type 'lama' is of no family that is read; state the fields of its model")
    assert "num_query_groups, vocab_size, and layers where they differ" in message
    assert not any(family in message for family in FAMILIES)


@pytest.mark.parametrize("key", ["num_local_experts", "hybrid_override_pattern", "kv_lora_rank", "sliding_window"])
def test_a_key_that_its_family_does_not_read_is_refused_by_name(key: str) -> None:
    with pytest.raises(JobError, match=f"^'{key}' .here 8. is no key that is known of a llama model; leave it out"):
        model_from_config(LLAMA | {key: 8}, "m")
    assert model_from_config(LLAMA | {key: None}, "m") == model_from_config(LLAMA, "m")  # off


def test_keys_of_tokens_software_and_training_change_nothing() -> None:
    extras = {"rope_theta": 5e5, "torch_dtype": "bfloat16", "eos_token_id": [2, 3], "attention_dropout": 0.1}
    assert model_from_config(LLAMA | extras, "m") == model_from_config(LLAMA, "m")


def test_weights_that_are_stored_in_few_bits_are_kept_as_a_fact_of_the_model() -> None:
    stored = model_from_config(LLAMA | {"quantization_config": {"quant_method": "fp8"}}, "m")
    assert stored.other == ("stored_quantised",)


@pytest.mark.parametrize("name", ["gemma-3-27b", "llama-4-scout", "mistral-small-3.1", "step-3", "qwen2.5-vl-7b"])
def test_of_a_model_of_several_modes_the_language_model_is_read_and_the_encoder_named(name: str) -> None:
    assert "unpriced_encoder" in model_from_config(PUBLISHED[name]["config"], name).other


# leading layers of the published files: attention and feed-forward, as their papers and classes have them
@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("llama-4-maverick", "chunked:dense chunked:experts chunked:dense full:experts"),
        ("qwen3-next-80b-a3b", "gated_delta:experts gated_delta:experts gated_delta:experts full:experts"),
        ("nemotron-h-8b", "mamba2:none none:dense mamba2:none none:dense mamba2:none none:dense mamba2:none full:none"),
        ("nemotron-3-nano-30b-a3b", "mamba2:none none:experts mamba2:none none:experts mamba2:none full:none"),
        ("deepseek-v3.2", "sparse:dense sparse:dense sparse:dense sparse:experts"),
        ("deepseek-v4-flash", "heavily_compressed:experts heavily_compressed:experts compressed_sparse:experts"),
        ("granite-4-h-micro", "mamba2:dense mamba2:dense mamba2:dense mamba2:dense mamba2:dense full:dense"),
        ("jamba-v0.1", "mamba:dense mamba:experts mamba:dense mamba:experts full:dense mamba:experts"),
        ("falcon-h1-34b", "full+mamba2:dense full+mamba2:dense"),
        ("kimi-linear-48b-a3b", "kimi_delta:dense kimi_delta:experts kimi_delta:experts mla:experts"),
        ("step-3", "factorized:dense factorized:dense factorized:dense factorized:dense factorized:experts"),
        ("lfm2-8b-a1b", "short_conv:dense short_conv:dense full:experts short_conv:experts"),
        ("gemma-3-1b", "sliding:dense sliding:dense sliding:dense sliding:dense sliding:dense full:dense"),
    ],
)
def test_layers_are_read_one_by_one_from_lists_patterns_and_periods(name: str, layers: str) -> None:
    pattern = model_from_config(PUBLISHED[name]["config"], name).pattern
    words = [f"{layer.attention}:{layer.ffn}" for layer in pattern]
    assert " ".join(words[: len(layers.split())]) == layers


@pytest.mark.parametrize(
    ("name", "activation", "score", "post_norm"),
    [
        ("qwen3-next-80b-a3b", "silu", "softmax", False), ("gemma-3-1b", "gelu_tanh", "softmax", False),
        ("olmo-3-7b", "silu", "softmax", True), ("nemotron-3-nano-30b-a3b", "relu2", "softmax", False),
        ("kimi-linear-48b-a3b", "silu", "sigmoid", False), ("glm-4.5-air", "silu", "sigmoid", False),
    ],
)  # fmt: skip
def test_what_a_file_leaves_out_of_its_details_is_its_family_s(
    name: str, activation: str, score: str, post_norm: bool
) -> None:
    config = {key: value for key, value in PUBLISHED[name]["config"].items() if "hidden_act" not in key}
    details = details_of(model_from_config(config, name))
    assert (details.activation, details.routing.score, details.post_norm) == (activation, score, post_norm)


def test_layers_of_a_kind_that_is_not_known_are_refused_by_their_word() -> None:
    config = PUBLISHED["qwen3-next-80b-a3b"]["config"] | {"layer_types": ["full_attention"] * 47 + ["new_attention"]}
    with pytest.raises(JobError, match=r"^layer_types must be 48 of full_attention, .*none of new_attention; got"):
        model_from_config(config, "m")


def test_layers_that_a_list_gives_other_numbers_are_refused() -> None:
    config = PUBLISHED["hunyuan-a13b"]["config"]
    with pytest.raises(JobError, match="moe_topk must be a whole number"):
        model_from_config(config | {"moe_topk": [8] * 31 + [4]}, "m")


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


def test_a_limit_that_is_infinite_is_a_number_of_a_config_file(tmp_path: Path) -> None:
    text = json.dumps(PUBLISHED["nemotron-h-8b"]["config"] | {"time_step_limit": [0.0, float("inf")]})
    assert "Infinity" in text
    assert read_config(write(tmp_path, text)).parameters == PUBLISHED["nemotron-h-8b"]["parameters"]


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
    model = model_from_config(CATALOGUE[name], "m")
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
