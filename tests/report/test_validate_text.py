"""What `validate` prints."""

from __future__ import annotations

import pytest

from jointopt.report.results import Validated, ValidatedRun
from jointopt.spec.job import Job


@pytest.fixture
def found(job: Job) -> Validated:
    """One run that broke a bound, in a database with a password."""
    plan = {
        "dp": 4, "tp": 2, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1, "recompute": "none",
        "sequence_parallel": False, "zero_stage": 1, "stage_clock_mhz": [1410.0],
    }  # fmt: skip
    names = ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib")
    predicted = {f"{name}{end}": 10.0 for name in names for end in ("", "_low", "_high")}
    row = {"status": "ok", "iteration_time_s": 11.0}
    run = ValidatedRun(
        plan=plan, row=row, predicted=predicted, broken=("energy_j",), in_domain=True, reference=False, earlier=False
    )  # fmt: skip
    storage = "postgresql+psycopg://me:secret@host/runs"
    return Validated(
        job=job, launcher="replay", surrogate="none", proposed=1, runs=(run,), stopped="done", storage=storage,
        study_name="a-study",
    )  # fmt: skip


def test_a_run_over_a_bound_says_which(found: Validated) -> None:
    told = " ".join(found.text().split())
    assert "over: beyond the job's bound on energy_j." in told
