"""Lays a plan over the processes, trains for some iterations and measures them: time, loss, memory of the fullest."""

from __future__ import annotations

import hashlib
import json
import math
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from jointopt.core.errors import LauncherError
from jointopt.measure.hardware.host import device_remarks, wrong_device
from jointopt.measure.trainer.device import largest_of_ranks, now_s, own_device
from jointopt.measure.trainer.model import Experts, Stage, loss_of
from jointopt.measure.trainer.spec import JUDGED_ON, TrainSpec

_INITIAL_SPREAD = 0.02  # standard deviation of initial weights
_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
# dimensions of the mesh that are products of those that it is made of; ``expert_dp`` replicates experts
_FLATTENED = {
    "dp": ("dp_outer", "dp_inner"),
    "cp": ("cp_outer", "cp_inner"),
    "ep": ("dp_inner", "cp_inner"),
    "expert_dp": ("dp_outer", "cp_outer"),
    "dp_cp": ("dp_outer", "dp_inner", "cp_outer", "cp_inner"),
}


def device_mesh(spec: TrainSpec, device: torch.device) -> DeviceMesh:
    """The mesh of all ranks, with dimensions pp, dp, cp, tp (innermost) and those of `_FLATTENED`.

    Experts are spread over ``ep`` neighbours of the dp*cp ranks, so dp and cp are cut into an outer and an inner part.
    """
    inner_cp = math.gcd(spec.ep, spec.cp)
    inner_dp = spec.ep // inner_cp
    sizes = (spec.pp, spec.dp // inner_dp, inner_dp, spec.cp // inner_cp, inner_cp, spec.tp)
    names = ("pp", "dp_outer", "dp_inner", "cp_outer", "cp_inner", "tp")
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=names)
    for name, parts in _FLATTENED.items():
        mesh[parts]._flatten(name)
    return mesh


