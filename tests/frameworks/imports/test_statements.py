"""Every option of a file: what a config states in all, and what one more option moves."""

from __future__ import annotations

import functools
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from jointopt.frameworks import deepspeed, megatron, megatron_bridge, nanotron, torchtitan
from jointopt.frameworks.configs.config_programs import config_settings, programs
from jointopt.frameworks.import_files import _READERS
from jointopt.frameworks.options import FileSettings, flattened, resolve_references
from tests.each import each

# a section for each reader: the options `of` a file, all its statements (`whole`), and what other options move
SECTIONS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("statements.yaml").read_text(encoding="utf-8"))
READERS = {
    "megatron": lambda options: megatron.option_settings(options, "words"),
    "nemo": lambda config: megatron_bridge.nemo_settings(resolve_references(config)),
    "bridge": megatron_bridge.bridge_settings, "torchtitan": torchtitan.config_settings,
    "deepspeed": deepspeed.config_settings,
    "accelerate": lambda config: config_settings(programs()["accelerate"], config, _READERS),
    "trainer": lambda options: deepspeed.trainer_settings(options, "words"), "nanotron": nanotron.config_settings,
}  # fmt: skip
PLAN = {"dp": 8, "pp": 1}  # of another file, for columns that hang on it


def nested(options: dict[str, Any]) -> dict[str, Any]:
    """A mapping of mappings, of dotted names."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        *places, last = name.split(".")
        functools.reduce(lambda inner, place: inner.setdefault(place, {}), places, found)[last] = value
    return found


def statements(reader: str, options: dict[str, Any]) -> dict[str, Any]:
    """The statements of a file with these options, by dotted names, but for those that are blank."""
    given = nested({name: value for name, value in options.items() if value != "left out"})
    taken: FileSettings = READERS[reader.partition(" ")[0]](given)
    rest = taken.rest(PLAN | taken.plan, 32) if taken.rest else {}
    found = flattened(asdict(taken) | {"rest": rest, "remarks": len(taken.remarks), "unread": list(taken.unread)})
    found = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    blank = (None, "", 0, [])
    return {name: value for name, value in found.items() if isinstance(value, bool) or value not in blank}


@functools.cache
def before(section: str) -> dict[str, Any]:
    return statements(section, SECTIONS[section]["of"])


ROWS = [(name, row["by"], row) for name, section in SECTIONS.items() for row in section["moved"]]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_file_makes_these_statements_and_no_others(section: str) -> None:
    assert before(section) == SECTIONS[section]["whole"]


@each(("section", "by", "row"), ROWS)
def test_an_option_moves_its_statements_and_no_others(section: str, by: dict[str, Any], row: dict[str, Any]) -> None:
    old, new = before(section), statements(section, SECTIONS[section]["of"] | by)
    assert {name: value for name, value in new.items() if name not in old or old[name] != value} == row["to"]
    assert sorted(old.keys() - new.keys()) == row.get("gone", [])
