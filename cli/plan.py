"""The option ``--plan``: words, a JSON mapping, or a plan in a JSON file or a study."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from jointopt.cli.common import FILE_JOB, STORED_JOB

Plan = str | dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])
_GIVEN = "jointopt.plans"  # of a click context: the texts that name its plans
_ANY_FILE = re.compile(r"(.+?)(?::(\d+))?")


class PlanType(click.ParamType[Any]):
    """Text of a plan as it is, or a mapping: of ``FILE.json``, of row 2 of ``FILE.json:2``, or of a study, ``NAME:2``.

    ``files`` alone may have any name.
    """

    name = "plan"

    def __init__(self, *, files: bool = False) -> None:
        self._pattern = _ANY_FILE if files else None

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text, or the plan as a mapping; UsageError where the file holds none."""
        if ctx is not None:
            ctx.meta.setdefault(_GIVEN, []).append(str(value))
        if not isinstance(value, str):
            return value
        from jointopt.core.quote import our_command
        from jointopt.workflows.plan_files import JSON_FILE, plan_in, plan_of_study, read_json

        found = (self._pattern or JSON_FILE).fullmatch(value.strip())
        if found is None:
            if not (stored := plan_of_study(value, ctx.params.get("storage") if ctx else None)):
                return value
            if ctx and ctx.meta.setdefault(STORED_JOB, stored[1]) != stored[1]:
                raise click.UsageError(f"{value} is of another job than the plan before it; expected plans of one job.")
            return stored[0]
        path = Path(found[1])
        if "=" in value and not path.exists():
            raise click.UsageError(
                f"--plan of {ctx.info_name if ctx else 'this command'} takes a JSON file of select or explain; got "
                f"{value!r} (`{our_command('explain', 'JOB', plan=value)} --json > plan.json` writes one)."
            )
        document = read_json(path)
        if ctx and isinstance(document, dict) and "job_file" in document:
            ctx.meta.setdefault(FILE_JOB, document["job_file"])
        return plan_in(document, str(path), path.name, int(found[2]) if found[2] else None)


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
