"""``jointopt calibrate`` and ``--calibration``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt

PROFILE = pd.DataFrame(
    {
        "stage": 0, "instruction": "forward", "frequency": [1410, 1260, 1125, 990, 855],
        "time": [0.050, 0.0555, 0.0615, 0.069, 0.0785], "energy": [19.0, 17.1, 15.6, 15.7, 16.0],
    }
)  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    PROFILE.to_csv("profile.csv", index=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(jointopt, [*arguments])


def calibrate(*more: str) -> Result:
    return run("calibrate", "profile.csv", "--gpu", "a100-sxm4-40gb", "--out", "cal.yaml", *more)


def test_a_profile_becomes_a_file_and_a_summary():
    result = calibrate()
    assert result.exit_code == 0, result.stderr
    assert "stage profile, 5 rows" in result.stdout
    assert "static_w" in result.stdout
    assert "gpu: a100-sxm4-40gb" in Path("cal.yaml").read_text(encoding="utf-8")


def test_a_query_is_predicted_into_its_own_file():
    PROFILE[["stage", "instruction", "frequency"]].assign(frequency=1200).to_csv("query.csv", index=False)
    result = calibrate("--query", "query.csv", "--predictions", "out.csv")
    assert "5 of 5 rows predicted." in result.stdout
    assert pd.read_csv("out.csv")["predicted_time_s"].between(0.055, 0.062).all()


@pytest.mark.parametrize("more", [("--query", "query.csv"), ("--predictions", "out.csv")])
def test_query_and_predictions_go_together(more: tuple[str, str]):
    result = calibrate(*more)
    assert result.exit_code == 2
    assert "go together" in result.stderr


def test_explain_and_predict_use_a_calibration(synthetic_runs):
    calibrate()
    plan = ("--plan", "dp=4 tp=2 micro_batch_size=1 clock_mhz=1200", "--storage", "none", "--surrogate", "none")
    plain, learned = (run("explain", "opt-350m-2x4-a100", *plan, *c) for c in ((), ("--calibration", "cal.yaml")))
    assert learned.exit_code == 0, learned.stderr
    assert learned.stdout != plain.stdout
    synthetic_runs().to_csv("runs.csv", index=False)
    result = run("predict", "runs.csv", "--out", "out.csv", "--surrogate", "none", "--calibration", "cal.yaml")
    assert result.exit_code == 0, result.stderr


def test_a_calibration_of_another_gpu_is_refused():
    calibrate()
    result = run("explain", "llama-3-8b-1x8-h100", "--plan", "tp=8", "--calibration", "cal.yaml")
    assert result.exit_code == 2
    assert "calibrate on measurements of 'h100-sxm5-80gb'" in result.stderr
