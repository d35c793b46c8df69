"""The input of the trainer, as a JSON file: one model, one plan, how long to run. No torch in this file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

JUDGED_ON = 3  # measured iterations: the least of them is taken for what the others would need at least


@dataclass(frozen=True)
class TrainSpec:
    """One run; dp*tp*pp*cp is the number of processes, and ``recompute`` is none, selective or full."""

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    head_dim: int
    vocab_size: int
    gated_mlp: bool
    num_experts: int
    moe_router_topk: int
    moe_ffn_hidden_size: int
    num_shared_experts: int
    num_dense_layers: int
    seq_length: int
    global_batch_size: int
    dtype: str
    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    vpp: int
    micro_batch_size: int
    sequence_parallel: bool
    recompute: str
    zero_stage: int
    warmup_iterations: int = 3
    iterations: int = 10
    least_s: float = 0.0  # measure more iterations where these take less
    behind_s: float = 0.0  # end where each of the first iterations takes longer; 0: never
    prints: bool = False  # print each measured iteration, for a launcher that reads the log meanwhile
    gpu: str = ""  # of the catalogue: training on another one, or on cores, is refused; blank = any
    cores: bool = False  # train on the processor, whether or not there is a GPU
    selective_share: float = 0.0  # of the layers selective recomputation runs whole; 0: only attention cores
    seed: int = 0
    learning_rate: float = 1e-3

    def text(self) -> str:
        """The JSON document of the fields."""
        return json.dumps(asdict(self), indent=1)
