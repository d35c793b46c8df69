"""What a site demands of a run while it goes on: a limit or a reduction, from a file, a URL, a socket or Prometheus."""

from __future__ import annotations

import io
import json
import math
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import urlopen

import numpy as np
import pandas as pd

from jointopt.core.errors import JointOptError, TableError, UsageError
from jointopt.core.input_files import regular_bytes
from jointopt.runs.site_signal import SiteSignal

KINDS = ("limit_kw", "reduce_percent")  # that hold now; prices and carbon become limits by a schedule over all steps
_POLL_S, _REPLY_S = 0.5, 2.0
PATIENCE_S = 3.0  # without a readable signal, after which its source counts as dead
_EPOCH_S = 1e9  # times of a signal above it are seconds since 1970, others since the start of the run
_MOST_BYTES = 16 * 2**20
_WEB, _SOCKET = ("http://", "https://"), "unix:"
_EXPECTED = (
    "a CSV file with time_s and limit_kw (or what else follow takes), a number of kW, or an answer of Prometheus"
)


class Demand(NamedTuple):
    """One of `KINDS` and its value, or the ``power_kw`` of a schedule, which may be more than that of the plan."""

    kind: str
    value: float

    def limit_kw(self, own_kw: float) -> float:
        """The limit in kW for a run that draws ``own_kw`` by its own plan; none where no reduction is asked."""
        if self.kind != "reduce_percent":
            return self.value
        return own_kw * (1.0 - self.value / 100.0) if self.value > 0.0 else math.inf


NONE = Demand("limit_kw", math.inf)


class DemandSource:
    """Reads a source in a thread until `stop`; UsageError at once where its first content is no signal.

    ``where``: the path of a file, a URL, or ``unix:PATH`` of a socket, read anew every half second. ``limits_of``: the
    limits of a signal of prices or carbon.
    """

    def __init__(self, where: str, limits_of: Callable[[SiteSignal], SiteSignal]) -> None:
        self.where, self.fault, self._limits_of = where, "", limits_of
        self._start_s = time.time()
        self._read_s = -math.inf
        self._content: bytes | None = None
        self._signal: SiteSignal | Demand = NONE
        self._over = threading.Event()
        self._look()
        if self.fault:
            raise UsageError(f"--follow: {self.fault}; expected {_EXPECTED}.")
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def now(self) -> Demand | None:
        """What is demanded now, nothing outside of the signal's steps; None where the source is dead."""
        signal = self._signal
        if time.monotonic() - self._read_s > PATIENCE_S:
            return None
        if isinstance(signal, Demand):
            return signal
        at_s = time.time() - (0.0 if signal.bounds_s[0] > _EPOCH_S else self._start_s)
        step = int(np.searchsorted(signal.bounds_s, at_s, side="right")) - 1
        return Demand(signal.kind, float(signal.values[step])) if 0 <= step < len(signal.values) else NONE

    def stop(self) -> None:
        """End the thread."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(_POLL_S):
            self._look()

    def _look(self) -> None:
        """Read the source once; what is wrong with it is its ``fault``."""
        try:
            content = _content(self.where)
            if content != self._content:
                found = _parsed(content, self.where)
                if isinstance(found, SiteSignal) and found.kind not in KINDS:
                    found = self._limits_of(found)
                self._signal, self._content = found, content
            self._read_s, self.fault = time.monotonic(), ""
        except (OSError, ValueError, JointOptError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).rstrip(".")
            self.fault = f"{self.where} cannot be read: {reason}"


def _content(where: str) -> bytes:
    if where.startswith(_WEB):
        if not urlsplit(where).hostname:
            raise ValueError("it names no host")
        with urlopen(where, timeout=_REPLY_S) as reply:
            return bytes(reply.read(_MOST_BYTES))
    if where.startswith(_SOCKET):
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(_REPLY_S)
            link.connect(where.removeprefix(_SOCKET))
            return link.makefile("rb").read(_MOST_BYTES)
    return regular_bytes(Path(where), _MOST_BYTES, _EXPECTED)


def _parsed(content: bytes, where: str) -> SiteSignal | Demand:
    """The signal of a table, or one demand: a number of kW, a mapping with one of `KINDS`, an answer of Prometheus."""
    text = content.decode("utf-8").strip()
    try:
        found = json.loads(text)
    except ValueError:
        return SiteSignal.of(pd.read_csv(io.StringIO(text)), where)
    kind, value = "limit_kw", found
    if isinstance(found, dict) and found.get("status") == "success":
        kind, value = _of_prometheus(found["data"])
    elif isinstance(found, dict):
        kind, value = next(((name, found[name]) for name in KINDS if name in found), ("limit_kw", None))
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0.0:
        raise TableError(f"its {kind} is {text[:60]!r}")
    return Demand(kind, float(value))


def _of_prometheus(data: Any) -> tuple[str, Any]:
    """The kind, by the end of the metric's name, and the value of an instant query; ValueError where it has none."""
    found = data.get("result")
    if data.get("resultType") == "scalar":
        return "limit_kw", float(found[1])
    if not found:
        raise ValueError("Prometheus has no value for this query")
    name = str(found[0]["metric"].get("__name__", ""))
    return next((kind for kind in KINDS if name.endswith(kind)), "limit_kw"), float(found[0]["value"][1])
