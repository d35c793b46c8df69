"""Slurm's own commands, and nothing else of it: sbatch, squeue, scontrol, scancel; no accounting database."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jointopt.core.errors import LauncherError

# JOB STATE CODES of squeue(1): those in which a job is over, and does not come back by itself
ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
     "TIMEOUT")
)  # fmt: skip
# JOB REASON CODES of squeue(1): nothing that other jobs do ends this wait
_NEVER = re.compile(
    r"^(PartitionNodeLimit|PartitionTimeLimit|BadConstraints|InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed"
    r"|Assoc(Grp)?Max\w+PerJob\w*|QOSMax\w+PerJob\w*|JobHeld(User|Admin)|launch_failed_requeued_held|DependencyNeverSatisfied"
    r"|ReservationDeleted)\b"
)
# states that end only by another command
_HELD = ("REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_OF_THE_SITE = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")
_UNKNOWN = "Invalid job id"
_PATIENCE_S = 600.0  # a controller may restart, or fail over to another one
_ANSWER_S = 60.0


ReportText = Callable[[str], None]  # takes a sentence for the user


class NoAnswerError(LauncherError):
    """The controller is away: jobs go on, and their state is not known."""


class RefusedError(LauncherError):
    """Slurm does not take a job, of this kind or now."""


@dataclass(frozen=True)
class SlurmJob:
    """Slurm's record of one job; ``_s`` are seconds, NaN where unknown, ``submitted`` and ``started`` local times."""

    number: int
    name: str
    state: str
    reason: str
    restarts: int
    exit_code: int
    nodes: str
    queued_s: float
    ran_s: float = 0.0
    submitted: str = ""
    started: str = ""

    @property
    def progress(self) -> str:
        """Its state in words; blank while Slurm has not looked at it, and while it completes."""
        again = f", requeued {self.restarts} times" if self.restarts else ""
        if self.state == "PENDING":
            return "" if self.reason == "None" else f"waits ({self.reason}) since {self.submitted}{again}"
        if self.state == "RUNNING":
            return f"runs on {self.nodes} since {self.started}{again}"
        return "" if self.state == "COMPLETING" else f"is {self.state.lower()}{again}"

    @property
    def stuck(self) -> bool:
        """Whether it waits for something that does not happen by itself."""
        return self.state in _HELD or (self.state == "PENDING" and bool(_NEVER.match(self.reason)))


def submit(script: Path) -> int:
    """The number of the new job. Raises RefusedError, with Slurm's message, where it takes none of the kind, or now."""
    done = _call(["sbatch", "--parsable", str(script)])
    if done.returncode:
        raise RefusedError(f"Slurm does not take the job ({script}): {_message(done)}.")
    number = re.search(r"^(\d+)(?:;.*)?$", done.stdout, re.MULTILINE)  # a cluster's name may follow
    if number is None:
        raise RefusedError(f"sbatch answered {done.stdout.strip()!r:.200} for {script}; expected the number of a job.")
    return int(number[1])


def job_of_name(name: str, report: ReportText = lambda text: None) -> int | None:
    """The last of this user's jobs with that name that is not over, if there is one."""
    done = _answer(["squeue", "--me", "--noheader", f"--name={name}", "--format=%A"], report)
    return max((int(word) for word in done.stdout.split() if word.isdigit()), default=None)


def state(number: int, report: ReportText = lambda text: None) -> SlurmJob | None:
    """Slurm's record of the job; None once it has forgotten it (MinJobAge of slurm.conf after its end)."""
    done = _answer(["scontrol", "--oneliner", "show", "job", str(number)], report, _UNKNOWN)
    return parse_job(done.stdout) if done.returncode == 0 and "JobId=" in done.stdout else None


def cancel(numbers: Sequence[int]) -> str:
    """Cancel the jobs and return why Slurm does not, blank where it does. One that is over already is no error."""
    if not numbers:
        return ""
    done = _call(["scancel", *map(str, numbers)])
    return "" if done.returncode == 0 or _UNKNOWN in done.stderr else _message(done)


def parse_job(line: str) -> SlurmJob:
    """One line of ``scontrol --oneliner show job``."""
    # of a name the first field counts: what a user wrote, such as a comment, comes later
    known = dict(reversed(re.findall(r"(?:^|\s)(\w+)=(\S*)", line)))
    get = {name: text for name, text in known.items() if text != "(null)"}.get
    exit_code, _, signal = get("ExitCode", "0:0").partition(":")
    submitted, started = get("SubmitTime", ""), get("StartTime", "")
    queued_s = float("nan")
    with suppress(ValueError):  # Unknown, N/A
        queued_s = (datetime.fromisoformat(started) - datetime.fromisoformat(submitted)).total_seconds()
    ran = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", get("RunTime", ""))  # [days-]hours:minutes:seconds
    days, hours, minutes, seconds = (int(part or 0) for part in ran.groups()) if ran else (0, 0, 0, 0)
    return SlurmJob(
        number=int(get("JobId", "0")), name=get("JobName", ""), state=get("JobState", "UNKNOWN"),
        reason=get("Reason", "None"), restarts=int(get("Restarts", "0")),
        exit_code=int(exit_code) or (128 + int(signal or 0) if signal not in ("", "0") else 0),
        nodes=get("NodeList", ""), queued_s=queued_s, ran_s=((24.0 * days + hours) * 60 + minutes) * 60 + seconds,
        submitted=submitted.replace("T", " "), started=started.replace("T", " "),
    )  # fmt: skip


def _answer(words: Sequence[str], report: ReportText, refusal: str = "") -> subprocess.CompletedProcess[str]:
    """The answer to a query, repeated, after a ``report``, while there is none; NoAnswerError after ten minutes.

    A failed command whose message holds ``refusal`` is an answer.
    """
    until, wait_s, reported = time.monotonic() + _PATIENCE_S, 1.0, False
    while True:
        done = _call(words)
        if done.returncode == 0 or (refusal and refusal in done.stderr):
            return done
        if time.monotonic() > until:
            raise NoAnswerError(
                f"Slurm has not answered {words[0]} for {_PATIENCE_S:.0f} s: {_message(done)}; its jobs go on, and the "
                "same command picks them up."
            )
        if not reported:
            report(f"Slurm does not answer ({_message(done)}); waiting up to {_PATIENCE_S / 60:.0f} min")
            reported = True
        time.sleep(wait_s)
        wait_s = min(wait_s * 2, 30.0)


def _call(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs one command in a session of its own: Ctrl-C is for the tool, not for a submission half done.

    Its environment lacks variables that filter or format answers, and inside a job those of its size: sbatch would hand
    them on, and srun of the new job would heed them.
    """
    misleading = ("SQUEUE_", "SLURM_TIME_FORMAT", *(["SLURM_"] if "SLURM_JOB_ID" in os.environ else []))
    kept = (name for name in os.environ if name in _OF_THE_SITE or not name.startswith(misleading))
    try:
        return subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=_ANSWER_S, start_new_session=True,
            stdin=subprocess.DEVNULL, env={name: os.environ[name] for name in kept},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"no answer within {_ANSWER_S:.0f} s")
    except OSError as error:  # a machine without room for another process, a module that was unloaded
        return subprocess.CompletedProcess(words, 1, "", f"{words[0]}: {error.strerror}")


def _message(done: subprocess.CompletedProcess[str]) -> str:
    """What a failed command said, in one line of at most 400 characters."""
    stated = (line for line in done.stderr.splitlines() if line.strip())
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in stated]
    return "; ".join(lines).rstrip(".")[:400] or f"exit code {done.returncode}"
