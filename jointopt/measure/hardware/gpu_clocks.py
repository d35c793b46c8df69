"""Clocks, power limits and profiles of a plan on the GPUs of its ranks: set before a run, put back whatever ends it.

Clocks of a GPU have one owner on the machine (`owners`), who writes down first what it has found. A guardian, a process
of its own, puts things back after SIGKILL; where that is killed too, `restore` does, and the next run on these GPUs.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import getpass
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from jointopt.core.errors import DeviceError, JointOptError, PlanError
from jointopt.core.schema import POWER_PROFILE, Ints, num_gpus
from jointopt.jobs.plans.placement import DEFAULT_ORDER, stage_of_rank
from jointopt.jobs.plans.text import parse_stage_clocks
from jointopt.measure.hardware.guard.guarded import Guardian, boot_id, is_locked, own_command_line, signal_handlers
from jointopt.measure.hardware.meter import Gpus, profile_names

_RESTORE = [sys.executable, "-P", "-c", f"from {__name__} import restore; restore()"]
_ABOVE = 1.03  # of the clock that was set: a GPU that is held there never runs as fast
FOLDER_VARIABLE = "JOINTOPT_CLOCKS"  # another folder, the same for all that share the GPUs
_PATIENCE_S = 1.0  # for the lock of a file: others hold it briefly to look, or to put back what a killed owner left
_FOLDERS = (Path("/run/jointopt"), Path("/tmp/jointopt-clocks"))
NOT_PUT_BACK: list[str] = []  # sentences of this process, whose exit code is then not 0


@dataclass(frozen=True)
class Setting:
    """Clock, power limit and power profiles of one GPU of this machine, by local rank; None leaves it to the driver."""

    index: int
    clock_mhz: float | None = None
    power_limit_w: float | None = None
    profiles: tuple[str, ...] | None = None


def ranks_of_node(plan: Mapping[str, Any], node: int = 0, gpus_per_node: int | None = None) -> Ints:
    """The global ranks on ``node``, which fill nodes in order. PlanError where the plan has no such node."""
    gpus = int(num_gpus(plan))
    per_node = gpus_per_node or gpus
    ranks = np.arange(node * per_node, min((node + 1) * per_node, gpus))
    if node < 0 or not len(ranks):
        raise PlanError(f"The plan uses {gpus} GPUs, {per_node} on each node; it has no node {node}.")
    return ranks


def plan_settings(
    plan: Mapping[str, Any], node: int = 0, gpus_per_node: int | None = None, order: str = DEFAULT_ORDER, *,
    default_clocks: bool = False,
) -> list[Setting]:  # fmt: skip
    """Settings of the GPUs of ``node`` under ``plan`` (plan columns), whose ranks are numbered in ``order``.

    ``gpus_per_node`` is by default the number that the plan uses. ``default_clocks``: power limits and profiles alone;
    so it is where the plan has a ``power_profile``, which chooses clocks by itself. Raises PlanError where the plan has
    no such node, or not a clock or power limit for each stage.
    """
    pp, ranks = int(plan["pp"]), ranks_of_node(plan, node, gpus_per_node)
    stated = {
        name: value for name, value in plan.items() if value is not None and str(value).strip() not in ("", "nan")
    }
    clocks = _per_stage(stated, "stage_clock_mhz", "clock_mhz", pp)
    limits = _per_stage(stated, "stage_power_limit_w", "power_limit_w", pp)
    stages = stage_of_rank(plan, ranks, order).tolist()
    profiles = profile_names(str(stated[POWER_PROFILE])) if POWER_PROFILE in stated else None
    clocks = [None] * pp if default_clocks or profiles else clocks
    settings = [Setting(i, clocks[stage], limits[stage], profiles) for i, stage in enumerate(stages)]
    return [s for s in settings if s != Setting(s.index)]


@contextmanager
def settings_session(settings: Sequence[Setting], at_once: bool = True) -> Iterator[SettingsSession]:
    """Set GPUs to ``settings`` while the body runs, and put them back whatever ends it but SIGKILL.

    Not ``at_once``: nothing is set until the body calls `SettingsSession.apply`.

    SIGINT, SIGTERM and SIGHUP become KeyboardInterrupt and SystemExit, unless the program handles them itself. Raises
    DeviceError where GPUs cannot be set, DevicePermissionError where that needs other rights, PlanError where they have
    no such clock or power limit. A meter is started before: a signal then never meets a main thread inside NVML.
    """
    session = SettingsSession(settings)
    if not settings:
        yield session
        return
    if threading.current_thread() is threading.main_thread():  # no other may handle signals
        session.handlers = signal_handlers()
    for number in session.handlers:
        signal.signal(number, session.handle_signal)
    atexit.register(session.restore)
    try:
        if at_once:
            session.apply()
        yield session
    finally:
        try:
            session.restore()
        finally:
            session.restore()  # again, where a signal came between; the second call does what the first left
            atexit.unregister(session.restore)
            for number, handler in session.handlers.items():
                signal.signal(number, handler)


class SettingsSession:
    """What is set on GPUs, and how to undo it; signals wait while settings are being applied or put back."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        self.trouble = ""  # a sentence on the last thing that could not be put back
        self.changed: dict[str, str] = {}  # sentences on what somebody else has set meanwhile
        self.was_applied = False  # whether anything was ever set
        self.settings = settings
        self._gpus: Gpus | None = None
        self._owned: Ownership | None = None
        self._guardian: Guardian | None = None
        self._undo: list[tuple[str, Callable[[], None]]] = []  # what was set, in words, and how to undo it
        self._busy = False  # settings are being applied or put back
        self._waiting: list[int] = []  # signals that came meanwhile
        self.handlers: dict[int, Any] = {}  # what handled signals before

    def apply(self) -> None:
        """Become the owner of the GPUs, write down what is to be put back, then set them."""
        self.was_applied = True
        with self._delaying_signals():
            gpus = self._gpus = Gpus()
            most = 1 + max(setting.index for setting in self.settings)
            if most > len(gpus):
                raise DeviceError(f"The plan sets the clocks of {most} GPUs here, and this machine shows {len(gpus)}.")
            ids = gpus.ids
            self._owned = Ownership(ids[s.index] for s in self.settings)
            for one in self._owned.found.values():  # so that "before" is what it was before them too
                _put_back(one, Gpus(visible=False))
            before: dict[str, Setting] = {}  # limit and profiles where these are set
            for setting in self.settings:
                index, limit_w, profiles = setting.index, None, None
                if setting.profiles is not None:
                    gpus.check_profiles(index, setting.profiles)
                    profiles = gpus.requested_profiles(index)
                if setting.power_limit_w is not None:
                    limit_w = gpus.power_limit_w(index)
                before[ids[index]] = Setting(index, None, limit_w, profiles)
            self._owned.write(before)
            if self._owned.new:
                self._guardian = Guardian({"command": [], "linger_s": 0.0, "restore": _RESTORE, "scratch": [],
                                           "record": None}, "clocks", stdin=subprocess.DEVNULL)  # fmt: skip
            for setting in self.settings:
                self._set(gpus, setting, before[ids[setting.index]])

    def change_clocks(self, settings: Sequence[Setting]) -> None:
        """Hold the same GPUs at other clocks, if they are set now; what is put back at the end stays as it is."""
        with self._delaying_signals():
            if self._gpus is None or not self._undo:
                return
            for before, after in zip(self.settings, settings, strict=True):
                if after.clock_mhz is not None and after.clock_mhz != before.clock_mhz:
                    self._gpus.lock_clock(after.index, after.clock_mhz)
            self.settings = settings

    def check(self) -> None:
        """Note in ``changed`` where GPUs are not as they were set, which only another program can have done."""
        gpus, found = self._gpus, {}
        if gpus is None or self._busy or not self._undo:
            return
        try:
            for setting in self.settings:
                index, wanted_mhz, wanted_w = setting.index, setting.clock_mhz, setting.power_limit_w
                if wanted_w is not None and abs((watts := gpus.power_limit_w(index)) - wanted_w) > 1:
                    words = f"was set to {watts:g} W by another program, not {wanted_w:g}"
                    found[f"limit {index}"] = f"the power limit of GPU {index} {words}"
                if setting.profiles is not None and {*(now := gpus.requested_profiles(index))} != {*setting.profiles}:
                    words = f"was set to {'+'.join(now) or 'none'} by another program"
                    found[f"profile {index}"] = f"the power profile of GPU {index} {words}"
                if wanted_mhz is not None and (mhz := gpus.sample(index)[-1]) > _ABOVE * wanted_mhz:
                    words = f"ran at {mhz:g} MHz, above the {wanted_mhz:g} set: another program set it"
                    found[f"clock {index}"] = f"GPU {index} {words}"
        except DeviceError:  # a GPU that is lost is the meter's news
            return
        if self._undo and not self._busy:  # not put back meanwhile, in the other thread
            self.changed |= found

    def restore(self) -> None:
        """Put everything back; what fails is in ``trouble`` and remains written down."""
        self.check()
        with self._delaying_signals():
            while self._undo:
                what, undo = self._undo[-1]
                try:
                    undo()
                except JointOptError as error:
                    self.trouble = f"{what} was not put back: {error}"
                    NOT_PUT_BACK.append(self.trouble)
                self._undo.pop()
            if self._owned is not None:
                self._owned.release(self._owned.new, put_back=not self.trouble)
                self._owned = None
            if self._guardian is not None:
                self._guardian.order("done")
                self._guardian.close()
                self._guardian = None

    def handle_signal(self, number: int, frame: Any) -> None:
        """Put the GPUs back and raise what the signal means, or let the program's own handler decide."""
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

    def _set(self, gpus: Gpus, setting: Setting, before: Setting) -> None:
        """Set what a setting states, each after noting how to undo it; a change that is refused needs no undoing."""
        index = setting.index
        clock_mhz, profiles, limit_w = setting.clock_mhz, setting.profiles, setting.power_limit_w
        changes: list[tuple[str, Callable[[], None], Callable[[], None]]] = []
        if clock_mhz is not None:
            changes += [("clock", partial(gpus.lock_clock, index, clock_mhz), partial(gpus.reset_clock, index))]
        if profiles is not None and before.profiles is not None:
            now, back = (partial(gpus.request_profiles, index, names) for names in (profiles, before.profiles))
            changes += [("power profile", now, back)]
        if limit_w is not None and before.power_limit_w is not None:
            now, back = (partial(gpus.set_power_limit, index, watts) for watts in (limit_w, before.power_limit_w))
            changes += [("power limit", now, back)]
        for what, change, undo in changes:
            self._undo.append((f"the {what} of GPU {index}", undo))
            try:
                change()
            except JointOptError:
                self._undo.pop()
                raise

    @contextmanager
    def _delaying_signals(self) -> Iterator[None]:
        outer, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = outer
            if not outer and self._waiting:
                number, self._waiting = self._waiting[0], []
                self.handle_signal(number, None)


