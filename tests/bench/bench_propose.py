"""Wall and CPU seconds and peak memory of the whole command `jointopt propose`, by number of GPUs.

    python tests/bench/bench_propose.py [PLOT.png]

Llama-3-405B from 512 GPUs on, the largest model of the catalogue's Llama-3 that fits below; the least of three runs.
With a file name the growth is drawn (needs matplotlib).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

RUNS = (
    (8, "llama-3-8b", 64),
    (64, "llama-3-70b", 256),
    (512, "llama-3-405b", 512),
    (4096, "llama-3-405b", 2048),
    (32768, "llama-3-405b", 8192),
    (100352, "llama-3-405b", 12544),
)
REPEATS = 3
COMMAND = (sys.executable, "-c", "from jointopt.cli.main import main; main()", "propose", "--json")


def run(gpus: int, model: str, batch: int, folder: str) -> tuple[float, float, float]:
    """(wall s, CPU s, peak resident MiB) of one command."""
    options = {"model": model, "gpu": "h100-sxm5-80gb", "gpus": gpus, "global-batch-size": batch, "seq-length": 8192}
    arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    start = time.perf_counter()
    child = subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"{gpus} GPUs: ended with status {status}: {child.stderr.read() if child.stderr else ''}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def draw(path: str, gpus: list[int], figures: list[tuple[float, float, float]]) -> None:
    from matplotlib import pyplot

    figure, seconds = pyplot.subplots(figsize=(5.2, 3.2), layout="constrained")
    memory = seconds.twinx()
    seconds.plot(gpus, [one[1] for one in figures], "o-", color="tab:blue", label="CPU seconds")
    memory.plot(gpus, [one[2] for one in figures], "s--", color="tab:orange", label="memory")
    seconds.set(xscale="log", xlabel="GPUs", ylabel="CPU seconds", ylim=(0, None), title="jointopt propose")
    memory.set(ylabel="peak memory (MiB)", ylim=(0, None))
    figure.legend(loc="lower right", bbox_to_anchor=(0.85, 0.2))
    figure.savefig(path, dpi=90)


def main(plot: str | None) -> None:
    figures = []
    for gpus, model, batch in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            runs = [run(gpus, model, batch, folder) for _ in range(REPEATS)]
        wall_s, cpu_s, memory_mib = (min(values) for values in zip(*runs, strict=True))
        figures.append((wall_s, cpu_s, memory_mib))
        print(f"{gpus:>7,} GPUs {model:13} {wall_s:6.2f} s wall {cpu_s:6.2f} s CPU {memory_mib:6,.0f} MiB", flush=True)
    if plot:
        draw(plot, [gpus for gpus, *_ in RUNS], figures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plot", nargs="?", help="PNG to draw the growth into")
    main(parser.parse_args().plot)
