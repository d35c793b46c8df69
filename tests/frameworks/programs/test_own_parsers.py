"""Plans of each target, read by the framework's own parser: they are accepted, and the degrees are the plan's.

How many is set by what the parsers take; with JOINTOPT_PLANS=100 it is a hundred of each.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jointopt.core.errors import ExportError
from jointopt.workflows.export import export
from tests.frameworks.exports.test_round_trips import record_of, space_of

pytestmark = pytest.mark.services

HERE = Path(__file__).parent
# torchtitan and Bridge take a second for each; nanotron 0.4 has fewer plans of one model
PLANS = {
    "deepspeed": 60, "torchtitan": 15, "torchtitan 0.2.2": 15, "accelerate": 60, "nanotron 0.4": 60,
    "megatron-bridge": 30, "kubernetes": 60,
}  # fmt: skip
BOTH_MODELS = ("nanotron 0.4", "megatron-bridge", "kubernetes")
NODE = {"$NODE_RANK": "0", "$MASTER_ADDR": "127.0.0.1"}
FOLDERS = {
    "torchtitan": ["torchtitan-0.3.0"], "torchtitan 0.2.2": ["torchtitan-0.2.2"],
    "megatron-bridge": ["megatron-core", "megatron-bridge-0.3.1"],
}  # fmt: skip
INSTALLED = ("torch", "deepspeed", "accelerate", "nanotron", "hydra", "kubeflow_trainer_api")


def plans_of(target: str, model: str, count: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Plans drawn from the whole space of a target, those that it refuses left out, each with what its parser reads."""
    job, layouts = space_of("megatron" if target == "kubernetes" else target, model)
    name, _, version = target.partition(" ")
    for at in np.random.default_rng(0).permutation(len(layouts["dp"])).tolist():
        record = record_of(layouts, at)
        try:
            made = export(job, record, name, version=version, allow_tight=True).export
        except ExportError:
            continue
        words = [*made.launcher[2:], made.program, *made.words] if name == "accelerate" else list(made.words)
        words = [NODE.get(word, word) for word in words]
        case = {"files": dict(made.files), "words": words, "environment": dict(made.environment)}
        yield record, case | {"dp": record["dp"], "world_size": made.world_size}
        count -= 1
        if not count:
            return


@pytest.mark.parametrize("target", PLANS)
def test_the_framework_s_own_parser_reads_the_plan(target: str, tmp_path: Path) -> None:
    if not all(importlib.util.find_spec(name) for name in INSTALLED):
        pytest.skip("real frameworks are not installed: make .venv/.services-installed")
    models = ("llama-3-8b", "") if target in BOTH_MODELS else ("llama-3-8b",)
    count = int(os.environ.get("JOINTOPT_PLANS", PLANS[target]))
    drawn = [one for model in models for one in plans_of(target, model, count // len(models))]
    assert len(drawn) == count
    (tmp_path / "cases.json").write_text(json.dumps([case for _, case in drawn]))
    path = os.pathsep.join(str(Path(sys.prefix) / folder) for folder in FOLDERS.get(target, []))
    environment = {**os.environ, "PYTHONPATH": path, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    start = [sys.executable, str(HERE / "parse_many.py"), target.partition(" ")[0], "."]
    done = subprocess.run(start, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for answer, (plan, _) in zip(json.loads((tmp_path / "answers.json").read_text()), drawn, strict=True):
        assert answer == {column: plan[column] for column in answer}
