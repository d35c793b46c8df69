"""From a job to plans through the commands alone, as people and scripts use them.

The search runs in a process of its own; the commands after it share this one, which saves their imports.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt

JOB = "opt-350m-2x4-a100"


def run(*arguments: object, cwd: Path) -> Result:
    with contextlib.chdir(cwd):
        return CliRunner().invoke(jointopt, [*map(str, arguments)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    words = ("propose", JOB, "--trials", "200", "--seed", "1", "--json", "--out", "out")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "jointopt", *words], capture_output=True, text=True, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_front_is_sorted_and_none_beats_another(document: dict[str, Any]) -> None:
    points = [(plan["iteration_time_s"], plan["energy_j"]) for plan in document["front"]]
    assert len(points) > 1
    assert points == sorted(points)
    assert all(later[1] < earlier[1] for earlier, later in itertools.pairwise(points))


def test_every_plan_uses_all_gpus_and_has_a_clock_per_stage(document: dict[str, Any]) -> None:
    for plan in document["front"]:
        assert plan["dp"] * plan["tp"] * plan["pp"] * plan["cp"] == 8
        assert len(plan["stage_clock_mhz"]) == plan["pp"]
        for name in ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib"):
            assert 0 < plan[f"{name}_low"] <= plan[name] <= plan[f"{name}_high"]


def test_no_plan_is_faster_than_the_reference_by_clocks_alone(document: dict[str, Any]) -> None:
    fastest, reference = document["front"][0], document["reference"]
    assert fastest["iteration_time_s"] <= reference["iteration_time_s"] * (1 + 1e-12)  # one rounding may differ


def test_the_study_and_the_files_are_where_the_answer_states(document: dict[str, Any], folder: Path) -> None:
    assert document["study"]["storage"] == "sqlite:///jointopt.db"
    assert (folder / "jointopt.db").is_file()
    assert len(pd.read_csv(folder / "out" / "front.csv")) == len(document["front"])


def test_the_same_seed_gives_the_same_front(document: dict[str, Any], folder: Path) -> None:
    done = run("propose", JOB, "--trials", 200, "--seed", 1, "--json", "--storage", "none", cwd=folder)
    assert json.loads(done.stdout)["front"] == document["front"]


def test_a_plan_of_the_front_explains_itself_with_the_same_totals(document: dict[str, Any], folder: Path) -> None:
    plan = document["front"][-1]
    words = {name: plan[name] for name in ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size", "zero_stage")}
    words |= {name: plan[name] for name in ("sequence_parallel", "recompute", "stage_clock_mhz")}
    done = run("explain", JOB, "--plan", json.dumps(words), "--json", cwd=folder)
    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["feasible"] is True
    for total, parts in (
        ("iteration_time_s", "time_s"),
        ("energy_j", "energy_by_part_j"),
        ("peak_memory_gib", "memory_gib"),
    ):
        assert answer[total] == pytest.approx(plan[total], rel=1e-6)
        assert sum(answer[parts].values()) == pytest.approx(answer[total], rel=1e-6)


def test_what_cannot_fit_exits_1_with_one_line_that_helps(folder: Path) -> None:
    shape = ["--gpu=a100-sxm4-40gb", "--gpus=8", "--global-batch-size=64", "--seq-length=4096"]
    done = run("propose", "--model=llama-3-70b", *shape, cwd=folder)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "GiB" in done.stderr.splitlines()[-1]
    assert isinstance(done.exception, SystemExit)


@pytest.mark.parametrize("plan", ["dp=3", "dp=8 tp=x", "dpp=8", "{", "dp=8 clock_mhz=1"])
def test_a_bad_plan_is_one_line_and_exit_code_2(folder: Path, plan: str) -> None:
    done = run("explain", JOB, "--plan", plan, cwd=folder)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert isinstance(done.exception, SystemExit)


@pytest.mark.parametrize("url", ["sqlite:////no/such/folder/x.db", "nonsense", "postgresql://localhost:1/none"])
def test_a_storage_that_cannot_be_opened_is_one_line(folder: Path, url: str) -> None:
    done = run("propose", JOB, "--trials", 100, "--storage", url, cwd=folder)
    assert done.exit_code in (1, 2)
    assert isinstance(done.exception, SystemExit)
    assert done.stderr.splitlines()[-1].startswith("Error: ")


def test_predict_keeps_rows_and_columns_and_names_what_it_assumed(folder: Path) -> None:
    runs = pd.DataFrame({
        "group": ["a", "a"], "num_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 2048,
        "global_batch_size": 64, "gpu": "a100-sxm4-40gb", "gpus_per_node": 4, "num_gpus": 8, "dp": [8, 4],
        "tp": [1, 2], "pp": 1, "micro_batch_size": 1, "vocab_size": 50272, "mine": ["x", "y"],
    })  # fmt: skip
    runs.to_csv(folder / "runs.csv", index=False)
    done = run("predict", "runs.csv", "--out", "predicted.csv", cwd=folder)
    assert done.exit_code == 0, done.stderr
    predicted = pd.read_csv(folder / "predicted.csv")
    assert predicted.mine.tolist() == ["x", "y"]
    assert (predicted.predicted_iteration_time_s > 0).all()
    assert predicted.assumed.str.contains("zero_stage").all()


def test_a_pipeline_is_explained_stage_by_stage(folder: Path) -> None:
    plan = "dp=4 pp=2 micro_batch_size=2 stage_clock_mhz=1410;1200"
    answer = json.loads(run("explain", JOB, "--plan", plan, "--json", cwd=folder).stdout)
    assert [stage["clock_mhz"] for stage in answer["stages"]] == [1410, 1200]
    assert sum(stage["energy_j"] for stage in answer["stages"]) == pytest.approx(answer["energy_j"])
