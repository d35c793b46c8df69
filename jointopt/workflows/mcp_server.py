"""An MCP server: verbs that agents call, on jobs in one folder; nothing is written without leave, no shell is run."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools.base import Tool
from mcp_types import ToolAnnotations
from pydantic import ValidationError

from jointopt.core.errors import JointOptError, UsageError, nearest_hint
from jointopt.core.input_files import only_in
from jointopt.core.quote import sh_command
from jointopt.frameworks.exported import start_command
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import job_file, load_job, parse_job, shipped_jobs, with_changes
from jointopt.jobs.reading import quoted_value
from jointopt.report.listing import listing
from jointopt.report.schemas import schema_of
from jointopt.report.tables import Result, plain
from jointopt.workflows.compare import compare
from jointopt.workflows.explain import explain
from jointopt.workflows.export import export, write
from jointopt.workflows.fleet import fleet
from jointopt.workflows.follow import follow
from jointopt.workflows.goodput import goodput
from jointopt.workflows.propose import propose
from jointopt.workflows.scale import scale
from jointopt.workflows.watch import watch

PLANS, STEPS = 12, 48  # of a front and of a schedule, that an answer lists
INSTRUCTIONS = (
    "jointopt chooses the parallel layout and the GPU clocks of an LLM training job. Start with `propose`; its answer "
    "names a recommended plan, how much better it is with 90 % intervals, and the settings it hangs on: ask the user "
    "for those, or state them in `changes`. `job` is a job file's path, the name of a shipped job, or a mapping as in "
    "a job file. `next` has the shell command that goes on from an answer; in it job.yaml stands for a job given as a "
    "mapping (`job_file` of the answer of `propose`). Plans are words such as "
    "'dp=8 tp=4 pp=2 micro_batch_size=1 clock_mhz=1600'."
)
JobGiven = str | dict[str, Any]
PlanGiven = str | dict[str, Any]
Kind = Literal["gpus", "models", "frameworks", "clusters", "jobs", "recipes"]
Verb = Callable[..., dict[str, Any]]


def server_of(folder: Path, *, writes: bool = False) -> MCPServer[Any]:
    """The server whose files lie in ``folder`` alone; ``writes``: exports may be written there."""
    from jointopt import __version__

    tools = []
    for tool in Tools(folder.resolve(), writes=writes).all():
        read_only = ToolAnnotations(read_only_hint=not (writes and tool.__name__ == "export"), open_world_hint=False)
        tools.append(_Tool.from_function(tool, annotations=read_only, structured_output=True))
        tools[-1].parameters["additionalProperties"] = False
        tools[-1].fn_metadata.output_schema = _output_schema(tool.__name__)
    return MCPServer("jointopt", instructions=INSTRUCTIONS, version=__version__, tools=tools)


class _Tool(Tool):
    """A tool that refuses unknown, missing and mistyped arguments by name, each in one sentence."""

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> Any:
        """As of `Tool`; a ToolError for an argument that it does not take."""
        known = self.parameters["properties"]
        for name in arguments.keys() - known.keys():
            raise ToolError(
                f"{self.name} takes no argument {name!r}{nearest_hint(name, known)}; it takes {', '.join(known)}."
            )
        try:
            self.fn_metadata.validate_arguments(arguments)
        except ValidationError as error:
            name, reasons = error.errors()[0]["loc"][0], dict[str, None]()
            for one in error.errors():
                if one["loc"][0] == name:  # a reason for each kind that it may be of
                    reasons[one["msg"].removeprefix("Input should be ")] = None
            if name not in arguments:
                raise ToolError(f"{self.name} needs the argument {name!r}.") from error
            got = quoted_value(arguments[str(name)])
            raise ToolError(f"{name} of {self.name} must be {' or '.join(reasons)}; got {got}.") from error
        return await super().run(arguments, context, convert_result)


def _output_schema(verb: str) -> dict[str, Any]:
    """The keys of a tool's answer with their kinds, from the schema of the command's document, which says more."""
    kinds: dict[str, Any] = {}
    for name, one in schema_of(verb).get("properties", {}).items():
        types = one.get("type", [])
        types = dict.fromkeys([types] if isinstance(types, str) else types) | {"null": None}
        stated = {"type": list(types)} if len(types) > 1 else {}
        kinds[name] = stated | {key: text for key, text in one.items() if key == "description"}
    return {"type": "object", "properties": kinds}


class Tools:
    """The verbs of the server, each from plain values to one JSON document."""

    def __init__(self, folder: Path, *, writes: bool) -> None:
        self._folder, self._writes = folder, writes

    def all(self) -> list[Verb]:
        """The tools as the server takes them: what a verb refuses is their error, in its one sentence."""
        verbs = (self.propose, self.explain, self.compare, self.scale, self.goodput, self.follow, self.fleet,
                 self.watch, self.export, self.catalog)  # fmt: skip
        return [self._guarded(tool) for tool in verbs]

    def propose(self, job: JobGiven, changes: dict[str, Any] | None = None, baseline: str = "") -> dict[str, Any]:
        """Search all layouts and clocks of a job; recommends one plan of the Pareto front.

        `changes`: keys of the job file by their dotted name, such as {"cluster.nodes": 16, "training.framework":
        "megatron-lm"}. `baseline`: the plan that runs today, to be compared with. The answer has the decision as text,
        plans of the front, and the settings that the time hangs on.
        """
        if baseline and not (set(baseline) & set("={")):  # a file, and no plan in words
            baseline = str(self._inside(baseline))
        found = propose(self._job(job, changes), baseline=baseline, source=_job_words(job, changes))
        document = found.to_dict()
        numbers = sorted({*range(0, len(found), max(1, len(found) // PLANS)), found.decision.row})
        plans = [{"number": row + 1, "plan": repr(found[row]), **_figures(document["front"][row])} for row in numbers]
        keys = ("job_file", "decision", "hangs_on", "doubts", "assumed", "joint", "space", "next")
        answer = {key: document[key] for key in keys} | {"text": found.text(brief=True), "plans": plans}
        answer["joint"] = {key: value for key, value in (answer["joint"] or {}).items() if key != "two_step_front"}
        return answer | {"plans_in_all": len(found)}

    def explain(self, job: JobGiven, plan: PlanGiven, changes: dict[str, Any] | None = None) -> dict[str, Any]:
        """Take one plan apart: time, energy and memory by part and stage, and why it is or is not feasible."""
        of = self._job(job, changes)
        found = explain(of, plan)
        start = start_command(of, found.plan, _job_words(job, changes), _plan_words(plan)) if found.feasible else None
        return found.to_dict() | {"text": found.text(brief=True), "next": start}

    def compare(self, job: JobGiven, plans: list[PlanGiven], changes: dict[str, Any] | None = None) -> dict[str, Any]:
        """Two to eight plans side by side, each against the first, and what makes the difference."""
        given = [_plan_words(plan) for plan in plans]
        found = compare(self._job(job, changes), plans, source=_job_words(job, changes), given=given)
        row, why = found.best
        answer = found.to_dict() | {"decision": {"plan_number": row + 1, "because": why}}
        return answer | {"text": found.text(brief=True), "next": found.next_command}

    def scale(
        self, job: JobGiven, gpus: list[int], changes: dict[str, Any] | None = None, deadline_days: float | None = None,
        budget: float | None = None, site_kw: float | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """The job on other numbers of GPUs: time, energy and cost; limits pick one."""
        limits = {"deadline_days": deadline_days, "budget": budget, "site_kw": site_kw}
        found = scale(self._job(job, changes), gpus, source=_job_words(job, changes), **limits)  # type: ignore[arg-type]
        found = replace(found, pick=found.chosen) if any(size.plans for size in found.sizes) else found
        answer = {key: value for key, value in found.to_dict().items() if key != "front"}
        answer |= {"text": found.text(brief=True), "next": found.next_command if found.pick else None}
        for size in answer["sizes"]:
            size["plans"] = size["plans"][:1]  # the fastest; the others stand in the text
        return answer

    def goodput(
        self, job: JobGiven, plan: PlanGiven | None = None, changes: dict[str, Any] | None = None,
        logs: list[str] | None = None, simulate: int = 0,
    ) -> dict[str, Any]:  # fmt: skip
        """The whole run of `training.run_tokens`: time, energy and money with failures, checkpoints and repairs.

        `changes` may state keys of `reliability`. `logs`: of one run of the job, and tables of sacct, in the folder,
        which say how often it fails. `simulate`: so many runs are played event by event too.
        """
        files = [self._inside(log) for log in logs or ()]
        return _whole(goodput(self._job(job, changes), plan, logs=files, simulate=simulate))

    def follow(
        self, job: JobGiven, signal: str | dict[str, list[float | None]], plan: PlanGiven | None = None,
        changes: dict[str, Any] | None = None, tokens_by: float | None = None, dwell_s: float = 0.0,
        ramp_kw_per_min: float | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """The clocks of a plan over limits, reductions, prices or carbon of the site's power, and what that loses.

        `signal`: a CSV file, or columns by name: `time_s`, the starts of steps and their end, and one of `limit_kw`,
        `reduce_percent`, `price_per_kwh`, `carbon_g_per_kwh`, whose last value is null. The answer has the first steps.
        """
        given = self._inside(signal) if isinstance(signal, str) else pd.DataFrame(signal)
        asked = {"tokens_by": tokens_by, "dwell_s": dwell_s, "ramp_kw_per_min": ramp_kw_per_min}
        answer = _whole(follow(self._job(job, changes), plan, signal=given, **asked))  # type: ignore[arg-type]
        return answer | {"schedule": answer["schedule"][:STEPS], "steps_in_all": len(answer["schedule"])}

    def fleet(
        self, jobs: list[JobGiven], site_kw: float, fleet_file: str | dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The power of a site between several jobs: a plan with its clocks and size, or a pause, for each.

        `fleet_file`: a file, or a mapping as in it, of priorities, deadlines, sizes, and limits of rows and racks.
        """
        terms = self._inside(fleet_file) if isinstance(fleet_file, str) else fleet_file
        return _whole(fleet([self._job(job, None) for job in jobs], site_kw=site_kw, fleet_file=terms))

    def watch(
        self, logs: list[str], plan: PlanGiven | None = None, job: JobGiven | None = None,
        gpus_per_node: int | None = None, rebalance: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Which ranks of a run are slow, since when, of which kind, and what that costs, by its logs in the folder.

        `rebalance`: also the clocks that save energy meanwhile; needs `job` and `plan`.
        """
        files, of = [self._inside(log) for log in logs], None if job is None else self._job(job, None)
        return _whole(watch(files, plan, job=of, gpus_per_node=gpus_per_node, rebalance=rebalance))

    def export(
        self,
        job: JobGiven,
        plan: PlanGiven,
        target: str = "",
        changes: dict[str, Any] | None = None,
        out: str = "",
        allow_tight: bool = False,
    ) -> dict[str, Any]:
        """What starts a plan: words and files for a target; nothing is run.

        `target`: megatron, megatron-bridge, torchtitan, deepspeed, nanotron, accelerate, slurm or kubernetes; by
        default what runs the job's framework. `allow_tight`: also a plan that is not expected to fit in memory. `out`
        writes the files into the folder, where the server may.
        """
        found = export(self._job(job, changes), plan, target, allow_tight=allow_tight)
        document = found.to_dict() | {"text": found.text()}
        if out:
            if not self._writes:
                raise UsageError(
                    "This server writes nothing; start it with `jointopt mcp --write`, or leave `out` away."
                )
            place = self._inside(out)
            if place.exists():
                raise UsageError(f"{out} exists already, and is not written over; choose a new name for out.")
            document["written"] = [str(path) for path in write(found, place)]
        return document

    def catalog(self, kind: Kind) -> dict[str, Any]:
        """What is known by name."""
        with only_in(job_file("opt-350m-2x4-a100").parents[1]):  # where the shipped jobs are
            return {kind: listing(kind)}

    def _job(self, given: JobGiven, changes: Mapping[str, Any] | None) -> Job:
        """The job of a file in the folder, of a shipped job's name, or of a mapping."""
        if isinstance(given, str):
            if given in shipped_jobs():
                with only_in(job_file(given).parent):
                    return load_job(given, changes or {})
            return load_job(self._inside(given), changes or {})
        return with_changes(parse_job(given, "job", self._folder), changes or {})

    def _inside(self, path: str) -> Path:
        """A path in the folder; UsageError for one outside."""
        found = (self._folder / path).resolve()
        if not found.is_relative_to(self._folder):
            raise UsageError(f"{path} is outside of the folder of this server; expected a path in {self._folder}.")
        return found

    def _guarded(self, tool: Verb) -> Verb:
        @functools.wraps(tool)
        def run(*args: Any, **options: Any) -> dict[str, Any]:
            try:
                with only_in(self._folder):
                    found: dict[str, Any] = plain(tool(*args, **options))
                    return found
            except (JointOptError, OSError, ValueError) as error:
                raise ToolError(str(error)) from error

        return run


def _job_words(given: JobGiven, changes: Mapping[str, Any] | None) -> str:
    """How a shell names the job; job.yaml stands for a mapping."""
    words = [given if isinstance(given, str) else "job.yaml"]
    for key, value in (changes or {}).items():
        words += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    return sh_command(words)


def _plan_words(plan: PlanGiven) -> str:
    """How a shell names the plan."""
    return sh_command(["--plan", plan if isinstance(plan, str) else json.dumps(plan)])


def _whole(found: Result) -> dict[str, Any]:
    """The document of a result, with its text."""
    return found.to_dict() | {"text": found.text()}


def _figures(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Time, energy, power and memory of an entry of a front."""
    names = ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib", "fit_probability")
    return {name: entry.get(name) for name in names}
