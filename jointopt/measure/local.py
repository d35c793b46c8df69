"""Training programs on this machine: each run at the clocks of its plan, with a meter, ended early if it is behind."""

from __future__ import annotations

import json
import shlex
import string
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from jointopt.core.errors import ExportError, LauncherError, PlanError, UsageError, nearest_hint
from jointopt.core.facts import Failure, FailureKind, failure_in, joined_notes
from jointopt.core.quote import sh_command
from jointopt.core.schema import COLUMNS, STATUSES, Columns
from jointopt.frameworks.failures import failure_of, is_full, why_unreadable
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import plain_number
from jointopt.jobs.reading import is_number, is_whole
from jointopt.measure.hardware.conditions import MEASURE_S, Conditions, under_plan
from jointopt.measure.hardware.guard.guarded import scratch_folder
from jointopt.measure.hardware.host import check_devices
from jointopt.measure.hardware.meter import Meter
from jointopt.measure.process import Program, files_of_a_run, run_program, whole_log
from jointopt.measure.trainer.spec import JUDGED_ON
from jointopt.runs.readings import LEAST_WINDOW_S
from jointopt.runs.rows import RESULTS, WINDOW, failed_row, is_blank, log_prefix, new_log, outcome, result_row, with_log
from jointopt.runs.table import check_measurements

SPANS = 3  # of the time that a run was metered for, whose powers are compared
_SPAN_S = 1.1 * LEAST_WINDOW_S  # least length of one


def program_attribute(name: str) -> Any:
    """An attribute of a launcher that is its program's."""
    return property(
        lambda launcher: getattr(launcher.program, name), lambda launcher, value: setattr(launcher.program, name, value)
    )


class LocalLauncher:
    """Runs ``program`` for at most ``limit_s`` on this machine's GPUs, or on its cores where the job's GPU is cpu-core.

    Logs stay in the folder ``logs`` where one is given. GPUs run at the clock of their stage, or at what the driver
    chooses (``default_clocks``), and energy is measured.
    """

    name: str
    on_nodes = "use --launcher slurm"  # the advice for several nodes; blank: the program is started there too
    sets_clocks = True  # those of this machine
    log_name = ""  # of the log in a folder that stays in ``logs``; blank: the log alone stays
    behind_s: float = program_attribute("behind_s")  # as of `EndsEarly`
    behind_both: Sequence[tuple[float, float]] = program_attribute("behind_both")  # as of `EndsDominated`
    narrow_search: Any = program_attribute("narrow_search")

    def __init__(self, program: Program, limit_s: float, logs: Path | None, default_clocks: bool) -> None:
        self.name, self.program, self.limit_s, self.logs = program.name, program, limit_s, logs
        self.default_clocks = default_clocks

    def candidates(self, job: Job) -> Columns | None:
        """Any plan; LauncherError where the job needs more than this machine, or the program cannot run it."""
        if self.on_nodes and job.cluster.nodes != 1:
            raise LauncherError(
                f"The launcher {self.name} runs on one machine, and job {job.name!r} has {job.cluster.nodes} nodes; "
                f"{self.on_nodes}."
            )
        self.program.check(job)
        return None

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        """``plan`` with its measurement, or with how it failed."""
        self.candidates(job)
        if self.on_nodes:  # else it may train elsewhere
            check_devices(job)
        # GPUs of other nodes are not reached from here, and those beside cores are neither set nor read
        metered = self.sets_clocks and job.cluster.nodes == 1 and job.cluster.gpu.id != "cpu-core"
        with files_of_a_run(), self.files(plan) as (folder, log):
            try:
                with under_plan(plan, self.default_clocks) if metered else nullcontext(Conditions(plan)) as conditions:
                    self.program.prepare(job, plan, folder, 0.0 if conditions.meter is None else MEASURE_S)
                    row = self._measure(job, plan, folder, EarlyEnd(self.program, job, log, conditions.meter))
            except PlanError as error:  # the GPUs here have no such clock
                return dict(plan) | failed_row(Failure(FailureKind.CLOCKS, str(error)))
            except ExportError as error:  # another plan may have words
                return dict(plan) | failed_row(Failure(FailureKind.EXPORT, str(error)))
            window, iterations = (row.pop(name, usual) for name, usual in zip(WINDOW, (None, 1), strict=True))
            return dict(plan) | conditions.with_meter(row, window, iterations)

    @contextmanager
    def files(self, plan: Mapping[str, Any]) -> Iterator[tuple[Path, Path]]:
        """A folder for the files of one run of ``plan``, and its log."""
        if self.log_name and self.logs is not None:
            Path(self.logs).mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=log_prefix(plan), dir=self.logs)).resolve()
            yield folder, folder / self.log_name
        else:
            with scratch_folder() as scratch:
                yield scratch, scratch / self.log_name if self.log_name else new_log(self.logs or scratch, plan)

    def _measure(self, job: Job, plan: Mapping[str, Any], folder: Path, early: EarlyEnd) -> dict[str, Any]:
        program, log = self.program, early.log
        ended = run_program(
            program.words(job, plan, folder, alone=True), log, limit_s=self.limit_s, env=program.environment,
            cwd=program.cwd, should_end=early.is_due if self.behind_s or self.behind_both else None,
        )  # fmt: skip
        if early.row is not None:
            row = early.row
        elif why := why_unreadable(folder):
            row = failed_row(Failure(FailureKind.RESULT, why))
        else:
            whole = ended.code == 0 and not ended.timed_out
            failure = failure_of(ended.tail, ended.code, ended.timed_out, self.limit_s)
            try:
                found = program.results(job, folder, whole_log(log))
                row = outcome(found, whole, failure_without_result(program, folder, failure, whole))
            except OSError as error:  # of files that are the program's to write
                words = f"{Path(str(error.filename or folder)).name} cannot be read: {error.strerror or error}"
                row = failed_row(Failure(FailureKind.RESULT, words))
        return with_log(row, log, self.logs is not None)


