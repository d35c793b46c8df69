"""The table of clusters shows what its plans do, in percent of one another."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from jointopt.jobs.catalog.clusters import with_host_at
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.physics.site import run_costs
from jointopt.report.decision import run_costs_at
from jointopt.report.scaled import Pick, Scaled, Size, part_table, size_table

FASTEST: dict[str, Any] = {
    "dp": 8, "tp": 2, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "iteration_time_s": 2.0, "iteration_time_s_low": 1.7,
    "iteration_time_s_high": 2.5, "energy_j": 9000.0, "tokens_per_s": 12345.0, "mfu": 0.4321, "cluster_power_kw": 12.0,
}  # fmt: skip
THRIFTY = FASTEST | {"iteration_time_s": 2.6, "energy_j": 7200.0, "cluster_power_kw": 8.0}


@pytest.fixture
def job() -> Job:
    found = shipped_job("llama-3-8b-1x8-h100")
    return replace(found, training=replace(found.training, run_tokens=None))


def test_a_cluster_s_line_is_its_fastest_plan_and_what_least_energy_changes(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    cells = size_table([Size(job, (FASTEST, THRIFTY), efficiency=0.934)])[-1].split()
    assert cells[:3] == [job.cluster.gpu.id, "8", "dp8"]
    assert cells[3:9] == ["tp2", "2.000", "20", "12,345", "93", "43.2"]
    assert cells[9] == "12"
    assert cells[-2:] == ["-20.0", "+30.0"]


def test_of_three_plans_the_last_is_that_of_least_energy_and_not_the_knee_between(job: Job) -> None:
    knee = FASTEST | {"iteration_time_s": 2.2, "energy_j": 8100.0}
    assert size_table([Size(job, (FASTEST, knee, THRIFTY))])[-1].split()[-2:] == ["-20.0", "+30.0"]


def test_at_either_end_of_its_interval_a_run_has_hosts_at_that_end(job: Job) -> None:
    plan = FASTEST | {f"energy_j_{end}": 9000.0 for end in ("low", "high")}
    joules = {}
    for end in ("low", "high"):
        hosts = replace(job, cluster=with_host_at(job.cluster, end))
        same = plan | {"iteration_time_s": plan[f"iteration_time_s_{end}"]}
        joules[end] = run_costs_at(job, plan, f"_{end}")["energy_j"]
        assert joules[end] == pytest.approx(run_costs(hosts, same)["energy_j"])
    assert joules["high"] > run_costs(job, plan | {"iteration_time_s": 2.5})["energy_j"]


@pytest.mark.parametrize("missing", ["iteration_time_s_low", "iteration_time_s_high"])
def test_a_plan_without_both_ends_of_its_interval_shows_none(job: Job, missing: str) -> None:
    plan = {name: value for name, value in FASTEST.items() if name != missing}
    assert "20" not in size_table([Size(job, (plan,))])[-1].split()


def test_shares_of_the_time_are_percents_of_their_sum_the_largest_first(job: Job) -> None:
    one = Size(job, time_s={"compute": 3.0, "bubble": 0.9, "host": 0.099, "small": 0.001})
    other = Size(job, time_s={"compute": 1.0, "tp_comm": 1.0})
    head, *rows = part_table([one, other])
    assert head.split()[-4:] == ["compute", "tp_comm", "bubble", "host"]
    assert [row.split()[-4:] for row in rows[-2:]] == [["75.0", "0.0", "22.5", "2.5"], ["50.0", "50.0", "0.0", "0.0"]]
    assert part_table([Size(job)]) == size_table([]) == []


def test_one_cluster_alone_is_a_document_with_its_job_and_the_front_of_its_plans(job: Job) -> None:
    document = Scaled(sizes=(Size(job, (FASTEST, THRIFTY)),), front=((0, FASTEST), (0, THRIFTY))).document()
    assert document["job"] == job.model.name
    assert document["front"] == [{"size": 0, **FASTEST}, {"size": 0, **THRIFTY}]
    assert (document["weak"], document["pick"]) == (False, None)


def test_what_least_energy_changes_has_its_interval_where_it_is_known(job: Job) -> None:
    ends = {"energy_vs_first_percent_low": -26.0, "energy_vs_first_percent_high": -13.0,
            "time_vs_first_percent_low": 8.0, "time_vs_first_percent_high": 56.0}  # fmt: skip
    assert size_table([Size(job, (FASTEST, THRIFTY | ends))])[-1].split()[-2:] == ["-20.0±6.5", "+30.0±24"]


def test_clusters_of_one_doubt_are_named_together_and_those_of_none_not(job: Job) -> None:
    doubted = Size(job, (FASTEST,), {"compute": 1.0}, doubts=("network assumed", "few runs"))
    text = Scaled((doubted, replace(doubted, doubts=())), ()).text()
    assert f"The interval (±) of 8 x {job.cluster.gpu.id} is wider: network assumed; few runs." in text
    assert (
        "wider for every plan here: few runs." in Scaled((doubted, replace(doubted, doubts=("few runs",))), ()).text()
    )
    assert "is wider" not in Scaled((replace(doubted, doubts=()),), ()).text()
    assert doubted.document()["doubts"] == ["network assumed", "few runs"]


def test_the_days_of_a_pick_have_their_interval_from_low_to_high(job: Job) -> None:
    plan = FASTEST | {"micro_batch_size": 1, "avg_power_w": 400.0, "energy_j_low": 8e3, "energy_j_high": 1e4}
    sizes = (Size(job, (plan,), {"compute": 1.0}),)
    text = " ".join(Scaled(sizes, ((0, plan),), Pick(0, plan, "energy", {"site_kw": 20.0})).text().split())
    found = re.search(r": ([0-9.]+) h per billion tokens \(90 %: ([0-9.]+) to ([0-9.]+)\)", text)
    assert found is not None
    hours, low, high = map(float, found.groups())
    assert (low / hours, high / hours) == pytest.approx((0.85, 1.25), rel=0.01)
