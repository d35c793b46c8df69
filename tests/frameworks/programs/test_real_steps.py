"""Exports started for real on cores, with gloo: each trains, in the mesh it was given, and its log is a measured row.

Scripts beside this file state what of a framework is replaced where it needs a GPU, and why; of DeepSpeed nothing is.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jointopt.jobs.jobfile import parse_job
from jointopt.workflows.export import Exported, export, write
from jointopt.workflows.import_ import import_

pytestmark = pytest.mark.services

HERE, INSTALLED = Path(__file__).parent, Path(sys.prefix)
SMALL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 4, "vocab_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip
SP = "sequence_parallel=true"


@dataclass(frozen=True)
class Framework:
    """A target in one version: the job's profile, the folder that has it where the environment does not, its plans."""

    target: str
    version: str
    profile: str
    plans: tuple[str, ...]
    folder: str = ""
    dtype: str = "bf16"
    model: str = ""  # blank: the small one


FRAMEWORKS = {
    "deepspeed": Framework("deepspeed", "0.19", "deepspeed", (
        "dp=2 zero_stage=1", "dp=2 zero_stage=2", "dp=2 zero_stage=3", "pp=2 dp=1", "pp=2 dp=2 zero_stage=1",
    )),
    "torchtitan 0.2.2": Framework("torchtitan", "0.2.2", "torchtitan", (
        f"tp=2 dp=1 {SP}", "pp=2 dp=1", "dp=2 zero_stage=3", f"tp=2 pp=2 dp=1 {SP}", f"dp=2 tp=2 zero_stage=3 {SP}",
        "dp=2 pp=2 zero_stage=2",
    ), "torchtitan-0.2.2", model="llama-3-8b"),
    "torchtitan 0.3.0": Framework("torchtitan", "0.3.0", "torchtitan", (
        f"tp=2 dp=1 {SP}", "dp=2 zero_stage=3",
    ), "torchtitan-0.3.0", model="llama-3-8b"),
    "megatron": Framework("megatron", "0.16.1", "megatron-lm", (
        "tp=2 dp=1", "pp=2 dp=1", "tp=2 pp=2 dp=1", "tp=2 dp=2 zero_stage=0",
    ), "megatron-core"),
    "accelerate": Framework("accelerate", "1.15", "fsdp", (
        "dp=2 zero_stage=3", "dp=2 zero_stage=2", "dp=4 dp_replicate=2 zero_stage=3",
    ), dtype="fp32"),
}  # fmt: skip
RUNS = [(name, plan) for name, one in FRAMEWORKS.items() for plan in one.plans]


def exported(one: Framework, plan: str, folder: Path) -> Exported:
    """The plan of two or four GPUs, exported into its folder."""
    degrees = dict(word.split("=") for word in plan.split())
    gpus = int(degrees["dp"]) * int(degrees.get("tp", 1)) * int(degrees.get("pp", 1))
    (folder.parent / "config.json").write_text(json.dumps(SMALL))
    training = {"global_batch_size": 4, "seq_length": 32, "framework": one.profile, "dtype": one.dtype}
    cluster = {"gpu": "h100-sxm5-80gb", "nodes": 1, "gpus_per_node": gpus}
    model = one.model or str(folder.parent / "config.json")
    job = parse_job({"model": model, "training": training, "cluster": cluster}, "job", Path())
    rest = "micro_batch_size=1 recompute=none" + ("" if SP in plan else " sequence_parallel=false")
    made = export(job, f"{plan} {rest}", one.target, version=one.version)
    folder.mkdir()
    write(made, folder)
    return made


