"""Wall seconds and peak memory of the whole command `jointopt propose`, by number of GPUs.

python tests/bench/bench_propose.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

LLAMA_8B = ("--model", "llama-3-8b", "--seq-length", "8192", "--gpu", "h100-sxm5-80gb")
LLAMA_405B = ("--model", "llama-3-405b", "--seq-length", "8192", "--gpu", "h100-sxm5-80gb")
RUNS = (
    (8, ("llama-3-8b-1x8-h100",)),
    (8, ("opt-350m-2x4-a100",)),
    (1024, ("gpt3-175b-128x8-a100",)),
    (1024, (*LLAMA_8B, "--gpus", "1024", "--global-batch-size", "2048")),
    (16384, ("llama-3-405b-2048x8-h100",)),
    (16384, (*LLAMA_8B, "--gpus", "16384", "--global-batch-size", "16384")),
    (100352, (*LLAMA_405B, "--gpus", "100352", "--global-batch-size", "12544")),
)


def run(arguments: tuple[str, ...], folder: str) -> tuple[float, float]:
    """(wall s, peak resident MiB) of one command."""
    start = time.perf_counter()
    command = [
        sys.executable,
        "-c",
        "from jointopt.cli.main import main; main()",
        "propose",
        *arguments,
        "--json",
    ]
    child = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} ended with status {status}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def main() -> None:
    for gpus, arguments in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            seconds, memory_mib = run(arguments, folder)
        print(
            f"{gpus:>7,} GPUs {seconds:6.2f} s {memory_mib:6,.0f} MiB  propose {' '.join(arguments)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
