"""One plan laid over the processes: device mesh, tensor and expert parallelism, sharding, recomputation, stages."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import torch
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

from jointopt.measure.trainer.context import Context
from jointopt.measure.trainer.experts import Experts
from jointopt.measure.trainer.model import Layer, Stage
from jointopt.measure.trainer.spec import TrainSpec

_INITIAL_SPREAD = 0.02


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


_FLATTENED = {
    "dp": ("dp_outer", "dp_inner"),
    "cp": ("cp_outer", "cp_inner"),
    "ep": ("dp_inner", "cp_inner"),
    "expert_dp": ("dp_outer", "cp_outer"),
    "dp_cp": ("dp_outer", "dp_inner", "cp_outer", "cp_inner"),
}


def stages(spec: TrainSpec, mesh: DeviceMesh, device: torch.device) -> dict[int, Stage]:
    """The stages of this rank by number, laid out, sharded and with the weights that every layout starts from."""
    if spec.num_query_groups % spec.tp:
        raise ValueError(
            f"tp {spec.tp} does not divide the {spec.num_query_groups} query groups; the trainer splits heads"
        )
    context, count = Context(mesh), spec.pp * spec.vpp
    rank, found = mesh["pp"].get_local_rank(), {}
    for number in range(rank, count, spec.pp):
        layers = range(number * spec.num_layers // count, (number + 1) * spec.num_layers // count)
        with torch.device("meta"):
            stage = Stage(spec, context, layers, number == 0, number == count - 1)
        if spec.tp > 1:
            _split_tensors(stage, mesh["tp"], spec.sequence_parallel)
        _recompute(stage, spec.recompute, spec.selective_share)
        found[number] = _shard(stage, spec, mesh, device)
        found[number].to_empty(device=device)
        _initialise(found[number], spec.seed)
    return found


def _split_tensors(stage: Stage, tp: DeviceMesh, sequence_parallel: bool) -> None:
    """Tensor parallelism of a stage; with sequence parallelism what lies between the products is split as well."""
    outside = Shard(1) if sequence_parallel else Replicate()
    for layer in stage.layers.values():
        plan: dict[str, ParallelStyle] = {f"attention.{n}": ColwiseParallel() for n in ("query", "key", "value")}
        plan["attention.out"] = RowwiseParallel(output_layouts=outside)
        plan |= _mlp_plan(layer, outside)
        if sequence_parallel:
            gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
            plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel(), "attention": gather}
        parallelize_module(layer, tp, plan)
    top: dict[str, ParallelStyle] = {}
    if stage.embedding is not None:
        top["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=outside)
    if stage.head is not None:
        top["head"] = ColwiseParallel(input_layouts=outside, output_layouts=Replicate())
        if sequence_parallel:
            top["norm"] = SequenceParallel()
    parallelize_module(stage, tp, top)


def _mlp_plan(layer: Layer, outside: Replicate | Shard) -> dict[str, ParallelStyle]:
    """Columns of up and gate, rows of down. Routed tokens have no order to split: experts see whole sequences."""
    split = {"up": ColwiseParallel(), "gate": ColwiseParallel()}
    routed = isinstance(layer.mlp, Experts)
    gather = PrepareModuleInput(input_layouts=(outside,), desired_input_layouts=(Replicate(),), use_local_output=routed)
    if not isinstance(layer.mlp, Experts):
        return {
            **({"mlp": gather} if isinstance(outside, Shard) else {}),
            **{f"mlp.{name}": style for name, style in split.items() if getattr(layer.mlp, name) is not None},
            "mlp.down": RowwiseParallel(output_layouts=outside),
        }
    plan: dict[str, ParallelStyle] = {}
    for name, _ in layer.mlp.named_modules():
        last = name.rpartition(".")[2]
        if last in split:
            plan[f"mlp.{name}"] = split[last]
        elif last == "down":
            plan[f"mlp.{name}"] = RowwiseParallel(output_layouts=Replicate())
    if isinstance(outside, Shard):
        plan["mlp"] = _SplitOutput(gather)
    return plan


class _SplitOutput(ParallelStyle):
    """Whole sequences in, as ``gather`` makes them, and this rank's part of them out."""

    def __init__(self, gather: PrepareModuleInput) -> None:
        self.gather = gather
        self.split = PrepareModuleOutput(output_layouts=(Replicate(),), desired_output_layouts=(Shard(1),))

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return self.split._apply(self.gather._apply(module, device_mesh), device_mesh)


def _recompute(stage: Stage, mode: str, selective_share: float) -> None:
    """Full: every layer runs again; selective: a share of the layers, evenly spread, or the attention core of all."""
    share = {"none": 0.0, "selective": selective_share, "full": 1.0}[mode]
    for name, layer in stage.layers.items():
        number = int(name)
        if math.floor((number + 1) * share) > math.floor(number * share):
            stage.layers[name] = checkpoint_wrapper(layer, preserve_rng_state=False)
        layer.attention.recomputes = mode == "selective" and not selective_share


def _shard(stage: Stage, spec: TrainSpec, mesh: DeviceMesh, device: torch.device) -> Stage:
    """Data parallelism: ZeRO-0 replicates; 1 and 2 shard what the optimizer holds; 3 the weights between uses too.

    Gradients are means over dp*cp ranks. An expert sees the tokens of ``ep`` ranks, so its gradients, summed over
    fewer ranks, are divided by all of them as well.
    """
    precision = _precision(spec, device)

    def share(module: nn.Module, over: DeviceMesh) -> None:
        if spec.zero_stage == 0:
            replicate(module, mesh=over, mp_policy=precision)
        else:
            fully_shard(module, mesh=over, mp_policy=precision, reshard_after_forward=spec.zero_stage == 3)

    for layer in stage.layers.values():
        experts = getattr(layer, "_checkpoint_wrapped_module", layer).mlp
        if isinstance(experts, Experts) and spec.ep > 1:
            share(experts.routed, mesh["expert_dp"])
            experts.routed.set_gradient_divide_factor(float(spec.dp * spec.cp))
        share(layer, mesh["dp_cp"])
    share(stage, mesh["dp_cp"])
    return stage


_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def _precision(spec: TrainSpec, device: torch.device) -> MixedPrecisionPolicy:
    """Layers on a GPU compute in the job's 16-bit type; weights and reduced gradients are fp32. CPUs: all fp32."""
    if device.type != "cuda":
        return MixedPrecisionPolicy()
    if spec.dtype not in _DTYPES:
        raise ValueError(f"dtype {spec.dtype} is not trained in here; expected one of {', '.join(_DTYPES)}")
    dtype = _DTYPES[spec.dtype]
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)


def _initialise(stage: Stage, seed: int) -> None:
    """Weights that depend on nothing but the seed and a parameter's name: one parameter at a time, then cut."""
    with torch.no_grad():
        for name, parameter in _named(stage):
            if ".norm" in f".{name}" or name.startswith("norm"):
                parameter.fill_(1.0)
                continue
            digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
            # drawn where it lies: a core needs half a minute for the weights of 3B parameters
            generator = torch.Generator(parameter.device).manual_seed(int.from_bytes(digest[:7], "big"))
            whole = torch.empty(parameter.shape, device=parameter.device)
            parameter.copy_(_like(whole.normal_(0.0, _INITIAL_SPREAD, generator=generator), parameter))


def _named(stage: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in stage.named_parameters():
        yield name.replace("_checkpoint_wrapped_module.", ""), parameter


def _like(whole: Tensor, parameter: Tensor) -> Tensor:
    if not isinstance(parameter, DTensor):
        return whole
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
