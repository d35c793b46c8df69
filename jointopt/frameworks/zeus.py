"""A clock per pass as Zeus reads it: the file of its schedulers `PointSolution` and `PointSolution3D`.

Of zeus 0.16.0 (``zeus/optimizer/pipeline_frequency/server/scheduler.py``): ``*.py``, read with ``eval``, a list with
one entry per rank (3D: pipeline rank). An entry is a list of (instruction, MHz as an integer) for one iteration in the
order of execution; the client raises an error where ``on_instruction_begin(name)`` differs. The integration guide
(https://ml.energy/zeus/optimize/pipeline_frequency_optimizer/) names the instructions ``forward`` and ``backward``.
"""

from __future__ import annotations

import json
from pathlib import Path

from jointopt.core.atomic_write import check_file, write_whole
from jointopt.core.errors import UsageError
from jointopt.core.quote import comment, python_text, sh_word

Schedule = list[list[tuple[str, int]]]  # (instruction, clock in MHz) per pipeline rank in its order of execution


def write_schedule(schedule: Schedule, path: Path, remark: str) -> None:
    """Writes a schedule for `PointSolution3D`, with a remark at its end; UsageError as `check_zeus_path`."""
    check_zeus_path(path)
    rows = [f"{python_text(row)},\n" for row in schedule]
    write_whole(path, "".join(["[\n", *rows, "]\n", f"# {comment(remark)}\n"]))


def check_zeus_path(path: Path) -> None:
    """UsageError unless the name ends in ``.py``; the OSError that would keep it from being written."""
    if path.suffix != ".py":
        raise UsageError(f"--zeus must name a file that ends in .py, as Zeus requires; got {str(path)!r}.")
    check_file(path)


def zeus_command(path: Path) -> str:
    """The command that starts Zeus' server with the schedule; every rank of a stage then gets the stage's entry."""
    arguments = sh_word(json.dumps({"solution_path": str(path)}))
    return (
        f"ZEUS_PFO_SCHEDULER=PointSolution3D ZEUS_PFO_SCHEDULER_ARGS={arguments} "
        f"uvicorn zeus.optimizer.pipeline_frequency.server.router:app --port 7787"
    )
