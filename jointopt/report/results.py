"""The results of all verbs: frozen objects with `to_dict`, `to_frame` and `text`."""

from jointopt.report.calibrated import Calibrated
from jointopt.report.evaluation import Evaluation
from jointopt.report.explanation import Explanation, Stage
from jointopt.report.measured_run import MeasuredRun
from jointopt.report.polished import Polished, PolishedPoint
from jointopt.report.proposal import Proposal
from jointopt.report.retrained import Retrained
from jointopt.report.selection import AS_GIVEN, Limit, Relaxation, Selection
from jointopt.report.tuned import Tuned, TunedRun
from jointopt.report.validated import Validated, ValidatedRun

__all__ = [
    "AS_GIVEN", "Calibrated", "Evaluation", "Explanation", "Limit", "MeasuredRun", "Polished", "PolishedPoint",
    "Proposal", "Relaxation", "Retrained", "Selection", "Stage", "Tuned", "TunedRun", "Validated", "ValidatedRun",
]  # fmt: skip
