"""The file of a measured machine, and clusters with its figures."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from jointopt.core.errors import JobError, UsageError
from jointopt.jobs.cluster import Machine, load_machine, save_machine, with_machine
from jointopt.jobs.job import on_machine
from jointopt.jobs.jobfile import dump_job, load_job, parse_job, shipped_job
from jointopt.workflows.answers import assumptions

MACHINE = Machine(
    gpu="a100-sxm4-40gb", gpus_per_node=4,
    figures={
        "intra_node_gbytes_per_s": 250.0, "inter_node_gbytes_per_s": 6.25, "inter_node_latency_us": 9.0,
        "memory_gib": 39.5, "memory_gbytes_per_s": 1400.0,
    },
    product_time_factor={"fp16": 1.3, "bf16": 1.2},
    measured={"at": "2026-05-01T10:00:00+00:00", "nodes": 2, "backend": "nccl"},
    fit_error_percent={"products in bf16": 4.0},
    readings={"products": [{"dtype": "bf16", "m": 1024, "n": 1024, "k": 1024, "time_s": 0.001}]},
)  # fmt: skip
REST = {"model": "opt-350m", "training": {"seq_length": 2048, "global_batch_size": 256}}
CLUSTER = {"gpu": "a100-sxm4-40gb", "nodes": 2, "gpus_per_node": 4}


def job_on(**figures: object):
    return parse_job(REST | {"cluster": CLUSTER | figures}, "job", Path())


def test_a_machine_is_read_as_it_was_written(tmp_path: Path) -> None:
    save_machine(MACHINE, tmp_path / "machine.yaml")
    found = load_machine(tmp_path / "machine.yaml")
    assert found == MACHINE
    assert (found.readings, found.fit_error_percent) == (MACHINE.readings, MACHINE.fit_error_percent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("memory_gib|memory_gb", "did you mean 'memory_gib'"),
        ("250.0|fast", "figures.intra_node_gbytes_per_s must be a number above 0"),
        ("inter_node_latency_us: 9.0|inter_node_latency_us: -9.0", "must be a number from 0 on"),
        ("fp16: 1.3|fp17: 1.3", "The key 'fp17' in figures.product_time_factor is unknown"),
        ("version: 1|version: 9", "version must be 1"),
        ("gpus_per_node: 4|gpus_per_node: 0", "gpus_per_node must be a whole number"),
        ("gpu: a100-sxm4-40gb|gpu: 7", "gpu must be one line of text"),
    ],
)
def test_what_no_machine_file_holds_is_named(tmp_path: Path, change: str, message: str) -> None:
    path, (old, new) = tmp_path / "machine.yaml", change.split("|")
    save_machine(MACHINE, path)
    path.write_text(path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(JobError, match=f"^{re.escape(str(path))} is no machine file .*{re.escape(message)}"):
        load_machine(path)


def test_a_file_without_figures_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text("version: 1\ngpu: a100-sxm4-40gb\ngpus_per_node: 4\nfigures: {}\n", encoding="utf-8")
    with pytest.raises(JobError, match="figures states nothing"):
        load_machine(path)


def test_measured_figures_replace_what_the_job_leaves_open() -> None:
    cluster = on_machine(job_on(), MACHINE).cluster
    links = (cluster.intra_node_gbytes_per_s, cluster.inter_node_gbytes_per_s, cluster.inter_node_latency_us)
    assert links == (250.0, 6.25, 9.0)
    assert (cluster.gpu.memory_gib, cluster.gpu.memory_gbytes_per_s) == (39.5, 1400.0)
    assert cluster.gpu.product_time_factor == {"fp16": 1.3, "bf16": 1.2}
    assert cluster.pue == job_on().cluster.pue
    assert {cluster.origin(key) for key in MACHINE.figures} == {"measured"}


def test_what_was_measured_is_assumed_no_more() -> None:
    job = job_on()
    before, after = ({one.key for one in assumptions(each)} for each in (job, on_machine(job, MACHINE)))
    assert before - after == {"inter_node_gbytes_per_s", "inter_node_latency_us", "gemm", "collectives", "network"}
    assert after - before == {"probe"}
    assert "network" in {one.key for one in assumptions(on_machine(job_on(inter_node_gbytes_per_s=25), MACHINE))}


def test_figures_that_the_job_states_win_and_the_answer_names_them() -> None:
    stated = {"inter_node_gbytes_per_s": 20, "memory_gib": 38}
    job = on_machine(job_on(**stated), MACHINE)
    cluster = job.cluster
    assert (cluster.inter_node_gbytes_per_s, cluster.gpu.memory_gib, cluster.inter_node_latency_us) == (20, 38, 9)
    assert (cluster.origin("inter_node_gbytes_per_s"), cluster.origin("inter_node_latency_us")) == (
        "stated", "measured",
    )  # fmt: skip
    (text,) = (str(one) for one in assumptions(job) if one.key == "probe")
    assert "measured on 2026-05-01" in text
    assert "inter_node_gbytes_per_s 20 as the job states it, measured 6.25" in text


def test_a_stated_figure_wins_even_where_it_is_the_usual_one() -> None:
    assert on_machine(job_on(inter_node_gbytes_per_s=25), MACHINE).cluster.inter_node_gbytes_per_s == 25
    assert on_machine(job_on(), MACHINE).cluster.inter_node_gbytes_per_s == 6.25


def test_measured_figures_win_over_those_of_a_catalogued_system() -> None:
    job = parse_job(REST | {"cluster": {"catalog": "selene", "nodes": 2}}, "job", Path())
    here = replace(MACHINE, gpu=job.cluster.gpu.id, gpus_per_node=job.cluster.gpus_per_node)
    assert job.cluster.inter_node_gbytes_per_s != 6.25
    assert on_machine(job, here).cluster.inter_node_gbytes_per_s == 6.25


@pytest.mark.parametrize("other", [{"gpu": "a100-sxm4-80gb"}, {"gpus_per_node": 8}, {"gpus_per_node": 2}])
def test_a_machine_of_another_gpu_or_node_size_is_refused_in_one_sentence(other: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"^The machine file is of [^.]*; measure that machine with [^.]*\.$"):
        on_machine(job_on(**other), MACHINE)


def test_a_part_of_one_node_is_such_a_machine() -> None:
    assert on_machine(job_on(nodes=1, gpus_per_node=2), MACHINE).cluster.intra_node_gbytes_per_s == 250.0


def test_a_job_file_names_a_machine_by_a_path_relative_to_it(tmp_path: Path) -> None:
    save_machine(MACHINE, tmp_path / "machine.yaml")
    (tmp_path / "job.yaml").write_text(dump_job(REST | {"cluster": CLUSTER | {"machine": "machine.yaml"}}))
    job = load_job(tmp_path / "job.yaml")
    assert job.cluster == on_machine(job_on(), MACHINE).cluster
    (tmp_path / "again.yaml").write_text(dump_job(job))
    assert load_job(tmp_path / "again.yaml") == job
    with pytest.raises(JobError, match=r"missing\.yaml does not exist"):
        parse_job(REST | {"cluster": CLUSTER | {"machine": "missing.yaml"}}, "job", tmp_path)


def test_a_second_machine_is_refused_and_the_same_one_changes_nothing() -> None:
    cluster = with_machine(job_on().cluster, MACHINE)
    assert with_machine(cluster, replace(MACHINE, readings={})) is cluster
    with pytest.raises(UsageError, match="give one"):
        with_machine(cluster, replace(MACHINE, figures={"inter_node_gbytes_per_s": 7.0}))


def test_a_job_without_a_machine_has_none() -> None:
    assert shipped_job("opt-350m-2x4-a100").cluster.machine is None


@pytest.mark.parametrize(("change", "words"), [
    ({"figures": {"memory_gib": 80.0}}, "memory_gib 80, more than 'a100-sxm4-40gb' can have"),
    ({"figures": {"memory_gbytes_per_s": 3350.0}}, "memory_gbytes_per_s 3350, more than"),
    ({"product_time_factor": {"bf16": 0.05}}, "product_time_factor.bf16 0.05, faster products than"),
])  # fmt: skip
def test_a_machine_that_beats_its_gpu_is_refused_and_cores_may_differ(change: dict, words: str) -> None:
    machine = replace(MACHINE, **change)
    with pytest.raises(UsageError, match=f"states {re.escape(words)}"):
        with_machine(job_on().cluster, machine)
    cores = job_on(gpu="cpu-core", nodes=1).cluster
    assert with_machine(cores, replace(machine, gpu="cpu-core")).machine is not None
