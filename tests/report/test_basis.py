"""The ground of predictions, as it is printed and as a document."""

from __future__ import annotations

from jointopt.core.facts import Assumption
from jointopt.jobs.jobfile import shipped_job
from jointopt.report.plans import MOST_LINES, basis_lines
from jointopt.report.tables import plain
from jointopt.workflows.answers import assumptions


def test_assumptions_of_one_topic_share_a_line_and_others_have_their_own() -> None:
    given = [
        Assumption.not_given("pp", 1, "1"),
        Assumption.not_given("pue", 1.58, "1.58", "1.58 is assumed (a survey)"),
    ]
    kernels = Assumption("gemm", "hopper", "matrix products of l40s: a (b)", "kernels of l40s", "matrix products: a")
    lines = basis_lines([given[0], Assumption("network", None, "network: c"), kernels, given[1]], {})
    assert lines[1:] == ["- not given: pp 1; pue 1.58", "- kernels of l40s: matrix products: a", "- network: c"]


def test_constants_of_the_gpu_that_stands_in_are_counted_in_the_text_and_sentences_of_the_document() -> None:
    assumed = assumptions(shipped_job("llama-3-8b-1x8-h100"))
    (line,) = [line for line in basis_lines(assumed, {}) if line.startswith("- h100-sxm5-80gb: ")]
    assert "those of h200-sxm-141gb; 4 of these are assumed there too" in line
    assert sum(sentence.startswith("h200-sxm-141gb: ") for sentence in plain(assumed)) == 4


def test_many_assumptions_stay_few_lines() -> None:
    lines = basis_lines([Assumption("", i, f"topic {i}: {'word ' * 30}") for i in range(20)], {})
    assert len(lines) == MOST_LINES + 1
    assert "--json" in lines[-1]


def test_runs_that_corrected_the_predictions_are_counted_by_place() -> None:
    assert "1,200 in runs.csv" in basis_lines([], {"runs.csv": 1200})[0]
