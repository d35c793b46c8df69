"""The page of a proposal: one file that loads nothing from the network and shows what was found."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jointopt.core.errors import UsageError
from jointopt.jobs.jobfile import load_job, shipped_job
from jointopt.physics.explain.timeline import timeline
from jointopt.report.page.choice import ProposalReport, chosen_plans, encoded_passes, mean_power_w
from jointopt.report.results import Proposal
from jointopt.report.tables import figure
from jointopt.workflows.propose import propose

MOST_BYTES = 6_000_000


@pytest.fixture(scope="module")
def proposal() -> Proposal:
    return propose(shipped_job("llama-3-70b-4x8-h200"))


@pytest.fixture(scope="module")
def made(proposal: Proposal) -> ProposalReport:
    reported = proposal.report()
    assert len(reported.plans) > 2
    return reported


@pytest.fixture(scope="module")
def html(made: ProposalReport) -> str:
    return made.page.html()


def own(html: str) -> str:
    """The page without Plotly's program."""
    return re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)


def data(html: str) -> Any:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    return json.loads(text)


def test_the_page_loads_nothing(html: str) -> None:
    assert re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=[\"'](?!data:)", own(html)) == []
    assert re.findall(r"@import|url\(", own(html)) == []
    assert len(html.encode()) < MOST_BYTES


def test_all_plans_of_the_front_and_the_two_step_answer_are_in_the_picture(proposal: Proposal, html: str) -> None:
    traces = data(html)["figures"]["front"]["data"]
    by_layout = [trace for trace in traces if trace["name"].startswith("dp=")]
    assert sum(len(trace["x"]) for trace in by_layout) == len(proposal.front["pp"])
    assert all("dp=" in text for trace in by_layout for text in trace["text"])
    assert any(trace["name"].startswith("two steps") for trace in traces)


def test_bars_of_each_plan_add_up_to_its_prediction(made: ProposalReport) -> None:
    for plan in made.plans:
        for breakdown, name in (("time_s", "iteration_time_s"), ("energy_by_part_j", "energy_j")):
            assert sum(plan.totals[breakdown].values()) == pytest.approx(plan.chosen.entry[name])


def test_power_over_the_iteration_adds_up_to_the_energy(made: ProposalReport) -> None:
    for plan in made.plans:
        edges, watts = mean_power_w(plan)
        gpus = plan.parts.gpus_per_stage * len(plan.runs_w)
        assert (watts * np.diff(edges)).sum() * gpus == pytest.approx(plan.chosen.entry["energy_j"], rel=1e-4)


def test_power_adds_up_where_the_middle_of_the_iteration_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jointopt.workflows.page.timeline", functools.partial(timeline, most_passes=40))
    job = shipped_job("opt-350m-2x4-a100")
    long = replace(job, training=replace(job.training, global_batch_size=8192))
    made = propose(long, trials=0, surrogate="none").report()
    assert any(np.ptp(plan.timeline.repeated_s) > 0.2 * plan.timeline.iteration_s for plan in made.plans)
    test_power_over_the_iteration_adds_up_to_the_energy(made)


def test_passes_are_read_back_from_their_letters(made: ProposalReport) -> None:
    for plan in made.plans:
        coded: Any = encoded_passes(plan.timeline)
        for rank, one in enumerate(coded["ranks"]):
            waits, at, ends = dict(one["waits"]), 0.0, []
            for place, letter in enumerate(one["passes"]):
                at += waits.get(place, 0.0) + one["seconds"][coded["letters"].index(letter)]
                ends.append(at)
            np.testing.assert_allclose(ends, plan.timeline.end_s[plan.timeline.rank == rank], rtol=1e-5)


def test_the_ends_of_the_front_and_its_knee_are_taken_apart(proposal: Proposal) -> None:
    document = proposal.to_dict()
    chosen = chosen_plans(document["front"], document["reference"])
    rows = [document["front"].index(one.entry) for one in chosen if one.entry in document["front"]]
    assert {0, len(document["front"]) - 1} <= set(rows)
    assert any(one.name == "knee" for one in chosen)
    assert rows == sorted(rows)


def test_every_chosen_plan_has_the_command_that_starts_it(made: ProposalReport, html: str) -> None:
    for plan in made.plans:
        assert plan.started["text"]
        assert plan.text in own(html)


def test_prices_make_a_table_of_costs(proposal: Proposal, html: str) -> None:
    assert 'id="costs"' not in own(html)
    cluster = replace(proposal.job.cluster, price_per_gpu_hour=2.0, currency="EUR")
    job = replace(proposal.job, cluster=cluster)
    page = own(replace(proposal, job=job, model=replace(proposal.model, job=job)).report().page.html())
    assert 'id="costs"' in page
    hours = proposal.front["iteration_time_s"][0] * 32 / 3600
    assert f">{figure(2 * hours)} EUR</td>" in page


def test_names_cannot_break_out_of_the_page(proposal: Proposal) -> None:
    name = "</script><script>alert(1)</script>"
    job = replace(proposal.job, name=name)
    model = replace(proposal.model, job=job) if proposal.model else None
    page = replace(proposal, job=job, model=model).report().page.html()
    assert "<script>alert(1)" not in page


def test_a_job_of_time_alone_has_a_page_without_energy() -> None:
    job = load_job("opt-350m-2x4-a100")
    gpu = replace(job.cluster.gpu, power=None)
    timed = replace(job, cluster=replace(job.cluster, gpu=gpu), objectives=("iteration_time_s",))
    figures = data(propose(timed).report().page.html())["figures"]
    assert set(figures) == {"time", "memory"}


def test_a_proposal_without_its_model_is_refused_in_a_sentence(make_proposal: Any) -> None:
    with pytest.raises(UsageError, match="take one that propose returned"):
        make_proposal().report()
