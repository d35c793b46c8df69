"""Details of a model beyond its shape, such as activations and dropout: exports need them, predictions do not.

They come from the keys of its Hugging Face configuration; what the file leaves out is the default of that family's
configuration class in transformers, as transformers itself writes files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jointopt.core.errors import JobError
from jointopt.jobs.huggingface import family_of_class
from jointopt.jobs.model import Model


@dataclass(frozen=True)
class RopeScaling:
    """The scaling by which rotary positions reach beyond the length that a model was first trained with."""

    kind: str  # llama3 | yarn | linear | dynamic, as the configuration names it
    factor: float = 1.0
    original_length: int = 0  # tokens
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0


@dataclass(frozen=True)
class Routing:
    """The rule by which tokens choose their experts."""

    score: str = "softmax"  # softmax | sigmoid
    normalised: bool = True  # the weights of the chosen experts add up to one
    scaling: float = 1.0  # of those weights
    aux_loss: float = 0.0
    bias: bool = False  # a bias per expert balances their load (DeepSeek-V3)
    shared_gate: bool = False  # the shared expert has a gate (Qwen2)


@dataclass(frozen=True)
class Details:
    """Details of one model."""

    activation: str = "silu"  # silu | gelu | gelu_tanh | relu | relu2 | quick_gelu; of a gated MLP, its gate's
    norm_epsilon: float = 1e-5
    init_std: float = 0.02
    rotary_base: float = 10000.0
    rotary_percent: float = 1.0
    rope_scaling: RopeScaling | None = None
    max_positions: int = 0  # tokens that the model is made for; 0 = not stated
    parallel_residual: bool = False  # attention and MLP read the same input (GPT-NeoX)
    post_norm: bool = False  # norms after the residual additions (OPT-350M) or on a block's output (OLMo 2)
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    routing: Routing = Routing()


def details_of(model: Model) -> Details:
    """The details of a model: of its configuration, which need not be of a family; the usual ones where it has none.

    Raises JobError where a value of the configuration makes no sense.
    """
    try:
        return _details(model, model.config or {})
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise JobError(f"The configuration of {model.name} has a value that makes no sense: {error}.") from error


OF_TRAINING = ("init_std", "routing.aux_loss")  # how a model is trained, and not what it computes


def differing_details(one: Details, other: Details) -> dict[str, Any]:
    """What ``one`` has of the details that differ, but for dropout and the length that a model is made for."""

    def flat(details: Details) -> dict[str, Any]:
        routing = {f"routing.{name}": value for name, value in vars(details.routing).items()}
        return {**vars(details), "routing": None, **routing}

    left_out = ("max_positions", "attention_dropout", "hidden_dropout")
    return {name: value for name, value in flat(one).items() if value != flat(other)[name] and name not in left_out}


def _details(model: Model, config: Mapping[str, Any]) -> Details:
    family = config.get("model_type") or family_of_class(config.get("architectures"))
    dropout = 0.1 if model.dropout else 0.0
    usual = _DEFAULTS.get(str(family), _LLAMA if model.gated_mlp else {}) if family else {
        "hidden_act": "silu" if model.gated_mlp else "gelu", "attention_dropout": dropout, "hidden_dropout": dropout,
    }  # fmt: skip
    values = usual | {key: value for key, value in config.items() if value is not None}
    rope = values.get("rope_scaling") or values.get("rope_parameters") or {}  # in transformers 5 it holds the base too
    rope = dict(rope) if isinstance(rope, Mapping) else {}
    with_rope = rope | values

    def first(keys: str, default: Any, within: Mapping[str, Any] = values) -> Any:
        return next((within[key] for key in keys.split() if within.get(key) is not None), default)

    scaling, kind = None, str(first("rope_type type", "default", rope))
    if kind != "default":
        keys = ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
        numbers = {key: float(rope[key]) for key in keys if rope.get(key) is not None}
        scaling = RopeScaling(kind, original_length=int(first("original_max_position_embeddings", 0, rope)), **numbers)
    routing = Routing(
        score=str(first("scoring_func moe_router_activation_func", "softmax")),
        normalised=bool(first("norm_topk_prob moe_renormalize", True)),
        scaling=float(first("routed_scaling_factor", 1.0)),
        aux_loss=float(first("router_aux_loss_coef aux_loss_alpha", 0.0)),
        bias=values.get("topk_method") == "noaux_tc",
        shared_gate=bool(first("shared_expert_intermediate_size", 0)),
    )
    named = str(first("hidden_act mlp_hidden_act hidden_activation activation_function activation", "gelu")).lower()
    activation = _ACTIVATIONS.get(named, "other")
    rotated = float(first("rotary_dim", 0)) / model.head_dim if model.head_dim else 0.0
    return Details(
        # GPT-OSS states silu and gates by x * sigmoid(1.702 x), clamped
        activation="quick_gelu" if family == "gpt_oss" else activation,
        norm_epsilon=float(first("rms_norm_eps layer_norm_epsilon layer_norm_eps norm_eps", 1e-5)),
        init_std=float(first("initializer_range init_std", 0.02)),
        rotary_base=float(first("rope_theta rotary_emb_base", 10000.0, with_rope)),
        rotary_percent=float(first("partial_rotary_factor rotary_pct", rotated or 1.0, with_rope)),
        rope_scaling=scaling,
        max_positions=int(first("max_position_embeddings n_positions max_seq_len seq_length model_max_length", 0)),
        parallel_residual=bool(first("use_parallel_residual", False)),
        post_norm=family in ("olmo2", "olmo3") or not first("do_layer_norm_before", True),
        attention_dropout=float(first("attention_dropout attn_pdrop attn_dropout", 0.0)),
        hidden_dropout=float(first("dropout resid_pdrop hidden_dropout resid_dropout", 0.0)),
        routing=routing if model.is_moe else Routing(),
    )


_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "relu2": "relu2", "quick_gelu": "quick_gelu",
}  # fmt: skip
# Defaults of the configuration classes in transformers (configuration_<family>.py), where they differ from those above.
_LLAMA = {"hidden_act": "silu", "rms_norm_eps": 1e-6}
_GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6}
_EXPERTS = {"router_aux_loss_coef": 0.001, "norm_topk_prob": False}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": {"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e6, "router_aux_loss_coef": 0.001},
    "qwen2": _LLAMA,
    "qwen2_moe": _LLAMA | _EXPERTS,
    "qwen3": _LLAMA,
    "qwen3_moe": _LLAMA | _EXPERTS,
    "deepseek_v2": _LLAMA | {"norm_topk_prob": False, "aux_loss_alpha": 0.001, "topk_method": "greedy"},
    "deepseek_v3": _LLAMA | {
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "routed_scaling_factor": 2.5,
    },
    "olmo": {"hidden_act": "silu"},
    "olmo2": {"hidden_act": "silu", "rms_norm_eps": 1e-5},
    "olmo3": {"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0},
    "olmoe": {"hidden_act": "silu", "rms_norm_eps": 1e-5, "router_aux_loss_coef": 0.01, "norm_topk_prob": False},
    "gpt_oss": {
        "rope_theta": 150000.0, "router_aux_loss_coef": 0.001,
        "rope_parameters": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
        },
    },
    "phi3": {"hidden_act": "silu"},
    "gpt2": {"activation_function": "gelu_new", "resid_pdrop": 0.1, "attn_pdrop": 0.1},
    "gpt_neo": {"activation_function": "gelu_new"},
    "gpt_neox": {"hidden_act": "gelu", "rotary_pct": 0.25, "use_parallel_residual": True},
    "opt": {"activation_function": "relu", "dropout": 0.1, "init_std": 0.02},
    "bloom": {"hidden_act": "gelu_new"},
    "mpt": {"hidden_act": "gelu"},
    "falcon": {"hidden_act": "gelu"},
    "gptj": {"activation_function": "gelu_new", "rotary_dim": 64},
    "gemma2": _GEMMA,
    "gemma3": _GEMMA | {"rope_theta": 1e6},
    "gemma3_text": _GEMMA | {"rope_theta": 1e6},
    "nemotron_h": {"mlp_hidden_act": "relu2"},
    "bitnet": {"hidden_act": "relu2", "rope_theta": 500000.0},
    "glm4_moe": {"hidden_act": "silu", "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
}  # fmt: skip
