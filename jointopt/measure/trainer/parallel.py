"""One plan laid over the processes: device mesh, tensor and expert parallelism, sharding, recomputation, stages."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
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

from jointopt.measure.trainer.model import Experts, Stage
from jointopt.measure.trainer.spec import TrainSpec

_INITIAL_SPREAD = 0.02
_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
_FLATTENED = {
    "dp": ("dp_outer", "dp_inner"),
    "cp": ("cp_outer", "cp_inner"),
    "ep": ("dp_inner", "cp_inner"),
    "expert_dp": ("dp_outer", "cp_outer"),
    "dp_cp": ("dp_outer", "dp_inner", "cp_outer", "cp_inner"),
}


def device_mesh(spec: TrainSpec, device: torch.device) -> DeviceMesh:
    """Dimensions pp, dp, cp, ep, tp and what sharding needs; tp is innermost, then cp, dp, pp.

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
    """The stages of this rank by number, laid out, sharded and with the weights that every layout starts from."""
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
    """Tensor parallelism of a stage; with sequence parallelism what lies between the products is split as well."""
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
    """Whole sequences in, as ``gather`` makes them, and this rank's part of them out."""

    def __init__(self, gather: PrepareModuleInput) -> None:
        self.gather = gather
        self.split = PrepareModuleOutput(output_layouts=(Replicate(),), desired_output_layouts=(Shard(1),))

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return self.split._apply(self.gather._apply(module, device_mesh), device_mesh)


def _shard(stage: Stage, spec: TrainSpec, mesh: DeviceMesh, device: torch.device) -> None:
    """Data parallelism: ZeRO-0 replicates; 1 and 2 shard what the optimizer holds; 3 the weights between uses too.

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
    """Weights that depend on nothing but the seed and a parameter's name: one parameter at a time, then cut."""
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
