"""The option ``--plan``: words, a JSON mapping, or a plan in a JSON file or a study."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from jointopt.cli.common import STORED_JOB

Plan = str | dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])
_GIVEN = "jointopt.plans"  # of a click context: the texts that name its plans
_JSON_FILE = re.compile(r"(\S.*\.json)(?::(\d+))?")
_STUDY = re.compile(r"([^={}]+):(-?\d+)")
_ANY_FILE = re.compile(r"(.+?)(?::(\d+))?")


class PlanType(click.ParamType[Any]):
    """Text of a plan as it is, or a mapping: of ``FILE.json``, of row 2 of ``FILE.json:2``, or of a study, ``NAME:2``.

    ``files`` alone may have any name.
    """

    name = "plan"

    def __init__(self, *, files: bool = False) -> None:
        self._pattern = _ANY_FILE if files else _JSON_FILE

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text, or the plan as a mapping; UsageError where the file holds none."""
        found = self._pattern.fullmatch(value.strip()) if isinstance(value, str) else None
        if ctx is not None:
            ctx.meta.setdefault(_GIVEN, []).append(str(value))
        if found is None and isinstance(value, str) and (stored := _STUDY.fullmatch(value.strip())):
            from jointopt.workflows.plan_files import plan_in
            from jointopt.workflows.stored_plans import front_of_study

            document = front_of_study(stored[1], ctx.params.get("storage") if ctx else None)
            if ctx and ctx.meta.setdefault(STORED_JOB, document["job_file"]) != document["job_file"]:
                raise click.UsageError(f"{value} is of another job than the plan before it; expected plans of one job.")
            return plan_in(document, f"study {stored[1]}", stored[1], int(stored[2]))
        if found is None:
            return value
        from jointopt.core.quote import our_command
        from jointopt.workflows.plan_files import read_plan_file

        if "=" in value and not Path(found[1]).exists():
            raise click.UsageError(
                f"--plan of {ctx.info_name if ctx else 'this command'} takes a JSON file of select or explain; got "
                f"{value!r} (`{our_command('explain', 'JOB', plan=value)} --json > plan.json` writes one)."
            )
        return read_plan_file(Path(found[1]), int(found[2]) if found[2] else None)


def plan_words(ctx: click.Context, storage: str | None) -> list[str]:
    """The options that name the plans of a command to a shell, each with the database of its study."""
    from jointopt.core.quote import sh_command
    from jointopt.runs.database import STORAGE

    place = [] if STORED_JOB not in ctx.meta or storage in (None, STORAGE) else ["--storage", str(storage)]
    return [sh_command(["--plan", text, *place]) for text in ctx.meta.get(_GIVEN, ())]


def option(more: str = "", *names: str, **settings: Any) -> Callable[[F], F]:
    """The option ``--plan`` of a command, required unless ``settings`` say otherwise; ``more`` ends its help."""
    words = "Words such as dp=4 tp=2, a JSON mapping, FILE.json of propose, select or explain (FILE.json:2: row 2), or "
    words += "STUDY:2"
    return click.option("--plan", *names, type=PlanType(), help=f"{words}{more}.", **{"required": True} | settings)
