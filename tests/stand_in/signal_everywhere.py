"""Holds clocks again and again, each time with a signal at a later line of the code that sets and restores them.

``python signal_everywhere.py FIRST STEP SIGNAL``: prints the number of lines tried, and each after which something
was left set or written down.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from jointopt.measure.hardware import gpu_clocks, meter

FILES = {gpu_clocks.__file__, meter.__file__, contextlib.__file__}
REACHED, NOT_REACHED = 0, 9


def hold(at: int, number: int) -> int:
    """Sends the signal at the ``at``-th line; whether there were as many."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if event == "line" and frame.f_code.co_filename in FILES:
            count += 1
            if count == at:
                os.kill(os.getpid(), number)
        return trace

    sys.settrace(trace)
    try:
        with gpu_clocks.settings_session([gpu_clocks.Setting(i, 1410.0, 500.0) for i in range(2)]):
            pass
    finally:
        sys.settrace(None)
        code = REACHED if count >= at else NOT_REACHED
        ended.append(code)
    return code


def state() -> dict[str, str]:
    """The last value set of each clock and limit."""
    calls = Path(os.environ["STAND_IN_NVML"]) / "calls"
    lines = calls.read_text().splitlines() if calls.exists() else []
    return {"limit " + gpu if what == "limit" else "clock " + gpu: value for what, gpu, value in map(str.split, lines)}


first, step, signal_number = map(int, sys.argv[1:])
ended: list[int] = []
meter.Gpus()  # loads Zeus once for all children
tried = first
while True:
    child = os.fork()
    if child == 0:
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            hold(tried, signal_number)
        sys.exit(ended[0])
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == NOT_REACHED:
        break
    left = {name for name, value in state().items() if value not in ("1980", "700000")}
    if left or gpu_clocks.leftovers() or code not in (REACHED, -signal_number):
        print("left after line", tried, code, left, gpu_clocks.leftovers())
    tried += step
print("lines", tried - 1)
