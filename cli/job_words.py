"""The words that name a job on the command line, as a shell reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jointopt.core.quote import sh_command, sh_word

_NOT_OF_A_PLAN = ("objectives",)  # keys that do not change what starts a plan


def job_words(path: str | None, shape: Mapping[str, Any], changes: Mapping[str, Any], saved: Path | None) -> str:
    """A file, a shipped job's name, or options, with the changes of keys; the saved file, which has them, alone."""
    if saved is not None:
        return sh_word(str(saved))
    words = [path] if path is not None else []
    for name, value in shape.items():
        words += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    for key, value in changes.items():
        words += (
            []
            if key in _NOT_OF_A_PLAN
            else ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
        )
    return sh_command(words)
