"""nanotron's YAML: parallelism, tokens, optimizer, and a model in the keys of its Hugging Face config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jointopt.core.errors import JobError
from jointopt.measure.imports.taken import Options, Taken, flattened, stated
from jointopt.spec.huggingface import model_from_config

_HARMLESS = re.compile(
    r"(?:checkpoints|data_stages|general|lighteval|logging|profiler|s3_upload|tokenizer|metrics_logging)(?:\.|$)"
    r"|optimizer\.(?!zero_stage)|tokens\.(?:train_steps|val|limit)|model\.(?:init_method|ddp_bucket|model_config)"
    r"|model\.make_vocab|parallelism\.(?:pp_engine|tp_linear|moe_layer|expert_parallel|tp_recompute)"
)
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float8": "fp8"}


def is_nanotron(config: Mapping[str, Any]) -> bool:
    """Whether a YAML mapping is a config of nanotron."""
    return {"parallelism", "tokens"} <= config.keys()


def config_taken(config: Mapping[str, Any]) -> Taken:
    """The statements of a config; the batch is that of all data-parallel ranks and accumulation steps."""
    options = Options(flattened(config))
    plan = _plan(options)
    accumulation = options.whole("tokens.batch_accumulation_per_replica") or 1
    micro_batch, dp = options.whole("tokens.micro_batch_size"), plan.get("dp")
    plan |= stated(micro_batch_size=micro_batch)
    taken = Taken(
        "nanotron config", "nanotron", model=_model(config), plan=plan, accumulation=accumulation,
        training=stated(
            seq_length=options.whole("tokens.sequence_length"), dtype=_DTYPES.get(options.word("model.dtype")),
            global_batch_size=micro_batch * accumulation * dp if micro_batch and dp else None,
        ),
        cluster=stated(num_gpus=dp * plan["tp"] * plan["pp"] * plan["cp"] if dp else None),
    )  # fmt: skip
    taken.unread, taken.without_effect = options.left(_HARMLESS)
    return taken


def _plan(options: Options) -> dict[str, Any]:
    size = {name: options.whole(f"parallelism.{name}") or 1 for name in ("tp", "pp")}
    summing = options.word("parallelism.tp_mode").rsplit(".", 1)[-1] != "all_reduce"
    return stated(
        dp=options.whole("parallelism.dp"), **size, cp=options.whole("parallelism.context_parallel_size") or 1,
        ep=options.whole("parallelism.expert_parallel_size") or 1, vpp=1,
        sequence_parallel=summing and size["tp"] > 1, zero_stage=options.whole("optimizer.zero_stage") or 0,
        recompute="full" if options.flag("parallelism.recompute_layer") else "none",
    )  # fmt: skip


def _model(config: Mapping[str, Any]) -> dict[str, Any]:
    """The shape, in the keys of `Model`; none where the family is not known."""
    given = config.get("model")
    shape = given.get("model_config") if isinstance(given, Mapping) else None
    if not isinstance(shape, Mapping):
        return {}
    kind = "qwen2" if shape.get("is_qwen2_config") else "llama"
    try:
        return vars(model_from_config({"model_type": kind} | dict(shape), "")) | {"name": None}
    except JobError:
        return {}
