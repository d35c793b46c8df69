"""Plans of each target, read by the framework's own parser: a hundred are accepted, and the degrees are the plan's."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jointopt.core.errors import ExportError
from jointopt.workflows.export import export
from tests.measure.exports.test_round_trips import record_of, space_of

pytestmark = pytest.mark.services

HERE = Path(__file__).parent
PLANS = {"deepspeed": 100, "torchtitan": 50, "torchtitan 0.2.2": 50, "accelerate": 100}  # torchtitan takes its time
NODE = {"$NODE_RANK": "0", "$MASTER_ADDR": "127.0.0.1"}
FOLDERS = {"torchtitan": "torchtitan-0.3.0", "torchtitan 0.2.2": "torchtitan-0.2.2"}


@pytest.mark.parametrize("target", PLANS)
def test_the_framework_s_own_parser_reads_the_plan(target: str, tmp_path: Path) -> None:
    if not all(importlib.util.find_spec(name) for name in ("torch", "deepspeed", "accelerate")):
        pytest.skip("real frameworks are not installed: make .venv/.services-installed")
    job, layouts = space_of(target, "llama-3-8b")
    name, _, version = target.partition(" ")
    cases, plans = [], []
    for at in np.random.default_rng(0).permutation(len(layouts["dp"])).tolist():
        record = record_of(layouts, at)
        try:
            made = export(job, record, name, version=version).export
        except ExportError:
            continue
        words = [*made.launcher[2:], made.program, *made.words] if name == "accelerate" else list(made.words)
        words = [NODE.get(word, word) for word in words]
        cases.append({"files": dict(made.files), "words": words, "dp": record["dp"]})
        plans.append(record)
        if len(cases) == PLANS[target]:
            break
    assert len(cases) == PLANS[target]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    path = str(Path(sys.prefix) / FOLDERS[target]) if target in FOLDERS else ""
    environment = {**os.environ, "PYTHONPATH": path, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    start = [sys.executable, str(HERE / "parse_many.py"), name, "."]
    done = subprocess.run(start, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for answer, plan in zip(json.loads((tmp_path / "answers.json").read_text()), plans, strict=True):
        assert answer == {column: plan[column] for column in answer}
