"""GPUs, meters and clocks that fail while a command runs: what was measured is kept, what cannot be trusted is not."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.campaign.kills import Field

pytestmark = pytest.mark.services  # they need a C compiler, and seconds of waiting each

# goes on for three seconds after it is disturbed, however late that is
SHELL = "touch begun; until [ -e disturbed ]; do sleep 0.1; done; sleep 3"
PROGRAM = ("exec", "--plan", "plan.json", "--", "sh", "-c", SHELL)
CLOCK = Path(__file__).parents[1] / "stand_in" / "wall_clock.c"


@pytest.fixture
def field(driver_library: Path, tmp_path: Path) -> Field:
    """A folder with stand-in GPUs, where commands see the time of day that a test sets."""
    found = Field(tmp_path, random.Random(0))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "clock.so", CLOCK, "-ldl"], check=True)
    found.environment |= {"LD_PRELOAD": str(tmp_path / "clock.so"), "STAND_IN_CLOCK": str(tmp_path / "ahead")}
    return found


def disturbed(field: Field, words: tuple[str, ...], disturb: Callable[[], object]) -> tuple[int, str]:
    """Exit code and output of a command that is disturbed in the middle of its run."""
    tool = subprocess.Popen([sys.executable, "-m", "jointopt", *words], cwd=field.folder, env=field.environment,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    while tool.poll() is None and not (field.folder / "begun").exists() and not field._trains():
        time.sleep(0.05)
    time.sleep(0.5)
    disturb()
    (field.folder / "disturbed").touch()
    return tool.wait(120), tool.stdout.read() if tool.stdout else ""


@pytest.mark.parametrize(
    ("name", "code", "words", "left"),
    [
        ("still-0", 0, "Energy not measured: the energy counter of GPU-stand-in-0 stood still", 0),
        ("lost-1", 1, "the clock of GPU 1 was not put back: GPU 1 refuses to release its clock: GPU is lost", 2),
    ],
)
def test_a_gpu_that_fails_mid_run_costs_the_energy_alone(field: Field, name: str, code: int, words: str, left) -> None:
    ended, output = disturbed(field, PROGRAM, (field.folder / "gpus" / name).touch)
    assert (ended, words in output, field._set()) == (code, True, left), output


@pytest.mark.parametrize(("ahead", "why"), [("3600", "stood still for 36"), ("-3600", "clock was set back")])
def test_a_clock_that_is_set_mid_run_costs_the_energy_alone(field: Field, ahead: str, why: str) -> None:
    code, output = disturbed(field, PROGRAM, lambda: (field.folder / "ahead").write_text(ahead))
    assert (code, field._set()) == (0, 0), output
    assert why in output


def test_a_clock_that_is_set_mid_run_neither_ends_a_tune_nor_repeats_its_plans(field: Field) -> None:
    chance = random.Random(1)
    code, output = disturbed(field, (*field.commands()["tune"], "--budget", "3"), lambda: _jump(field, chance))
    assert (code, sum(field._rows().values()), field._set()) == (0, 3, 0), output


def _jump(field: Field, chance: random.Random) -> None:
    for _ in range(20):
        (field.folder / "ahead").write_text(chance.choice(("3600", "-7200", "86400")))
        time.sleep(0.2)
