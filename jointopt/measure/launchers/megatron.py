"""Megatron-LM on this machine: the command line of a plan, and the log read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jointopt.measure.exports.intent import intent_of
from jointopt.measure.exports.megatron import megatron_words
from jointopt.measure.exports.options import NEWEST
from jointopt.measure.launchers.framework import FrameworkProgram
from jointopt.measure.launchers.starters import FrameworkLauncher
from jointopt.spec.job import Job


def megatron_arguments(job: Job, plan: Mapping[str, Any], iterations: int, version: str = NEWEST) -> list[str]:
    """Arguments of ``pretrain_gpt.py`` for one plan: mock data, no checkpoint, every iteration logged with its energy.

    LauncherError for what that version of Megatron Core (0.12 and later) has no words for.
    """
    return list(megatron_words(intent_of(job, plan, iterations=iterations), version)[0])


class MegatronProgram(FrameworkProgram):
    """``pretrain_gpt.py`` of the ``checkout`` of Megatron-LM, which every node sees."""

    def __init__(self, checkout: Path, iterations: int = 10, warmup_iterations: int = 5) -> None:
        super().__init__("megatron", checkout, iterations=iterations, warmup_iterations=warmup_iterations)


class MegatronLauncher(FrameworkLauncher):
    """Runs plans with the Megatron-LM in ``checkout`` on the GPUs of this machine."""

    name = "megatron"

    def __init__(
        self, checkout: Path, limit_s: float = 1800.0, iterations: int = 10, warmup_iterations: int = 5,
        logs: Path | None = None, default_clocks: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(MegatronProgram(checkout, iterations, warmup_iterations), limit_s, logs, default_clocks)
