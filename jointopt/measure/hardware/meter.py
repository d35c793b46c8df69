"""The GPUs of this machine through zeus and NVML: what they draw, and their clocks and power limits.

The one file that knows zeus and pynvml, which are optional (``pip install 'jointopt[meter]'``).
"""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes import byref
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from jointopt.core.errors import DeviceError, DevicePermissionError, PlanError, nearest_hint
from jointopt.core.schema import Floats
from jointopt.measure.hardware.guard.guarded import delay_signals, end_with_parent
from jointopt.runs.readings import QUANTITIES, Reading, Series, no_series

_PERIOD_S = 0.1
_MOST_SAMPLES = 20_000  # beyond that every second sample is dropped, and the period doubled
_CALL_EVERY = 10  # samples from one call of `Meter.on_sample` to the next
_PATIENCE_S = 5.0  # for the last sample, where a driver hangs
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
PERMISSION = (
    "setting clocks and power limits needs root, or Zeus' daemon: run `sudo zeusd serve --socket-path "
    "/run/zeusd/zeusd.sock --socket-permissions 666` and set ZEUSD_SOCK_PATH=/run/zeusd/zeusd.sock; or go on at "
    "default clocks with --default-clocks, with plans that have no power limit"
)
_DCGM_ROW = re.compile(r"^\s*GPU\s+(\d+)\s+([0-9.]+)\s*$")  # of dcgmi; N/A where the GPU has no such field
_DCGM_PERIOD_MS = 100
_DCGM_PATIENCE_S = 2.0
_PROFILE_PREFIX = "NVML_POWER_PROFILE_"
_NO_PROFILES = "its driver offers none (they begin with Blackwell and driver 570)"
_THROTTLED = {"heat": 0x60, "power": 0x84}  # NVML's reasons: software and hardware thermal; power cap, power brake
_MASK_BITS = 32  # of a word of a mask
# the machine's time, as samples and windows that are cut from them need it: seconds since 1970, a wait for an event
CLOCK = SimpleNamespace(time=time.time, wait=threading.Event.wait)