def failure_without_result(program: Program, folder: Path, failure: Failure, whole: bool) -> Failure:
    """The failure of a run without a result: its own, or, where it ended well (``whole``), that there is no result."""
    if not whole or failure.status != "failed":
        return failure
    if is_full(folder):
        return Failure(FailureKind.DISK_FULL, f"{program.missing}, the disk is full")
    return Failure(FailureKind.RESULT, program.missing)


# Runs that are clearly behind, recognised by the iterations in their logs while they run, and ended.


def row_ended_early(seconds: Sequence[float], behind_s: float) -> dict[str, Any]:
    """The result columns of a run that was ended after iterations of these seconds: the least of them is its time."""
    least = min(seconds)
    words = f"ended early: each of {len(seconds)} iterations took {least:.4g} s or more, beyond {behind_s:.4g}"
    return failed_row(Failure(FailureKind.BEHIND, words)) | {"iteration_time_s": least}


def least_watts(meter: Meter, start_s: float, end_s: float) -> float:
    """Lower bound in W of the mean power of all GPUs between two times (s since 1970); NaN where it was not measured.

    It is Student's 95 % bound of the means of `SPANS` equal spans.
    """
    readings = [meter.reading(*span) for span in pairwise(np.linspace(start_s, end_s, SPANS + 1).tolist())]
    watts = np.array([one.total_energy_j / one.seconds for one in readings if one.seconds])
    if len(watts) < SPANS:
        return float("nan")
    return float(watts.mean() - stdtrit(SPANS - 1, 0.95) * watts.std(ddof=1) / np.sqrt(SPANS))


class EarlyEnd:
    """Tells from the log of one run, while it goes on, whether it is behind and is to be ended (`EndsEarly`).

    ``meter``: that of its GPUs, by which it may be behind in both time and energy (`EndsDominated`). ``row``: the
    result columns of the run, once it is to be ended.
    """

    def __init__(self, program: Program, job: Job, log: Path, meter: Meter | None = None) -> None:
        self._program, self._job, self.log, self._meter = program, job, log, meter
        self._since_s: float | None = None  # when a look first saw a measured iteration
        self.row: dict[str, Any] | None = None

    def is_due(self) -> bool:
        """Whether the run is behind ``behind_s``, or ``behind_both``, by its first `JUDGED_ON` measured iterations.

        Power is judged after `SPANS` spans of metering, each of which holds an iteration and is long enough for
        counters of energy.
        """
        program, meter = self._program, self._meter if self._program.behind_both else None
        if not program.behind_s and meter is None:
            return False
        text = whole_log(self.log).rpartition("\n")[0]  # the last line may be half written
        seconds, known = program.progress(self._job, text)
        first = seconds[:JUDGED_ON]
        if program.behind_s and len(first) == JUDGED_ON and min(first) > program.behind_s:
            self.row = row_ended_early(first, program.behind_s) | dict(known)
        elif meter is not None and seconds:
            now_s = meter.now()
            since_s = self._since_s = self._since_s or now_s
            if len(seconds) <= JUDGED_ON or now_s - since_s < SPANS * max(_SPAN_S, *first):
                return False
            least_s, watts = min(first), least_watts(meter, since_s, now_s)
            beyond = [bound for bound in program.behind_both if least_s > bound[0] and least_s * watts > bound[1]]
            if beyond:
                row = row_ended_early(first, beyond[0][0]) | dict(known)
                words = f"; at {watts:,.0f} W or more an iteration takes {least_s * watts:,.4g} J, beyond "
                row |= {"notes": f"{row['notes']}{words}{beyond[0][1]:,.4g}", "energy_j": least_s * watts}
                self.row = row | dict(zip(WINDOW, ([since_s, now_s], len(seconds)), strict=True))
        return self.row is not None


