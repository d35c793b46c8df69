"""Mixture of experts without dropped tokens; expert parallelism by two all-to-alls of the routed tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor, nn

from jointopt.measure.trainer.context import Context
from jointopt.measure.trainer.spec import TrainSpec


class LocalExperts(nn.Module):
    """The experts that this rank holds, each run on its tokens in turn."""

    def __init__(self, experts: dict[str, nn.Module]) -> None:
        super().__init__()
        self.experts = nn.ModuleDict(experts)

    def forward(self, inbox: Tensor, count: Tensor) -> Tensor:
        """Results for tokens that lie by sender and then by expert; ``count`` (senders, experts) of them each."""
        pieces = list(inbox.split(count.flatten().tolist()))
        senders, held = count.shape
        made: list[list[Tensor]] = [[] for _ in range(senders)]
        for e, expert in enumerate(self.experts.values()):
            mine = [pieces[s * held + e] for s in range(senders)]
            # an expert without tokens still takes part in collectives of its tensor-parallel group
            done = expert(torch.cat(mine)).split([len(piece) for piece in mine])
            for s, piece in enumerate(done):
                made[s].append(piece)
        return torch.cat([piece for row in made for piece in row])


class Experts(nn.Module):
    """A router over all experts, of which this rank holds every ``ep``-th part; ``make`` builds one expert."""

    def __init__(self, spec: TrainSpec, context: Context, make: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.total, self.top_k = spec.num_experts, spec.moe_router_topk
        self.context = context
        share = spec.num_experts // spec.ep
        self.first = context.ep_rank * share
        self.router = nn.Linear(spec.hidden_size, spec.num_experts, bias=False)
        width = spec.moe_ffn_hidden_size
        self.routed = LocalExperts({str(i): make(width) for i in range(self.first, self.first + share)})
        self.shared = make(width * spec.num_shared_experts) if spec.num_shared_experts else None

    def forward(self, x: Tensor) -> Tensor:
        """Output of the routed experts for every token."""
        tokens = x.reshape(-1, x.shape[-1])
        weight, chosen = self.router(tokens).float().softmax(-1).topk(self.top_k, dim=-1)
        order = chosen.flatten().argsort(stable=True)  # routed copies, by expert
        source = order // self.top_k
        count = torch.bincount(chosen.flatten(), minlength=self.total)
        routed = self._exchanged(tokens[source], count)
        out = torch.zeros_like(tokens).index_add(0, source, routed * weight.flatten()[order, None].to(routed.dtype))
        if self.shared is not None:
            out = out + self.shared(tokens)
        return out.view_as(x)

    def _exchanged(self, routed: Tensor, count: Tensor) -> Tensor:
        """Outputs of the experts for ``routed`` tokens, sorted by expert; ``count`` (experts,) of them each."""
        parts = self.context.ep
        if parts == 1:
            return self.routed(routed, count[None, :])
        arriving = torch.empty_like(count)
        dist.all_to_all_single(arriving, count, group=self.context.ep_group)
        sent = count.view(parts, -1).sum(1).tolist()
        got = arriving.view(parts, -1).sum(1).tolist()
        inbox = _all_to_all(routed, got, sent, self.context.ep_group)
        return _all_to_all(self.routed(inbox, arriving.view(parts, -1)), sent, got, self.context.ep_group)


def _all_to_all(x: Tensor, got: list[int], sent: list[int], group: dist.ProcessGroup) -> Tensor:
    out = collectives.all_to_all_single_autograd(x.contiguous(), got, sent, group)
    return collectives.wait_tensor(out)
