"""Files that people hand over: regular ones alone, and no more of them than fits."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from jointopt.core.errors import UsageError

_PACKED = b"\x1f\x8b"
_OPENED = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
_CHUNK = 1 << 20
_folder: ContextVar[Path | None] = ContextVar("folder", default=None)  # outside of which nothing is read


@contextmanager
def only_in(folder: Path) -> Iterator[None]:
    """Files outside of ``folder`` are refused meanwhile, by this thread and what it awaits."""
    token = _folder.set(folder.resolve())
    try:
        yield
    finally:
        _folder.reset(token)


def regular_bytes(path: Path, most: int, expected: str, error: type[UsageError] = UsageError) -> bytes:
    """The content of a regular file of at most ``most`` bytes; ``error`` for a pipe, a device, or a larger file.

    Nothing waits for a writer, and no device without an end is read; what a shell has opened for this process
    (/dev/stdin) may be a pipe. Raises OSError where it cannot be opened.
    """
    if (folder := _folder.get()) is not None and not path.resolve().is_relative_to(folder):
        raise error(f"{path} is outside of the folder {folder}; expected {expected} inside.")
    opened = path.is_absolute() and str(path).startswith(_OPENED)
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if opened else os.O_NONBLOCK))
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise error(f"{path} is a directory; expected {expected}.")
        if not (stat.S_ISREG(mode) or (opened and stat.S_ISFIFO(mode))):
            raise error(f"{path} is not a regular file but a pipe, a socket or a device; expected {expected}.")
        with os.fdopen(handle, "rb", closefd=False) as file:
            raw = file.read(most + 1)
    finally:
        os.close(handle)
    if len(raw) > most:
        raise error(f"{path} is larger than {most:,} bytes; expected {expected}.")
    return raw


def unpacked(raw: bytes, path: Path, most: int, error: type[UsageError] = UsageError) -> bytes:
    """``raw``, or what gzip has packed into it, at most ``most`` bytes; zlib.error or EOFError where it is damaged."""
    if not raw.startswith(_PACKED):
        return raw
    parts, size = [], 0
    while raw.startswith(_PACKED):
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            part = member.decompress(raw, _CHUNK)
            raw = member.unused_data if member.eof else member.unconsumed_tail
            size += len(part)
            parts.append(part)
            if size > most:
                raise error(f"{path} holds more than {most:,} bytes once it is unpacked; expected less.")
            if not part and not member.eof and not raw:
                raise EOFError("it ends too early")
    return b"".join(parts)
