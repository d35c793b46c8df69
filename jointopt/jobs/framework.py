"""Profile of a training framework: what differs between stacks on the same hardware, as numbers, never as an ``if``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jointopt.core.schema import COLLECTIVES, OVERLAP, Bools, Floats, Ints, evaluate
from jointopt.core.short_repr import ShortRepr

CHUNKS_OF_SCHEDULE = {"zb-h1": 1, "zbv": 2, "dualpipev": 2}  # the vpp of schedules that have but one
V_SHAPED = ("zbv", "dualpipev")  # schedules whose second chunks lie in reverse order of the ranks


@dataclass(frozen=True, repr=False)
class Framework(ShortRepr):
    """A profile of one framework; the defaults are a middling PyTorch stack. Fractions are 0..1, seconds per GPU."""

    name: str = "generic"
    aliases: tuple[str, ...] = ()  # lower-case names, words joined by hyphens, that identify it in a table

    recipe_class: str = "community"  # whose efficiency its figures have: a key of catalog/recipe_classes.yaml

    family: str = ""  # of frameworks that start the same plans: a key of catalog/framework_rules.yaml
    rules: tuple[str, ...] = ()  # names of the rules of that family

    # what the framework can do, and what it does when a table leaves the cell blank
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    usual_zero_stages: tuple[int, ...] = ()  # those that a search which lists none looks at; blank: all
    zero_stages_with_pipeline: tuple[int, ...] = (0, 1)
    recomputes: tuple[str, ...] = ("none", "selective", "full")
    sequence_parallel: tuple[bool, ...] = (False, True)  # choices where tp > 1
    interleaving: bool = True
    context_parallel: bool = True
    expert_tensor_parallel: bool = True  # experts are cut by tp as well, not only by ep
    schedules: tuple[str, ...] = ("1f1b",)
    # other splits that it can be given: "ends" (embedding and head counted as layers), "any" (each chunk's layers)
    stage_splits: tuple[str, ...] = ()
    experts_span_tp: bool = True  # expert groups lie over dp*cp*tp, not inside dp*cp
    trains_adapters: bool = False  # LoRA beside frozen weights
    frozen_dtype: str = "bf16"  # format of those weights in 16-bit training; of a wider one `source` says why
    replicates: bool = False  # shard groups smaller than dp*cp (HSDP) can be had: dp_replicate > 1
    dimensions: tuple[str, ...] = ()  # layout columns that it has and most frameworks have not: gtp, egtp
    selective_share: float = 0.0  # of the layers that "selective" recomputes whole; 0 = only the attention core
    selective_experts: bool = False  # and all routed experts, whose grouped products it never keeps
    # by recompute: shares of products of attention and of a gated MLP that run again, of all layers, beside their other
    # kernels; "selective" then keeps the attention core, whatever `selective_share`, which is of memory. Blank: all
    recomputed_products: Mapping[str, Sequence[float]] = field(default_factory=dict, hash=False)
    default_zero_stage: int = 1
    default_recompute: str = "none"
    default_sequence_parallel: bool = True
    default_attention: str = "flash2"  # of runs whose release is not known, which its recorded ones mostly are
    newer_attention: Mapping[str, str] = field(default_factory=dict, hash=False)  # of newer ones, by architecture
    older_releases: tuple[str, ...] = ()  # whose runs have ``default_attention``: "24" is 24.03 and 24.09 too
    default_chunk_layers: int = 0  # layers of a virtual stage where vpp is blank and pp > 1; 0 = no interleaving

    layers_by_cost: bool = False  # stages get equal shares of the flops, the head's included, not equal layers

    # kernels
    compute_factor: float = 1.0  # time of compute kernels over what the architecture's training kernels take
    tf32: bool = False  # fp32 products run on tensor cores (off by default in PyTorch)
    attention_factor: float = 1.0  # time of the attention core over the architecture's (other kernels, such as cuDNN's)
    elementwise_factor: float = 1.0  # bytes of norms, residuals and activations over the fused minimum
    cast_factor: float = 1.0  # bytes of casts to fp8 and fp4 over those of one fused kernel
    # by architecture, where its runs want other factors: what `compute`, `elementwise` and the time of an attention
    # kernel, by its name, are multiplied by
    slower_on: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)
    # time of unfused scores, heads no multiple of 8 wide, over the architecture's for such products
    unaligned_head_factor: float = 1.0
    # shares of kernels' time that follow the SM clock, by what bounds them at its top: compute, or memory and latency
    compute_clock_share: float = 1.0
    memory_clock_share: float = 0.0
    loss_passes: float = 6.0  # passes over the logits (4 bytes each) in head and loss, forward and backward
    host_floor_s: float = 0.0  # a layer's forward and backward of one micro-batch takes at least this where pp = 1
    host_floor_pp_s: float = 0.0  # and at least this where the pipeline's stages lie on several nodes
    grouped_experts: bool = True  # one grouped product for all local experts, not one after the other
    expert_host_s: float = 0.0  # added to the floor per local expert of an MoE layer, forward and backward
    host_floor_pp_tp_s: float = 0.0  # plus this times tp
    host_floor_network_tp_s: float = 0.0  # and this times tp where the tensor ranks lie on several nodes as well
    fused_experts: bool = False  # products of experts apply the activation and cast its result and gradient
    moe_host_s: float = 0.0  # added to the floor of an MoE layer: router, dispatch, experts, combine
    dispatcher_host: Mapping[str, float] = field(default_factory=dict, hash=False)  # multiples of it, by dispatcher
    host_waits: bool = False  # in each MoE layer for the number of tokens of each expert, see `beside_host_s`
    micro_batch_overhead_s: float = 0.0  # added to each micro-batch on each stage
    # read and written per trained parameter to add the gradient of a micro-batch to those before, beyond its products
    accumulated_bytes: float = 0.0
    iteration_overhead_s: float = 0.0  # once per iteration: data loading, logging, grad-norm synchronisation
    # per iteration, layer of a stage and data-parallel rank: ZeRO-1 and 2 copy weights slice by slice
    zero_slice_s: float = 0.0

    # communication
    gradient_comm_bytes: int = 4  # per parameter in the gradient reduction
    dp_overlap: float = 0.7  # share of gradient and ZeRO traffic that can hide under compute
    # share of the last backward pass under which torch's DDP hides gradients whole, without ZeRO and pipelines; 0: none
    ddp_window: float = 0.0
    tp_overlap: float = 0.0
    # the same where a plan turns it on (`chosen_share`); 0: the framework leaves no choice
    chosen_dp_overlap: float = 0.0
    chosen_tp_overlap: float = 0.0
    cp_overlap: float = 0.8
    ep_overlap: float = 0.0  # under kernels of another micro-batch's forward or backward pass
    # the same where a job turns it on (`Training.ep_overlap`): Megatron Core's of DeepSeek-V3 on H100
    chosen_ep_overlap: float = 0.93
    network_ep_share: float = 1.0  # of that share, what hides where experts lie on several scale-up domains
    # SMs that all-to-alls of experts keep from the kernels under which they hide, by dispatcher; 0: all of them compute
    dispatcher_sms: Mapping[str, int] = field(
        default_factory=lambda: {"alltoall": 32, "deepep": 20, "hybridep": 16}, hash=False
    )
    token_dispatcher: str = "alltoall"  # usual way of tokens to experts, see `schema.TOKEN_DISPATCHERS`
    fp8_dispatch: bool = False  # of fp8 training: tokens and their gradients go to experts in fp8
    pp_overlap: float = 0.0
    interleaved_pp_overlap: float = 0.0  # the same where stages are interleaved (Megatron's overlap_p2p_comm)
    splits_sends: bool = False  # tensor ranks send their share of an activation to the next stage, which gathers it
    # pipelines with ZeRO-2 and 3 gather weights and scatter gradients once per iteration, not per micro-batch
    gathers_once_with_pipeline: bool = False
    zero1_reduces_whole: bool = False  # ZeRO-1 all-reduces gradients instead of scattering them
    # in which data-parallel ranks send the gradients or weights of each of a stage's layers; 0: one of all layers
    messages_per_layer: float = 0.0
    network_efficiency: float = 1.0  # achieved share of the fitted collective bandwidth across nodes
    tp_network_efficiency: float = 0.0  # the same of tensor parallelism; 0: as the rest
    tp_hop_s: float = 0.0  # each step of the ring of a tensor-parallel collective across nodes takes so much longer

    # memory
    gradient_bytes: int = 4  # stored gradient per parameter
    offloads_gradients: bool = False  # of ZeRO-2 and 3, with the optimizer, as they come
    bf16_gradient_bytes: int = 0  # the same where weights are bf16; 0: no other
    moment_bytes: float = 4.0  # of each of Adam's two moments, in mixed precision
    keeps_gathered_inputs: bool = False  # of column-parallel products under sequence parallelism, not each rank's part
    gathered_tensors: float = 0.0  # whole ones that such a rank has at work, of h elements per token
    keeps_stage_outputs: bool = False  # what a pipeline's stage sent stays until the backward pass
    bucket_elements: float = 0.0  # most gradients that are on their way to other replicas at a time
    unfused_gate: bool = False  # a gated MLP keeps its activated gate beside the product with it: two kernels
    weighs_routed_inputs: bool = False  # routing weights are applied inside the experts: their outputs are not kept
    quantized_inputs: bool = False  # low-precision linear layers keep their inputs in that precision (TE)
    # of fp8 training beside frozen weights: what an MLP's activation function reads is kept in 8 bit
    fp8_activations_of_adapters: bool = False
    fp8_attention_of_adapters: bool = False  # scores and their product with the values run in fp8 there too
    fp32_weights: bool = False  # stored weights are their own fp32 masters (torch FSDP's mixed precision)
    logits_bytes: float = 6.0  # alive per logit at the peak of the loss in 16 bit; twice that in fp32
    logits_tensor_parallel: bool = True  # logits stay split over tp
    activation_factor: float = 1.0  # allocator overhead on activations
    memory_overhead_gib: float = 2.0  # CUDA context, NCCL buffers, workspaces
    communicator_gib: float = 0.25  # of NCCL's buffers per kind of parallelism, part of that overhead
    user_buffers: bool = False  # Transformer Engine's, for the overlap of tensor-parallel collectives
    memory_fraction: float = 0.94  # of the GPU's memory that a run can use before it fails or thrashes
    fitted: bool = False  # to recorded runs of this framework
    newest_release: str = ""  # that ``changes`` know of; newer ones do as it
    # What other settings than those of its usual runs change, in this order: ``when`` (an expression of settings),
    # ``set`` (fields, numbers or expressions of fields), ``source``; see `catalog.frameworks.with_settings`.
    changes: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    kind: Mapping[str, str] = field(default_factory=dict, compare=False)  # of job, for which these were chosen
    source: str = ""


# Which kinds of collectives, dp and tp, hide under kernels: as a plan's ``overlap`` states, else as the framework does.


OVERLAP_KINDS = tuple(name for name in OVERLAP.names if name != "none")


def usual_overlap_share(framework: Framework, kind: str) -> float:
    """The share, 0 to 1, of a kind's collectives that hides where a plan states no overlap."""
    return float(getattr(framework, f"{kind}_overlap"))


