"""Pieces of several commands: options, the job they name, answers, and bars of what lasts longer than two seconds."""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from jointopt.cli.settings import INTER_NODE, NETWORK, NETWORK_KEY, key_and_value, with_network
from jointopt.core.progress import LEVEL as PROGRESS
from jointopt.core.quote import sh_command, sh_word
from jointopt.core.secrets import masked
from jointopt.jobs.objectives import COLUMN_OF_WORD

if TYPE_CHECKING:
    import pandas as pd
    from rich.progress import Progress, Task
    from rich.text import Text

    from jointopt.jobs.job import Job
    from jointopt.report.page.choice import ProposalReport
    from jointopt.report.page.render import Page
    from jointopt.report.tables import Result


F = TypeVar("F", bound=Callable[..., Any])

_STORAGE = "JOINTOPT_STORAGE"  # a URL in the environment is in no list of processes and no history of a shell
PATH = click.Path(path_type=Path)
FEW_OPTIONS = 8  # of a command, up to which its help has one section
FORMATS = ("table", "json", "csv", "markdown")


# Options of the help by what they are for; those of a command's own come first.
SECTIONS = {
    "The job, where no file states it": ("model", "gpu", "gpus", "global_batch_size", "seq_length", "gpus_per_node",
                             "inter_node_gbytes_per_s", "dtype", "framework", "save_job"),
    "In place of the job's": ("settings", "network", "pue", "price_per_gpu_hour", "price_per_kwh", "carbon",
                              "run_tokens"),
    "What predictions rest on": ("surrogate", "measured", "machine", "calibration"),
    "What is stored": ("storage", "studies", "study", "all_trials", "log"),
    "What is printed and written": ("verbose", "show_all", "top", "layouts", "as_json", "json_schema", "form", "quiet",
                                    "out", "report", "trace", "help"),
}  # fmt: skip


class Command(click.Command):
    """A command whose help has its options in `SECTIONS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own options, then those of each section."""
        records = [(param.name, param.get_help_record(ctx)) for param in self.get_params(ctx)]
        known = [(name, record) for name, record in records if record is not None]
        section = {name: title for title, names in SECTIONS.items() for name in names if len(known) > FEW_OPTIONS}
        titles = [section.get(name or "", "") for name, _ in known]
        titles = [title if titles.count(title) > 1 else "" for title in titles]
        for title in ("", *SECTIONS):
            if shown := [record for (_, record), of in zip(known, titles, strict=True) if of == title]:
                with formatter.section(title or "Options"):
                    formatter.write_dl(shown)


def _remember_format(context: click.Context, _option: click.Parameter, form: str) -> None:
    """Keeps ``--format`` for `_print`, so that commands need not pass it on."""
    context.meta["jointopt.form"] = form


def _silence(_context: click.Context, _option: click.Parameter, quiet: bool) -> None:
    if quiet:
        logging.getLogger("jointopt").setLevel(logging.WARNING)


_QUIET = click.option("--quiet", is_flag=True, expose_value=False, callback=_silence, help="No progress on stderr.")
_FORMAT = click.option("--format", "form", type=click.Choice(FORMATS), default="table", expose_value=False,
                       callback=_remember_format, help="How the answer is printed.")  # fmt: skip
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")


