"""The sweep that is ready for a machine with a GPU: tried on processor cores, with stand-in GPUs for energy."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
import yaml

from jointopt.core.errors import DeviceError, TableError, UsageError
from jointopt.jobs.catalog.gpus import load_gpu

STUDY = Path(__file__).parents[1] / "studies" / "gpu-sweep"
SPACE = yaml.safe_load((STUDY / "sweep.yaml").read_text())
TINY: dict[str, Any] = SPACE | {
    "models": {
        "tiny": {
            "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 4,
            "num_query_groups": 2, "vocab_size": 256, "gated_mlp": True,
        }
    },
    "seq_lengths": [16, 32], "tokens_per_iteration": 64, "micro_batch_sizes": [1, 2], "runs": 2,
    "warmup_iterations": 1, "iterations": 2, "limit_s": 900,
}  # fmt: skip


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDY))
    return importlib.import_module("sweep")


@pytest.fixture
def start(sweep: ModuleType, torch: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Runs the command with a space and options; its results are in ``tmp_path/out``."""

    def run(*options: str, **space: Any) -> Path:
        file, out = tmp_path / "space.yaml", tmp_path / "out"
        file.write_text(yaml.safe_dump(TINY | space))
        monkeypatch.setattr(sys, "argv", ["sweep.py", "--sweep", str(file), "--out", str(out), *options])
        sweep.main()
        return out

    return run


@functools.cache
def feasible(sweep: ModuleType, gpu: str) -> list[Any]:
    """All runs of the space that fit, which take long to price."""
    return list(sweep.feasible_runs(SPACE, load_gpu(gpu)))


@pytest.mark.parametrize("gpu", ["h100-sxm5-80gb", "a100-sxm4-80gb"])
def test_the_sweep_has_forty_runs_in_half_an_hour(sweep: ModuleType, gpu: str) -> None:
    runs = sweep.balanced(feasible(sweep, gpu), SPACE["runs"])
    assert len(runs) >= 40
    assert len({run.key for run in runs}) == len(runs)
    assert sum(run.expected_s for run in runs) < 1800


@pytest.mark.parametrize("most", [9, 18, 36])
def test_a_sweep_that_is_cut_short_is_still_spread_evenly(sweep: ModuleType, most: int) -> None:
    runs = sweep.balanced(feasible(sweep, "h100-sxm5-80gb"), most)
    for name, values in {"model": 3, "seq_length": 3, "recompute": 3, "micro_batch_size": 4}.items():
        counts = pd.Series([run.question[name] for run in runs]).value_counts()
        assert len(counts) == values
        assert counts.max() - counts.min() <= 2


def test_models_of_the_sweep_have_the_size_that_they_are_named_by(sweep: ModuleType) -> None:
    jobs = {job.model.name: job.model for job in sweep.jobs(SPACE, load_gpu("h100-sxm5-80gb"))}
    sizes = {
        name: model.num_layers * (model.attention_parameters + model.dense_mlp_parameters)
        + 2 * model.vocab_size * model.hidden_size
        for name, model in jobs.items()
    }
    assert sizes == pytest.approx({"dense-0.3b": 0.3e9, "dense-1b": 1e9, "dense-3b": 3e9}, rel=0.03)


def test_runs_are_measured_with_energy_no_clock_is_set_and_none_runs_twice(start, driver, capsys) -> None:
    start("--trial", runs=1)
    out = start("--trial", runs=1)
    rows = pd.read_csv(out / "runs.csv")
    assert rows["status"].tolist() == ["ok"]
    assert (rows[["iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib"]] > 0).all(axis=None)
    assert driver.calls() == []
    assert rows["stage_clock_mhz"].tolist() == [1980]
    assert "1 runs, 1 of them done" in capsys.readouterr().out
    card = yaml.safe_load((out / "card.yaml").read_text())
    assert (card["rows"], card["rows_with_energy"], card["licence"]) == ({"ok": 1}, 1, "Apache-2.0")
    assert card["gpu"]["catalogue_id"] == "h100-sxm5-80gb"
    assert "A trial on the processor" in (out / "report.md").read_text()
    assert (out / "readme-snippet.md").exists()


def test_failures_are_rows_three_of_them_end_the_sweep_and_may_be_tried_again(start, driver, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="3 runs in a row failed, the last one: did not end within 0 s"):
        start("--trial", limit_s=0.01, runs=4)
    assert pd.read_csv(tmp_path / "out" / "runs.csv")["status"].tolist() == ["timeout"] * 3
    start("--trial", "--retry-failed", "--minutes", "0", runs=4)
    assert pd.read_csv(tmp_path / "out" / "runs.csv").empty


def test_without_a_gpu_that_pytorch_sees_nothing_is_measured(start, torch, driver, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("PyTorch sees a GPU here")
    with pytest.raises(DeviceError, match="sees no GPU; install a build with CUDA"):
        start()
    assert not (tmp_path / "out").exists()


def test_a_machine_without_a_meter_is_refused(sweep: ModuleType, driver, monkeypatch) -> None:
    monkeypatch.delenv("STAND_IN_NVML")
    with pytest.raises(DeviceError, match="needs one GPU whose energy can be read"):
        sweep.the_gpu()


def test_a_line_that_a_kill_cut_off_runs_again(sweep: ModuleType, tmp_path: Path) -> None:
    plan = {"model": "m", "seq_length": 16, "global_batch_size": 4, "recompute": "none", "zero_stage": 0}
    table = sweep.Table(tmp_path / "runs.csv", {"gpu": "x"})
    for size in (1, 2):
        table.add(plan | {"micro_batch_size": size, "gpu": "x", "status": "ok", "notes": 'said "no"\nand, left'})
    assert len(table.done()) == 2
    table.file.write_text(table.file.read_text()[:-9])
    assert sweep.Table(table.file, {"gpu": "x"}).done() == {("m", "16", "4", "1", "none", "0")}
    with pytest.raises(TableError, match="holds rows with gpu 'x', and these would have 'y'; give another folder"):
        sweep.Table(table.file, {"gpu": "y"})


def test_the_report_finds_the_constants_that_made_the_rows(sweep: ModuleType, tmp_path: Path) -> None:
    report = importlib.import_module("report")
    models = {name: SPACE["models"][name] for name in ("dense-0.3b", "dense-1b")}
    small = SPACE | {"models": models, "seq_lengths": [1024]}
    runs = sweep.balanced(sweep.feasible_runs(small, load_gpu("h100-sxm5-80gb")), 20)
    rows = pd.DataFrame([dict(run.question) for run in runs]).assign(source=report.SOURCE, status="ok")
    constants = [c for c in report.CONSTANTS if c.quantity == "iteration_time_s"]
    made = [1.4, 3.0, 2e-3]
    rows["iteration_time_s"] = report.Physics(rows).answers("iteration_time_s", constants, made)
    fit = report.fit_of(rows, "iteration_time_s")
    assert [c.name for c in fit.constants] == ["compute_factor", "elementwise_factor", "host_floor_s"]
    assert fit.together == pytest.approx(made, rel=0.05)
    assert fit.together_error < 0.01 < 0.2 < fit.error
    assert fit.held_out < 0.05


def test_a_space_with_a_key_too_few_or_too_many_is_refused(sweep: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    for wrong in ({"run": 3}, {}):
        file.write_text(yaml.safe_dump((SPACE if wrong else {}) | wrong))
        with pytest.raises(UsageError, match=r"expected the keys models, .*is missing or unknown"):
            sweep.read_space(file)
