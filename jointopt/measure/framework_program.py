"""Training frameworks as programs: started with the words and files of `jointopt export`, measured by their logs."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jointopt.core.errors import ExportError, LauncherError, UsageError
from jointopt.core.facts import Failure, FailureKind
from jointopt.frameworks.intent import Export, intent_of
from jointopt.frameworks.logs import NAN, SKIPPED, Batch, RunLog, fabric_of, measured, read_run, version_of, window_of
from jointopt.frameworks.megatron import ENVIRONMENT
from jointopt.frameworks.targets import TARGETS, version_in
from jointopt.jobs.job import Job
from jointopt.jobs.plans.placement import DEFAULT_ORDER
from jointopt.measure.process import Program, local_torchrun, node_torchrun, without
from jointopt.runs.rows import WINDOW, failed_row, is_blank


@dataclass(frozen=True)
class Framework:
    """The way to start a framework: its script in a checkout, and the layout columns that it does not have."""

    title: str
    script: str = ""  # blank: a module that is installed, or a script of the user's
    lacks: tuple[str, ...] = ("schedule",)
    needs: str = ""  # an option without which nothing can be started, beside a checkout for its script
    because: str = ""  # the value that the option needs, in words


_CHOICES = ("recompute_modules", "recompute_num_layers", "offload", "dp_replicate")
FRAMEWORKS = {
    "megatron": Framework("Megatron-LM", "pretrain_gpt.py"),
    "megatron-bridge": Framework(
        "Megatron-Bridge", "scripts/training/run_recipe.py", needs="arguments",
        because="the recipe that the plan overrides, such as '--recipe llama3_8b_pretrain_config --dataset "
        "llm-pretrain-mock'",
    ),
    "torchtitan": Framework("torchtitan", lacks=("offload", "overlap", "recompute_modules", "recompute_num_layers")),
    "nanotron": Framework("nanotron", "run_train.py", ("schedule", "vpp", "stage_layers", *_CHOICES)),
    "deepspeed": Framework(
        "DeepSpeed", lacks=("schedule", "vpp", "cp", "recompute_modules"), needs="script",
        because="your training script, which is given --deepspeed_config",
    ),
}  # fmt: skip


class FrameworkProgram(Program):
    """A training framework of `FRAMEWORKS`, which logs every iteration; its log is what a run leaves.

    ``checkout`` holds its script and is seen by all nodes, ``script`` is another one to start, ``arguments`` are words
    before those of the plan, ``version`` that of the framework. ``iterations`` are measured after
    ``warmup_iterations``. UsageError where an option that it needs is missing, LauncherError where a file is.
    """

    missing = "the log holds no measured iteration"
    contained = True

    def __init__(
        self, name: str, checkout: Path | None = None, script: Path | None = None, arguments: str = "",
        version: str = "", iterations: int = 10, warmup_iterations: int = 5,
    ) -> None:  # fmt: skip
        self.name, self.about = name, FRAMEWORKS[name]
        given = {"script": script, "arguments": arguments}
        if self.about.needs and not given[self.about.needs]:
            raise UsageError(f"The program {name} needs --{self.about.needs}: {self.about.because}.")
        self.cwd = None if checkout is None else Path(checkout).absolute()
        self._start = self._program(script)
        try:
            self._arguments = shlex.split(arguments)
        except ValueError as error:
            raise UsageError(f"--arguments cannot be split into words: {error}; got {arguments!r:.200}.") from error
        if any("use_tp_pp_dp_mapping" in word.replace("-", "_") for word in self._arguments):
            raise UsageError(
                f"--arguments: clocks of stages are set for ranks in the order {DEFAULT_ORDER}; leave "
                "--use-tp-pp-dp-mapping out."
            )
        self.iterations, self.warmup_iterations = iterations, warmup_iterations
        found = version_in(self.cwd) if name == "megatron" and self.cwd else ""
        self.version = version or found

    def check(self, job: Job) -> None:
        """LauncherError where the framework has no words for the job, whatever the plan."""
        refusal: ExportError | None = None
        plain: dict[str, Any] = dict.fromkeys(("tp", "pp", "cp", "ep", "vpp", "micro_batch_size"), 1)
        plain |= {"dp": job.cluster.num_gpus, "sequence_parallel": False, "recompute": "none"}
        for stage in (3, 2, 1, 0):
            try:
                self._export(job, plain | {"zero_stage": stage})
            except ExportError as error:
                refusal = error
            else:
                return
        raise refusal or LauncherError(f"{self.about.title} has no words for job {job.name!r}.")

    def narrowed(self, job: Job) -> Job:
        """The job without what the framework does not have."""
        return without(job, self.about.title, self.about.lacks)

    def words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        """The words that start it on every node."""
        return self._started(node_torchrun(job, job.slurm.container is not None), job, plan, folder, resolved=True)

    def local_words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        """The words that start it on this machine alone."""
        return self._started(local_torchrun(job.cluster.gpus_per_node, folder), job, plan, folder)

    def prepare(self, job: Job, plan: Mapping[str, Any], folder: Path, least_s: float = 0.0) -> None:
        """Write the files of the export."""
        for name, text in self.files(job, plan).items():
            (folder / name).write_text(text, encoding="utf-8")

    def results(self, job: Job, folder: Path, log: str) -> Mapping[str, Any] | None:
        """The row of a run that has ended, from its log."""
        try:
            run = self._read(job, log)
        except ValueError as error:
            if "Traceback" in log or not re.search(f"{SKIPPED}|{NAN}", str(error)):
                return None  # the failure is more specific
            return failed_row(Failure(FailureKind.RESULT, f"no iteration counts: {error}"))
        window = None
        with suppress(ValueError):
            window = window_of(run)
        row = measured(run, job.cluster.num_gpus, metered=window is not None)
        version = version_of(log, self.name) or self.version
        row |= {"framework_version": version or math.nan, "fabric": fabric_of(log) or math.nan}
        if window is None or not is_blank(row["energy_j"]):
            return row
        return row | dict(zip(WINDOW, ([window.start_s, window.end_s], window.iterations), strict=True))

    def iteration_s(self, job: Job, log: str) -> Sequence[float]:
        """Seconds of the measured iterations in the log of a run that goes on."""
        try:
            return self._read(job, log).iteration_s
        except ValueError:  # none yet
            return ()

    def so_far(self, job: Job, log: str) -> Mapping[str, Any]:
        """The memory of the fullest rank in the log of a run that goes on."""
        with suppress(ValueError):  # no iteration yet
            return {"peak_memory_gib": self._read(job, log).peak_memory_gib}
        return {}

    def _read(self, job: Job, log: str) -> RunLog:
        batch = Batch(job.training.global_batch_size, job.training.seq_length, job.cluster.num_gpus)
        return read_run(log, self.warmup_iterations, batch)

    def files(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, str]:
        """Texts of the files that it reads, by their names."""
        return self._export(job, plan).files

    def _export(self, job: Job, plan: Mapping[str, Any]) -> Export:
        intent = intent_of(job, plan, iterations=self.warmup_iterations + self.iterations)
        return TARGETS[self.name].export(intent, self.version)

    def _program(self, script: Path | None) -> list[str]:
        """The words of torchrun that name the script or the module."""
        if script is None and not self.about.script:
            return ["-m", "torchtitan.train"]
        if script is None and self.cwd is None:
            raise UsageError(f"The program {self.name} needs --checkout: a checkout of {self.about.title}.")
        path = Path(script).absolute() if script is not None else (self.cwd or Path()) / self.about.script
        if path.is_file():
            return [str(path)]
        if script is not None:
            raise LauncherError(f"--script {script} is not a file.")
        raise LauncherError(
            f"{self.cwd} holds no {self.about.script}; expected a checkout of {self.about.title}, given as --checkout."
        )

    def _started(
        self, launcher: list[str], job: Job, plan: Mapping[str, Any], folder: Path, resolved: bool = False
    ) -> list[str]:
        made = self._export(job, plan)
        places = {name: str(folder / name) for name in made.files}
        variables = dict(made.environment)
        if any(name.endswith(".py") for name in places):
            variables["PYTHONPATH"] = f"{folder}:{self.cwd}" if self.cwd else str(folder)
        unset = [word for name in ENVIRONMENT if self.name == "megatron" and name not in variables
                 for word in ("-u", name)]  # fmt: skip
        here = ["-C", str(self.cwd)] if self.cwd and self._start[0] == "-m" else []
        start = [str(Path(word).resolve()) if resolved and word != "-m" and "/" in word else word
                 for word in self._start]  # fmt: skip
        words = [places.get(word, word) for word in made.words]
        return [
            "env", *here, *unset, *(f"{name}={value}" for name, value in variables.items()), *launcher, *start,
            *self._arguments, *words,
        ]  # fmt: skip
