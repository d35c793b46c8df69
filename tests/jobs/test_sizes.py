"""Jobs of many clusters out of one job file."""

from pathlib import Path
from typing import Any

import pytest

from jointopt.core.errors import UsageError
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import gpu_counts_in, load_jobs, sized_jobs

JOB = {
    "model": "opt-350m",
    "training": {"seq_length": 2048, "global_batch_size": 256},
    "cluster": {"gpu": "a100-sxm4-40gb", "nodes": 2, "gpus_per_node": 4},
}


def jobs(gpus: tuple[int, ...] = (), weak: bool = False, **cluster: Any) -> list[Job]:
    return sized_jobs(JOB | {"cluster": JOB["cluster"] | cluster}, "job", Path(), gpus, weak=weak)


@pytest.mark.parametrize(
    ("text", "sizes"), [("8..64", (8, 16, 32, 64)), ("8..40", (8, 16, 32)), ("48,8", (8, 48)), ("8", (8,))]
)
def test_numbers_of_gpus_are_doubled_between_two_or_listed(text: str, sizes: tuple[int, ...]) -> None:
    assert gpu_counts_in(text) == sizes


@pytest.mark.parametrize("text", ["", "8..", "64..8", "0..8", "8,x", "-8"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--gpus takes numbers of GPUs such as 8\.\.1024"):
        gpu_counts_in(text)


def test_lists_of_gpus_and_nodes_make_a_job_each_with_its_price() -> None:
    kinds = ["a100-sxm4-40gb", "h100-sxm5-80gb"]
    found = jobs(gpu=kinds, nodes=[1, 2], price_per_gpu_hour=[1.5, 2.5])
    clusters = [(j.cluster.gpu.id, j.cluster.nodes, j.cluster.price_per_gpu_hour) for j in found]
    assert clusters == [(kinds[0], 1, 1.5), (kinds[0], 2, 1.5), (kinds[1], 1, 2.5), (kinds[1], 2, 2.5)]
    assert len({job.name for job in found}) == 4


def test_fewer_gpus_than_a_node_has_are_a_part_of_one() -> None:
    assert [(j.cluster.nodes, j.cluster.gpus_per_node) for j in jobs((2, 4, 8))] == [(1, 2), (1, 4), (2, 4)]


def test_the_batch_stays_or_grows_with_the_gpus() -> None:
    assert [job.training.global_batch_size for job in jobs((4, 8))] == [256, 256]
    assert [job.training.global_batch_size for job in jobs((4, 8), weak=True)] == [256, 512]


def test_a_shipped_job_can_be_sized() -> None:
    assert [job.cluster.num_gpus for job in load_jobs("llama-3-8b-1x8-h100", (4, 8))] == [4, 8]


@pytest.mark.parametrize(
    ("gpus", "cluster", "reason"),
    [
        ((6,), {}, "6 GPUs do not fill whole nodes of 4"),
        ((), {"gpu": []}, "cluster.gpu must be a value, or a list of them"),
        ((), {"gpu": ["a100-sxm4-40gb", "h200"], "price_per_gpu_hour": [1, 2, 3]}, "3 prices for 2 GPUs"),
        ((), {"nodes": list(range(1, 99))}, "98 sizes of clusters; at most 64"),
        ((), {"nodes": [1, "x"]}, "cluster.nodes must be a whole number"),
    ],
)
def test_clusters_that_make_no_sense_are_one_sentence(gpus: Any, cluster: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        jobs(gpus, **cluster)
