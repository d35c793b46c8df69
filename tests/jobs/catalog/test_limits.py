"""What lies beyond any known job is refused in a sentence, whichever way it comes in."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.errors import JobError, UsageError
from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.catalog.limits import limit_of, limits
from jointopt.jobs.catalog.networks import LINKS, most_gbytes_per_s
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import (
    CONSTRAINT_KEYS,
    gpu_counts_in,
    job_from_options,
    load_job,
    load_jobs,
    parse_job,
    shipped_job,
    shipped_jobs,
)
from jointopt.jobs.shape import INLINE_KEYS

FULL: dict[str, dict[str, Any]] = {
    "model": {
        "num_layers": 24, "hidden_size": 1024, "ffn_hidden_size": 4096, "num_attention_heads": 16,
        "num_query_groups": 16, "head_dim": 64, "vocab_size": 50272, "num_experts": 64, "moe_router_topk": 2,
        "moe_ffn_hidden_size": 512, "num_shared_experts": 1, "mtp_num_layers": 1, "max_position_embeddings": 2048,
    },
    "training": {"seq_length": 2048, "global_batch_size": 256, "run_tokens": 15e12, "moe_load_imbalance": 1.5},
    "cluster": {
        "gpu": "a100-sxm4-40gb", "nodes": 2, "gpus_per_node": 4, "intra_node_gbytes_per_s": 300,
        "inter_node_gbytes_per_s": 25, "inter_node_latency_us": 10, "intra_node_pj_per_bit": 1.3,
        "inter_node_pj_per_bit": 20, "inlet_temperature_c": 22, "exhaust_rise_k": 5, "host_power_w": 1000, "pue": 1.1,
        "power_limit_w": 300, "carbon_kg_per_kwh": 0.35, "price_per_kwh": 0.12, "price_per_gpu_hour": 2.5,
        "memory_gib": 40,
    },
    "constraints": {
        "iteration_time_s": 12.0, "energy_j": 9000, "facility_energy_j": 2e4, "avg_power_w": 320,
        "cluster_power_kw": 30, "memory_fraction": 0.92,
    },
}  # fmt: skip
FIELDS = [(section, key) for section, keys in FULL.items() for key in keys if key != "gpu"]


def parsed(mapping: dict[str, Any]) -> tuple[Job | None, str]:
    """The job, or the sentence by which it is refused."""
    try:
        return parse_job(mapping, "job", Path()), ""
    except UsageError as error:
        return None, str(error)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(FIELDS), st.sampled_from([8, 1000, 2048]))
def test_a_figure_in_another_unit_is_refused_by_its_name_or_within_the_stated_range(
    field: tuple[str, str], factor: int
) -> None:
    mapping, (section, key) = copy.deepcopy(FULL), field
    mapping[section][key] *= factor
    job, refusal = parsed(mapping)
    if job is None:
        assert key in refusal
        return
    assert mapping[section][key] <= limits()[f"{section}.{key}"].most
    assert job.training.global_batch_size * job.training.seq_length <= limit_of("training.tokens")
    assert all(getattr(job.cluster, link) <= most_gbytes_per_s(job.cluster.gpu, link) for link in LINKS)


def test_every_figure_of_a_job_has_a_limit_with_a_source() -> None:
    wanted = {f"{section}.{key}" for section, key in FIELDS} | {f"constraints.{key}" for key in CONSTRAINT_KEYS}
    whole = {f"model.{key}" for key in INLINE_KEYS if isinstance(FULL["model"].get(key, 0.0), int)}
    assert (wanted | whole) <= limits().keys()
    assert {cell[1] for cell in read_yaml("limits.yaml")["most"].values()} <= read_yaml("limits.yaml")["sources"].keys()
    assert not any(f"search.{name}" in limits() for name in LAYOUT_COLUMNS)  # plans divide GPUs, layers and batch


@pytest.mark.parametrize("name", shipped_jobs())
def test_shipped_jobs_are_within_every_limit(name: str) -> None:
    job = shipped_job(name)
    for section, item in (("model", job.model), ("training", job.training), ("cluster", job.cluster)):
        figures = {key: getattr(item, key.split(".")[1], None) for key in limits() if key.startswith(section)}
        assert [key for key, value in figures.items() if value is not None and value > limits()[key].most] == []


@pytest.mark.parametrize(
    ("batch", "seq_length", "sentence"),
    [
        (4_194_304, 8192, r"34,359,738,368 tokens per iteration; .* 4,194,304 tokens are 512 sequences: write 512\."),
        (524_288, 128, r"at most 100,000 sequences \(the largest known: 65,536.*; 524,288 tokens are 4,096 sequences"),
        (10**8, 8192, r"at most 100,000,000 tokens .*; 100,000,000 tokens are about 12,207 sequences: write 12207\."),
        (12_300, 8192, r"expected at most 100,000,000 tokens \(the largest known: 67 million, of Kimi K2\)\.$"),
    ],
)
def test_a_batch_beyond_any_known_one_is_questioned(batch: int, seq_length: int, sentence: str) -> None:
    with pytest.raises(JobError, match=rf"^training\.global_batch_size counts sequences, .*{sentence}"):
        job_from_options("llama-3-8b", "h100-sxm5-80gb", 64, batch, seq_length)


def test_the_largest_known_batch_is_taken() -> None:
    assert job_from_options("llama-3-8b", "h100-sxm5-80gb", 64, 15_360, 4096).training.global_batch_size == 15_360
    assert job_from_options("llama-3-8b", "h100-sxm5-80gb", 64, 65_536, 128).training.global_batch_size == 65_536


def test_a_batch_that_grows_with_the_gpus_is_questioned_too() -> None:
    assert len(load_jobs("llama-3-8b-1x8-h100", (8, 64), weak=True)) == 2
    with pytest.raises(JobError, match=r"--weak: the batch of 1,048,576 GPUs counts sequences, .*100,000,000 tokens"):
        load_jobs("llama-3-8b-1x8-h100", (8, 1_048_576), weak=True)
    with pytest.raises(UsageError, match=r"up to 1,048,576; got '8,2000000'"):
        gpu_counts_in("8,2000000")


def test_a_configuration_passes_the_same_limits_under_its_own_names(tmp_path: Path) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 100_000, "hidden_size": 4096, "intermediate_size": 11008,
              "num_attention_heads": 32, "vocab_size": 32000}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "job.yaml").write_text(json.dumps(FULL | {"model": "config.json"}))
    with pytest.raises(
        JobError, match=r"num_hidden_layers must be a whole number from 1 to 1,000 \(the largest known: "
    ):
        load_job(tmp_path / "job.yaml")
