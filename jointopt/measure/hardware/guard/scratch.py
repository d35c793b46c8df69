"""Folders for the files of one run, which go with it: also where the tool was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "jointopt-"
_NEW_S = 5.0  # a folder is made, and then locked
HELD: set[str] = set()  # those of this process, which a guardian removes after it


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder for the block, locked (flock) so that `swept` of another process leaves it alone."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        handle = os.open(name, os.O_RDONLY)
        HELD.add(name)
        try:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(handle)
            HELD.discard(name)


def swept() -> int:
    """Remove the folders of killed processes of this user; how many there were."""
    found = [folder for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*") if _is_abandoned(folder)]
    for folder in found:
        shutil.rmtree(folder, ignore_errors=True)
    return len(found)


def _is_abandoned(folder: Path) -> bool:
    with suppress(OSError):
        facts = folder.lstat()
        if not folder.is_dir() or folder.is_symlink() or facts.st_uid != os.geteuid():
            return False
        if time.time() - facts.st_mtime < _NEW_S:
            return False
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(handle)
        return True
    return False
