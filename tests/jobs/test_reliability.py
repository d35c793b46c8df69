"""The section ``reliability`` of a job file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from jointopt.core.errors import JobError
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.jobfile import dump_job, parse_job
from jointopt.jobs.reliability import Reliability, with_defaults
from tests.jobs.test_slurm import FILE

CLUSTER = parse_job(FILE, "job", Path()).cluster  # of 2 nodes of 8


def reliability(**section: Any) -> Reliability:
    return parse_job(FILE | {"reliability": section}, "job", Path()).reliability


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"failures_per_gpu_hour": 0}, "reliability.failures_per_gpu_hour must be a number above 0"),
        ({"failures_per_gpu_hour": 2}, "at most 0.1 (the largest known: 3e-5, of Meta's research clusters)"),
        ({"failures_per_gpu_hour": 1e-5, "failures_per_node_hour": 1e-4}, "state the same rate twice; leave one"),
        ({"spares": 3}, "reliability.spares must be a whole number from 0 to 2, the cluster's nodes"),
        ({"weibull_shape": 0}, "reliability.weibull_shape must be a number above 0"),
        ({"weibull_shape": -1}, "reliability.weibull_shape must be a number above 0"),
        ({"rack_failure_share": 0.1}, "reliability.rack_nodes is missing; rack_failure_share says nothing without it"),
        ({"rack_failure_share": 1.5, "rack_nodes": 2}, "reliability.rack_failure_share must be"),
        ({"rack_failure_share": 0.1, "rack_nodes": 3}, "a whole number from 1 to 2, the cluster's nodes"),
        ({"lemon_node_share": 0.1}, "reliability.lemon_failure_factor is missing"),
        ({"planned_stops_per_day": 1}, "reliability.planned_stop_s is missing"),
        ({"planned_stops_per_day": 24, "planned_stop_s": 3600}, "planned stops take all of a day; expected less"),
        ({"storage_total_gbytes_per_s": 0}, "reliability.storage_total_gbytes_per_s must be a number above 0"),
        ({"storage_gbytes_per_s": 0}, "reliability.storage_gbytes_per_s must be a number above 0"),
        ({"policy": "drop"}, "one of restart, spare, drop_replica, nonuniform_tp"),
        ({"policy": []}, "reliability.policy must be one of"),
        ({"policy": "spare", "spares": 0}, "spare needs reliability.spares of 1 or more"),
        ({"checkpoint_intervals": 9}, "did you mean 'checkpoint_interval_s'?"),
    ],
)
def test_figures_that_cannot_be_are_refused_in_a_sentence(section: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError) as refused:
        reliability(**section)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_job_file_is_read_back_as_it_was() -> None:
    section = {"failures_per_node_hour": 0.001, "checkpoint_s": 0, "spares": 1, "policy": ["restart", "drop_replica"]}
    section |= {"weibull_shape": 0.7, "rack_failure_share": 0.1, "rack_nodes": 2, "checkpoint_write_s": 9}
    job = parse_job(FILE | {"reliability": section}, "job", Path())
    assert yaml.safe_load(dump_job(job))["reliability"] == section
    assert parse_job(yaml.safe_load(dump_job(job)), "job", Path()) == job
    assert "reliability" not in dump_job(parse_job(FILE, "job", Path()))


def test_failures_are_of_gpus_or_of_nodes() -> None:
    assert reliability(failures_per_gpu_hour=0.01).failure_s(CLUSTER) == pytest.approx(3600 / 0.16)
    assert reliability(failures_per_node_hour=0.01).failure_s(CLUSTER) == pytest.approx(3600 / 0.02)


def test_lemon_nodes_add_to_the_rate() -> None:
    stated = reliability(failures_per_node_hour=0.01, lemon_node_share=0.5, lemon_failure_factor=9)
    assert stated.failure_s(CLUSTER) == pytest.approx(3600 / 0.02 / (1 + 0.5 * 8))


def test_the_rate_that_is_assumed_is_the_sum_of_its_causes() -> None:
    known = read_yaml("reliability.yaml")
    counts = [cell[0] for cell in known["causes"].values()]
    assert sum(counts) / (54 * 24 * 16_384) == pytest.approx(known["defaults"]["failures_per_gpu_hour"][0], rel=0.002)
    cells = [*known["causes"].values(), *known["defaults"].values(), *known["published"].values()]
    assert {cell[1] for cell in cells} <= known["sources"].keys()


def test_what_is_not_stated_is_assumed_by_name_and_with_its_source() -> None:
    filled, assumed = with_defaults(reliability(spares=1, detection_s=0))
    assert {one.key.removeprefix("reliability.") for one in assumed} == {
        "failures_per_gpu_hour", "restart_s", "storage_gbytes_per_s", "repair_s",
    }  # fmt: skip
    assert "arXiv:2407.21783" in str(assumed[0])
    assert filled.detection_s == 0.0
    assert filled.failures_per_gpu_hour == pytest.approx(419 / (54 * 24 * 16_384), rel=0.002)


def test_nothing_is_assumed_that_is_not_needed() -> None:
    stated = reliability(failures_per_node_hour=1e-3, detection_s=1, restart_s=1, checkpoint_s=1)
    assert with_defaults(stated) == (stated, ())
