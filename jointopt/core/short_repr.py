"""What a prompt of Python shows of results: few lines of them."""

from __future__ import annotations

import dataclasses
import reprlib

_PROMPT_LINES, _PROMPT_CHARACTERS = 28, 1900


def prompt_text(text: str) -> str:
    """What a prompt has room for of the text of a result: its first lines, and how to see all."""
    lines = text.splitlines()
    shown = "\n".join(lines[:_PROMPT_LINES])[:_PROMPT_CHARACTERS]
    return shown if shown == "\n".join(lines) else f"{shown}\n... print(_.text()) prints all {len(lines)} lines."


class ShortRepr:
    """The fields of a dataclass as a prompt has room for them, the long ones cut."""

    def __repr__(self) -> str:
        named = [one.name for one in dataclasses.fields(self) if one.repr]  # type: ignore[arg-type]
        shown = ", ".join(f"{name}={reprlib.repr(getattr(self, name))}" for name in named)
        return f"{type(self).__name__}({shown[:_PROMPT_CHARACTERS]})"
