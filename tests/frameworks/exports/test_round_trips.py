"""All files of an export, read back by `jointopt import`: the same plan, of the same model, batch and cluster."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jointopt.core.errors import ExportError
from jointopt.core.schema import LAYOUT_COLUMNS, Columns
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import plan_records
from jointopt.workflows.export import export, write
from jointopt.workflows.import_ import import_
from tests.each import each

EVERY = {
    "micro_batch_size": [1, 2], "offload": ["none", "optimizer", "activations"], "recompute_num_layers": [0, 2],
    "recompute_modules": ["", "moe_act;layernorm", "mlp"], "dp_replicate": [1, 2], "schedule": ["1f1b", "zbv"],
}  # fmt: skip
PLAIN = {"micro_batch_size": [1, 2], "offload": ["none", "optimizer"]}
# the profile whose plans go to a target, what its search offers, and a model beside Llama 3 that it has
TARGETS: dict[str, tuple[str, dict[str, Any], str]] = {
    "megatron": ("megatron-lm", EVERY | {"gtp": [1, 2], "egtp": [1, 2]}, "mixtral-8x7b"),
    "megatron 0.14": ("megatron-lm", EVERY, "qwen3-30b-a3b"),
    "megatron-bridge": ("nemo", EVERY, "mixtral-8x7b"),
    "torchtitan": ("torchtitan", EVERY | {"offload": ["none"]}, "qwen3-30b-a3b"),
    "torchtitan 0.2.2": ("torchtitan", EVERY | {"offload": ["none"]}, "qwen3-30b-a3b"),
    "deepspeed": ("deepspeed", EVERY | {"cp": [1], "recompute_num_layers": [0]}, "mixtral-8x7b"),
    "nanotron": ("nanotron", EVERY, "llama-2-7b"), "nanotron 0.4": ("nanotron", EVERY | {"cp": [1]}, "llama-2-7b"),
    "accelerate": ("fsdp", PLAIN | {"recompute": ["none", "full"]}, "mixtral-8x7b"),
    "accelerate 1.15": ("megatron-lm", PLAIN | {"vpp": [1], "zero_stage": [0, 1]}, "mixtral-8x7b"),
}  # fmt: skip


@functools.cache
def space_of(target: str, model: str) -> tuple[Job, Columns]:
    framework, search, other = TARGETS[target]
    training = {"global_batch_size": 64, "seq_length": 4096, "framework": framework}
    cluster = {"gpu": "h100-sxm5-80gb", "nodes": 2, "gpus_per_node": 8}
    mapping = {"model": model or other, "training": training, "cluster": cluster, "search": search}
    job = parse_job(mapping, "job", Path())
    return job, enumerate_layouts(job).layouts


def record_of(layouts: Columns, at: int) -> dict[str, Any]:
    one = {name: values[at : at + 1] for name, values in layouts.items()}
    return plan_records(one, np.full((1, int(one["pp"][0])), 1980.0), [0])[0]


def written(job: Job, record: dict[str, Any], target: str, folder: Path) -> list[Path]:
    """The files of the export; none where the target refuses the plan."""
    name, _, version = target.partition(" ")
    try:
        return write(export(job, record, name, version=version, allow_tight=True), folder)
    except ExportError as refused:
        if not re.search("cannot express|has no", str(refused)):
            raise
        return []


@pytest.mark.parametrize("model", ["llama-3-8b", ""])
@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.integers(0, 10**6))
def test_the_plan_that_is_read_is_the_one_that_was_exported(
    target: str, model: str, drawn: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    job, layouts = space_of(target, model)
    for at in range(drawn, drawn + 12):  # up to one that the target takes
        record = record_of(layouts, at % len(layouts["dp"]))
        if files := written(job, record, target, tmp_path_factory.mktemp("export")):
            read = import_(sorted(files, reverse=bool(at % 2)), gpu="h100-sxm5-80gb")  # in any order
            assert {name: read.plan[name] for name in LAYOUT_COLUMNS} == {name: record[name] for name in LAYOUT_COLUMNS}
            assert (read.job.model, read.job.cluster, read.unread) == (job.model, job.cluster, {})
            assert [remark for remark in read.remarks if "another file" in remark] == []
            assert (read.job.training.global_batch_size, read.job.training.seq_length) == (64, 4096)
            return


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_takes_plans_of_all_degrees(target: str, tmp_path: Path) -> None:
    job, layouts = space_of(target, "llama-3-8b")
    made = []
    for at in np.linspace(0, len(layouts["dp"]) - 1, 60).astype(int):
        record = record_of(layouts, int(at))
        made += [record] if written(job, record, target, tmp_path) else []
    assert len(made) >= 10
    assert all(len({plan[name] for plan in made}) > 1 for name in ("dp", "tp", "micro_batch_size"))


@pytest.mark.parametrize(
    ("target", "overlap", "stated"),
    [
        ("megatron", "none", {"dp_overlap": False, "tp_overlap": False}),
        ("megatron", "dp;tp", {"dp_overlap": True, "tp_overlap": True}),
        ("megatron-bridge", "tp", {"dp_overlap": False}), ("deepspeed", "none", {"dp_overlap": False}),
    ],
)  # fmt: skip
def test_a_plan_s_choice_of_overlap_comes_back_as_settings(
    target: str, overlap: str, stated: dict[str, Any], tmp_path: Path
) -> None:
    job, layouts = space_of(target, "llama-3-8b")
    sharded = (layouts["dp"] > 1) & (layouts["zero_stage"] > 0) & (layouts["pp"] == 1)
    cut = (layouts["tp"] > 1) & layouts["sequence_parallel"] if "tp" in overlap else layouts["tp"] == 1
    for at in np.flatnonzero(sharded & cut & (layouts["cp"] == 1)):
        record = record_of(layouts, int(at)) | {"overlap": overlap}
        if files := written(job, record, target, tmp_path):
            read = import_(files, gpu="h100-sxm5-80gb")
            assert {name: getattr(read.job.training, name) for name in stated} == stated
            assert read.plan["overlap"] == ""
            return
    pytest.fail("no plan was taken")


EVERY_SETTING: list[tuple[str, str, dict[str, Any]]] = [
    ("megatron", "llama-3-8b", {"dp_overlap": False, "tp_overlap": True, "cuda_graph": "none"}),
    ("megatron", "llama-3-8b", {"fp8_activations": True, "cuda_graph": "full_iteration"}),
    ("megatron", "llama-3-8b", {"cross_entropy": "compiled"}), ("megatron", "llama-3-8b", {"cross_entropy": "unfused"}),
    ("megatron-bridge", "llama-3-8b", {"cross_entropy": "fused"}),
    ("torchtitan", "llama-3-8b", {"cross_entropy": "compiled", "compile": False}),
    ("torchtitan 0.2.2", "llama-3-8b", {"cross_entropy": "unfused", "compile": True}),
    ("megatron", "", {"ep_overlap": False, "moe_routing": "natural", "dp_overlap": True, "tp_overlap": False}),
    ("megatron-bridge", "llama-3-8b", {"dp_overlap": False, "tp_overlap": False, "cuda_graph": "none"}),
    ("megatron-bridge", "llama-3-8b", {"dp_overlap": True, "tp_overlap": True, "fp8_activations": False}),
    ("torchtitan 0.2.2", "llama-3-8b", {"compile": False, "tp_overlap": False}),
    ("torchtitan", "llama-3-8b", {"compile": True, "tp_overlap": True}),
    ("torchtitan", "", {"compile": False, "moe_routing": "natural", "cuda_graph": "none"}),
    ("nanotron", "llama-3-8b", {"tp_overlap": True}), ("nanotron", "llama-3-8b", {"tp_overlap": False}),
    ("deepspeed", "llama-3-8b", {"dp_overlap": False, "compile": True}),
    ("accelerate", "llama-3-8b", {"compile": False}),
]  # fmt: skip


@each(("target", "model", "stated"), EVERY_SETTING)
def test_the_settings_of_a_job_come_back(target: str, model: str, stated: dict[str, Any], tmp_path: Path) -> None:
    job, layouts = space_of(target, model)
    job = replace(job, training=replace(job.training, **stated))
    cut = (layouts["tp"] == 2) & layouts["sequence_parallel"] if stated.get("tp_overlap") else layouts["tp"] == 1
    sharded = (layouts["pp"] == 1) & (layouts["dp"] > 1) & (layouts["zero_stage"] > 0) & (layouts["cp"] == 1)
    for at in np.flatnonzero(cut & sharded):
        if files := written(job, record_of(layouts, int(at)), target, tmp_path):
            read = import_(files, gpu="h100-sxm5-80gb").job.training
            assert {name: getattr(read, name) for name in stated} == stated
            return
    pytest.fail("no plan was taken")


@each(("target", "stated"), [
    ("megatron", {"compile": True}), ("torchtitan", {"fp8_activations": True}), ("torchtitan", {"dp_overlap": False}),
    ("nanotron", {"compile": True}), ("deepspeed", {"tp_overlap": True}), ("accelerate", {"dp_overlap": 0.0}),
    ("torchtitan", {"cuda_graph": "full_iteration"}), ("deepspeed", {"ep_overlap": 0.5}),
    ("megatron", {"cross_entropy": "linear"}), ("megatron-bridge", {"logits_chunks": 8}),
    ("torchtitan", {"cross_entropy": "fused"}), ("nanotron", {"cross_entropy": "compiled"}),
])  # fmt: skip
def test_a_setting_without_words_in_a_target_is_refused_by_name(target: str, stated: dict[str, Any]) -> None:
    job, layouts = space_of(target, "llama-3-8b")
    job = replace(job, training=replace(job.training, **stated))
    refused = []
    for at in range(40):
        with pytest.raises(ExportError) as error:
            export(job, record_of(layouts, at), target, allow_tight=True)
        refused.append(str(error.value))
    assert any(f"cannot express training.{next(iter(stated))}" in one for one in refused)


def test_a_release_is_named_to_who_starts_the_export() -> None:
    job, layouts = space_of("megatron", "llama-3-8b")
    job = replace(job, training=replace(job.training, framework_release="26.06"))
    made = export(job, record_of(layouts, 0), "megatron", allow_tight=True)
    assert any("release 26.06" in note for note in made.export.notes)


def test_the_adapters_of_a_job_come_back(tmp_path: Path) -> None:
    job, layouts = space_of("megatron-bridge", "llama-3-8b")
    lora = {"lora_dim": 8, "lora_alpha": 16.0, "lora_target_modules": ("linear_qkv", "linear_fc2")}
    job = replace(job, training=replace(job.training, **lora))
    read = import_(written(job, record_of(layouts, 0), "megatron-bridge", tmp_path), gpu="h100-sxm5-80gb")
    assert {name: getattr(read.job.training, name) for name in lora} == lora


@pytest.mark.parametrize("freq", [0, 4, (0, 1) * 16])
@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
def test_the_windows_of_a_model_come_back(target: str, freq: Any, tmp_path: Path) -> None:
    job, layouts = space_of(target, "llama-3-8b")
    job = replace(job, model=replace(job.model, name="narrow", window_size=512, window_attn_skip_freq=freq))
    plain = next(at for at, cp in enumerate(layouts["cp"]) if cp == 2 and not layouts["recompute"][at])
    found = import_(written(job, record_of(layouts, plain), target, tmp_path), gpu="h100-sxm5-80gb")
    assert (found.job.model.window_size, found.job.model.window_attn_skip_freq, found.unread) == (512, freq, {})


@pytest.mark.parametrize("kind", ["transformer_engine", "full_iteration"])
@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
def test_the_cuda_graphs_of_a_job_come_back(target: str, kind: str, tmp_path: Path) -> None:
    job, layouts = space_of(target, "llama-3-8b")
    job = replace(job, training=replace(job.training, cuda_graph=kind))
    plain = next(at for at, dp in enumerate(layouts["dp"]) if dp == 16 and not layouts["recompute"][at])
    read = import_(written(job, record_of(layouts, plain), target, tmp_path), gpu="h100-sxm5-80gb")
    assert read.job.training.cuda_graph == kind


@pytest.mark.parametrize("kind", ["alltoall", "deepep"])
@pytest.mark.parametrize("target", ["megatron", "megatron 0.14", "megatron-bridge"])
def test_how_tokens_go_to_experts_comes_back(target: str, kind: str, tmp_path: Path) -> None:
    job, layouts = space_of(target, "")
    stated = {"token_dispatcher": kind, "ep_overlap": True, "moe_routing": "forced"}
    job = replace(job, training=replace(job.training, **stated))
    plain = next(at for at, ep in enumerate(layouts["ep"]) if ep == 8 and layouts["pp"][at] == layouts["tp"][at] == 1)
    read = import_(written(job, record_of(layouts, plain), target, tmp_path), gpu="h100-sxm5-80gb")
    assert {name: getattr(read.job.training, name) for name in stated} == stated
