"""Traces of GPUs at a steady power, by the format strings of dcgmi, dcgm-exporter and nvidia-smi."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

UNITS = {"TMPTR": ("C", 13), "POWER": ("W", 18), "TOTEC": ("mJ", 24), "GPUTL": ("", 18)}  # and widths of columns
METRICS = {
    "POWER_USAGE": "Power draw (in W).", "GPU_TEMP": "GPU temperature (in C).",
    "TOTAL_ENERGY_CONSUMPTION": "Total energy consumption since boot (in mJ).",
    "SM_CLOCK": "SM clock frequency (in MHz).",
}  # fmt: skip
Watts = Callable[[float, int], float]  # of a GPU at so many seconds after the start


def steady(after_s: float, gpu: int) -> float:
    """400 W, 401 W, ... with a ripple of 0.1 W, as sensors have."""
    return 400.0 + gpu + 0.1 * (int(after_s) % 2)


def dmon(
    start_s: float, seconds: int, gpus: int = 2, watts: Watts = steady, prefix: str = "{:.3f} ", **cells: str
) -> str:
    """``dcgmi dmon -e 150,155,156,203 -d 1000 | ts %.s``, by dcgmi/DeviceMonitor.cpp of DCGM 3 and 4: every 15 samples
    the header again, cells to the left of a column, ``N/A`` for a blank field."""
    head = "".join(f"{name:<{width}}" for name, (_, width) in UNITS.items())
    units = "".join(f"{unit:<{width}}" for unit, width in UNITS.values())
    lines: list[str] = []
    for after in range(seconds + 1):
        before = prefix.format(start_s + after)
        lines += [f"{before}{'#Entity':<10}{head}", f"{before}{'ID':<10}{units}"] if after % 15 == 0 else []
        for gpu in range(gpus):
            power = watts(after, gpu)
            values = {"TMPTR": "61", "POWER": f"{power:.3f}", "TOTEC": str(7_000_000 + round(1e3 * power * after)),
                      "GPUTL": "100"} | cells  # fmt: skip
            lines.append(before + f"{f'GPU {gpu}':<10}" + "".join(f"{values[n]:<{w}}" for n, (_, w) in UNITS.items()))
    return "\n".join(lines) + "\n"


def smi(start_s: float, seconds: int, gpus: int = 2, watts: Watts = steady, every_s: float = 1.0) -> str:
    """``nvidia-smi --query-gpu=timestamp,index,power.draw,clocks.sm,temperature.gpu,memory.used --format=csv -l 1``."""
    lines = ["timestamp, index, power.draw [W], clocks.current.sm [MHz], temperature.gpu, memory.used [MiB]"]
    for tick in range(int(seconds / every_s) + 1):
        moment = datetime.fromtimestamp(start_s + tick * every_s)
        for gpu in range(gpus):
            lines.append(f"{moment:%Y/%m/%d %H:%M:%S}.{moment.microsecond // 1000:03d}, {gpu}, "
                         f"{watts(tick * every_s, gpu):.2f} W, 1980 MHz, 62, 61234 MiB")  # fmt: skip
    return "\n".join(lines) + "\n"


def exporter(start_s: float, seconds: int, gpus: int = 2, collect_s: int = 1, federated: bool = False) -> str:
    """dcgm-exporter's metrics (etc/default-counters.csv), scraped every second after ``date +%s.%N``, or federated."""
    lines: list[str] = []
    for after in range(seconds + 1):
        known = after - after % collect_s  # it answers with what it collected last
        lines += [] if federated else [f"{start_s + after:.9f}"]
        for name, help_text in METRICS.items():
            lines += [f"# HELP DCGM_FI_DEV_{name} {help_text}", f"# TYPE DCGM_FI_DEV_{name} gauge"]
            for gpu in range(gpus):
                power = steady(known, gpu)
                value = {"POWER_USAGE": f"{power:.6f}", "GPU_TEMP": "63", "SM_CLOCK": "9223372036854775794",
                         "TOTAL_ENERGY_CONSUMPTION": str(7_000_000 + round(1e3 * power * known))}[name]  # fmt: skip
                labels = f'gpu="{gpu}",UUID="GPU-604ac7{gpu}",device="nvidia{gpu}",Hostname="node1"'
                at = f" {round(1e3 * (start_s + after))}" if federated else ""
                lines.append(f"DCGM_FI_DEV_{name}{{{labels}}} {value}{at}")
    return "\n".join(lines) + "\n"
