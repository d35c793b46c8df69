"""The JSON Schemas of what verbs print with ``--json``, a file for each; ``python -m tests.schemas`` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).with_name("json_schemas")


def schema_of(verb: str) -> dict[str, Any]:
    """The JSON Schema of the document of a verb, with its version in ``$id``; empty for a verb that has none."""
    path = SCHEMAS / f"{verb}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
