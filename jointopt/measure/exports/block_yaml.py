"""YAML for people: a line for each key, text of several lines as a block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as it stands, and repeats what is used twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def block_yaml(mapping: Mapping[str, Any]) -> str:
    """The mapping as YAML, keys in their order."""
    return str(yaml.dump(dict(mapping), Dumper=_Dumper, sort_keys=False, width=4096, allow_unicode=True))
