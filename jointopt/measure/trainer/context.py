"""A rank's place among those that share sequences or experts.

Context parallelism: each rank holds one part of every sequence and gathers the keys and values of all.
"""

from __future__ import annotations

import torch
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh


class Context:
    """The place of this rank's part of a sequence. Parts are contiguous, so later ranks attend to more."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.cp = mesh["cp"].size()
        self.rank = mesh["cp"].get_local_rank()
        self.group = mesh["cp"].get_group()
        self.ep = mesh["ep"].size()
        self.ep_rank = mesh["ep"].get_local_rank()
        self.ep_group = mesh["ep"].get_group()

    def positions(self, length: int, device: torch.device) -> Tensor:
        """Places in the whole sequence of the ``length`` tokens held here."""
        return torch.arange(length, device=device) + self.rank * length

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention of the queries held here to the keys of the whole sequence so far, (b, heads, s, d)."""
        if self.cp == 1:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        k, v = (collectives.all_gather_tensor_autograd(t.contiguous(), 2, self.group) for t in (k, v))
        # of the kernels that take a mask none has grouped heads but the one that stores all scores
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        here = self.positions(q.shape[2], q.device)
        mask = torch.arange(k.shape[2], device=q.device)[None, :] <= here[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
