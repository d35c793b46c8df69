"""A polished schedule as the file that Zeus' pipeline frequency optimizer runs.

The file is that of the scheduler `PointSolution` of zeus 0.16.0 (``zeus/optimizer/pipeline_frequency/server/
scheduler.py``): it must be called ``*.py``, is read with ``eval`` and must be a list with one entry per rank; an entry
is a list of (instruction, MHz as an integer) for one iteration, in the order in which the rank runs them. The client
(``zeus/optimizer/pipeline_frequency/optimizer.py``) takes the next one at each ``on_instruction_begin(name)`` and
raises an error if the name differs or an iteration has more or fewer; the integration guide
(https://ml.energy/zeus/optimize/pipeline_frequency_optimizer/) names the instructions ``forward`` and ``backward``.
`PointSolution3D` wants one entry per pipeline rank and gives it to all ranks of that stage.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from jointopt.core.atomic_write import write_whole
from jointopt.core.errors import UsageError
from jointopt.report.files import check_file
from jointopt.report.polished import Polished


def write_zeus(polished: Polished, path: Path) -> None:
    """Writes the schedule for `PointSolution3D`; UsageError unless the name ends in ``.py``, as Zeus requires."""
    check_zeus_path(path)
    chosen = polished.chosen
    result = f"{chosen.iteration_time_s:.6g} s and {chosen.energy_j:.6g} J per iteration, all GPUs"
    rows = [f"{row!r},\n" for row in polished.schedule]
    write_whole(path, "".join(["[\n", *rows, "]\n", f"# jointopt polish: {polished.job.name}, {result}\n"]))


def check_zeus_path(path: Path) -> None:
    """UsageError unless the name ends in ``.py``; the OSError that would keep it from being written."""
    if path.suffix != ".py":
        raise UsageError(f"--zeus must name a file that ends in .py, as Zeus requires; got {str(path)!r}.")
    check_file(path)


def zeus_command(path: Path) -> str:
    """The command that starts Zeus' server with the schedule; every rank of a stage then gets the stage's entry."""
    arguments = shlex.quote(json.dumps({"solution_path": str(path)}))
    return (
        f"ZEUS_PFO_SCHEDULER=PointSolution3D ZEUS_PFO_SCHEDULER_ARGS={arguments} "
        f"uvicorn zeus.optimizer.pipeline_frequency.server.router:app --port 7787"
    )
