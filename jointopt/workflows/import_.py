"""``import``: a launch script, a config or a log of a run into a job, the plan that it runs, and measured rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jointopt.core.errors import UsageError
from jointopt.core.facts import joined_notes
from jointopt.core.schema import COLUMNS, LAYOUT_COLUMNS
from jointopt.frameworks import meter_logs
from jointopt.frameworks.failures import failure_of
from jointopt.frameworks.import_files import ImportedRun, read_files, resolve_run
from jointopt.frameworks.logs import Batch, RunLog, fabric_of, flags_text, read_run, result_columns, window_of
from jointopt.frameworks.meter_logs import Trace, of_traces, of_windows, read_trace
from jointopt.frameworks.options import FileSettings
from jointopt.jobs.job import Job
from jointopt.jobs.model import LATENT
from jointopt.jobs.plans.text import format_plan, parse_plan, plan_assumptions, plan_records
from jointopt.measure.running import gpu_of_machine, read_process
from jointopt.report.imported import Imported
from jointopt.runs.rows import failed_row, is_blank, result_row
from jointopt.workflows.answers import accepts_paths, as_paths

WARM_UP = 5  # iterations


@accepts_paths
def import_(
    files: Sequence[str | Path] | str | Path = (), *, name: str = "", warmup: int = WARM_UP, run: int | None = None,
    pid: int | None = None, **given: Any,
) -> Imported:  # fmt: skip
    """The job, the plan that runs today and the measured rows of one run, from files that describe it, or a process.

    Parameters
    ----------
    files : path or sequence of paths, optional
        Launch script, config, logs.
    name : str, optional
        Of the job.
    warmup : int, optional
        First iterations of each log, which do not count.
    run : int, optional
        Which of several runs that a script starts, from 1.
    pid : int, optional
        A process of the run on this machine, a rank or what launched the ranks; what runs counts more than files.
    **given
        Values that no file states, or that count more: model, gpu, nodes, gpus_per_node, seq_length (tokens),
        global_batch_size (sequences), dtype, framework, vocab_size, inter_node_gbytes_per_s (GB/s); and ``set``, a
        mapping of fields (plan.tp), variables and arguments (by number) of scripts.

    Returns
    -------
    Imported
        ``job``, ``plan``, ``runs`` (rows of a measurement table), and the ``origins`` of all fields.

    Raises
    ------
    JobError
        For a file that no reader knows, and with one sentence on all that is missing.
    """
    given_files = as_paths("files", files)
    variables = {key: value for key, value in (given.get("set") or {}).items() if "." not in key}
    if not given_files and pid is None:
        raise UsageError("import needs files of a run, or the --pid of one of its processes; got neither.")
    settings = [*(() if pid is None else _of_process(pid, run, given)), *read_files(given_files, variables, run)]
    found = resolve_run(settings, name or (_name(given_files) if given_files else f"process-{pid}"), given)
    parsed = parse_plan(found.plan, found.job)
    record = plan_records(parsed.layouts, parsed.stage_clock_mhz, [0])[0]
    rows, remarks = _rows(settings, found, record, warmup)
    if rows:
        import pandas as pd

        from jointopt.runs.table import checked_results

        remarks = [*remarks, *checked_results(pd.DataFrame(rows))[1]]
    if found.plan.get("recompute", record["recompute"]) != record["recompute"]:
        place, kernel = found.origins["plan.recompute"], found.job.training.attention
        remarks += [f"{place} states recompute {found.plan['recompute']}, which drops attention scores: {kernel} keeps "
                    f"none, so the plan says {record['recompute']}"]  # fmt: skip
    assumed = [f"plan.{name}" for name in LAYOUT_COLUMNS if name not in found.plan]
    stated = "inter_node_gbytes_per_s" if given.get("inter_node_gbytes_per_s") else None
    network = {stated: found.job.cluster.inter_node_gbytes_per_s} if stated else {}
    return Imported(
        job=found.job, plan=record, plan_text=format_plan(parsed.layouts, parsed.stage_clock_mhz),
        runs=tuple(row | network for row in rows),
        formats={one.source: " and ".join(a.format for a in settings if a.source == one.source) for one in settings},
        unread={one.source: one.unread for one in settings if one.unread},
        without_effect=sum(one.without_effect for one in settings), remarks=(*found.remarks, *remarks),
        assumed=plan_assumptions(parsed), origins=dict.fromkeys(assumed, "assumed") | found.origins,
    )  # fmt: skip


def _of_process(pid: int, run: int | None, given: Mapping[str, Any]) -> list[FileSettings]:
    settings = read_process(pid, run)
    if not given.get("gpu") and not any(one.cluster.get("gpu") for one in settings) and (gpu := gpu_of_machine()):
        settings[0].cluster["gpu"], settings[0].origins["cluster.gpu"] = gpu, "this machine"
    return settings


def _name(files: Sequence[Path]) -> str:
    stem = "".join(c if c.isprintable() else "-" for c in files[0].stem).strip()
    return stem[:100] or "imported"


def _rows(
    settings: Sequence[FileSettings], run: ImportedRun, plan: Mapping[str, Any], warmup: int
) -> tuple[tuple[dict[str, Any], ...], list[str]]:
    """A measured row for each log, and remarks on those that hold none and on lines that are not read."""
    rows: list[dict[str, Any]] = []
    meters = _Meters.of(settings, run.job, warmup)
    remarks = [*meters.remarks]
    for one in (one for one in settings if one.log):
        try:
            result = _result(one, run.job, warmup, meters) | _conditions(one, settings, run.job)
        except ValueError as error:
            remarks.append(f"{one.source} gives no measured row: {error} (--warmup N leaves out the first N)")
            continue
        rows.append(_workload(run.job, one.source) | _layout(run.plan, plan) | result)
    if meters.windows and not rows:
        source = next(one.source for one in settings if one.meter)
        result = result_row(meters.words, **meters.windows)
        rows.append(_workload(run.job, source) | _layout(run.plan, plan) | result)
    if meters.traces and not rows:
        remarks.append("no log states when iterations ran: the trace gives no energy")
    return tuple(rows), remarks


@dataclass(frozen=True)
class _Meters:
    """Meters beside the logs of a run: columns of Zeus' windows with their clause, traces, and remarks on both."""

    windows: Mapping[str, float]
    words: str
    traces: tuple[Trace, ...]
    remarks: tuple[str, ...]

    @classmethod
    def of(cls, settings: Sequence[FileSettings], job: Job, warmup: int) -> _Meters:
        """From the files that meters wrote; lines that are no samples are remarked on where a file is a trace alone."""
        files = [one for one in settings if one.meter]
        logs = {one.source for one in settings if one.log}
        zeus_files = [one for one in files if meter_logs.is_zeus(one.meter)]
        traces = {one.source: read_trace(one.meter, one.source) for one in files if one not in zeus_files}
        remarks = [f"{source}: {trace.unread:,} lines that are not samples were skipped, "
                   f"such as {trace.first_unread[:60]!r}"
                   for source, trace in traces.items() if trace.unread and source not in logs]  # fmt: skip
        windows: tuple[Mapping[str, float], str] = {}, ""
        try:
            if zeus_files:
                windows = of_windows([one.meter for one in zeus_files], job.cluster.num_gpus, warmup)
        except ValueError as error:
            remarks.append(f"{zeus_files[0].source} gives no energy: {error}")
        return cls(*windows, tuple(traces.values()), tuple(remarks))

    def added_to(self, row: Mapping[str, Any], log: RunLog, num_gpus: int) -> dict[str, Any]:
        """``row`` with what meters know of its iterations: results that it has already stay, notes state the source."""
        found, words, reason = {n: v for n, v in self.windows.items() if n != "iteration_time_s"}, self.words, ""
        if self.traces:
            try:
                window = window_of(log)
                reading, source = of_traces(self.traces, window, num_gpus)
                reason = reading.reason
                words = words or source
                found = reading.results(window.iterations) | found
            except ValueError as error:
                reason = f"the log states no window: {error}"
        out = dict(row) | {name: value for name, value in found.items() if is_blank(row.get(name))}
        if not is_blank(row["energy_j"]):
            return out
        missing = f"energy not measured{f': {reason}' if reason else ''}"
        return out | {"notes": joined_notes(row["notes"], missing if is_blank(out["energy_j"]) else words)}