# Any command of the user: plan fields stand in its words, and it writes what it measured into a JSON file.


RESULT_FIELD, _FOLDER = "result", "folder"
_FILE = "result.json"
_WORKLOAD = (
    "model", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "gated_mlp",
    "vocab_size", "num_experts", "moe_router_topk", "block", "seq_length", "global_batch_size", "dtype", "attention",
    "fused_norm", "lora_dim", "lora_target_modules", "framework", "gpu", "gpus_per_node", "num_gpus",
)  # fmt: skip
_PLAN = tuple(column.name for column in COLUMNS.values() if column.role == "plan")
FIELDS = (RESULT_FIELD, _FOLDER, "nodes", "num_micro_batches", *_PLAN, *_WORKLOAD)
_NEEDED = {
    RESULT_FIELD: "the JSON file into which it writes what it measured",
    "start": "the script that starts the program on one node, and that it is to run on each",
}
_LARGEST_RESULT = 1 << 20  # bytes


class Template:
    """The words of a command, in which ``{dp}``, ``{result}`` and the other ``fields`` stand for values.

    A text is split into words once, as a shell would, before any value is put in; a value is never split, and no
    shell reads it. ``{{`` and ``}}`` are braces. Raises UsageError for an unknown field, or without the ``needed`` one.
    """

    def __init__(
        self, command: str | Sequence[str], fields: Sequence[str] = FIELDS, needed: str = RESULT_FIELD
    ) -> None:
        try:
            self.words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
        except ValueError as error:
            raise UsageError(f"--command cannot be split into words: {error}; got {command!r:.200}.") from error
        if not self.words or not self.words[0].strip():
            raise UsageError("--command is empty; expected a program and its arguments.")
        named = set()
        for word in self.words:
            try:
                parts = list(string.Formatter().parse(word))
            except ValueError as error:
                raise UsageError(
                    f"--command: {error} in {word!r:.200}; a brace that is meant is written twice."
                ) from error
            for _, name, form, conversion in parts:
                if name is not None and (form or conversion or not name.isidentifier()):
                    raise UsageError(
                        f"--command: expected a plain field such as {{dp}}, got one with more in it in {word!r:.200}; "
                        "a brace that is meant is written twice."
                    )
                named.add(name)
        self.fields = frozenset(filter(None, named))
        for name in sorted(self.fields - set(fields)):
            raise UsageError(
                f"--command has no value for {{{name}}}{nearest_hint(name, fields)}; expected fields of "
                f"{', '.join(fields)}; a brace that is meant is written twice."
            )
        if needed not in self.fields:
            raise UsageError(f"--command must hold {{{needed}}}: {_NEEDED[needed]}.")

    def fill(self, values: Mapping[str, Any]) -> list[str]:
        """The words for one plan. Raises UsageError for a field that the plan leaves blank."""
        words = {name: field_text(name, values.get(name)) for name in self.fields}
        return [word.format_map(words) for word in self.words]


def field_text(name: str, value: Any) -> str:
    """The text of a field in a command: true or false, whole numbers without a point, clocks split by semicolons."""
    if isinstance(value, list | tuple | np.ndarray):
        return ";".join(plain_number(float(clock)) for clock in value)
    if is_blank(value):
        raise UsageError(f"--command needs {{{name}}}, which neither plan nor job states.")
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating):
        return plain_number(float(value))
    return str(value)


