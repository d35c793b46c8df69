"""A program that trains as far as a guardian can see: it holds memory of the stand-in GPUs, forks, and may be deaf.

``python train.py RESULT GPUS``: out of memory where other living processes hold more than half of a GPU.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

HELD = 60 * 2**30
GPUS = Path(os.environ["STAND_IN_NVML"])


def others_hold(gpu: int) -> int:
    """Bytes that living processes but this one hold; this one then holds its own."""
    with (GPUS / f"holds-{gpu}").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        held = [(int(pid), int(size)) for pid, size in (line.split() for line in file if line.strip())]
        living = [(pid, size) for pid, size in held if Path(f"/proc/{pid}").exists()]
        file.truncate(0)
        file.writelines(f"{pid} {size}\n" for pid, size in [*living, (os.getpid(), HELD)])
    return sum(size for _, size in living)


def main() -> None:
    """Hold memory for a while, then write a result."""
    result, gpus = Path(sys.argv[1]), int(sys.argv[2])
    if random.random() < 0.3:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if any(others_hold(gpu) for gpu in range(gpus)):
        sys.exit("torch.OutOfMemoryError: CUDA out of memory.")
    shape = random.choice(("alone", "child", "daemon"))
    if shape != "alone" and os.fork() == 0:
        if shape == "daemon":
            os.setsid()
            if os.fork():
                os._exit(0)
        time.sleep(600)
    time.sleep(random.uniform(0.1, 0.8))
    result.write_text(json.dumps({"iteration_time_s": random.uniform(0.5, 1.5)}))


if __name__ == "__main__":
    main()
