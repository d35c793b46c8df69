"""The job: what to train, where, within which space, under which constraints. Frozen, validated at load."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass, replace
from typing import Any

from jointopt.core.schema import COLUMNS, LAYOUT_COLUMNS, LORA_TARGETS, NEUTRAL, OVERLAPS
from jointopt.core.short_repr import ShortRepr
from jointopt.jobs.cluster import CLOCK_RANGE, Cluster, Machine, with_machine
from jointopt.jobs.framework import Framework
from jointopt.jobs.model import Model
from jointopt.jobs.objectives import (
    FURTHER_OBJECTIVES,
    OBJECTIVE_COLUMNS,
    OBJECTIVES,
    RUN_OBJECTIVES,
    SITE_ENERGY,
    TIME_ALONE,
)
from jointopt.jobs.reliability import Reliability
from jointopt.jobs.slurm import Slurm

TF32 = "tf32"  # a dtype of job files: fp32 numbers whose products run on tensor cores
STATE_FIELDS = (
    "grad_reduce_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", "precision_aware_optimizer",
    "fp8_param_gather",
)  # fmt: skip
# what the software does, which changes its profile (``changes`` in catalog/frameworks.yaml)
SETTINGS = (
    "framework_release", "compile", "cuda_graph", *OVERLAPS, "moe_routing", "fp8_activations", "cross_entropy",
    "logits_chunks",
)  # fmt: skip
# formats of gradients and optimizer states
STATE_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5}


def _bytes_of(dtype: str | None, usual: float) -> float:
    return float(usual) if dtype is None else STATE_BYTES[dtype]


@dataclass(frozen=True)
class ScalingRecipe:
    """How operands of low-precision products are scaled: a recipe of Transformer Engine on one GPU architecture.

    Bytes are per element of an operand.
    """

    name: str  # one of `jointopt.core.schema.FP8_RECIPES`
    dtype: str  # of the products: fp8 or fp4
    value_bytes: float
    scale_bytes: float = 0.0  # share of its block's scale: of activations and gradients
    weight_scale_bytes: float = 0.0  # and of weights
    scale_passes: float = 1.0  # times that scales are moved until products can read them
    copies: float = 2.0  # along rows and along columns; 1 where products read either layout
    frozen_copies: float = 2.0  # the same of weights that are not trained, which a stack may transpose anew each time
    reads: float = 1.0  # of the 16-bit operand by the cast, its amax included
    second_reads: float = 0.0  # more of them for the copy along columns
    launches: int = 1  # kernels of one cast
    product_time_factor: float = 1.0  # SM time of a product over one whose scales are per tensor
    gathers_16_bit: bool = False  # weights that live in 8 bit travel in 16

    @property
    def operand_bytes(self) -> float:
        """Bytes of an activation's or gradient's element in low precision, with its share of a scale."""
        return self.value_bytes + self.scale_bytes

    def weight_bytes(self, frozen: bool = False) -> float:
        """Bytes of a weight in all copies that are kept, with its share of the scales."""
        copies = min(self.copies, self.frozen_copies) if frozen else self.copies
        return copies * (self.value_bytes + self.weight_scale_bytes)

    def cast_bytes(self, wide_bytes: float, one_copy: bool = False) -> float:
        """Bytes that casting an element of ``wide_bytes`` moves: reads, and the copies written with their scales.

        ``one_copy``: no copy along columns, which products of frozen weights do not read.
        """
        copies, reads = (1.0, self.reads) if one_copy else (self.copies, self.reads + self.second_reads)
        return reads * wide_bytes + copies * (self.value_bytes + self.scale_passes * self.scale_bytes)


@dataclass(frozen=True, repr=False)
class Training(ShortRepr):
    """The computation of one iteration, and the software that does it."""

    seq_length: int
    global_batch_size: int  # sequences per iteration
    dtype: str = "bf16"
    attention: str = "flash2"
    fused_norm: bool = True
    framework: Framework = field(default_factory=Framework)
    recipe_class: str = ""  # one of `RECIPE_CLASSES`, whose efficiency `framework` then has; blank: its usual one
    dtype_assumed: bool = False  # the GPU's 16-bit format stands in for what is no precision
    # the default stands in for a kernel that is not stated: the same training as with it stated
    attention_assumed: bool = field(default=False, compare=False)
    token_dispatcher: str = ""  # one of `TOKEN_DISPATCHERS`; blank: the framework's usual one
    moe_load_imbalance: float = 1.0  # tokens of the most loaded expert in a micro-batch over the mean of all
    moe_routing: str = ""  # one of `MOE_ROUTING`; blank: unknown
    # what the software does, which `catalog.frameworks.with_settings` put into ``framework``; None or blank: unknown
    framework_release: str = ""
    compile: bool | None = None
    cuda_graph: str = ""  # one of `CUDA_GRAPHS`: what replays as captured graphs
    # share of collectives that hides, 0 to 1; True: that of the framework where it is turned on
    dp_overlap: float | None = None
    tp_overlap: float | None = None
    ep_overlap: float | None = None
    fp8_activations: bool | None = None  # kept in 8 bit for the backward pass
    cross_entropy: str = ""  # one of `CROSS_ENTROPIES`: how the loss is computed
    logits_chunks: int | None = None  # chunks of a micro-batch's tokens whose logits are alive one after the other
    run_tokens: int | None = None  # of the whole training run; None = not reported
    # Formats of gradients and optimizer states, in the words of Megatron Core; None = the framework profile's
    grad_reduce_dtype: str | None = None  # the gradient buffer, and what is reduced
    main_grads_dtype: str | None = None  # the shard of gradients that the optimizer reads
    exp_avg_dtype: str | None = None
    exp_avg_sq_dtype: str | None = None
    precision_aware_optimizer: bool | None = None  # masters kept as the 16 bits that weights lack
    fp8_param_gather: bool | None = None  # weights live and travel in 8 bit
    fp8_recipe: ScalingRecipe | None = None  # that scales fp8 and fp4 products; None: the framework's own
    # LoRA, in the words of Megatron-Bridge: adapters of that rank are trained beside frozen weights; None: all weights
    lora_dim: int | None = None
    lora_alpha: float | None = None  # scales what adapters add, which takes no time
    lora_target_modules: tuple[str, ...] | None = None  # of `LORA_TARGETS`; None: all

    @property
    def settings(self) -> dict[str, Any]:
        """What is stated of the software, by the names of `SETTINGS`."""
        values = {name: getattr(self, name) for name in SETTINGS}
        return {name: value for name, value in values.items() if value not in (None, "")}

    @property
    def captures_graphs(self) -> bool:
        """Whether CUDA graphs are stated to replay any kernels."""
        return self.cuda_graph not in ("", "none")

    @property
    def frozen(self) -> bool:
        """Whether the model's own weights are frozen and adapters alone are trained."""
        return self.lora_dim is not None

    @property
    def adapted(self) -> tuple[str, ...]:
        """The linear layers with adapters beside them; one that a model has not is passed over."""
        return (self.lora_target_modules or LORA_TARGETS) if self.frozen else ()

    @property
    def adapter_and_recipe_cells(self) -> dict[str, Any]:
        """Cells of a table's row: lora_dim, lora_target_modules, fp8_recipe and recipe_class, those that are stated."""
        stated = {
            "lora_dim": self.lora_dim,
            "lora_target_modules": ";".join(self.adapted) if self.lora_target_modules and self.frozen else None,
            "fp8_recipe": self.fp8_recipe.name if self.fp8_recipe else None, "recipe_class": self.recipe_class or None,
        }  # fmt: skip
        return {name: value for name, value in stated.items() if value is not None}

    @property
    def software(self) -> str:
        """The framework in words, with its recipe class where that is not the usual one."""
        usual = self.recipe_class in ("", self.framework.recipe_class)
        return self.framework.name if usual else f"{self.framework.name} ({self.recipe_class} recipe)"

    @property
    def keeps_8_bit_activations(self) -> bool:
        """Whether the backward pass of an MLP's activation function reads its input in 8 bit: stated, or usual."""
        usual = self.framework.fp8_activations_of_adapters and self.frozen and self.dtype in ("fp8", "fp4")
        return usual if self.fp8_activations is None else self.fp8_activations

    @property
    def attends_in_fp8(self) -> bool:
        """Whether the attention core runs in fp8: the stack's habit beside frozen fp8 weights."""
        return self.framework.fp8_attention_of_adapters and self.frozen and self.dtype == "fp8"

    def keeps_input_of(self, linear: str) -> bool:
        """Whether a linear layer's input is kept for the backward pass: it is for the gradient of trained weights."""
        return not self.frozen or linear in self.adapted

    @property
    def precision(self) -> str:
        """The format of the products, as a job file states it as dtype."""
        return TF32 if self.dtype == "fp32" and self.framework.tf32 else self.dtype

    @property
    def precision_words(self) -> str:
        """The precision as a sentence names it, with the recipe that scales it where one is stated."""
        return self.precision if self.fp8_recipe is None else f"{self.precision} ({self.fp8_recipe.name})"

    @property
    def run_iterations(self) -> int | None:
        """Iterations of the whole run, the last one perhaps not full; None where its tokens are not given."""
        tokens = self.run_tokens
        return None if tokens is None else -(-tokens // (self.global_batch_size * self.seq_length))

    @property
    def logit_bytes(self) -> float:
        """Bytes alive per logit at the peak of the loss; twice those of 16 bit in fp32."""
        return self.framework.logits_bytes * (2.0 if self.dtype == "fp32" else 1.0)

    @property
    def gradient_bytes(self) -> float:
        """Bytes of a stored gradient per parameter: Megatron Core keeps its buffer in the format that it reduces."""
        usual = self.framework.bf16_gradient_bytes if self.dtype == "bf16" else 0
        stated = _bytes_of(self.grad_reduce_dtype, usual or self.framework.gradient_bytes)
        return 4.0 if self.dtype == "fp32" else stated

    @property
    def gradient_comm_bytes(self) -> float:
        """Bytes per parameter of the gradient reduction."""
        return _bytes_of(self.grad_reduce_dtype, max(self.framework.gradient_comm_bytes, 1))

    @property
    def optimizer_bytes(self) -> float:
        """Bytes per parameter of Adam: fp32 master and two moments, fewer where narrower formats are stated.

        The precision-aware optimizer keeps only the 16 bits of the master that a 16-bit weight lacks (Megatron Core's
        store_param_remainders); an fp32 run needs no master.
        """
        if self.dtype == "fp32" or self.framework.fp32_weights:
            return 8.0
        master = 4.0 if not self.precision_aware_optimizer or self._weights_in_8_bit else 2.0
        second, usual = self.exp_avg_sq_dtype or self.exp_avg_dtype, self.framework.moment_bytes
        return master + _bytes_of(self.exp_avg_dtype, usual) + _bytes_of(second, usual)

    @property
    def main_gradient_bytes(self) -> float:
        """Bytes per parameter of a rank's shard of the copy of gradients that an optimizer step makes; 0 = none."""
        wanted = _bytes_of(self.main_grads_dtype, self.gradient_bytes)
        return wanted if wanted > self.gradient_bytes and not self.precision_aware_optimizer else 0.0

    @property
    def weight_bytes(self) -> float:
        """Bytes of a stored weight per parameter; with an fp32 master where the framework has no other."""
        return 4.0 if self.framework.fp32_weights else self._weight_bytes()

    @property
    def frozen_bytes(self) -> float:
        """Bytes of a stored weight beside adapters: no optimizer reads it, so that most stacks hold no fp32 of it."""
        return 4.0 if self.framework.frozen_dtype == "fp32" else self._weight_bytes(frozen=True)

    def _weight_bytes(self, frozen: bool = False) -> float:
        """Bytes of a stored weight that is no fp32 master: 16 bit, or both layouts that a low-precision product reads.

        Transformer Engine quantizes each weight along rows and along columns and caches both beside the 16-bit weight
        unless parameters live in 8 bit (stated ``fp8_param_gather``; where it is not, 2 bytes stand for either). A
        stated recipe adds scales, and has one copy where products read either layout (Blackwell, a scale per tensor).
        """
        if self.dtype == "fp32":
            return 4.0
        if self.fp8_recipe is not None and self.fp8_param_gather is not None:
            return self.fp8_recipe.weight_bytes(frozen) + (0.0 if self._weights_in_8_bit else 2.0)
        cached = {"fp8": 2.0, "fp4": 1.125}.get(self.dtype, 0.0) if self.fp8_param_gather is False else 0.0
        return 2.0 + cached

    @property
    def weight_gather_bytes(self) -> float:
        """Bytes per parameter of gathered weights.

        Those of mxfp8 come in 16 bit, since rows and columns are cast apart (Megatron Core's
        reuse_grad_buf_for_mxfp8_param_ag).
        """
        wide = self.fp8_recipe is not None and self.fp8_recipe.gathers_16_bit
        narrow = 1.0 if self._weights_in_8_bit and not wide else 2.0
        return 4.0 if self.dtype == "fp32" else narrow

    @property
    def _weights_in_8_bit(self) -> bool:
        """Whether weights live in 8 bit: Transformer Engine has such weights in low-precision training alone."""
        return bool(self.fp8_param_gather) and self.dtype in ("fp8", "fp4")

    @property
    def selective_is_none(self) -> bool:
        """Selective recomputation drops stored attention scores, of which a flash kernel has none."""
        return self.attention.startswith("flash") and not self.framework.selective_share


# A field per layout column, which job files may state: numbers first, then switches, words, and what most plans do
# without.
_TYPE_ORDER = {"int": 0, "bool": 1, "str": 2}
_Columns: Any = make_dataclass(
    "_Columns",
    [
        (name, "tuple[Any, ...] | None", None)
        for name in sorted(LAYOUT_COLUMNS, key=lambda name: 9 if name in NEUTRAL else _TYPE_ORDER[COLUMNS[name].dtype])
    ],
    frozen=True,
)


@dataclass(frozen=True)
class Search(_Columns):  # type: ignore[misc]
    """Allowed values per plan column; ``None`` = every feasible value."""

    clock_mhz: tuple[float, ...] = ()  # ascending, always filled by the loader from the GPU's own clocks
    per_stage_clocks: bool = True
    power_limit_w: tuple[float, ...] | None = None  # descending, of every GPU; None = the cluster's alone


@dataclass(frozen=True)
class Constraints:
    """Upper bounds; ``None`` = unbounded. ``memory_fraction`` is of the GPU's memory."""

    iteration_time_s: float | None = None
    energy_j: float | None = None
    avg_power_w: float | None = None
    facility_energy_j: float | None = None  # GPUs and hosts, times PUE
    cluster_power_kw: float | None = None
    memory_fraction: float | None = None  # None = the framework profile's own


@dataclass(frozen=True, repr=False)
class Job:
    """A model to train, the cluster, the space of plans, the constraints and the objectives."""

    name: str
    model: Model
    training: Training
    cluster: Cluster
    search: Search = field(default_factory=Search)
    constraints: Constraints = field(default_factory=Constraints)
    objectives: tuple[str, ...] = OBJECTIVES
    slurm: Slurm = field(default_factory=Slurm)
    reliability: Reliability = field(default_factory=Reliability)

    def __repr__(self) -> str:
        """The job in a line, for a prompt; `jointopt.jobs.jobfile.dump_job` has all of it."""
        training, cluster = self.training, self.cluster
        return (
            f"<Job {self.name}: {self.model_words}, {training.global_batch_size:,} x {training.seq_length:,} tokens in "
            f"{training.precision}, {training.framework.name}, {cluster.num_gpus:,} x {cluster.gpu.id}>"
        )

    @property
    def model_words(self) -> str:
        """The model, and the rank of its adapters where it trains those alone."""
        rank = self.training.lora_dim
        return f"{self.model.name} with LoRA of rank {rank}" if rank else self.model.name

    def on_site(self, pue: float | None) -> Job:
        """The job on a site of that PUE; itself for None."""
        if pue is None:
            return self
        assumed = tuple(one for one in self.cluster.assumed if one.key != "pue")  # which it is not then
        cluster = replace(self.cluster, pue=pue, assumed=assumed, stated=self.cluster.stated | {"pue"})
        return replace(self, cluster=cluster)

    @property
    def assumed_clocks(self) -> str:
        """The sentence on a range of clocks that no source states; blank where one does."""
        return next((one.reason for one in self.cluster.assumed if one.key == CLOCK_RANGE), "")

    @property
    def selective_is_none(self) -> bool:
        """`Training.selective_is_none`, or a model without attention, which has no scores either."""
        return self.training.selective_is_none or (
            not self.model.has_attention and not self.training.framework.selective_share
        )

    @property
    def measured_objectives(self) -> tuple[str, ...]:
        """The measured columns that runs are chosen by: time or the GPUs' energy first, then memory and powers.

        The GPUs' energy stands for the site's energy, its carbon and its cost, and time and energy of an iteration for
        those of a whole run.
        """
        of = [(name, OBJECTIVE_COLUMNS[name]) for name in self.objectives]
        follows = [one.follows or one.measured or name for name, one in of]
        found = dict.fromkeys("energy_j" if name == SITE_ENERGY else name for name in follows)
        first = tuple(name for name in found if name not in FURTHER_OBJECTIVES) or TIME_ALONE
        return (*first, *(name for name in found if name in FURTHER_OBJECTIVES))

    @property
    def goals(self) -> tuple[str, ...]:
        """The columns that a search minimises: time, energy (their front has the best of all that follows), others.

        Of a whole run where the job's objectives are, with money in place of energy where energy is none of them.
        """
        time, energy, money = RUN_OBJECTIVES
        second = money if money in self.objectives and energy not in self.objectives else energy
        first = (time, second) if self.is_of_run else OBJECTIVES
        return (*first, *(name for name in FURTHER_OBJECTIVES if name in self.objectives))

    @property
    def is_of_run(self) -> bool:
        """Whether the objectives are of a whole run, with its failures, rather than of an iteration."""
        return not set(RUN_OBJECTIVES).isdisjoint(self.objectives)

    @property
    def run_objective(self) -> str:
        """What the interval between checkpoints and the policy of a run are chosen by: its time, else energy, money."""
        return next((name for name in RUN_OBJECTIVES if name in self.objectives), RUN_OBJECTIVES[0])


def on_machine(job: Job, machine: Machine | None) -> Job:
    """The job on its cluster `with_machine`."""
    return job if machine is None else replace(job, cluster=with_machine(job.cluster, machine))
