"""Megatron-LM, on this machine or on the nodes of a batch system: the command line of a plan, and the log read."""

from __future__ import annotations

import math
import re
import shlex
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jointopt.core.errors import LauncherError
from jointopt.core.units import GIB
from jointopt.measure.exports.intent import intent_of
from jointopt.measure.exports.megatron import (
    ENVIRONMENT,
    SCRIPT,
    checkout_version,
    megatron_environment,
    megatron_words,
)
from jointopt.measure.exports.options import NEWEST
from jointopt.measure.launchers.local import LocalLauncher
from jointopt.measure.launchers.program import Program, local_torchrun, node_torchrun
from jointopt.measure.launchers.rows import result_row
from jointopt.spec.job import Job

# --- the command line -----------------------------------------------------------------------------------------------


def megatron_arguments(job: Job, plan: Mapping[str, Any], iterations: int, version: str = NEWEST) -> list[str]:
    """Arguments of ``pretrain_gpt.py`` for one plan: mock data, no checkpoint, every iteration logged with its energy.

    LauncherError for what that version of Megatron Core (0.12 and later) has no words for.
    """
    return list(megatron_words(intent_of(job, plan, iterations=iterations), version)[0])


# --- the log --------------------------------------------------------------------------------------------------------

_ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+\s*\|([^\n]*)")
_FIELD = re.compile(r"\s*([a-z][^|:]*?)\s*:\s*([-+]?(?:nan|inf|\d+\.?\d*(?:[eE][-+]?\d+)?))\s*\|")
_MEMORY = re.compile(r"max reserved:\s*([\d.]+)")
_TIME = "elapsed time per iteration (ms)"
_ENERGY, _POWER = "energy per GPU (J/iter/GPU)", "power per GPU (W/GPU)"


@dataclass(frozen=True)
class MegatronLog:
    """Figures of the iterations after the first ``dropped``; NaN where the log has none."""

    iteration_s: tuple[float, ...]
    energy_per_gpu_j: float
    power_per_gpu_w: float
    peak_memory_gib: float
    last_loss: float
    skipped: int  # iterations whose gradients were not finite


def read_log(text: str, dropped: int) -> MegatronLog:
    """The log of one run, of any rank or all mixed, without lines that are cut; ValueError without iterations."""
    rows: dict[int, dict[str, float]] = {}
    for number, rest in _ITERATION.findall(text):
        fields = {name: float(value) for name, value in _FIELD.findall(rest)}
        if fields.get(_TIME, math.nan) > 0:
            rows[int(number)] = fields
    kept = [rows[number] for number in sorted(rows)][dropped:]
    if not kept:
        raise ValueError(f"{len(rows)} iterations in the log, of which {dropped} only warm up")
    return MegatronLog(
        iteration_s=tuple(row[_TIME] / 1e3 for row in kept),
        energy_per_gpu_j=_median(kept, _ENERGY),
        power_per_gpu_w=_median(kept, _POWER),
        peak_memory_gib=max((float(mb) for mb in _MEMORY.findall(text)), default=math.nan) * 2**20 / GIB,
        last_loss=kept[-1].get("lm loss", math.nan),
        skipped=int(kept[-1].get("number of skipped iterations", 0)),
    )


def _median(rows: list[dict[str, float]], name: str) -> float:
    values = [row[name] for row in rows if math.isfinite(row.get(name, math.nan))]
    return statistics.median(values) if values else math.nan


def measured(log: MegatronLog, num_gpus: int) -> dict[str, Any]:
    """The result columns of a log; energy only where Megatron-LM had a meter (0 J means that it had none)."""
    seconds = statistics.median(log.iteration_s)
    spread = (max(log.iteration_s) - min(log.iteration_s)) / seconds
    notes = f"{len(log.iteration_s)} iterations, spread {spread:.1%}, loss {log.last_loss:.5g}"
    if log.skipped:
        notes += f", {log.skipped} skipped for gradients that were not finite"
    energy = {"energy_j": log.energy_per_gpu_j * num_gpus, "avg_power_w": log.power_per_gpu_w}
    if not log.energy_per_gpu_j > 0:
        energy, notes = {}, f"{notes}, energy not measured"
    return result_row(notes, iteration_time_s=seconds, peak_memory_gib=log.peak_memory_gib, **energy)


# --- running it -----------------------------------------------------------------------------------------------------


class MegatronProgram(Program):
    """``pretrain_gpt.py`` of the ``checkout`` of Megatron-LM, which every node sees.

    ``iterations`` are measured after ``warmup_iterations``. LauncherError where the folder holds no such script.
    """

    name = "megatron"
    cwd: Path
    missing = "the log holds no measured iteration"

    def __init__(self, checkout: Path, iterations: int = 10, warmup_iterations: int = 5) -> None:
        self.cwd = Path(checkout).absolute()
        if not (self.cwd / SCRIPT).is_file():
            raise LauncherError(
                f"{checkout} holds no {SCRIPT}; expected a checkout of Megatron-LM, given as --checkout."
            )
        self.iterations, self.warmup_iterations = iterations, warmup_iterations
        self.version = checkout_version(self.cwd)

    def words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        """The words that start Megatron-LM on every node."""
        script = str((self.cwd / SCRIPT).resolve())
        return self._started(node_torchrun(job), script, job, plan)

    def local_words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        """The words that start Megatron-LM on this machine alone."""
        return self._started(local_torchrun(job.cluster.gpus_per_node), str(self.cwd / SCRIPT), job, plan)

    def results(self, job: Job, folder: Path, log: str) -> Mapping[str, Any] | None:
        """The row of a run that has ended, from its log."""
        try:
            return measured(read_log(log, self.warmup_iterations), job.cluster.num_gpus)
        except ValueError:
            return None

    def _started(self, launcher: list[str], script: str, job: Job, plan: Mapping[str, Any]) -> list[str]:
        intent = intent_of(job, plan, iterations=self.warmup_iterations + self.iterations)
        wanted = megatron_environment(intent)
        unset = [word for name in ENVIRONMENT if name not in wanted for word in ("-u", name)]
        variables = [*unset, *(f"{name}={value}" for name, value in wanted.items())]
        return ["env", *variables, *launcher, script, *megatron_words(intent, self.version)[0]]


class MegatronLauncher(LocalLauncher):
    """Runs plans with the Megatron-LM in ``checkout`` on the GPUs of this machine."""

    name = "megatron"
    program: MegatronProgram

    def __init__(
        self, checkout: Path, limit_s: float = 1800.0, iterations: int = 10, warmup_iterations: int = 5,
        logs: Path | None = None, default_clocks: bool = False,
    ) -> None:  # fmt: skip
        program = MegatronProgram(checkout, iterations, warmup_iterations)
        super().__init__(program, limit_s, logs, default_clocks)

    def script(self, job: Job, plan: Mapping[str, Any]) -> str:
        """The lines of a shell that do what `run` does but for the GPUs' clocks."""
        self.candidates(job)
        words = shlex.join(self.program.local_words(job, plan, self.program.cwd))
        return f"cd {shlex.quote(str(self.program.cwd))}\n{words}\n"
