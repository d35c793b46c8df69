"""Costs of the site, as they are printed."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from jointopt.core.schema import Columns
from jointopt.jobs.job import Job
from jointopt.report.plans import has_site_costs, site_table
from jointopt.report.results import Explanation, Proposal
from jointopt.report.tables import json_text


@pytest.fixture
def priced(job: Job) -> Job:
    """The job with carbon, money and the tokens of 1000 iterations."""
    site = replace(job.cluster, carbon_kg_per_kwh=0.4, price_per_kwh=0.25, currency="EUR")
    return replace(job, cluster=site, training=replace(job.training, run_tokens=1000 * 256 * 2048))


def test_a_table_names_the_site_and_has_the_run_beside_the_iteration(priced: Job) -> None:
    lines = site_table(priced, ["=", "fastest"], [1.0, 2.0], [9000.0, 8000.0])
    assert "GPUs and hosts (2 x 1,500 W) times PUE 1.2" in lines[0]
    assert "(1,000 iterations)" in " ".join(lines[:2])
    cells = "= 14.400 14.40 1.600 0.00100 16.67 2.222 4.000 1.600 1.000"
    assert lines[-2].split() == cells.split()
    assert max(map(len, lines)) <= 100


def test_a_job_without_prices_has_no_costs(job: Job, make_proposal: Callable[..., Proposal]) -> None:
    assert not has_site_costs(job)
    assert "At the site's meter" not in make_proposal().text()
    assert has_site_costs(replace(job, cluster=replace(job.cluster, carbon_kg_per_kwh=0.0)))


def test_carbon_free_electricity_prints(priced: Job) -> None:
    clean = replace(priced, cluster=replace(priced.cluster, carbon_kg_per_kwh=0.0, price_per_kwh=0.0))
    assert "inf" not in " ".join(site_table(clean, ["="], [1.0], [9000.0]))


def test_a_proposal_shows_reference_and_least_and_the_fastest_where_it_is_another(
    priced: Job, make_proposal: Callable[..., Proposal], make_front: Callable[..., Columns]
) -> None:
    assert "\n  fastest " in make_proposal(job=priced, reference=make_front(1, dp=np.array([8]))).text()
    text = make_proposal(30, job=priced).text()
    table = text[text.index("At the site's meter") :].splitlines()
    assert [line[2:14].strip() for line in table if line.startswith(("  =", "  fastest", "  least"))] == [
        "=", "least energy",
    ]  # fmt: skip
    assert max(map(len, table)) <= 100


def test_each_plan_of_the_document_has_what_the_site_pays(priced: Job, make_proposal: Callable[..., Proposal]) -> None:
    document = make_proposal(3, job=priced).to_dict()
    for plan in (*document["front"], document["reference"]):
        kwh = 1.2 * (plan["energy_j"] + 2 * 1500.0 * plan["iteration_time_s"]) / 3.6e6
        assert plan["facility_energy_j"] == pytest.approx(kwh * 3.6e6)
        assert (plan["carbon_kg"], plan["run_cost"]) == pytest.approx((0.4 * kwh, 250.0 * kwh))
        assert plan["cost_low"] < plan["cost"] < plan["cost_high"]
    assert document["job_file"]["cluster"]["currency"] == "EUR"


def test_an_explanation_adds_hosts_and_overhead(
    job: Job, priced: Job, make_explanation: Callable[..., Explanation]
) -> None:
    document = json.loads(json_text(make_explanation(job=priced).to_dict()))
    parts = document["facility_energy_by_part_j"]
    assert parts == pytest.approx({"gpus": 9000.0, "hosts": 3000.0, "overhead": 2400.0})
    assert document["facility_energy_j"] == pytest.approx(sum(parts.values()))
    assert "Energy of the site (PUE 1.2)" in make_explanation().text()
    assert "this plan" in make_explanation(job=priced).text()
