"""The command that comes after an answer: what starts its first row, as a shell reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jointopt.core.errors import JointOptError
from jointopt.core.quote import sh_word
from jointopt.frameworks.intent import intent_of
from jointopt.frameworks.targets import TARGETS, program_of
from jointopt.jobs.job import Job
from jointopt.report.exported import exported
from jointopt.report.table import paragraphs


@dataclass(frozen=True)
class NextCommand:
    """A command as a shell takes it, a line per option, and what to know before it is run."""

    command: str
    note: str

    def lines(self) -> list[str]:
        """For people: the note, then the command as it is pasted."""
        return [*paragraphs([self.note]), *(f"  {line}" for line in self.command.split("\n"))]


def next_command(job: Job, plan: Mapping[str, Any], text: str, source: str) -> NextCommand | None:
    """The export of a plan, which ``text`` writes as `--plan` takes it, in its job's framework.

    ``source``: the words that name the job, a file or options. None where they are not known. Where the framework has
    no words for the plan, the command that explains it.
    """
    if not source:
        return None
    wanted = f"--plan {sh_word(text)}"
    try:
        name = next(n for n, target in TARGETS.items() if target is program_of(intent_of(job, plan)))
        exported(job, plan, name)
    except JointOptError as error:
        command = f"jointopt explain {source} \\\n  {wanted}"
        return NextCommand(
            command, f"Next: no start script of the first row ({str(error).rstrip('.')}); what it is made of:"
        )
    note = "Next, what starts the first row:"
    if TARGETS[name].remark(priced := job.training.framework):
        note = (
            f"Next, what starts the first row in {name}, although {priced.name} software was priced: "
            "--set training.framework=NAME prices yours."
        )
    return NextCommand(f"jointopt export {source} --to {name} \\\n  {wanted}", note)
