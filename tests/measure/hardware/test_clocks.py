"""Clocks of a plan are set before a run and put back whatever ends it; real zeus and pynvml, stand-in driver."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.errors import DeviceError, DevicePermissionError, PlanError
from jointopt.jobs.plans.placement import stage_of_rank
from jointopt.measure.hardware import gpu_clocks, meter
from jointopt.measure.hardware.gpu_clocks import Ownership, Setting, plan_settings, settings_session

PLAN = {"dp": 2, "tp": 1, "cp": 1, "pp": 2, "stage_clock_mhz": [1410.0, 1200.0]}
EVERYWHERE = Path(__file__).parents[2] / "stand_in" / "signal_everywhere.py"
HOLD = """
import sys, time
from jointopt.measure.hardware.gpu_clocks import settings_session, Setting
with settings_session([Setting(i, 1410.0, 500.0) for i in range(4)]):
    print("held", flush=True)
    time.sleep(60)
"""


def killed(program: subprocess.Popen[str]) -> None:
    """SIGKILL to a program and to the guardian that would put its clocks back."""
    both = [*psutil.Process(program.pid).children(), program]
    for each in both:
        each.kill()
    program.wait()


def left_by(gpu: str, monkeypatch: pytest.MonkeyPatch, limit_w: float | None = None) -> None:
    """A record as process 4321 leaves it that is killed."""
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: 4321)
        owned = Ownership([gpu])
        owned.write({gpu: Setting(0, power_limit_w=limit_w)})
        owned.release([gpu], put_back=False)


def holder(driver, program: str = HOLD) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, env=driver.environment, stdout=subprocess.PIPE, text=True)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5))
def test_ranks_fill_stages_in_order_with_tp_innermost(tp: int, cp: int, dp: int, pp: int) -> None:
    plan = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    grid = np.arange(tp * cp * dp * pp).reshape(pp, dp, cp, tp)
    stages = stage_of_rank(plan, grid.ravel()).reshape(grid.shape)
    assert all((stages[stage] == stage).all() for stage in range(pp))


def test_each_node_sets_the_clocks_of_its_own_ranks() -> None:
    plan = PLAN | {"dp": 4, "power_limit_w": 500.0}
    assert plan_settings(plan, node=0, gpus_per_node=4) == [Setting(i, 1410.0, 500.0) for i in range(4)]
    assert plan_settings(plan, node=1, gpus_per_node=4) == [Setting(i, 1200.0, 500.0) for i in range(4)]
    with pytest.raises(PlanError, match="uses 8 GPUs, 4 on each node; it has no node 2"):
        plan_settings(plan, node=2, gpus_per_node=4)


@pytest.mark.parametrize("clocks_given", ["1410;1200", "1410,1200", (1410, 1200), np.array([1410.0, 1200.0])])
def test_clocks_may_be_written_as_tables_and_json_have_them(clocks_given) -> None:
    settings = plan_settings(PLAN | {"stage_clock_mhz": clocks_given})
    assert [s.clock_mhz for s in settings] == [1410, 1410, 1200, 1200]


@pytest.mark.parametrize(
    ("key", "value"), [("stage_clock_mhz", [1, 2, 3]), ("stage_clock_mhz", "fast"), ("power_limit_w", "no")]
)
def test_values_that_are_not_one_per_stage_are_refused(key: str, value) -> None:
    with pytest.raises(PlanError, match=f"{key} must be .*one for each of the 2 stages"):
        plan_settings(PLAN | {key: value})


def test_a_plan_without_clocks_sets_nothing(driver) -> None:
    settings = plan_settings({"dp": 1, "tp": 1, "cp": 1, "pp": 1, "stage_clock_mhz": float("nan")})
    with settings_session(settings):
        pass
    assert driver.calls() == []


def test_stages_run_at_their_clocks_and_are_put_back_at_the_end(driver) -> None:
    with settings_session(plan_settings(PLAN)) as held:
        assert driver.held() == {0: 1410, 1: 1410, 2: 1200, 3: 1200}
    assert (driver.held(), held.trouble, gpu_clocks.leftovers()) == ({}, "", [])


def test_power_limits_return_to_what_they_were_before(driver) -> None:
    with settings_session([Setting(1, power_limit_w=600.0)]), settings_session([Setting(1, power_limit_w=450.0)]):
        pass
    assert driver.calls() == ["limit 1 600000", "limit 1 450000", "limit 1 600000", "limit 1 700000"]


def test_an_exception_puts_clocks_back(driver) -> None:
    with pytest.raises(ZeroDivisionError), settings_session(plan_settings(PLAN)):
        _ = 1 / 0
    assert driver.held() == {}


def test_a_clock_that_cannot_be_set_puts_those_before_it_back(driver) -> None:
    with pytest.raises(PlanError, match="GPU 2"), settings_session([Setting(0, 1410.0), Setting(2, 9000.0)]):
        pass
    assert driver.calls() == ["lock 0 1410", "reset 0 1980"]
    assert gpu_clocks.leftovers() == []


def test_without_rights_nothing_is_left_behind(driver) -> None:
    driver.disturb("no-permission")
    with pytest.raises(DevicePermissionError, match="--default-clocks"), settings_session(plan_settings(PLAN)):
        pass
    assert (driver.calls(), gpu_clocks.leftovers()) == ([], [])


def test_more_ranks_than_gpus_are_refused(driver) -> None:
    refused = pytest.raises(DeviceError, match="clocks of 8 GPUs here, and this machine shows 4")
    with refused, settings_session([Setting(7, 1410.0)]):
        pass


def test_a_gpu_that_is_lost_meanwhile_is_reported_and_the_others_are_put_back(driver) -> None:
    with settings_session(plan_settings(PLAN)) as held:
        driver.disturb("lost-1")
    assert "the clock of GPU 1 was not put back" in held.trouble
    assert driver.held() == {1: 1410}
    assert [one.gpu for one in gpu_clocks.leftovers()] == [f"GPU-stand-in-{gpu}" for gpu in range(4)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_put_clocks_and_limits_back(driver, number: int) -> None:
    program = holder(driver)
    assert program.stdout.readline() == "held\n"
    assert set(driver.held()) == {0, 1, 2, 3}
    program.send_signal(number)
    assert program.wait(20) == (-number if number == signal.SIGINT else 128 + number)  # Python's own end at Ctrl-C
    assert driver.held() == {}
    assert driver.calls().count("limit 3 700000") == 1
    assert gpu_clocks.leftovers() == []


@pytest.mark.long
@pytest.mark.parametrize(("step", "number"), [(97, signal.SIGINT), (89, signal.SIGTERM)])
def test_a_signal_at_any_line_of_locking_and_restoring_leaves_nothing_set(driver, step: int, number: int) -> None:
    """Some lines, to be quick; ``step`` 1 tries all."""
    program = [sys.executable, EVERYWHERE, "7", str(step), str(int(number))]
    ran = subprocess.run(program, env=driver.environment, capture_output=True, text=True, timeout=300)
    assert re.fullmatch(r"lines [1-9]\d\d\n", ran.stdout), ran.stdout + ran.stderr


def test_after_sigkill_the_next_start_offers_what_restore_undoes(driver) -> None:
    program = holder(driver)
    program.stdout.readline()
    assert gpu_clocks.restore_offer() == ""
    killed(program)
    assert "clocks of 4 GPUs set; put them back with: jointopt clocks restore" in gpu_clocks.restore_offer()
    sentences = gpu_clocks.restore()
    assert sentences[0].startswith("The clock of GPU 0 (NVIDIA H100 80GB HBM3) is the driver's again, its power")
    assert (driver.held(), gpu_clocks.restore_offer(), gpu_clocks.restore()) == ({}, "", [])
    assert driver.calls().count("limit 2 700000") == 1


def test_restore_needs_rights_too_and_can_be_repeated(driver) -> None:
    program = holder(driver)
    program.stdout.readline()
    killed(program)
    driver.disturb("no-permission")
    with pytest.raises(DevicePermissionError):
        gpu_clocks.restore()
    (driver.folder / "no-permission").unlink()
    assert len(gpu_clocks.restore()) == 4


def test_a_run_on_gpus_that_a_killed_one_left_puts_them_back_to_before_both(driver) -> None:
    program = holder(driver)
    program.stdout.readline()
    killed(program)
    with settings_session([Setting(0, 900.0, 300.0)]):
        assert driver.held()[0] == 900
    assert driver.calls()[-2:] == ["limit 0 700000", "reset 0 1980"]
    assert [one.gpu for one in gpu_clocks.leftovers()] == ["GPU-stand-in-1", "GPU-stand-in-2", "GPU-stand-in-3"]


def test_gpus_that_a_living_run_holds_are_refused(driver) -> None:
    program = holder(driver)
    program.stdout.readline()
    refused = pytest.raises(DeviceError, match=f"Process {program.pid} .* holds the clocks of these GPUs")
    with refused, settings_session([Setting(3, 900.0)]):
        pass
    assert driver.held()[3] == 1410
    program.terminate()
    program.wait()


def test_runs_on_other_gpus_neither_stop_this_one_nor_are_put_back_by_it(driver) -> None:
    program = holder(driver, HOLD.replace("range(4)", "range(2)"))
    program.stdout.readline()
    with settings_session([Setting(3, 900.0)]):
        assert set(driver.held()) == {0, 1, 3}
    killed(program)
    with settings_session([Setting(3, 900.0)]):
        assert set(driver.held()) == {0, 1, 3}
    assert [one.gpu for one in gpu_clocks.leftovers()] == ["GPU-stand-in-0", "GPU-stand-in-1"]


def test_a_gpu_that_is_gone_is_named_and_the_others_are_put_back(driver, monkeypatch) -> None:
    left_by("GPU-gone", monkeypatch, 700.0)
    left_by("GPU-stand-in-1", monkeypatch)
    assert gpu_clocks.restore() == [
        "GPU GPU-gone, which process 4321 had set, is not on this machine any more.",
        "The clock of GPU 1 (NVIDIA H100 80GB HBM3) is the driver's again.",
    ]
    assert driver.calls() == ["reset 1 1980"]
    assert gpu_clocks.leftovers() == []


def test_all_resets_clocks_whoever_set_them(driver) -> None:
    from jointopt.measure.hardware.meter import Gpus

    Gpus().lock_clock(2, 900)
    assert len(gpu_clocks.reset_all()) == 4
    assert driver.held() == {}


def test_gpus_are_found_again_by_identity_whatever_is_visible(driver, monkeypatch) -> None:
    monkeypatch.setitem(driver.environment, "CUDA_VISIBLE_DEVICES", "2,3")
    program = holder(driver, HOLD.replace("range(4)", "range(2)"))
    program.stdout.readline()
    assert set(driver.held()) == {2, 3}
    killed(program)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    gpu_clocks.restore()
    assert driver.held() == {}


def test_without_a_place_to_write_nothing_is_locked(driver, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("JOINTOPT_CLOCKS", str(tmp_path / "file"))
    with pytest.raises(DeviceError, match="set JOINTOPT_CLOCKS"), settings_session([Setting(0, 900.0)]):
        pass
    assert driver.calls() == []


def test_a_handler_of_the_program_itself_decides_and_clocks_stay_until_it_ends(driver) -> None:
    noted: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: noted.append(number))
    try:
        with settings_session([Setting(0, 900.0)]):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            assert (noted, driver.held()) == ([signal.SIGTERM], {0: 900})
    finally:
        signal.signal(signal.SIGTERM, before)
    assert driver.held() == {}


def test_a_killed_run_is_put_back_by_its_guardian_within_seconds(driver) -> None:
    program = holder(driver)
    program.stdout.readline()
    program.kill()
    program.wait()
    until = time.monotonic() + 60
    while (driver.held() or gpu_clocks.leftovers()) and time.monotonic() < until:
        time.sleep(0.05)
    assert (driver.held(), gpu_clocks.leftovers()) == ({}, [])
    assert driver.calls().count("limit 3 700000") == 1


def test_what_another_program_sets_meanwhile_is_noticed_and_put_back(driver) -> None:
    gpus = meter.Gpus()
    with settings_session([Setting(0, 900.0, 500.0), Setting(1, 900.0, 500.0)]) as held:
        gpus.set_power_limit(0, 400.0)
        gpus.reset_clock(1)
        held.check()
    assert held.changed == {
        "limit 0": "the power limit of GPU 0 was set to 400 W by another program, not 500",
        "clock 1": "GPU 1 ran at 1980 MHz, above the 900 set: another program set it",
    }
    assert (driver.held(), driver.calls().count("limit 0 700000")) == ({}, 1)


def test_two_users_never_own_one_gpu_and_what_the_first_found_is_put_back(driver, monkeypatch) -> None:
    program = holder(driver)
    program.stdout.readline()
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", "/nowhere")  # another user or container: only the folder of clocks is shared
        patch.setattr("socket.gethostname", lambda: "container-7")
        with (
            pytest.raises(DeviceError, match=f"Process {program.pid} of .* holds the clocks"),
            settings_session([Setting(0, 900.0)]),
        ):
            pass
    killed(program)
    with settings_session([Setting(gpu, 900.0, 300.0) for gpu in range(4)]):
        assert meter.Gpus().power_limit_w(0) == 300
    assert [meter.Gpus().power_limit_w(gpu) for gpu in range(4)] == [700.0] * 4


def test_what_another_user_claims_to_have_found_is_not_put_back_but_the_drivers_default(driver, monkeypatch) -> None:
    left_by("GPU-stand-in-0", monkeypatch, limit_w=200.0)
    monkeypatch.setattr("os.geteuid", lambda: 1234)
    (file,) = (one.file for one in gpu_clocks.leftovers())
    os.chown(file, 4242, 4242) if os.getuid() == 0 else pytest.skip("only root makes files of others")
    meter.Gpus().set_power_limit(0, 450.0)
    gpu_clocks.restore()
    assert driver.calls()[-1] == "limit 0 700000"


def test_what_was_set_before_a_reboot_is_forgotten(driver, monkeypatch) -> None:
    left_by("GPU-stand-in-0", monkeypatch, limit_w=200.0)
    monkeypatch.setattr("jointopt.measure.hardware.gpu_clocks.boot_id", lambda: "another")
    assert gpu_clocks.leftovers() == []


def test_a_link_in_the_place_of_a_lock_is_not_written_to(driver, tmp_path: Path) -> None:
    (precious := tmp_path / "precious").write_text("keep")
    (tmp_path / "clocks").mkdir()
    for gpu, link in enumerate((os.symlink, os.link)):
        link(precious, tmp_path / "clocks" / f"GPU-stand-in-{gpu}.json")
        with pytest.raises(DeviceError, match="cannot be written"), settings_session([Setting(gpu, 900.0)]):
            pass
    assert (precious.read_text(), driver.calls()) == ("keep", [])


def test_a_named_pipe_in_the_folder_of_locks_blocks_no_reader(driver, monkeypatch, tmp_path: Path) -> None:
    left_by("GPU-stand-in-0", monkeypatch)
    os.mkfifo(tmp_path / "clocks" / "pipe.json")
    os.mkfifo(tmp_path / "clocks" / "GPU-stand-in-1.json")
    program = "from jointopt.measure.hardware.gpu_clocks import leftovers; print(*(one.gpu for one in leftovers()))"
    reader = [sys.executable, "-c", program]
    done = subprocess.run(reader, env=driver.environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "GPU-stand-in-0\n"
