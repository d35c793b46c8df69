"""Trains for some iterations and measures them: time by iteration, loss, memory of the fullest rank."""

from __future__ import annotations

import json
import math
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from jointopt.core.errors import LauncherError
from jointopt.measure.hardware.host import device_remarks, wrong_device
from jointopt.measure.trainer.device import largest_of_ranks, now_s, own_device
from jointopt.measure.trainer.model import Stage, loss_of
from jointopt.measure.trainer.parallel import build_stages, device_mesh
from jointopt.measure.trainer.spec import JUDGED_ON, TrainSpec

Step = Callable[[], Tensor]  # one iteration's passes: this rank's mean loss (0 where it has none)


def train(spec: TrainSpec, device: torch.device) -> dict[str, Any]:
    """Results of one run, the same on every rank: seconds by iteration, losses, memory."""
    torch.manual_seed(spec.seed)
    mesh = device_mesh(spec, device)
    parts = build_stages(spec, mesh, device)
    inputs, targets = _batch(spec, mesh, device)
    step = (
        _pipeline_step(spec, mesh, parts, inputs, targets)
        if spec.pp > 1
        else _plain_step(spec, parts[0], inputs, targets)
    )
    parameters = [p for part in parts.values() for p in part.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=spec.learning_rate, fused=device.type == "cuda")
    if device.type == "cuda":  # making the weights is not part of the training
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    seconds: list[float] = []
    losses: list[float] = []
    warmup, left, begun_s, behind_s = spec.warmup_iterations, spec.warmup_iterations + spec.iterations, time.time(), 0.0
    while left:
        started = now_s(device)
        if len(seconds) == warmup:
            begun_s = time.time()
        optimizer.zero_grad(set_to_none=True)
        loss = step()
        optimizer.step()
        dist.all_reduce(loss)  # only ranks of the last stage have one; last, because it waits for the GPU
        losses.append(float(loss) / (spec.dp * spec.cp * spec.tp))
        seconds.append(now_s(device) - started)
        measured = seconds[warmup:]
        _print_progress(spec, measured, device)
        left -= 1
        if not left and spec.least_s:
            passed_s = largest_of_ranks([sum(measured)], device)[0]
            left = max(0, math.ceil((spec.least_s - passed_s) / passed_s * len(measured)))
        if spec.behind_s and len(measured) == JUDGED_ON and min(largest_of_ranks(measured, device)) > spec.behind_s:
            behind_s = spec.behind_s
            break
    return {
        "measured_s": [begun_s, time.time()],
        "iteration_s": largest_of_ranks(seconds, device)[warmup:],
        "behind_s": behind_s,
        "loss": losses,
        "peak_memory_gib": largest_of_ranks([_memory_gib(device)], device)[0],
    }


def _print_progress(spec: TrainSpec, seconds: list[float], device: torch.device) -> None:
    """Print the last measured iteration, and once the memory of every rank, as `TorchrunProgram` reads them.

    Memory first: a run that is behind may be ended as soon as the iteration is read. Each line is one write, as ranks
    share a file, and Python without buffers writes the end of a line by itself.
    """
    if spec.prints and len(seconds) == JUDGED_ON:
        print(f"peak {_memory_gib(device):.4f} GiB\n", end="", flush=True)
    if spec.prints and seconds and dist.get_rank() == 0:
        # all ranks wait for the loss: theirs takes as long
        print(f"iteration {seconds[-1]:.6f} s\n", end="", flush=True)


def _batch(spec: TrainSpec, mesh: DeviceMesh, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random tokens of this rank, (sequences, tokens): every layout cuts the same global batch."""
    generator = torch.Generator().manual_seed(spec.seed)
    tokens = torch.randint(spec.vocab_size, (spec.global_batch_size, spec.seq_length + 1), generator=generator)
    mine = tokens.chunk(spec.dp)[mesh["dp"].get_local_rank()]
    x, y = (t.chunk(spec.cp, 1)[mesh["cp"].get_local_rank()] for t in (mine[:, :-1], mine[:, 1:]))
    return x.to(device), y.to(device)


def _plain_step(spec: TrainSpec, stage: Stage, inputs: Tensor, targets: Tensor) -> Step:
    """Gradient accumulation over micro-batches; ZeRO-2 and 3 reduce after each, the others once.

    Weights stay gathered, and cast, until the optimizer changes them; ZeRO-3 gives them back after each use.
    """
    size = spec.micro_batch_size
    batches = list(zip(inputs.split(size), targets.split(size), strict=True))

    def step() -> Tensor:
        total = torch.zeros((), device=inputs.device)
        for i, (x, y) in enumerate(batches):
            last = i == len(batches) - 1
            stage.set_requires_gradient_sync(last or spec.zero_stage >= 2)
            stage.set_reshard_after_backward(last or spec.zero_stage == 3)
            loss = loss_of(stage(x), y) / len(batches)
            loss.backward()
            total += loss.detach()
        return total

    return step


def _pipeline_step(spec: TrainSpec, mesh: DeviceMesh, parts: dict[int, Stage], inputs: Tensor, targets: Tensor) -> Step:
    # a second of imports, which plans without a pipeline need not wait for
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

    count = spec.pp * spec.vpp
    group = mesh["pp"].get_group()
    built = [PipelineStage(part, i, count, inputs.device, group=group) for i, part in parts.items()]
    batches = spec.global_batch_size // (spec.dp * spec.micro_batch_size)
    if spec.vpp > 1:
        schedule = ScheduleInterleaved1F1B(built, batches, loss_fn=loss_of)
    else:
        # with fewer micro-batches than stages 1F1B has no steady state and is GPipe, which PyTorch wants by name
        plain = Schedule1F1B if batches >= count else ScheduleGPipe
        schedule = plain(built[0], batches, loss_fn=loss_of)
    first, last = 0 in parts, count - 1 in parts

    def step() -> Tensor:
        losses: list[Tensor] = []
        schedule.step(*([inputs] if first else []), **({"target": targets, "losses": losses} if last else {}))
        return torch.stack(losses).mean().detach() if last else torch.zeros((), device=inputs.device)

    return step


def _memory_gib(device: torch.device) -> float:
    """Reserved by the allocator on a GPU, which is what runs out; resident memory of the process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main(spec_path: str, out_path: str) -> None:
    """Run the spec in this process, one of torchrun's; rank 0 writes the results.

    LauncherError where the device here is not the GPU that the spec names.
    """
    spec = TrainSpec(**json.loads(Path(spec_path).read_text(encoding="utf-8")))
    device = own_device(spec.cores)
    cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else ""
    if spec.gpu and (wrong := wrong_device(spec.gpu, [name] if name else [])):
        raise LauncherError(wrong)
    if not cuda:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo")
    found = train(spec, device) | {"remarks": device_remarks(spec.gpu, spec.dtype, name)}
    if dist.get_rank() == 0:
        Path(out_path).write_text(json.dumps(found), encoding="utf-8")
    dist.barrier(device_ids=[device.index] if cuda else None)
    dist.destroy_process_group()