def words(one: Framework, made: Exported, assets: Path) -> list[str]:
    """The export's words; of torchtitan with a dataset, a tokenizer, few steps, and no compiler."""
    given = list(made.export.words)
    if one.target == "accelerate":
        return [*made.export.launcher[2:], made.export.program, *given]
    if one.target != "torchtitan":
        return given
    own = ["--training.steps", "3", "--compile.no-enable"]
    text = ["--training.dataset", "c4_test", "--training.dataset_path", str(assets / "text")]
    if one.version == "0.2.2":
        # its four layers, where the export deals out the 32 of Llama 3 8B
        layers = ["--parallelism.pipeline_parallel_layers_per_stage", "2"]
        return [*given, *own, "--model.hf_assets_path", str(assets), *text, *layers]
    own += ["--hf_assets_path", str(assets), *(word.replace("training.", "dataloader.") for word in text)]
    own += ["--metrics.no-enable_tensorboard", "--profiler.no-enable_profiling"]
    return [*given[:-1], *own, "--parallelism.spmd_backend", "partial_dtensor", given[-1]]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Starts all plans of a framework, once: the folder of each."""
    if not all(importlib.util.find_spec(name) for name in ("torch", "deepspeed", "accelerate")):
        pytest.skip("real frameworks are not installed: make .venv/.services-installed")
    base = tmp_path_factory.mktemp("frameworks")

    @functools.cache
    def all_of(name: str) -> dict[str, Path]:
        one, root = FRAMEWORKS[name], base / name.replace(" ", "-")
        (root / "text").mkdir(parents=True)
        folders = {plan: root / plan.replace(" ", "-") for plan in one.plans}
        made = {plan: exported(one, plan, folder) for plan, folder in folders.items()}
        plans = [{"folder": str(folders[plan]), "processes": made[plan].gpus_per_node,
                  "words": words(one, made[plan], root)} for plan in one.plans]  # fmt: skip
        (root / "plans.json").write_text(json.dumps(plans))
        path = f"{INSTALLED / one.folder}" if one.folder else ""
        environment = {
            **os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(root), "TORCHDYNAMO_DISABLE": "1", "ASSETS": str(root), "CUDA_VISIBLE_DEVICES": "",
            "PYTHONWARNINGS": "ignore", "LOG_RANK": "0,1,2,3",
        }  # fmt: skip
        start = [sys.executable, str(HERE / "start.py"), f"train_{one.target}", str(root / "plans.json")]
        done = subprocess.run(start, env=environment, cwd=HERE, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return folders

    return all_of


def log_of(folder: Path) -> Path:
    assert (folder / "code").read_text() == "0", (folder / "run.log").read_text()[-3000:]
    return folder / "run.log"


@pytest.mark.parametrize(("name", "plan"), RUNS, ids=lambda value: value.replace(" ", "-"))
def test_an_export_trains_in_the_mesh_it_was_given_and_its_log_is_a_row(name: str, plan: str, started: Any) -> None:
    folder = started(name)[plan]
    names = ("ds_config.json", "config.json", "accelerate.yaml", "torchtitan.toml", "start.sh")
    files = [folder / name for name in names if (folder / name).is_file()]
    found = import_([*files, log_of(folder)], gpu="h100-sxm5-80gb", warmup=1)
    given = {word.split("=")[0]: json.loads(word.split("=")[1]) for word in plan.split()}
    assert {column: found.plan[column] for column in given} == given
    (row,) = found.runs
    assert (row["status"], row["num_gpus"]) == ("ok", found.job.cluster.num_gpus)
    assert 0 < row["iteration_time_s"] < 600
    if (folder / "mesh.json").is_file():  # as the framework itself has it
        mesh = json.loads((folder / "mesh.json").read_text())
        assert {column: found.plan[column] for column in mesh} == mesh
    else:
        alone = {"plan.micro_batch_size": "1"}  # which a log of pipelines does not state
        mesh = import_([log_of(folder)], gpu="h100-sxm5-80gb", warmup=1, set=alone).plan
        assert {column: mesh[column] for column in ("dp", "tp", "pp", "cp")} == {
            column: found.plan[column] for column in ("dp", "tp", "pp", "cp")
        }
