"""What a framework must be given, completed from a plan and a model's configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jointopt.core.errors import ExportError, JobError
from jointopt.frameworks.options import NEWEST, is_of_release, version_key
from jointopt.frameworks.targets import version_in
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.details import RopeScaling, details_of
from jointopt.jobs.huggingface import model_from_config
from jointopt.jobs.jobfile import dump_job, parse_job


def test_blank_columns_of_a_plan_take_their_neutral_values(intent: Any) -> None:
    made = intent("mixtral-8x7b", tp=2, sequence_parallel=True)
    assert (made["etp"], made["dp_replicate"], made["schedule"], made["offload"]) == (2, 1, "1f1b", "none")


def test_zero_shards_over_the_data_and_context_parallel_ranks_of_a_replica(intent: Any) -> None:
    assert intent("llama-3-8b", cp=2, dp_replicate=2, zero_stage=3, gpus=16).shards == 8 * 2 // 2


@pytest.mark.parametrize(
    ("columns", "split"),
    [
        ({"pp": 2, "vpp": 2}, (8, 8, 8, 8)),
        ({"pp": 3, "gpus": 24}, (11, 11, 10)),  # of equals the later stage first; the head is on the last
        ({"pp": 2, "stage_layers": "15;17"}, (15, 17)),
    ],
)
def test_every_chunk_has_its_layers(intent: Any, columns: dict[str, Any], split: tuple[int, ...]) -> None:
    made = intent("mistral-7b", **columns)
    assert made.chunk_layers == split
    assert sum(made.chunk_layers) == made.model.num_layers


def test_interleaved_chunks_that_do_not_divide_the_layers_need_a_split(intent: Any) -> None:
    with pytest.raises(ExportError, match=r"pp\*vpp is 6, which does not divide the 32 layers"):
        intent("mistral-7b", pp=3, vpp=2, gpus=24)


def test_details_come_from_the_configuration() -> None:
    llama = details_of(load_model("llama-3-405b"))
    assert (llama.rotary_base, llama.norm_epsilon, llama.activation) == (500000.0, 1e-5, "silu")
    assert llama.rope_scaling == RopeScaling("llama3", 8.0, 8192, 1.0, 4.0)
    deepseek = details_of(load_model("deepseek-v3")).routing
    assert (deepseek.score, deepseek.scaling, deepseek.bias) == ("sigmoid", 2.5, True)


def test_what_a_configuration_leaves_out_is_its_family_s_default() -> None:
    shape = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    neox = details_of(model_from_config({"model_type": "gpt_neox", "vocab_size": 100, **shape}, "tiny"))
    assert (neox.rotary_percent, neox.parallel_residual, neox.activation) == (0.25, True, "gelu")


def test_a_job_file_keeps_the_configuration_of_its_model(intent: Any, tmp_path: Any) -> None:
    import yaml

    job = parse_job({**SMALL, "model": {**SMALL["model"], "config": {"model_type": "llama", "rope_theta": 7e5}}},
                    "job", tmp_path)  # fmt: skip
    again = parse_job(yaml.safe_load(dump_job(job)), "job", tmp_path)
    assert (details_of(job.model).rotary_base, details_of(again.model).rotary_base) == (7e5, 7e5)
    assert again == job


SMALL: dict[str, Any] = {
    "model": {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100},
    "training": {"global_batch_size": 8, "seq_length": 128},
    "cluster": {"gpu": "h100-sxm5-80gb", "nodes": 1, "gpus_per_node": 8},
}


def test_versions_are_ordered_and_the_newest_is_above_all() -> None:
    named = ["0.9", "0.12", "core_v0.12.0", "0.16.1", "0.20", NEWEST]
    assert sorted(named, key=version_key) == named


@pytest.mark.parametrize("wrong", [{"rope_theta": "far"}, {"rope_scaling": {"type": "yarn", "factor": []}}])
def test_a_detail_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    model = load_model("llama-2-7b")
    with pytest.raises(JobError, match="The configuration of llama-2-7b has a value that makes no sense"):
        details_of(replace(model, config={**(model.config or {}), **wrong}))


@pytest.mark.parametrize(
    ("version", "release", "same"),
    [
        ("0.16.1", "0.16", True), ("core_r0.16.0", "0.16", True), ("0.3", "0.3.0", True), ("0.3.1", "0.3.0", False),
        ("main", NEWEST, True), ("9.9", NEWEST, False), (NEWEST, "0.19", False), ("1.0", "v1alpha2", False),
        ("v1alpha2", "v1alpha2", True), ("x", "0.3", False), ("0.160", "0.16", False),
    ],
)  # fmt: skip
def test_a_patch_is_of_its_release_and_of_no_other(version: str, release: str, same: bool) -> None:
    assert is_of_release(version, release) is same


def test_a_checkout_newer_than_the_known_releases_has_the_words_of_the_development_branch(tmp_path: Path) -> None:
    info = tmp_path / "megatron" / "core" / "package_info.py"
    info.parent.mkdir(parents=True)
    for minor, version in ((20, "0.20.3"), (21, NEWEST), (11, "0.11.3")):
        info.write_text(f"MAJOR = 0\nMINOR = {minor}\nPATCH = 3\n")
        assert version_in(tmp_path) == version
