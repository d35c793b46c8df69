"""Clocks and power limits of a plan on the GPUs of its ranks: set before a run, put back whatever ends it.

What was set is written down first, in a file of the user that this process keeps locked while it lives. After SIGKILL
the file remains, unlocked, and `restore` undoes what it records.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import re
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import psutil

from jointopt.core.errors import DeviceError, JointOptError, PlanError
from jointopt.core.schema import Ints, num_gpus
from jointopt.measure.devices.meter import Gpus
from jointopt.spec.plans.clocks import parse_stage_clocks
from jointopt.spec.plans.ranks import DEFAULT_ORDER, stage_of_rank

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Setting:
    """Clock and power limit of one GPU of this machine, by local rank; None leaves it to the driver."""

    index: int
    clock_mhz: float | None = None
    power_limit_w: float | None = None


@dataclass(frozen=True)
class Leftover:
    """Settings that a killed process has left: GPUs by identity, with the power limit before (None: not set)."""

    file: Path
    pid: int
    command: str
    limits_before_w: Mapping[str, float | None]


def ranks_of_node(plan: Mapping[str, Any], node: int = 0, gpus_per_node: int | None = None) -> Ints:
    """The global ranks on ``node``, which fill nodes in order. PlanError where the plan has no such node."""
    gpus = int(num_gpus(plan))
    per_node = gpus_per_node or gpus
    ranks = np.arange(node * per_node, min((node + 1) * per_node, gpus))
    if node < 0 or not len(ranks):
        raise PlanError(f"The plan uses {gpus} GPUs, {per_node} on each node; it has no node {node}.")
    return ranks


def plan_settings(
    plan: Mapping[str, Any], node: int = 0, gpus_per_node: int | None = None, order: str = DEFAULT_ORDER
) -> list[Setting]:
    """Settings of the GPUs of ``node`` under ``plan`` (plan columns), whose ranks are numbered in ``order``.

    ``gpus_per_node`` is by default all that the plan uses. Raises PlanError where the plan has no such node, or not a
    clock or power limit for each stage.
    """
    pp, ranks = int(plan["pp"]), ranks_of_node(plan, node, gpus_per_node)
    clocks = _per_stage(plan, "stage_clock_mhz", "clock_mhz", pp)
    limits = _per_stage(plan, "stage_power_limit_w", "power_limit_w", pp)
    stages = stage_of_rank(plan, ranks, order).tolist()
    settings = [Setting(i, clocks[stage], limits[stage]) for i, stage in enumerate(stages)]
    return [s for s in settings if s.clock_mhz is not None or s.power_limit_w is not None]


@contextmanager
def locked(settings: Sequence[Setting], at_once: bool = True) -> Iterator[Held]:
    """GPUs at ``settings`` while the body runs; whatever ends it but SIGKILL, they are put back.

    Not ``at_once``: from the moment that the body calls `Held.lock`.

    SIGINT, SIGTERM and SIGHUP become KeyboardInterrupt and SystemExit, unless the program handles them itself. Raises
    DeviceError where GPUs cannot be set, DevicePermissionError where that needs other rights, PlanError where they have
    no such clock or power limit. A meter is started before: a signal then never meets a main thread inside NVML.
    """
    held = Held(settings)
    if not settings:
        yield held
        return
    previous = _handled_by(held)
    atexit.register(held.restore)
    try:
        if at_once:
            held.lock()
        yield held
    finally:
        try:
            held.restore()
        finally:
            held.restore()  # again, where a signal came between; the second call does what the first left
            atexit.unregister(held.restore)
            for number, handler in previous.items():
                signal.signal(number, handler)


class Held:
    """Settings of GPUs while they are held; signals wait while they are being set or put back."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        self.trouble = ""
        self.set_once = False  # whether anything was ever set
        self._settings = settings
        self._record: TextIO | None = None
        self._undo: list[tuple[str, Callable[[], None]]] = []
        self._busy = False
        self._waiting: list[int] = []
        self.handlers: dict[int, Any] = {}

    def lock(self) -> None:
        """Write down what will be set, then set it."""
        self.set_once = True
        with self._undisturbed():
            gpus = Gpus()
            most = 1 + max(setting.index for setting in self._settings)
            if most > len(gpus):
                raise DeviceError(f"The plan sets the clocks of {most} GPUs here, and this machine shows {len(gpus)}.")
            ids = gpus.ids
            mine = {ids[s.index] for s in self._settings}
            for one in leftovers():  # so that "before" is what it was before them too
                if mine & one.limits_before_w.keys():
                    _undone(one, Gpus(visible=False))
            before = {
                ids[s.index]: gpus.power_limit_w(s.index) if s.power_limit_w is not None else None
                for s in self._settings
            }
            self._record = _write_record(before)
            for other in _records(alive=True):
                if other.pid != os.getpid() and mine & other.limits_before_w.keys():
                    raise DeviceError(
                        f"Process {other.pid} ({other.command}) holds the clocks of these GPUs; wait for it, or choose "
                        "others with CUDA_VISIBLE_DEVICES."
                    )
            for setting in self._settings:
                self._set(gpus, setting, before[ids[setting.index]])

    def restore(self) -> None:
        """Put everything back; what fails is in ``trouble`` and remains written down."""
        with self._undisturbed():
            while self._undo:
                what, undo = self._undo[-1]
                try:
                    undo()
                except JointOptError as error:
                    self.trouble = f"{what} was not put back: {error}"
                self._undo.pop()
            if self._record is not None:
                if not self.trouble:
                    Path(self._record.name).unlink(missing_ok=True)
                self._record.close()
                self._record = None

    def handle(self, number: int, frame: Any) -> None:
        """Handle a signal while settings are held."""
        if self._busy:
            self._waiting.append(number)
            return
        before = self.handlers[number]
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)
            return
        self.restore()  # here already: no path of exceptions can then pass it by
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def _set(self, gpus: Gpus, setting: Setting, limit_before_w: float | None) -> None:
        index = setting.index
        if setting.clock_mhz is not None:
            with self._undone_by(f"the clock of GPU {index}", partial(gpus.reset_clock, index)):
                gpus.lock_clock(index, setting.clock_mhz)
        if setting.power_limit_w is not None and limit_before_w is not None:
            back = partial(gpus.set_power_limit, index, limit_before_w)
            with self._undone_by(f"the power limit of GPU {index}", back):
                gpus.set_power_limit(index, setting.power_limit_w)

    @contextmanager
    def _undone_by(self, what: str, undo: Callable[[], None]) -> Iterator[None]:
        """Remember how to undo the change that the body makes; a change that is refused needs none."""
        self._undo.append((what, undo))
        try:
            yield
        except JointOptError:
            self._undo.pop()
            raise

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        outer, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = outer
            if not outer and self._waiting:
                number, self._waiting = self._waiting[0], []
                self.handle(number, None)


