"""How a process of torchrun ends once its results are written."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def leave() -> NoReturn:
    """Ends this process here, without what Python does at its end.

    Threads of gloo still hold Python objects. One that frees them while the interpreter ends is unwound by Python, and
    C++ calls that abort: "terminate called without an active exception", in 3 of 13 runs on busy cores.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
