"""Options of Megatron-LM: on a command line, or as its log lists them; Bridge and NeMo share their names.

Options whose values stand for themselves are read by the table that exports write by; code has the others.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jointopt.core.schema import FP8_RECIPES, TOKEN_DISPATCHERS
from jointopt.measure.exports.options import option_table, without_effect
from jointopt.measure.imports.taken import Options, Taken, flags_of, pairs_of, stated
from jointopt.measure.logs.conditions import version_by_options

SHAPE = ("num_layers", "hidden_size")  # who has both is a Megatron command line
_DUMP = re.compile(r"^\s*(\w+) \.{3,} ?(.*?)\s*$")


_FORMATS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "uint8": "fp8"}


# options that a command line or a log without them has not on
OFF = {"overlap_grad_reduce": False, "tp_comm_overlap": False}


def words_taken(words: list[str]) -> Taken:
    """The statements of the words of a command line."""
    return options_taken(dict(pairs_of(words)), "Megatron-LM options")


def dump_taken(text: str) -> Taken | None:
    """The statements of the arguments that Megatron lists at its start; None where a log holds no such list."""
    found = (_DUMP.match(line) for line in text.splitlines())
    values = {match[1]: _literal(match[2]) for match in found if match}
    if not set(SHAPE) <= values.keys():
        return None
    taken = options_taken(OFF | values, "Megatron-LM log")
    taken.version = version_by_options(values)
    taken.without_effect += len(taken.unread)  # Megatron knows them all
    taken.unread = ()
    return taken


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def options_taken(values: Mapping[str, Any], form: str) -> Taken:
    """The statements of Megatron's options, by name with underscores; defaults are those of its parser."""
    options = Options(values)
    flags = matter_of(options)
    taken = Taken(
        form, "megatron-lm", model=model_of(options), training=_training(options), plan=plan_of(options),
        cluster=stated(num_gpus=options.whole("world_size")), flags=flags,
    )  # fmt: skip
    if not taken.model.get("num_experts"):  # Megatron sets it to tp for dense models too
        taken.plan.pop("etp", None)
    chunks = chunks_of(options)
    if layers := taken.model.get("num_layers"):
        taken.plan |= chunks(taken.plan, layers)
    else:
        taken.rest = chunks
    taken.unread, taken.without_effect = options.left(without_effect("megatron"))
    return taken


def matter_of(options: Options) -> dict[str, Any]:
    """The options that change an iteration's time beside the plan and the job, by their names."""
    named = {name.replace("-", "_"): option for name, option in option_table("megatron").items()}
    return flags_of({name: options.take(name, *option.also) for name, option in named.items() if option.matters})


def _plain(options: Options, section: str) -> dict[str, Any]:
    """Numbers and flags that options state as they stand, of one section: the plan, the model or the training."""
    found = {}
    for name, option in option_table("megatron").items():
        place, _, key = option.sets.partition(".")
        if place == section and not key.endswith("_dtype"):
            found[key] = options.plain(*(one.replace("-", "_") for one in (name, *option.also)))
    return stated(**found)


def model_of(options: Options) -> dict[str, Any]:
    """The shape, in the keys of `jointopt.jobs.model.Model`."""
    shape = _plain(options, "model")
    hidden, heads, gated = shape.get("hidden_size"), shape.get("num_attention_heads"), bool(shape.get("gated_mlp"))
    rms, grouped = options.word("normalization") == "rmsnorm", options.flag("group_query_attention")
    if not (grouped or (grouped is None and options.flag("multi_latent_attention") and "num_query_groups" in shape)):
        shape["num_query_groups"] = heads  # Megatron reads the groups only beside the flag
    biased = options.flag("add_bias_linear")
    unbiased = bool(options.flag("disable_bias_linear")) if biased is None else not biased
    options.number("attention_dropout")  # inside of the kernel, which keeps no mask
    dropped = options.number("hidden_dropout")
    positions = _positions(options)
    shape |= stated(
        ffn_hidden_size=shape.get("ffn_hidden_size") or _usual_width(hidden, gated), vocab_size=_vocabulary(options),
        max_position_embeddings=options.whole("max_position_embeddings") if positions == "learned" else None,
    )  # fmt: skip
    shape |= {
        "gated_mlp": gated, "rmsnorm": rms, "norm_bias": not rms, "linear_bias": not unbiased,
        "qkv_bias": bool(shape.get("qkv_bias")) and unbiased, "qk_norm": bool(shape.get("qk_norm")),
        "tied_embeddings": not options.flag("untie_embeddings_and_output_weights"),
        "dropout": dropped is None or dropped > 0, "position_embedding": positions,
    }  # fmt: skip
    return _latent(_experts(shape | _windows(options), options), options)


