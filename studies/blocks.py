"""One feed-forward or attention block, forward, split over GPUs: workloads below a model, by the model's own kernels.

Time, bytes and joules are of `jointopt.physics`: products by `gemm_time_s`, collectives by `collective_time_s`, power
by the GPU's constants. Nothing overlaps, as in the rack-scale paper that these blocks are for. What a GPU sends is read
in its memory and written in the receiver's, where RDMA puts it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from jointopt.core.errors import CatalogError
from jointopt.core.units import PICO
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.kernels import kernel_constants
from jointopt.jobs.cluster import PowerConstants
from jointopt.jobs.kernels import KernelConstants, Links
from jointopt.physics.layers import gemm_time_s
from jointopt.physics.traffic import collective_time_s, link_bytes
from jointopt.studies.evidence import NOMINAL, Constants, varied_power

SEQUENCE = 2048
HIDDEN, INNER, HEADS, KV_WIDTH, HEAD = 4096, 14336, 32, 1024, 128  # Llama-3-8B
DOMAIN = 8  # GPUs that NVLink connects
GPU = "h100-sxm5-80gb"
THREADS = 1024  # of a whole GPU, in the paper's block sizes
# The paper varies "threads or compute units per GPU" of a Timeloop architecture, whose compute unit does one
# multiply-accumulate in a cycle (Parashar et al., ISPASS 2019); its clock is not stated: Accelergy's usual 1 ns
UNIT_FLOPS = 2e9
ELEMENT, GRADIENT = 2.0, 4.0  # bytes: activations and weights in 16 bit, gradients in full precision


@dataclass(frozen=True)
class Product:
    """``count`` products m x k by k x n; one with ``weights`` is split by rows (data) or columns (tensor) of one."""

    name: str
    m: float
    n: float
    k: float
    count: float = 1.0
    weights: bool = True

    def split(self, data: float, tensor: float) -> Product:
        """The part of one GPU."""
        if self.weights:
            return replace(self, m=self.m / data, n=self.n / tensor)
        return replace(self, count=self.count / (data * tensor))

    @property
    def flops(self) -> float:
        """Operations."""
        return 2.0 * self.count * self.m * self.n * self.k

    @property
    def read_bytes(self) -> float:
        """Both operands once."""
        return ELEMENT * self.count * self.k * (self.m + self.n)

    @property
    def written_bytes(self) -> float:
        """The result once."""
        return ELEMENT * self.count * self.m * self.n


def feed_forward(batch: int) -> tuple[Product, ...]:
    """Two fully connected layers, without the gate, as the paper has them."""
    tokens = float(batch * SEQUENCE)
    return Product("up", tokens, INNER, HIDDEN), Product("down", tokens, HIDDEN, INNER)


def attention(batch: int) -> tuple[Product, ...]:
    """The six products of an attention block, softmax left out; keys and values in 8 groups."""
    tokens, pairs = float(batch * SEQUENCE), float(batch * HEADS)
    return (
        Product("query", tokens, HIDDEN, HIDDEN), Product("key", tokens, KV_WIDTH, HIDDEN),
        Product("value", tokens, KV_WIDTH, HIDDEN), Product("scores", SEQUENCE, SEQUENCE, HEAD, pairs, False),
        Product("mix", SEQUENCE, HEAD, SEQUENCE, pairs, False), Product("output", tokens, HIDDEN, HIDDEN),
    )  # fmt: skip


BLOCKS = {"feed-forward": feed_forward, "attention": attention}
_FIRST = ("query", "key", "value")  # start at once; every other product waits for the one before it
_RECEIVERS = {"query": 3, "key": 3, "value": 4, "scores": 4, "mix": 5}  # places of the products that read them


@dataclass(frozen=True)
class Machine:
    """GPUs of one size and the links between them; energies per byte."""

    kernels: KernelConstants
    power: PowerConstants
    links: Links
    intra_j: float
    inter_j: float
    domain: int = DOMAIN


def machine(threads: int = THREADS, constants: Constants = NOMINAL, whole_gpu: bool = False) -> Machine:
    """A GPU of so many compute units beside an H100's memory, on the paper's links: NVLink-C2C and NDR 400.

    ``whole_gpu``: `THREADS` of them are all SMs of an H100, five hundred times as fast.
    """
    gpu = load_gpu(GPU)
    whole = kernel_constants(gpu)
    count = max(round(whole.gemm.sm_count * threads / THREADS), 1)
    units = UNIT_FLOPS * constants.unit * threads
    peak = whole.gemm.peak_flops * count / whole.gemm.sm_count if whole_gpu else units
    gemm = replace(whole.gemm, sm_count=count, peak_flops=peak)
    links = Links(900e9, 50e9 * constants.network, 0.0)
    if gpu.power is None:
        raise CatalogError(f"The catalogue has no power constants of GPU {GPU!r}, which price a block's energy.")
    known = varied_power(gpu.power, constants)
    return Machine(replace(whole, gemm=gemm), known, links, 8 * 1.3 * PICO, 8 * 20.0 * PICO)


@dataclass(frozen=True)
class Priced:
    """A block on so many GPUs: seconds of the whole, joules of all GPUs."""

    compute_s: float
    forward_comm_s: float
    backward_comm_s: float
    compute_j: float  # products, registers and caches among it
    read_j: float  # of device memory
    written_j: float
    at_rest_j: float  # static and clock power over the time
    forward_link_j: float
    backward_link_j: float

    @property
    def latency_s(self) -> float:
        """The forward pass."""
        return self.compute_s + self.forward_comm_s

    @property
    def energy_j(self) -> float:
        """The forward pass."""
        return self.compute_j + self.read_j + self.written_j + self.at_rest_j + self.forward_link_j


def _seconds(product: Product, on: Machine) -> float:
    sm_s, memory_s = gemm_time_s(product.m, product.n, product.k, on.kernels.gemm, batch=product.count, throttled=False)
    return float(sm_s + memory_s)


def _collective(kind: str, moved: float, gpus: int, on: Machine) -> tuple[float, float]:
    """Seconds and joules of all GPUs of one collective."""
    local = _local(gpus, on.domain)
    seconds = collective_time_s(kind, moved, gpus, local, on.kernels.collectives, on.links)
    intra, inter = link_bytes(kind, moved, gpus, local)
    return float(seconds), float(gpus * (intra * on.intra_j + inter * on.inter_j))


def _local(gpus: int, domain: int) -> int:
    """Members in one domain: the most that divide the group evenly."""
    return max(size for size in range(1, min(gpus, domain) + 1) if gpus % size == 0)


def _priced(
    parts: list[Product], gpus: int, seconds: float, busy_s: float, on: Machine, sent: float = 0.0
) -> dict[str, float]:
    """Compute and memory of the parts that all GPUs do together, ``busy_s`` in sum, in so many seconds.

    ``sent``: bytes that GPUs send each other, which are read where they were and written where they come.
    """
    k = on.power
    return {
        "compute_s": seconds,
        "compute_j": k.pj_per_flop * PICO * sum(one.flops for one in parts),
        "read_j": k.pj_per_hbm_byte * PICO * (sent + sum(one.read_bytes for one in parts)),
        "written_j": k.pj_per_hbm_byte * PICO * (sent + sum(one.written_bytes for one in parts)),
        "at_rest_j": k.static_w * gpus * seconds + k.active_w * busy_s
        + max(k.wait_w - k.static_w, 0.0) * (gpus * seconds - busy_s),
    }  # fmt: skip


def data_parallel(block: str, batch: int, gpus: int, on: Machine) -> Priced:
    """Each GPU has the whole weights and some rows of the input; backward, gradients are all-reduced.

    Attention needs whole sequences, so that GPUs idle beyond one each.
    """
    products, used = BLOCKS[block](batch), min(gpus, batch) if block == "attention" else gpus
    part = [one.split(used, 1.0) for one in products]
    seconds = sum(_seconds(one, on) for one in part)
    weights = sum(one.n * one.k for one in products if one.weights)
    back_s, back_j = _collective("all_reduce", GRADIENT * weights, used, on)
    found = _priced(part * used, gpus, seconds, used * seconds, on)
    return Priced(**found, forward_comm_s=0.0, backward_comm_s=back_s, forward_link_j=0.0, backward_link_j=back_j)


def tensor_parallel(block: str, batch: int, gpus: int, on: Machine) -> Priced:
    """Columns of every weight are shared; inputs are gathered before and outputs scattered after the block."""
    part = [one.split(1.0, gpus) for one in BLOCKS[block](batch)]
    seconds = sum(_seconds(one, on) for one in part)
    moved = ELEMENT * batch * SEQUENCE * HIDDEN
    pairs = [_collective(kind, moved, gpus, on) for kind in ("all_gather", "reduce_scatter")]
    comm_s, link_j = np.sum(pairs, axis=0).tolist()
    found = _priced(part * gpus, gpus, seconds, gpus * seconds, on, len(pairs) * (gpus - 1) * moved)
    return Priced(**found, forward_comm_s=comm_s, backward_comm_s=comm_s, forward_link_j=link_j, backward_link_j=link_j)


def pipelined(block: str, batch: int, gpus: int, on: Machine, gathers: bool = False) -> Priced:
    """Each product has an equal share of the GPUs, tensor parallel among them; sequences flow through one by one.

    Results go point to point, as the paper has it; with ``gathers`` ranks of the next product also gather whole rows.
    """
    whole, each = BLOCKS[block](batch), gpus // len(BLOCKS[block](batch))
    one_by_one = [one.split(1.0, each) for one in BLOCKS[block](1)]
    stage_s = {one.name: _seconds(one, on) for one in one_by_one}
    first = [seconds for name, seconds in stage_s.items() if name in _FIRST]
    path_s = max(first, default=0.0) + sum(seconds for name, seconds in stage_s.items() if name not in _FIRST)
    seconds = path_s + (batch - 1) * max(stage_s.values())
    busy_s = batch * each * sum(stage_s.values())
    comm_s, link_j = _between(whole[:-1], each, on, gathers)
    sent = sum(one.written_bytes for one in whole[:-1])
    found = _priced(one_by_one * (batch * each), gpus, seconds, busy_s, on, sent)
    return Priced(**found, forward_comm_s=comm_s, backward_comm_s=comm_s, forward_link_j=link_j, backward_link_j=link_j)


def _between(senders: tuple[Product, ...], each: int, on: Machine, gathers: bool) -> tuple[float, float]:
    """Seconds and joules of the results that leave their product, each GPU its part."""
    seconds = joules = 0.0
    for place, one in enumerate(senders):
        sent = one.written_bytes / each
        receiver = _RECEIVERS.get(one.name, place + 1)
        inside = place * each // on.domain == ((receiver + 1) * each - 1) // on.domain
        speed, pj = (on.links.intra_bytes_per_s, on.intra_j) if inside else (on.links.inter_bytes_per_s, on.inter_j)
        seconds, joules = seconds + sent / speed, joules + each * sent * pj
        if gathers and each > 1:
            more_s, more_j = _collective("all_gather", one.written_bytes, each, on)
            seconds, joules = seconds + more_s, joules + more_j
    return seconds, joules


MODES = {"dp": data_parallel, "tp": tensor_parallel, "pp+tp": pipelined}