def overlap_share(framework: Framework, kind: str, codes: Ints) -> Floats | float:
    """Share, 0 to 1, of a kind's collectives that may hide, by ``overlap`` codes (n,); a float if all are blank."""
    usual = usual_overlap_share(framework, kind)
    if not codes.any():
        return usual
    on = np.where(codes & OVERLAP.bit(kind), getattr(framework, f"chosen_{kind}_overlap") or usual, 0.0)
    return np.asarray(np.where(codes > 0, on, usual))


def overlap_is_on(framework: Framework, kind: str, text: str) -> bool:
    """Whether any of a kind's collectives hide in a plan whose ``overlap`` is this text."""
    return float(np.max(overlap_share(framework, kind, np.array([OVERLAP.code(text)])))) > 0.0


def overlap_not_offered(framework: Framework, layouts: Mapping[str, Ints]) -> Bools:
    """A mask (n,) of layouts whose ``overlap`` turns on or off what the framework gives no choice of."""
    codes = layouts["overlap"]
    wrong = np.zeros(codes.shape, bool)
    for kind in OVERLAP_KINDS if codes.any() else ():
        fixed = getattr(framework, f"chosen_{kind}_overlap") == 0.0
        turned = ((codes & OVERLAP.bit(kind)) > 0) != (usual_overlap_share(framework, kind) > 0.0)
        wrong = wrong | (codes > 0) & evaluate(COLLECTIVES[kind], layouts) & turned & fixed
    return np.asarray(wrong)
