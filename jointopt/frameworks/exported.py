"""What starts one plan in a framework or on a batch system: the answer of ``export``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from jointopt.core.errors import JointOptError, PlanError, UsageError
from jointopt.core.quote import html_text, sh_exports, sh_lines
from jointopt.core.short_repr import prompt_text
from jointopt.frameworks.intent import BENCHMARK, Export, Saving, folded, intent_of, node_words
from jointopt.frameworks.targets import TARGETS, program_of, target_named, target_of
from jointopt.jobs.job import Job
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.text import PLAN_KEYS, parse_plan, plan_assumptions


@dataclass(frozen=True, repr=False)
class Exported:
    """An export and the node that its command is for."""

    export: Export
    nodes: int
    gpus_per_node: int
    remark: str = ""  # that other software is started than was priced

    def to_dict(self) -> dict[str, Any]:
        """The JSON document: words, environment, world size, and the files."""
        return self.export.to_dict()

    def text(self) -> str:
        """The script of a batch system alone; else every file, and the command."""
        files = list(self.export.files.items())
        if not self.export.program:
            return "\n".join(text for _, text in files[:1])
        parts = [f"# {name}\n{text}" for name, text in files]
        return "\n".join([*parts, self.command()])

    def __repr__(self) -> str:
        return prompt_text(self.text())

    def _repr_html_(self) -> str:
        return f"<pre>{html_text(self.text())}</pre>"

    def command(self) -> str:
        """Lines of shell that start it on one node of ``NNODES``, numbered by ``NODE_RANK``."""
        start = folded(node_words(self.export, self.nodes, self.gpus_per_node))
        remark = [f"# {self.remark}"] if self.remark else []
        return "\n".join(["#!/bin/bash", *remark, *sh_exports(self.export.environment), start]) + "\n"


def exported(
    job: Job, plan: str | Mapping[str, Any], target: str, *, version: str = "", purpose: str = BENCHMARK,
    program: str = "", arguments: str = "", saving: Saving | None = None,
) -> Exported:  # fmt: skip
    """The words and files that start ``plan`` in ``target``, its notes among them; as `workflows.export.export`."""
    found = target_named(target)
    parsed = parse_plan(plan_without_predictions(plan), job)
    record = parsed.record
    if broken := check_plan(job, record):
        raise PlanError(" ".join(broken))
    try:
        own = shlex.split(arguments)
    except ValueError as error:
        raise UsageError(f"--arguments cannot be split into words: {error}; got {arguments!r:.200}.") from error
    intent = intent_of(job, record, purpose, arguments=own, saving=saving)
    made = found.export(intent, version, program)
    if saving:
        made = replace(made, notes=(*made.notes, *saving.notes))
    if remark := (program_of(intent, program) if found.around else found).remark(job.training.framework):
        files = dict(made.files)
        for name, text in files.items():  # a script has the remark below its first line; others may know no comments
            first, _, rest = text.partition("\n")
            files[name] = "\n".join([first, f"# {remark}", rest]) if first.startswith("#!") else text
        made = replace(made, notes=(*made.notes, remark), files=files)
    if assumed := [one.brief for one in plan_assumptions(parsed) if one.brief]:
        made = replace(made, notes=(*made.notes, f"The plan leaves open, and this is taken: {'; '.join(assumed)}."))
    return Exported(made, job.cluster.nodes, job.cluster.gpus_per_node, remark)


def other_target(job: Job, plan: str | Mapping[str, Any], target: str) -> str:
    """Another target that starts the plan in software of the same family, priced alike; blank where there is none."""
    family = target_named(target).family
    for name in (name for name, one in TARGETS.items() if family and one.family == family and name != target):
        with suppress(JointOptError):
            exported(job, plan, name)
            return name
    return ""


def start_command(job: Job, plan: Mapping[str, Any], source: str, given: str) -> dict[str, str]:
    """The command that starts a plan, in lines as a shell takes them, and a note on it.

    That is the export to its job's framework; where this has no words for the plan, to another of the same family, else
    the command that explains it. ``to`` is the target. ``source`` and ``given``: how a shell names the job and the
    plan, such as ``--plan STUDY:2``.
    """
    priced, job_word = job.training.framework, f" {source}" * bool(source)
    name, note = target_of(job), "What starts it:"
    try:
        exported(job, plan, name)
    except JointOptError as error:
        why, name = str(error).rstrip("."), other_target(job, plan, name)
        if not name:
            note = f"No start script of it ({why}); its parts:"
            return {"command": sh_lines(f"jointopt explain{job_word} {given}"), "note": note}
        note = f"What starts it ({why.partition(';')[0]}):"
    if target_named(name).remark(priced):
        note = f"What starts it in {name}, although {priced.name} was priced (--set training.framework=NAME):"
    return {"command": sh_lines(f"jointopt export{job_word} --to {name} {given}"), "note": note, "to": name}


def plan_without_predictions(plan: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    """The plan in an entry of a front, or in a document with one; else what was given."""
    if isinstance(plan, str):
        if not plan.lstrip().startswith("{"):
            return plan
        try:
            document = json.loads(plan)
        except ValueError:
            return plan  # `parse_plan` says what is wrong
        return plan_without_predictions(document) if isinstance(document, dict) else plan
    if isinstance(plan.get("plan"), Mapping):
        return plan_without_predictions(plan["plan"])
    if "iteration_time_s" in plan:  # predictions stand beside the plan
        return {key: value for key, value in plan.items() if key in PLAN_KEYS}
    if "front" in plan:
        raise UsageError("--plan is a whole proposal; give its file with a row, proposal.json:2, or one plan.")
    return plan