def _usual_width(hidden: int | None, gated: bool) -> int | None:
    """Megatron's own MLP width where none is given."""
    if hidden is None:
        return None
    return int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden


def _vocabulary(options: Options) -> int | None:
    sizes = options.whole("vocab_size"), options.whole("padded_vocab_size")
    options.take("make_vocab_size_divisible_by")
    if size := sizes[0] or sizes[1]:
        return size
    return 50257 if options.word("tokenizer_type") == "gpt2bpetokenizer" else None


def _positions(options: Options) -> str:
    kind = options.word("position_embedding_type")
    if options.flag("use_rotary_position_embeddings") or kind in ("rope", "yarn", "mrope"):
        return "rope"
    return "alibi" if kind == "none" else "learned"


def _windows(options: Options) -> dict[str, Any]:
    """Sliding windows: ``4096,0`` or a pair, of which -1 is all, and the layers that have one."""
    size, freq = options.take("window_size"), options.take("window_attn_skip_freq")
    left = re.match(r"[(\[]?(-?\d+)", str(size).replace(" ", ""))
    layers = freq if isinstance(freq, int | list) else _layer_list(str(freq))
    if left is None or int(left[1]) <= 0 or (freq is not None and layers is None):
        return {}
    options.take("cp_comm_type")  # all_gather or a2a, without which context parallelism has no windows
    return stated(window_size=int(left[1]), window_attn_skip_freq=layers)


def _layer_list(text: str) -> int | list[int] | None:
    """The whole number, or the list of 0 and 1 that an expression like ``([0]*3+[1,0]*29)`` means; None for neither."""
    text = re.sub(r"[\s()]", "", text)
    if text.isdecimal():
        return int(text)
    part = r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?"
    if not re.fullmatch(rf"{part}(?:\+{part})*", text):
        return None
    return [int(one) for ones, times in re.findall(part, text) for one in ones.split(",") * int(times or 1)]


def _experts(shape: dict[str, Any], options: Options) -> dict[str, Any]:
    """The shape with its experts; a dense model has no key of theirs."""
    shared, dense = options.whole("moe_shared_expert_intermediate_size"), _dense_layers(options.take("moe_layer_freq"))
    if not shape.get("num_experts"):
        return {key: value for key, value in shape.items() if not key.startswith(("moe_", "num_experts"))}
    width = shape.get("moe_ffn_hidden_size") or shape.get("ffn_hidden_size")
    return shape | stated(
        moe_router_topk=shape.get("moe_router_topk") or 2, moe_ffn_hidden_size=width,
        num_shared_experts=shared // width if width and shared else None, num_dense_layers=dense,
    )  # fmt: skip


def _dense_layers(frequency: object) -> int | None:
    """The leading dense layers of ``([0]*3+[1]*58)``, of a list, or of 1."""
    if isinstance(frequency, list) and all(isinstance(one, int) for one in frequency):
        return frequency.index(1) if 1 in frequency else None
    found = re.match(r"\(?\[0\]\*(\d+)\+\[1\]", str(frequency).replace(" ", ""))
    return int(found[1]) if found else None


_LATENT = {"kv_lora_rank": 32, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}  # its defaults


def _latent(shape: dict[str, Any], options: Options) -> dict[str, Any]:
    """The shape with latent attention as stated or by default; without it, without those keys."""
    if options.flag("multi_latent_attention"):
        return shape | {key: shape.get(key) or usual for key, usual in _LATENT.items()}
    return {key: value for key, value in shape.items() if key not in (*_LATENT, "q_lora_rank")}


