"""Bandwidths are read with their unit; a bare number beyond what a GPU has is questioned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.errors import JobError
from jointopt.jobs.catalog.clusters import build_cluster, cluster_names, load_cluster
from jointopt.jobs.catalog.gpus import gpu_ids, load_gpu
from jointopt.jobs.catalog.networks import LINKS, most_gbytes_per_s
from jointopt.jobs.cluster import Cluster
from jointopt.jobs.jobfile import dump_job, job_from_options, parse_job
from jointopt.jobs.reading import parse_yaml
from tests.each import each

H100 = {"gpu": "h100-sxm5-80gb", "nodes": 8, "gpus_per_node": 8}


def cluster(**figures: Any) -> Cluster:
    training = {"seq_length": 8192, "global_batch_size": 512}
    job = parse_job({"model": "llama-3-8b", "training": training, "cluster": H100 | figures}, "job", Path())
    assert parse_job(parse_yaml(dump_job(job)), "job", Path()) == job
    return job.cluster


@each(
    ("text", "gbytes_per_s"),
    [
        ("400Gb/s", 50), ("400 Gbps", 50), ("400Gbit/s", 50), ("50GB/s", 50), ("50 GBps", 50), ("3.2Tb/s per node", 50),
        ("400G", 50), ("8x400G per node", 50), ("ndr", 50), ("NDR", 50), ("4 x HDR / node", 12.5), ("edr", 12.5),
        ("xdr", 100), ("hdr100", 12.5), ("400GB/s", 400), ("12500 MB/s", 12.5), ("50GB/s per GPU", 50),
    ],
)  # fmt: skip
def test_a_bandwidth_has_its_unit_or_the_name_of_a_port(text: str, gbytes_per_s: float) -> None:
    assert cluster(inter_node_gbytes_per_s=text).inter_node_gbytes_per_s == gbytes_per_s


@pytest.mark.parametrize(
    "text", ["400gb/s", "400gbps", "400", "fast", "", "400G/s per rack", "-400G", "nan", "0G", "8x400G"]
)
def test_text_that_may_mean_bits_or_bytes_or_nothing_is_refused(text: str) -> None:
    with pytest.raises(JobError, match=r"^cluster\.inter_node_gbytes_per_s must be a number in GB/s .*400Gb/s, 50GB/s"):
        cluster(inter_node_gbytes_per_s=text)


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("inter_node_gbytes_per_s", 400, "400 Gb/s are 50: write 400Gb/s, or 400GB/s if it is really 400 GB/s"),
        ("inter_node_gbytes_per_s", 3200, "3200 Gb/s of a node are 50: write '3200Gb/s per node', or 3200GB/s if"),
        ("inter_node_gbytes_per_s", 50_000, "write the figure with its unit, such as 400Gb/s, or 50000GB/s if"),
        ("intra_node_gbytes_per_s", 900, "both directions together are twice one: write 450, or 900GB/s if"),
    ],
)
def test_a_bare_number_beyond_what_a_gpu_has_is_a_question(key: str, value: float, meant: str) -> None:
    with pytest.raises(JobError, match=rf"cluster\.{key} is in GB/s of one GPU in one direction, .*; {meant}"):
        cluster(**{key: value})
    insisted = cluster(**{key: f"{value}GB/s"})
    assert getattr(insisted, key) == value


def test_bits_beyond_what_a_gpu_has_say_whether_a_node_has_them() -> None:
    sentence = (
        r"'3\.2Tb/s' is 400 GB/s, more than the 100 that .*; write '3\.2Tb/s per node' \(50 GB/s of each GPU\), or "
    )
    with pytest.raises(JobError, match=sentence):
        cluster(inter_node_gbytes_per_s="3.2Tb/s")
    assert cluster(inter_node_gbytes_per_s="3.2Tb/s per GPU").inter_node_gbytes_per_s == 400
    assert cluster(inter_node_gbytes_per_s="3.2Tb/s per node").inter_node_gbytes_per_s == 50


@pytest.mark.parametrize("name", cluster_names())
def test_every_cluster_of_the_catalogue_may_state_its_own_links(name: str) -> None:
    found = load_cluster(name)
    assert all(getattr(found, key) <= most_gbytes_per_s(found.gpu, key) for key in LINKS)


@given(st.sampled_from(gpu_ids()), st.sampled_from([2, 8, 1000]))
def test_the_usual_network_of_every_gpu_is_taken_and_its_figure_in_bits_is_not(gpu_id: str, factor: int) -> None:
    gpu = load_gpu(gpu_id)
    usual = gpu.usual_inter_node_gbytes_per_s
    if usual and not gpu.is_cpu:
        assert usual * 2 <= most_gbytes_per_s(gpu, "inter_node_gbytes_per_s")
        assert factor == 2 or usual < 12 or usual * factor > most_gbytes_per_s(gpu, "inter_node_gbytes_per_s")


def test_tables_are_data_and_keep_what_they_state() -> None:
    assert build_cluster(H100 | {"inter_node_gbytes_per_s": 400.0}).inter_node_gbytes_per_s == 400.0


def test_the_options_of_a_job_take_bandwidths_with_their_unit() -> None:
    job = job_from_options("llama-3-8b", "l40s", 8, 512, 8192, 4, inter_node_gbytes_per_s="200G")
    assert job.cluster.inter_node_gbytes_per_s == 25
    with pytest.raises(JobError, match=r"400 is more than the 25 that l40s may have \(no source states more\)"):
        job_from_options("llama-3-8b", "l40s", 8, 512, 8192, 4, inter_node_gbytes_per_s=400)


def test_a_number_beyond_the_usual_network_is_taken_and_remarked_on_once(caplog: pytest.LogCaptureFixture) -> None:
    for number in (50, 99, 99):
        assert cluster(inter_node_gbytes_per_s=number).inter_node_gbytes_per_s == number
    (remark,) = caplog.messages
    assert remark.endswith(
        "99 GB/s of one GPU in one direction, and h100-sxm5-80gb usually has 50; 99 Gb/s would be 12.375."
    )


def test_links_of_a_gpu_of_one_s_own_are_questioned_by_what_it_states_itself() -> None:
    own = {"name": "mine", "like": "h100-sxm5-80gb"}
    assert cluster(gpu=own, intra_node_gbytes_per_s=900).intra_node_gbytes_per_s == 900
    with pytest.raises(JobError, match="900 is more than the 150 that mine may have"):
        cluster(gpu=own | {"intra_node_gbytes_per_s": 100}, intra_node_gbytes_per_s=900)
    with pytest.raises(JobError, match="400 is more than the 250 that mine may have"):
        cluster(gpu=own, inter_node_gbytes_per_s=400)
