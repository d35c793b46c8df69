"""Branches that the tests run, those of guardians included, which are processes of their own.

``python tests/bench/branches.py [TEST ...]``: by default the tests of core/, runs/ and the guard. A guardian starts in
Python's isolated mode, which loads no coverage; here a stand-in for the interpreter starts it under ``coverage run``.
One that is killed by SIGKILL leaves no record, so its figures are lower bounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("jointopt/core", "jointopt/runs", "jointopt/measure/hardware/guard")
TESTS = ("tests/core", "tests/runs", "tests/measure/hardware/guard")
SETTINGS = """
[run]
branch = true
parallel = true
patch =
    _exit
    execv
    fork
data_file = {folder}/data
source =
    {rooms}
"""
PYTHON = """#!/bin/sh
case "$*" in
"-I -S "*guardian.py*) shift 2; exec {python} -m coverage run --rcfile={folder}/settings "$@" ;;
esac
exec {python} "$@"
"""
START = """
import coverage, sys
coverage.process_startup()
sys.executable = "{folder}/python"
"""


def main() -> int:
    """Print branches and those run, by room, and those not run, by file."""
    tests = sys.argv[1:] or [str(ROOT / name) for name in TESTS]
    with tempfile.TemporaryDirectory(prefix="branches-") as name:
        folder = Path(name)
        rooms = "\n    ".join(str(ROOT / room) for room in ROOMS)
        (folder / "settings").write_text(SETTINGS.format(folder=folder, rooms=rooms))
        (folder / "sitecustomize.py").write_text(START.format(folder=folder))
        (folder / "python").write_text(PYTHON.format(python=sys.executable, folder=folder))
        (folder / "python").chmod(0o755)
        environment = {**os.environ, "COVERAGE_PROCESS_START": str(folder / "settings"),
                       "PYTHONPATH": f"{folder}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"}  # fmt: skip
        code = subprocess.call([sys.executable, "-m", "pytest", "-q", *tests], cwd=ROOT, env=environment)
        coverage = [sys.executable, "-m", "coverage"]
        settings = f"--rcfile={folder / 'settings'}"
        subprocess.run([*coverage, "combine", "-q", settings], cwd=ROOT, check=True)
        subprocess.run([*coverage, "json", "-q", settings, "-o", folder / "found.json"], cwd=ROOT, check=True)
        found = json.loads((folder / "found.json").read_text())["files"]
    for room in ROOMS:
        files = {
            Path(file).name: one for file, one in found.items() if Path(file).resolve().is_relative_to(ROOT / room)
        }
        total, ran = (
            sum(one["summary"][key] for one in files.values()) for key in ("num_branches", "covered_branches")
        )
        left = Counter({file: one["summary"]["missing_branches"] for file, one in files.items()})
        print(f"{room}: {ran} of {total}; not run:",
              ", ".join(f"{Path(file).stem} {count}" for file, count in left.most_common() if count))  # fmt: skip
        for file in left:
            if left[file]:
                print("   ", file, *(f"{begin}->{end}" for begin, end in files[file]["missing_branches"]))
    return code


if __name__ == "__main__":
    sys.exit(main())