def _training(options: Options) -> dict[str, Any]:
    backend = options.word("attention_backend").rpartition(".")[2]
    flash = options.flag("use_flash_attn") or backend == "flash"
    kernel = "flash2" if flash else "unfused" if backend in ("unfused", "local") else None
    dtype = _dtype(options)
    found = stated(dtype=dtype, fp8_recipe=_recipe(options, dtype), attention=kernel, cuda_graph=_graphs(options))
    return _plain(options, "training") | found | _states(options) | _routing(options)


def _routing(options: Options) -> dict[str, Any]:
    """How tokens go to experts, and what that hides under; nothing of a dense model, whose log lists defaults."""
    kind, backend = options.word("moe_token_dispatcher_type"), options.word("moe_flex_dispatcher_backend")
    overlaps = options.flag("overlap_moe_expert_parallel_comm")
    if not options.whole("num_experts", "num_moe_experts"):
        return {}
    if kind == "flex":
        kind = backend or "deepep"  # the only backend before there was a choice, and the default since
    return stated(token_dispatcher=kind if kind in TOKEN_DISPATCHERS else None, overlap_moe_a2a=overlaps)


def _graphs(options: Options) -> str | None:
    """The CUDA graphs: of all passes, else (Megatron's "local" too) of layers; None for none."""
    kind, scope = options.word("cuda_graph_impl"), str(options.take("cuda_graph_scope"))
    if kind in ("", "none"):
        return None
    return "full_iteration" if kind == "full_iteration" or "full_iteration" in scope else "transformer_engine"


def _states(options: Options) -> dict[str, Any]:
    """Formats of gradients and moments, which only the precision-aware optimizer does not keep in fp32."""
    if not options.flag("use_precision_aware_optimizer") or options.flag("optimizer_cpu_offload"):
        return {}
    words = {name: options.word(name) for name in ("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")}
    formats = {name: _FORMATS.get(word.removeprefix("torch."), word) for name, word in words.items()}
    return {"precision_aware_optimizer": True} | {k: word for k, word in formats.items() if word in _FORMATS.values()}


def _dtype(options: Options) -> str:
    wide = "bf16" if options.flag("bf16") else "fp16" if options.flag("fp16") else "fp32"
    options.take("params_dtype")
    if options.take("fp4_format", "fp4") not in (None, False):
        return "fp4"
    return "fp8" if options.take("fp8_format", "fp8", "fp8_hybrid", "fp8_e4m3") not in (None, False) else wide


def _recipe(options: Options, dtype: str) -> str | None:
    """The recipe that scales fp8 or fp4 where it is stated and one of Transformer Engine's."""
    named = {"fp8": options.word("fp8_recipe"), "fp4": options.word("fp4_recipe")}
    word = named.get(dtype, "").rpartition(".")[2]  # Fp8Recipe.mxfp8 in logs
    return word if word in FP8_RECIPES else None


def plan_of(options: Options) -> dict[str, Any]:
    """The columns of the plan but for those that need the number of layers."""
    plan = dict.fromkeys(("tp", "pp", "cp", "ep"), 1) | _plain(options, "plan")
    plan.pop("vpp", None)  # hangs together with the split of layers
    plan["sequence_parallel"] = bool(plan.get("sequence_parallel")) and plan["tp"] > 1
    more = stated(dp=options.whole("data_parallel_size"), zero_stage=_zero_stage(options))
    more |= stated(offload=_offload(options), overlap=_overlap(options))
    return plan | more | _recompute(options)


def _zero_stage(options: Options) -> int:
    """0 to 3; the sharding of Megatron FSDP has words."""
    fully = options.flag("use_megatron_fsdp") or options.flag("use_custom_fsdp")
    sharding = options.word("data_parallel_sharding_strategy")
    distributed = bool(options.flag("use_distributed_optimizer"))
    if options.flag("use_torch_fsdp2"):
        return 3
    words = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
    return words.get(sharding, int(distributed)) if fully else int(distributed)