def leftovers() -> list[Owner]:
    """The killed processes that have left settings on GPUs, one per GPU."""
    return [one for one in owners() if not is_locked(one.file)]


def restore_offer() -> str:
    """A line that offers to put back what killed runs have left set, for commands that measure; blank: nothing."""
    found = leftovers()
    words = "set; put them back with: jointopt clocks restore"
    return f"A run that was killed ({found[0]}) has left clocks of {len(found)} GPUs {words}" if found else ""


def restore() -> list[str]:
    """Put back what killed processes have left set; a sentence for each GPU. DeviceError where a GPU refuses."""
    sentences = []
    for one in leftovers():
        with claim(one) as mine:
            sentences += [_put_back(one, Gpus(visible=False))] if mine else []
    return sentences


def reset_all() -> list[str]:
    """Give every GPU here the driver's own clock, its default limit and no profile; a sentence for each."""
    gpus = Gpus(visible=False)
    for index in range(len(gpus)):
        gpus.reset_clock(index)
        limit_w = gpus.default_power_limit_w(index)
        if limit_w is not None and limit_w != gpus.power_limit_w(index):
            gpus.set_power_limit(index, limit_w)
        if gpus.offered_profiles(index):
            gpus.request_profiles(index, ())
    for one in leftovers():
        with claim(one):
            pass
    return [f"The clock of {gpus.name(index)} is the driver's again." for index in range(len(gpus))]