def _print_schema(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Prints the JSON Schema of the command's document, and ends."""
    from jointopt.report.schemas import schema_of
    from jointopt.report.tables import json_text

    if wanted:
        click.echo(json_text(schema_of(context.info_name or "")))
        context.exit()


_SCHEMA = click.option("--json-schema", is_flag=True, is_eager=True, expose_value=False, callback=_print_schema,
                       help="Print the JSON Schema of that document.")  # fmt: skip


def output_options(command: F) -> F:
    """The options of how an answer with rows is printed: ``--json``, ``--format`` and ``--quiet``."""
    return _JSON(_SCHEMA(_FORMAT(_QUIET(command))))


def json_option(command: F) -> F:
    """The options of how an answer without rows is printed: ``--json`` and ``--quiet``."""
    return _JSON(_SCHEMA(_QUIET(command)))


def _columns_of(_context: click.Context, _option: click.Parameter, words: tuple[str, ...]) -> dict[str, Any]:
    """The key of the job file that words of ``--objective`` stand for; none where none is given."""
    return {"objectives": [COLUMN_OF_WORD[word] for word in words]} if words else {}


objectives = click.option(
    "--objective", "objectives", multiple=True, type=click.Choice(tuple(COLUMN_OF_WORD)), callback=_columns_of,
    metavar="NAME",
    help=f"What to compare plans by, in place of the job file's; may be repeated: {', '.join(COLUMN_OF_WORD)}. "
    "cost is that of electricity alone, gpu_cost that of the GPUs' hours.",
)  # fmt: skip
verbose = click.option("-v", "--verbose", is_flag=True, help="Print all of the answer, not only what decides.")
report = click.option("--report", type=PATH, help="One HTML file with figures, which needs no network.")
allow_tight = click.option(
    "--allow-tight", is_flag=True,
    help="Answer also with plans that are likelier not to fit in memory than to fit, marked as such.",
)  # fmt: skip
alike = click.option(
    "--alike", is_flag=True,
    help="Plans chosen together may split the GPUs alike (dp, tp, pp, cp, ep); else each in another way.",
)  # fmt: skip
pue = click.option(
    "--pue", type=click.FloatRange(1.0, 10.0),
    help="Power usage effectiveness of the site (energy at its meter over that of the nodes), instead of the job's.",
)  # fmt: skip


def job_changes(command: F) -> F:
    """The options that stand in for keys of the job file, which a command receives as the mapping ``changes``."""

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> Any:
        changes = dict(options.pop("settings"))
        named = {key: options.pop(option) for option, key in _NAMED_CHANGES.items()}
        changes |= {key: value for key, value in named.items() if value is not None}
        return command(*args, changes=changes, **options)

    for option in reversed(_CHANGES):
        run = option(run)
    return cast("F", run)


def _setting(_context: click.Context, _option: click.Parameter, words: tuple[str, ...]) -> list[tuple[str, Any]]:
    return [key_and_value(text) for text in words]


_NAMED_CHANGES = {
    "price_per_gpu_hour": "cluster.price_per_gpu_hour", "price_per_kwh": "cluster.price_per_kwh",
    "carbon": "cluster.carbon_kg_per_kwh", "run_tokens": "training.run_tokens", "network": NETWORK_KEY,
}  # fmt: skip
_CHANGES = (
    click.option("--price-per-gpu-hour", type=float, help="Price of one GPU for an hour."),
    click.option("--price-per-kwh", type=float, help="Price of a kWh at the site's meter."),
    click.option("--carbon", type=float, metavar="KG", help="CO2 per kWh, in kg."),
    click.option("--run-tokens", type=float, help="Tokens of the whole run (15e12): its time, energy and cost."),
    click.option(NETWORK[0], **NETWORK[1]),
    click.option("--set", "settings", multiple=True, callback=_setting, metavar="KEY=VALUE",
                 help="Overrides a key of the job file: --set cluster.nodes=4."),
)  # fmt: skip


def surrogate_option(default: str | None = "default") -> Callable[[F], F]:
    """The option ``--surrogate``; without a default it is that of the stored document."""
    usual = "" if default else " By default the one that the proposal names."
    return click.option(
        "--surrogate", default=default, show_default=default is not None,
        help=f"Shipped surrogate, folder that retrain wrote, or none = physics alone.{usual}",
    )  # fmt: skip


def _read_basis(measured: Path | None, calibration: Path | None, machine: Path | None, **others: Any) -> dict[str, Any]:
    """The ground of predictions, with the files that options name read."""
    from jointopt.jobs.calibration import load_calibration
    from jointopt.jobs.cluster import load_machine

    others |= {"calibration": calibration and load_calibration(calibration)}
    others |= {"machine": machine and load_machine(machine)}
    if measured is None:
        return {"measured": None, **others}
    from jointopt.runs.table import read_table
    from jointopt.surrogate.measurements import Measurements

    return {"measured": Measurements.of(read_table(measured), str(measured)), **others}


def answer(found: Result, as_json: bool, *, allow_tight: bool = False, refused: str = "", **text: Any) -> None:
    """Prints a result as one JSON document, a table of its rows, or as text with the options ``text``.

    InfeasibleError after that where it is ``refused`` (why, in a sentence) or nothing asked for is feasible;
    ``allow_tight`` as for `Result.refusal`.
    """
    from jointopt.core.errors import InfeasibleError

    _print(as_json, found.to_dict, found.to_frame, found.markdown, lambda: coloured(found.text(**text)))
    if refused := refused or found.refusal(allow_tight=allow_tight):
        raise InfeasibleError(refused)


def list_rows(rows: Sequence[Mapping[str, Any]], text: Callable[[], str], as_json: bool) -> None:
    """Prints rows as one JSON document, as a table, or as that text."""
    from jointopt.report.tables import flat_frame, markdown

    _print(as_json, lambda: rows, lambda: flat_frame(rows), lambda: markdown(flat_frame(rows)), text)


def _print(
    as_json: bool, document: Callable[[], Any], frame: Callable[[], pd.DataFrame], markdown: Callable[[], str],
    text: Callable[[], str],
) -> None:  # fmt: skip
    form = click.get_current_context().meta.get("jointopt.form", "table")
    if as_json or form == "json":
        print_json(document())
    elif form == "csv":
        from jointopt.runs.table import csv_text

        click.echo(csv_text(frame()), nl=False)
    else:
        click.echo(markdown() if form == "markdown" else text())


def print_json(document: Any) -> None:
    """Prints the document of a command, which names its schema."""
    from jointopt.report.schemas import schema_of
    from jointopt.report.tables import json_text

    name = schema_of(click.get_current_context().info_name or "").get("$id")
    click.echo(json_text({"schema": name} | document if name and isinstance(document, dict) else document))


def coloured(text: str) -> str:
    """The text with its first line and the row of the reference set off, on a terminal and without ``$NO_COLOR``."""
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    first, *rest = text.split("\n")
    lines = [click.style(first, bold=True)]
    for line in rest:
        warns = line.startswith(("? ", "~ ", "Not feasible"))
        colour = "green" if line.startswith("=") else "yellow" if warns else ""
        lines.append(click.style(line, fg=colour) if colour else line)
    return "\n".join(lines)


def seed(of: str | None = None) -> Callable[[F], F]:
    """The option ``--seed``."""
    return click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help=of)


