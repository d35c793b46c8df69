"""Stands in for Megatron-LM's script: reads its flags and prints logs in its format, as MEGATRON_FAKE states."""

from __future__ import annotations

import argparse
import os
import sys
import time

LINE = (
    " [2026-02-06 20:55:02.918469] iteration {n:8d}/{total:8d} | consumed samples: {samples:12d} | "
    "elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 478.0 | "
    "energy per GPU (J/iter/GPU): {joules:.1f} | power per GPU (W/GPU): {watts:.1f} | learning rate: 9.568256E-08 | "
    "global batch size: {batch:5d} | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 1.797 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |"
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("train-iters", "global-batch-size", "micro-batch-size", "tensor-model-parallel-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given, _ = parser.parse_known_args()
    rank, how = int(os.environ["RANK"]), os.environ.get("MEGATRON_FAKE", "")
    for n in range(1, given.train_iters + 1):
        if how == "oom" and n == 3 and rank == 1:
            sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 1 has 79.11 GiB.")
        if (how, n) in (("hang", 2), ("hang later", 5)):
            time.sleep(600)
        if rank == int(os.environ["WORLD_SIZE"]) - 1:
            ms = 9000.0 if n == 1 else 800.0 + 4.0 * given.tensor_model_parallel_size + (n % 2)
            line = LINE.format(
                n=n, total=given.train_iters, samples=n * given.global_batch_size, ms=ms, joules=ms * 0.6, watts=600.0,
                batch=given.global_batch_size, loss=10.0 / n,
            )  # fmt: skip
            print(line, flush=True)
        if n == 2:
            memory = "memory (MB) | allocated: 20480.0 | max allocated: 30720.0 | reserved: 40960.0 | max reserved: "
            print(f"[Rank {rank}] (after 2 iterations) {memory}{40960.0 + 1024 * rank}", flush=True)
