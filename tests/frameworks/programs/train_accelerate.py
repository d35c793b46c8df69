"""A user's ``train.py`` for Accelerate with FSDP 2: a small model, started by the YAML and words of an export.

``accelerate launch`` hands its YAML on as environment variables: its own code makes them here. Accelerate builds meshes
for several GPUs only, and is set after its start to take the cores for some.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import datasets  # noqa: F401 - with the next three, what Accelerate looks for when it prepares a model
import deepspeed  # noqa: F401
import torch
import torch.distributed.fsdp
import torchdata.stateful_dataloader  # noqa: F401
import xgboost  # noqa: F401
from accelerate import Accelerator
from accelerate.commands import launch
from accelerate.state import DistributedType, PartialState
from accelerate.utils import launch as environment
from small_model import Block, loss_of
from torch.distributed.fsdp import FSDPModule

STEPS = 3
_divide = FSDPModule.set_gradient_divide_factor


def _by_plain_sums(self: FSDPModule, factor: float) -> None:  # gloo has no others
    _divide(self, factor)
    self.set_force_sum_reduction_for_comms(True)


FSDPModule.set_gradient_divide_factor = _by_plain_sums


def main() -> None:
    given = launch.launch_command_parser().parse_args(sys.argv[1:])
    given, *_ = launch._validate_launch_command(given)
    ours = {name: os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
    os.environ.update(environment.prepare_multi_gpu_env(given) | ours)
    words = dict(zip(given.training_script_args[::2], given.training_script_args[1::2], strict=True))
    size, length = int(words["--per_device_train_batch_size"]), int(words["--block_size"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(
        torch.nn.Embedding(256, 64), *(Block(64, 4) for _ in range(4)), torch.nn.Linear(64, 256)
    )
    model._no_split_modules = ["Block"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = torch.utils.data.DataLoader(torch.randint(0, 256, (64, length + 1)), batch_size=size)
    model, optimizer, rows = accelerator.prepare(model, optimizer, rows)
    sizes = dict(zip(accelerator.torch_device_mesh.mesh_dim_names, accelerator.torch_device_mesh.shape, strict=True))
    replicas = sizes.get("dp_replicate", 1)
    mesh = {"dp": replicas * sizes["dp_shard"], "dp_replicate": replicas, "tp": sizes.get("tp", 1)}
    kept = {True: 3, False: 2}[accelerator.state.fsdp_plugin.reshard_after_forward]
    Path("mesh.json").write_text(json.dumps(mesh | {"zero_stage": kept if isinstance(model, FSDPModule) else 0}))
    done, begun = 0, time.time()
    for row in rows:
        with accelerator.accumulate(model):
            loss = loss_of(model(row[:, :-1]), row[:, 1:])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            done += 1
            accelerator.print(f"step {done} loss {loss.item():.4f} time {time.time() - begun:.3f}", flush=True)
            begun = time.time()
        if done == STEPS:
            return
