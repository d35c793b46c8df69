"""The script that Slurm receives, and what Slurm reports of a job, read back."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.facts import FailureKind
from jointopt.frameworks.slurm import shell_words
from jointopt.jobs.job import Job
from jointopt.jobs.slurm import Slurm
from jointopt.measure import slurm_commands
from jointopt.measure.slurm import JobEnd, SlurmLauncher, why_failed
from jointopt.measure.slurm_commands import ENDED, parse_job

PLAN: dict[str, Any] = {
    "dp": 8, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1, "sequence_parallel": False,
    "recompute": "none", "zero_stage": 1, "stage_clock_mhz": "1410",
}  # fmt: skip
RUNNING = (
    "JobId=7 JobName=jointopt-0123456789ab UserId=root(0) Account=(null) JobState=RUNNING Reason=None "
    "Dependency=(null) Requeue=1 Restarts=1 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:04 TimeLimit=00:32:00 "
    "SubmitTime=2026-03-01T13:19:33 StartTime=2026-03-01T13:20:34 NodeList=n[0,2] BatchHost=n0 Comment=JobState=FAILED"
)


def directives(job: Job, **slurm: Any) -> list[str]:
    text = SlurmLauncher(Path("/shared/50% runs"), limit_s=601).script(replace(job, slurm=Slurm(**slurm)), PLAN)
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_nodes_and_gpus_are_those_of_the_cluster(job: Job) -> None:
    assert {"--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=4", "--exclusive", "--requeue"} <= set(directives(job))


def test_what_the_job_file_states_is_requested(job: Job) -> None:
    options = {"account": "llm", "partition": "gpu", "qos": "high", "constraint": "[a|b]", "reservation": "r1"}
    lines = directives(job, **options, sbatch=("--mail-type=END",), exclusive=False, requeue=False)
    assert {f"--{key}={value}" for key, value in options.items()} | {"--mail-type=END", "--no-requeue"} <= set(lines)
    assert "--exclusive" not in lines


@pytest.mark.parametrize(
    ("request_", "line"), [("--gres=gpu:h100:{gpus}", "--gres=gpu:h100:4"), ("none", None)], ids=["gres", "none"]
)
def test_gpus_are_requested_in_the_words_of_the_site(job: Job, request_: str, line: str | None) -> None:
    gpus = [word for word in directives(job, gpu_request=request_) if "gpu" in word and "output" not in word]
    assert gpus == ([line] if line else [])


def test_the_job_has_time_to_set_up_beyond_the_limit_of_the_run(job: Job) -> None:
    assert "--time=13" in directives(job)
    assert "--time=5" in directives(job, time_limit_min=5)


def test_a_per_cent_sign_in_a_path_is_no_pattern(job: Job) -> None:
    output = next(line for line in directives(job) if line.startswith("--output"))
    assert output.startswith('--output="/shared/50%% runs/jointopt-')


def test_the_name_is_that_of_the_run_and_of_nothing_else(job: Job) -> None:
    def name(job: Job, plan: dict[str, Any]) -> str:
        return SlurmLauncher(Path("/shared")).script(job, plan).splitlines()[1]

    same = PLAN | {"dp": 8.0, "stage_clock_mhz": [1410.0], "power_limit_w": float("nan"), "group": "x"}
    assert name(job, PLAN) == name(replace(job, slurm=Slurm(account="other")), same)
    assert name(job, PLAN) != name(job, PLAN | {"dp": 4})
    assert name(job, PLAN) != name(replace(job, training=replace(job.training, seq_length=4096)), PLAN)


def test_setup_lines_come_before_the_run(job: Job) -> None:
    prepared = replace(job, slurm=Slurm(setup=("module load {x}", "source venv")))
    text = SlurmLauncher(Path("/shared")).script(prepared, PLAN)
    assert text.index("module load {x}\nsource venv") < text.index("srun")


@settings(deadline=None, max_examples=30)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8), max_size=3))
def test_words_reach_the_program_as_they_are(words: list[str]) -> None:
    line = shell_words([*words, "$(id)", "`id`", "$HOME", "at-${NODE_RANK}.json"])
    ran = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], env={"NODE_RANK": "3 4"}, capture_output=True)
    assert ran.stdout.decode().split("\0")[:-1] == [*words, "$(id)", "`id`", "$HOME", "at-3 4.json"]


def test_what_slurm_reports_of_a_job_is_read() -> None:
    job = parse_job(RUNNING)
    assert (job.number, job.name, job.state, job.restarts) == (7, "jointopt-0123456789ab", "RUNNING", 1)
    assert (job.nodes, job.queued_s, job.stuck) == ("n[0,2]", 61.0, False)


@pytest.mark.parametrize(
    ("state", "ended"),
    [("PENDING", False), ("COMPLETING", False), ("SUSPENDED", False), ("CANCELLED", True), ("OUT_OF_MEMORY", True)],
)
def test_jobs_that_come_back_by_themselves_are_not_over(state: str, ended: bool) -> None:
    assert (parse_job(RUNNING.replace("RUNNING", state)).state in ENDED) == ended


@pytest.mark.parametrize(
    ("reason", "stuck"),
    [("Resources", False), ("Priority", False), ("BadConstraints", True), ("AssocMaxNodePerJobLimit", True)],
)
def test_a_job_that_no_waiting_starts_is_distinguished_from_a_queued_one(reason: str, stuck: bool) -> None:
    line = RUNNING.replace("RUNNING", "PENDING").replace("Reason=None", f"Reason={reason}")
    assert parse_job(line).stuck == stuck


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "runs on n[0,2] since 2026-03-01 13:20:34, requeued 1 times"),
        ({"RUNNING": "PENDING"}, ""),  # Slurm has not looked at it yet
        ({"RUNNING": "PENDING", "Reason=None": "Reason=Priority", "Restarts=1": "Restarts=0"},
         "waits (Priority) since 2026-03-01 13:19:33"),
        ({"RUNNING": "COMPLETING"}, ""),
        ({"RUNNING": "SUSPENDED"}, "is suspended, requeued 1 times"),
    ],
    ids=["runs", "unseen", "waits", "ends", "another state"],
)  # fmt: skip
def test_a_state_is_reported_with_its_reason_and_since_when(changes: dict[str, str], words: str) -> None:
    line = RUNNING
    for old, new in changes.items():
        line = line.replace(old, new, 1)
    assert parse_job(line).progress == words


@pytest.mark.parametrize(("text", "seconds"), [("00:00:04", 4.0), ("1-02:03:04", 93784.0), ("INVALID", 0.0)])
def test_how_long_a_job_ran_is_read(text: str, seconds: float) -> None:
    assert parse_job(RUNNING.replace("RunTime=00:00:04", f"RunTime={text}")).ran_s == seconds


def test_a_signal_counts_as_an_exit_code_and_unknown_times_as_none() -> None:
    job = parse_job(
        RUNNING.replace("ExitCode=0:0", "ExitCode=0:9").replace("StartTime=2026-03-01T13:20:34", "StartTime=Unknown")
    )
    assert job.exit_code == 137
    assert job.queued_s != job.queued_s


@pytest.mark.parametrize("state", ["REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"])
def test_a_job_that_somebody_must_release_is_not_waited_for(state: str) -> None:
    assert parse_job(RUNNING.replace("RUNNING", state)).stuck


@pytest.mark.parametrize(
    ("due", "status"),
    [(" DUE TO TIME LIMIT", "timeout"), (" DUE TO NODE FAILURE, SEE SLURMCTLD LOG", "failed"), ("", "failed")],
)
def test_a_job_that_slurm_forgot_and_that_wrote_no_end_is_judged_by_its_log(
    tmp_path: Path, due: str, status: str
) -> None:
    log = f"step 3\nslurmstepd: error: *** JOB 7 ON n0 CANCELLED AT 2026-03-01T13:20:34{due} ***\n"
    assert why_failed(JobEnd(None, None), log, tmp_path, 60.0).status == status
    assert "no longer knows the job" in why_failed(JobEnd(None, None), "step 3", tmp_path, 60.0).detail


@pytest.mark.parametrize(
    ("state", "kind"),
    [("TIMEOUT", FailureKind.TIMEOUT), ("OUT_OF_MEMORY", FailureKind.OOM), ("NODE_FAIL", FailureKind.CLUSTER)],
)
def test_the_end_that_slurm_states_is_the_failure(tmp_path: Path, state: str, kind: FailureKind) -> None:
    end = JobEnd(parse_job(RUNNING.replace("RUNNING", state)), None)
    assert why_failed(end, "step 3", tmp_path, 60.0).kind is kind


def test_only_the_same_run_is_picked_up_again_after_a_kill(job: Job, tmp_path: Path) -> None:
    mended = tmp_path / "a.py"
    mended.write_text("1")

    def name(argument: str = "111", job: Job = job, **options: Any) -> str:
        words = ["python", str(mended), argument, "{result}"]
        return SlurmLauncher(tmp_path, **({"command": words} | options)).job_name(job, PLAN)

    assert name() == name(limit_s=7.0) == name(job=replace(job, slurm=Slurm(account="other", time_limit_min=9)))
    assert len({name(), name("222"), name(default_clocks=True), name(job=replace(job, slurm=Slurm(setup=("a",))))}) == 4
    before = name()
    mended.write_text("2")
    assert name() != before


def test_other_iterations_or_another_checkout_are_another_run(job: Job, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pretrain_gpt.py").touch()
    options: list[dict[str, Any]] = [{}, {"iterations": 20}, {"warmup_iterations": 1}]
    options += [{"checkout": tmp_path / folder} for folder in ("a", "b")]
    names = [SlurmLauncher(tmp_path, **some).job_name(job, PLAN) for some in options]
    assert len(set(names)) == 5


def test_of_several_jobs_of_a_name_the_last_is_the_one(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = subprocess.CompletedProcess([], 0, "12\n15\n", "")
    monkeypatch.setattr(slurm_commands, "_call", lambda _: answer)
    assert slurm_commands.job_of_name("jointopt-0123") == 15
