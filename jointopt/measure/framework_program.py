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
from jointopt.frameworks.logs import (
    NAN,
    SKIPPED,
    Batch,
    RunLog,
    fabric_of,
    read_run,
    result_columns,
    version_of,
    window_of,
)
from jointopt.frameworks.megatron import ENVIRONMENT
from jointopt.frameworks.targets import TARGETS, version_in
from jointopt.jobs.job import Job
from jointopt.jobs.plans.placement import DEFAULT_ORDER
from jointopt.measure.process import Program, exclude_columns, local_torchrun, node_torchrun
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
    in_container = True

    def __init__(
        self, name: str, checkout: Path | None = None, script: Path | None = None, arguments: str = "",
        version: str = "", iterations: int = 10, warmup_iterations: int = 5,
    ) -> None:  # fmt: skip
        self.name, self.about = name, FRAMEWORKS[name]
        given = {"script": script, "arguments": arguments}
        if self.about.needs and not given[self.about.needs]:
            raise UsageError(f"The program {name} needs --{self.about.needs}: {self.about.because}.")
        self.cwd = None if checkout is None else Path(checkout).absolute()
        if script is None and not self.about.script:
            self._start = ["-m", "torchtitan.train"]
        elif script is None and self.cwd is None:
            raise UsageError(f"The program {name} needs --checkout: a checkout of {self.about.title}.")
        else:
            path = Path(script).absolute() if script is not None else (self.cwd or Path()) / self.about.script
            if not path.is_file() and script is not None:
                raise LauncherError(f"--script {script} is not a file.")
            if not path.is_file():
                raise LauncherError(
                    f"{self.cwd} holds no {self.about.script}; expected a checkout of {self.about.title}, given as "
                    "--checkout."
                )
            self._start = [str(path)]
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
        self.version = version or (version_in(self.cwd) if name == "megatron" and self.cwd else "")

    def check(self, job: Job) -> None:
        """LauncherError where the framework has no words for the job, whatever the plan."""
        refusal: ExportError | None = None
        plain: dict[str, Any] = dict.fromkeys(("tp", "pp", "cp", "ep", "vpp", "micro_batch_size"), 1)
        plain |= {"dp": job.cluster.num_gpus, "sequence_parallel": False, "recompute": "none"}
        for stage in (3, 2, 1, 0):
            try:
                self.export(job, plain | {"zero_stage": stage})
                return
            except ExportError as error:
                refusal = error
        raise refusal or LauncherError(f"{self.about.title} has no words for job {job.name!r}.")

    def narrow_search(self, job: Job) -> Job:
        """The job without what the framework does not have."""
        return exclude_columns(job, self.about.title, self.about.lacks)

    def words(self, job: Job, plan: Mapping[str, Any], folder: Path, alone: bool = False) -> list[str]:
        """The words that start the framework under ``plan``, with files of the export in ``folder``."""
        made = self.export(job, plan)
        places = {name: str(folder / name) for name in made.files}
        variables = dict(made.environment)
        if any(name.endswith(".py") for name in places):
            variables["PYTHONPATH"] = f"{folder}:{self.cwd}" if self.cwd else str(folder)
        unset = [word for name in ENVIRONMENT if self.name == "megatron" and name not in variables
                 for word in ("-u", name)]  # fmt: skip
        here = ["-C", str(self.cwd)] if self.cwd and self._start[0] == "-m" else []
        if alone:
            start = [*local_torchrun(job.cluster.gpus_per_node, folder), *self._start]
        else:
            start = node_torchrun(job, job.slurm.container is not None)
            start += [str(Path(word).resolve()) if word != "-m" and "/" in word else word for word in self._start]
        words = [places.get(word, word) for word in made.words]
        settings = (f"{name}={value}" for name, value in variables.items())
        return ["env", *here, *unset, *settings, *start, *self._arguments, *words]

    def prepare(self, job: Job, plan: Mapping[str, Any], folder: Path, least_s: float = 0.0) -> None:
        """Write the files of the export."""
        for name, text in self.export(job, plan).files.items():
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
        row = result_columns(run, job.cluster.num_gpus, metered=window is not None)
        release = job.training.framework_release or version_of(log, self.name) or self.version
        row["framework_release"] = release or math.nan
        row["fabric"] = fabric_of(log) or math.nan
        if window is None or not is_blank(row["energy_j"]):
            return row
        return row | dict(zip(WINDOW, ([window.start_s, window.end_s], window.iterations), strict=True))

    def progress(self, job: Job, log: str) -> tuple[Sequence[float], Mapping[str, Any]]:
        """Measured iterations in the log of a run that goes on, and the memory of its fullest rank."""
        try:
            run = self._read(job, log)
        except ValueError:  # no iteration yet
            return (), {}
        return run.iteration_s, {"peak_memory_gib": run.peak_memory_gib}

    def _read(self, job: Job, log: str) -> RunLog:
        batch = Batch(job.training.global_batch_size, job.training.seq_length, job.cluster.num_gpus)
        return read_run(log, self.warmup_iterations, batch)

    def export(self, job: Job, plan: Mapping[str, Any]) -> Export:
        """The words and files of a plan, with as many iterations as are run."""
        intent = intent_of(job, plan, iterations=self.warmup_iterations + self.iterations)
        return TARGETS[self.name].export(intent, self.version)