class Gpus:
    """GPUs in the order in which local ranks take them: as CUDA_VISIBLE_DEVICES says, or all (``visible=False``).

    Raises DeviceError where zeus is not installed, or there is no GPU or no driver.
    """

    def __init__(self, visible: bool = True) -> None:
        self._zeus, self._nvml = _open(visible)  # pynvml where these are NVIDIA's, else None
        self._gpus: Sequence[Any] = self._zeus.gpus
        self._power: list[Callable[[], Any]] = []
        for gpu in self._gpus:
            gpu._disable_sys_admin_warning = True  # a refusal is reported by us, once
            self._power.append(lambda: math.nan)
            sources = [gpu.get_instant_power_usage, gpu.get_average_power_usage]  # newest first
            if self._nvml is not None:  # which every driver of NVIDIA has
                sources.append(partial(self._nvml.nvmlDeviceGetPowerUsage, gpu.handle))
            for source in sources:
                with suppress(*_zeus_errors()):
                    source()
                    self._power[-1] = source
                    break

    def __len__(self) -> int:
        return len(self._gpus)

    @property
    def ids(self) -> tuple[str, ...]:
        """Identities of the GPUs, the same whichever are visible: the UUID (NVIDIA), else name and index."""
        if self._nvml is None:
            return tuple(f"{gpu.get_name()} {gpu.gpu_index}" for gpu in self._gpus)
        return tuple(str(self._nvml.nvmlDeviceGetUUID(gpu.handle)) for gpu in self._gpus)

    def number(self, index: int) -> int:
        """The driver's number of the GPU, the same whichever are visible."""
        return int(self._gpus[index].gpu_index)

    def name(self, index: int) -> str:
        """Number and name, for sentences."""
        return f"GPU {index} ({_answer(self._gpus[index].get_name, index)})"

    def check_whole(self, index: int) -> None:
        """DeviceError where the GPU is cut into instances (MIG): its counter and sensors are those of all of them."""
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):  # most GPUs cannot be cut
                if self._nvml.nvmlDeviceGetMigMode(self._gpus[index].handle)[0]:
                    raise DeviceError(
                        f"{self.name(index)} is cut into instances (MIG), and its energy is that of all of them; for "
                        "energy use whole GPUs: nvidia-smi -mig 0."
                    )

    def clocks_mhz(self, index: int) -> list[int]:
        """SM clocks that the GPU has at its fastest memory clock, highest first; empty where they are not known."""
        gpu = self._gpus[index]
        try:
            return sorted(gpu.get_supported_graphics_clocks(max(gpu.get_supported_memory_clocks())), reverse=True)
        except _zeus_errors():
            return []

    def lock_clock(self, index: int, clock_mhz: float) -> None:
        """Hold the SM clock; PlanError where the GPU has no such clock, DevicePermissionError where rights miss."""
        clocks = self.clocks_mhz(index)
        if clocks and not clocks[-1] <= clock_mhz <= clocks[0]:
            raise PlanError(
                f"{self.name(index)} has no clock of {clock_mhz:g} MHz; it has {clocks[-1]} to {clocks[0]} MHz."
            )
        mhz = round(clock_mhz)
        _answer(lambda: self._gpus[index].set_gpu_locked_clocks(mhz, mhz), index, f"to lock {mhz} MHz")

    def reset_clock(self, index: int) -> None:
        """The driver chooses the clock again."""
        _answer(self._gpus[index].reset_gpu_locked_clocks, index, "to release its clock")

    def power_limit_w(self, index: int) -> float:
        """The power limit of the GPU in W."""
        return float(_answer(self._gpus[index].get_power_management_limit, index)) / 1e3

    def default_power_limit_w(self, index: int) -> float | None:
        """The limit that the driver gives the GPU; None where it does not say."""
        if self._nvml is None:
            return None
        with suppress(self._nvml.NVMLError):
            return float(self._nvml.nvmlDeviceGetPowerManagementDefaultLimit(self._gpus[index].handle)) / 1e3
        return None

    def set_power_limit(self, index: int, limit_w: float) -> None:
        """Limit the GPU's power; PlanError where it takes no such limit."""
        low, high = _answer(self._gpus[index].get_power_management_limit_constraints, index)
        if not low <= 1e3 * limit_w <= high:
            raise PlanError(
                f"{self.name(index)} takes no power limit of {limit_w:g} W; it takes {low / 1e3:g} to {high / 1e3:g} W."
            )
        milliwatts = round(1e3 * limit_w)
        query = partial(self._gpus[index].set_power_management_limit, milliwatts)
        _answer(query, index, f"a power limit of {limit_w:g} W")

    def offered_profiles(self, index: int) -> tuple[str, ...]:
        """Names of the workload power profiles that the driver offers, such as max-q; empty where it has none.

        They are presets of clocks, limits and links for NVIDIA's Blackwell and newer.
        """
        if self._nvml is None:
            return ()
        info = self._nvml.c_nvmlWorkloadPowerProfileProfilesInfo_v1_t()
        with suppress(self._nvml.NVMLError):  # of another GPU, or by an older driver
            self._nvml.nvmlDeviceWorkloadPowerProfileGetProfilesInfo(self._gpus[index].handle, byref(info))
            return self._profiles_in(info.perfProfilesMask)
        return ()

    def requested_profiles(self, index: int) -> tuple[str, ...]:
        """Names of the profiles that any process requests now."""
        found, handle = self._nvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t(), self._gpus[index].handle
        _answer(lambda: self._nvml.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(handle, byref(found)), index)
        return self._profiles_in(found.requestedProfilesMask)

    def check_profiles(self, index: int, names: Iterable[str]) -> None:
        """PlanError where the driver does not offer one of these profiles."""
        offered = self.offered_profiles(index)
        has = f"it has {', '.join(offered)}" if offered else _NO_PROFILES
        for name in names:
            if name not in offered:
                raise PlanError(
                    f"{self.name(index)} has no power profile {name!r}{nearest_hint(name, offered)}; {has}."
                )

    def request_profiles(self, index: int, names: Iterable[str]) -> None:
        """Request these profiles and no others; PlanError where one is not offered."""
        wanted = tuple(names)
        self.check_profiles(index, wanted)
        before = self.requested_profiles(index)
        clear, take = ([n for n in some if n not in others] for some, others in ((before, wanted), (wanted, before)))
        for how, what, changed in (("Clear", "to clear", clear), ("Set", "to take", take)):
            if not changed:
                continue
            request = self._nvml.c_nvmlWorkloadPowerProfileRequestedProfiles_v1_t()
            for number, name in self._profiles_by_number().items():
                if name in changed:
                    request.requestedProfilesMask.mask[number // _MASK_BITS] |= 1 << number % _MASK_BITS
            call = getattr(self._nvml, f"nvmlDeviceWorkloadPowerProfile{how}RequestedProfiles")
            words = f"{what} the power profile {'+'.join(changed)}"
            try:
                _answer(partial(call, self._gpus[index].handle, byref(request)), index, words)
            except DevicePermissionError as error:  # its sentence names Zeus' daemon, which sets no profiles
                raise DevicePermissionError(
                    f"{self.name(index)} refuses a power profile: setting one needs root."
                ) from error

    def _profiles_in(self, mask: Any) -> tuple[str, ...]:
        names = self._profiles_by_number()
        return tuple(names[i] for i in names if mask.mask[i // _MASK_BITS] >> i % _MASK_BITS & 1)

    def _profiles_by_number(self) -> dict[int, str]:
        """Names of all profiles by NVML's number; those that this pynvml has no name for are profile-N."""
        nvml = self._nvml
        known = {
            getattr(nvml, name): name.removeprefix(_PROFILE_PREFIX).lower().replace("_", "-")
            for name in dir(nvml)
            if name.startswith(_PROFILE_PREFIX)
            and not name.startswith(f"{_PROFILE_PREFIX}OPERATION")
            and name != f"{_PROFILE_PREFIX}MAX"
        }
        numbers = range(nvml.NVML_WORKLOAD_POWER_MAX_PROFILES)
        return {number: known.get(number, f"profile-{number}") for number in numbers}

    def throttled_by(self, index: int) -> tuple[str, ...]:
        """What holds the clock below the one that was set, of heat and power; empty where the driver names neither."""
        nvml = self._nvml
        if nvml is None:
            return ()
        mask = _number(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._gpus[index].handle), index)
        return tuple(name for name, bits in _THROTTLED.items() if math.isfinite(mask) and int(mask) & bits)

    def memory(self, index: int) -> tuple[int, int, dict[int, int]]:
        """Bytes of the GPU's memory: used by anybody, in all, and held by each process, by its pid.

        A process has 0 where the driver does not say; DeviceError where it says nothing at all.
        """
        nvml = self._nvml
        if nvml is None:
            raise DeviceError(f"{self.name(index)} does not report what its memory is used for.")
        handle = self._gpus[index].handle
        found = _answer(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle), index)
        memory = _answer(lambda: nvml.nvmlDeviceGetMemoryInfo(handle), index)
        return int(memory.used), int(memory.total), {int(one.pid): int(one.usedGpuMemory or 0) for one in found}

    def sample(self, index: int) -> tuple[float, ...]:
        """Energy counter in J, power in W, temperature in °C, utilisation 0 to 1, SM clock in MHz; NaN = unknown."""
        gpu, nvml = self._gpus[index], self._nvml
        queries: list[tuple[Callable[[], Any], float]] = [
            (gpu.get_total_energy_consumption, 1e-3), (self._power[index], 1e-3), (gpu.get_gpu_temperature, 1.0),
        ]  # fmt: skip
        if nvml is not None:
            queries.append((lambda: nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu, 1e-2))
            queries.append((lambda: nvml.nvmlDeviceGetClockInfo(gpu.handle, nvml.NVML_CLOCK_SM), 1.0))
        values = [_number(query, index) * scale for query, scale in queries]
        return tuple(values + [math.nan] * (len(QUANTITIES) - len(values)))


class Meter:
    """Samples GPUs (local ranks, by default all) in a thread from `start` to `stop`.

    Nothing here raises, since a run without a meter still counts for its time: a reading has the reason instead.
    """

    def __init__(self, indices: Sequence[int] | None = None, period_s: float = _PERIOD_S, clock: Any = CLOCK) -> None:
        self._indices, self._period_s, self._clock = indices, period_s, clock
        self.on_sample: Callable[[], None] | None = None  # called every `_CALL_EVERY` samples
        self._reason = ""
        self._times: list[float] = []
        self._samples: list[list[tuple[float, ...]]] = []
        self._ids: tuple[str, ...] = ()
        self._activity: SmActivity | None = None
        self._over, self._sampling = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to sample."""
        try:
            gpus = Gpus()
            wanted = range(len(gpus)) if self._indices is None else self._indices
            if len(wanted) > len(gpus):
                raise DeviceError(f"{len(wanted)} GPUs are used and the meter sees {len(gpus)}.")
            self._ids = tuple(gpus.ids[i] for i in wanted)
            for i in wanted:
                gpus.check_whole(i)
        except DeviceError as error:
            self._reason = str(error).rstrip(".")
            return
        self._activity = SmActivity([gpus.number(index) for index in wanted])
        self._thread = threading.Thread(target=self._watch, args=(gpus, list(wanted)), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample and end the thread."""
        self._over.set()
        if self._activity is not None:
            self._activity.stop()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)
            if self._thread.is_alive():
                self._reason = self._reason or "the driver does not answer any more"

    def now(self) -> float:
        """The time, seconds since 1970, at a moment when no sample is being taken.

        It is for windows whose edge is a change of clocks, so that no sample spans the edge.
        """
        waited = self._sampling.acquire(timeout=_PATIENCE_S)
        try:
            return float(self._clock.time())
        finally:
            if waited:
                self._sampling.release()

    def series(self) -> Series:
        """Everything sampled so far."""
        count = min(len(self._times), len(self._samples))
        if not count:
            return no_series(self._reason or "the meter took no sample")
        values = np.array(self._samples[:count], float)  # (n, gpus, quantities)
        columns = {name: values[:, :, i] for i, name in enumerate(QUANTITIES)}
        at = np.array(self._times[:count])
        if self._activity is not None:
            columns["utilisation"] = self._activity.replaced_in(columns["utilisation"], at)
        return Series(self._ids, at, **columns, reason=self._reason)

    def reading(self, start_s: float | None = None, end_s: float | None = None) -> Reading:
        """The reading of the window between two times (seconds since 1970), by default of all that was sampled."""
        return self.series().between(start_s, end_s)

    def latest(self, seconds: float) -> dict[str, Floats]:
        """Means (gpus,) over the last seconds, by the names of `QUANTITIES`; empty before the first sample."""
        count = min(len(self._times), len(self._samples))
        since = self._times[count - 1] - seconds if count else 0.0
        rows = [self._samples[i] for i in range(count - 1, -1, -1) if self._times[i] >= since or i == count - 1]
        return dict(zip(QUANTITIES, np.mean(rows, axis=0).T, strict=True)) if rows else {}

    def _watch(self, gpus: Gpus, wanted: list[int]) -> None:
        try:
            self._sample(gpus, wanted)
            while not self._clock.wait(self._over, self._period_s):
                self._sample(gpus, wanted)
                if self.on_sample is not None and len(self._times) % _CALL_EVERY == 0:
                    self.on_sample()
            self._sample(gpus, wanted)
        except DeviceError as error:
            self._reason = str(error).rstrip(".")

    def _sample(self, gpus: Gpus, wanted: list[int]) -> None:
        with self._sampling:
            before = self._clock.time()
            self._samples.append([gpus.sample(index) for index in wanted])
            self._times.append((before + self._clock.time()) / 2)
        if len(self._times) > _MOST_SAMPLES:
            self._times, self._samples = self._times[::2], self._samples[::2]
            self._period_s *= 2


