"""Files that are whole or not there: what is written takes its place when it is done, and not before."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

READY = ".ready"  # holds whole files that are to replace those of the folder it lies in


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a free path in the folder of ``path`` to write to; at the end of the block its file replaces ``path``.

    A program that is killed, and an error in the block, leave ``path`` as it was. What is no regular file (a pipe,
    /dev/stdout), or lies in a folder that takes no new file, is written to in place. Raises OSError, naming ``path``.
    """
    target = path.resolve()
    if path.is_file():
        path.open("ab").close()  # a file that may not be written is no more to be replaced
    if path.exists() and not (path.is_file() and os.access(target.parent, os.W_OK)):
        yield path
        return
    part = target.with_name(f".{target.name[:200]}.{os.getpid()}.part")
    try:
        part.touch()
    except OSError as error:  # which names the temporary file
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        if path.exists():
            shutil.copymode(target, part)
        yield part
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Writes a text file (UTF-8) by `replacing`."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def replace_files(made: Path, folder: Path) -> None:
    """Moves the files of the folder ``made`` into ``folder``, which holds it, over those of the same names.

    From the first step on, by which they are known to be whole, a program that is killed leaves what
    `finish_replacing` completes; before it ``folder`` is as it was.
    """
    finish_replacing(folder)
    made.rename(folder / READY)
    finish_replacing(folder)


def finish_replacing(folder: Path) -> None:
    """Moves what a killed `replace_files` has left to move; several programs may do so at once."""
    ready = folder / READY
    if not ready.is_dir():
        return
    with suppress(FileNotFoundError):  # another one has moved the last of them
        for file in sorted(ready.iterdir()):
            with suppress(FileNotFoundError):
                file.replace(folder / file.name)
        ready.rmdir()


def check_folder(folder: Path, names: Iterable[str] = ()) -> None:
    """Raises the OSError that would keep files of these names from being written there; leaves nothing behind."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    _check_new_file(nearest, nearest)
    for path in (folder / name for name in names if (folder / name).exists()):
        check_file(path)


def check_file(path: Path) -> None:
    """Raises the OSError that would keep the file from being written; leaves nothing behind."""
    if path.exists():
        path.open("ab").close()
    else:
        _check_new_file(path.parent, path)


def _check_new_file(folder: Path, named: Path) -> None:
    try:
        tempfile.NamedTemporaryFile(dir=folder).close()
    except OSError as error:  # which names the temporary file
        raise OSError(error.errno, error.strerror, str(named)) from error


def write_failure(error: OSError) -> str:
    """The part of a message that says why a file could not be written, and where one can be."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({error.strerror}); make room there"
    return f"{error.strerror or error}; expected a folder that exists and can be written"
