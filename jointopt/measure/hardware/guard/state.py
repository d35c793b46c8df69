"""Where this user's records of what runs are kept, for their owner's eyes alone."""

from __future__ import annotations

import os
from pathlib import Path

from jointopt.core.state import state_home


def state_folder(name: str) -> Path:
    """A folder of that name below the user's state (XDG_STATE_HOME), made with mode 0700 where it is missing.

    Raises OSError where it cannot be made.
    """
    base = state_home()
    own = base / "jointopt"
    base.mkdir(parents=True, exist_ok=True)
    for folder in (own, own / name):
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_mode & 0o077 and folder.stat().st_uid == os.geteuid():
            folder.chmod(0o700)  # of an earlier version
    return own / name


def boot_id() -> str:
    """An identity of this machine since it was last started; blank where the kernel gives none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
