"""NVIDIA's workload power profiles: presets of clocks, limits and links that the driver of Blackwell and newer offers.

A profile is for a kind of work (llm-training, memory-bound, network) or a goal (max-p: performance; max-q: efficiency),
and several may be requested at a time; the driver settles conflicts by their priorities. NVML API Reference Guide,
"Power Profile Information".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from ctypes import byref
from typing import Any

from jointopt.core.errors import DevicePermissionError, PlanError, nearest

_PREFIX = "NVML_POWER_PROFILE_"
_BITS = 32  # of a word of a mask
_NEEDS = "they begin with Blackwell and driver 570"


class PowerProfiles:
    """The profiles of one GPU, by names such as max-q. ``answer`` turns refusals of the driver into DeviceError."""

    def __init__(self, nvml: Any, handle: Any, name: str, answer: Callable[[Callable[[], Any], str], Any]) -> None:
        self._nvml, self._handle, self._name, self._answer = nvml, handle, name, answer

    def offered(self) -> tuple[str, ...]:
        """Names of the profiles that the driver offers; empty where it has none, or the GPU is no NVIDIA's."""
        if self._nvml is None:
            return ()
        info = self._nvml.c_nvmlWorkloadPowerProfileProfilesInfo_v1_t()
        with suppress(self._nvml.NVMLError):  # of another GPU, or by an older driver
            self._nvml.nvmlDeviceWorkloadPowerProfileGetProfilesInfo(self._handle, byref(info))
            return self._names(info.perfProfilesMask)
        return ()

    def requested(self) -> tuple[str, ...]:
        """Names of the profiles that any process requests now."""
        found = self._nvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
        self._answer(
            lambda: self._nvml.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(self._handle, byref(found)), ""
        )
        return self._names(found.requestedProfilesMask)

    def check(self, names: Iterable[str]) -> None:
        """PlanError where the driver does not offer one of these profiles."""
        offered = self.offered()
        for name in names:
            if name not in offered:
                raise PlanError(
                    f"{self._name} has no power profile {name!r}{nearest(name, offered)}; {_it_has(offered)}."
                )

    def request(self, names: Iterable[str]) -> None:
        """Request these profiles and no others; PlanError where one is not offered."""
        wanted = tuple(names)
        self.check(wanted)
        before = self.requested()
        self._change("Clear", "to clear", [name for name in before if name not in wanted])
        self._change("Set", "to take", [name for name in wanted if name not in before])

    def _change(self, how: str, what: str, names: list[str]) -> None:
        if not names:
            return
        request = self._nvml.c_nvmlWorkloadPowerProfileRequestedProfiles_v1_t()
        for number, name in _numbered(self._nvml).items():
            if name in names:
                request.requestedProfilesMask.mask[number // _BITS] |= 1 << number % _BITS
        call = getattr(self._nvml, f"nvmlDeviceWorkloadPowerProfile{how}RequestedProfiles")
        try:
            self._answer(lambda: call(self._handle, byref(request)), f"{what} the power profile {'+'.join(names)}")
        except DevicePermissionError as error:  # its sentence names Zeus' daemon, which sets no profiles
            raise DevicePermissionError(f"{self._name} refuses a power profile: setting one needs root.") from error

    def _names(self, mask: Any) -> tuple[str, ...]:
        names = _numbered(self._nvml)
        return tuple(names[i] for i in names if mask.mask[i // _BITS] >> i % _BITS & 1)


def profile_names(text: str) -> tuple[str, ...]:
    """Names of profiles that are requested together, from text such as ``max-q+llm-training``."""
    return tuple(dict.fromkeys(name.strip().lower().replace("_", "-") for name in text.split("+") if name.strip()))


def _numbered(nvml: Any) -> dict[int, str]:
    """Names of all profiles by NVML's number; those that this pynvml has no name for are profile-N."""
    known = {
        getattr(nvml, name): name.removeprefix(_PREFIX).lower().replace("_", "-")
        for name in dir(nvml)
        if name.startswith(_PREFIX) and not name.startswith(f"{_PREFIX}OPERATION") and name != f"{_PREFIX}MAX"
    }
    return {number: known.get(number, f"profile-{number}") for number in range(nvml.NVML_WORKLOAD_POWER_MAX_PROFILES)}


def _it_has(offered: tuple[str, ...]) -> str:
    return f"it has {', '.join(offered)}" if offered else f"its driver offers none ({_NEEDS})"
