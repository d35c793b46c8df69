"""Jobs, plans and options of ``export``, and whether files that it writes are JSON, YAML, TOML or shell."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from jointopt.frameworks.targets import TARGETS
from jointopt.jobs.jobfile import load_job
from jointopt.workflows.export import export, write
from jointopt.workflows.plan_files import read_plan_file

_PLAN = {"dp": 4, "tp": 2, "pp": 1, "zero_stage": 2, "micro_batch_size": 1, "recompute": "none"}
_JOB = {
    "name": "a job", "model": "llama-3-8b",
    "training": {"seq_length": 8192, "global_batch_size": 128, "dtype": "bf16", "framework": "generic"},
    "cluster": {"gpu": "h100-sxm5-80gb", "nodes": 1, "gpus_per_node": 8},
    "slurm": {"account": "a", "time_limit_min": 60, "container": "image.sqsh", "mounts": ["/data:/in"],
              "setup": ["module load cuda"], "sbatch": ["--mem=0"]},
}  # fmt: skip
# what each target has words for
_STAGES = {"nanotron": 1, "accelerate": 1, "kubernetes": 1}
_PROGRAMS = {"slurm": "torchtitan", "kubernetes": "megatron"}
_PARSERS: dict[str, Callable[[str], object]] = {
    ".json": json.loads, ".toml": tomllib.loads, ".yaml": lambda text: list(yaml.safe_load_all(text)),
}  # fmt: skip


def documents() -> tuple[bytes, ...]:
    """A job, a plan and options for each target."""
    return tuple(json.dumps(_document(target)).encode() for target in TARGETS)


def _document(target: str) -> dict[str, Any]:
    plan = _PLAN | {"zero_stage": _STAGES.get(target, 2)}
    options = {"version": "", "purpose": "training", "program": _PROGRAMS.get(target, ""), "arguments": "--seed 1"}
    return {"target": target, "job": _JOB, "plan": plan, "options": options}


def read(path: Path) -> object:
    """Writes what a document's job, plan and options lead to, and reads it again."""
    try:
        document = json.loads(path.read_bytes())
        target, job, plan, options = (document[name] for name in ("target", "job", "plan", "options"))
        texts = {name: str(options[name]) for name in _document("")["options"]}
    except (ValueError, KeyError, TypeError):
        return None  # the test's own envelope
    files = {name: path.with_suffix(f".{name}") for name in ("job.yaml", "plan.json")}
    files["job.yaml"].write_bytes(yaml.safe_dump(job).encode("utf-8", "surrogatepass"))
    files["plan.json"].write_text(json.dumps(plan))
    found = export(load_job(files["job.yaml"]), read_plan_file(files["plan.json"]), str(target), **_known(texts))
    folder = path.with_suffix(".out")
    folder.mkdir(exist_ok=True)
    for file in write(found, folder):
        _check(file)
        file.unlink()
    return found.to_dict()


def _known(texts: Mapping[str, str]) -> dict[str, Any]:
    """Options as the command line passes them: it knows the purposes itself."""
    return {**texts, "purpose": "training" if texts["purpose"] == "training" else "benchmark"}


def _check(file: Path) -> None:
    """Raises where a file is not of the kind that its name states."""
    text = file.read_text(encoding="utf-8")
    if file.suffix in _PARSERS:
        _PARSERS[file.suffix](text)
    elif text.startswith("#!/bin/bash"):
        subprocess.run(["bash", "-n", file], check=True, capture_output=True)
