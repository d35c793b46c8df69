"""The shape of a decoder: a pattern of layers, and what follows from the shape alone: parameter counts."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jointopt.core.schema import evaluate
from jointopt.jobs.catalog.catalog_files import read_yaml

# fields of multi-head latent attention (DeepSeek-V2/V3): those that it needs, and the rank of queries, which may be 0
LATENT_NEEDED = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
LATENT = ("q_lora_rank", *LATENT_NEEDED)
# fields of kinds of attention that few models have
KIND_SIZES = (
    "attention_chunk_size", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
    "linear_value_head_dim", "linear_conv_kernel_dim", "mamba_num_heads", "mamba_head_dim", "mamba_state_dim",
    "mamba_num_groups", "mamba_conv_kernel_dim", "mamba_dt_rank", "conv_kernel_dim", "index_n_heads", "index_head_dim",
    "index_topk",
)  # fmt: skip
# of a cell of `layers`
PATTERN_SIZES = (
    "head_dim", "q_lora_rank", "attention_output_gate", "qk_norm", "sandwich_norm", "moe_latent_size", "o_lora_rank",
    "o_groups", "num_residual_streams", *KIND_SIZES,
)  # fmt: skip
SkipFreq = int | tuple[int, ...]  # of `Model.window_attn_skip_freq`


def skip_freq_text(freq: SkipFreq) -> str:
    """The frequency as a table writes it: ``6``, or ``0;1;0;1``."""
    return ";".join(map(str, freq)) if isinstance(freq, tuple) else str(freq)


@dataclass(frozen=True)
class Layer:
    """One layer of a model: its attention and feed-forward, kinds of ``catalog/layer_kinds.yaml``."""

    attention: str = "full"  # or two kinds side by side, as in full+mamba2
    ffn: str = "dense"
    window: int = 0  # tokens: that a sliding window looks back, or of a chunk; 0: all

    @property
    def mixers(self) -> tuple[str, ...]:
        """The kinds of its attention, mostly one; none where it has no attention."""
        return () if self.attention == "none" else tuple(self.attention.split("+"))

    @property
    def parts(self) -> int:
        """Attention and feed-forward that it has: each begins with a norm and ends with a sum over tensor ranks."""
        return (self.attention != "none") + (self.ffn != "none")


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
    attention_output_gate: bool = False  # a gate, as wide as the queries, on attention's output (Qwen3-Next)
    sandwich_norm: bool = False  # a second norm on the output of attention and of the MLP (Gemma 2 and 3)
    qk_norm: bool = False
    qk_norm_full: bool = False  # over all heads at once (OLMo 2, OLMoE) instead of per head (Qwen3)
    embedding_size: int = 0  # width of the word embedding where it differs from hidden_size (OPT-350M)
    num_experts: int = 0
    moe_router_topk: int = 0
    moe_ffn_hidden_size: int = 0
    moe_latent_size: int = 0  # width of tokens at routed experts, where it is not hidden_size (Nemotron 3 Super)
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
    # layers one by one, where the fields above do not say what they are (`Model.pattern`)
    layers: tuple[Layer, ...] = ()
    attention_chunk_size: int = 0  # tokens of a chunk (Llama 4)
    # linear attention (Qwen3-Next, Kimi Linear)
    linear_num_key_heads: int = 0
    linear_num_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_conv_kernel_dim: int = 0
    # state spaces (Mamba, Mamba-2)
    mamba_num_heads: int = 0
    mamba_head_dim: int = 0
    mamba_state_dim: int = 0
    mamba_num_groups: int = 0
    mamba_conv_kernel_dim: int = 0
    mamba_dt_rank: int = 0  # of Mamba alone
    conv_kernel_dim: int = 0  # short convolutions (LFM2's conv_L_cache)
    # the indexer of sparse attention, and the tokens that it leaves (DeepSeek-V3.2)
    index_n_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    # output projection by groups of heads, and residual streams of hyper-connections (DeepSeek-V4)
    o_lora_rank: int = 0
    o_groups: int = 0
    num_residual_streams: int = 0
    block: str = ""  # one of `MODEL_BLOCKS`, whose missing parts have size 0
    other: tuple[str, ...] = ()  # facts without a field or a formula, by their names in ``catalog/model_facts.yaml``
    # the Hugging Face configuration it was read from; `jointopt.jobs.details` reads finer points in it
    config: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def is_moe(self) -> bool:
        """Whether some layers have routed experts."""
        return self.num_experts > 0

    @property
    def pattern(self) -> tuple[Layer, ...]:
        """The layers in order: as ``layers`` states them, else as windows, experts, latents and the block make them."""
        return _pattern(self)

    @property
    def has_attention(self) -> bool:
        """Whether some layers have attention."""
        return any(layer.attention != "none" for layer in self.pattern)

    @property
    def windowed_layers(self) -> tuple[bool, ...]:
        """Of each layer whether it looks back some tokens only, as Megatron Core's window attention does."""
        return tuple(layer.window > 0 for layer in self.pattern)

    @property
    def window_cells(self) -> dict[str, Any]:
        """Cells of a table's row: window_size and window_attn_skip_freq, or layers; none of a model that needs none."""
        if self.layers:
            return {"layers": pattern_text(self)}
        freq = self.window_attn_skip_freq
        where = {"window_attn_skip_freq": skip_freq_text(freq)} if freq else {}
        return {"window_size": self.window_size} | where if any(self.windowed_layers) else {}

    @property
    def attention_cells(self) -> dict[str, Any]:
        """Cells of a table's row on layers, windows, latent attention and ALiBi, those that the model has."""
        cells = self.window_cells | ({name: getattr(self, name) for name in LATENT} if self.kv_lora_rank else {})
        alibi = self.has_attention and self.position_embedding == "alibi"
        return cells | ({"position_embedding": "alibi"} if alibi else {})

    @property
    def has_scores(self) -> bool:
        """Whether some layers have softmax attention, whose heads tensor parallelism splits."""
        return any("scores" in kinds_of("attention")[kind] for layer in {*self.pattern} for kind in layer.mixers)

    @property
    def mixer_heads(self) -> int:
        """What tp must divide for attention without scores: the common divisor of its heads and groups; 0 for none."""
        rows = [row for kind in mixers_of(self) for row in kinds_of("attention")[kind]["heads"]]
        return math.gcd(*(int(evaluate(row, vars(self))) for row in rows))

    @property
    def has_mlp(self) -> bool:
        """Whether some layers have an MLP, or experts."""
        return any(layer.ffn != "none" for layer in self.pattern)

    @property
    def parts_per_layer(self) -> int:
        """`Layer.parts` of the first layer, which are those of all where no pattern is stated."""
        return self.pattern[0].parts

    def size_cells(self, names: Iterable[str]) -> dict[str, Any]:
        """Cells of a table's row: the fields ``names``, and of a block ``block`` too, with None for sizes of 0."""
        sizes = {name: getattr(self, name) for name in names}
        of_block = {name: value or None for name, value in sizes.items()} | {"block": self.block}
        return of_block if self.block else sizes

    @property
    def num_moe_layers(self) -> int:
        """Layers with routed experts."""
        return sum(layer.ffn == "experts" for layer in self.pattern)

    @property
    def num_plain_layers(self) -> int:
        """Layers with a dense MLP; of attention alone, all."""
        return (
            self.num_layers - self.num_moe_layers if not self.layers else sum(one.ffn == "dense" for one in self.layers)
        )

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention projections, without biases and norms: of full, or of latent attention."""
        return self.mixer_weights("mla" if self.kv_lora_rank else "full")

    @property
    def head_widths(self) -> tuple[int, int]:
        """Widths of a head's queries and keys, and of its values, in full or latent attention."""
        latent = self.qk_nope_head_dim + self.qk_rope_head_dim, self.v_head_dim
        return latent if self.kv_lora_rank else (self.head_dim, self.head_dim)

    def mixer_weights(self, kind: str) -> int:
        """Weights of the matrices of one kind of attention."""
        return sum(inputs * outputs for inputs, outputs, _ in products_of(self, kind).values())

    @property
    def layer_weights(self) -> float:
        """Weights that a token is multiplied with in a layer: of an MoE model in one with experts.

        The mean of all layers where a pattern is stated.
        """
        routed = self.moe_router_topk * self.expert_parameters + self.shared_expert_parameters + self.latent_parameters
        ffn = {"none": 0, "dense": self.dense_mlp_parameters, "experts": routed}
        of = {layer: sum(map(self.mixer_weights, layer.mixers)) + ffn[layer.ffn] for layer in {*self.layers}}
        if not self.layers:
            return self.attention_parameters + (routed if self.is_moe else self.dense_mlp_parameters)
        return sum(of[layer] for layer in self.layers) / len(self.layers)

    @property
    def dense_mlp_parameters(self) -> int:
        """Weights of one dense layer's MLP, without biases."""
        return (3 if self.gated_mlp else 2) * self.hidden_size * self.ffn_hidden_size

    @property
    def expert_input_size(self) -> int:
        """Width of the tokens that routed experts get and give."""
        return self.moe_latent_size or self.hidden_size

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert, without biases."""
        return (3 if self.gated_mlp else 2) * self.expert_input_size * self.moe_ffn_hidden_size

    @property
    def shared_expert_parameters(self) -> int:
        """Weights of a layer's shared experts, without biases."""
        return (3 if self.gated_mlp else 2) * self.hidden_size * self.moe_ffn_hidden_size * self.num_shared_experts

    @property
    def latent_parameters(self) -> int:
        """Weights of a layer that bring tokens to the width of its experts and back."""
        return 2 * self.hidden_size * self.moe_latent_size

    @property
    def expert_bias_parameters(self) -> int:
        """Biases of one routed expert."""
        inner = (2 if self.gated_mlp else 1) * self.moe_ffn_hidden_size
        return (inner + self.hidden_size) * self.moe_linear_bias

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm of width ``hidden_size``."""
        return self.hidden_size * (int(self.norm_weight) + int(self.norm_bias))

    def layer_parameters(self, layer: Layer) -> int:
        """All parameters of one such layer."""
        own = sum(self.mixer_weights(kind) + int(evaluated(self, kind, "small")) for kind in layer.mixers)
        own += layer.parts * self.norm_parameters * (2 if self.sandwich_norm else 1)
        n = self.num_residual_streams
        own += layer.parts * n * (n + 2) * n * self.hidden_size  # of hyper-connections, from all streams
        if layer.ffn == "dense":
            inner = (2 if self.gated_mlp else 1) * self.ffn_hidden_size
            own += self.dense_mlp_parameters + (inner + self.hidden_size) * self.linear_bias
        if layer.ffn == "experts":
            one = self.expert_parameters + self.expert_bias_parameters
            own += self.num_experts * one + self.num_shared_experts * self.expert_bias_parameters
            own += self.shared_expert_parameters + self.latent_parameters
            own += (self.hidden_size + self.moe_linear_bias) * self.num_experts
        return own

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
        layers = sum(map(self.layer_parameters, self.pattern))
        final = self.norm_parameters if self.final_norm else 0
        return layers + self.embedding_parameters + final + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: all but the routed experts it is not sent to."""
        idle = self.num_experts - self.moe_router_topk if self.is_moe else 0
        one = self.expert_parameters + self.expert_bias_parameters
        return self.parameters - self.num_moe_layers * idle * one


