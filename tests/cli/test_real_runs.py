"""tune and validate over real trainings of a tiny model: two processes of torchrun on CPU cores."""

from __future__ import annotations

import json
from pathlib import Path

import optuna
import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt
from jointopt.store import Store

pytest.importorskip("torch", reason="real trainings need PyTorch: pip install 'jointopt[torch]'")

JOB = """
model: {num_layers: 2, hidden_size: 64, ffn_hidden_size: 128, num_attention_heads: 4, num_query_groups: 4,
        vocab_size: 256, gated_mlp: true}
training: {seq_length: 32, global_batch_size: 8, dtype: fp32, attention: unfused, framework: torchtitan}
cluster: {gpu: cpu-core, nodes: 1, gpus_per_node: 2}
search: {cp: [1], vpp: [1], recompute: [none], zero_stage: [2], micro_batch_size: [4]}
objectives: [iteration_time_s]
"""
FEW = ("--launcher", "torchrun", "--iterations", "2", "--warmup-iterations", "1", "--json")
URL = "sqlite:///jointopt.db"


def run(*words: str) -> Result:
    return CliRunner().invoke(jointopt, list(words))


def test_tune_and_then_validate_from_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    tuned = run("tune", "job.yaml", *FEW, "--budget", "2")
    assert tuned.exit_code == 0, tuned.stderr
    document = json.loads(tuned.stdout)
    assert [entry["status"] for entry in document["measured"]] == ["ok", "ok"]
    validated = run("validate", "job.yaml", *FEW, "--top", "1", "--again")
    assert validated.exit_code == 0, validated.stderr
    (entry,) = json.loads(validated.stdout)["measured"]
    assert entry["iteration_time_s"] > 0
    assert entry["predicted_iteration_time_s_low"] < entry["predicted_iteration_time_s_high"]
    trials = optuna.load_study(study_name=document["study"], storage=URL).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 3
    assert len(Store(URL).read()) == 3
