"""Training frameworks started here, by a command, or by Slurm in a container; stand-ins print their logs."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jointopt.core.errors import LauncherError, UsageError
from jointopt.core.facts import FailureKind
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.job import Job
from jointopt.jobs.slurm import Slurm
from jointopt.measure.base import load_launcher, run_all, script_of
from jointopt.measure.framework_program import FRAMEWORKS, FrameworkProgram
from jointopt.measure.slurm import SlurmLauncher
from tests.slurm_cluster import Cluster
from tests.stand_in.framework import checkout

HERE = Path(__file__).parent
PLAN: dict[str, Any] = {
    "dp": 2, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1, "sequence_parallel": False,
    "recompute": "none", "zero_stage": 0, "stage_clock_mhz": [1410.0],
}  # fmt: skip
FEW = {"iterations": 4, "warmup_iterations": 1}
# starts all nodes on this machine, as pdsh or a scheduler would elsewhere
EVERYWHERE = """
import os, subprocess, sys
nodes, start = int(sys.argv[1]), sys.argv[2]
each = [subprocess.Popen([start], env={**os.environ, "NODE_RANK": str(node)}) for node in range(nodes)]
sys.exit(max(node.wait() for node in each))
"""
COMMAND = [sys.executable, "-c", EVERYWHERE.replace("{", "{{").replace("}", "}}"), "{nodes}", "{start}"]


@pytest.fixture
def job(job: Job) -> Job:
    """Two nodes of one GPU that can be neither set nor metered, for a model that all frameworks know."""
    cluster = replace(job.cluster, nodes=2, gpus_per_node=1)
    training = replace(job.training, seq_length=32, global_batch_size=4)
    return replace(
        job, model=load_model("llama-3-8b"), training=training, cluster=cluster, slurm=Slurm(gpu_request="none")
    )


@pytest.mark.parametrize("name", ["torchtitan", "nanotron"])
def test_a_command_of_the_user_starts_a_framework_on_several_nodes(
    name: str, job: Job, torch: Any, tmp_path: Path
) -> None:
    place = checkout(name, tmp_path)
    launcher = load_launcher(name, checkout=place, command=COMMAND, folder=tmp_path / "runs", **FEW)
    row = launcher.run(job, PLAN | {"zero_stage": 2 if name == "torchtitan" else 0})
    assert (row["status"], row["iteration_time_s"]) == ("ok", pytest.approx(0.05, rel=0.01)), row["notes"]
    assert row["notes"].startswith("4 iterations")
    assert "clocks were not set" in row["notes"]
    assert {file.name for file in next((tmp_path / "runs").iterdir()).iterdir()} >= {"start.sh", "output.txt"}


def test_a_log_that_the_command_writes_elsewhere_is_read(job: Job, torch: Any, tmp_path: Path) -> None:
    into = [
        *COMMAND[:2],
        COMMAND[2].replace("[start]", '["bash", "-c", f"{{start}} >> {{sys.argv[3]}}"]'),
        *COMMAND[3:],
    ]
    place = checkout("nanotron", tmp_path)
    launcher = load_launcher("nanotron", checkout=place, command=[*into, "{log}"], folder=tmp_path / "runs", **FEW)
    row = launcher.run(job, PLAN)
    assert row["status"] == "ok", row["notes"]


def test_meters_of_this_machine_measure_what_the_log_does_not(
    driver: Any, job: Job, torch: Any, tmp_path: Path
) -> None:
    one = replace(job, cluster=replace(job.cluster, nodes=1, gpus_per_node=2))
    launcher = load_launcher("torchtitan", checkout=checkout("torchtitan", tmp_path), iterations=60)
    row = launcher.run(one, PLAN | {"zero_stage": 2})
    assert row["status"] == "ok", row["notes"]
    assert row["energy_j"] == pytest.approx(2 * row["avg_power_w"] * row["iteration_time_s"], rel=0.01)
    assert "energy not measured" not in row["notes"]
    assert driver.held() == {}


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [("flag", FailureKind.UNKNOWN_FLAG, "unknown flag --metrics.log_freq"), ("oom", FailureKind.OOM, "out of memory")],
)
def test_a_failure_names_its_cause(
    how: str, kind: FailureKind, words: str, job: Job, torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_HOW", how)
    one = replace(job, cluster=replace(job.cluster, nodes=1, gpus_per_node=2))
    launcher = load_launcher("torchtitan", checkout=checkout("torchtitan", tmp_path), **FEW)
    row = launcher.run(one, PLAN | {"zero_stage": 2})
    assert row["failure"].kind is kind
    assert words in row["notes"]


def test_a_plan_without_words_is_a_failed_row_among_others(job: Job, torch: Any, tmp_path: Path) -> None:
    one = replace(job, cluster=replace(job.cluster, nodes=1, gpus_per_node=2))
    launcher = load_launcher("torchtitan", checkout=checkout("torchtitan", tmp_path), **FEW)
    row = launcher.run(one, PLAN | {"zero_stage": 1})
    assert (row["status"], row["failure"].kind) == ("failed", FailureKind.EXPORT)
    assert "torchtitan 0.3.0 cannot express zero_stage 1" in row["notes"]


def test_a_job_that_a_framework_has_no_words_for_is_refused_at_once(job: Job) -> None:
    other = replace(job, model=load_model("opt-350m"), cluster=replace(job.cluster, nodes=1))
    with pytest.raises(LauncherError, match=r"has no model of the shape of opt-350m"):
        load_launcher("torchtitan").candidates(other)


@pytest.mark.parametrize("name", ["deepspeed", "nanotron", "torchtitan"])
def test_the_search_leaves_out_what_a_framework_lacks(name: str, job: Job) -> None:
    program = FrameworkProgram(name, *({"deepspeed": (None, Path(__file__))}.get(name, (None, Path(__file__)))))
    search = program.narrow_search(job).search
    assert all(len(getattr(search, column)) == 1 for column in FRAMEWORKS[name].lacks)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("megatron", {}, "needs --checkout: a checkout of Megatron-LM"),
        ("deepspeed", {}, "needs --script: your training script"),
        ("megatron-bridge", {"arguments": "--recipe x"}, "needs --checkout: a checkout of Megatron-Bridge"),
        ("megatron-bridge", {"checkout": HERE}, "needs --arguments: the recipe that the plan overrides"),
        ("megatron", {"checkout": HERE, "arguments": "--use-tp-pp-dp-mapping"}, "leave --use-tp-pp-dp-mapping out"),
        ("megatron", {"checkout": HERE, "arguments": "'"}, "--arguments cannot be split into words"),
        ("torchtitan", {"by": "slrum"}, "by must be one of local, slurm, command; got 'slrum'"),
        ("torchtitan", {"by": "command"}, "started by command needs --command, which starts {start}"),
        ("torchtitan", {"by": "slurm", "command": "x {start}"}, "started by slurm takes no --command"),
        ("torchtitan", {"command": "x {result}"}, "has no value for {result}"),
        ("torchtitan", {"command": "x {dp}"}, "must hold {start}: the script that starts the program on one node"),
    ],
)
def test_options_that_make_no_sense_are_named(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as found:
        load_launcher(name, **options)
    assert words in str(found.value)


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match=r"holds no run_train\.py; expected a checkout of nanotron"):
        load_launcher("nanotron", checkout=tmp_path)
    with pytest.raises(LauncherError, match=r"--script .*no\.py is not a file"):
        load_launcher("deepspeed", script=tmp_path / "no.py")


def test_here_several_nodes_are_refused_with_both_ways_out(job: Job) -> None:
    with pytest.raises(LauncherError, match="start it with --by slurm, or with a --command of yours"):
        load_launcher("megatron", checkout=HERE).candidates(job)


def test_the_script_of_a_node_sets_clocks_and_meters_by_exec(job: Job, tmp_path: Path) -> None:
    launcher = load_launcher("megatron", checkout=HERE, command="srun {start}", folder=tmp_path)
    plain = script_of(launcher, job, PLAN)
    metered = script_of(launcher, replace(job, slurm=Slurm()), PLAN)
    assert "jointopt exec" not in plain
    assert "-m jointopt exec --plan FOLDER/plan.json --gpus-per-node=1 " in metered
    assert "-- env CUDA_DEVICE_MAX_CONNECTIONS=1 OMP_NUM_THREADS=1 " in metered


def test_what_would_run_is_shown_with_its_files(job: Job, tmp_path: Path) -> None:
    one = replace(job, cluster=replace(job.cluster, nodes=1, gpus_per_node=2))
    text = script_of(load_launcher("nanotron", checkout=checkout("nanotron", tmp_path)), one, PLAN)
    assert text.startswith(f"cd {tmp_path}\ncat > nanotron.yaml <<'END'\ngeneral:\n")
    assert text.endswith(f"{tmp_path}/run_train.py --config-file {tmp_path}/nanotron.yaml\n")


def test_a_module_keeps_its_name_and_a_linked_script_is_resolved_for_other_nodes_alone(
    job: Job, tmp_path: Path
) -> None:
    real, link = tmp_path / "real.py", tmp_path / "link.py"
    real.touch()
    link.symlink_to(real)
    plan = PLAN | {"zero_stage": 2}
    module, script = FrameworkProgram("torchtitan"), FrameworkProgram("torchtitan", script=link)
    for alone in (False, True):
        assert " -m torchtitan.train " in " ".join(module.words(job, plan, tmp_path, alone))
    assert {str(real), str(link)}.intersection(script.words(job, plan, tmp_path)) == {str(real)}
    assert {str(real), str(link)}.intersection(script.words(job, plan, tmp_path, alone=True)) == {str(link)}


@pytest.mark.parametrize("runtime", ["pyxis", "apptainer"])
def test_slurm_starts_a_framework_in_the_container(runtime: str, job: Job, tmp_path: Path) -> None:
    slurm = Slurm(container="image.sqsh", container_runtime=runtime, mounts=("/data",), python="/venv/bin/python")
    launcher = load_launcher("megatron", checkout=HERE, by="slurm", folder=tmp_path)
    line = next(one for one in script_of(launcher, replace(job, slurm=slurm), PLAN).splitlines() if " exec " in one)
    outside, inside = line.split(" -- ", 1)
    assert "/venv/bin/python -m jointopt exec" in outside
    start = "srun --overlap --nodes=1" if runtime == "pyxis" else "apptainer exec --nv --bind"
    assert inside.startswith(start)
    assert f"{tmp_path}:{tmp_path}" in inside
    assert ",/data" in inside
    assert " env CUDA_DEVICE_MAX_CONNECTIONS=1 OMP_NUM_THREADS=1 python -m torch.distributed.run " in inside


def test_the_trainer_of_the_project_stays_outside_of_containers(job: Job, tmp_path: Path) -> None:
    inside = replace(job, slurm=Slurm(container="image.sqsh"))
    assert "image.sqsh" not in SlurmLauncher(tmp_path).script(inside, PLAN)


@pytest.mark.parametrize("name", ["megatron", "torchtitan"])
def test_slurm_runs_a_framework_on_two_nodes(name: str, job: Job, torch: Any, cluster: Cluster, tmp_path: Path) -> None:
    place = HERE if name == "megatron" else checkout(name, tmp_path)
    plans = [PLAN | {"zero_stage": 2 if name == "torchtitan" else 0}]
    plans += [plans[0] | {"zero_stage": 1}] if name == "torchtitan" else []
    launcher = load_launcher(name, checkout=place, by="slurm", folder=tmp_path / "runs", poll_s=0.5, **FEW)
    rows = [run.row for run in run_all(launcher, job, plans, lambda place, text: None)]
    assert sorted(row["status"] for row in rows) == ["failed", "ok"][-len(plans) :], rows
    ran = next(row for row in rows if row["status"] == "ok")
    assert "Slurm job" in ran["notes"]
    assert ran["iteration_time_s"] == pytest.approx(0.8085 if name == "megatron" else 0.05, rel=0.01)


def test_on_slurm_each_stage_has_its_clock_once_its_ranks_are_there(
    driver: Any, job: Job, torch: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", driver.environment["LD_LIBRARY_PATH"])
    one = replace(job, cluster=replace(job.cluster, nodes=1, gpus_per_node=2), slurm=Slurm())
    place = checkout("torchtitan", tmp_path)
    launcher = load_launcher("torchtitan", checkout=place, by="slurm", folder=tmp_path / "runs", poll_s=0.5,
                             iterations=80)  # fmt: skip
    row = launcher.run(one, PLAN | {"dp": 1, "pp": 2, "zero_stage": 2, "stage_clock_mhz": [1410.0, 1200.0]})
    assert (row["status"], row["energy_j"] > 0) == ("ok", True), row["notes"]
    assert [call for call in driver.calls() if call.startswith("lock")] == ["lock 0 1410", "lock 1 1200"]
    assert driver.held() == {}


def test_a_container_on_slurm_is_entered_on_each_node(job: Job, torch: Any, cluster: Cluster, tmp_path: Path) -> None:
    shim = tmp_path / "bin" / "apptainer"  # notes what it is given, and goes on as the container would
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/bash\necho "$7 in $6" >> {shlex.quote(str(tmp_path))}/entered\nshift 7\nexec "$@"\n')
    shim.chmod(0o755)
    (shim.parent / "python").symlink_to(sys.executable)
    setup = (f"export PATH={shim.parent}:$PATH PYTHONPATH={os.pathsep.join(sys.path)}",)
    slurm = replace(job.slurm, container="image.sif", container_runtime="apptainer", setup=setup)
    place = checkout("nanotron", tmp_path)
    launcher = load_launcher("nanotron", checkout=place, by="slurm", folder=tmp_path / "runs", poll_s=0.5, **FEW)
    row = launcher.run(replace(job, slurm=slurm), PLAN)
    assert row["status"] == "ok", row["notes"]
    assert (tmp_path / "entered").read_text() == f"image.sif in {Path.cwd()}\n" * 2


def test_the_words_of_a_run_lie_beside_its_plan(job: Job, torch: Any, tmp_path: Path) -> None:
    place = checkout("deepspeed", tmp_path)
    given = {"script": place / "train.py", "arguments": "--steps 5", "command": COMMAND, "folder": tmp_path / "runs"}
    row = load_launcher("deepspeed", **given, **FEW).run(job, PLAN)
    assert row["status"] == "ok", row["notes"]
    folder = next((tmp_path / "runs").iterdir())
    assert json.loads((folder / "ds_config.json").read_text())["train_batch_size"] == 4
    assert json.loads((folder / "plan.json").read_text())["dp"] == 2
