"""Where this user's state is kept, also by a user without a home or a name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def state_home() -> Path:
    """XDG_STATE_HOME, else ~/.local/state, else a folder of this user with temporary files, which is made.

    Raises OSError where another user has made that, or no folder takes temporary files.
    """
    if given := os.environ.get("XDG_STATE_HOME"):
        return Path(given)
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError:  # neither $HOME nor an entry in /etc/passwd, as in containers
        folder = Path(tempfile.gettempdir(), f"jointopt-state-{os.geteuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise PermissionError(1, "belongs to another user; set XDG_STATE_HOME to a folder of your own", str(folder))
    return folder
