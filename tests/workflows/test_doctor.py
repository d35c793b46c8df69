"""What is found on this machine, and on one with stand-in GPUs."""

from __future__ import annotations

import importlib
import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from jointopt.cli.main import jointopt
from jointopt.core.errors import CatalogError, LauncherError
from jointopt.jobs.cluster import Machine, load_machine
from jointopt.jobs.jobfile import parse_job, parse_yaml
from jointopt.measure.hardware.host import FoundGpu, found_machine
from jointopt.report.diagnosis import Feature
from jointopt.runs.store import Store
from jointopt.workflows.doctor import diagnose, probe

REST = """
model: llama-3-8b
training: {seq_length: 4096, global_batch_size: 32, dtype: fp32}
objectives: [iteration_time_s]
"""

EXPLAIN = ("explain", "job.yaml", "--plan", "tp=2", "--storage", "none", "--json")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def feature(found, name: str) -> Feature:
    return next(one for one in found.features if one.name == name)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jointopt.measure.hardware.host._metered_gpus", lambda: ((), "No GPU is found."))
    monkeypatch.setattr("jointopt.measure.hardware.host._named_gpus", tuple)


def test_a_machine_without_a_gpu_is_a_cluster_of_cores_that_a_job_file_takes(no_gpu: None) -> None:
    found = diagnose(speeds=False)
    assert found.cluster["gpu"] == "cpu-core"
    assert not feature(found, "energy, power, temperature").works
    job = parse_job(parse_yaml(REST + found.cluster_yaml), "here", Path())
    assert job.cluster.num_gpus == found.machine["cores"]
    assert job.objectives == ("iteration_time_s",)
    assert 0 < job.cluster.gpu.memory_gib <= found.machine["memory_gib"] / found.machine["cores"]


def test_gpus_are_listed_with_clocks_and_found_in_the_catalogue(driver) -> None:
    found = diagnose(speeds=False)
    assert len(found.machine["gpus"]) == found.cluster["gpus_per_node"] == 4
    assert found.machine["gpus"][0]["clock_max_mhz"] == 1980.0
    assert feature(found, "energy, power, temperature").works
    assert driver.calls() == []
    job = parse_job(parse_yaml(REST.replace("fp32", "bf16") + found.cluster_yaml), "here", Path())
    assert job.cluster.gpu.id == found.cluster["gpu"]


