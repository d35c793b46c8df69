"""``jointopt exec --follow`` with stand-in GPUs: limits that change, sources that die, and kills."""

from __future__ import annotations

import configparser
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt as commands
from tests.conftest import Driver
from tests.processes import gone
from tests.slurm_cluster import wait_for

JOB = """
model: {num_layers: 8, hidden_size: 1024, ffn_hidden_size: 4096, num_attention_heads: 16, vocab_size: 32000}
training: {seq_length: 2048, global_batch_size: 32}
cluster: {gpu: h100-sxm5-80gb, nodes: 1, gpus_per_node: 4}
"""
PLAN = {"dp": 2, "tp": 1, "pp": 2, "stage_clock_mhz": [1980, 1980]}


@pytest.fixture
def words(driver, tmp_path: Path) -> list[str]:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    return ["exec", "--plan", f"{tmp_path}/plan.json", "--job", f"{tmp_path}/job.yaml",
            "--record", f"{tmp_path}/changes.jsonl", "--metrics", f"{tmp_path}/run.prom",
            "--follow", f"{tmp_path}/limit"]  # fmt: skip


def here(words: list[str], *command: str) -> Result:
    return CliRunner().invoke(commands, [*words, "--", *command])


def waited(what) -> bool:
    until = time.monotonic() + 60.0
    while not what() and time.monotonic() < until:
        time.sleep(0.02)
    return what()


def changes(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "changes.jsonl").read_text().splitlines()]


def test_clocks_follow_a_limit_from_the_start_and_come_back(driver, tmp_path, words) -> None:
    (tmp_path / "limit").write_text("3.0")
    ran = here(words, "sh", "-c", f"sleep 1; echo 2.2 > {tmp_path}/limit; date +%s.%N > {tmp_path}/at; sleep 3")
    assert ran.exit_code == 0, ran.stderr
    first = [int(call.split()[2]) for call in driver.calls()[:4]]
    assert max(first) < 1980
    (change,) = changes(tmp_path)
    assert (change["why"], change["limit_kw"]) == ("its limit", 2.2)
    assert change["time_s"] > float((tmp_path / "at").read_text())
    assert max(change["stage_clock_mhz"]) < min(first)
    assert driver.held() == {}
    assert 'jointopt_power_watts{kind="limit"} 2200' in (tmp_path / "run.prom").read_text()


@pytest.mark.parametrize(("fallback", "clock"), [("lowest", 210.0), ("plan", 1980.0)])
def test_where_the_source_dies_the_fallback_holds(driver, tmp_path, words, fallback: str, clock: float) -> None:
    (tmp_path / "limit").write_text("2.5")
    ran = here([*words, "--fallback", fallback], "sh", "-c", f"rm {tmp_path}/limit; sleep 5.5")
    assert ran.exit_code == 0
    (change,) = changes(tmp_path)
    assert change["why"] == f"a dead source, --fallback {fallback}"
    assert (change["limit_kw"], change["stage_clock_mhz"][0]) == (None, pytest.approx(clock, abs=700))
    assert ran.stderr.count("No such file or directory") == 1
    assert driver.held() == {}


def test_more_that_is_drawn_than_predicted_lowers_clocks_until_the_limit_is_kept(driver, tmp_path, words) -> None:
    (tmp_path / "limit").write_text("3.2")
    (tmp_path / "plan.json").write_text(json.dumps(PLAN | {"stage_clock_mhz": [1980, 1980]}))
    ran = here(words, "sh", "-c", f"sleep 4.5; cp {tmp_path}/run.prom {tmp_path}/late.prom")
    assert ran.exit_code == 0
    figures = dict(line.rsplit(" ", 1) for line in (tmp_path / "late.prom").read_text().splitlines() if line[0] != "#")
    assert float(figures['jointopt_power_watts{kind="drawn"}']) <= 3200.0


@pytest.mark.long
def test_over_a_minute_of_power_that_swings_the_mean_of_each_window_stays_within_the_limit(driver, tmp_path, words):
    (tmp_path / "limit").write_text("2.6")
    (driver.folder / "unsteady").write_text("0.03 8")
    (driver.folder / "slow-3").write_text("1400 4")
    look = f"sleep 5; for i in $(seq 60); do sleep 1; cat {tmp_path}/run.prom; done > {tmp_path}/all.prom"
    ran = here(words, "sh", "-c", look)
    assert ran.exit_code == 0, ran.stderr
    lines = (tmp_path / "all.prom").read_text().splitlines()
    drawn = [float(line.split()[1]) for line in lines if line.startswith('jointopt_power_watts{kind="drawn"}')]
    assert 0.85 * 2600.0 < max(drawn) <= 2600.0
    assert len(set(drawn)) > 20


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_whatever_ends_it_clocks_come_back_and_nothing_is_left(driver, tmp_path, words, number: int) -> None:
    (tmp_path / "limit").write_text("2.5")
    command = [sys.executable, "-m", "jointopt", *words, "--", "sh", "-c",
               f"echo $$ > {tmp_path}/pid; echo 2.0 > {tmp_path}/limit; sleep 60"]  # fmt: skip
    with subprocess.Popen(command, env=driver.environment, stderr=subprocess.PIPE) as tool:
        assert waited((tmp_path / "changes.jsonl").exists)
        tool.send_signal(number)
        tool.communicate(timeout=60)
    assert gone(int((tmp_path / "pid").read_text()))
    assert waited(lambda: driver.held() == {})