# Layers one by one, and what `catalog/layer_kinds.yaml` says of their kinds.


def kinds_of(part: str) -> Mapping[str, Mapping[str, Any]]:
    """The kinds of ``attention`` or of ``ffn`` by name, as ``catalog/layer_kinds.yaml`` has them."""
    kinds: Mapping[str, Mapping[str, Any]] = read_yaml("layer_kinds.yaml")[part]
    return kinds


def mixers_of(model: Model) -> list[str]:
    """Kinds of attention without scores that the model has."""
    found = dict.fromkeys(kind for layer in model.pattern for kind in layer.mixers)
    return [kind for kind in found if "scores" not in kinds_of("attention")[kind]]


def assumed_kinds(model: Model) -> list[str]:
    """Kinds of attention in the model of which no recorded run is known: rates of their kernels are assumed."""
    found = dict.fromkeys(kind for layer in model.pattern for kind in layer.mixers)
    return [kind for kind in found if kinds_of("attention")[kind].get("assumed")]


@functools.lru_cache(maxsize=4096)
def products_of(model: Model, kind: str) -> dict[str, tuple[int, int, str]]:
    """The linear layers of one kind of attention by name: inputs, outputs, and how tensor parallelism cuts them."""
    stated, fields = kinds_of("attention")[kind].get("products", {}), vars(model)
    found = {name: (*(int(evaluate(str(size), fields)) for size in row[:2]), row[2]) for name, row in stated.items()}
    return {name: (row[0], row[1], row[2]) for name, row in found.items() if row[0] and row[1]}


