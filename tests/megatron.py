"""Megatron-LM as tests start it: the words of a plan, and a program that is its script in a checkout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jointopt.frameworks.intent import intent_of
from jointopt.frameworks.megatron import megatron_words
from jointopt.frameworks.options import NEWEST
from jointopt.jobs.job import Job
from jointopt.measure.framework_program import FrameworkProgram


def megatron_arguments(job: Job, plan: Mapping[str, Any], iterations: int, version: str = NEWEST) -> list[str]:
    """Arguments of ``pretrain_gpt.py`` for one plan."""
    return list(megatron_words(intent_of(job, plan, iterations=iterations), version)[0])


def megatron_program(checkout: Path, iterations: int = 10, warmup_iterations: int = 5) -> FrameworkProgram:
    """Program of the ``pretrain_gpt.py`` in a checkout."""
    return FrameworkProgram("megatron", checkout, iterations=iterations, warmup_iterations=warmup_iterations)
