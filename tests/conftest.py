"""Results made by hand, for tests of what is printed."""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sqlalchemy
from hypothesis import HealthCheck, settings

from jointopt.core.schema import Columns, decode_cells
from jointopt.jobs.cluster import Cluster, Gpu
from jointopt.jobs.job import Job, Training
from jointopt.jobs.jobfile import load_job
from jointopt.jobs.model import Model
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.measure.hardware.host import FOR_TESTS
from jointopt.report.results import Explanation, Proposal, Stage
from jointopt.workflows.predict import predict
from tests.slurm_cluster import cluster as cluster

# a busy machine is slow to draw examples, and no test judges seconds; tests that need more examples state it
settings.register_profile("any machine", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
pytest_plugins = ["pytester", "tests.services", "tests.pace", "tests.postgres_server"]


def pytest_collection_finish() -> None:
    """Thousands of tests and modules stay to the end: to look for garbage among them takes a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


@pytest.fixture(scope="module", autouse=True)
def _files_are_closed() -> Iterator[None]:
    """Databases of tests stay open until garbage is looked for, which is seldom: a process may not open any number."""
    yield
    if len(os.listdir("/proc/self/fd")) > 200:
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def _signals_are_heard() -> None:
    """Tests started in the background or under nohup inherit that signals are ignored, and hand it down."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)


@sqlalchemy.event.listens_for(sqlalchemy.Engine, "connect")
def _no_wait_for_the_disk(connection: Any, _: object) -> None:
    """No database of a test outlives the machine, so that none need be on its disk after each transaction."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


@pytest.fixture(scope="session", autouse=True)
def _revisions_are_read_once() -> None:
    """Optuna reads the files of all its revisions to open a database, which takes longer than what tests do with it."""
    from optuna.storages._rdb.storage import _VersionManager

    head = _VersionManager.get_head_version
    _VersionManager.get_head_version = functools.cache(lambda _: head(_))


@pytest.fixture(scope="session")
def _empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with Optuna's tables, which take long to make."""
    import optuna

    file = tmp_path_factory.mktemp("empty") / "runs.db"
    optuna.storages.RDBStorage(f"sqlite:///{file}")
    return file


@pytest.fixture
def url(_empty_database: Path, tmp_path: Path) -> str:
    """URL of an SQLite database of the test's own, with Optuna's tables and nothing in them."""
    return f"sqlite:///{shutil.copy(_empty_database, tmp_path / 'runs.db')}"


@pytest.fixture(scope="session", autouse=True)
def _texts_are_as_wide_as_in_a_pipe() -> None:
    """What starts the tests may state the width of its terminal, by which texts would be laid out."""
    os.environ.pop("COLUMNS", None)


@pytest.fixture(scope="session", autouse=True)
def _cores_stand_in_for_gpus() -> None:
    """Here trainings on cores count as those on the stand-in driver's GPUs; launchers refuse that to everybody else."""
    os.environ[FOR_TESTS] = "1"


@pytest.fixture
def job() -> Job:
    """A small dense model on 2 x 4 GPUs."""
    model = Model("tiny-350m", 24, 1024, 4096, 16, 16, 50272, 64, gated_mlp=False)
    gpu = Gpu(
        "a100-sxm4-40gb", "A100", "nvidia", "ampere", {"bf16": 312.0}, 40.0, 1555.0, 108, 300.0, None, 4, 25.0,
        210.0, 1410.0, 15.0, 400.0, 55.0, 90.0, 88.0,
    )  # fmt: skip
    cluster = Cluster(gpu, 2, 4, 300.0, 25.0, 5.0, 5.0, 30.0, 25.0, 1500.0, 1.2, 400.0)
    return Job("tiny", model, Training(2048, 256), cluster)


@pytest.fixture
def make_front() -> Callable[..., Columns]:
    """A front of ``n`` plans, slower and thriftier one by one; keyword arguments replace columns."""

    def front(n: int = 5, pp: int = 2, **columns: Any) -> Columns:
        rank = np.arange(n)
        time, energy = 1.0 * 1.02**rank, 9000.0 * 0.98**rank
        results = {"iteration_time_s": time, "energy_j": energy, "avg_power_w": energy / time / 8}
        results["peak_memory_gib"] = np.full(n, 23.4)
        bounds = {f"{k}_{end}": v * f for k, v in results.items() for end, f in (("low", 0.9), ("high", 1.2))}
        one = {name: np.ones(n, np.int64) for name in ("tp", "cp", "ep", "vpp", "zero_stage", "micro_batch_size")}
        plan: Columns = {"dp": np.full(n, 8 // pp), "pp": np.full(n, pp), **one}
        plan |= {"sequence_parallel": np.zeros(n, bool), "recompute": np.zeros(n, np.int8)}
        plan["stage_clock_mhz"] = np.repeat(1410.0 - 15 * rank[:, np.newaxis], pp, axis=1)
        return {**plan, **results, **bounds, "in_domain": np.ones(n, bool), **columns}

    return front


@pytest.fixture
def make_proposal(job: Job, make_front: Callable[..., Columns]) -> Callable[..., Proposal]:
    """A proposal with a front of ``n`` plans; keyword arguments replace its fields."""

    def proposal(n: int = 5, **fields: Any) -> Proposal:
        given = {
            "job": job, "seed": 0, "surrogate": "none", "considered": 5000, "layouts": 120, "feasible_layouts": 90,
            "infeasible": {"tp does not divide the heads": 4880, "does not fit in the GPU's memory": 30},
            "front": make_front(n), "reference": make_front(1), "covered_plans": 10**9, "evaluated_plans": 12345,
            "seconds": {"search": 0.5},
        }  # fmt: skip
        return Proposal(**(given | fields))

    return proposal


@pytest.fixture
def make_explanation(job: Job) -> Callable[..., Explanation]:
    """A plan of two stages taken apart; keyword arguments replace its fields."""

    def explanation(**fields: Any) -> Explanation:
        plan = {
            "dp": 4, "tp": 1, "pp": 2, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1, "sequence_parallel": False,
            "recompute": "selective", "zero_stage": 1, "stage_clock_mhz": [1410.0, 1200.0],
        }  # fmt: skip
        stages = (Stage(1410.0, 0.9, 0.1, 4600.0, 21.5, 12, 310.0), Stage(1200.0, 0.8, 0.2, 4400.0, 23.5, 12, 290.0))
        given = {
            "job": job, "plan": plan, "feasible": True, "violations": (), "iteration_time_s": 1.0, "energy_j": 9000.0,
            "avg_power_w": 300.0, "peak_memory_gib": 23.5, "time_s": {"compute": 0.8, "bubble": 0.2, "tp_comm": 0.0},
            "energy_by_part_j": {"compute": 6000.0, "static": 3000.0}, "stages": stages,
            "memory_gib": {"weights": 3.5, "activations": 20.0},
        }  # fmt: skip
        return Explanation(**(given | fields))

    return explanation


@pytest.fixture
def make_runs(job: Job) -> Callable[..., pd.DataFrame]:
    """A measurement table of ten recorded plans of ``job``, the largest micro-batches out of memory.

    Keyword arguments replace columns.
    """

    def runs(**columns: Any) -> pd.DataFrame:
        plans = [
            (dp, tp, 8 // dp // tp, size) for dp, tp in ((8, 1), (4, 2), (4, 1), (2, 2), (2, 1)) for size in (1, 64)
        ]
        table = pd.DataFrame(plans, columns=["dp", "tp", "pp", "micro_batch_size"])
        model, training, cluster = job.model, job.training, job.cluster
        table = table.assign(
            source="test", group="tiny", num_layers=model.num_layers, hidden_size=model.hidden_size,
            ffn_hidden_size=model.ffn_hidden_size, num_attention_heads=model.num_attention_heads,
            vocab_size=model.vocab_size, gated_mlp=False, seq_length=training.seq_length,
            global_batch_size=training.global_batch_size, dtype=training.dtype, framework="megatron-lm",
            gpu=cluster.gpu.id, gpus_per_node=cluster.gpus_per_node, num_gpus=cluster.num_gpus, zero_stage=1,
        )  # fmt: skip
        fits = table["micro_batch_size"] < 64
        times = 10.0 + table["tp"] + 0.5 * table["pp"]
        table = table.assign(status=np.where(fits, "ok", "oom"), iteration_time_s=times.where(fits))
        return table.assign(**columns)

    return runs


@functools.cache
def _opt() -> tuple[Job, Columns]:
    """A shipped job and its layouts."""
    job = load_job("opt-350m-2x4-a100")
    return job, enumerate_layouts(job).layouts


def _synthetic(
    source: str = "lab", factor: float = 1.3, noise: float = 0.02, rows: int = 10, groups: tuple[int, ...] = (256, 512),
    seed: int = 0, **columns: Any,
) -> pd.DataFrame:  # fmt: skip
    """Timed runs whose true times are the physics' times ``factor`` times log-normal noise; a group per batch size."""
    rng = np.random.default_rng(seed)
    job, layouts = _opt()
    model, training, cluster = job.model, job.training, job.cluster
    at = [rng.choice(len(layouts["pp"]), rows, replace=False) for _ in groups]
    chosen = np.concatenate(at)
    plans = pd.DataFrame({name: decode_cells(name, values[chosen]) for name, values in layouts.items()})
    batch = np.repeat(groups, rows)
    table = plans.assign(
        global_batch_size=batch, source=source, status="ok",
        group=[f"batch {size}" for size in batch], model=model.name, num_layers=model.num_layers,
        hidden_size=model.hidden_size, ffn_hidden_size=model.ffn_hidden_size, vocab_size=model.vocab_size,
        num_attention_heads=model.num_attention_heads, num_query_groups=model.num_query_groups, gated_mlp=False,
        seq_length=training.seq_length, dtype=training.dtype, attention=training.attention, fused_norm=True,
        framework="megatron-lm", gpu=cluster.gpu.id, gpus_per_node=cluster.gpus_per_node, num_gpus=cluster.num_gpus,
    ).assign(**columns)  # fmt: skip
    physics = predict(table)["predicted_iteration_time_s"].to_numpy(float)
    return table.assign(iteration_time_s=physics * factor * np.exp(noise * rng.standard_normal(len(table))))


@pytest.fixture(scope="session")
def synthetic_runs() -> Callable[..., pd.DataFrame]:
    """Maker of measurement tables whose truth is known: physics times a factor times noise."""
    made: dict[str, pd.DataFrame] = {}  # many tests begin with the same table, and physics takes its time

    def runs(*words: Any, **columns: Any) -> pd.DataFrame:
        key = repr((words, columns))
        if key not in made:
            made[key] = _synthetic(*words, **columns)
        return made[key].copy()

    return runs


@pytest.fixture(scope="session")
def three_sources() -> pd.DataFrame:
    """Runs of three clusters, each with its own factor between physics and truth."""
    parts = [
        _synthetic("a100", 1.3, seed=1),
        _synthetic("h100", 0.9, seed=2, gpu="h100-sxm5-80gb"),
        _synthetic("titan", 1.1, seed=3, gpu="h100-sxm5-80gb", framework="torchtitan"),
    ]
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="session")
def trained(three_sources: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a surrogate trained on three synthetic sources, and the table ``runs.csv`` beside it."""
    from jointopt.workflows.retrain import retrain  # imports learners

    folder = tmp_path_factory.mktemp("trained")
    three_sources.to_csv(folder / "runs.csv", index=False)
    retrain(tables=[folder / "runs.csv"], out=folder / "surrogate", licences=["a100: made up"])
    return folder / "surrogate"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@dataclass(frozen=True)
class Driver:
    """A machine with stand-in GPUs: its folder of state, and the environment of programs that see them."""

    folder: Path
    environment: dict[str, str]

    def disturb(self, what: str) -> None:
        """``no-permission``, ``lost-N``, ``still-N`` or ``jump-N``, see stand_in/nvml.c."""
        (self.folder / what).touch()

    def calls(self) -> list[str]:
        """What was set, in order: ``lock GPU MHz``, ``reset GPU MHz``, ``limit GPU mW``."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def held(self) -> dict[int, int]:
        """Clocks in MHz of the GPUs that are locked now."""
        found: dict[int, int] = {}
        for what, gpu, value in map(str.split, self.calls()):
            if what == "lock":
                found[int(gpu)] = int(value)
            elif what == "reset":
                found.pop(int(gpu), None)
        return found


@pytest.fixture(scope="session")
def driver_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a stand-in for NVIDIA's driver library, compiled from stand_in/nvml.c."""
    pytest.importorskip("zeus", reason="meters and clocks need Zeus: pip install 'jointopt[meter]'")
    compiler = shutil.which("cc") or pytest.skip("the stand-in for the driver library needs a C compiler")
    folder = tmp_path_factory.mktemp("driver")
    source, library = Path(__file__).parent / "stand_in" / "nvml.c", folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-lm"], check=True)
    return folder


@pytest.fixture
def driver(driver_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Four stand-in GPUs, for this process and, by ``environment``, for others; no real driver is used."""
    pynvml = importlib.import_module("pynvml")
    folder = tmp_path / "gpus"
    folder.mkdir()
    own = {"STAND_IN_NVML": str(folder), "XDG_STATE_HOME": str(tmp_path / "state"),
           "JOINTOPT_CLOCKS": str(tmp_path / "clocks")}  # fmt: skip
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    for name in ("CUDA_VISIBLE_DEVICES", "ZEUSD_SOCK_PATH", "ZEUSD_HOST_PORT", "SLURM_NODEID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(driver_library / "libnvidia-ml.so.1")))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return Driver(folder, {**os.environ, "LD_LIBRARY_PATH": str(driver_library)})
