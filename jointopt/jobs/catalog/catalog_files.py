"""The YAML files of the catalogue: read once per process, their sources cited."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jointopt.jobs.reading import package_yaml


@functools.cache
def read_yaml(file_name: str) -> Mapping[str, Any]:
    """One YAML file of the catalogue, parsed once per process."""
    parsed: dict[str, Any] = package_yaml(Path(__file__).with_name(file_name))
    return parsed


def cite(cell: list[Any], file_name: str) -> str:
    """The source of a catalogue cell ``[value, source key, remark]``, as one sentence."""
    citation = str(read_yaml(file_name)["sources"][cell[1]])
    return f"{citation}; {cell[2]}" if len(cell) > 2 else citation