def build_stages(spec: TrainSpec, mesh: DeviceMesh, device: torch.device) -> dict[int, Stage]:
    """The stages of this rank by number, split and sharded as the plan says, with the initial weights of the seed."""
    if spec.num_query_groups % spec.tp:
        raise ValueError(
            f"tp {spec.tp} does not divide the {spec.num_query_groups} query groups; the trainer splits heads"
        )
    cp, ep, count = mesh["cp"], mesh["ep"], spec.pp * spec.vpp
    # recomputed are whole layers, a share of them that is evenly spread, or the attention cores of all
    share = {"none": 0.0, "selective": spec.selective_share, "full": 1.0}[spec.recompute]
    found = {}
    for number in range(mesh["pp"].get_local_rank(), count, spec.pp):
        layers = range(number * spec.num_layers // count, (number + 1) * spec.num_layers // count)
        with torch.device("meta"):
            stage = found[number] = Stage(spec, cp, ep, layers, number == 0, number == count - 1)
        if spec.tp > 1:
            _split_tensors(stage, mesh["tp"], spec.sequence_parallel)
        for i, (name, layer) in zip(layers, list(stage.layers.items()), strict=True):
            layer.attention.recomputes = spec.recompute == "selective" and not share
            if math.floor((i + 1) * share) > math.floor(i * share):
                stage.layers[name] = checkpoint_wrapper(layer, preserve_rng_state=False)
        _shard(stage, spec, mesh, device)
        stage.to_empty(device=device)
        _initialise(stage, spec.seed)
    return found


def _split_tensors(stage: Stage, tp: DeviceMesh, sequence_parallel: bool) -> None:
    """Apply tensor parallelism to a stage; with sequence parallelism norms and residuals are split by sequence too."""
    outside = Shard(1) if sequence_parallel else Replicate()
    for layer in stage.layers.values():
        plan: dict[str, ParallelStyle] = {f"attention.{n}": ColwiseParallel() for n in ("query", "key", "value")}
        plan["attention.out"] = RowwiseParallel(output_layouts=outside)
        # routed tokens have no order to split: experts see whole sequences
        routed = isinstance(layer.mlp, Experts)
        for name, _ in layer.mlp.named_modules():
            last = name.rpartition(".")[2]
            if last in ("up", "gate"):
                plan[f"mlp.{name}"] = ColwiseParallel()
            elif last == "down":
                plan[f"mlp.{name}"] = RowwiseParallel(output_layouts=Replicate() if routed else outside)
        if sequence_parallel:
            whole = partial(PrepareModuleInput, input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
            plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel(), "attention": whole()}
            plan["mlp"] = _SplitOutput(whole(use_local_output=True)) if routed else whole()
        parallelize_module(layer, tp, plan)
    top: dict[str, ParallelStyle] = {}
    if stage.embedding is not None:
        top["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=outside)
    if stage.head is not None:
        top["head"] = ColwiseParallel(input_layouts=outside, output_layouts=Replicate())
        if sequence_parallel:
            top["norm"] = SequenceParallel()
    parallelize_module(stage, tp, top)


class _SplitOutput(ParallelStyle):
    """A style for experts: ``gather`` makes whole sequences of the inputs, and outputs are this rank's part again."""

    def __init__(self, gather: PrepareModuleInput) -> None:
        self.gather = gather
        self.split = PrepareModuleOutput(output_layouts=(Replicate(),), desired_output_layouts=(Shard(1),))

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return self.split._apply(self.gather._apply(module, device_mesh), device_mesh)


def _shard(stage: Stage, spec: TrainSpec, mesh: DeviceMesh, device: torch.device) -> None:
    """Apply data parallelism: ZeRO-0 replicates; 1 and 2 shard optimizer states; 3 also weights between uses.

    Layers on a GPU compute in the job's 16-bit type; weights and reduced gradients are fp32. CPUs: all fp32. Gradients
    are means over dp*cp ranks. An expert sees the tokens of ``ep`` ranks, so its gradients, summed over fewer ranks,
    are divided by all of them as well.
    """
    precision = MixedPrecisionPolicy()
    if device.type == "cuda":
        if spec.dtype not in _DTYPES:
            raise ValueError(f"dtype {spec.dtype} is not trained in here; expected one of {', '.join(_DTYPES)}")
        dtype = _DTYPES[spec.dtype]
        precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
    share: Callable[..., Any] = partial(fully_shard, reshard_after_forward=spec.zero_stage == 3)
    if spec.zero_stage == 0:
        share = replicate
    for layer in stage.layers.values():
        experts = getattr(layer, "_checkpoint_wrapped_module", layer).mlp
        if isinstance(experts, Experts) and spec.ep > 1:
            share(experts.routed, mesh=mesh["expert_dp"], mp_policy=precision)
            experts.routed.set_gradient_divide_factor(float(spec.dp * spec.cp))
        share(layer, mesh=mesh["dp_cp"], mp_policy=precision)
    share(stage, mesh=mesh["dp_cp"], mp_policy=precision)


def _initialise(stage: Stage, seed: int) -> None:
    """Set initial weights, which depend on the seed and a parameter's name alone, whatever the layout."""
    with torch.no_grad():
        for wrapped, parameter in stage.named_parameters():
            name = wrapped.replace("_checkpoint_wrapped_module.", "")
            if ".norm" in f".{name}" or name.startswith("norm"):
                parameter.fill_(1.0)
                continue
            digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
            # drawn where it lies: a core needs half a minute for the weights of 3B parameters
            generator = torch.Generator(parameter.device).manual_seed(int.from_bytes(digest[:7], "big"))
            whole = torch.empty(parameter.shape, device=parameter.device)
            whole.normal_(0.0, _INITIAL_SPREAD, generator=generator)
            if isinstance(parameter, DTensor):
                whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
            parameter.copy_(whole)


Step = Callable[[], Tensor]  # one iteration's passes: this rank's mean loss (0 where it has none)


def train(spec: TrainSpec, device: torch.device) -> dict[str, Any]:
    """Train and return the results, the same on every rank: seconds by measured iteration, losses, memory in GiB."""
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
    """1F1B over the stages, interleaved where a rank has several."""
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
    """Peak memory: reserved by the allocator of a GPU, which is what runs out; resident in a process on cores."""
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
