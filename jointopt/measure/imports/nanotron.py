"""nanotron's YAML, also as its log prints it: parallelism, tokens, and a model in the keys of Hugging Face."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from jointopt.core.errors import JobError
from jointopt.jobs.huggingface import model_from_config
from jointopt.measure.imports.taken import Options, Taken, flags_of, flattened, precision_remarks, stated
from jointopt.measure.logs.lines import lines_of

_HARMLESS = re.compile(
    r"(?:checkpoints|data_stages|general|lighteval|logging|profiler|s3_upload|tokenizer|metrics_logging|data)(?:\.|$)"
    r"|optimizer\.(?!zero_stage)|tokens\.(?:train_steps|val|limit)|model\.(?:init_method|ddp_bucket|model_config)"
    r"|model\.make_vocab|parallelism\.(?:pp_engine|tp_linear|moe_layer|expert_parallel|tp_recompute)"
)
# options that change an iteration's time and have no column
_MATTER = ("parallelism.tp_linear_async_communication", "parallelism.tp_recompute_allgather", "model.ddp_bucket_cap_mb")
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
    taken.remarks += precision_remarks("model.dtype", options.take("model.dtype"))
    taken.flags = flags_of({name: options.take(name) for name in _MATTER})
    taken.unread, taken.without_effect = options.left(_HARMLESS)
    return taken


def _plan(options: Options) -> dict[str, Any]:
    size = {name: options.whole(f"parallelism.{name}") or 1 for name in ("tp", "pp")}
    cut = options.word("parallelism.tp_mode").rpartition(".")[2] == "reduce_scatter"  # all_reduce where none is stated
    return stated(
        dp=options.whole("parallelism.dp"), **size, cp=options.whole("parallelism.context_parallel_size") or 1,
        ep=options.whole("parallelism.expert_parallel_size") or 1, vpp=1,
        sequence_parallel=cut and size["tp"] > 1, zero_stage=options.whole("optimizer.zero_stage") or 0,
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


_PREFIX = re.compile(r"^.*?\[[A-Z]+\b[^\]]*\]:\s?")  # 08/31/2024 14:37:22 [INFO|DP=0|PP=0|TP=0]:
_OBJECT = re.compile(r"<([\w.]+)[^<>]*>")  # <TensorParallelLinearMode.REDUCE_SCATTER: 2>


def log_taken(text: str) -> Taken:
    """The statements of the config that nanotron prints at its start, and the log itself."""
    config = _printed(text)
    taken = config_taken(config) if is_nanotron(config) else Taken("", "nanotron")
    taken.format, taken.log = "nanotron log", text
    taken.without_effect, taken.unread = taken.without_effect + len(taken.unread), ()  # nanotron knows them all
    return taken


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
