"""Started by torchrun in tests: trains under several plans in turn and writes the losses of each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from jointopt.measure.trainer.run import train
from jointopt.measure.trainer.spec import TrainSpec

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    specs = [TrainSpec(**values) for values in json.loads(Path(sys.argv[1]).read_text())]
    found = [train(spec, torch.device("cpu")) for spec in specs]
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps([one["loss"] for one in found]))
    dist.barrier()
    dist.destroy_process_group()
