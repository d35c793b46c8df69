"""Layouts of one training: with equal batch and initial weights, every one of them must reach the same losses."""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from jointopt.jobs.jobfile import parse_job
from jointopt.measure.torchrun import TorchrunLauncher, TorchrunProgram
from jointopt.measure.trainer.spec import TrainSpec
from jointopt.workflows.campaign.candidates import searched_candidates

pytestmark = pytest.mark.usefixtures("torch")

TINY = TrainSpec(
    num_layers=4, hidden_size=64, ffn_hidden_size=128, num_attention_heads=4, num_query_groups=4, head_dim=16,
    vocab_size=256, gated_mlp=True, num_experts=0, moe_router_topk=0, moe_ffn_hidden_size=0, num_shared_experts=0,
    num_dense_layers=0, seq_length=32, global_batch_size=8, dtype="fp32", dp=1, tp=1, pp=1, cp=1, ep=1, vpp=1,
    micro_batch_size=1, sequence_parallel=False, recompute="none", zero_stage=0, warmup_iterations=0, iterations=3,
)  # fmt: skip
EXPERTS = {"num_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 64}
SHARED = EXPERTS | {"gated_mlp": False, "num_query_groups": 2, "num_shared_experts": 1, "num_dense_layers": 1}
SHALLOW = {"num_layers": 2}
MODELS: dict[str, dict[str, Any]] = {
    "dense": {}, "experts": EXPERTS, "shallow": SHALLOW, "shallow experts": EXPERTS | SHALLOW,
    "shared experts": SHARED | SHALLOW,
}  # fmt: skip
SPLIT = {"tp": 2, "sequence_parallel": True, "micro_batch_size": 2}
# By number of processes, model and name. PyTorch lays out split tensors anew for each shape, which on cores takes most
# of the time: there the model is shallow, and an iteration has two micro-batches.
LAYOUTS: dict[int, dict[tuple[str, str], dict[str, Any]]] = {
    4: {
        ("dense", "data parallel"): {"dp": 4},
        ("dense", "ZeRO-1, larger micro-batches"): {"dp": 4, "zero_stage": 1, "micro_batch_size": 2},
        ("dense", "ZeRO-2, full recomputation"): {"dp": 4, "zero_stage": 2, "recompute": "full"},
        ("dense", "ZeRO-3, context parallel"): {"dp": 2, "cp": 2, "zero_stage": 3},
        ("shallow", "tensor parallel"): {"tp": 4, "micro_batch_size": 4},
        ("shallow", "tensor and sequence parallel, ZeRO-1"): SPLIT | {"dp": 2, "zero_stage": 1},
        ("dense", "pipeline"): {"pp": 4},
        ("dense", "pipeline with fewer micro-batches than stages"): {"pp": 4, "micro_batch_size": 4},
        ("dense", "interleaved pipeline, ZeRO-1"): {"dp": 2, "pp": 2, "vpp": 2, "zero_stage": 1},
        ("dense", "pipeline, tensor parallel, selective"): SPLIT | {"pp": 2, "recompute": "selective"},
        ("dense", "pipeline, context parallel"): {"pp": 2, "cp": 2},
        ("experts", "experts everywhere"): {"dp": 4},
        ("experts", "expert parallel"): {"dp": 4, "ep": 4, "zero_stage": 1},
        ("shallow experts", "expert and tensor parallel"): SPLIT | {"dp": 2, "ep": 2, "recompute": "full"},
        ("shallow experts", "expert and context parallel, ZeRO-3"): {"dp": 2, "cp": 2, "ep": 4, "zero_stage": 3},
        ("experts", "expert parallel in an interleaved pipeline"): {"dp": 2, "ep": 2, "pp": 2, "vpp": 2},
        ("shared experts", "plain MLP"): SPLIT | {"dp": 2, "ep": 2},
    },
    8: {
        ("shallow", "three dimensions"): SPLIT | {"dp": 2, "pp": 2, "zero_stage": 1},
        ("shallow", "four dimensions less one"): {
            "dp": 2, "cp": 2, "tp": 2, "micro_batch_size": 2, "zero_stage": 3, "recompute": "full",
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[list[float]]]:
    """By number of processes: losses by iteration of each layout, trained in turn by the same processes."""
    folder = tmp_path_factory.mktemp("trained")
    groups = {1: list(MODELS.values())}
    groups |= {n: [MODELS[model] | plan for (model, _), plan in named.items()] for n, named in LAYOUTS.items()}
    specs = {n: [asdict(TINY) | changes for changes in group] for n, group in groups.items()}
    (folder / "specs.json").write_text(json.dumps(specs))
    program = Path(__file__).with_name("train_many.py")
    ran = subprocess.run(
        [sys.executable, str(program), str(folder)], capture_output=True, text=True, timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    return {n: json.loads((folder / f"losses-{n}.json").read_text()) for n in groups}


def test_a_job_on_cores_trains_on_cores_and_leaves_gpus_beside_them_alone(driver: Any, tmp_path: Path) -> None:
    shape = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "vocab_size": 16}
    training = {"seq_length": 8, "global_batch_size": 1, "framework": "torchtitan"}
    cluster = {"gpu": "cpu-core", "nodes": 1, "gpus_per_node": 1}
    document = {"model": shape, "training": training, "cluster": cluster, "objectives": ["iteration_time_s"]}
    job = parse_job(document, "cores", tmp_path)
    plan = searched_candidates(job).question(0)
    row = TorchrunLauncher(iterations=1, warmup_iterations=0).run(job, plan)
    assert (row["status"], row["energy_j"] > 0, driver.calls()) == ("ok", False, [])
    assert TorchrunProgram().spec(job, plan).cores
    assert TorchrunProgram().spec(job, plan).selective_share == 0.5


def test_one_process_learns(losses: dict[int, list[list[float]]]) -> None:
    for name, found in zip(MODELS, losses[1], strict=True):
        assert found[0] > found[-1] + 0.1, name


@pytest.mark.parametrize("processes", LAYOUTS)
def test_processes_train_alike_in_every_layout(losses: dict[int, list[list[float]]], processes: int) -> None:
    alone = dict(zip(MODELS, losses[1], strict=True))
    for (model, name), found in zip(LAYOUTS[processes], losses[processes], strict=True):
        assert found == pytest.approx(alone[model], abs=2e-4), (model, name)


@pytest.fixture
def alone_here() -> Iterator[None]:
    """A process group of this process alone, which sends nothing."""
    fake = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    dist = importlib.import_module("torch.distributed")
    dist.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def laid_out(spec: TrainSpec) -> Any:
    """The only stage of ``spec`` on this process."""
    torch = importlib.import_module("torch")
    parallel = importlib.import_module("jointopt.measure.trainer.run")
    device = torch.device("cpu")
    return parallel.build_stages(spec, parallel.device_mesh(spec, device), device)[0]


@pytest.mark.parametrize(
    ("mode", "share", "whole"),
    [("none", 0.5, ""), ("selective", 0.5, "13"), ("selective", 0.0, ""), ("full", 0.0, "0123")],
)
def test_recomputation_runs_the_share_of_layers_that_the_framework_does(
    alone_here: None, mode: str, share: float, whole: str
) -> None:
    stage = laid_out(replace(TINY, recompute=mode, selective_share=share))
    wrapped = [name for name, layer in stage.layers.items() if hasattr(layer, "_checkpoint_wrapped_module")]
    cores = [layer.attention.recomputes for layer in stage.layers.values()]
    assert "".join(wrapped) == whole
    assert cores == [mode == "selective" and not share] * 4


@pytest.mark.parametrize(("zero_stage", "gathered"), [(0, 7), (1, 7), (3, 0)])
def test_weights_are_gathered_once_an_iteration_unless_they_are_given_back(
    alone_here: None, zero_stage: int, gathered: int
) -> None:
    torch = importlib.import_module("torch")
    run = importlib.import_module("jointopt.measure.trainer.run")
    spec = replace(TINY, zero_stage=zero_stage)  # eight micro-batches
    stage, seen = laid_out(spec), []
    state = stage.layers["0"]._get_fsdp_state()._fsdp_param_groups[0]
    stage.register_forward_pre_hook(lambda *_: seen.append(state.is_unsharded))
    tokens = torch.zeros(8, 32, dtype=torch.int64)
    run._plain_step(spec, stage, tokens, tokens)()
    assert (len(seen), sum(seen)) == (8, gathered)


class Writes(io.RawIOBase):
    """A file that keeps each write by itself; those of nothing are none."""

    def __init__(self) -> None:
        super().__init__()
        self.each: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.each += [bytes(data)] if data else []
        return len(data)


def test_a_line_of_progress_is_one_write_so_that_those_of_ranks_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from jointopt.measure.trainer import run

    written = Writes()
    unbuffered = io.TextIOWrapper(written, write_through=True)  # as PYTHONUNBUFFERED=1 makes it
    monkeypatch.setattr(run.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(sys, "stdout", unbuffered)
    run._print_progress(replace(TINY, prints=True), [0.5, 0.4, 0.3], torch.device("cpu"))
    peak, iteration = written.each
    assert peak.startswith(b"peak ")
    assert peak.endswith(b" GiB\n")
    assert iteration == b"iteration 0.300000 s\n"
