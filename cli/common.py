"""Pieces of several commands: options, the job they name, answers."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
    from jointopt.report.documents import Result
    from jointopt.spec.job import Job

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
pue = click.option(
    "--pue", type=click.FloatRange(1.0, 10.0),
    help="Power usage effectiveness of the site, in place of the job's: energy at its meter over that of the nodes.",
)  # fmt: skip
surrogate = click.option(
    "--surrogate", default="default", show_default=True,
    help="Shipped surrogate, folder of one, or none = physics alone.",
)  # fmt: skip


def _basis(measured: Path | None, calibration: Path | None, machine: Path | None, **others: Any) -> dict[str, Any]:
    """The ground of predictions, with the files that options name read."""
    from jointopt.spec.calibration import load_calibration
    from jointopt.spec.machine import load_machine

    others |= {"calibration": calibration and load_calibration(calibration)}
    others |= {"machine": machine and load_machine(machine)}
    if measured is None:
        return {"measured": None, **others}
    from jointopt.runs.table import read_table
    from jointopt.surrogate.measurements import Measurements

    return {"measured": Measurements.of(read_table(measured), str(measured)), **others}


def answer(found: Result, as_json: bool, **text: Any) -> None:
    """Prints a result as one JSON document, or as text with the options ``text``."""
    from jointopt.report.documents import json_text

    click.echo(json_text(found.to_dict()) if as_json else found.text(**text))


def seed(of: str | None = None) -> Callable[[F], F]:
    """The option ``--seed``."""
    return click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help=of)


def database(what: str) -> Callable[[F], F]:
    """The option ``--storage`` of a command that does nothing without one."""
    return click.option("--storage", default="sqlite:///jointopt.db", show_default=True, help=what)


def options(settings: Sequence[tuple[str, dict[str, Any]]], command: F) -> F:
    """Options in the order of ``settings``, by their names."""
    for name, keywords in reversed(settings):
        command = click.option(name, **keywords)(command)
    return command


def _url(_context: click.Context, _option: click.Parameter, url: str) -> str | None:
    return None if url == "none" else url


def storage(what: str, default: str = "sqlite:///jointopt.db") -> Callable[[F], F]:
    """The option ``--storage``: None where nothing is to be kept or read."""
    return click.option(
        "--storage", default=default, show_default=True, callback=_url,
        help=f"Database URL of {what}; none = leave it aside.",
    )  # fmt: skip


def model_options(stored: str = "measurements", default: str = "sqlite:///jointopt.db") -> Callable[[F], F]:
    """The options that say what predictions rest on, which a command receives as the mapping ``basis``.

    ``stored``: what ``--storage`` holds for this command; ``default`` is its URL.
    """

    def decorated(command: F) -> F:
        @functools.wraps(command)
        def run(*args: Any, **options: Any) -> Any:
            given = {name: options.pop(name) for name in ("surrogate", "measured", "calibration", "machine", "storage")}
            return command(*args, basis=_basis(**given), **options)

        for option in (storage(stored, default), *_MODEL_OPTIONS):
            run = option(run)
        return cast("F", run)

    return decorated


_MODEL_OPTIONS = (
    click.option(
        "--calibration", type=PATH, metavar="CAL.yaml",
        help="Clock response of the GPU, written by `jointopt calibrate`.",
    ),
    click.option(
        "--machine", type=PATH, metavar="MACHINE.yaml",
        help="Links, products and memory of the nodes, measured by `jointopt doctor --probe`.",
    ),
    click.option(
        "--measured", type=PATH, metavar="TABLE",
        help="Runs measured on the same cluster, which move the predictions; those in --storage do so too.",
    ),
    surrogate,
)  # fmt: skip


_SHAPE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--model", {"help": "Catalogue name, or path to a Hugging Face config.json."}),
    ("--gpu", {"help": "Catalogue id of the GPU."}),
    ("--gpus", {"type": int, "help": "GPUs in all."}),
    ("--global-batch-size", {"type": int, "help": "Sequences per iteration."}),
    ("--seq-length", {"type": int, "help": "Tokens per sequence."}),
    ("--gpus-per-node", {"type": int, "help": "GPUs of a node; the GPU's usual number by default."}),
    ("--inter-node-gbytes-per-s", {"type": float, "help": "Network bandwidth of a GPU, one direction."}),
    ("--dtype", {"help": "fp32, fp16, bf16 (default), fp8 or fp4."}),
    ("--framework", {"help": "Training framework, from `jointopt catalog frameworks`."}),
)
_NEEDED = ("model", "gpu", "gpus", "global_batch_size", "seq_length")


def shape_options(command: F) -> F:
    """The options that stand for a job file."""
    return options(_SHAPE, command)


def job_of(path: str | None, shape: Mapping[str, Any] = MappingProxyType({}), pue: float | None = None) -> Job:
    """The job of a file, of a shipped job's name, or of the options, on a site of that PUE.

    A click usage error where they do not make one.
    """
    return _job(path, shape).on_site(pue)


def _job(path: str | None, shape: Mapping[str, Any]) -> Job:
    from jointopt.spec.jobfile import job_from_options, load_job

    given = {name: value for name, value in shape.items() if value is not None}
    if path is not None:
        if given:
            raise click.UsageError(f"Give a JOB or {_option(next(iter(given)))}, not both.")
        return load_job(path)
    missing = [_option(name) for name in _NEEDED if name not in given]
    if missing:
        raise click.UsageError(f"Give a JOB, or all of its options; missing: {', '.join(missing)}.")
    return job_from_options(**given)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def save(job: Job, path: Path) -> None:
    """Writes the job file that stands for ``job``."""
    from jointopt.core.atomic_write import write_whole
    from jointopt.spec.jobfile import dump_job

    with writing("--save-job"):
        write_whole(path, dump_job(job))


@contextmanager
def writing(option: str) -> Iterator[None]:
    """Names the option in the error where its file cannot be written."""
    from jointopt.core.errors import UsageError

    try:
        yield
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise UsageError(f"{option}: {place}{error.strerror or error}.") from error


def remark(text: str) -> None:
    """One line on stderr, as it is."""
    click.echo(text, err=True)


class _OnStderr(logging.Handler):
    """Prints what the library logs, one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        remark(record.getMessage())


def print_log() -> None:
    """Let progress and warnings of the library appear on stderr."""
    log = logging.getLogger("jointopt")
    log.setLevel(logging.INFO)
    if not any(isinstance(handler, _OnStderr) for handler in log.handlers):
        log.addHandler(_OnStderr())


def offer_restore() -> None:
    """Print how to put GPU clocks back that a killed run has left set; commands that measure begin with it."""
    from jointopt.measure.devices.clocks import restore_offer

    if offer := restore_offer():
        remark(offer)
