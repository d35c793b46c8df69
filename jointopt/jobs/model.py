"""The shape of a decoder-only transformer, and what follows from the shape alone: parameter counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

# fields of multi-head latent attention (DeepSeek-V2/V3): those that it needs, and the rank of queries, which may be 0
LATENT_NEEDED = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
LATENT = ("q_lora_rank", *LATENT_NEEDED)
SkipFreq = int | tuple[int, ...]  # of `Model.window_attn_skip_freq`


def skip_freq_text(freq: SkipFreq) -> str:
    """The frequency as a table writes it: ``6``, or ``0;1;0;1``."""
    return ";".join(map(str, freq)) if isinstance(freq, tuple) else str(freq)


@dataclass(frozen=True)
class Model:
    """One model shape; names follow Megatron-LM. Zero experts = dense."""

    name: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int  # of dense layers
    num_attention_heads: int
    num_query_groups: int  # KV heads
    vocab_size: int
    head_dim: int  # Megatron's kv_channels
    gated_mlp: bool = True
    tied_embeddings: bool = False
    position_embedding: str = "rope"  # rope | learned | alibi | none
    max_position_embeddings: int = 0  # rows of a learned table
    rmsnorm: bool = True
    norm_weight: bool = True  # False: norms without parameters (OLMo)
    norm_bias: bool = False  # LayerNorm with a bias
    final_norm: bool = True  # False: none after the last layer (OPT-350M)
    embedding_norm: bool = False  # a norm after the word embedding (BLOOM)
    dropout: bool = False  # dropout masks are kept for the backward pass
    score_dropout: bool = True  # where there is dropout, of the attention scores too (OPT: not)
    linear_bias: bool = False  # biases on attention and MLP projections
    qkv_bias: bool = False  # biases on q, k, v only (Qwen2)
    attention_sinks: bool = False  # a learned logit per head in the softmax (GPT-OSS)
    qk_norm: bool = False
    qk_norm_full: bool = False  # over all heads at once (OLMo 2, OLMoE) instead of per head (Qwen3)
    embedding_size: int = 0  # width of the word embedding where it differs from hidden_size (OPT-350M)
    num_experts: int = 0
    moe_router_topk: int = 0
    moe_ffn_hidden_size: int = 0
    moe_linear_bias: bool = False  # biases on experts and the router (GPT-OSS)
    num_shared_experts: int = 0
    # group-limited routing: a token's experts lie in so many of so many groups of experts; 0 = no groups
    moe_router_num_groups: int = 0
    moe_router_group_topk: int = 0
    num_dense_layers: int = 0  # leading dense layers of an MoE model (DeepSeek)
    mtp_num_layers: int = 0  # multi-token-prediction layers after the last one (DeepSeek-V3)
    # multi-head latent attention (DeepSeek-V2/V3); kv_lora_rank = 0 means ordinary attention
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    # sliding windows: tokens that a layer looks back (0 = all), in every layer (0), in all but every N-th, or in those
    # that have a 1
    window_size: int = 0
    window_attn_skip_freq: SkipFreq = 0
    block: str = ""  # one of `MODEL_BLOCKS`, whose missing parts have size 0
    other: tuple[str, ...] = ()  # facts without a field or a formula, by their names in ``catalog/model_facts.yaml``
    # the Hugging Face configuration it was read from; `jointopt.jobs.details` reads finer points in it
    config: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def is_moe(self) -> bool:
        """Whether some layers have routed experts."""
        return self.num_experts > 0

    @property
    def has_attention(self) -> bool:
        """Whether its layers have attention."""
        return self.block != "feed_forward"

    @property
    def windowed_layers(self) -> tuple[bool, ...]:
        """Of each layer whether it looks back ``window_size`` tokens only, as Megatron Core's window attention does."""
        freq, numbers = self.window_attn_skip_freq, range(1, self.num_layers + 1)
        if not self.window_size:
            return (False,) * self.num_layers
        if isinstance(freq, tuple):
            return tuple(bool(freq[(number - 1) % len(freq)]) for number in numbers)
        return tuple(not freq or number % freq != 0 for number in numbers)

    @property
    def window_cells(self) -> dict[str, Any]:
        """Cells of a table's row: window_size and window_attn_skip_freq, none where all layers see all tokens."""
        freq = self.window_attn_skip_freq
        where = {"window_attn_skip_freq": skip_freq_text(freq)} if freq else {}
        return {"window_size": self.window_size} | where if any(self.windowed_layers) else {}

    @property
    def attention_cells(self) -> dict[str, Any]:
        """Cells of a table's row on windows, latent attention and ALiBi, those that the model has."""
        cells = self.window_cells | ({name: getattr(self, name) for name in LATENT} if self.kv_lora_rank else {})
        alibi = self.has_attention and self.position_embedding == "alibi"
        return cells | ({"position_embedding": "alibi"} if alibi else {})

    @property
    def has_mlp(self) -> bool:
        """Whether its layers have an MLP, or experts."""
        return self.block != "attention"

    @property
    def parts_per_layer(self) -> int:
        """Attention, and MLP or experts: each begins with a norm, and ends with the sum over tensor ranks."""
        return int(self.has_attention) + int(self.has_mlp)

    def size_cells(self, names: Iterable[str]) -> dict[str, Any]:
        """Cells of a table's row: the fields ``names``, and of a block ``block`` too, with None for sizes of 0."""
        sizes = {name: getattr(self, name) for name in names}
        of_block = {name: value or None for name, value in sizes.items()} | {"block": self.block}
        return of_block if self.block else sizes

    @property
    def num_moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.num_layers - self.num_dense_layers if self.is_moe else 0

    @property
    def num_plain_layers(self) -> int:
        """Layers with a dense MLP: all of a dense model, the leading ones of an MoE model."""
        return self.num_layers - self.num_moe_layers

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention projections, without biases and norms."""
        h, a = self.hidden_size, self.num_attention_heads
        if self.kv_lora_rank:
            qk = self.qk_nope_head_dim + self.qk_rope_head_dim
            q = h * self.q_lora_rank + self.q_lora_rank * a * qk if self.q_lora_rank else h * a * qk
            kv = h * (self.kv_lora_rank + self.qk_rope_head_dim)
            kv += self.kv_lora_rank * a * (self.qk_nope_head_dim + self.v_head_dim)
            return q + kv + a * self.v_head_dim * h
        return h * self.head_dim * (2 * a + 2 * self.num_query_groups)

    @property
    def dense_mlp_parameters(self) -> int:
        """Weights of one dense layer's MLP, without biases."""
        return (3 if self.gated_mlp else 2) * self.hidden_size * self.ffn_hidden_size

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert, without biases."""
        return (3 if self.gated_mlp else 2) * self.hidden_size * self.moe_ffn_hidden_size

    @property
    def expert_bias_parameters(self) -> int:
        """Biases of one routed expert."""
        inner = (2 if self.gated_mlp else 1) * self.moe_ffn_hidden_size
        return (inner + self.hidden_size) * self.moe_linear_bias

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm of width ``hidden_size``."""
        return self.hidden_size * (int(self.norm_weight) + int(self.norm_bias))

    @property
    def norm_bias_parameters(self) -> int:
        """Parameters of one layer that are in no matrix: norms, biases and sinks, without the biases of experts."""
        heads, groups = self.num_attention_heads, self.num_query_groups
        norms = self.parts_per_layer * self.norm_parameters
        # those inside attention: on the latents (multi-head latent attention), on queries and keys
        norms += self.q_lora_rank + self.kv_lora_rank if self.kv_lora_rank else 0
        norms += (heads + groups if self.qk_norm_full else 2) * self.head_dim * self.qk_norm
        qkv = (heads + 2 * groups) * self.head_dim
        biases = qkv * self.qkv_bias
        if self.linear_bias:
            mlp = (2 if self.gated_mlp else 1) * self.ffn_hidden_size + self.hidden_size
            biases = (qkv + self.hidden_size) * self.has_attention + mlp * (self.has_mlp and not self.is_moe)
        return norms + biases + heads * self.attention_sinks

    @property
    def dense_layer_parameters(self) -> int:
        """All parameters of one layer with a dense MLP."""
        return self.attention_parameters + self.dense_mlp_parameters + self.norm_bias_parameters

    @property
    def moe_layer_parameters(self) -> int:
        """All parameters of one layer with routed experts; 0 for a dense model."""
        one = self.expert_parameters + self.expert_bias_parameters
        experts = (self.num_experts + self.num_shared_experts) * one
        router = (self.hidden_size + self.moe_linear_bias) * self.num_experts
        whole = self.attention_parameters + router + experts + self.norm_bias_parameters
        return whole if self.is_moe else 0

    @property
    def embedding_parameters(self) -> int:
        """Word embedding, learned position table, the norm after them, projections of a narrower embedding."""
        width = self.embedding_size or self.hidden_size
        projections = 2 * width * self.hidden_size if width != self.hidden_size else 0
        positions = self.max_position_embeddings if self.position_embedding == "learned" else 0
        norm = self.norm_parameters if self.embedding_norm else 0
        return self.vocab_size * width + positions * self.hidden_size + projections + norm

    @property
    def head_parameters(self) -> int:
        """The output matrix; 0 where it is the word embedding itself."""
        return 0 if self.tied_embeddings else self.vocab_size * (self.embedding_size or self.hidden_size)

    @property
    def parameters(self) -> int:
        """All parameters; multi-token-prediction modules are not counted."""
        layers = self.num_plain_layers * self.dense_layer_parameters
        layers += self.num_moe_layers * self.moe_layer_parameters
        final = self.norm_parameters if self.final_norm else 0
        return layers + self.embedding_parameters + final + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: all but the routed experts it is not sent to."""
        idle = self.num_experts - self.moe_router_topk if self.is_moe else 0
        one = self.expert_parameters + self.expert_bias_parameters
        return self.parameters - self.num_moe_layers * idle * one


# Workloads below a model: some layers of it, or attention or the MLP of them alone, without embedding and head.


# what neither attention nor an MLP has: the word embedding, positions, the output matrix, tokens predicted further
_ENDS: dict[str, Any] = {
    "vocab_size": 0, "max_position_embeddings": 0, "embedding_size": 0, "mtp_num_layers": 0, "tied_embeddings": False,
    "final_norm": False, "embedding_norm": False,
}  # fmt: skip
_MLP: dict[str, Any] = {
    "ffn_hidden_size": 0, "num_experts": 0, "moe_router_topk": 0, "moe_ffn_hidden_size": 0, "num_shared_experts": 0,
    "moe_router_num_groups": 0, "moe_router_group_topk": 0, "moe_linear_bias": False,
}  # fmt: skip
_ATTENTION: dict[str, Any] = {
    "num_attention_heads": 0, "num_query_groups": 0, "qkv_bias": False, "attention_sinks": False,
    "qk_norm": False, "qk_norm_full": False, "q_lora_rank": 0, "kv_lora_rank": 0, "qk_nope_head_dim": 0,
    "qk_rope_head_dim": 0, "v_head_dim": 0, "window_size": 0, "window_attn_skip_freq": 0,
}  # fmt: skip
# by block, the columns of tables on parts of a model that it is without
NOT_IN_BLOCK = {
    "layer": ("vocab_size",), "attention": ("vocab_size", "ffn_hidden_size", "gated_mlp"),
    "feed_forward": ("vocab_size", "num_attention_heads", "num_query_groups"),
}  # fmt: skip
_WITHOUT = {"layer": {}, "attention": _MLP, "feed_forward": _ATTENTION}


def block_of(model: Model, block: str, num_layers: int = 1, name: str = "") -> Model:
    """``num_layers`` layers of the model, or their attention or MLP alone, as a workload of its own.

    ``block`` is one of `MODEL_BLOCKS`; sizes of parts that it leaves out are 0. Activations come in and go out and the
    gradient of those that come in is computed, as in the middle of a model. Layers are those with experts, if any.
    """
    # positions other than RoPE are added to the embedding, or to scores at no cost
    positions = "rope" if model.position_embedding == "rope" and block != "feed_forward" else "alibi"
    freq = model.window_attn_skip_freq
    if isinstance(freq, tuple):  # again from the first layer's where the block has more layers than the model
        freq = tuple(freq[at % len(freq)] for at in range(num_layers))
    without = _ENDS | {"num_dense_layers": 0, "window_attn_skip_freq": freq} | _WITHOUT[block]
    return replace(
        model, block=block, num_layers=num_layers, name=name or f"{model.name}-{block}", config=None,
        position_embedding=positions, **without,
    )  # fmt: skip
