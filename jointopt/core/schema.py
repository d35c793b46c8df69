"""Every column of plans, measurements and predictions, once: dtype, unit, role, meaning, and where it has an effect.

Many plans are a ``Columns``: a dict of numpy arrays of equal length n. Arrays hold text of a layout, such as
``recompute``, as numbers (`jointopt.core.codes`), and ``stage_clock_mhz`` as floats (n, largest pp), NaN beyond a
plan's pp; plans in text, tables and JSON hold the words. What a job may minimise stands in `jointopt.jobs.objectives`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jointopt.core.codes import Codes, Lists, Names, Sets

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Columns = dict[str, npt.NDArray[Any]]

RECOMPUTE_CODES = {"none": 0, "selective": 1, "full": 2}
RECOMPUTE_NAMES = tuple(RECOMPUTE_CODES)
RECOMPUTE = Names(RECOMPUTE_NAMES, {"true": "full", "false": "none", "-": "none", "sel": "selective", "all": "full"})
# Megatron Core's --recompute-modules
MODULES = Sets(("core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts"))
OFFLOAD = Names(("none", "optimizer", "activations"), {"": "none", "-": "none", "false": "none"})
# 1f1b is interleaved where vpp > 1; the others are PyTorch's ScheduleZBV..., and zb-h1 of arXiv:2401.10241
SCHEDULE = Names(("1f1b", "zb-h1", "zbv", "dualpipev"), {"": "1f1b", "interleaved": "1f1b", "interleaved1f1b": "1f1b"})
# collectives that hide under kernels: of gradients and sharded weights, of tensor parallelism; none of them
OVERLAP = Sets(("none", "dp", "tp"), alone="none")
COLLECTIVES = {"dp": "dp * cp > 1", "tp": "tp > 1"}  # where a layout has any of a kind, for `evaluate`
STAGE_LAYERS = Lists()
DTYPES = ("fp32", "fp16", "bf16", "fp8", "fp4")
# Megatron-LM's --fp8-recipe and --fp4-recipe, and torchao's rowwise
FP8_RECIPES = ("delayed", "tensorwise", "rowwise", "blockwise", "mxfp8", "nvfp4")
OTHER_RECIPES = {"current": "tensorwise"}  # by which Transformer Engine knows one of them
ATTENTIONS = ("unfused", "fused", "flash1", "flash2", "flash3")
# Megatron Core's: NCCL's all-to-all of one copy per expert; one copy per rank and node (DeepEP, HybridEP)
TOKEN_DISPATCHERS = ("alltoall", "deepep", "hybridep")
RECIPE_CLASSES = ("submission", "vendor", "community")  # how well tuned the runs of a framework are
# linear layers that LoRA may adapt, as Megatron-Bridge names them: attention's input and output, the MLP's
LORA_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
MODEL_BLOCKS = ("layer", "attention", "feed_forward")  # of a model, without embedding and head
CUDA_GRAPHS = ("none", "transformer_engine", "full_iteration")  # as Megatron Core's cuda_graph_impl
MOE_ROUTING = ("forced", "natural")  # experts drawn at random, as benchmarks do; chosen by the router
# how the loss is computed: kernel by kernel, by torch.compile, in one kernel, in one with the head's product
CROSS_ENTROPIES = ("unfused", "compiled", "fused", "linear")
OTHER_CROSS_ENTROPIES = {"native": "compiled", "te": "fused"}  # Megatron Core's --cross-entropy-fusion-impl
OVERLAPS = ("dp_overlap", "tp_overlap", "ep_overlap")  # which collectives hide under kernels, stated of the software
STATUSES = ("ok", "oom", "failed", "timeout")  # all but the first: the run did not finish
LEAST_LINK_GBYTES_PER_S = 0.001  # 8 Mb/s for a GPU: nothing that trains together is slower
MOST_GPU_POWER_W = 2000  # the largest modules of 2025 take 1400 W
MOST_GPU_TEMPERATURE_C = 110  # boards slow down from 83 to 95 °C on and shut down at 92 to 105


@dataclass(frozen=True)
class Column:
    """One column; the range is that of a cell, and a float range that starts at 0 excludes it."""

    name: str
    dtype: str  # int | float | bool | str | clocks
    unit: str
    role: str  # plan | workload | result
    meaning: str
    low: float = 1
    high: float = 10**9
    short: str = ""  # as printed tables head it, where that is not the name
    layout: bool = False  # part of a layout: an array of `Columns`, in this order
    degree: bool = False  # the product of the degrees is the number of GPUs
    log: bool = False  # a layout column that varies by factors: learners and studies see its logarithm
    codes: Codes | None = None  # of a layout column of text: cells to the numbers that arrays hold, and back
    neutral: int | None = None  # of a layout column that most plans do without: the value that has no effect
    splits: bool = False  # a layout column that says how the GPUs are split
    # Of a layout column, expressions for `evaluate`. These three name layout columns and `EXPRESSION_NAMES`, the latter
    # two also what `jointopt.jobs.defaults.default_plan` gives them: job, model, training, framework, recompute_codes,
    # own_chunks, default_vpp, default_zero_stage, default_etp and usual_splits.
    effect: str = ""  # mask: where the column has an effect; blank: everywhere
    blank: str = ""  # values that a blank cell means; blank: `neutral`, else the first value
    assumed: str = ""  # mask: where a blank cell is an assumption; blank: as `effect`, but nowhere with a `neutral`
    needs: str = ""  # no expression: `effect` in words, where these are not the expression itself
    # These two name no columns. The list of values that a search tries, of model, training, framework, num_gpus,
    # domain, most_chunks, divisors and schedules (`jointopt.jobs.plans.space`); blank: `neutral`, else all values.
    searched: str = ""
    # The tuple of values that a framework can run, of training, framework and recomputes_of
    # (`jointopt.jobs.plans.rules.abilities`); None or blank: all values.
    offered: str = ""
    beyond: str = ""  # the question that messages ask of a cell beyond the range

    @property
    def head(self) -> str:
        """The name by which printed tables and short texts know the column."""
        return self.short or self.name

    @property
    def array_dtype(self) -> type[np.generic]:
        """Type of the arrays of a layout column."""
        return {"bool": np.bool_, "str": np.int32}.get(self.dtype, np.int64)

    def encode(self, value: object) -> int:
        """The number that arrays hold for a cell of a layout column of text; ValueError for a cell without meaning."""
        if self.codes is None:
            raise ValueError(f"{self.name} is a number")
        return self.codes.code(value)

    def decode(self, value: Any) -> Any:
        """The word, bool or whole number that plans in text and JSON hold for a value of an array."""
        if self.codes is not None:
            return self.codes.text(int(value))
        # the experts of a dense model have a degree of 0 inside
        return bool(value) if self.dtype == "bool" else max(int(value), int(self.low))

    @property
    def values(self) -> range:
        """All values that the array of a layout column may hold; the first one leaves the feature out."""
        whole = range(int(self.low), int(self.high) + 1)
        return {"bool": range(2), "str": range(len(RECOMPUTE.names))}.get(self.dtype, whole)


POWER_PROFILE = "power_profile"  # a preset of the driver, which chooses clocks by itself; measured, never predicted
COLUMNS = {
    c.name: c
    for c in (
        Column("dp", "int", "", "plan", "data-parallel degree", layout=True, degree=True, log=True, splits=True),
        Column("tp", "int", "", "plan", "tensor-parallel degree", layout=True, degree=True, log=True,
               splits=True),
        Column("pp", "int", "", "plan", "pipeline-parallel degree", layout=True, degree=True, log=True,
               splits=True),
        Column("cp", "int", "", "plan", "context-parallel degree", layout=True, degree=True, log=True,
               splits=True,
               offered="None if framework.context_parallel else (1,)"),
        Column("ep", "int", "", "plan", "expert-parallel degree, inside dp*cp; 1 if dense", layout=True, log=True,
               splits=True, assumed="model.is_moe", searched="divisors(model.num_experts or 1)"),
        Column("vpp", "int", "", "plan", "virtual pipeline stages per rank; 1 = plain 1F1B", layout=True, log=True,
               offered="None if framework.interleaving else (1,)",
               blank="np.where(own_chunks(schedule), own_chunks(schedule), default_vpp(job, c))",
               assumed="(pp > 1) & (own_chunks(schedule) == 0)",
               searched="[*divisors(model.num_layers), *range(1, most_chunks * bool(framework.stage_splits) + 1)]"),
        Column("micro_batch_size", "int", "sequences", "plan", "batch of one pass", short="mbs", layout=True, log=True,
               searched="divisors(training.global_batch_size)"),
        Column("sequence_parallel", "bool", "", "plan", "Megatron sequence parallelism", short="sp", layout=True,
               effect="tp > 1",
               offered="framework.sequence_parallel",
               blank="framework.default_sequence_parallel & (tp > 1) & (training.seq_length // cp % tp == 0)"),
        Column("recompute", "str", "", "plan", "none, selective or full", short="rc", layout=True, codes=RECOMPUTE,
               blank="recompute_codes[framework.default_recompute]", offered="recomputes_of(training)"),
        Column("zero_stage", "int", "", "plan", "0..3; 1 = distributed optimizer, 3 = FSDP", 0, 3, "ZeRO", True,
               effect="dp * cp > 1", blank="default_zero_stage(framework, pp)", offered="framework.zero_stages"),
        Column("etp", "int", "", "plan", "tensor-parallel degree of the experts", layout=True, neutral=0, splits=True,
               blank="default_etp(job, c)", assumed="model.is_moe & (tp > 1)",
               searched="divisors(model.num_attention_heads or num_gpus) if model.is_moe else [0]"),
        Column("dp_replicate", "int", "", "plan", "groups of ranks that each shard states by themselves (HSDP)",
               short="rep", layout=True, neutral=1, splits=True, effect="zero_stage > 0",
               searched="divisors(max(num_gpus // domain, 1)) if framework.replicates else [1]"),
        Column("gtp", "int", "", "plan", "ranks inside dp that each store a part of a weight and gather it to use it "
               "(Megatron's generalised tensor parallelism)", layout=True, neutral=1, splits=True,
               offered="None if 'gtp' in framework.dimensions else (1,)"),
        Column("egtp", "int", "", "plan", "the same of experts, inside the ranks that share them", layout=True,
               neutral=1, splits=True, offered="None if 'egtp' in framework.dimensions else (1,)"),
        Column("stage_layers", "str", "", "plan", "layers of each model chunk, in the order of the pipeline; "
               "blank: the framework's even split", short="split", layout=True, codes=STAGE_LAYERS, neutral=0,
               effect="pp > 1", blank="usual_splits(job, c)", assumed="stage_layers > 0"),
        Column("schedule", "str", "", "plan", "pipeline schedule; 1f1b is interleaved where vpp > 1", layout=True,
               codes=SCHEDULE, neutral=0, effect="pp > 1", searched="schedules"),
        Column("recompute_modules", "str", "", "plan", "what selective recompute recomputes; blank: the framework's "
               "usual", short="modules", layout=True, codes=MODULES, neutral=0, effect="recompute == selective",
               needs="selective recompute"),
        Column("recompute_num_layers", "int", "", "plan", "layers per model chunk that full recompute recomputes; 0 = "
               "all", 0, short="rc layers", layout=True, neutral=0, effect="recompute == full",
               needs="full recompute"),
        Column("offload", "str", "", "plan", "what lies in host memory", layout=True, codes=OFFLOAD, neutral=0),
        Column("overlap", "str", "", "plan", "collectives that hide under kernels; blank: the framework's usual",
               layout=True, codes=OVERLAP, neutral=0, needs="dp*cp > 1 or tp > 1",
               effect=" | ".join(f"({where})" for where in COLLECTIVES.values())),
        Column("stage_clock_mhz", "clocks", "MHz", "plan", "SM clock per pipeline stage"),
        Column("power_limit_w", "float", "W", "plan", "power limit per GPU", 0, MOST_GPU_POWER_W, "limit"),
        Column(POWER_PROFILE, "str", "", "plan", "NVIDIA's workload power profiles, + between; blank: none"),
        Column("source", "str", "", "workload", "where the row came from"),
        Column("group", "str", "", "workload", "rows of one group are comparable"),
        Column("model", "str", "", "workload", "name of the model"),
        Column("num_layers", "int", "", "workload", "transformer layers"),
        Column("hidden_size", "int", "", "workload", "model width"),
        Column("ffn_hidden_size", "int", "", "workload", "MLP width"),
        Column("num_attention_heads", "int", "", "workload", "query heads"),
        Column("num_query_groups", "int", "", "workload", "KV heads"),
        Column("gated_mlp", "bool", "", "workload", "three MLP matrices instead of two"),
        Column("vocab_size", "int", "", "workload", "vocabulary"),
        Column("num_experts", "int", "", "workload", "routed experts per MoE layer; 0 = dense", low=0),
        Column("moe_router_topk", "int", "", "workload", "experts per token", low=0),
        Column("moe_ffn_hidden_size", "int", "", "workload", "width of a routed expert; blank: ffn_hidden_size"),
        Column("num_shared_experts", "int", "", "workload", "shared experts per MoE layer", low=0),
        Column("num_dense_layers", "int", "", "workload", "leading dense layers of an MoE model", low=0),
        Column("attention_kind", "str", "", "workload", "mha, gqa, mqa or mla (multi-head latent attention); with "
               "+sliding_window where layers have one"),
        Column("q_lora_rank", "int", "", "workload", "rank of queries in latent attention; 0: as they are", low=0),
        Column("kv_lora_rank", "int", "", "workload", "rank of keys and values in latent attention; 0: none", low=0),
        Column("qk_nope_head_dim", "int", "", "workload", "width of a head's keys without rope there", low=0),
        Column("qk_rope_head_dim", "int", "", "workload", "width of a head's keys with rope there", low=0),
        Column("v_head_dim", "int", "", "workload", "width of a head's values there", low=0),
        Column("position_embedding", "str", "", "workload", "rope, learned, alibi, none; blank: that of its name"),
        Column("mtp_num_layers", "int", "", "workload", "multi-token-prediction layers", low=0),
        Column("window_size", "int", "tokens", "workload", "tokens that layers with a window look back; "
               "blank: all", low=0),
        Column("window_attn_skip_freq", "str", "", "workload", "6: all layers but every 6th have the window; 0;1;0;1: "
               "those with a 1; blank: all"),
        Column("layers", "str", "", "workload", "kinds of layers in order and their sizes, repeated to num_layers: "
               "3*mamba2:experts;full:experts;mamba_num_heads=128; blank: all alike"),
        Column("block", "str", "", "workload", "layer, attention or feed_forward: those of the model's layers alone, "
               "without embedding and head; blank: the model"),
        Column("seq_length", "int", "tokens", "workload", "sequence length"),
        Column("global_batch_size", "int", "sequences", "workload", "sequences per iteration"),
        Column("dtype", "str", "", "workload", "fp32, tf32, fp16, bf16, fp8 or fp4"),
        Column("fp8_recipe", "str", "", "workload", "scaling: delayed, tensorwise, rowwise, blockwise, mxfp8; nvfp4"),
        Column("precision", "str", "", "workload", "dtype and fp8_recipe in a word: fp8_cs, fp8_ds, fp8_sc, fp8_mx"),
        Column("grad_reduce_dtype", "str", "", "workload", "format of stored and reduced gradients"),
        Column("main_grads_dtype", "str", "", "workload", "format of the gradients that the optimizer reads"),
        Column("exp_avg_dtype", "str", "", "workload", "format of Adam's first moment"),
        Column("exp_avg_sq_dtype", "str", "", "workload", "format of Adam's second moment; blank: as the first"),
        Column("precision_aware_optimizer", "bool", "", "workload", "Megatron Core's precision-aware optimizer"),
        Column("fp8_param_gather", "bool", "", "workload", "weights live and travel in 8 bit"),
        Column("fp8_activations", "bool", "", "workload", "activations are kept in 8 bit for the backward pass"),
        Column("cross_entropy", "str", "", "workload", "loss: unfused, compiled, fused, linear (with the head)"),
        Column("logits_chunks", "int", "", "workload", "chunks of tokens whose logits are alive one after the other"),
        Column("attention", "str", "", "workload", "attention kernel"),
        Column("fused_norm", "bool", "", "workload", "fused normalisation kernels"),
        Column("token_dispatcher", "str", "", "workload", "how tokens go to experts: alltoall, deepep, hybridep"),
        Column("moe_load_imbalance", "float", "", "workload", "tokens of the most loaded expert over the mean of all"),
        Column("moe_routing", "str", "", "workload", "forced: experts drawn at random; natural: by the router"),
        Column("cuda_graph", "str", "", "workload", "captured graphs: none, transformer_engine, full_iteration"),
        Column("compile", "bool", "", "workload", "kernels fused by a compiler (torch.compile)"),
        Column("dp_overlap", "str", "", "workload", "share of gradients' collectives that hides, or true, false"),
        Column("tp_overlap", "str", "", "workload", "the same of tensor parallelism"),
        Column("ep_overlap", "str", "", "workload", "the same of experts' all-to-alls"),
        Column("lora_dim", "int", "", "workload", "rank of LoRA's adapters; blank: all weights are trained"),
        Column("lora_target_modules", "str", "", "workload", "linear layers with adapters, ; between; blank: all"),
        Column("framework", "str", "", "workload", "training framework"),
        Column("framework_release", "str", "", "workload", "release of that framework, or of the container it is in"),
        Column("recipe_class", "str", "", "workload", "how well tuned: submission, vendor, community; blank: as usual"),
        Column("gpu", "str", "", "workload", "catalogue id of the GPU"),
        Column("gpus_per_node", "int", "", "workload", "GPUs per node"),
        Column("num_gpus", "int", "", "workload", "GPUs of the job"),
        Column("inter_node_gbytes_per_s", "float", "GB/s", "workload", "fabric between nodes, per GPU and direction",
               low=LEAST_LINK_GBYTES_PER_S, high=10**6),
        Column("status", "str", "", "result", "ok, oom, failed or timeout"),
        Column("iteration_time_s", "float", "s", "result", "wall time of one iteration", low=0, high=10**6),
        Column("energy_j", "float", "J", "result", "energy of all GPUs for one iteration", low=0, high=10**12),
        Column("avg_power_w", "float", "W", "result", "mean power per GPU", low=0, high=MOST_GPU_POWER_W),
        Column("peak_power_w", "float", "W", "result", "highest power of any GPU", low=0, high=MOST_GPU_POWER_W),
        Column("peak_memory_gib", "float", "GiB", "result", "memory of the worst GPU", low=0, high=1024),
        Column("temperature_c", "float", "°C", "result", "temperature of the hottest GPU", low=-50,
               high=MOST_GPU_TEMPERATURE_C, beyond="is it in °F?"),
        Column("framework_flags", "str", "", "result", "options that change an iteration's time and have no column"),
        Column("fabric", "str", "", "result", "networks between nodes and within one"),
        Column("notes", "str", "", "result", "free text"),
    )
}  # fmt: skip
OTHER_NAMES = {  # of columns in tables, and whose
    "moe_force_load_balancing": "moe_routing", "moe_router_force_load_balancing": "moe_routing",
    "overlap_moe_a2a": "ep_overlap", "tp_comm_overlap": "tp_overlap", "overlap_grad_reduce": "dp_overlap",
    "framework_version": "framework_release",
}  # fmt: skip
TABLE_NAMES = OTHER_NAMES | {"published_release": "framework_release"}  # whose throughput a recipe's row quotes
LAYOUT_COLUMNS = tuple(c.name for c in COLUMNS.values() if c.layout)
NEUTRAL = {c.name: c.neutral for c in COLUMNS.values() if c.neutral is not None}
DEGREES = tuple(c.name for c in COLUMNS.values() if c.degree)
SPLIT_COLUMNS = tuple(c.name for c in COLUMNS.values() if c.splits)
POWER_LIMIT = "power_limit_w"  # a number of a layout where plans have limits of their own; most have none
CHOICES = tuple(name for name in LAYOUT_COLUMNS if name not in DEGREES)  # columns that are no degree
LOG_COLUMNS = tuple(c.name for c in COLUMNS.values() if c.log)
# columns of few values, which learners see as they are
SWITCHES = tuple(name for name in LAYOUT_COLUMNS if name not in (*LOG_COLUMNS, *NEUTRAL))
# Of learners: what differs between clusters and software stacks (logarithms of a speed or a cost, 10 ms per
# micro-batch, 200 ms per iteration, an overlap), and what GPUs do meanwhile, which describes power more than time.
CONSTANTS = (
    "compute", "elementwise", "intra_node", "inter_node", "host", "micro_batch", "iteration", "dp_overlap",
    "tp_overlap", "loss", "attention",
)  # fmt: skip
OCCUPANCY = ("occupancy", "efficiency", "communication")
KERNEL_SHAPES = ("log2_aligned_width", "log2_queries_per_key")  # which trees alone learn from
# Not in `COLUMNS`: one SM clock for all stages, which tables and plans may give instead of ``stage_clock_mhz``.
ONE_CLOCK = Column("clock_mhz", "float", "MHz", "plan", "one SM clock for all stages", high=10**5, short="clock")


def column_of(name: str) -> Column:
    """The column of that name; what the schema does not know counts as a number, as ``clock_mhz`` is."""
    return COLUMNS.get(name, ONE_CLOCK)


def num_gpus(layouts: Mapping[str, npt.ArrayLike]) -> Ints:
    """GPUs of each layout, (n,), or of one plan, (): the product of its degrees."""
    return np.asarray(np.prod([np.asarray(layouts[name], np.int64) for name in DEGREES], axis=0))


def decode_cells(name: str, values: Iterable[Any]) -> list[Any]:
    """Words, bools or whole numbers for the array of one layout column, as `Column.decode`."""
    return [COLUMNS[name].decode(value) for value in values]


def encode_cells(name: str, values: Iterable[Any]) -> npt.NDArray[Any]:
    """The array (n,) of one layout column for its cells, as `Column.encode`; ValueError for one without meaning."""
    column = COLUMNS[name]
    return np.asarray([column.encode(v) if column.codes else v for v in values], column.array_dtype)


# Expressions over columns.


# What every expression may name: np, and words of layout columns, which are their numbers (selective, zb_h1, optimizer)
EXPRESSION_NAMES: dict[str, Any] = {"np": np} | {
    word.replace("-", "_"): codes.names.index(word) for codes in (RECOMPUTE, SCHEDULE, OFFLOAD) for word in codes.names
}
_compiled = functools.cache(functools.partial(compile, filename="<expression of columns>", mode="eval"))


@functools.cache
def columns_in(expression: str) -> tuple[str, ...]:
    """The layout columns that an expression names, in the order of `LAYOUT_COLUMNS`."""
    return tuple(name for name in LAYOUT_COLUMNS if name in _compiled(expression).co_names)


def evaluate(expression: str, columns: Mapping[str, Any], figures: dict[str, Any] | None = None) -> Any:
    """The value of an expression such as ``dp * cp > 1``, over columns that broadcast.

    It may name columns, ``c`` (the mapping of all of them) and ``figures``, by default `EXPRESSION_NAMES`. Expressions
    come from this file and the catalogue, never from a user.
    """
    return eval(_compiled(expression), EXPRESSION_NAMES if figures is None else figures, {**columns, "c": columns})
