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
import tempfile
from pathlib import Path

from jointopt.core.atomic_write import write_whole
from jointopt.core.errors import UsageError
from jointopt.report.polish_results import Polished
from jointopt.report.polish_text import chosen_line

Schedule = list[list[tuple[str, int]]]


def zeus_schedule(polished: Polished) -> Schedule:
    """(instruction, clock in MHz) of the chosen schedule, one list per pipeline rank in its order of execution."""
    graph, clock = polished.graph, polished.chosen.clock_mhz
    names = ("forward", "backward")
    return [
        [(names[int(graph.backward[k])], round(float(clock[k]))) for k in graph.of_rank(rank)]
        for rank in range(graph.pp)
    ]


def write_zeus(polished: Polished, path: Path) -> None:
    """Writes the schedule for `PointSolution3D`; UsageError unless the name ends in ``.py``, which Zeus asks for."""
    check_zeus_path(path)
    rows = [f"{row!r},\n" for row in zeus_schedule(polished)]
    head = f"# jointopt polish: {polished.job.name}, {chosen_line(polished.chosen)}\n"
    write_whole(path, "".join(["[\n", *rows, "]\n", head]))


def check_zeus_path(path: Path) -> None:
    """UsageError unless the name ends in ``.py``; the OSError that would keep it from being written."""
    if path.suffix != ".py":
        raise UsageError(f"--zeus must name a file that ends in .py, as Zeus asks; got {str(path)!r}.")
    if path.exists():
        path.open("ab").close()
        return
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent):
            pass
    except OSError as error:  # which names the temporary file
        raise OSError(error.errno, error.strerror, str(path)) from error


def zeus_command(path: Path) -> str:
    """The command that starts Zeus' server with the schedule; every rank of a stage then gets the stage's entry."""
    arguments = shlex.quote(json.dumps({"solution_path": str(path)}))
    return (
        f"ZEUS_PFO_SCHEDULER=PointSolution3D ZEUS_PFO_SCHEDULER_ARGS={arguments} "
        f"uvicorn zeus.optimizer.pipeline_frequency.server.router:app --port 7787"
    )
