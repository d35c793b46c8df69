"""``jointopt import``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from jointopt.cli.main import jointopt

CONFIG = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_shard_degree = 8
made_up = 1
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(CONFIG)
    return path


def test_a_config_becomes_a_job_file_and_a_plan(config: Path, tmp_path: Path) -> None:
    words = ["import", str(config), "--gpu", "h100-sxm5-80gb", "--out", str(tmp_path / "job.yaml"), "--json"]
    answer = CliRunner().invoke(jointopt, words)
    document = json.loads(answer.stdout)
    assert answer.exit_code == 0
    assert document["job_file"]["model"] == "llama-3-8b"
    assert document["unread"] == {"job.toml": ["parallelism.made_up"]}
    again = CliRunner().invoke(jointopt, ["explain", str(tmp_path / "job.yaml"), "--plan", document["plan_text"]])
    assert again.exit_code == 0


def test_the_text_names_what_was_not_read(config: Path) -> None:
    answer = CliRunner().invoke(jointopt, ["import", str(config), "--gpu", "h100-sxm5-80gb"])
    assert "job.toml: 1 not known and not read: parallelism.made_up." in answer.stdout
    assert "The plan that runs today: dp=8 tp=1" in answer.stdout


def test_a_missing_gpu_is_bad_usage(config: Path) -> None:
    answer = CliRunner().invoke(jointopt, ["import", str(config)])
    assert answer.exit_code == 2
    assert "--gpu" in answer.stderr


def test_nothing_to_read_is_bad_usage() -> None:
    answer = CliRunner().invoke(jointopt, ["import"])
    assert (answer.exit_code, "import needs files of a run, or the --pid of one" in answer.stderr) == (2, True)


@pytest.mark.parametrize("words", [("--network", "400G"), ("--inter-node-gbytes-per-s", "3.2Tb/s per node")])
def test_the_network_of_a_run_is_given_in_the_words_that_people_use(config: Path, words: tuple[str, str]) -> None:
    answer = CliRunner().invoke(jointopt, ["import", str(config), "--gpu", "a100-sxm4-80gb", *words, "--json"])
    assert json.loads(answer.stdout)["job_file"]["cluster"]["inter_node_gbytes_per_s"] == 50


def test_a_script_passes_the_same_limits_as_a_job_file(tmp_path: Path) -> None:
    script = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 100000 --hidden-size 4096 --seq-length 4096 "
    script += "--num-attention-heads 32 --micro-batch-size 1 --global-batch-size 512 --vocab-size 32000"
    (tmp_path / "train.sh").write_text(script)
    answer = CliRunner().invoke(jointopt, ["import", str(tmp_path / "train.sh"), "--gpu", "h100-sxm5-80gb"])
    assert answer.exit_code == 2
    assert "model.num_layers must be a whole number from 1 to 1,000" in answer.stderr


def test_a_run_is_chosen_and_questions_are_answered_on_the_command_line(tmp_path: Path) -> None:
    options = "--num-layers 32 --hidden-size 4096 --seq-length 4096 --num-attention-heads 32 --vocab-size 32000"
    start = f"torchrun --nproc-per-node 8 pretrain_gpt.py {options} --micro-batch-size 1 --global-batch-size 64"
    (tmp_path / "train.sh").write_text(f"{start} --bf16\n{start} --tensor-model-parallel-size $TP\n")
    words = ["import", str(tmp_path / "train.sh"), "--gpu", "h100-sxm5-80gb", "--run", "2", "--json"]
    assert "--set TP=..." in CliRunner().invoke(jointopt, words).stderr
    document = json.loads(CliRunner().invoke(jointopt, [*words, "--set", "TP=2"]).stdout)
    assert (document["plan"]["tp"], document["origins"]["plan.tp"]) == (2, "--set TP")
    assert document["origins"]["plan.micro_batch_size"] == "train.sh:2"
    assert "--set must be NAME=VALUE; got 'TP'" in CliRunner().invoke(jointopt, [*words, "--set", "TP"]).stderr