@contextmanager
def running_meter(indices: Sequence[int] | None = None, clock: Any = CLOCK) -> Iterator[Meter]:
    """A meter that samples GPUs while the body runs, for `Meter.reading` during and after it."""
    meter = Meter(indices, clock=clock)
    meter.start()
    try:
        yield meter
    finally:
        meter.stop()


def _open(visible: bool) -> tuple[Any, Any]:
    """zeus' GPUs, and pynvml where they are NVIDIA's, else None.

    Not by zeus' `get_gpus`, which remembers its first answer whatever the environment says later, and without the
    destructor of its class, which shuts NVML down: the garbage collector may call it within another call of pynvml,
    whose lock a thread takes only once, a deadlock.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pynvml
            from zeus.device.gpu.amd import AMDGPUs, amdsmi_is_available
            from zeus.device.gpu.nvidia import NVIDIAGPUs
    except ImportError as error:
        raise DeviceError("Zeus is not installed: pip install 'jointopt[meter]'.") from error
    logging.getLogger("zeus").addHandler(logging.NullHandler())  # what it warns of on old drivers is no news
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if not amdsmi_is_available():
            raise DeviceError(f"No GPU is found: NVIDIA's driver says {str(error)!r}.") from error
        made, nvml = AMDGPUs, None
    else:
        made, nvml = NVIDIAGPUs, pynvml

    class Open(made):  # type: ignore[misc, valid-type]
        def __del__(self) -> None:
            pass

    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    hidden = {} if visible else {name: os.environ.pop(name) for name in _VISIBLE if name in os.environ}
    try:
        gpus = Open()
    except ValueError as error:
        raise DeviceError(f"CUDA_VISIBLE_DEVICES must list numbers of GPUs for the meter; it is {shown!r}.") from error
    except _zeus_errors() as error:
        raise DeviceError(f"The GPUs cannot be opened: {_sentence(error)}.") from error
    finally:
        os.environ.update(hidden)
    if not len(gpus):
        raise DeviceError("No GPU is found.")
    return gpus, nvml


def _zeus_errors() -> tuple[type[Exception], ...]:
    import pynvml
    from zeus.exception import ZeusBaseError

    return (ZeusBaseError, pynvml.NVMLError)


def _answer(query: Callable[[], Any], index: int, what: str = "") -> Any:
    """The answer of GPU ``index`` to ``query``; errors become DeviceError in one sentence, about ``what`` was asked."""
    import pynvml
    from zeus.device.gpu.common import ZeusGPUNoPermissionError

    try:
        return query()
    except (ZeusGPUNoPermissionError, pynvml.NVMLError_NoPermission) as error:
        raise DevicePermissionError(f"GPU {index} refuses {what}: {PERMISSION}.") from error
    except _zeus_errors() as error:
        how = f"refuses {what}" if what else "does not answer"
        raise DeviceError(f"GPU {index} {how}: {_sentence(error)}.") from error


def _number(query: Callable[[], Any], index: int) -> float:
    """The answer as a number, NaN where the GPU has no such thing; DeviceError where it is gone."""
    import pynvml
    from zeus.device.gpu import common as zeus

    unknown = (
        zeus.ZeusGPUNotSupportedError, zeus.ZeusGPUFunctionNotFoundError, zeus.ZeusGPUInvalidArgError,
        pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound,
    )  # fmt: skip
    try:
        return float(query())
    except unknown:
        return math.nan
    except _zeus_errors() as error:
        raise DeviceError(f"GPU {index} stopped answering: {_sentence(error)}.") from error


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


class SmActivity:
    """Reads SM activity, the share of time that streaming multiprocessors had work, from NVIDIA's DCGM until `stop`.

    ``gpus`` are numbers of GPUs as NVML and DCGM count them. Where ``dcgmi`` is missing or fails, nothing is read.
    """

    def __init__(self, gpus: Sequence[int]) -> None:
        self._gpus = list(gpus)
        self._seen: dict[int, list[tuple[float, float]]] = {gpu: [] for gpu in self._gpus}
        self._program: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        dcgmi = shutil.which("dcgmi")
        if dcgmi is None:
            return
        command = [dcgmi, "dmon", "-e", "1002", "-d", str(_DCGM_PERIOD_MS), "-i", ",".join(map(str, self._gpus))]
        with suppress(OSError), delay_signals():
            self._program = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                errors="replace", start_new_session=True, preexec_fn=end_with_parent,
            )  # fmt: skip
            self._thread.start()

    def stop(self) -> None:
        """End ``dcgmi``."""
        if self._program is None:
            return
        self._program.terminate()
        try:
            self._program.wait(_DCGM_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._program.kill()
            self._program.wait()
        self._thread.join(_DCGM_PATIENCE_S)

    def replaced_in(self, utilisation: Floats, time_s: Floats) -> Floats:
        """``utilisation`` (n, gpus) with columns of GPUs that DCGM knows replaced by SM activity at ``time_s``."""
        out = utilisation.copy()
        for column, gpu in enumerate(self._gpus):
            if seen := list(self._seen[gpu]):
                at, share = np.array(seen).T
                out[:, column] = np.interp(time_s, at, share)
        return out

    def _read(self) -> None:
        for line in (self._program and self._program.stdout) or ():
            found = _DCGM_ROW.match(line)
            if found and int(found[1]) in self._seen:
                with suppress(ValueError):
                    self._seen[int(found[1])].append((time.time(), float(found[2])))


def profile_names(text: str) -> tuple[str, ...]:
    """Names of profiles that are requested together, from text such as ``max-q+llm-training``."""
    return tuple(dict.fromkeys(name.strip().lower().replace("_", "-") for name in text.split("+") if name.strip()))
