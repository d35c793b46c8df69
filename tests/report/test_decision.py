"""The recommended plan of a front: which it is, in at most 25 lines of 80 characters, and what a prompt shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jointopt.core.errors import UsageError
from jointopt.core.schema import Columns
from jointopt.jobs.job import Job
from jointopt.report.decision import LINES, WIDTH, recommended_row
from jointopt.report.doubts import OpenSetting
from jointopt.report.results import Proposal

Fronts = Callable[..., Columns]
Proposals = Callable[..., Proposal]


def test_it_takes_the_least_energy_within_a_percent_of_the_fastest_time(job: Job, make_front: Fronts) -> None:
    front = make_front(4, iteration_time_s=np.array([1.0, 1.005, 1.0099, 1.02]))
    assert recommended_row(job, front) == (2, "least energy within 1% of the fastest's time")


def test_under_a_deadline_it_takes_the_least_energy_of_all(job: Job, make_front: Fronts) -> None:
    urgent = replace(job, constraints=replace(job.constraints, iteration_time_s=2.0))
    assert recommended_row(urgent, make_front(4)) == (3, "least energy within the deadline")


@pytest.mark.parametrize(("gpu_hour", "row"), [(0.0, 3), (50.0, 0)])
def test_with_both_prices_it_takes_the_cheapest(job: Job, make_front: Fronts, gpu_hour: float, row: int) -> None:
    priced = replace(job.cluster, price_per_kwh=0.2, price_per_gpu_hour=gpu_hour, host_power_w=0.0)
    front = make_front(4, iteration_time_s=1.0 * 1.002 ** np.arange(4))
    assert recommended_row(replace(job, cluster=priced), front)[0] == row


def test_a_plan_that_surely_fits_goes_before_a_leaner_one(job: Job, make_front: Fronts) -> None:
    near = make_front(3, iteration_time_s=np.array([1.0, 1.001, 1.002]), fit_probability=np.array([0.6, 0.99, 0.7]))
    assert recommended_row(job, near)[0] == 1
    assert recommended_row(job, near | {"fit_probability": np.full(3, 0.6)})[0] == 2


def test_without_energies_it_takes_the_fastest(job: Job, make_front: Fronts) -> None:
    unknown = make_front(2, energy_j=np.array([np.nan, np.nan]))
    assert recommended_row(job, unknown) == (0, "the fastest")
    assert recommended_row(job, make_front(1)) == (0, "the one plan that no other beats")


def test_the_answer_has_at_most_25_lines_of_80_characters(make_proposal: Proposals) -> None:
    settings = tuple(OpenSetting(f"training.key_{i}", "a", "b" * 40, 10.0 - i, "dp=8") for i in range(9))
    command = {"command": "jointopt export job.yaml", "note": "What starts it:", "to": "megatron"}
    found = make_proposal(300, hangs_on=settings, next_command=command, study_name="tiny", storage="sqlite:///x.db")
    text = found.text(brief=True)
    assert len(text.splitlines()) <= LINES
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "R recommended, = reference" in text
    assert "jointopt export --plan tiny:1 --storage sqlite:///x.db --to megatron" in text


def test_it_is_compared_with_the_reference_with_intervals(make_proposal: Proposals, make_front: Fronts) -> None:
    ends = {f"energy_vs_first_percent_{end}": np.full(3, value) for end, value in (("low", -3.0), ("high", 1.0))}
    front = make_front(3, iteration_time_s=np.array([1.0, 1.005, 1.02]), **ends)
    found = make_proposal(front=front)
    (energy,) = [one for one in found.decision.differences if one.name == "energy"]
    assert (round(energy.percent, 6), energy.low, energy.high) == (-2.0, -3.0, 1.0)
    assert "energy  -2.0 %  (90 %: -3.0 to +1.0 %)" in found.text(brief=True)


def test_money_follows_the_shares_of_the_bill(make_proposal: Proposals, make_front: Fronts, job: Job) -> None:
    priced = replace(job.cluster, price_per_kwh=1.0, price_per_gpu_hour=0.0, host_power_w=0.0, host_load_share=0.0)
    front = make_front(2, iteration_time_s=np.array([1.0, 1.5]))
    found = {one.name: one for one in make_proposal(job=replace(job, cluster=priced), front=front).decision.differences}
    assert found["money"].percent == pytest.approx(found["energy"].percent) == pytest.approx(-2.0)


def test_what_hosts_draw_at_rest_follows_the_time(make_proposal: Proposals, make_front: Fronts, job: Job) -> None:
    host_w = 9000.0 / job.cluster.nodes  # as much as the GPUs of the reference
    priced = replace(job.cluster, price_per_kwh=1.0, price_per_gpu_hour=0.0, host_power_w=host_w, host_load_share=0.0)
    ends = {"time_vs_first_percent_low": -2.0, "time_vs_first_percent_high": 2.0,
            "energy_vs_first_percent_low": -10.0, "energy_vs_first_percent_high": 0.0}  # fmt: skip
    front = make_front(1, **{name: np.array([value]) for name, value in ends.items()})
    found = make_proposal(job=replace(job, cluster=priced), front=front).decision.differences[-1]
    assert (found.name, found.low, found.high) == ("money", pytest.approx(-6.0), pytest.approx(1.0))


def test_prices_of_nothing_are_no_money(make_proposal: Proposals, job: Job) -> None:
    free = replace(job.cluster, price_per_kwh=0.0, price_per_gpu_hour=0.0)
    decision = make_proposal(job=replace(job, cluster=free)).decision
    assert [one.name for one in decision.differences] == ["time", "energy"]
    assert decision.reason == "least energy within 1% of the fastest's time"


def test_a_reference_that_could_not_be_run_says_so(make_proposal: Proposals, make_front: Fronts) -> None:
    front = make_front(2, iteration_time_s=np.array([1.3, 1.31]))
    text = make_proposal(front=front, reference_breaks=("It draws 680 W of 400 W.",)).text(brief=True)
    assert "could not be run: It draws 680 W of 400 W." in " ".join(text.split())


def test_settings_of_the_time_are_no_matter_where_time_is_no_objective(make_proposal: Proposals, job: Job) -> None:
    hangs_on = (OpenSetting("training.framework", "generic", "nemo", -90.0),)
    lean = replace(job, objectives=("peak_memory_gib",))
    assert "training.framework" in make_proposal(hangs_on=hangs_on).text(brief=True)
    assert "training.framework" not in make_proposal(job=lean, hangs_on=hangs_on).text(brief=True)


def test_the_document_names_the_plan_by_its_number(make_proposal: Proposals) -> None:
    decision = make_proposal(5).to_dict()["decision"]
    assert (decision["plan_number"], decision["against_reference"]["time"]["percent"]) == (1, 0.0)


def test_a_prompt_shows_the_decision_and_a_short_plan(make_proposal: Proposals) -> None:
    proposal: Any = make_proposal(300)
    assert repr(proposal) == proposal.text(brief=True)
    assert repr(proposal[2]).startswith("dp=4 tp=1 pp=2")
    assert len(proposal) == 300
    with pytest.raises(IndexError):
        proposal[300]


def test_a_proposal_that_was_put_together_says_what_its_plans_need(make_proposal: Proposals) -> None:
    with pytest.raises(UsageError, match="take one that propose returned"):
        make_proposal(3)[0].explain()


def test_the_baseline_is_worse_where_a_plan_saves_that_much_of_one_at_no_more_of_the_other(
    make_proposal: Proposals, make_front: Fronts
) -> None:
    odds = {"faster_probability": np.array([0.9, 0.7, 0.1]), "leaner_probability": np.array([0.1, 0.6, 0.8])}
    results = {"iteration_time_s": np.array([1.0, 1.1, 1.2]), "energy_j": np.array([9e3, 8e3, 7e3])}
    today = make_front(1, iteration_time_s=np.array([1.12]), energy_j=np.array([9e3]))
    found = make_proposal(front=make_front(3, **results, **odds), reference=today, baseline="dp=4").decision
    assert found.savings["time"]["percent"] == pytest.approx(100 * (1 - 1 / 1.12))
    assert found.savings["energy"] == {"percent": pytest.approx(100 / 9), "probability": 0.6, "plan_number": 2}
    assert found.worse_than_front(12) == ""
    assert found.worse_than_front(11).startswith("Against the baseline, plans take 11.1 % less energy in no more time")
    assert "10.7 % less time at no more energy (plan 1, probability 0.90) or" in found.worse_than_front(5)


def test_a_baseline_that_could_not_be_run_is_worse_than_any_front(make_proposal: Proposals) -> None:
    broken = make_proposal(baseline="dp=4", reference_breaks=("it needs 90 GiB.",))
    assert broken.decision.worse_than_front(50) == "The baseline could not be run: it needs 90 GiB."
    with pytest.raises(UsageError, match="--baseline takes a plan"):
        make_proposal().decision.worse_than_front(5)


def test_without_energies_the_baseline_is_judged_by_time_alone(make_proposal: Proposals, make_front: Fronts) -> None:
    unknown = {"energy_j": np.array([np.nan])}
    today = make_front(1, iteration_time_s=np.array([2.0]), **unknown)
    found = make_proposal(front=make_front(1, **unknown), reference=today, baseline="dp=4").decision
    assert (found.savings["time"]["percent"], found.savings["energy"]["percent"]) == (50.0, 0.0)