def _overlap(options: Options) -> str | None:
    """The collectives that hide under kernels; None where nothing but Megatron-LM's usual profile is stated."""
    gradients, tensor = options.flag("overlap_grad_reduce") is not False, options.flag("tp_comm_overlap")
    if tensor is None:
        return None if gradients else "none"
    return None if gradients and not tensor else ";".join(["dp"] * gradients + ["tp"] * tensor) or "none"


def _offload(options: Options) -> str | None:
    if options.flag("optimizer_cpu_offload"):
        options.take("optimizer_offload_fraction")
        return "optimizer"
    layers = options.whole("cpu_offloading_num_layers")
    options.take("offload_modules")
    return "activations" if layers or options.flag("fine_grained_activation_offloading") else None


def _recompute(options: Options) -> dict[str, Any]:
    method, layers = options.word("recompute_method"), options.whole("recompute_num_layers")
    granularity = options.word("recompute_granularity")
    modules = options.take("recompute_modules")
    if granularity == "full" or options.flag("checkpoint_activations"):
        return {"recompute": "full"} | ({"recompute_num_layers": layers} if method == "block" and layers else {})
    if granularity == "selective" or options.flag("recompute_activations"):
        words = modules if isinstance(modules, list) else [modules] if isinstance(modules, str) else []
        return {"recompute": "selective"} | ({"recompute_modules": ";".join(map(str, words))} if words else {})
    return {"recompute": "none"}


@dataclass(frozen=True)
class _Chunks:
    """The dealing of layers to the chunks of the pipeline; ends that are not stated are None."""

    layout: str | None
    ends: tuple[int | None, int | None]  # layers of the first and the last stage
    inside: tuple[bool, bool]  # whether the embedding and the loss count as layers
    stages: int | None  # of a rank
    each: int | None  # layers of a stage

    def __call__(self, plan: Mapping[str, Any], layers: int) -> dict[str, Any]:
        """``vpp``, and ``stage_layers`` where the split is not Megatron's even one."""
        pp, stages = plan.get("pp") or 1, self.stages
        if self.layout is not None:
            split = [stage.count("t") for stage in _repeated(self.layout).split("|")]
            stages = stages or len(split) // pp
        else:
            stages = stages or (layers // pp // self.each if self.each else None)
            split = self._split(layers, pp, stages or 1) if pp > 1 else []
        vpp = {"vpp": stages if stages and stages > 1 else 1}
        return vpp | ({"stage_layers": ";".join(map(str, split))} if split else {})

    def _split(self, layers: int, pp: int, chunks: int) -> list[int]:
        if any(self.inside):
            numbers = [(layers + sum(self.inside)) // (pp * chunks)] * (pp * chunks)
            numbers[0] -= self.inside[0]
            numbers[-1] -= self.inside[1]
            return numbers
        first, last = self.ends
        stated = [end for end in self.ends if end is not None]
        if not any(stated):
            return []
        middle = (layers - sum(stated)) // max(pp - len(stated), 1)
        row = [middle if first is None else first, *[middle] * (pp - 2), middle if last is None else last]
        return [number // chunks for _ in range(chunks) for number in row]


def chunks_of(options: Options) -> _Chunks:
    """How the options deal layers out; Megatron takes stages per rank, or layers per stage, or a layout."""
    layout = options.take("pipeline_model_parallel_layout")
    return _Chunks(
        layout if isinstance(layout, str) else None,
        (options.whole("decoder_first_pipeline_num_layers"), options.whole("decoder_last_pipeline_num_layers")),
        (bool(options.flag("account_for_embedding_in_pipeline_split")),
         bool(options.flag("account_for_loss_in_pipeline_split"))),
        options.whole("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"),
        options.whole("num_layers_per_virtual_pipeline_stage"),
    )  # fmt: skip


def _repeated(layout: str) -> str:
    """``Et*3|(tt|)*2mL`` -> ``Ettt|tt|tt|mL``."""
    text = layout.replace(",", "").replace(" ", "").strip("'\"")
    text = re.sub(r"\(([^()]*)\)\*(\d{1,4})", lambda found: found[1] * int(found[2]), text)
    return re.sub(r"(\w)\*(\d{1,4})", lambda found: found[1] * int(found[2]), text)