def database(what: str, *, needed: bool = True) -> Callable[[F], F]:
    """The option ``--storage`` of a command that does nothing without one, or (not ``needed``) looks at it alone."""
    return click.option(
        "--storage", default="sqlite:///jointopt.db", show_default=True, envvar=_STORAGE, show_envvar=True,
        callback=_require_database if needed else None, help=what,
    )  # fmt: skip


def _require_database(context: click.Context, _option: click.Parameter, url: str) -> str:
    if url == "none":
        command = context.command_path.removeprefix(f"{context.find_root().command_path} ")
        raise click.UsageError(
            f"{command} needs a database; got --storage none; expected a URL such as sqlite:///jointopt.db."
        )
    return url


def storage_of_study(source: str, storage: str | None) -> str | None:
    """The URL that was given; else that of the environment for the name of a study, and None for a file."""
    from jointopt.workflows.stored_plans import names_a_file  # imports pandas

    return storage or (None if names_a_file(source) else os.environ.get(_STORAGE))


def options(settings: Sequence[tuple[str, dict[str, Any]]]) -> Callable[[F], F]:
    """Several options as one decorator: (name, keywords of `click.option`) of each, in the order of the help."""

    def decorated(command: F) -> F:
        for name, keywords in reversed(settings):
            command = click.option(name, **keywords)(command)
        return command

    return decorated


def url_or_none(_context: click.Context, _option: click.Parameter, url: str | None) -> str | None:
    """The URL, None for the word none."""
    return None if url == "none" else url


def storage(what: str, default: str = "sqlite:///jointopt.db") -> Callable[[F], F]:
    """The option ``--storage``: None where nothing is to be kept or read."""
    return click.option(
        "--storage", default=default, show_default=True, callback=url_or_none, envvar=_STORAGE, show_envvar=True,
        is_eager=True,  # `--plan STUDY:2` looks it up
        help=f"Database URL of {what}; none = use none.",
    )  # fmt: skip


def model_options(
    stored: str = "measurements", default: str = "sqlite:///jointopt.db", surrogate: str | None = "default"
) -> Callable[[F], F]:
    """The options that say what predictions rest on, which a command receives as the mapping ``basis``.

    ``stored``: what ``--storage`` holds for this command; ``default`` is its URL. ``surrogate``: the usual one.
    """

    def decorated(command: F) -> F:
        @functools.wraps(command)
        def run(*args: Any, **options: Any) -> Any:
            given = {name: options.pop(name) for name in ("surrogate", "measured", "calibration", "machine", "storage")}
            return command(*args, basis=_read_basis(**given), **options)

        for option in (storage(stored, default), *_MODEL_OPTIONS, surrogate_option(surrogate)):
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
        help="Runs measured on the same cluster, which correct predictions; those in --storage do too.",
    ),
)  # fmt: skip


