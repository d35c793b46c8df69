"""Tools that are killed while a program runs, with records and scratch of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

TOOL = """
import sys
from pathlib import Path
from jointopt.measure.hardware.guard.guarded import scratch_folder
from jointopt.measure.process import run_program
with scratch_folder() as folder:
    run_program(sys.argv[2:], Path(sys.argv[1]), limit_s=600, cwd=folder)
"""


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def eventually(is_so: Callable[[], object], limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


@dataclass
class Bench:
    """A folder in which tools run programs that print the numbers of their processes."""

    folder: Path
    environment: dict[str, str]

    def start(self, *program: str) -> subprocess.Popen[bytes]:
        """A tool that runs a program under a guardian."""
        return subprocess.Popen([sys.executable, "-c", TOOL, self.folder / "log", *program], env=self.environment)

    def pids(self, count: int) -> list[int]:
        """Numbers of so many processes of the program, once they are all there."""
        log = self.folder / "log"
        eventually(lambda: log.exists() and len(log.read_text().split()) >= count)
        return [int(word) for word in log.read_text().split()]

    def scratch(self) -> list[Path]:
        """Scratch folders that are there."""
        return list((self.folder / "tmp").glob("jointopt-*"))

    def records(self) -> list[Path]:
        """Records of runs that are there."""
        return list((self.folder / "state").rglob("runs/*.json"))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose records and scratch are its own, for this process too."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return Bench(tmp_path, dict(os.environ))
