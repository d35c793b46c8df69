"""Conditions of a run that its log states: the framework's version, and the network that NCCL chose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from jointopt.measure.exports.options import NEWEST, option_table, version_key

_NUMBER = r"(\d+(?:\.\d+)+[\w.+-]*)"
# lines by which programs introduce themselves
_VERSIONS = {
    "torchtitan": (rf"torchtitan version: {_NUMBER}",),
    "deepspeed": (rf"DeepSpeed info: version={_NUMBER}", rf"deepspeed info \.+ {_NUMBER}"),
    "megatron-lm": (rf"megatron[-_.]core(?: version)?[ =:]+v?{_NUMBER}",),
    "nemo": (rf"nemo_version: ['\"]?{_NUMBER}", rf"megatron[-_.]bridge(?: version)?[ =:]+v?{_NUMBER}"),
    "nanotron": (rf"nanotron(?: version)?[ =:]+v?{_NUMBER}",),
}
_VERSIONS |= {"megatron": _VERSIONS["megatron-lm"], "megatron-bridge": _VERSIONS["nemo"]}  # as launchers name them
_MOST = 0.7  # of options that every version has, in a list of all: some bear another name there
_NONE = "0.0.0"  # by which torchtitan says that it does not know
_NETWORK = re.compile(r"NCCL INFO Using network (\w+)")
_PORTS = re.compile(r"NCCL INFO NET/IB : Using (\[0\][^;\n]*)")
_PORT = re.compile(r"\[\d+\]([\w.-]+:\d+)/(IB|RoCE)")
_SOCKET = re.compile(r"NCCL INFO NET/Socket : Using \[0\](\w+):")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (\w+)")
_WITHIN = (
    ("NVLink SHARP", re.compile(r"NCCL INFO.*(?:NVLS multicast support is available|\b[1-9]\d* nvls channels)")),
    ("peer to peer", re.compile(r"NCCL INFO (?:Channel|Ring).* via P2P/")),
    ("shared memory", re.compile(r"NCCL INFO (?:Channel|Ring).* via SHM\b")),
)


def version_of(log: str, framework: str) -> str:
    """The version that a log states; of Megatron's list of arguments the bounds (``>=0.16``); blank without either."""
    for pattern in _VERSIONS.get(framework, ()):
        found = re.search(pattern, log, re.IGNORECASE)
        if found and found[1] != _NONE:
            return found[1]
    return ""


def version_by_options(names: Iterable[str]) -> str:
    """The bounds of Megatron Core's version from the names of all its options (with underscores): ``>=0.13 <0.15``."""
    given = {name.replace("_", "-") for name in names}
    # an option of no release yet bounds none
    table = {name: option for name, option in option_table("megatron").items() if option.since != NEWEST}
    has = {name: bool({name, *option.also} & given) for name, option in table.items()}
    old = [has[name] for name, option in table.items() if not (option.since or option.until)]
    whole = sum(old) > _MOST * len(old)  # else the list is cut off, and what it lacks says nothing
    low, high = "", ""
    for name, option in table.items():
        if option.since and has[name]:
            low = max(low, option.since, key=lambda text: version_key(text or "0"))
        ends = option.until if has[name] else option.since if whole and not option.until else ""
        high = min(high or NEWEST, ends, key=version_key) if ends else high
    if high and version_key(high) <= version_key(low or "0"):  # an option of a fork
        high = ""
    return " ".join([*([f">={low}"] if low else []), *([f"<{high}"] if high else [])])


def fabric_of(log: str) -> str:
    """The networks between nodes and within one, from NCCL's lines (``NCCL_DEBUG=INFO``); blank without any."""
    within = next((f"{words} within a node" for words, pattern in _WITHIN if pattern.search(log)), "")
    return ", ".join(filter(None, (_between_nodes(log), within)))


def _between_nodes(log: str) -> str:
    """``InfiniBand (8 ports)``, ``RoCE (2 ports)``, ``Ethernet``, ``IP over InfiniBand``, ``EFA``, or NCCL's name."""
    chosen, listed, provider = _NETWORK.findall(log), _PORTS.search(log), _PROVIDER.search(log)
    name = chosen[-1] if chosen else ""
    if provider and name not in ("Socket", "IB"):
        return provider[1].upper()
    if name.startswith("IB") or (listed and not name):
        ports = _PORT.findall(listed[1]) if listed else []
        kind = "RoCE" if ports and all(kind == "RoCE" for _, kind in ports) else "InfiniBand"
        return f"{kind} ({len(ports)} ports)" if ports else kind
    if socket := _SOCKET.search(log):
        return "IP over InfiniBand" if socket[1].startswith("ib") else "Ethernet"
    return {"Socket": "Ethernet"}.get(name, name)


def flags_text(flags: Mapping[str, object]) -> str:
    """Options as one cell: ``manual_gc overlap_grad_reduce fp8_recipe=tensorwise``, in the order of their names."""
    return " ".join(
        name if flags[name] in (True, "True", "true") else f"{name}={_word(flags[name])}" for name in sorted(flags)
    )


def _word(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return re.sub(r"\s+", "", text)
