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
from jointopt.frameworks.intent import intent_of
from jointopt.frameworks.targets import TARGETS
from jointopt.jobs.slurm import Slurm
from tests.frameworks.exports.conftest import job_named, plan_of


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
    name = "llama-3-8b-2x8-h100-sxm5-80gb"
    assert (set(config_map["data"]), config_map["metadata"]) == (
        {"plan.json", "ds_config.json"}, {"name": f"{name}-plan"},
    )  # fmt: skip
    (replicated,) = jobset["spec"].pop("replicatedJobs")
    assert jobset["spec"] == {"network": {"enableDNSHostnames": True}, "failurePolicy": {"maxRestarts": 3}}
    assert (replicated.pop("template")["spec"].keys(), replicated) == (
        {"parallelism", "completions", "completionMode", "backoffLimit", "template"}, {"name": "node", "replicas": 1},
    )  # fmt: skip


def test_a_pod_runs_one_node_of_the_program_with_the_plan_at_hand() -> None:
    _, jobset = yaml.safe_load_all(files("kubernetes", "deepspeed")["jobset.yaml"])
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,), pod = job["template"]["spec"].pop("containers"), job.pop("template")["spec"]
    place = container.pop("command")[-1].replace(" \\\n", "")
    assert job == {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "backoffLimit": 0}
    assert pod["restartPolicy"] == "Never"
    assert pod["volumes"][1] == {"name": "shm", "emptyDir": {"medium": "Memory"}}
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert [one["mountPath"] for one in container["volumeMounts"]] == ["/plan", "/dev/shm"]
    assert place.startswith(
        "export NODE_RANK=$JOB_COMPLETION_INDEX MASTER_ADDR=llama-3-8b-2x8-h100-sxm5-80gb-node-0-0."
    )
    assert "--deepspeed_config /plan/ds_config.json" in place


@pytest.mark.parametrize(("target", "words"), [
    ("megatron", 'torchrun --nnodes 2 --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port 29500 '
                 "--nproc-per-node 8 pretrain_gpt.py"),
    ("deepspeed", 'torchrun --nnodes 2 --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port 29500 '
                  "--nproc-per-node 8 train.py"),
    ("accelerate", 'accelerate launch --config_file accelerate.yaml --machine_rank "$NODE_RANK" --main_process_ip '
                   '"$MASTER_ADDR" --main_process_port 29500 --gradient_accumulation_steps 128 train.py'),
])  # fmt: skip
def test_each_of_several_nodes_is_started_with_its_place(target: str, words: str) -> None:
    text = " ".join(files("slurm", target)["job.sbatch"].replace("\\\n", "").split())
    assert f"jointopt exec --plan plan.json --gpus-per-node 8 --order tp-cp-ep-dp-pp -- {words}" in text
    assert "srun --export=ALL --ntasks=2 --ntasks-per-node=1" in text


def test_one_node_needs_no_meeting_place() -> None:
    job = job_named("llama-3-8b", gpus=8)
    starts = {
        target: TARGETS["slurm"].export(intent_of(job, plan_of(job)), program=target).files["job.sbatch"]
        for target in ("megatron", "deepspeed")
    }
    assert "torchrun \\\n        --nproc-per-node 8 pretrain_gpt.py" in starts["megatron"]
    assert "deepspeed \\\n        --num_nodes 1 \\\n        --num_gpus 8 train.py" in starts["deepspeed"]


def test_a_batch_system_starts_no_batch_system() -> None:
    with pytest.raises(Exception, match="--program must be a training framework; got kubernetes"):
        files("slurm", "kubernetes")
    with pytest.raises(UsageError, match="--program names what a batch system starts"):
        files("megatron", "slurm")


@pytest.mark.parametrize(("target", "folder"), [("deepspeed", None), ("torchtitan", "/plan"), ("nanotron", None)])
def test_a_pod_finds_the_modules_of_the_plan(target: str, folder: str | None) -> None:
    job = job_named("llama-3-8b", gpus=16)
    plan = plan_of(job, pp=2, stage_layers="15;17") if target == "torchtitan" else plan_of(job, pp=2)
    text = TARGETS["kubernetes"].export(intent_of(job, plan), program=target).files["jobset.yaml"]
    _, jobset = yaml.safe_load_all(text)
    spec = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert {one["name"]: one["value"] for one in spec["containers"][0]["env"]}.get("PYTHONPATH") == folder