def leftovers() -> list[Leftover]:
    """Settings that killed processes have left on this machine."""
    return _records(alive=False)


def restore_offer() -> str:
    """One line for the start of a command that measures; blank where nothing is left."""
    found = leftovers()
    if not found:
        return ""
    names = sorted({gpu for one in found for gpu in one.limits_before_w})
    return (
        f"A run that was killed (process {found[0].pid}: {found[0].command}) has left clocks of {len(names)} GPUs set; "
        "put them back with: jointopt clocks restore"
    )


def restore() -> list[str]:
    """Undo what killed processes have left set; a sentence for each. Raises DeviceError where a GPU refuses."""
    return [sentence for one in leftovers() for sentence in _undone(one, Gpus(visible=False))]


def reset_all() -> list[str]:
    """Give the clock of every GPU of this machine back to the driver, whoever set it; a sentence for each."""
    gpus = Gpus(visible=False)
    for index in range(len(gpus)):
        gpus.reset_clock(index)
    return [f"The clock of {gpus.name(index)} is the driver's again." for index in range(len(gpus))]


def _undone(one: Leftover, gpus: Gpus) -> list[str]:
    index = {name: i for i, name in enumerate(gpus.ids)}
    sentences = []
    for name, limit_w in one.limits_before_w.items():
        if name not in index:
            sentences.append(f"GPU {name}, which process {one.pid} had set, is not on this machine any more.")
            continue
        gpus.reset_clock(index[name])
        if limit_w is not None:
            gpus.set_power_limit(index[name], limit_w)
        limit = "" if limit_w is None else f", its power limit {limit_w:g} W"
        sentences.append(f"The clock of {gpus.name(index[name])} is the driver's again{limit}.")
    one.file.unlink(missing_ok=True)
    return sentences


def _per_stage(plan: Mapping[str, Any], each: str, one: str, pp: int) -> list[float | None]:
    """A value per stage from ``each``, or from ``one`` for all; None where the plan gives neither."""
    key = each if _given(plan.get(each)) else one
    if not _given(plan.get(key)):
        return [None] * pp
    value = plan[key]
    try:
        values = parse_stage_clocks(value.tolist() if isinstance(value, np.ndarray) else value, key)
    except PlanError:
        values = []
    if len(values) not in (1, pp):
        unit = "W" if each.endswith("_w") else "MHz"
        raise PlanError(f"{key} must be {unit}, one value or one for each of the {pp} stages; got {value!r}.")
    return [*values] * (pp // len(values))


def _given(value: Any) -> bool:
    return value is not None and str(value).strip() not in ("", "nan")


def _handled_by(held: Held) -> dict[int, Any]:
    """Lets ``held`` handle the signals that end programs; what handled them before. Only a main thread may do so."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    wanted: dict[int, Any] = {n: h for n, h in before.items() if h is not signal.SIG_IGN and h is not None}
    held.handlers = wanted
    for number in wanted:
        signal.signal(number, held.handle)
    return wanted


def _folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "jointopt" / "clocks"


def _write_record(limits_before_w: Mapping[str, float | None]) -> TextIO:
    """The file that records what is about to be set, locked for as long as it stays open."""
    file = _folder() / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.json"
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:100]
    content = {"pid": os.getpid(), "command": command, "limits_before_w": dict(limits_before_w)}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        stream = file.open("w", encoding="utf-8")
        with suppress(OSError):  # some file systems cannot; the process's number then decides
            fcntl.flock(stream, fcntl.LOCK_EX)
        json.dump(content, stream)
        stream.flush()
    except OSError as error:
        raise DeviceError(
            f"{file} cannot be written ({error.strerror}), and without it clocks could not be put back after a kill; "
            "set XDG_STATE_HOME to a folder that can."
        ) from error
    return stream


def _records(alive: bool) -> list[Leftover]:
    """Files of this machine whose process lives, or does not any more."""
    found = []
    # not those of gpu-2 on gpu
    mine = re.compile(rf"{re.escape(socket.gethostname())}-\d+-[0-9a-f]{{8}}\.json")
    for file in sorted(one for one in _folder().glob("*.json") if mine.fullmatch(one.name)):
        with suppress(OSError, ValueError, KeyError, TypeError):  # one that is just being written, or removed
            content = json.loads(file.read_text(encoding="utf-8"))
            record = Leftover(file, content["pid"], content["command"], content["limits_before_w"])
            if _lives(record) == alive:
                found.append(record)
    return found


def _lives(record: Leftover) -> bool:
    with record.file.open(encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return psutil.pid_exists(record.pid)
    return False
