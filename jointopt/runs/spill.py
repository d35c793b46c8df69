"""Rows that a database may not have yet: in a file beside it before anything else is done with them.

A run that has ended is written there first, so that a database that is locked, away or full costs no result; the next
process that opens the store takes the rows in.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from jointopt.core.system import state_home
from jointopt.runs.database import file_of

SPILL = "spill"


class Spill:
    """The rows of this process that the database of ``url`` may lack; ``origin`` is where they come from.

    ``kind``: a word for rows that the store is not to take in.
    """

    def __init__(self, url: str, origin: str, kind: str = SPILL) -> None:
        self._url, self._origin, self._kind = url, origin, kind
        self._token = secrets.token_hex(4)
        self._open: dict[Path, int] = {}  # files with rows, and their handles

    def keep(self, row: Mapping[str, Any]) -> Path | None:
        """Write a row (JSON values) to the disk, in the first file that takes it, which is returned; None: none does.

        File and folder are synchronised with the disk before this returns.
        """
        line = (json.dumps({"origin": self._origin, "row": dict(row)}) + "\n").encode()
        for file in _places(self._url, f".{self._token}", self._kind):
            with suppress(OSError):
                handle = self._handle(file)
                size = os.fstat(handle).st_size
                try:
                    if os.write(handle, line) != len(line):
                        raise OSError
                    os.fsync(handle)
                except OSError:  # a full disk may take a part of the line
                    with suppress(OSError):
                        os.ftruncate(handle, size)
                    raise
                return file
        return None

    def clear(self) -> None:
        """Forget all rows, which the database has now; what cannot be removed is taken in again, and stored once."""
        self.close(forget=True)

    def close(self, forget: bool = False) -> None:
        """Leave the rows to the next start, or ``forget`` them."""
        for file, handle in self._open.items():
            with suppress(OSError):
                if forget or not os.fstat(handle).st_size:
                    file.unlink(missing_ok=True)
            os.close(handle)
        self._open = {}

    @property
    def files(self) -> list[Path]:
        """Files that hold rows now."""
        return [file for file, handle in self._open.items() if os.fstat(handle).st_size]

    def _handle(self, file: Path) -> int:
        """The file, open and locked; made anew where somebody has removed it."""
        handle = self._open.get(file)
        if handle is not None and os.fstat(handle).st_nlink:
            return handle
        if handle is not None:
            os.close(self._open.pop(file))
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(10):
            handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)  # one that takes files in may look at an empty one, and remove it
                if os.fstat(handle).st_nlink:
                    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
                    try:
                        os.fsync(folder)  # so that the disk knows of a new file
                    finally:
                        os.close(folder)
                    self._open[file] = handle
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)
        raise OSError(f"{file} is removed again and again")


def spill_files(url: str, kind: str = SPILL) -> list[Path]:
    """The files in which rows of a database wait: beside it, with this user's state, or with temporary files."""
    found: dict[Path, None] = {}
    for place in _places(url, "", kind):
        stem = glob.escape(str(place.with_suffix("")))
        for pattern in (f"{stem}{place.suffix}", f"{stem}.*{place.suffix}"):
            found |= dict.fromkeys(Path(name) for name in sorted(glob.glob(pattern)))
    return list(found)


def rows_in(file: Path | TextIO) -> list[tuple[str, dict[str, Any]]]:
    """(origin, row) of each line of a file but torn ones."""
    text = file.read_text(encoding="utf-8", errors="replace") if isinstance(file, Path) else file.read()
    found = []
    for line in text.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            held = json.loads(line)
            found.append((str(held["origin"]), dict(held["row"])))
    return found


def waiting_spills(url: str, kind: str = SPILL) -> Iterator[tuple[Path, list[tuple[str, dict[str, Any]]]]]:
    """Each file of this user that no living process writes, with (origin, row) of its lines but torn ones; locked.

    The file is removed when the next one is requested, as its rows are in the store by then.
    """
    for file in spill_files(url, kind):
        with suppress(OSError):
            handle = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
            with os.fdopen(handle, encoding="utf-8", errors="replace") as stream:
                if os.fstat(handle).st_uid != os.geteuid():
                    continue
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield file, rows_in(stream)
                file.unlink(missing_ok=True)


def _places(url: str, token: str, kind: str) -> list[Path]:
    """Files with a ``token`` in their names, the best first."""
    key, file = hashlib.sha256(os.fsencode(url)).hexdigest()[:16], file_of(url)
    files = [] if file is None else [file.absolute().with_name(f"{file.name}.{kind}{token}.jsonl")]
    named = f"{key}{'' if kind == SPILL else f'-{kind}'}{token}.jsonl"
    with suppress(OSError):
        files.append(state_home() / "jointopt" / "spill" / named)
    with suppress(OSError):  # no folder takes temporary files
        files.append(Path(tempfile.gettempdir(), f"jointopt-spill-{os.geteuid()}-{named}"))
    return files
