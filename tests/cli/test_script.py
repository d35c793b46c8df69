"""``jointopt script``: what would be run, printed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from jointopt.cli.main import jointopt

CHECKOUT = Path(__file__).parents[1] / "measure" / "launchers"  # a stand-in for Megatron-LM's script

JOB, PLAN = "opt-350m-2x4-a100", "tp=2 pp=2 mbs=1"
ONE_NODE = """
model: opt-350m
training: {global_batch_size: 8, seq_length: 128}
cluster: {gpu: cpu-core, nodes: 1, gpus_per_node: 4}
"""


def output_of(*words: str, job: str = JOB, plan: str = PLAN) -> tuple[int, str]:
    result = CliRunner().invoke(jointopt, ["script", job, "--plan", plan, *words])
    return result.exit_code, result.output


def test_the_script_for_slurm_is_printed() -> None:
    code, text = output_of("--launcher", "slurm", "--folder", "/shared")
    assert code == 0
    assert text.startswith("#!/bin/bash\n#SBATCH --job-name=jointopt-")
    assert "-m jointopt.measure.trainer /shared/jointopt-" in text


def test_the_command_line_of_a_command_is_printed() -> None:
    command = "train 'a b' --dp {dp} --out {result}"
    assert output_of("--launcher", "command", "--command", command, "--logs", "/l")[1] == (
        "train 'a b' --dp 2 --out /l/result.json\n"
    )


def test_a_launcher_that_starts_nothing_has_nothing_to_print() -> None:
    code, text = output_of("--launcher", "replay", "--table", "runs.csv")
    assert code == 2
    assert text.startswith("Error: ")


@pytest.fixture
def one_node(tmp_path: Path) -> str:
    (tmp_path / "job.yaml").write_text(ONE_NODE)
    return str(tmp_path / "job.yaml")


def test_the_command_line_of_megatron_is_printed(one_node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT.parent)
    code, text = output_of("--launcher", "megatron", "--checkout", CHECKOUT.name, job=one_node)
    assert code == 0, text
    assert text.startswith(f"cd {CHECKOUT}\nenv CUDA_DEVICE_MAX_CONNECTIONS=1 ")
    assert f"--nproc-per-node=4 {CHECKOUT}/pretrain_gpt.py --num-layers 24" in text


@pytest.mark.usefixtures("torch")
def test_the_lines_of_torchrun_are_whole_and_run_as_they_are(one_node: str) -> None:
    code, text = output_of("--launcher", "torchrun", job=one_node)
    assert code == 0, text
    lines = text.replace("-m torch.distributed.run", "-c 'import sys; print(sys.argv)'")
    lines = lines.replace("cat result.json", "cat spec.json")
    shown = subprocess.run(["bash", "-e"], input=lines, capture_output=True, text=True, check=True).stdout
    words, spec = shown.split("\n", 1)
    assert words.endswith("'-m', 'jointopt.measure.trainer', 'spec.json', 'result.json']")
    assert (json.loads(spec)["tp"], json.loads(spec)["dp"]) == (2, 1)


@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
def test_a_plan_that_is_none_of_the_job_is_refused_with_reasons(one_node: str, launcher: str) -> None:
    code, text = output_of("--launcher", launcher, job=one_node, plan="tp=3")
    assert code == 2
    assert "dp*tp*pp*cp is 3; it must be the cluster's 4 GPUs. tp 3 does not divide the 16" in text


def test_what_the_launcher_would_not_run_has_no_script() -> None:
    code, text = output_of("--launcher", "megatron", "--checkout", str(CHECKOUT))
    assert (code, "runs on one machine, and job" in text) == (1, True)