_SHAPE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--model", {"help": "Catalogue name, or path to a Hugging Face config.json."}),
    ("--gpu", {"help": "Catalogue id of the GPU."}),
    ("--gpus", {"type": int, "help": "GPUs in all."}),
    ("--global-batch-size", {"type": int, "help": "Sequences per iteration."}),
    ("--seq-length", {"type": int, "help": "Tokens per sequence."}),
    ("--gpus-per-node", {"type": int, "help": "GPUs of a node; the GPU's usual number by default."}),
    INTER_NODE,
    ("--dtype", {"help": "fp32, tf32, fp16, bf16 (default), fp8 or fp4."}),
    ("--framework", {"help": "Training framework, from `jointopt catalog frameworks`."}),
)
shape_options = options(_SHAPE)  # that stand for a job file
STORED_JOB = "jointopt.job"  # of a click context: the job of the study that ``--plan STUDY:2`` names
FILE_JOB = "jointopt.file_job"  # and that of the proposal of ``--plan FILE.json:2``, which other jobs may be given too
_NOT_OF_A_PLAN = ("objectives",)  # keys that do not change what starts a plan
_NEEDED = ("model", "gpu", "gpus", "global_batch_size", "seq_length")


def job_words(path: str | None, shape: Mapping[str, Any], changes: Mapping[str, Any], saved: Path | None = None) -> str:
    """The words that name a job to a shell: a file, a shipped job, or options, with changes; a saved file alone."""
    if saved is not None:
        return sh_word(str(saved))
    words = [path] if path is not None else []
    for name, value in shape.items():
        words += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    for key, value in changes.items():
        if key not in _NOT_OF_A_PLAN:
            text = f"{value:.15g}" if isinstance(value, float) else json.dumps(value)
            words += ["--set", f"{key}={value if isinstance(value, str) else text}"]
    return sh_command(words)


def job_of(
    path: str | None, shape: Mapping[str, Any] = MappingProxyType({}), pue: float | None = None,
    changes: Mapping[str, Any] = MappingProxyType({}), save_to: Path | None = None,
) -> Job:  # fmt: skip
    """The job of a file or a shipped job's name, of the options, or of ``--plan STUDY:2`` or ``FILE.json:2``.

    With ``changes`` of keys, on a site of that PUE; its file is written to ``save_to``. A click usage error where they
    do not make one.
    """
    from jointopt.core.atomic_write import write_whole
    from jointopt.jobs.jobfile import dump_job, job_from_options, load_job, parse_job, with_changes

    given = {name: value for name, value in shape.items() if value is not None}
    context = click.get_current_context(silent=True)
    stored, of_file = (context.meta.get(key) if context else None for key in (STORED_JOB, FILE_JOB))
    if path is None and not given and (mapping := stored or of_file):
        job = with_changes(parse_job(mapping, "job", Path()), changes)
    elif path is not None:
        if given:
            raise click.UsageError(f"Give a JOB or {_option(next(iter(given)))}, not both.")
        job = load_job(path, changes)
        if stored and not _is_alike(job, parse_job(stored, "job", Path())):
            raise click.UsageError(
                f"The study of --plan is of another job than {path}; leave JOB out, or give its own."
            )
    else:
        if missing := [_option(name) for name in _NEEDED if name not in given]:
            raise click.UsageError(f"Give a JOB, or all of its options; missing: {', '.join(missing)}.")
        job = with_changes(job_from_options(**with_network(given, changes.get(NETWORK_KEY))), changes)
    job = job.on_site(pue)
    if save_to is not None:
        with writing("--save-job"):
            write_whole(save_to, dump_job(job))
    return job


def _is_alike(job: Job, other: Job) -> bool:
    """Whether plans of one job may be plans of the other: the same model on as many of the same GPUs."""
    first, second = ((one.model.name, one.cluster.gpu.id, one.cluster.num_gpus) for one in (job, other))
    return first == second


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


@contextmanager
def writing(option: str) -> Iterator[None]:
    """Names the option in the error where its file cannot be written."""
    from jointopt.core.atomic_write import write_failure
    from jointopt.core.errors import UsageError

    try:
        yield
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise UsageError(f"{option}: {place}{write_failure(error)}.") from error