def _put_back(one: Owner, gpus: Gpus) -> str:
    """Put back what a dead owner has left on its GPU; a sentence."""
    index = {name: i for i, name in enumerate(gpus.ids)}.get(one.gpu)
    if index is None:
        return f"GPU {one.gpu}, which process {one.pid} had set, is not on this machine any more."
    limit_w = one.limit_before_w
    if limit_w is not None and not one.trusted:
        limit_w = gpus.default_power_limit_w(index)
    gpus.reset_clock(index)
    if limit_w is not None:
        gpus.set_power_limit(index, limit_w)
    if one.profiles_before is not None:  # a preset of the maker does no harm, whoever claims it
        gpus.request_profiles(index, one.profiles_before)
    limit = "" if limit_w is None else f", its power limit {limit_w:g} W"
    profiles = "" if one.profiles_before is None else f", its power profile {'+'.join(one.profiles_before) or 'none'}"
    return f"The clock of {gpus.name(index)} is the driver's again{limit}{profiles}."


def _per_stage(plan: Mapping[str, Any], each: str, one: str, pp: int) -> list[float | None]:
    """A value per stage from ``each``, or from ``one`` for all; None where the plan gives neither."""
    key = each if each in plan else one
    if key not in plan:
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


# One owner of a GPU's clocks on a machine: a file per GPU that the owner keeps locked, whoever it is.


