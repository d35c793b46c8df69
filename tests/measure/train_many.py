"""Started by tests: trains under several plans in turn, in groups of processes, and writes the losses of each plan.

PyTorch is imported once, and the processes of every group are forked from there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.pipelining.schedules  # the trainer's own import comes after the fork
import torch.multiprocessing as mp

from jointopt.measure.trainer.run import train
from jointopt.measure.trainer.spec import TrainSpec


def rank_of_group(rank: int, processes: int, specs: list[dict[str, Any]], answer: Path) -> None:
    """One process of a group; its first writes the losses to ``answer``."""
    torch.set_num_threads(1)
    meeting = f"file://{answer.with_suffix('.meeting')}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
    found = [train(TrainSpec(**spec), torch.device("cpu")) for spec in specs]
    if rank == 0:
        answer.write_text(json.dumps([one["loss"] for one in found]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for processes, specs in json.loads((folder / "specs.json").read_text()).items():
        count = int(processes)
        mp.start_processes(
            rank_of_group, (count, specs, folder / f"losses-{count}.json"), nprocs=count, start_method="fork"
        )
