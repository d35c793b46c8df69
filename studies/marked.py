"""Texts between two marks of a page, which programs write anew."""

from __future__ import annotations

from pathlib import Path


def replace_between(file: Path, begin: str, end: str, text: str) -> None:
    """Writes the text between the two marks of the file, in place of what stood there."""
    before, rest = file.read_text(encoding="utf-8").split(begin)
    file.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}", encoding="utf-8")