def test_what_is_missing_comes_with_what_to_install(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jointopt.workflows.doctor._has", lambda module: False)
    monkeypatch.setenv("PATH", "")
    text = " ".join(diagnose(speeds=True).text().split())
    assert "missing launcher torchrun: PyTorch is not installed; pip install 'jointopt[torch]'" in text
    assert "apt-get install slurm-client" in text


def test_looking_at_a_database_makes_none_and_one_that_cannot_be_used_is_reported(tmp_path: Path, no_gpu: None) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    assert "will be made" in feature(diagnose(url, speeds=False), "database").what
    assert list(tmp_path.iterdir()) == []
    assert not feature(diagnose("sqlite:////nowhere/at/all.db", speeds=False), "database").works
    assert not feature(diagnose("nonsense", speeds=False), "database").works
    assert feature(diagnose("none", speeds=False), "database").what.startswith("none, as --storage")
    Store(url).add(pd.DataFrame({"num_gpus": [1, 2], "iteration_time_s": [2.0, 1.0]}), origin="here")
    assert feature(diagnose(url, speeds=False), "database").what.endswith("runs.db, 2 measurements")


@pytest.mark.usefixtures("torch")
def test_a_probe_of_cores_is_a_machine_file_that_predictions_take(
    no_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("jointopt.workflows.doctor._processes", lambda machine: 2)
    done = CliRunner().invoke(jointopt, ["doctor", "--probe", "--out", "here.yaml"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "link inside a node, GB/s" in done.stdout
    assert "Written to here.yaml" in done.stdout
    machine = load_machine(Path("here.yaml"))
    assert (machine.gpu, machine.gpus_per_node, machine.measured["nodes"]) == ("cpu-core", 2, 1)
    assert {one["kind"] for one in machine.readings["collectives"]} == {"all_reduce", "all_gather", "p2p"}
    cluster = "cluster: {gpu: cpu-core, nodes: 1, gpus_per_node: 2}\n"
    Path("job.yaml").write_text(REST + cluster)
    answer = CliRunner().invoke(jointopt, [*EXPLAIN, "--machine", "here.yaml"], catch_exceptions=False)
    link = json.loads(answer.stdout)["links"]["intra_node_gbytes_per_s"]
    assert link == {"value": machine.figures["intra_node_gbytes_per_s"], "origin": "measured"}


@pytest.mark.usefixtures("torch")
def test_two_nodes_of_torchrun_measure_the_links_between_them(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"]
    words += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    doctor = ["-m", "jointopt", "doctor", "--probe", "--json"]
    with ThreadPoolExecutor() as pool:
        nodes = [[*words, f"--node-rank={node}", *doctor] for node in (0, 1)]
        done = list(pool.map(lambda node: subprocess.run(node, cwd=tmp_path, stdout=-1, text=True, timeout=300), nodes))
    assert [each.returncode for each in done] == [0, 0]
    printed = [each.stdout for each in done]
    assert printed[1] == ""
    found = json.loads(printed[0])
    assert (found["gpus_per_node"], found["measured"]["nodes"]) == (2, 2)
    assert min(found["figures"][key] for key in ("intra_node_gbytes_per_s", "inter_node_gbytes_per_s")) > 0
    assert load_machine(tmp_path / "machine.yaml").mapping()["figures"] == found["figures"]


@pytest.mark.usefixtures("torch")
def test_tasks_of_srun_measure_together(cluster, tmp_path: Path) -> None:
    words = ("--nodes=2", "--ntasks-per-node=1", f"--chdir={tmp_path}", sys.executable, "-m", "jointopt")
    printed = cluster.run("srun", *words, "doctor", "--probe", "--json", limit_s=300)
    found = json.loads(printed)
    assert (found["gpus_per_node"], found["measured"]["nodes"]) == (1, 2)
    assert found["figures"]["inter_node_gbytes_per_s"] > 0


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "fp8"])
def test_products_of_every_precision_multiply(dtype: str) -> None:
    torch, program = (importlib.import_module(n) for n in ("torch", "jointopt.measure.trainer.probe"))
    assert program._product(dtype, 32, 64, 16, torch.device("cpu"))().shape == (32, 64)


READINGS = {  # as the probe has them of two GPUs, which are half as fast as the catalogue's
    "device": "NVIDIA H100 80GB HBM3", "backend": "nccl", "torch": "2.14", "cuda": "13.0", "nccl": "2.30.7",
    "processes": 2, "gpus_per_node": 2, "seconds": 4.0, "memory_bytes": 79.2 * 2**30, "backends": ["nccl"],
    "products": [{"dtype": "bf16", "m": 8192, "n": 8192, "k": 8192, "time_s": 0.00286}],
    "copy": {"bytes": 2**31, "time_s": 0.00075},
    "collectives": [{"kind": "all_reduce", "bytes": 2**27, "size": 2, "nodes": 1, "time_s": 0.0009}],
}  # fmt: skip


@pytest.fixture
def has_probed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What stands in for the probe's result: no GPU is here."""
    readings = dict(READINGS)
    monkeypatch.setattr("jointopt.workflows.doctor._has", lambda module: True)
    monkeypatch.setattr("jointopt.measure.hardware.host.probe_readings", lambda processes, rank=None: readings)
    return readings


def test_a_probe_of_gpus_is_of_the_catalogues_gpu_with_the_memory_that_the_driver_counts(
    no_gpu: None, has_probed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def machine(gib: tuple[float | None, ...]) -> Machine:
        here = replace(found_machine(), gpus=tuple(FoundGpu("H100", each) for each in gib))
        monkeypatch.setattr("jointopt.workflows.doctor.found_machine", lambda: here)
        probe(tmp_path / "machine.yaml")
        return load_machine(tmp_path / "machine.yaml")

    known, unknown = machine((79.65, 79.5)), machine((None,))
    assert (known.gpu, known.gpus_per_node, known.measured["nccl"]) == ("h100-sxm5-80gb", 2, "2.30.7")
    assert [each.figures["memory_gib"] for each in (known, unknown)] == [79.5, 79.2]
    assert known.product_time_factor["bf16"] == pytest.approx(2.0, rel=0.05)
    assert 150 < known.figures["intra_node_gbytes_per_s"] < 450


def test_a_probe_that_cannot_be_of_the_machine_is_refused_and_other_ranks_write_nothing(
    driver: Any, has_probed: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "machine.yaml"
    has_probed["device"] = "cpu"
    with pytest.raises(LauncherError, match=r"PyTorch 2\.14 does not see the GPUs"):
        probe(out)
    has_probed["device"] = "Voodoo 2"
    with pytest.raises(CatalogError, match="'Voodoo 2' is not in the catalogue"):
        probe(out)
    has_probed.clear()
    assert (probe(out), out.exists()) == (None, False)


def test_without_pytorch_the_probe_names_what_to_install(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jointopt.workflows.doctor._has", lambda module: False)
    done = CliRunner().invoke(jointopt, ["doctor", "--probe"])
    assert done.exit_code == 1
    assert "The probe needs PyTorch; install it with: pip install 'jointopt[torch]'." in done.stderr
    assert CliRunner().invoke(jointopt, ["doctor", "--out", "x.yaml"]).exit_code == 2


def test_measured_speeds_are_comments_beside_the_catalogue(no_gpu: None) -> None:
    found = diagnose(speeds=False)
    speeds = {"matrix_tflops": {"fp32": 0.05}, "memory_gbytes_per_s": 2.5, "device": "cpu"}
    text = replace(found, speeds=speeds).cluster_yaml
    assert "# measured fp32 products, TFLOP/s: 0.05, 50% of the catalogue's 0.1" in text
    assert "# measured memory, GB/s: 2.5, 50% of the catalogue's 5" in text


def test_the_command_prints_text_or_one_document(no_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = CliRunner().invoke(jointopt, ["doctor", "--quick"])
    document = json.loads(CliRunner().invoke(jointopt, ["doctor", "--quick", "--json"]).stdout)
    assert text.exit_code == 0
    assert "For the job file:" in text.stdout
    assert max(map(len, text.stdout.splitlines())) <= 100
    assert set(document) == {"schema", *diagnose(speeds=False).to_dict()}
    assert document["job_file"].startswith("cluster:\n")
