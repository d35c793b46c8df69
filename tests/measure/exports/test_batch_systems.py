"""Another target's command, started by Slurm or Kubernetes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from jointopt.core.errors import UsageError
from jointopt.measure.exports.intent import intent_of
from jointopt.measure.exports.targets import TARGETS
from jointopt.spec.slurm import Slurm
from tests.measure.exports.conftest import job_named, plan_of


def files(target: str, program: str = "", **slurm: Any) -> dict[str, str]:
    job = dataclasses.replace(job_named("llama-3-8b", gpus=16), slurm=Slurm(**slurm))
    plan = plan_of(job, tp=2, pp=2, sequence_parallel=program != "deepspeed")
    made = TARGETS[target].export(intent_of(job, plan), program=program)
    return dict(made.files)


def test_the_script_is_shell_and_sets_clocks_around_the_program() -> None:
    text = files("slurm")["job.sbatch"]
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert "#SBATCH --requeue" in text
    assert text.index("jointopt exec --plan plan.json") < text.index("torchrun") < text.index("pretrain_gpt.py")


# what stands in for the programs of a cluster: each notes its name, and goes on with what it was given
PROGRAMS = {
    "scontrol": "echo node7", "srun": 'while [[ $1 == --* ]]; do shift; done; SLURM_NODEID=1 "$@"',
    "jointopt": 'while [ "$1" != -- ]; do shift; done; shift; "$@"', "torchrun": 'echo "rank of $MASTER_ADDR:" "$@"',
}  # fmt: skip


@pytest.mark.parametrize("container", [None, "nvcr.io/x:1"])
def test_the_script_starts_the_program_on_a_node_with_the_words_of_the_plan(
    container: str | None, tmp_path: Path
) -> None:
    for name, body in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\necho {name} >&2\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "node[7-8]", "SLURMD_NODENAME": "node8"}
    text = files("slurm", container=container)["job.sbatch"]
    done = subprocess.run(["bash", "-e"], input=text, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["scontrol", "srun", "jointopt", *(["srun"] if container else []), "torchrun"]
    head, words = done.stdout.split(" pretrain_gpt.py ")
    assert head == "rank of node7: --nnodes 2 --node-rank 1 --master-addr node7 --master-port 29500 --nproc-per-node 8"
    job = job_named("llama-3-8b", gpus=16)
    intent = intent_of(job, plan_of(job, tp=2, pp=2, sequence_parallel=True))
    assert words.split() == list(TARGETS["megatron"].export(intent).words)


def test_the_plan_beside_the_script_has_its_clocks() -> None:
    plan = json.loads(files("slurm")["plan.json"])
    assert (plan["tp"], plan["pp"], plan["dp"], plan["stage_clock_mhz"]) == (2, 2, 4, [1980.0, 1980.0])


@pytest.mark.parametrize(
    ("runtime", "words"), [("pyxis", "srun --overlap"), ("apptainer", "apptainer exec --nv --bind /data")]
)
def test_the_program_runs_in_the_container_and_the_clocks_outside(runtime: str, words: str) -> None:
    text = files("slurm", container="nvcr.io/x:1", container_runtime=runtime, mounts=("/data",))["job.sbatch"]
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    line = " ".join(text.replace("\\\n", "").split())
    assert line.index("jointopt exec") < line.index(words) < line.index("nvcr.io/x:1") < line.index("torchrun")


def test_a_jobset_has_a_pod_for_each_node_and_the_program_s_files() -> None:
    config_map, jobset = yaml.safe_load_all(files("kubernetes", "deepspeed")["jobset.yaml"])
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (job["parallelism"], job["completions"], job["completionMode"]) == (2, 2, "Indexed")
    container = job["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert set(config_map["data"]) == {"plan.json", "ds_config.json"}
    assert "--deepspeed_config /plan/ds_config.json" in container["command"][-1].replace(" \\\n", "")


def test_a_batch_system_starts_no_batch_system() -> None:
    with pytest.raises(Exception, match="--program must be a training framework; got kubernetes"):
        files("slurm", "kubernetes")
    with pytest.raises(UsageError, match="--program names what a batch system starts"):
        files("megatron", "slurm")
