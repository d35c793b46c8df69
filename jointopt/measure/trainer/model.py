"""A decoder-only transformer of any shape of the catalogue: grouped attention, plain or gated MLP, mixture of experts.

Parameters are named by their place in the whole model (layer 7 is ``layers.7`` on whatever stage it lies), so that
every layout can be given the same initial weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from jointopt.measure.trainer.context import Context
from jointopt.measure.trainer.experts import Experts
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

    def __init__(self, spec: TrainSpec, context: Context) -> None:
        super().__init__()
        self.head_dim = spec.head_dim
        self.context = context
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
        positions = self.context.positions(length, x.device)
        q, k = rotate(q, positions), rotate(k, positions)
        attend = self.context.attend
        if self.recomputes:  # nothing in it is random
            mixed = checkpoint(attend, q, k, v, use_reentrant=False, preserve_rng_state=False)
        else:
            mixed = attend(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


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


class Layer(nn.Module):
    """One transformer layer, norms before attention and feed-forward network."""

    def __init__(self, spec: TrainSpec, context: Context, dense: bool) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(spec.hidden_size, eps=1e-5)
        self.attention = Attention(spec, context)
        self.norm2 = nn.RMSNorm(spec.hidden_size, eps=1e-5)

        def mlp(width: int) -> Mlp:
            return Mlp(spec.hidden_size, width, spec.gated_mlp)

        self.mlp = mlp(spec.ffn_hidden_size) if dense else Experts(spec, context, mlp)

    def forward(self, x: Tensor) -> Tensor:
        """Output (b, s, h)."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Stage(nn.Module):
    """Some ``layers`` of the model, with the embedding or the head where they lie."""

    def __init__(self, spec: TrainSpec, context: Context, layers: range, first: bool, last: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(spec.vocab_size, spec.hidden_size) if first else None
        plain = spec.num_dense_layers if spec.num_experts else spec.num_layers
        self.layers = nn.ModuleDict({str(i): Layer(spec, context, i < plain) for i in layers})
        self.norm = nn.RMSNorm(spec.hidden_size, eps=1e-5) if last else None
        self.head = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False) if last else None

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the last stage, hidden states of every other."""
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
