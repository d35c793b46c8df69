"""The energy of a site contains that of its GPUs, and what it costs follows from it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.jobs.cluster import Cluster
from jointopt.jobs.job import Job
from jointopt.physics.site import bill, cluster_power_kw, facility_energy_j, facility_parts_j

POSITIVE = st.floats(1e-3, 1e9)


@pytest.fixture(scope="module")
def site_cluster() -> Cluster:
    from jointopt.jobs.catalog.clusters import build_cluster

    return build_cluster({"gpu": "a100-sxm4-40gb", "nodes": 2, "gpus_per_node": 4})


@given(time_s=POSITIVE, energy_j=POSITIVE, host_w=st.floats(0, 1e4), pue=st.floats(1, 3))
def test_the_site_takes_at_least_what_its_gpus_take(site_cluster, time_s, energy_j, host_w, pue) -> None:
    site = replace(site_cluster, host_power_w=host_w, pue=pue)
    assert facility_energy_j(site, time_s, energy_j) >= energy_j


@given(time_s=POSITIVE, energy_j=POSITIVE, host_w=st.floats(0, 1e4), pue=st.floats(1, 3))
def test_gpus_hosts_and_overhead_add_up_to_the_site(site_cluster, time_s, energy_j, host_w, pue) -> None:
    site = replace(site_cluster, host_power_w=host_w, pue=pue)
    parts = facility_parts_j(site, time_s, energy_j)
    assert min(parts.values()) >= 0
    assert sum(parts.values()) == pytest.approx(float(facility_energy_j(site, time_s, energy_j)))


def test_two_nodes_of_one_kilowatt_for_ten_seconds_by_hand(site_cluster: Cluster) -> None:
    site = replace(site_cluster, host_power_w=1000.0, host_load_share=0.25, pue=1.5)
    parts = facility_parts_j(site, 10.0, 16_000.0)
    assert {name: float(value) for name, value in parts.items()} == {
        "gpus": 16_000.0, "hosts": 24_000.0, "overhead": 20_000.0,
    }  # fmt: skip


@pytest.mark.parametrize(("gpu_w", "node_w"), [(0.0, 1600.0), (366.0, 5025.8), (617.0, 7375.1), (690.0, 8058.4)])
def test_a_host_of_h100_rests_at_a_fifth_of_what_its_node_draws_at_work(gpu_w: float, node_w: float) -> None:
    from jointopt.jobs.catalog.clusters import build_cluster

    node = replace(build_cluster({"gpu": "h100-sxm5-80gb", "nodes": 1, "gpus_per_node": 8}), pue=1.0)
    assert cluster_power_kw(node, np.array(gpu_w)) == pytest.approx(node_w / 1e3, abs=1e-3)
    parts = facility_parts_j(node, 1.0, 8 * gpu_w)
    assert float(parts["hosts"]) == pytest.approx(node_w - 8 * gpu_w, abs=1)


def test_power_of_the_site_is_its_energy_over_time(site_cluster: Cluster) -> None:
    time_s, power_w = np.array([1.0, 3.0]), np.array([250.0, 390.0])
    energy_j = power_w * site_cluster.num_gpus * time_s
    watts = facility_energy_j(site_cluster, time_s, energy_j) / time_s
    np.testing.assert_allclose(cluster_power_kw(site_cluster, power_w), watts / 1e3)


def test_a_run_is_billed_iteration_by_iteration(job: Job) -> None:
    site = replace(
        job.cluster, host_power_w=0.0, pue=1.0, carbon_kg_per_kwh=0.4, price_per_kwh=0.2, price_per_gpu_hour=1.8
    )
    tokens = 100 * job.training.global_batch_size * job.training.seq_length - 1
    priced = replace(job, cluster=site, training=replace(job.training, run_tokens=tokens))
    found = bill(priced, np.array([2.0]), np.array([3.6e6]))
    assert {name: float(values[0]) for name, values in found.items()} == pytest.approx(
        {
            "facility_energy_j": 3.6e6,
            "carbon_kg": 0.4,
            "cost": 0.2,
            "gpu_cost": 8 * 1.8 / 1800,
            "run_time_s": 200.0,
            "run_gpu_hours": 8 / 18,
            "run_gpu_cost": 0.8,
            "run_facility_energy_j": 3.6e8,
            "run_carbon_kg": 40.0,
            "run_cost": 20.0,
        }
    )


def test_what_the_job_does_not_state_is_not_billed(job: Job) -> None:
    assert list(bill(job, 1.0, 1.0)) == ["facility_energy_j"]
