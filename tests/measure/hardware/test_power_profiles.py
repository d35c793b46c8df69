"""Workload power profiles of a plan are requested for its runs alone; real pynvml, stand-in driver."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from jointopt.core.errors import DevicePermissionError, PlanError
from jointopt.measure.hardware.gpu_clocks import Setting, plan_settings, reset_all, restore, settings_session
from jointopt.measure.hardware.meter import Gpus, profile_names

MAX_P, MAX_Q, LLM_TRAINING = 1 << 0, 1 << 1, 1 << 7
PLAN = {"dp": 4, "tp": 1, "cp": 1, "pp": 1, "stage_clock_mhz": [1410.0]}
HOLD = """
import time
from jointopt.measure.hardware.gpu_clocks import settings_session, Setting
with settings_session([Setting(2, profiles=("max-q",))]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def blackwell(driver, monkeypatch: pytest.MonkeyPatch):
    """Four GPUs that offer max-p, max-q and llm-training."""
    mask = str(MAX_P | MAX_Q | LLM_TRAINING)
    monkeypatch.setenv("STAND_IN_NVML_PROFILES", mask)
    driver.environment["STAND_IN_NVML_PROFILES"] = mask
    return driver


def requested() -> list[tuple[str, ...]]:
    gpus = Gpus()
    return [gpus.requested_profiles(index) for index in range(len(gpus))]


def test_profiles_are_offered_by_name_and_older_gpus_have_none(blackwell, monkeypatch) -> None:
    assert Gpus().offered_profiles(3) == ("max-p", "max-q", "llm-training")
    monkeypatch.delenv("STAND_IN_NVML_PROFILES")
    assert Gpus().offered_profiles(3) == ()


@pytest.mark.parametrize("text", ["max-q+llm-training", "MAX_Q + LLM_TRAINING", "max-q+llm-training+max-q"])
def test_profiles_of_a_plan_are_requested_together_on_all_its_gpus(text: str) -> None:
    assert profile_names(text) == ("max-q", "llm-training")
    settings = plan_settings(PLAN | {"power_profile": text}, default_clocks=True)
    assert settings == [Setting(gpu, profiles=("max-q", "llm-training")) for gpu in range(4)]


def test_profiles_are_those_of_the_plan_while_it_runs_and_then_the_previous_ones(blackwell) -> None:
    Gpus().request_profiles(1, ["max-p"])
    with settings_session([Setting(gpu, profiles=("llm-training", "max-q")) for gpu in (0, 1)]):
        assert requested() == [("max-q", "llm-training")] * 2 + [()] * 2
    assert requested() == [(), ("max-p",), (), ()]


def test_a_run_of_a_killed_owner_has_its_profiles_taken_back(blackwell) -> None:
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, env=blackwell.environment, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        for each in [*psutil.Process(owner.pid).children(), owner]:
            each.kill()
    assert requested()[2] == ("max-q",)
    assert restore() == ["The clock of GPU 2 (NVIDIA H100 80GB HBM3) is the driver's again, its power profile none."]
    assert requested() == [()] * 4


def test_a_profile_that_is_not_offered_is_refused_before_anything_is_set(blackwell) -> None:
    with pytest.raises(PlanError) as refused, settings_session([Setting(0, 1410.0, profiles=("max-r",))]):
        pass
    assert "has no power profile 'max-r' (did you mean 'max-q'?); it has max-p, max-q, llm" in str(refused.value)
    assert blackwell.calls() == []


def test_a_gpu_without_profiles_is_refused(driver) -> None:
    with pytest.raises(PlanError, match="its driver offers none"), settings_session([Setting(0, profiles=("max-q",))]):
        pass


def test_without_rights_nothing_is_requested_and_root_is_named(blackwell) -> None:
    blackwell.disturb("no-permission")
    held = settings_session([Setting(0, profiles=("max-q",))])
    with pytest.raises(DevicePermissionError, match="setting one needs root"), held:
        pass
    assert requested() == [()] * 4


def test_another_program_that_changes_a_profile_is_named(blackwell) -> None:
    with settings_session([Setting(0, profiles=("max-q",))]) as held:
        Gpus().request_profiles(0, ["max-p"])
    assert held.changed == {"profile 0": "the power profile of GPU 0 was set to max-p by another program"}


def test_resetting_clears_every_profile(blackwell) -> None:
    Gpus().request_profiles(3, ["max-p", "llm-training"])
    reset_all()
    assert requested() == [()] * 4
