"""Which tests judge which code, for bench_mutants.py: together the rooms hold every module of the package."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
QUICK = ("tests/golden", "tests/physics/hand*", "tests/**/test_*by_hand.py")
STUDIES = tuple(f"jointopt/studies/{path.parent.name}/" for path in ROOT.glob("studies/*/study.py"))  # programs
NOT_DRAWN = (
    "jointopt/measure/process.py",  # it ends processes: a change in which may end those of others
    "jointopt/measure/hardware/guard", "jointopt/cli/launching.py", "jointopt/core/system.py",  # as these do
    "jointopt/measure/trainer", "jointopt/measure/slurm.py", "jointopt/measure/slurm_commands.py",
    # tests of PyTorch and Slurm are those of services
)  # fmt: skip
# room: (its code, what of it is not drawn, its tests in the order in which they run)
ROOMS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "physics": (
        ("jointopt/physics",), ("jointopt/physics/instructions.py",),
        (
            *QUICK, "tests/physics/test_*.py", "tests/physics/calibrate", "tests/physics/explain",
            "tests/test_accuracy_gate.py",
            "tests/surrogate/test_own_targets.py", "tests/workflows/test_site_energy.py",
        ),
    ),
    "jobs": (
        ("jointopt/jobs",), ("jointopt/jobs/plans",),
        (
            *QUICK, "tests/jobs", "tests/physics/test_*.py", "tests/workflows/test_blocks.py",
            "tests/runs/test_limits.py", "tests/surrogate/test_intervals.py",
        ),
    ),
    "core": (
        ("jointopt/core",), ("jointopt/core/units.py", *NOT_DRAWN),
        ("tests/core", "tests/golden", "tests/jobs", "tests/runs", "tests/report"),
    ),
    "plans": (
        ("jointopt/jobs/plans",), (),
        (*QUICK, "tests/jobs", "tests/physics/test_mtp.py", "tests/frameworks/imports/test_statements.py"),
    ),
    "surrogate": (
        ("jointopt/surrogate", "jointopt/core/units.py"), (),
        (*QUICK, "tests/surrogate", "tests/test_accuracy_gate.py"),
    ),
    "polish": (
        ("jointopt/physics/instructions.py", "jointopt/workflows/polish.py"), (),
        (*QUICK, "tests/physics/polish", "tests/workflows/test_polish.py", "tests/surrogate/test_job_model.py"),
    ),
    "tables": (
        ("jointopt/runs",), (),
        ("tests/runs", "tests/surrogate/test_dataset.py", "tests/measure/hardware/test_reading.py"),
    ),
    "measure": (
        ("jointopt/measure",), NOT_DRAWN,
        (
            *(f"tests/measure/{name}" for name in ("hardware", "launchers")),
            "tests/contracts/test_launchers.py", "tests/workflows/campaign",
        ),
    ),
    "frameworks": (
        ("jointopt/frameworks",), (),
        (
            "tests/frameworks", "tests/workflows/test_import.py",
            *(f"tests/measure/launchers/test_{name}.py" for name in ("failures", "slurm_script", "sbatch_lines")),
        ),
    ),
    "search": (
        ("jointopt/search",), (),
        (
            "tests/search", "tests/contracts/test_searchers.py", "tests/golden", "tests/cli/test_dashboard.py",
            "tests/workflows/test_power_limits.py",
        ),
    ),
    "workflows": (
        ("jointopt/workflows",), ("jointopt/workflows/polish.py",),
        ("tests/workflows", "tests/golden", "tests/report", "tests/search/test_two_step.py"),
    ),
    "cli": (
        ("jointopt/cli", "jointopt/__init__.py", "jointopt/__main__.py"), NOT_DRAWN,
        ("tests/cli", "tests/test_packaging.py"),
    ),
    "studies": (
        ("jointopt/studies", "jointopt/models"), STUDIES,
        ("tests/test_studies.py", "tests/test_*statements.py", "tests/test_gpu_sweep.py"),
    ),
    "report": (
        ("jointopt/report",), (),
        (
            "tests/report", "tests/golden",
            "tests/workflows/test_alternative_plans.py",
            *(f"tests/workflows/test_{name}.py" for name in ("layouts", "compare", "select", "scale", "import")),
        ),
    ),
}  # fmt: skip


def is_of(room: str, file: Path) -> bool:
    """Whether changes of a file are drawn in that room."""
    code, left_out, _ = ROOMS[room]
    return str(file).startswith(code) and not str(file).startswith(left_out)
