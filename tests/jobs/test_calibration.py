"""The file of a calibration, and jobs that use it."""

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from jointopt.core.errors import JobError, UsageError
from jointopt.jobs.calibration import (
    Calibration,
    Constants,
    calibrated,
    calibrated_if_same_gpu,
    load_calibration,
    save_calibration,
)
from jointopt.jobs.jobfile import shipped_job
from jointopt.workflows.explain import explain
from jointopt.workflows.predict import predict

CALIBRATION = Calibration(
    gpu="a100-sxm4-40gb",
    constants=Constants(1410.0, 70.0, 0.76, 1.3, wait_w=95.0, board_limit_w=380.0),
    plus_minus={"static_w": 5.0},
    fitted_on={"kind": "stage profile", "rows": 5, "clocks_mhz": [855.0, 1410.0], "power_limits_w": []},
    fit_error_percent={"time": 0.1, "power": 0.4},
    work=({"work": "0 forward", "clock_sensitive_share": 0.8},),
)


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    save_calibration(CALIBRATION, tmp_path / "cal.yaml")
    assert load_calibration(tmp_path / "cal.yaml") == CALIBRATION


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("static_w: 70.0|static_watts: 70.0", "did you mean 'static_w'"),
        ("gpu: a100-sxm4-40gb|gpux: a100-sxm4-40gb", "did you mean 'gpu'"),
        ("knee_fraction: 0.76|knee_fraction: 7.6", "knee_fraction must be a number above 0 and at most 1"),
        ("version: 1|version: 9", "version must be 1"),
        ("measure_next: []|measure_next: 7", "measure_next must be a list of texts; got 7"),
        ("static_w: 70.0, |", "static_w is missing"),
    ],
)
def test_what_no_calibration_holds_is_named(tmp_path: Path, change: str, message: str) -> None:
    path, (old, new) = tmp_path / "cal.yaml", change.split("|")
    save_calibration(CALIBRATION, path)
    path.write_text(path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(JobError, match=re.escape(message)):
        load_calibration(path)


def test_a_missing_calibration_is_called_missing_alone(tmp_path: Path) -> None:
    path = tmp_path / "missing.yaml"
    with pytest.raises(JobError, match=re.escape(f"{path} does not exist; check the path.") + "$") as caught:
        load_calibration(path)
    assert str(caught.value).startswith(str(path))


def test_a_job_takes_the_constants_of_its_gpu() -> None:
    job = calibrated(shipped_job("opt-350m-2x4-a100"), CALIBRATION)
    power = job.cluster.gpu.power
    assert power is not None
    assert (power.static_w, power.wait_w, power.knee_fraction, power.voltage_ratio) == (70.0, 95.0, 0.76, 1.3)
    assert job.cluster.power_limit_w == 380.0


def test_a_limit_that_the_job_states_stays() -> None:
    job = shipped_job("opt-350m-2x4-a100")
    limited = replace(job, cluster=replace(job.cluster, power_limit_w=300.0))
    assert calibrated(limited, CALIBRATION).cluster.power_limit_w == 300.0


def test_more_static_power_costs_energy_and_no_time() -> None:
    job, plan = shipped_job("opt-350m-2x4-a100"), "dp=4 tp=2 micro_batch_size=1 clock_mhz=1200"
    usual = explain(job, plan, surrogate="none")
    more = explain(
        calibrated(job, replace(CALIBRATION, constants=Constants(1410.0, 90.0, 0.76, 1.3))), plan, surrogate="none"
    )
    assert more.to_dict()["energy_j"] > usual.to_dict()["energy_j"]
    assert more.to_dict()["iteration_time_s"] == pytest.approx(usual.to_dict()["iteration_time_s"], rel=0.02)


def test_a_calibration_of_another_gpu_is_refused_or_left_aside() -> None:
    job = shipped_job("llama-3-8b-1x8-h100")
    with pytest.raises(UsageError, match="of GPU 'a100-sxm4-40gb' and the job runs on 'h100"):
        calibrated(job, CALIBRATION)
    assert calibrated_if_same_gpu(job, CALIBRATION) is job
    assert calibrated(job, None) is job


def test_the_answer_names_what_was_calibrated() -> None:
    job = calibrated(shipped_job("opt-350m-2x4-a100"), CALIBRATION)
    explained = explain(job, "dp=8 clock_mhz=1200", surrogate="none", storage=None)
    keys = {assumption.key for assumption in job.cluster.gpu.power.assumed}
    assert any(str(one).endswith("voltage curve calibrated (stage profile, 5 rows)") for one in explained.assumed)
    assert not {"static_w", "wait_w", "knee_fraction"} & keys


def test_a_table_without_runs_on_the_calibrated_gpu_is_refused() -> None:
    row = {"gpu": "gh200-96gb", "num_gpus": 8, "model": "opt-350m", "seq_length": 2048, "global_batch_size": 256}
    with pytest.raises(UsageError, match="no run of the table is on it"):
        predict(pd.DataFrame([row | {"dp": 8}]), calibration=CALIBRATION)