def _result(one: FileSettings, job: Job, warmup: int, meters: _Meters) -> dict[str, Any]:
    """The result columns of a log: measured, or out of memory."""
    failure = failure_of(one.log, 1, False, 0.0) if "Traceback" in one.log or "out of memory" in one.log else None
    if failure is not None and failure.status == "oom":
        row = failed_row(failure)
        del row["failure"]
        return row
    batch = Batch(job.training.global_batch_size, job.training.seq_length, job.cluster.num_gpus)
    log = read_run(one.log, warmup, batch)
    return meters.added_to(result_columns(log, job.cluster.num_gpus, metered=True), log, job.cluster.num_gpus)


_PLAIN_ATTENTION = dict.fromkeys(
    ("window_size", "window_attn_skip_freq", "layers", *LATENT, "position_embedding"), math.nan
)


def _workload(job: Job, source: str) -> dict[str, Any]:
    """The workload columns of a job, in the order of measurement tables."""
    training, cluster, model = job.training, job.cluster, job.model
    values = {
        **vars(model), **_PLAIN_ATTENTION, **model.attention_cells,
        "source": f"import of {source}", "group": job.name, "model": model.name,
        "seq_length": training.seq_length, "global_batch_size": training.global_batch_size, "dtype": training.precision,
        "attention": "" if training.attention_assumed else training.attention, "framework": training.framework.name,
        "gpu": cluster.gpu.id, "gpus_per_node": cluster.gpus_per_node, "num_gpus": cluster.num_gpus,
        **training.adapter_and_recipe_cells, **training.settings,
        "token_dispatcher": training.token_dispatcher or math.nan,
    }  # fmt: skip
    names = [column.name for column in COLUMNS.values() if column.role == "workload" and column.name in values]
    found: dict[str, Any] = {name: values[name] for name in names}
    return found if model.is_moe else found | {"moe_ffn_hidden_size": math.nan}


def _conditions(log: FileSettings, files: Sequence[FileSettings], job: Job) -> dict[str, Any]:
    """The columns that a row states beside its plan and its job: flags that matter, the fabric; bounds of a release."""
    flags = {name: value for one in (*reversed(files), log) for name, value in one.flags.items()}
    release = {} if job.training.framework_release or not log.version else {"framework_release": log.version}
    return release | {"framework_flags": flags_text(flags) or math.nan, "fabric": fabric_of(log.log) or math.nan}


def _layout(stated: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """The plan columns; those that no file states stay blank, and so do the clocks."""
    return {name: plan[name] if name in stated else math.nan for name in LAYOUT_COLUMNS}
