"""``watch`` on real processes: torchrun on the cores of this machine, one rank stopped for a share of the time.

``python tests/bench/bench_watch_torchrun.py [RUNS] [SHARE]``: each run has three ranks that multiply matrices, time
their own work, then all-reduce (gloo). From the middle on one of them, drawn by chance, is stopped and continued by
signals, so that it works for 1 - SHARE of the time (.3); in every fourth run none is. Needs PyTorch. Printed: how often
the rank was named, and how often another one.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from jointopt.core.errors import UsageError
from jointopt.workflows.watch import watch

RANKS, ITERATIONS, SLICE_S = 3, 120, 0.01
TRAIN = """
import os, sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, a = dist.get_rank(), torch.randn(256, 256)
open(f"{sys.argv[1]}/pid-{rank}", "w").write(str(os.getpid()))
with open(f"{sys.argv[1]}/rank-{rank}.csv", "w", buffering=1) as log:
    log.write("iteration,rank,time_s,iteration_time_s\\n")
    for i in range(int(sys.argv[2])):
        start = time.perf_counter()
        for _ in range(60):
            a = torch.nn.functional.normalize(a @ a)
        own = time.perf_counter()
        dist.all_reduce(torch.ones(1000))
        log.write(f"{i},{rank},{own - start:.6f},{time.perf_counter() - start:.6f}\\n")
"""


def slowed(folder: Path, run: subprocess.Popen[bytes], rank: int, share: float) -> None:
    """Stop and continue the rank from the middle of the run to its end."""
    log = folder / f"rank-{rank}.csv"
    while run.poll() is None and (not log.exists() or log.read_text().count("\n") < ITERATIONS // 2):
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(int((folder / f"pid-{rank}").read_text()))  # never another process of the same number
        while run.poll() is None:
            for number, part in ((signal.SIGSTOP, share), (signal.SIGCONT, 1.0 - share)):
                signal.pidfd_send_signal(handle, number)
                time.sleep(part * SLICE_S)


def found(number: int, share: float) -> tuple[int | None, set[int]]:
    """The rank that was slowed (None: none was), and those that were named at the end of the run."""
    chance = random.Random(number)
    rank = None if number % 4 == 3 else chance.randrange(RANKS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAIN)
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        with subprocess.Popen(
            [*words, str(folder / "train.py"), name, str(ITERATIONS)], stderr=subprocess.DEVNULL
        ) as run:
            if rank is not None:
                slowed(folder, run, rank, share)
        try:
            slow = watch(sorted(folder.glob("rank-*.csv")), f"dp={RANKS}").slow
        except UsageError as error:
            raise SystemExit(f"The run wrote nothing ({error}); is PyTorch installed?") from error
    return rank, {one.rank for one in slow if one.rank is not None and one.until_iteration is None}


def main() -> None:
    """Print what was found in so many runs."""
    count, share = int(sys.argv[1]) if len(sys.argv) > 1 else 20, float(sys.argv[2]) if len(sys.argv) > 2 else 0.3
    named = others = slowed_runs = alarms = 0
    for number in range(count):
        rank, ranks = found(number, share)
        slowed_runs += rank is not None
        named += rank in ranks
        others += bool(ranks - {rank}) and rank is not None
        alarms += bool(ranks) and rank is None
        print(f"run {number}: slowed {rank}, named {sorted(ranks)}", flush=True)
    print(f"{slowed_runs} runs with a slow rank: named in {named}, another one too in {others}; "
          f"{count - slowed_runs} without: alarms in {alarms}")  # fmt: skip


if __name__ == "__main__":
    main()