@dataclass(frozen=True)
class Owner:
    """Whoever has set the clock, power limit or profiles of one GPU, and what these were before (None: not set)."""

    file: Path
    gpu: str  # identity
    pid: int
    user: str
    host: str
    command: str
    limit_before_w: float | None
    profiles_before: tuple[str, ...] | None  # workload power profiles; None: not set
    trusted: bool  # whether the file is this user's or root's; what others claim is not put back

    def __str__(self) -> str:
        where = "" if self.host == socket.gethostname() else f" in {self.host}"
        return f"process {self.pid} of {self.user}{where} ({self.command})"


class Ownership:
    """GPUs whose clocks this process owns from now on: files that stay locked until `release`.

    ``found``: owners that were killed, by GPU. Raises DeviceError where somebody owns one, or no file can be written.
    """

    _mine: ClassVar[dict[str, int]] = {}  # GPUs of this process, with the descriptors; runs within runs share them

    def __init__(self, gpus: Iterable[str]) -> None:
        self.new = [gpu for gpu in gpus if gpu not in self._mine]
        self.found: dict[str, Owner] = {}
        try:
            for gpu in self.new:
                file = _folder() / (re.sub(r"[^\w.-]", "_", gpu) + ".json")
                try:
                    handle = _open_lock(file)
                    os.set_inheritable(handle, False)
                except OSError as error:
                    raise DeviceError(
                        f"{file} cannot be written ({error.strerror}), and without it clocks could not be put back "
                        f"after a kill; set {FOLDER_VARIABLE} to a folder that can, the same for all that use these "
                        "GPUs."
                    ) from error
                if not _lock(handle):
                    os.close(handle)
                    raise _refusal(gpu, file)
                self._mine[gpu] = handle
                for owner in owners():
                    if owner.gpu == gpu and owner.file != file and is_locked(owner.file):
                        raise _refusal(gpu, owner.file)
                    if owner.gpu == gpu:
                        self.found[gpu] = owner
        except BaseException:
            self.release(self.new)
            raise

    def write(self, before: Mapping[str, Setting]) -> None:
        """Write down what is to be put back, by GPU, before anything is set."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container without a name for its user
            user = str(os.geteuid())
        about = {
            "pid": os.getpid(), "user": user, "host": socket.gethostname(), "command": own_command_line(),
            "boot": boot_id(),
        }  # fmt: skip
        for gpu in self.new:
            own = {"limit_before_w": before[gpu].power_limit_w, "profiles_before": before[gpu].profiles}
            _rewrite(self._mine[gpu], json.dumps({**about, "gpu": gpu, **own}) + "\n")

    def release(self, gpus: Iterable[str], put_back: bool = True) -> None:
        """Own these no more; what is not ``put_back`` stays written down."""
        for gpu in gpus:
            handle = self._mine.pop(gpu, None)
            if handle is not None:
                with suppress(OSError):
                    if put_back:
                        _rewrite(handle, "")
                os.close(handle)


def owners() -> Iterator[Owner]:
    """Owners that are written down since this machine was started, living or dead."""
    for folder in _folders():
        for file in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            with suppress(OSError, ValueError, KeyError, TypeError):  # empty, or of something else
                yield _read(file)


@contextmanager
def claim(owner: Owner) -> Iterator[bool]:
    """The file of a dead owner locked for the block, and emptied at its end; False where somebody owns it by now."""
    handle = os.open(owner.file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        mine = _lock(handle)
        yield mine
        if mine:
            _rewrite(handle, "")
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    """Lock a file, waiting for those that only look at it; whether that was possible."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.02)


