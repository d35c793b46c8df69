"""What a notebook shows of results, and what type checkers know of the verbs."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jointopt
from jointopt.core.errors import UsageError
from jointopt.jobs.jobfile import shipped_job
from jointopt.report.results import Explanation, Proposal


def test_a_proposal_shows_its_front_as_a_table(make_proposal: Callable[..., Proposal]) -> None:
    html = make_proposal(5)._repr_html_()
    assert html.count("<tr") == 6
    assert "iteration_time_s" in html
    assert "Recommended (of 5 Pareto plans)" in html


def test_the_plot_has_every_plan_of_the_front_in_colours(make_proposal: Callable[..., Proposal]) -> None:
    proposal = make_proposal(5)
    figure = proposal.plot()
    (front,) = [trace for trace in figure.data if str(trace.name).startswith("dp=")]
    np.testing.assert_allclose(front.x, proposal.front["iteration_time_s"], rtol=1e-4)
    assert str(front.marker.color).startswith("#")
    assert "var(" not in figure.to_json()


def test_without_energies_there_is_no_plot(
    make_proposal: Callable[..., Proposal], make_front: Callable[..., Any]
) -> None:
    front = make_front(1, energy_j=np.array([np.nan]))
    with pytest.raises(UsageError, match="with nothing to plot"):
        make_proposal(front=front, reference=front).plot()


def test_other_results_show_their_text_with_nothing_that_html_would_read(
    make_explanation: Callable[..., Explanation],
) -> None:
    found = make_explanation(violations=("tp < 1 & pp",), feasible=False)._repr_html_()
    assert found.startswith("<pre>")
    assert "tp &lt; 1 &amp; pp" in found


def test_type_checkers_see_every_verb_that_is_imported_on_use() -> None:
    tree = ast.parse(Path(jointopt.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {(one.names[0].name, one.module) for one in block.body if isinstance(one, ast.ImportFrom)}
    assert typed == {(name, module) for name, module in jointopt._VERBS.items()}


def test_a_notebook_shows_the_decision_before_the_table() -> None:
    html = jointopt.propose(shipped_job("opt-350m-2x4-a100"))._repr_html_()
    first = html[: html.index("</pre>")]
    for words in ("Recommended", "proposal.recommended.export()", "Against the fastest", "(90 %:", "--set KEY=VALUE"):
        assert words in first
