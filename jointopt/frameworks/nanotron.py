"""nanotron: the YAML that ``run_train.py`` reads, of 0.4, the released version, and of its development branch.

Sources: nanotron/config/config.py, models_config.py and parallelism_config.py of both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from jointopt.core.errors import JobError
from jointopt.core.quote import yaml_text
from jointopt.frameworks.intent import Export, Gaps, Intent
from jointopt.frameworks.logs import lines_of
from jointopt.frameworks.options import (
    FileSettings,
    Options,
    flags_of,
    flattened,
    precision_remarks,
    stated,
    version_key,
    whole_number,
)
from jointopt.jobs.huggingface import model_from_config
from jointopt.jobs.model_facts import with_facts
from jointopt.jobs.plans.stages import layers_by_cost, token_costs

NAME, FILE = "nanotron", "nanotron.yaml"
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def export(intent: Intent, version: str) -> Export:
    """The YAML and ``run_train.py``'s words; a benchmark trains on random tokens (no dataset)."""
    old = version_key(version) < version_key("0.5")
    gaps = Gaps(f"nanotron {version}", intent)
    _check_plan(gaps, intent, old)
    _check_model(gaps, intent, old)
    if intent.is_training:
        gaps.notes.append("Yours to set: the dataset, the tokenizer, the learning rate, where checkpoints lie.")
    return Export(
        NAME, version, ("--config-file", FILE), {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        int(intent.job.cluster.num_gpus), "run_train.py", files={FILE: yaml_text(_config(intent, old))},
        notes=tuple(gaps.notes),
    )  # fmt: skip


def _check_plan(gaps: Gaps, intent: Intent, old: bool) -> None:
    dtype, recompute = intent.job.training.dtype, intent["recompute"]
    gaps.choices_of_megatron()
    gaps.settings("tp_overlap")
    gaps.no_choice_of_overlap(("dp",))
    gaps.no_adapters()
    gaps.never(dtype not in _DTYPES, f"training in {dtype}")
    gaps.never(intent["zero_stage"] > 1, f"zero_stage {intent['zero_stage']}")
    gaps.never(intent["vpp"] > 1, "interleaved pipelines (vpp > 1)")
    gaps.never(intent["schedule"] != "1f1b", f"the pipeline schedule {intent['schedule']}")
    gaps.never(intent["stage_layers"], "stage_layers: it gives layers out by their cost")
    gaps.never(old and intent["cp"] > 1, "context parallelism")
    gaps.never(recompute == "selective" or (old and recompute == "full"), f"recompute {recompute}")
    gaps.never(intent["recompute_num_layers"], "full recompute of some layers")
    gaps.never(intent["dp_replicate"] > 1, "dp_replicate above 1")
    gaps.never(intent["offload"] != "none", f"offload of the {intent['offload']}")
    own = layers_by_cost(intent.model.num_layers, intent["pp"], *token_costs(intent.model))
    if intent["pp"] > 1 and own != intent.chunk_layers:
        gaps.notes.append(f"nanotron gives the layers out by their cost: {';'.join(map(str, own))}.")


def _check_model(gaps: Gaps, intent: Intent, old: bool) -> None:
    model, details = intent.model, intent.details
    gaps.never(model.is_moe, "routed experts of this kind")
    gaps.never(model.kv_lora_rank, "multi-head latent attention")
    gaps.never(not (model.gated_mlp and model.rmsnorm), "a model that is not of the Llama line")
    gaps.never(model.position_embedding != "rope", f"{model.position_embedding} positions")
    gaps.facts(() if old else ("qkv_biases",))
    gaps.finer(intent.window > 0, intent.window_words)
    gaps.finer(details.rotary_percent != 1.0, f"rotary positions of {details.rotary_percent:g} of each head")
    gaps.finer(old and details.rotary_base != 10000.0, f"rotary base {details.rotary_base:g}")
    gaps.finer(details.rope_scaling is not None, "scaling of rotary positions")


def _config(intent: Intent, old: bool) -> dict[str, Any]:
    training, steps = intent.job.training, intent.iterations
    data = {"dataset": _DATASET if intent.is_training else None, "seed": 42, "num_loading_workers": 1}
    return {
        "general": {"project": "jointopt", "run": intent.job.name, "seed": 42},
        "parallelism": _parallelism(intent, old),
        "model": {
            "model_config": _model(intent, old), "init_method": {"std": intent.details.init_std},
            "dtype": _DTYPES[training.dtype], "make_vocab_size_divisible_by": 1, "ddp_bucket_cap_mb": 25,
        },
        "tokenizer": {"tokenizer_name_or_path": intent.model.name if intent.is_training else None},
        "checkpoints": {
            "checkpoints_path": "checkpoints",
            "checkpoint_interval": intent.save_interval if intent.is_training else 10 * steps,
        },
        "logging": {"log_level": "info", "log_level_replica": "info", "iteration_step_info_interval": 1},
        "tokens": {
            "sequence_length": training.seq_length, "train_steps": steps,
            "micro_batch_size": intent["micro_batch_size"], "batch_accumulation_per_replica": intent.micro_batches,
        },
        "optimizer": _optimizer(intent, old),
        **({"data": data} if old else {
            "data_stages": [{"name": "stable", "start_training_step": 1, "data": data}]
        }),
    }  # fmt: skip


_DATASET = {"hf_dataset_or_datasets": "DATASET", "hf_dataset_splits": "train", "text_column_name": "text"}


def _parallelism(intent: Intent, old: bool) -> dict[str, Any]:
    sharded = bool(intent["sequence_parallel"])
    found: dict[str, Any] = {
        "dp": intent["dp"], "pp": intent["pp"], "tp": intent["tp"], "pp_engine": "1f1b",
        "tp_mode": "REDUCE_SCATTER" if sharded else "ALL_REDUCE",
        "tp_linear_async_communication": sharded and intent.hides("tp"),
    }  # fmt: skip
    more = {"recompute_layer": intent["recompute"] == "full", "context_parallel_size": intent["cp"]}
    return found | ({} if old else more)


def _model(intent: Intent, old: bool) -> dict[str, Any]:
    """``LlamaConfig``, or where queries, keys and values have biases ``Qwen2Config``."""
    model, details = intent.model, intent.details
    found: dict[str, Any] = {
        "hidden_act": "silu", "hidden_size": model.hidden_size, "initializer_range": details.init_std,
        "intermediate_size": model.ffn_hidden_size, "num_attention_heads": model.num_attention_heads,
        "num_hidden_layers": model.num_layers, "num_key_value_heads": model.num_query_groups,
        "max_position_embeddings": max(intent.job.training.seq_length, details.max_positions),
        "rms_norm_eps": details.norm_epsilon, "tie_word_embeddings": model.tied_embeddings,
        "vocab_size": model.vocab_size,
    }  # fmt: skip
    kind = "is_qwen2_config" if model.qkv_bias and not old else "is_llama_config"
    bias = {"attention_bias": True} if kind == "is_qwen2_config" else {}
    return {kind: True} | found | bias | ({} if old else {"rope_theta": details.rotary_base})


def _optimizer(intent: Intent, old: bool) -> dict[str, Any]:
    adam = {"adam_eps": 1e-8, "adam_beta1": 0.9, "adam_beta2": 0.95, "torch_adam_is_fused": True}
    warmup = max(intent.iterations // 100, 1)
    return {
        "zero_stage": intent["zero_stage"], "weight_decay": 0.1, "clip_grad": 1.0, "accumulate_grad_in_fp32": True,
        **(adam if old else {"optimizer_factory": {"name": "adamW", **adam}}),
        "learning_rate_scheduler": {
            "learning_rate": 3e-4, "lr_warmup_steps": warmup, "lr_warmup_style": "linear", "lr_decay_style": "cosine",
            "lr_decay_steps": max(intent.iterations - warmup, 1), "min_decay_lr": 3e-5,
        },
    }  # fmt: skip


# nanotron's YAML, also as its log prints it: parallelism, tokens, and a model in the keys of Hugging Face.


_HARMLESS = re.compile(
    r"(?:checkpoints|data_stages|general|lighteval|logging|profiler|s3_upload|tokenizer|metrics_logging|data)(?:\.|$)"
    r"|optimizer\.(?!zero_stage)|tokens\.(?:train_steps|val|limit)|model\.(?:init_method|ddp_bucket|model_config)"
    r"|model\.make_vocab|parallelism\.(?:pp_engine|tp_linear|moe_layer|expert_parallel|tp_recompute)"
)
# options that change an iteration's time and have no column
_MATTER = ("parallelism.tp_linear_async_communication", "parallelism.tp_recompute_allgather", "model.ddp_bucket_cap_mb")
_READ_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float8": "fp8"}


def is_nanotron(config: Mapping[str, Any]) -> bool:
    """Whether a YAML mapping is a config of nanotron."""
    return {"parallelism", "tokens"} <= config.keys()


def config_settings(config: Mapping[str, Any]) -> FileSettings:
    """The statements of a config; the batch is that of all data-parallel ranks and accumulation steps."""
    options = Options(flattened(config))
    plan = _plan(options)
    accumulation = options.whole("tokens.batch_accumulation_per_replica") or 1
    model, remarks = _read_model(config)
    micro_batch, dp = options.whole("tokens.micro_batch_size"), plan.get("dp")
    plan |= stated(micro_batch_size=micro_batch)
    settings = FileSettings(
        "nanotron config", "nanotron", model=model, plan=plan, accumulation=accumulation, remarks=remarks,
        training=stated(
            seq_length=options.whole("tokens.sequence_length"), dtype=_READ_DTYPES.get(options.word("model.dtype")),
            global_batch_size=micro_batch * accumulation * dp if micro_batch and dp else None,
            tp_overlap=bool(options.flag("parallelism.tp_linear_async_communication")),
        ),
        cluster=stated(num_gpus=dp * plan["tp"] * plan["pp"] * plan["cp"] if dp else None),
    )  # fmt: skip
    settings.remarks += precision_remarks("model.dtype", options.take("model.dtype"))
    settings.flags = flags_of({name: options.take(name) for name in _MATTER})
    settings.unread, settings.without_effect = options.unused(_HARMLESS)
    return settings


def _plan(options: Options) -> dict[str, Any]:
    size = {name: options.whole(f"parallelism.{name}") or 1 for name in ("tp", "pp")}
    cut = options.word("parallelism.tp_mode").rpartition(".")[2] == "reduce_scatter"  # all_reduce where none is stated
    return stated(
        dp=options.whole("parallelism.dp"), **size, cp=options.whole("parallelism.context_parallel_size") or 1,
        ep=options.whole("parallelism.expert_parallel_size") or 1, vpp=1,
        sequence_parallel=cut and size["tp"] > 1, zero_stage=options.whole("optimizer.zero_stage") or 0,
        recompute="full" if options.flag("parallelism.recompute_layer") else "none",
    )  # fmt: skip


def _read_model(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The shape, in the keys of `Model`, and remarks: why there is none of a family that is not known.

    Its Qwen2 has biases of queries, keys and values only where it says so, and experts in ``moe_config``.
    """
    given = config.get("model")
    shape = given.get("model_config") if isinstance(given, Mapping) else None
    if not isinstance(shape, Mapping):
        return {}, ()
    kinds = [name for name in shape if re.fullmatch(r"is_\w+_config", str(name)) and shape[name]]
    if set(kinds) - {"is_llama_config", "is_qwen2_config"}:
        return {}, ("model_config is not that of Llama or Qwen2, and is not read",)
    family, facts, more = {"model_type": "llama"}, [], {}
    if isinstance(experts := shape.get("moe_config"), Mapping):
        family, layers = _of_experts(experts), experts.get("layers")
        every = not layers or layers in ([-1], list(range(whole_number(shape.get("num_hidden_layers")) or 0)))
        facts += [] if every else ["some_experts"]
        more = {"num_shared_experts": 1} if experts.get("enable_shared_expert") else {}
    window = whole_number(shape.get("sliding_window_size"))
    more |= {"window_size": window} if window and window > 0 else {}
    unnamed = {"name": None, "layers": None}
    own = {key: value for key, value in shape.items() if key not in ("moe_config", "sliding_window_size", *kinds)}
    try:
        return with_facts(vars(model_from_config(family | own, "")) | more | unnamed, facts), ()
    except JobError as error:
        return {}, (f"model_config: {error}".removesuffix("."),)


def _of_experts(experts: Mapping[str, Any]) -> dict[str, Any]:
    """What Mixtral's config.json would have of the experts, which are as wide as the MLP."""
    return {"model_type": "mixtral", "num_local_experts": experts.get("num_experts", 8), "sliding_window": None,
            "num_experts_per_tok": experts.get("top_k", 2)}  # fmt: skip


_PREFIX = re.compile(r"^.*?\[[A-Z]+\b[^\]]*\]:\s?")  # 08/31/2024 14:37:22 [INFO|DP=0|PP=0|TP=0]:
_OBJECT = re.compile(r"<([\w.]+)[^<>]*>")  # <TensorParallelLinearMode.REDUCE_SCATTER: 2>


def log_settings(text: str) -> FileSettings:
    """The statements of the config that nanotron prints at its start, and the log itself."""
    config = _printed(text)
    settings = config_settings(config) if is_nanotron(config) else FileSettings("", "nanotron")
    settings.format, settings.log = "nanotron log", text
    settings.without_effect, settings.unread = (
        settings.without_effect + len(settings.unread),
        (),
    )  # nanotron knows them all
    return settings


def _printed(text: str) -> dict[str, Any]:
    """The ``Config(...)`` of a log as a mapping; empty where there is none, or one that is cut off."""
    held = ""
    for line in lines_of(text):
        plain = _OBJECT.sub(r"'\1'", _PREFIX.sub("", line.text))
        if held or plain.startswith("Config(general="):
            held += plain + "\n"
            if held.count("(") == held.count(")"):
                break
    try:
        found = _values(ast.parse(held.strip(), mode="eval").body) if held else {}
    except (SyntaxError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _values(node: ast.expr) -> Any:
    """A printed dataclass as a mapping of its fields; names for what is neither that nor a literal."""
    if isinstance(node, ast.Call) and node.keywords:
        return {word.arg: _values(word.value) for word in node.keywords if word.arg}
    if isinstance(node, ast.List | ast.Tuple):
        return [_values(one) for one in node.elts]
    if isinstance(node, ast.Constant):
        return node.value
    return node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)
