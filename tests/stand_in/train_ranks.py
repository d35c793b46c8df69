"""A training of four ranks that writes what each took to ``ranks.csv``; rank 3 is slow where ``slow-3`` stands.

``python train_ranks.py FOLDER GPUS ITERATIONS``: GPUs is the folder of the stand-in driver, of which GPU 3 slows down
after 40 iterations, by a clock 12 % below the others' and NVML's reason for it.
"""

import random
import sys
import time
from pathlib import Path

folder, gpus, iterations = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
chance = random.Random(7)
with (folder / "ranks.csv").open("w") as log:
    log.write("iteration,rank,time_s,iteration_time_s\n")
    for i in range(iterations):
        if i == 40:
            (gpus / "slow-3").write_text("1742 64")
        times = [chance.gauss(1.0, 0.003) * (1.136 if rank == 3 and i >= 40 else 1.0) for rank in range(4)]
        log.writelines(f"{i},{rank},{s:.5f},{max(times):.5f}\n" for rank, s in enumerate(times))
        log.flush()
        time.sleep(0.03)
