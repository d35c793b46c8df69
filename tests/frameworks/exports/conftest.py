"""Jobs and plans to export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from jointopt.frameworks.intent import Intent, intent_of
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import job_from_options

MakeIntent = Callable[..., Intent]


def job_named(model: str, gpus: int = 8, framework: str = "generic", dtype: str = "bf16") -> Job:
    """A job of a catalogue model on H100s, 512 sequences of 4,096 tokens."""
    return job_from_options(model, "h100-sxm5-80gb", gpus, 512, 4096, dtype=dtype, framework=framework)


def plan_of(job: Job, **columns: Any) -> dict[str, Any]:
    """A plan of the job with these columns; dp takes up the GPUs that are left."""
    plan = {
        "tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1, "sequence_parallel": False,
        "recompute": "none", "zero_stage": 0, "stage_clock_mhz": [1980.0] * columns.get("pp", 1), **columns,
    }  # fmt: skip
    return {"dp": job.cluster.num_gpus // (plan["tp"] * plan["pp"] * plan["cp"]), **plan}


@pytest.fixture(scope="session")
def intent() -> MakeIntent:
    """Makes the intent of a plan's columns: ``intent("llama-3-8b", tp=2)``; also purpose, gpus, framework, dtype."""

    def made(model: str, purpose: str = "benchmark", **columns: Any) -> Intent:
        job = job_named(model, *(columns.pop(k, d) for k, d in (("gpus", 8), ("framework", "generic"),
                                                                ("dtype", "bf16"))))  # fmt: skip
        return intent_of(job, plan_of(job, **columns), purpose)

    return made


def _sensible(plan: dict[str, Any]) -> dict[str, Any]:
    return plan | {"sequence_parallel": plan["tp"] > 1, "vpp": plan["vpp"] if plan["pp"] > 1 else 1}


layouts = st.fixed_dictionaries({
    "tp": st.sampled_from([1, 2, 4, 8]), "pp": st.sampled_from([1, 2, 4, 8]), "cp": st.sampled_from([1, 2]),
    "vpp": st.sampled_from([1, 2, 4]), "micro_batch_size": st.sampled_from([1, 2, 4]),
    "zero_stage": st.sampled_from([0, 1]), "recompute": st.sampled_from(["none", "full"]),
}).map(_sensible)  # fmt: skip