def check_out(folder: Path | None, names: Sequence[str]) -> None:
    """An error before the work where files of those names could not be written to the folder of ``--out``."""
    from jointopt.core.atomic_write import check_folder

    with writing("--out"):
        if folder:
            check_folder(folder, names)


def write_report(made: ProposalReport | Page, out: Path, option: str = "--report") -> None:
    """Writes a report; says where it is."""
    with writing(option):
        getattr(made, "page", made).write(out)  # whose error has no place yet
    remark(f"Written: {out}")


def remark(text: str) -> None:
    """One line on stderr, as it is."""
    click.echo(text, err=True)


class _OnStderr(logging.Handler):
    """Prints what the library logs, one line each; on a terminal what can be counted is a bar."""

    def emit(self, record: logging.LogRecord) -> None:
        if log_level() < logging.INFO and (counted := getattr(record, "progress", None)):
            BARS.step(*counted)
        elif not BARS.say(text := masked(record.getMessage())):
            remark(text)


def log_level() -> int:
    """The least level that is shown: a terminal shows how far loops are."""
    return PROGRESS if sys.stderr.isatty() else logging.INFO


def print_log() -> None:
    """Let progress and warnings of the library appear on stderr."""
    log = logging.getLogger("jointopt")
    log.setLevel(log_level())
    if not any(isinstance(handler, _OnStderr) for handler in log.handlers):
        log.addHandler(_OnStderr())


def offer_restore() -> None:
    """End what killed runs have left, and print how to put GPU clocks back; commands that measure begin with it."""
    from jointopt.measure.hardware.gpu_clocks import restore_offer
    from jointopt.measure.hardware.guard.guarded import end_leftover_runs, remove_leftover_folders

    for sentence in end_leftover_runs():
        remark(sentence)
    remove_leftover_folders()
    if offer := restore_offer():
        remark(offer)


# Bars of progress on a terminal, with rate and time left, of what lasts longer than two seconds.

AFTER_S = 2.0
_MEMORY_S = 3600.0  # runs of minutes give a rate too


class Bars:
    """Bars by what they count; nothing is drawn, and rich is not imported, before one has lasted `AFTER_S`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._done: dict[str, tuple[float, float]] = {}
        self._timers: dict[str, threading.Timer] = {}
        self._tasks: dict[str, int] = {}
        self._shown: Progress | None = None

    def step(self, text: str, done: float, total: float) -> None:
        """``done`` of ``total`` are done of what ``text`` counts; its bar goes where all are."""
        with self._lock:
            if done >= total:
                self._remove(text)
                return
            self._done[text] = done, total
            if text in self._tasks and self._shown is not None:
                self._shown.update(self._tasks[text], completed=done, total=total)  # type: ignore[arg-type]
            elif text not in self._timers:
                timer = self._timers[text] = threading.Timer(AFTER_S, self._appear, [text])
                timer.daemon = True
                timer.start()

    def say(self, text: str) -> bool:
        """Prints a line above the bars; False where there are none."""
        with self._lock:
            if self._shown is None:
                return False
            self._shown.console.print(text, markup=False, highlight=False, soft_wrap=True)
            return True

    def end(self) -> None:
        """Takes all bars away."""
        with self._lock:
            for text in list(self._done):
                self._remove(text)

    def _appear(self, text: str) -> None:
        with self._lock:
            if text not in self._done:
                return
            if self._shown is None:
                self._shown = _progress()
                self._shown.start()
            done, total = self._done[text]
            self._tasks[text] = self._shown.add_task(text, completed=done, total=total)  # type: ignore[arg-type]

    def _remove(self, text: str) -> None:
        self._done.pop(text, None)
        if timer := self._timers.pop(text, None):
            timer.cancel()
        task = self._tasks.pop(text, None)
        if task is not None and self._shown is not None:
            self._shown.remove_task(task)  # type: ignore[arg-type]
            if not self._tasks:
                self._shown.stop()
                self._shown = None


def rate_words(speed: float | None) -> str:
    """A rate in words: per second, or seconds and minutes of each."""
    if not speed:
        return ""
    if speed >= 1.0:
        return f"{speed:,.0f}/s" if speed >= 10.0 else f"{speed:.1f}/s"
    return f"{1 / speed:.0f} s each" if speed > 1 / 90 else f"{1 / speed / 60:.0f} min each"


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """The rate of a task."""

        def render(self, task: Task) -> Text:
            return Text(rate_words(task.speed))

    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False,
        speed_estimate_period=_MEMORY_S,
    )  # fmt: skip


BARS = Bars()
