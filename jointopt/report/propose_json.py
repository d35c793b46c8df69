"""The document of ``jointopt propose --json``."""

from __future__ import annotations

from typing import Any

from jointopt.physics.facility import with_site
from jointopt.report.plain import plain, plan_entries
from jointopt.report.results import Proposal
from jointopt.spec.jobfile import job_mapping


def propose_document(proposal: Proposal) -> dict[str, Any]:
    """The whole proposal in plain lists, numbers and strings; seconds, joules, watts, GiB and MHz.

    ``front`` is sorted by time and holds no entry that another beats in time and energy; ``reference`` is the
    fastest plan with every clock at its maximum, or null where no such plan is feasible; ``job_file`` is the job, as
    its file would say it.
    """
    return {
        "job": proposal.job.name,
        "job_file": job_mapping(proposal.job),
        "seed": proposal.seed,
        "surrogate": proposal.surrogate,
        "informed_by": dict(proposal.informed_by),
        "space": {
            "considered": proposal.considered,
            "layouts": proposal.layouts,
            "feasible_layouts": proposal.feasible_layouts,
            "infeasible": plain(proposal.infeasible),
            "covered_plans": proposal.covered_plans,
            "evaluated_plans": proposal.evaluated_plans,
        },
        "front": plan_entries(with_site(proposal.job, proposal.front)),
        "reference": next(iter(plan_entries(with_site(proposal.job, proposal.reference))), None),
        "study": {"name": proposal.study_name, "storage": proposal.storage},
        "assumed": list(proposal.assumed),
        "seconds": plain(proposal.seconds),
    }
