"""``jointopt exec`` and ``jointopt clocks restore``, with stand-in GPUs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt as commands
from jointopt.runs.readings import Series, join_readings
from tests.processes import gone

PLAN = {"dp": 2, "tp": 1, "pp": 2, "stage_clock_mhz": [1410, 1200]}


@pytest.fixture
def plan(tmp_path: Path) -> str:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(PLAN))
    return str(file)


def jointopt(driver, *words: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jointopt", *words]
    environment = {**driver.environment, **options}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def here(*words: str) -> Result:
    """The command in this process, which sees the stand-in GPUs too; saves a start where no signal is sent."""
    return CliRunner().invoke(commands, [*words])


def test_samples_that_cannot_be_written_do_not_hide_how_the_program_ended(driver, plan: str) -> None:
    ran = here("exec", "--plan", plan, "--reading", "/dev/full", "--", "sh", "-c", "exit 7")
    assert ran.exit_code == 7
    assert "/dev/full with the meter's samples cannot be written: No space left on device" in ran.stderr


def test_a_program_runs_under_the_plan_and_its_exit_code_and_energy_are_reported(driver, plan: str) -> None:
    ran = jointopt(driver, "exec", "--plan", plan, "--", "sh", "-c", "echo hello; sleep 2.5; exit 7")
    assert (ran.returncode, ran.stdout) == (7, "hello\n")
    assert "4 GPUs: clocks 1200 to 1410 MHz." in ran.stderr
    assert "W per GPU, peak 307 W, hottest 45 °C." in ran.stderr
    assert [c for c in driver.calls() if c.startswith("lock")] == [
        "lock 0 1410", "lock 1 1410", "lock 2 1200", "lock 3 1200",
    ]  # fmt: skip
    assert driver.held() == {}


@pytest.mark.parametrize(
    "document", [{"plan": PLAN}, {"front": [PLAN]}, [PLAN], {**PLAN, "iteration_time_s": 1.0, "cp": 1}]
)
def test_plans_are_read_as_other_commands_print_them(driver, tmp_path: Path, document) -> None:
    (tmp_path / "p.json").write_text(json.dumps(document))
    assert here("exec", "--plan", str(tmp_path / "p.json"), "true").exit_code == 0
    assert len(driver.calls()) == 8


def test_a_proposal_of_several_plans_needs_the_row_of_one(driver, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps({"front": [PLAN, PLAN | {"stage_clock_mhz": [900, 900]}]}))
    first, second, third = (here("exec", "--plan", f"{tmp_path}/p.json{row}", "true") for row in ("", ":2", ":3"))
    assert (first.exit_code, "holds 2 plans; say which, from" in first.stderr) == (2, True)
    assert second.exit_code == 0
    assert driver.calls()[0] == "lock 0 900"
    assert "holds 2 plans, from p.json:1 to p.json:2; got row 3." in third.stderr


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", '{"dp": 2.5, "pp": 2}', '{"dp": "x"}', '{"plan": {"model": 1}}'])
def test_a_file_that_holds_no_plan_is_bad_usage(driver, tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_text(text)
    ran = here("exec", "--plan", str(tmp_path / "p.json"), "true")
    assert (ran.exit_code, ran.stderr.count("\n"), driver.calls()) == (2, 1, [])


def test_words_of_a_plan_are_answered_with_the_command_that_writes_their_file(driver) -> None:
    ran = here("exec", "--plan", "tp=2", "--", "true")
    assert ran.exit_code == 2
    words = "got 'tp=2' (`jointopt explain JOB --plan tp=2 --json > plan.json` writes one)."
    assert f"--plan of exec takes a JSON file of select or explain; {words}" in " ".join(ran.stderr.split())


def test_every_node_takes_its_stages_and_their_readings_add_up(driver, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SLURM_NODEID", "1")
    (tmp_path / "p.json").write_text(json.dumps(PLAN | {"dp": 4}))
    words = ("exec", "--plan", str(tmp_path / "p.json"))
    with monkeypatch.context() as elsewhere:
        elsewhere.delenv("SLURM_NODEID")
        assert "say with --node which of its nodes" in here(*words, "true").stderr
    for node, option in enumerate((("--node", "0"), ())):
        file = str(tmp_path / f"node{node}.json")
        assert here(*words, *option, "--reading", file, "sleep", "2.5").exit_code == 0
    assert [c for c in driver.calls() if "lock 3" in c] == ["lock 3 1410", "lock 3 1200"]
    both = join_readings([Series.read(tmp_path / f"node{node}.json").between() for node in range(2)])
    assert both.gpus == 8
    assert both.reason == ""


def test_without_rights_nothing_starts_and_default_clocks_goes_on(driver, plan: str, capfd) -> None:
    driver.disturb("no-permission")
    refused = here("exec", "--plan", plan, "echo", "started")
    assert (refused.exit_code, capfd.readouterr().out) == (1, "")
    assert "needs root, or Zeus' daemon" in refused.stderr
    went_on = here("exec", "--plan", plan, "--default-clocks", "echo", "started")
    assert (went_on.exit_code, capfd.readouterr().out) == (0, "started\n")


def test_at_default_clocks_a_plan_still_has_its_power_limit(driver, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(PLAN | {"power_limit_w": 450.0}))
    words = ("exec", "--plan", str(tmp_path / "p.json"), "--default-clocks", "true")
    assert here(*words).exit_code == 0
    assert {call.split()[0] for call in driver.calls()} == {"limit"}
    assert {"limit 0 450000", "limit 0 700000"} <= set(driver.calls())
    driver.disturb("no-permission")
    assert "with --default-clocks, with plans that have no power limit" in here(*words).stderr


def test_a_power_profile_is_requested_while_the_program_runs(driver, plan: str, monkeypatch) -> None:
    monkeypatch.setenv("STAND_IN_NVML_PROFILES", str(1 << 1 | 1 << 7))
    ran = here("exec", "--plan", plan, "--default-clocks", "--power-profile", "max-q+llm-training", "true")
    assert (ran.exit_code, "4 GPUs: power profile max-q+llm-training." in ran.stderr) == (0, True)
    assert driver.calls() == [f"profiles-{to} {gpu} 130" for to, gpus in (("on", range(4)), ("off", (3, 2, 1, 0)))
                              for gpu in gpus]  # fmt: skip
    assert "power profiles max-q, llm-training" in here("doctor").output


def test_without_a_gpu_the_program_runs_only_at_default_clocks(driver, plan: str) -> None:
    no_driver = {"STAND_IN_NVML_GPUS": "0"}
    assert "No GPU is found" in jointopt(driver, "exec", "--plan", plan, "true", **no_driver).stderr
    ran = jointopt(driver, "exec", "--plan", plan, "--default-clocks", "true", **no_driver)
    assert (ran.returncode, "Energy not measured: No GPU is found" in ran.stderr) == (0, True)


def test_a_clock_that_the_gpus_do_not_have_is_named(driver, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(PLAN | {"stage_clock_mhz": [1410, 3000]}))
    ran = here("exec", "--plan", str(tmp_path / "p.json"), "true")
    assert (ran.exit_code, driver.held()) == (2, {})
    assert "has no clock of 3000 MHz; it has 210 to 1980 MHz" in ran.stderr


def test_a_command_that_is_not_there_puts_clocks_back(driver, plan: str) -> None:
    ran = here("exec", "--plan", plan, "no-such-program")
    assert (ran.exit_code, driver.held()) == (1, {})


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_program_first_and_then_puts_clocks_back(driver, plan: str, number: int) -> None:
    shell = "trap 'exit 3' INT TERM; echo up; while true; do sleep 0.05; done"
    command = [sys.executable, "-m", "jointopt", "exec", "--plan", plan, "--", "sh", "-c", shell]
    program = subprocess.Popen(
        command, env=driver.environment, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    assert program.stdout.readline() == "up\n"
    assert len(driver.held()) == 4
    program.send_signal(number)
    assert program.wait(30) == 3
    assert driver.held() == {}


def killed_mid_run(driver, plan: str, with_guardians: bool) -> tuple[int, int]:
    """SIGKILL to the command while its program runs, and to its guardians; pids of the command and the program."""
    shell = ["sh", "-c", "trap '' TERM; echo $$; while true; do sleep 1; done"]
    command = [sys.executable, "-m", "jointopt", "exec", "--plan", plan, "--", *shell]
    program = subprocess.Popen(command, env=driver.environment, stdout=subprocess.PIPE, text=True)
    pid = int(program.stdout.readline())
    guardians = psutil.Process(program.pid).children() if with_guardians else []
    for one in guardians:
        one.suspend()  # or they would put the clocks back between the two
    program.kill()
    for one in guardians:
        one.kill()
    program.wait()
    return program.pid, pid


@pytest.mark.long
def test_after_sigkill_the_program_is_gone_and_the_clocks_are_back(driver, plan: str) -> None:
    tool, pid = killed_mid_run(driver, plan, with_guardians=False)
    until = time.monotonic() + 60
    while (psutil.pid_exists(pid) or driver.held()) and time.monotonic() < until:
        time.sleep(0.05)
    assert (psutil.pid_exists(pid), driver.held()) == (False, {})
    assert f"A run of process {tool} (" in here("exec", "--plan", plan, "--default-clocks", "true").stderr


@pytest.mark.long
def test_where_guardians_are_killed_too_restore_is_offered_and_works(driver, plan: str) -> None:
    _, pid = killed_mid_run(driver, plan, with_guardians=True)
    offer = here("exec", "--plan", plan, "--default-clocks", "true").stderr
    assert "put them back with: jointopt clocks restore" in offer
    assert gone(pid)
    restored = here("clocks", "restore")
    assert (restored.exit_code, restored.stdout.count("is the driver's again")) == (0, 4)
    assert driver.held() == {}
    assert here("clocks", "restore").stdout == "Nothing to put back.\n"


def test_clocks_that_cannot_be_put_back_are_an_exit_code_above_0(driver, plan: str) -> None:
    lose = f"touch {driver.folder / 'lost-1'}"
    ran = here("exec", "--plan", plan, "--", "sh", "-c", lose)
    assert ran.exit_code == 1
    assert "Warning: the clock of GPU 1 was not put back" in ran.stderr


def test_memory_that_others_hold_is_reported_before_the_program_starts(driver, plan: str) -> None:
    (driver.folder / "holds-3").write_text(f"1 {60 * 2**30}\n")
    assert "60.0 GiB of GPU 3 taken by process 1 (" in here("exec", "--plan", plan, "true").stderr