def command_values(job: Job, plan: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Values of the fields of a command: those of the job, replaced by the plan's columns, and paths in ``folder``."""
    model, training, cluster = job.model, job.training, job.cluster
    stated: dict[str, Any] = {}
    for source in (model, training, cluster):
        stated |= {name: getattr(source, name) for name in _WORKLOAD if hasattr(source, name)}
    stated |= {"model": model.name, "framework": training.framework.name, "gpu": cluster.gpu.id}
    given = {name: value for name, value in plan.items() if name in FIELDS and not is_blank(value)}
    values = {**stated, "nodes": cluster.nodes, **given, _FOLDER: folder, RESULT_FIELD: folder / _FILE}
    return values | {
        "num_micro_batches": training.global_batch_size // int(plan["dp"]) // int(plan["micro_batch_size"])
    }


class CommandProgram(Program):
    """The user's ``command``, on this machine or once per node, with its result file in the folder of the run."""

    name = "command"
    missing = "the command ended well and wrote no result file"
    shows_ranks = False

    def __init__(self, command: str | Sequence[str]) -> None:
        self.template = Template(command)

    def words(self, job: Job, plan: Mapping[str, Any], folder: Path, alone: bool = False) -> list[str]:
        """The words that start the program."""
        return self.template.fill(command_values(job, plan, folder))

    def results(self, job: Job, folder: Path, log: str) -> Mapping[str, Any] | None:
        """The row in the program's result file; for one that cannot be true, that of a failed run."""
        path = folder / _FILE
        if not path.is_file():
            return None
        try:
            if path.stat().st_size > _LARGEST_RESULT:
                raise ValueError(f"it has more than {_LARGEST_RESULT:,} bytes")
            given = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError, OSError) as error:
            if is_full(folder):
                return failed_row(Failure(FailureKind.DISK_FULL, "the disk is full"))
            return failed_row(Failure(FailureKind.RESULT, f"the result file is no JSON: {error}"))
        cells, reason = _cells(given, job.cluster.num_gpus)
        if reason:
            return failed_row(Failure(FailureKind.RESULT, f"the result file {reason}"))
        unknown = [f"{key}{nearest_hint(key, RESULTS)}" for key in given if key not in (*RESULTS, *WINDOW)]
        notes = joined_notes(str(cells.pop("notes", "")), f"not read: {', '.join(unknown)}" if unknown else "")
        status = str(cells.pop("status", STATUSES[0])).strip().lower()
        if status == STATUSES[0]:
            row = result_row(notes, **{name: float(value) for name, value in cells.items()})
        else:
            row = failed_row(failure_in({"status": status, "notes": notes})) | {"notes": notes}
        window, iterations = (given.get(name) for name in WINDOW)  # in which meters can measure its energy
        is_window = isinstance(window, list) and len(window) == 2 and all(map(is_number, window))
        is_count = isinstance(iterations, int) and is_whole(iterations) and iterations > 0
        if is_window and is_count and window[0] < window[1]:
            row |= {name: given[name] for name in WINDOW}
        return row


def _cells(given: Any, num_gpus: int) -> tuple[dict[str, Any], str]:
    """The result columns that hold something, or why they cannot be true, in words that follow "the result file"."""
    if not isinstance(given, dict):
        return {}, f"must hold an object of columns; got {given!r:.60}"
    nested = next((name for name in RESULTS if isinstance(given.get(name), dict | list)), None)
    if nested:
        return {}, f"is wrong: {nested} must be one value, got {given[nested]!r:.60}"
    cells = {name: given[name] for name in RESULTS if not is_blank(given.get(name)) and str(given[name]).strip()}
    if cells.get("status", "ok") == "ok" and "iteration_time_s" not in cells:
        if "iteration_time_s" in given:
            got = json.dumps(given["iteration_time_s"])
            return {}, f"is wrong: iteration_time_s must be a number of seconds; got {got:.60}"
        near = any(nearest_hint(key, ["iteration_time_s"]) for key in given)
        got = f"iteration_time_s is missing; got {', '.join(map(str, given)) or 'nothing'}"
        return {}, f"is wrong: {got:.200}" + ("; iteration_time_s is how it is spelled" if near else "")
    _, problems = check_measurements(pd.DataFrame([cells | {"num_gpus": num_gpus}]))
    return cells, f"is wrong: {problems[0].column}: {problems[0].message}" if problems else ""


class CommandLauncher(LocalLauncher):
    """Runs a plan as the user's own ``command``, which writes an object of result columns to ``{result}``.

    ``{folder}`` is a folder of its own; it stays in ``logs`` where that is given. On several nodes clocks and meters
    are the command's own affair, and the row says so.
    """

    name = CommandProgram.name
    on_nodes = ""
    log_name = "log.txt"
    program: CommandProgram

    def __init__(
        self, command: str | Sequence[str], limit_s: float = 1800.0, logs: Path | None = None,
        default_clocks: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(CommandProgram(command), limit_s, logs, default_clocks)

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        """``plan`` with the row that the command wrote, or with how it failed."""
        row, cluster = super().run(job, plan), job.cluster
        receives = "stage_clock_mhz" in self.program.template.fields
        sets = cluster.gpu.clock_min_mhz is not None and (receives or not is_blank(plan.get("stage_clock_mhz")))
        if row["status"] != STATUSES[0] or cluster.nodes == 1 or not sets:
            return row
        unset = "not set, and the command does not receive them: it has no {stage_clock_mhz}"
        words = f"clocks of {cluster.nodes} nodes were {'left to the command' if receives else unset}"
        return dict(row) | {"notes": joined_notes(row["notes"], words)}

    def script(self, job: Job, plan: Mapping[str, Any]) -> str:
        """The command line of ``plan``, as a shell would take it."""
        return sh_command(self.program.words(job, plan, Path(self.logs or "FOLDER"))) + "\n"
