"""Rows that a database would not take: kept in a file beside it, and taken in by the next start."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jointopt.core.state import state_home
from jointopt.runs.database import file_of


def spill(url: str, row: Mapping[str, Any], origin: str) -> Path | None:
    """Append a row (JSON values) to the first file that takes it, and return that; None where none does."""
    line = json.dumps({"origin": origin, "row": dict(row)}) + "\n"
    for file in spill_files(url):
        with suppress(OSError):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                _append(handle, line.encode())
            finally:
                os.close(handle)
            return file
    return None


def spill_files(url: str) -> list[Path]:
    """The files in which rows of a database may wait: beside it, with this user's state, or with temporary files."""
    key, file = hashlib.sha256(os.fsencode(url)).hexdigest()[:16], file_of(url)
    files = [] if file is None else [file.with_name(f"{file.name}.spill.jsonl")]
    with suppress(OSError):
        files.append(state_home() / "jointopt" / "spill" / f"{key}.jsonl")
    with suppress(OSError):  # no folder takes temporary files
        files.append(Path(tempfile.gettempdir(), f"jointopt-spill-{os.geteuid()}-{key}.jsonl"))
    return files


def waiting(url: str) -> Iterator[tuple[Path, list[tuple[str, dict[str, Any]]]]]:
    """Each of this user's files, with (origin, row) of its lines but torn ones; locked while it is looked at.

    The file is removed when the next one is requested, as its rows are in the store by then.
    """
    for file in spill_files(url):
        with suppress(OSError):
            handle = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
            with os.fdopen(handle, encoding="utf-8", errors="replace") as stream:
                if os.fstat(handle).st_uid != os.geteuid():
                    continue
                fcntl.flock(stream, fcntl.LOCK_EX)
                found = list(_rows(stream.read()))
                yield file, found
                file.unlink(missing_ok=True)


def _rows(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in text.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            held = json.loads(line)
            yield str(held["origin"]), dict(held["row"])


def _append(handle: int, line: bytes) -> None:
    """Append a whole line, or nothing: a full disk may take a part of it."""
    fcntl.flock(handle, fcntl.LOCK_EX)
    size = os.fstat(handle).st_size
    try:
        if os.write(handle, line) != len(line):
            raise OSError
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, size)
        raise
