"""``import``: a launch script, a config or a log of a run into a job, the plan that it runs, and measured rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jointopt.core.schema import COLUMNS, LAYOUT_COLUMNS
from jointopt.measure.imports.files import read_file
from jointopt.measure.imports.resolve import Resolved, resolved
from jointopt.measure.imports.taken import Taken
from jointopt.measure.launchers.failures import failure_of
from jointopt.measure.launchers.rows import failed_row, result_row
from jointopt.measure.logs import zeus
from jointopt.measure.logs.conditions import fabric_of, flags_text, version_of
from jointopt.measure.logs.iterations import measured
from jointopt.measure.logs.others import Batch
from jointopt.measure.logs.run import read_run
from jointopt.report.imported import Comparison, Imported
from jointopt.spec.job import Job
from jointopt.spec.plans.parse import format_plan, parse_plan, plan_assumptions, plan_records

if TYPE_CHECKING:
    import pandas as pd

WARM_UP = 5  # iterations


def import_(files: Sequence[Path], *, name: str = "", warmup: int = WARM_UP, **given: Any) -> Imported:
    """The job, the plan that runs today and the measured rows of one run, from the files that describe it.

    ``given``: values that no file states, or that count more: model, gpu, nodes, gpus_per_node, seq_length,
    global_batch_size, dtype, framework, vocab_size, inter_node_gbytes_per_s. ``warmup`` iterations of each log do not
    count. Raises JobError for a file that no reader knows, and with one sentence on all that is missing.
    """
    taken = [one for path in files for one in read_file(path)]
    run = resolved(taken, name or _name(files), given)
    parsed = parse_plan(run.plan, run.job)
    record = plan_records(parsed.layouts, parsed.stage_clock_mhz, [0])[0]
    rows, remarks = _rows(taken, run, record, warmup)
    network = {name: given[name] for name in ("inter_node_gbytes_per_s",) if given.get(name)}
    return Imported(
        job=run.job, plan=record, plan_text=format_plan(parsed.layouts, parsed.stage_clock_mhz),
        runs=tuple(row | network for row in rows),
        formats={one.source: one.format for one in taken},
        unread={one.source: one.unread for one in taken if one.unread},
        without_effect=sum(one.without_effect for one in taken), remarks=(*run.remarks, *remarks),
        assumed=plan_assumptions(parsed),
    )  # fmt: skip


def with_proposals(imported: Imported, **options: Any) -> Imported:
    """The import with the plans that `propose` finds beside the one that runs, and what each is expected to gain.

    ``options`` as those of `propose`; the measured rows move its predictions.
    """
    from jointopt.workflows.explain import explain
    from jointopt.workflows.propose import propose

    if imported.runs:
        options["measured"] = _with(options.get("measured"), imported.frame())
    proposal = propose(imported.job, **options)
    basis = ("surrogate", "measured", "calibration", "storage", "machine")
    own = {key: value for key, value in options.items() if key in basis}
    today = explain(imported.job, imported.plan, **own)
    return dataclasses.replace(imported, comparison=Comparison.of(proposal, today, imported.runs))


def _with(earlier: Any, rows: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    return rows if earlier is None else pd.concat([earlier.table, rows], ignore_index=True)


def _name(files: Sequence[Path]) -> str:
    stem = "".join(c if c.isprintable() else "-" for c in files[0].stem).strip()
    return stem[:100] or "imported"


def _rows(
    taken: Sequence[Taken], run: Resolved, plan: Mapping[str, Any], warmup: int
) -> tuple[tuple[dict[str, Any], ...], list[str]]:
    """A measured row for each log, and a remark for each that holds none."""
    rows: list[dict[str, Any]] = []
    remarks: list[str] = []
    logs = [one for one in taken if one.log]
    windows = [one for one in logs if zeus.is_zeus(one.log)]
    for one in (one for one in logs if one not in windows):
        try:
            result = _result(one, run.job, warmup) | _conditions(one, taken, run.job)
        except ValueError as error:
            remarks.append(f"{one.source} gives no measured row: {error} (--warmup N leaves out the first N)")
            continue
        rows.append(_workload(run.job, one.source) | _layout(run.plan, plan) | result)
    try:
        metered = _metered(windows, run.job, warmup)
    except ValueError as error:
        return tuple(rows), [*remarks, f"{windows[0].source} gives no energy: {error}"]
    if metered and not rows:
        rows.append(_workload(run.job, windows[0].source) | _layout(run.plan, plan) | metered)
    missing = {name: metered[name] for name in ("energy_j", "avg_power_w") if name in metered}
    return tuple(row if row.get("energy_j", 0.0) > 0 else row | missing for row in rows), remarks


def _metered(files: Sequence[Taken], job: Job, warmup: int) -> dict[str, Any]:
    """The result columns of windows of Zeus, the energies of all processes together; empty without files."""
    if not files:
        return {}
    found = [zeus.read_windows(one.log, warmup) for one in files]
    gpus, seconds = sum(one.num_gpus for one in found), max(one.seconds for one in found)
    if gpus != job.cluster.num_gpus:
        raise ValueError(f"its files cover {gpus} of {job.cluster.num_gpus} GPUs; give those of all processes")
    joules = sum(one.energy_j for one in found)
    notes = f"{found[0].count} windows of Zeus"
    return result_row(notes, iteration_time_s=seconds, energy_j=joules, avg_power_w=joules / seconds / gpus)


def _result(one: Taken, job: Job, warmup: int) -> dict[str, Any]:
    """The result columns of a log: measured, or out of memory."""
    failure = failure_of(one.log, 1, False, 0.0) if "Traceback" in one.log or "out of memory" in one.log else None
    if failure is not None and failure.status == "oom":
        row = failed_row(failure)
        del row["failure"]
        return row
    batch = Batch(job.training.global_batch_size, job.training.seq_length, job.cluster.num_gpus)
    log = read_run(one.log, warmup, batch)
    return measured(log, job.cluster.num_gpus)


def _workload(job: Job, source: str) -> dict[str, Any]:
    """The workload columns of a job, in the order of measurement tables."""
    training, cluster, model = job.training, job.cluster, job.model
    values = {
        **vars(model), "source": f"import of {source}", "group": job.name, "model": model.name,
        "seq_length": training.seq_length, "global_batch_size": training.global_batch_size, "dtype": training.dtype,
        "attention": "" if training.attention_assumed else training.attention, "framework": training.framework.name,
        "gpu": cluster.gpu.id, "gpus_per_node": cluster.gpus_per_node, "num_gpus": cluster.num_gpus,
        "cuda_graph": training.cuda_graph or math.nan,
    }  # fmt: skip
    names = [column.name for column in COLUMNS.values() if column.role == "workload" and column.name in values]
    found: dict[str, Any] = {name: values[name] for name in names}
    return found if model.is_moe else found | {"moe_ffn_hidden_size": math.nan}


def _conditions(log: Taken, files: Sequence[Taken], job: Job) -> dict[str, Any]:
    """The columns that a row states beside its plan: the framework's version, flags that matter, the fabric."""
    version = version_of(log.log, job.training.framework.name) or log.version
    flags = {name: value for one in (*reversed(files), log) for name, value in one.flags.items()}
    texts = {"framework_version": version, "framework_flags": flags_text(flags), "fabric": fabric_of(log.log)}
    return {name: text or math.nan for name, text in texts.items()}


def _layout(stated: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """The plan columns; those that no file states stay blank, and so do the clocks."""
    return {name: plan[name] if name in stated else math.nan for name in LAYOUT_COLUMNS}