@functools.lru_cache(maxsize=4096)
def evaluated(model: Model, kind: str, name: str) -> int | float:
    """The number that an entry of one kind of attention states for this model; 0 where it has none."""
    found: int | float = evaluate(str(kinds_of("attention")[kind].get(name, 0)), vars(model))
    return found


@functools.lru_cache(maxsize=1024)
def _pattern(model: Model) -> tuple[Layer, ...]:
    if model.layers:
        return model.layers
    freq, attention = model.window_attn_skip_freq, "mla" if model.kv_lora_rank else "full"
    if model.block == "feed_forward":
        attention = "none"
    ffns = ["none" if model.block == "attention" else "experts" if model.is_moe else "dense"] * model.num_layers
    ffns[: model.num_dense_layers if model.is_moe else 0] = ["dense"] * (model.num_dense_layers if model.is_moe else 0)
    found = []
    for at, ffn in enumerate(ffns):
        skips = freq[at % len(freq)] == 0 if isinstance(freq, tuple) else bool(freq) and (at + 1) % freq == 0
        window = 0 if skips or attention == "none" else model.window_size
        found.append(Layer("sliding" if window and attention == "full" else attention, ffn, window))
    return tuple(found)


def pattern_text(model: Model) -> str:
    """The layers of a model as a cell has them: ``3*mamba2:experts;full:experts;mamba_num_heads=128``.

    Sizes that no other column has follow the layers, which repeat to the model's depth.
    """
    words = [f"{one.attention}{f'@{one.window}' if one.window else ''}:{one.ffn}" for one in model.layers]
    turn = next(n for n in range(1, len(words) + 1) if len(words) % n == 0 and words[:n] * (len(words) // n) == words)
    runs = [(word, len(list(alike))) for word, alike in itertools.groupby(words[:turn])]
    sizes = [f"{name}={int(size)}" for name in PATTERN_SIZES if (size := getattr(model, name))]
    return ";".join([*(f"{count}*{word}" if count > 1 else word for word, count in runs), *sizes])


# Workloads below a model: some layers of it, or attention or the MLP of them alone, without embedding and head.


# what neither attention nor an MLP has: the word embedding, positions, the output matrix, tokens predicted further
_ENDS: dict[str, Any] = {
    "vocab_size": 0, "max_position_embeddings": 0, "embedding_size": 0, "mtp_num_layers": 0, "tied_embeddings": False,
    "final_norm": False, "embedding_norm": False,
}  # fmt: skip
_MLP: dict[str, Any] = {
    "ffn_hidden_size": 0, "num_experts": 0, "moe_router_topk": 0, "moe_ffn_hidden_size": 0, "moe_latent_size": 0,
    "num_shared_experts": 0, "moe_router_num_groups": 0, "moe_router_group_topk": 0, "moe_linear_bias": False,
}  # fmt: skip
_ATTENTION: dict[str, Any] = {
    "num_attention_heads": 0, "num_query_groups": 0, "qkv_bias": False, "attention_sinks": False,
    "qk_norm": False, "qk_norm_full": False, "q_lora_rank": 0, "kv_lora_rank": 0, "qk_nope_head_dim": 0,
    "qk_rope_head_dim": 0, "v_head_dim": 0, "window_size": 0, "window_attn_skip_freq": 0,
    "attention_output_gate": False, **dict.fromkeys(KIND_SIZES, 0),
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
    if model.layers:
        part = {"attention": "attention", "feed_forward": "ffn"}.get(block)
        able = [one for one in model.layers if not part or getattr(one, part) != "none"]
        usual = [one for one in able if one.ffn == "experts"] or able
        parts: dict[str, dict[str, Any]] = {
            "attention": {"ffn": "none"}, "feed_forward": {"attention": "none", "window": 0},
        }  # fmt: skip
        left_out = parts.get(block, {})
        layers = tuple(replace(one, **left_out) for one in itertools.islice(itertools.cycle(usual), num_layers))
        alike = not model.kv_lora_rank and {(one.attention, one.window) for one in layers} == {("full", 0)}
        without |= {"layers": () if alike else layers}
    return replace(
        model, block=block, num_layers=num_layers, name=name or f"{model.name}-{block}", config=None,
        position_embedding=positions, **without,
    )  # fmt: skip
