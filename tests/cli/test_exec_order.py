"""``jointopt exec`` sets clocks where the program's ranks run the stages they are for; programs under real torchrun."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PLAN = {"dp": 2, "tp": 1, "pp": 2, "stage_clock_mhz": [1410, 1200]}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
# a mesh as torchtitan and others make it; the last rank prints the clocks that are set while it trains
MESH = """
import os, sys, time, pathlib
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=tuple(sys.argv[1].split(",")))
calls = pathlib.Path(os.environ["STAND_IN_NVML"], "calls")
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until and not (calls.exists() and calls.read_text().count("lock") == 4):
    time.sleep(0.1)
os.write(1, b"trained\\n")  # in one piece: four ranks share the output
"""
MEGATRON = ["pretrain_gpt.py", "--pipeline-model-parallel-size", "2", "--micro-batch-size", "1"]


@pytest.fixture
def start(driver: Any, tmp_path: Path) -> Any:
    """Runs a command under the plan; what it printed and how it ended."""
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))

    def started(*words: str, **options: str) -> subprocess.CompletedProcess[str]:
        given = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
        command = [
            sys.executable,
            "-m",
            "jointopt",
            "exec",
            "--plan",
            str(tmp_path / "plan.json"),
            *given,
            "--",
            *words,
        ]
        return subprocess.run(
            command, env=driver.environment, capture_output=True, text=True, timeout=120, cwd=tmp_path
        )

    return started


def locks(driver: Any) -> list[str]:
    return [call for call in driver.calls() if call.startswith("lock")]


def test_an_order_puts_the_clocks_on_the_ranks_of_its_stages(driver: Any, start: Any) -> None:
    assert start("true", order="tp-cp-ep-pp-dp").returncode == 0
    assert locks(driver) == ["lock 0 1410", "lock 1 1200", "lock 2 1410", "lock 3 1200"]
    assert driver.held() == {}


def test_what_is_no_order_is_bad_usage(driver: Any, start: Any) -> None:
    ran = start("true", order="tp-dp")
    assert (ran.returncode, locks(driver)) == (2, [])
    assert "An order of ranks holds each of tp, cp, dp and pp once" in ran.stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            ["--use-tp-pp-dp-mapping"],
            "numbers its ranks tp-cp-ep-pp-dp (--use-tp-pp-dp-mapping) and clocks would be set",
        ),
        (["--tensor-model-parallel-size", "2"], "The program runs with tp 2 and the plan has tp 1"),
    ],
)
def test_words_of_another_layout_are_refused_before_anything_starts(
    driver: Any, start: Any, more: list[str], words: str
) -> None:
    ran = start("echo", "started", *MEGATRON, *more)
    assert (ran.returncode, ran.stdout, driver.calls()) == (1, "", [])
    assert ran.stderr.startswith("Error: The program ")
    assert words in ran.stderr


def test_the_mapping_runs_under_its_own_order(driver: Any, start: Any) -> None:
    assert start("echo", *MEGATRON, "--use-tp-pp-dp-mapping", order="tp-cp-ep-pp-dp").returncode == 0
    assert locks(driver)[1] == "lock 1 1200"


def test_clocks_are_set_once_the_ranks_have_shown_their_stages(
    driver: Any, start: Any, torch: Any, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(MESH)
    ran = start(*TORCHRUN, "train.py", "pp,dp", "60", check_s="300")
    assert (ran.returncode, ran.stdout) == (0, "trained\n" * 4)
    assert "The ranks run the stages of the plan: clocks are set." in ran.stderr
    assert locks(driver) == ["lock 0 1410", "lock 1 1410", "lock 2 1200", "lock 3 1200"]
    assert driver.held() == {}


def test_a_started_program_of_another_order_is_ended_and_no_clock_was_set(
    driver: Any, start: Any, torch: Any, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(MESH)
    ran = start(*TORCHRUN, "train.py", "dp,pp", "60", check_s="300")
    assert (ran.returncode, ran.stdout, locks(driver)) == (1, "", [])
    assert "of the program, and the plan with ranks in the order tp-cp-ep-dp-pp has stage" in ran.stderr


def test_silent_ranks_get_their_clocks_after_a_while(driver: Any, start: Any, torch: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MESH)
    ran = start(*TORCHRUN, "train.py", "a,b", "60", check_s="0.2")
    assert (ran.returncode, len(locks(driver))) == (0, 4)
    assert "No rank has shown its stage: the order tp-cp-ep-dp-pp is taken as stated." in ran.stderr


def test_clocks_that_were_never_set_are_mentioned(driver: Any, start: Any, tmp_path: Path) -> None:
    ran = start("sh", "-c", "true torchrun")
    assert (ran.returncode, driver.calls()) == (0, [])
    assert "Warning: the program ended before its ranks had shown their stages" in ran.stderr
