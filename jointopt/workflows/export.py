"""``export``: what starts a plan in another framework or on a batch system, written without either."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jointopt.core.atomic_write import write_whole
from jointopt.measure.exports.intent import BENCHMARK
from jointopt.measure.exports.targets import version_in
from jointopt.report.exported import Exported, exported
from jointopt.spec.job import Job

_log = logging.getLogger(__name__)


def export(
    job: Job, plan: str | Mapping[str, Any], target: str, *, version: str = "", purpose: str = BENCHMARK,
    checkout: Path | None = None, program: str = "", arguments: str = "",
) -> Exported:  # fmt: skip
    """The words and files that start ``plan`` in ``target``; PlanError for a plan that is none of the job's.

    ``checkout`` of Megatron-LM states the version, ``program`` is what a batch system starts, ``arguments`` are words
    of the program before those of the plan; ExportError names what the target has no words for.
    """
    if checkout is not None:
        version = version_in(checkout)
    found = exported(job, plan, target, version=version, purpose=purpose, program=program, arguments=arguments)
    for note in found.export.notes:
        _log.warning("%s", note)
    return found


def write(exported: Exported, path: Path) -> list[Path]:
    """The files that an export was written to: ``path`` itself where it is one file, else a folder of that name."""
    texts = dict(exported.export.files)
    if exported.export.program:
        texts["start.sh"] = exported.command()
    if len(texts) == 1 and not path.is_dir():
        write_whole(path, next(iter(texts.values())))
        return [path]
    path.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_whole(path / name, text)
    return [path / name for name in texts]
