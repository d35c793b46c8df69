"""The locked versions are those of everything that pyproject.toml names, and come from nowhere in particular."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LINES = [line for line in (ROOT / ".ci" / "lock.txt").read_text().splitlines() if not line.startswith("#")]
EXTRAS = ("dev", "docs", "torch", "postgres", "browser", "frameworks", "dask", "mlflow", "wandb")


def test_each_package_that_is_needed_is_locked_to_versions_that_are_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *(name for extra in EXTRAS for name in project["optional-dependencies"][extra])]
    locked: dict[str, list[str]] = {}
    for line in map(Requirement, LINES):
        locked.setdefault(canonicalize_name(line.name), []).append(str(line.specifier).removeprefix("=="))
    for one in map(Requirement, needed):
        versions = locked.get(canonicalize_name(one.name), [])
        assert versions, f"{one} is not in .ci/lock.txt; run: make lock"
        assert all(one.specifier.contains(version) for version in versions), f"{one}: {versions}; run: make lock"


def test_the_lock_names_no_index_no_hash_and_no_option() -> None:
    assert [line for line in LINES if not re.match(r"[a-z0-9_.-]+==[\w.+!-]+( ; .+)?$", line)] == []
