"""The results of all verbs: frozen objects with `to_dict`, `to_frame` and `text`."""

from jointopt.report.comparison import Compared
from jointopt.report.diagnosis import Diagnosis, Feature
from jointopt.report.effective_time import Goodput, Outcome
from jointopt.report.explanation import Explanation, Stage
from jointopt.report.polished import Polished, PolishedPoint
from jointopt.report.proposal import Proposal, WorkerSummary
from jointopt.report.real_runs import MeasuredRun, Tuned, TunedRun, Validated, ValidatedRun
from jointopt.report.scores import Calibrated, Evaluation, Retrained
from jointopt.report.selection import AS_GIVEN, Limit, Relaxation, Selection

__all__ = [
    "AS_GIVEN",
    "Calibrated",
    "Compared",
    "Diagnosis",
    "Evaluation",
    "Explanation",
    "Feature",
    "Goodput",
    "Limit",
    "MeasuredRun",
    "Outcome",
    "Polished",
    "PolishedPoint",
    "Proposal",
    "Relaxation",
    "Retrained",
    "Selection",
    "Stage",
    "Tuned",
    "TunedRun",
    "Validated",
    "ValidatedRun",
    "WorkerSummary",
]  # fmt: skip
