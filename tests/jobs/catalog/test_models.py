from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from jointopt.core.errors import CatalogError
from jointopt.jobs.catalog.models import load_model, model_names, near_models, published_model
from jointopt.jobs.huggingface import model_from_config
from tests.each import each

PUBLISHED = yaml.safe_load((Path(__file__).parents[1] / "configs.yaml").read_text())
MOE = [name for name in model_names() if published_model(name).published_active_parameters]


@each("name", model_names())
def test_every_catalogue_model_has_the_parameters_that_its_authors_publish(name: str) -> None:
    entry = published_model(name)
    assert entry.model.parameters == pytest.approx(entry.published_parameters, rel=1e-3)


@each("name", MOE)
def test_every_moe_model_has_the_published_active_parameters_with_or_without_its_embedding(name: str) -> None:
    entry = published_model(name)
    active, published = entry.model.active_parameters, entry.published_active_parameters
    assert published is not None
    # published figures are rounded to two digits, and DeepSeek leaves the word embedding out
    assert 0.975 * (active - entry.model.embedding_parameters) <= published <= 1.025 * active


@pytest.mark.parametrize("name", ["llama-3-8b", "opt-350m", "qwen3-30b-a3b", "bloom-176b", "deepseek-v2", "mpt-7b"])
def test_counts_that_are_published_to_the_last_digit_are_met_to_the_last_digit(name: str) -> None:
    assert published_model(name).model.parameters == published_model(name).published_parameters


def test_the_catalogue_has_every_model_that_a_reader_would_try_first() -> None:
    wanted = (
        "opt-350m gpt3-175b llama-2-7b llama-2-13b llama-2-70b llama-3-8b llama-3-70b llama-3-405b mixtral-8x7b "
        "mixtral-8x22b olmoe-1b-7b bloom-176b gpt-neo-2.7b qwen3-30b-a3b deepseek-v3 gpt-oss-20b gpt-oss-120b "
        "qwen3-235b-a22b qwen3-next-80b-a3b deepseek-v3.2 kimi-k2 kimi-linear-48b-a3b llama-3.2-1b llama-4-scout "
        "gemma-3-27b nemotron-3-nano-30b-a3b glm-4.5 glm-4.5-air minimax-m2 olmo-3-32b moonlight-16b-a3b"
    )
    assert set(wanted.split()) <= set(model_names())


@each("name", {name: entry for name, entry in PUBLISHED.items() if name in model_names()})
def test_a_catalogue_model_is_the_one_that_its_published_file_describes(name: str) -> None:
    known, read = load_model(name), model_from_config(PUBLISHED[name]["config"], name)
    assert replace(known, other=()) == replace(read, other=())


# the models of Megatron-Bridge's performance summary of release 26.08, as it writes them
@each("name", ["DeepSeekV3", "DeepSeekV4 Flash", "GPT OSS 120B", "Qwen3_30B_a3B", "Qwen3_235B_a22B", "Nemotron_3_Nano",
               "Nemotron_3_5_Lightning", "Nemotron_3_Super", "Nemotron_3_Ultra"])  # fmt: skip
def test_a_model_that_nvidia_publishes_the_speed_of_is_known_by_its_name(name: str) -> None:
    assert load_model(name).is_moe


def test_a_hugging_face_repository_is_an_alias_in_any_letter_case() -> None:
    assert load_model("meta-llama/llama-3.1-8b") is load_model("LLAMA-3-8B")


def test_every_model_states_its_source() -> None:
    assert all(len(published_model(name).source) > 20 for name in model_names())


def test_an_unknown_model_names_the_few_nearest_the_listing_and_how_to_give_an_own_one() -> None:
    with pytest.raises(CatalogError) as error:
        load_model("llama-3-71b")
    message = str(error.value)
    assert "(did you mean 'llama-3-70b', 'llama-3.2-1b' or 'llama-3-8b'?); `jointopt catalog models`" in message
    assert "a path to a config.json or a shape written in place describes any other." in message
    assert sum(f"{name!r}" in message for name in model_names()) == 3


def test_a_name_like_none_is_reported_without_a_guess_and_an_alias_by_what_it_means() -> None:
    with pytest.raises(CatalogError, match=r"'banana' is not in the catalogue; `jointopt catalog models` lists"):
        load_model("banana")
    assert near_models("meta-llama/Meta-Llama-3-8C").startswith(" (did you mean 'llama-3-8b'")