def _folders() -> Sequence[Path]:
    """The folders in which owners are written down."""
    given = os.environ.get(FOLDER_VARIABLE)
    return (Path(given),) if given else _FOLDERS


def _folder() -> Path:
    """The folder in which this process writes: the first that it may make, or write to."""
    for folder in _folders():
        with suppress(OSError):
            folder.mkdir(parents=True)
            folder.chmod(0o1777)
        if folder.is_dir() and not folder.is_symlink() and os.access(folder, os.W_OK):
            return folder
    return _folders()[-1]


def _open_lock(file: Path) -> int:
    """A descriptor of the file, which all users may lock; not by a link that somebody has laid there."""
    with suppress(FileNotFoundError):  # the kernel refuses O_CREAT on files of others in a folder like /tmp
        handle = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1:
            os.close(handle)
            raise OSError(errno.EPERM, "it is no file of its own")
        return handle
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with suppress(OSError):
        os.fchmod(handle, 0o666)
    return handle


def _rewrite(handle: int, text: str) -> None:
    """Let an open file hold this text alone, in one write at its beginning."""
    os.pwrite(handle, text.encode(), 0)
    os.ftruncate(handle, len(text.encode()))


def _read(file: Path) -> Owner:
    """The owner that a file states; OSError, ValueError, KeyError or TypeError where it states none since the start."""
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe without a writer would block
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError
        whose = facts.st_uid
        content = json.loads(os.read(handle, 65_536).split(b"\n")[0])
    finally:
        os.close(handle)
    if content["boot"] != boot_id():  # the driver has forgotten everything since
        raise ValueError
    profiles = content.get("profiles_before")  # which earlier versions do not write
    return Owner(
        file, content["gpu"], content["pid"], content["user"], content["host"], content["command"],
        content["limit_before_w"], None if profiles is None else tuple(profiles), whose in (0, os.geteuid()),
    )  # fmt: skip


def _refusal(gpu: str, file: Path) -> DeviceError:
    """The error that somebody else owns a GPU, by the file that states who."""
    owner: object = "another process"
    with suppress(OSError, ValueError, KeyError, TypeError):
        owner = _read(file)
    words = str(owner)
    return DeviceError(
        f"{words[0].upper()}{words[1:]} holds the clocks of these GPUs ({gpu}); wait for it, or choose others with "
        "CUDA_VISIBLE_DEVICES."
    )
