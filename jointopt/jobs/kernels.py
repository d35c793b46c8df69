"""Constants of one GPU's products and collectives: the seam between the catalogue and the physics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jointopt.core.facts import Assumption
from jointopt.core.units import GB, MICRO
from jointopt.jobs.cluster import Cluster


@dataclass(frozen=True)
class TileKind:
    """One shape of thread-block tile, and the share of the peak rate that it sustains with a long k."""

    rows: int
    columns: int
    peak_fraction: float


@dataclass(frozen=True)
class GemmConstants:
    """Constants of one GPU for `jointopt.physics.layers`; times and rates at the maximum SM clock, in bf16."""

    peak_flops: float  # dense bf16, per second
    hbm_bytes_per_s: float
    sm_count: int
    launch_s: float  # floor of any kernel
    prologue_k: float  # k-extent that filling and draining the pipeline of one tile is worth
    tiles: tuple[TileKind, ...]
    wave_quantisation: float  # 0 = a partial wave costs its share only, 1 = as much as a full wave
    split_k_s: float  # price of spreading too few tiles over all SMs along k
    hbm_fraction: float  # achieved share of the HBM peak
    sustained_fraction: float | None  # share of the peak that the board's power sustains; None = all of it
    throttle_flop: float  # size of a product from which that share falls
    throttle_slope: float  # loss of rate per e-fold of size above it
    dtype_time_factor: Mapping[str, float]  # SM time of a product relative to bf16
    dtype_bytes: Mapping[str, float]  # bytes per element of the operands
    measured_time_factor: Mapping[str, float] = field(default_factory=dict)  # of a machine's products over all this


@dataclass(frozen=True)
class Protocol:
    """One protocol of the collective library inside one scale-up domain: a latency and a bus bandwidth."""

    latency_s: float  # of two members
    member_s: float  # for each further member
    bus_bytes_per_s: tuple[float, float, float]  # of 2, 4, and 8 or more members


@dataclass(frozen=True)
class NetworkProtocol:
    """One protocol of the collective library over groups that cross nodes."""

    start_s: float
    intra_hop_s: float
    inter_hop_s: float  # software's part, to be added to the network's latency
    bandwidth_fraction: float  # of what the links achieve


@dataclass(frozen=True)
class SendConstants:
    """How the collective library sends a message to one peer on another node: channels, and chunks through buffers."""

    ll_bytes: float = 0.0  # up to which a message of one channel goes by LL, the first of the ring's protocols
    chunk_bytes: float = 0.0  # of Simple, the last of them; 0: no buffers
    channels: float = 1.0  # to one peer
    channel_bytes_per_s: float = float("inf")  # that one of them copies to or from its buffer


@dataclass(frozen=True)
class CollectiveConstants:
    """Constants of one GPU's collective library (NCCL, RCCL) for `jointopt.physics.traffic`."""

    protocols: Mapping[str, tuple[Protocol, ...]]  # by kind of collective; the fastest is taken
    fitted_intra_bytes_per_s: float  # nominal link of the GPU that the protocols were fitted on
    ring: tuple[NetworkProtocol, ...]
    tree: tuple[NetworkProtocol, ...]
    peer_s: float  # per remote peer of an all-to-all
    inter_fraction: float  # achieved share of the nominal network bandwidth
    send: SendConstants = SendConstants()


@dataclass(frozen=True)
class KernelConstants:
    """All kernel constants of one GPU; ``assumed`` names what was not measured on it."""

    gemm: GemmConstants
    collectives: CollectiveConstants
    assumed: tuple[Assumption, ...] = ()


@dataclass(frozen=True)
class Links:
    """Nominal links of one GPU, one direction; the latency is of one hop between nodes."""

    intra_bytes_per_s: float
    inter_bytes_per_s: float
    inter_latency_s: float

    @classmethod
    def of(cls, cluster: Cluster) -> Links:
        """The links of a cluster, in SI units."""
        return cls(
            cluster.intra_node_gbytes_per_s * GB,
            cluster.inter_node_gbytes_per_s * GB,
            cluster.inter_node_latency_us * MICRO,
        )
