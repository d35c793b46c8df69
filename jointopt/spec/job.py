"""The job: what to train, where, within which space, under which constraints. Frozen, validated at load."""

from __future__ import annotations

from dataclasses import dataclass, field

from jointopt.core.schema import ATTENTIONS as ATTENTIONS
from jointopt.core.schema import DTYPES as DTYPES
from jointopt.core.schema import TOKEN_DISPATCHERS as TOKEN_DISPATCHERS
from jointopt.spec.cluster import Cluster
from jointopt.spec.framework import Framework
from jointopt.spec.model import Model
from jointopt.spec.slurm import Slurm

OBJECTIVES = ("iteration_time_s", "energy_j")
TIME_ALONE = ("iteration_time_s",)
SITE_ENERGY = "facility_energy_j"  # an objective and a bound too: GPUs and hosts, times PUE


@dataclass(frozen=True)
class Training:
    """The computation of one iteration, and the software that does it."""

    seq_length: int
    global_batch_size: int  # sequences per iteration
    dtype: str = "bf16"
    attention: str = "flash2"
    fused_norm: bool = True
    framework: Framework = field(default_factory=Framework)
    dtype_assumed: bool = False  # the GPU's 16-bit format stands in for what is no precision
    # the default stands in for a kernel that is not stated: the same training as with it stated
    attention_assumed: bool = field(default=False, compare=False)
    token_dispatcher: str = ""  # one of `TOKEN_DISPATCHERS`; blank: the framework's usual one
    overlap_moe_a2a: bool = False  # Megatron's --overlap-moe-expert-parallel-comm
    fp8_param_gather: bool = False  # updated or sharded weights are gathered in fp8
    run_tokens: int | None = None  # of the whole training run; None = not reported

    @property
    def run_iterations(self) -> int | None:
        """Iterations of the whole run, the last one perhaps not full; None where its tokens are not given."""
        if self.run_tokens is None:
            return None
        return -(-self.run_tokens // (self.global_batch_size * self.seq_length))

    @property
    def selective_is_none(self) -> bool:
        """Selective recomputation drops stored attention scores, of which a flash kernel has none."""
        return self.attention.startswith("flash") and not self.framework.selective_share


@dataclass(frozen=True)
class Search:
    """Allowed values per plan column; ``None`` = every feasible value."""

    dp: tuple[int, ...] | None = None
    tp: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    cp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    vpp: tuple[int, ...] | None = None
    micro_batch_size: tuple[int, ...] | None = None
    zero_stage: tuple[int, ...] | None = None
    sequence_parallel: tuple[bool, ...] | None = None
    recompute: tuple[str, ...] | None = None
    etp: tuple[int, ...] | None = None
    dp_replicate: tuple[int, ...] | None = None
    stage_layers: tuple[str, ...] | None = None
    schedule: tuple[str, ...] | None = None
    recompute_modules: tuple[str, ...] | None = None
    recompute_num_layers: tuple[int, ...] | None = None
    offload: tuple[str, ...] | None = None
    clock_mhz: tuple[float, ...] = ()  # ascending, always filled by the loader from the GPU's own clocks
    per_stage_clocks: bool = True


@dataclass(frozen=True)
class Constraints:
    """Upper bounds; ``None`` = unbounded. ``memory_fraction`` is of the GPU's memory."""

    iteration_time_s: float | None = None
    energy_j: float | None = None
    avg_power_w: float | None = None
    facility_energy_j: float | None = None  # GPUs and hosts, times PUE
    cluster_power_kw: float | None = None
    memory_fraction: float | None = None  # None = the framework profile's own


@dataclass(frozen=True)
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

    @property
    def measured_objectives(self) -> tuple[str, ...]:
        """The objectives that a run measures: its GPUs' energy stands for the site's."""
        return tuple(dict.fromkeys("energy_j" if name == SITE_ENERGY else name for name in self.objectives))