def test_two_nodes_follow_one_signal_each_by_itself(driver, tmp_path, words) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("nodes: 1", "nodes: 2"))
    (tmp_path / "plan.json").write_text(json.dumps(PLAN | {"dp": 4}))
    (tmp_path / "limit").write_text("time_s,limit_kw\n0,99\n%.0f,99\n" % (time.time() + 3600))
    tools = []
    for node in range(2):
        own = {"STAND_IN_NVML": str(tmp_path / f"gpus{node}"), "JOINTOPT_CLOCKS": str(tmp_path / f"clocks{node}")}
        (tmp_path / f"gpus{node}").mkdir()
        at = [*words[:1], "--node", str(node), *words[1:], "--", "sleep", "7"]
        tools.append(subprocess.Popen([sys.executable, "-m", "jointopt", *at], env=driver.environment | own))
    files = [tmp_path / f"gpus{node}" / "calls" for node in range(2)]
    assert waited(lambda: all(file.exists() and file.read_text().count("lock") == 4 for file in files))
    (tmp_path / "limit").write_text("4.5")
    assert waited(lambda: all(file.read_text().count("lock") == 8 for file in files))
    assert [tool.wait(60) for tool in tools] == [0, 0]


def test_two_tasks_of_slurm_follow_one_signal_and_scancel_puts_their_clocks_back(cluster, driver, tmp_path, words):
    (tmp_path / "job.yaml").write_text(JOB.replace("nodes: 1", "nodes: 2"))
    (tmp_path / "plan.json").write_text(json.dumps(PLAN | {"dp": 4}))
    (tmp_path / "limit").write_text("99")
    own = f"STAND_IN_NVML={tmp_path}/gpus$SLURM_NODEID JOINTOPT_CLOCKS={tmp_path}/clocks$SLURM_NODEID"
    tool = shlex.join([sys.executable, "-m", "jointopt", *words, "--", "sleep", "99"])
    (tmp_path / "task.sh").write_text(f'export {own}\nmkdir "$STAND_IN_NVML"\nexec {tool}\n')
    step = ["sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=4", f"--output={tmp_path}/log"]
    ran = subprocess.run([*step, f"--wrap=srun bash {tmp_path}/task.sh"], env=driver.environment, capture_output=True)
    nodes = [Driver(tmp_path / f"gpus{node}", driver.environment) for node in range(2)]
    wait_for(lambda: all(len(node.held()) == 4 for node in nodes), "clocks of the plan are set")
    (tmp_path / "limit").write_text("4.5")
    wait_for(lambda: all(max(node.held().values()) < 1980 for node in nodes), "clocks are those of the limit")
    cluster.run("scancel", ran.stdout.decode().strip())
    wait_for(lambda: not any(node.held() for node in nodes), "clocks are put back")


def test_by_prices_clocks_are_above_the_plans_where_power_is_cheap_and_below_where_it_is_dear(driver, tmp_path, words):
    (tmp_path / "plan.json").write_text(json.dumps(PLAN | {"stage_clock_mhz": [1500, 1500]}))
    (tmp_path / "limit").write_text("time_s,price_per_kwh\n0,0.1\n2,9\n6,0.1\n9,0.1\n")
    ran = here(words, "sleep", "4.5")
    assert ran.exit_code == 0, ran.stderr
    first = [int(call.split()[2]) for call in driver.calls()[:4]]
    assert max(first) > 1500
    assert "its limit" in [change["why"] for change in changes(tmp_path)]
    assert max(changes(tmp_path)[-1]["stage_clock_mhz"]) < 1500


def test_the_unit_of_systemd_starts_a_command_that_exec_takes(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read(Path(__file__).parents[2] / "examples" / "systemd" / "jointopt-exec.service")
    _, name, *arguments = shlex.split(unit["Service"]["ExecStart"])
    context = commands.get_command(click.Context(commands), name).make_context(name, arguments)
    assert context.params["command"][0] == "torchrun"
    assert shlex.split(unit["Service"]["ExecStopPost"])[1:] == ["clocks", "restore"]


def test_what_cannot_be_followed_is_refused_in_one_sentence_before_anything_is_set(driver, tmp_path, words) -> None:
    for text, more, said in (
        ("", [], "expected a CSV file with time_s"), ("5", ["--default-clocks"], "leave out --default-clocks"),
        ("time_s,limit\n0,1\n9,1\n", [], "expected time_s and one of"),
    ):  # fmt: skip
        (tmp_path / "limit").write_text(text)
        ran = here([*words, *more], "true")
        assert (ran.exit_code, ran.stderr.count("\n"), driver.calls()) == (2, 1, [])
        assert said in ran.stderr
    at = words.index("--job")
    assert "--follow changes clocks" in here([*words[:at], *words[at + 2 :]], "true").stderr
