"""SM activity from NVIDIA's DCGM where it is installed: the share of time that streaming multiprocessors had work.

NVML's own utilisation is 1 whenever any kernel runs, however small; field 1002 of DCGM (SM_ACTIVE) is finer.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from jointopt.core.schema import Floats
from jointopt.measure.guard.guarded import signals_later
from jointopt.measure.launchers.process import end_with_parent

_ROW = re.compile(r"^\s*GPU\s+(\d+)\s+([0-9.]+)\s*$")  # N/A where the GPU has no such field
_PERIOD_MS = 100
_PATIENCE_S = 2.0


class SmActivity:
    """Reads ``dcgmi dmon`` from `start` to `stop`; where DCGM is missing or fails, it simply saw nothing.

    ``gpus`` are numbers of GPUs as NVML and DCGM count them.
    """

    def __init__(self, gpus: Sequence[int]) -> None:
        self._gpus = list(gpus)
        self._seen: dict[int, list[tuple[float, float]]] = {gpu: [] for gpu in self._gpus}
        self._program: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start ``dcgmi`` where it is installed."""
        dcgmi = shutil.which("dcgmi")
        if dcgmi is None:
            return
        command = [dcgmi, "dmon", "-e", "1002", "-d", str(_PERIOD_MS), "-i", ",".join(map(str, self._gpus))]
        with suppress(OSError), signals_later():
            self._program = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                errors="replace", start_new_session=True, preexec_fn=end_with_parent,
            )  # fmt: skip
            self._thread = threading.Thread(target=self._read, args=(self._program,), daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End ``dcgmi``."""
        if self._program is None or self._thread is None:
            return
        self._program.terminate()
        try:
            self._program.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._program.kill()
            self._program.wait()
        self._thread.join(_PATIENCE_S)

    def instead_of(self, utilisation: Floats, time_s: Floats) -> Floats:
        """``utilisation`` (n, gpus) with columns of GPUs that DCGM knows replaced by SM activity at ``time_s``."""
        out = utilisation.copy()
        for column, gpu in enumerate(self._gpus):
            if seen := list(self._seen[gpu]):
                at, share = np.array(seen).T
                out[:, column] = np.interp(time_s, at, share)
        return out

    def _read(self, program: subprocess.Popen[str]) -> None:
        for line in program.stdout or ():
            found = _ROW.match(line)
            if found and int(found[1]) in self._seen:
                with suppress(ValueError):
                    self._seen[int(found[1])].append((time.time(), float(found[2])))
