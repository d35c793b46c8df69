"""A decoder-only transformer of any shape of the catalogue: grouped attention, plain or gated MLP, mixture of experts.

Parameters are named by their place in the whole model (layer 7 is ``layers.7`` on whatever stage it lies), so that
every layout can be given the same initial weights. ``cp`` and ``ep`` are the meshes of ranks that share sequences
(each holds one part and gathers the keys and values of all) and experts (two all-to-alls of the routed tokens).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint

from jointopt.measure.trainer.spec import TrainSpec

_ROPE_BASE = 10_000.0


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary position embedding of queries or keys (b, heads, s, d) at ``positions`` (s,)."""
    half = x.shape[-1] // 2
    frequency = _ROPE_BASE ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions[:, None].float() * frequency[None, :]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half : 2 * half]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Attention(nn.Module):
    """Causal self-attention with grouped keys and values and rotary positions."""

    def __init__(self, spec: TrainSpec, cp: DeviceMesh) -> None:
        super().__init__()
        self.head_dim, self.cp = spec.head_dim, cp
        self.recomputes = False  # the attention core alone: selective recomputation
        heads, groups = spec.head_dim * spec.num_attention_heads, spec.head_dim * spec.num_query_groups
        self.query = nn.Linear(spec.hidden_size, heads, bias=False)
        self.key = nn.Linear(spec.hidden_size, groups, bias=False)
        self.value = nn.Linear(spec.hidden_size, groups, bias=False)
        self.out = nn.Linear(heads, spec.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attention output (b, s, h)."""
        batch, length, _ = x.shape
        projected = (self.query(x), self.key(x), self.value(x))
        q, k, v = (p.view(batch, length, -1, self.head_dim).transpose(1, 2) for p in projected)
        # parts of a sequence are contiguous, so later ranks attend to more
        positions = torch.arange(length, device=x.device) + self.cp.get_local_rank() * length
        q, k = rotate(q, positions), rotate(k, positions)
        if self.recomputes:  # nothing in it is random
            mixed = checkpoint(self._attend, q, k, v, positions, use_reentrant=False, preserve_rng_state=False)
        else:
            mixed = self._attend(q, k, v, positions)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        """Causal attention of the queries at ``positions`` to the keys of the whole sequence, (b, heads, s, d)."""
        if self.cp.size() == 1:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        group = self.cp.get_group()
        k, v = (collectives.all_gather_tensor_autograd(t.contiguous(), 2, group) for t in (k, v))
        # of the kernels that take a mask none has grouped heads but the one that stores all scores
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        mask = torch.arange(k.shape[2], device=q.device)[None, :] <= positions[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Mlp(nn.Module):
    """Gated or plain feed-forward network."""

    def __init__(self, hidden: int, ffn: int, gated: bool) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.gate = nn.Linear(hidden, ffn, bias=False) if gated else None
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Output (b, s, h)."""
        up = self.up(x)
        return self.down(F.gelu(up) if self.gate is None else F.silu(self.gate(x)) * up)


class LocalExperts(nn.Module):
    """The experts that this rank holds, each run on its tokens in turn."""

    def __init__(self, experts: dict[str, nn.Module]) -> None:
        super().__init__()
        self.experts = nn.ModuleDict(experts)

    def forward(self, inbox: Tensor, count: Tensor) -> Tensor:
        """Results (tokens, h) for ``inbox`` (tokens, h), sorted by sender and expert; ``count`` (senders, experts)."""
        pieces = list(inbox.split(count.flatten().tolist()))
        senders, here = count.shape
        made: list[list[Tensor]] = [[] for _ in range(senders)]
        for e, expert in enumerate(self.experts.values()):
            mine = [pieces[s * here + e] for s in range(senders)]
            # an expert without tokens still takes part in collectives of its tensor-parallel group
            done = expert(torch.cat(mine)).split([len(piece) for piece in mine])
            for s, piece in enumerate(done):
                made[s].append(piece)
        return torch.cat([piece for row in made for piece in row])


class Experts(nn.Module):
    """A router over all experts, of which this rank holds one of ``ep`` parts; no token is dropped.

    ``make(width)`` builds one expert.
    """

    def __init__(self, spec: TrainSpec, ep: DeviceMesh, make: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.total, self.top_k, self.ep = spec.num_experts, spec.moe_router_topk, ep
        self.router = nn.Linear(spec.hidden_size, spec.num_experts, bias=False)
        share, width = spec.num_experts // spec.ep, spec.moe_ffn_hidden_size
        first = ep.get_local_rank() * share
        self.routed = LocalExperts({str(i): make(width) for i in range(first, first + share)})
        self.shared = make(width * spec.num_shared_experts) if spec.num_shared_experts else None

    def forward(self, x: Tensor) -> Tensor:
        """Output (b, s, h): of the routed experts, by the router's weights, and of the shared one."""
        tokens = x.reshape(-1, x.shape[-1])
        weight, chosen = self.router(tokens).float().softmax(-1).topk(self.top_k, dim=-1)
        order = chosen.flatten().argsort(stable=True)  # routed copies, by expert
        source = order // self.top_k
        count = torch.bincount(chosen.flatten(), minlength=self.total)
        routed, parts = tokens[source], self.ep.size()
        if parts == 1:
            routed = self.routed(routed, count[None, :])
        else:
            arriving, group = torch.empty_like(count), self.ep.get_group()
            dist.all_to_all_single(arriving, count, group=group)
            sent, got = (copies.view(parts, -1).sum(1).tolist() for copies in (count, arriving))
            inbox = _all_to_all(routed, got, sent, group)
            routed = _all_to_all(self.routed(inbox, arriving.view(parts, -1)), sent, got, group)
        out = torch.zeros_like(tokens).index_add(0, source, routed * weight.flatten()[order, None].to(routed.dtype))
        if self.shared is not None:
            out = out + self.shared(tokens)
        return out.view_as(x)


def _all_to_all(x: Tensor, got: list[int], sent: list[int], group: dist.ProcessGroup) -> Tensor:
    """Rows of ``x`` exchanged within a group: so many ``sent`` to and ``got`` from each rank."""
    return collectives.wait_tensor(collectives.all_to_all_single_autograd(x.contiguous(), got, sent, group))


class Layer(nn.Module):
    """One transformer layer, norms before attention and feed-forward network."""

    def __init__(self, spec: TrainSpec, cp: DeviceMesh, ep: DeviceMesh, dense: bool) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(spec.hidden_size, eps=1e-5)
        self.attention = Attention(spec, cp)
        self.norm2 = nn.RMSNorm(spec.hidden_size, eps=1e-5)
        make = partial(Mlp, spec.hidden_size, gated=spec.gated_mlp)
        self.mlp = make(spec.ffn_hidden_size) if dense else Experts(spec, ep, make)

    def forward(self, x: Tensor) -> Tensor:
        """Output (b, s, h)."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Stage(nn.Module):
    """Some ``layers`` of the model, with the embedding or the head where they lie."""

    def __init__(self, spec: TrainSpec, cp: DeviceMesh, ep: DeviceMesh, layers: range, first: bool, last: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(spec.vocab_size, spec.hidden_size) if first else None
        plain = spec.num_dense_layers if spec.num_experts else spec.num_layers
        self.layers = nn.ModuleDict({str(i): Layer(spec, cp, ep, i < plain) for i in layers})
        self.norm = nn.RMSNorm(spec.hidden_size, eps=1e-5) if last else None
        self.head = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False) if last else None

    def forward(self, x: Tensor) -> Tensor:
        """Logits (b, s, vocabulary) of the last stage, hidden states (b, s, h) of every other."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross entropy over the tokens of a micro-batch."""
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())
