"""What a proposal says beside its plans: where they were not checked, and the command that comes next."""

from __future__ import annotations

import numpy as np

from jointopt.core.errors import JointOptError
from jointopt.core.quote import sh_word
from jointopt.core.schema import Columns
from jointopt.frameworks.exported import exported
from jointopt.frameworks.intent import intent_of
from jointopt.frameworks.targets import TARGETS, program_of
from jointopt.jobs.plans.text import PLAN_KEYS
from jointopt.report.doubts import unlike_recorded_runs
from jointopt.report.plans import short_plan
from jointopt.report.proposal import Proposal
from jointopt.report.tables import plan_entries
from jointopt.surrogate.intervals import DOUBTS
from jointopt.surrogate.job_model import JobModel


def domain_doubts(model: JobModel, front: Columns) -> tuple[str, ...]:
    """An assumed range of clocks, then why plans are outside of what was checked, each with its number of plans."""
    clocks = [model.job.assumed_clocks] if model.job.assumed_clocks else []
    unsupported = np.asarray(front["in_domain"]) == False  # noqa: E712  an array of objects has blanks too
    found = {DOUBTS[name]: of & unsupported for name, of in model.doubts(front).items()}
    found[unlike_recorded_runs(model.name, model.job)] = unsupported & ~np.logical_or.reduce(list(found.values()))
    counts = {why: int(of.sum()) for why, of in found.items()}
    return (*clocks, *(f"{why} ({count:,} plan{'s' * (count != 1)})" for why, count in counts.items() if count))


def next_command(proposal: Proposal) -> dict[str, str] | None:
    """The command that starts the first row as a shell takes it, a line per option, and a note on it.

    That is the export to its job's framework; where this has no words for the plan, the command that explains it.
    None where no shell named the job.
    """
    front, source, priced = proposal.front, proposal.source, proposal.job.training.framework
    if not source or not len(front["pp"]):
        return None
    plan = {name: value for name, value in plan_entries(front, [0])[0].items() if name in PLAN_KEYS}
    wanted = f"--plan {sh_word(short_plan(front, 0))}"
    try:
        program = program_of(intent_of(proposal.job, plan))
        name = next(name for name, target in TARGETS.items() if target is program)
        exported(proposal.job, plan, name)
    except JointOptError as error:
        note = f"Next: no start script of the first row ({str(error).rstrip('.')}); what it is made of:"
        return {"command": f"jointopt explain {source} \\\n  {wanted}", "note": note}
    note = "Next, what starts the first row:"
    if program.remark(priced):
        note = (
            f"Next, what starts the first row in {name}, although {priced.name} software was priced: "
            "--set training.framework=NAME prices yours."
        )
    return {"command": f"jointopt export {source} --to {name} \\\n  {wanted}", "note": note}
