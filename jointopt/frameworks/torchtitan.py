"""torchtitan: a TOML file for 0.2, a command line for 0.3, whose Python file states only a split of its own.

A model is one of torchtitan's own, by its name there: a shape cannot be given. Sources: torchtitan/config/job_config.py
of 0.2.2, torchtitan/config/configs.py and models/*/config_registry.py of 0.3.0.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jointopt.core.errors import ExportError
from jointopt.core.quote import python_text, toml_text
from jointopt.frameworks.intent import Export, Gaps, Intent
from jointopt.frameworks.logs import lines_of
from jointopt.frameworks.megatron import forced_balance
from jointopt.frameworks.model_names import catalogue_name
from jointopt.frameworks.options import (
    FileSettings,
    Options,
    flags_of,
    flattened,
    pairs_of,
    precision_remarks,
    stated,
    version_key,
)
from jointopt.jobs.catalog.gpus import known_gpu
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.details import OF_TRAINING, details_of, differing_details
from jointopt.jobs.job import Training

NAME = "torchtitan"
Settings = dict[str, dict[str, Any]]
# catalogue name: torchtitan's model, its flavor in 0.2, the function that configures it in 0.3; blank: not there
_MODELS = {
    "llama-3-8b": ("llama3", "8B", "llama3_8b"), "llama-3-70b": ("llama3", "70B", "llama3_70b"),
    "llama-3-405b": ("llama3", "405B", "llama3_405b"), "qwen3-8b": ("qwen3", "8B", ""),
    "qwen3-32b": ("qwen3", "32B", "qwen3_32b"), "qwen3-30b-a3b": ("qwen3", "30B-A3B", "qwen3_30b_a3b"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B", ""), "deepseek-v2-lite": ("deepseek_v3", "16B", "deepseek_v3_16b"),
    "deepseek-v2": ("deepseek_v3", "236B", ""), "deepseek-v3": ("deepseek_v3", "671B", "deepseek_v3_671b"),
}  # fmt: skip
_FP8 = {"llama3_405b": "llama3_405b", "deepseek_v3_671b": "deepseek_v3_671b_float8"}  # those of 0.3 that train in fp8
SCHEDULES = {"1f1b": "1F1B", "zbv": "ZBVZeroBubble", "dualpipev": "DualPipeV"}
INTERLEAVED = "Interleaved1F1B"  # 1f1b of several stages per rank
_FILE = """\
{about}

from torchtitan.models.{module}.config_registry import {function}


def plan():
    config = {function}()
    config.parallelism.module_fqns_per_model_part = {parts}
    return config
"""


def export(intent: Intent, version: str) -> Export:
    """A TOML file for versions below 0.3, else the words after ``torchtitan.train``."""
    old = version_key(version) < version_key("0.3")
    gaps = Gaps(f"{NAME} {version}", intent)
    _check(gaps, intent, old)
    settings = _settings(intent, old)
    module, flavor, function = _model(gaps, intent, old, version)
    if not old:
        in_fp8 = intent.job.training.dtype == "fp8"
        gaps.never(in_fp8 != (function in _FP8) and (in_fp8 or function in _FP8.values()),
                   f"training {intent.model.name} in {intent.job.training.dtype}")  # fmt: skip
        function = _FP8[function] if in_fp8 else function
    common: dict[str, Any] = {
        "environment": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "program": "-m torchtitan.train",
        "world_size": int(intent.job.cluster.num_gpus),
    }  # fmt: skip
    if intent.is_training:
        gaps.notes.append("Yours to set: the dataset, the tokenizer's folder (hf_assets_path), the learning rate.")
    if old:
        settings["model"] = {"name": module, "flavor": flavor, **settings.get("model", {})}
        words, files = ("--job.config_file", "torchtitan.toml"), {"torchtitan.toml": toml_text(settings)}
        return Export(NAME, version, words, files=files, notes=tuple(gaps.notes), **common)
    parts = settings["parallelism"].pop("module_fqns_per_model_part", None)
    files, start = {}, ("--module", module, "--config", function)
    if parts is not None:
        about = python_text(
            f"{intent.model.name} with a pipeline split of its own: put this file where Python finds it."
        )
        named = {"about": about, "module": module, "function": function, "parts": parts}
        files, start = {"plan_config.py": _FILE.format(**named)}, ("--module", "plan_config", "--config", "plan")
    return Export(NAME, version, (*start, *_words(settings)), files=files, notes=tuple(gaps.notes), **common)


def _model(gaps: Gaps, intent: Intent, old: bool, version: str) -> tuple[str, str, str]:
    """The names of the model there, whatever the job calls that shape."""
    shape = dataclasses.replace(intent.model, name="")
    for name, names in _MODELS.items():
        if dataclasses.replace(known := load_model(name), name="") == shape and names[1 if old else 2]:
            other = differing_details(intent.details, details_of(known))
            words = [f"{one} {value}" for one, value in other.items() if one not in OF_TRAINING]
            gaps.finer(bool(words), ", ".join(words))
            return names
    raise ExportError(
        f"{NAME} {version} has no model of the shape of {intent.model.name}; it has "
        f"{', '.join(name for name, names in _MODELS.items() if names[1 if old else 2])}."
    )


def _check(gaps: Gaps, intent: Intent, old: bool) -> None:
    dtype, tp, ep = intent.job.training.dtype, intent["tp"], intent["ep"]
    gaps.never(dtype not in ("bf16", "fp32", "fp8"), f"training in {dtype}")
    # in 0.3 those of its own configurations
    gaps.no_recipe_but(("tensorwise", "rowwise", "mxfp8") if old else ("tensorwise",))
    gaps.never(_is_mxfp8(intent) and tp > 1, "tensor parallelism with fp8_recipe mxfp8")  # not yet with compile
    gaps.choices_of_megatron()
    gaps.settings("compile", "tp_overlap", "moe_routing", "cross_entropy")
    loss = intent.job.training.cross_entropy
    gaps.never(loss in ("fused", "linear"), f"training.cross_entropy {loss}")
    eager = intent.job.training.compile is False
    gaps.never(eager and intent.job.training.tp_overlap, "training.tp_overlap without training.compile")
    gaps.uneven_experts()
    gaps.no_adapters()
    gaps.no_choice_of_overlap()
    gaps.never(intent["zero_stage"] == 1, "zero_stage 1")
    gaps.never(intent["zero_stage"] == 0 and intent["cp"] > 1, "zero_stage 0 with cp > 1")  # it shards over cp too
    gaps.never(
        intent["dp"] % intent["dp_replicate"] != 0, f"dp_replicate {intent['dp_replicate']} of dp {intent['dp']}"
    )
    gaps.never(intent["offload"] != "none", f"offload of the {intent['offload']} alone")
    gaps.never(intent["schedule"] not in SCHEDULES, f"the pipeline schedule {intent['schedule']}")
    gaps.never(intent["recompute_modules"], f"recompute of {intent['recompute_modules']}")
    gaps.never(intent["recompute_num_layers"], "full recompute of some layers")
    gaps.never(old and tp > 1 and not intent["sequence_parallel"], "tensor parallelism without sequence_parallel")
    if intent.model.is_moe and tp > 1:
        cut = (1, tp) if old and ep > 1 else (1,) if ep > 1 else (tp,)
        gaps.never(intent["etp"] not in cut, f"etp {intent['etp']} where tp is {tp} and ep is {ep}")


def _settings(intent: Intent, old: bool) -> Settings:
    """Sections of settings that both versions have, under the names of each."""
    training, steps = intent.job.training, intent.iterations
    precision = "float32" if training.dtype == "fp32" else "bfloat16"
    piped = intent["pp"] > 1
    found: Settings = {
        "training": {
            # with pipelines, a local batch is all micro-batches of an iteration
            "local_batch_size": training.global_batch_size // intent["dp"] if piped else intent["micro_batch_size"],
            "global_batch_size": training.global_batch_size, "seq_len": training.seq_length, "steps": steps,
            "mixed_precision_param": precision,
        },
        "parallelism": _parallelism(intent, old),
        "metrics": {"log_freq": 10 if intent.is_training else 1},
        "checkpoint": {
            "enable": intent.is_training, **({"interval": intent.save_interval} if intent.saving else {}),
            **({"async_mode": "async"} if intent.saves_in_background else {}),
        },
        "compile": _compiled_parts(training, old),
    }  # fmt: skip
    if not old and (piped or intent.model.is_moe or training.cuda_graph):  # its graphs capture neither of the first two
        found["training"]["disable_cuda_graphs"] = True
    if intent.model.is_moe and forced_balance(intent):
        found["debug"] = {"moe_force_load_balance": True}
    if training.dtype == "fp8" and old:
        found |= _converters(intent)
    found["validation" if old else "validator"] = {"enable": False}
    found["activation_checkpoint"] = {"mode": intent["recompute"]}
    if old and intent["recompute"] == "selective":
        share = training.framework.selective_share
        found["activation_checkpoint"]["selective_ac_option"] = str(round(1 / share)) if share else "op"
    return found


def _compiled_parts(training: Training, old: bool) -> dict[str, Any]:
    """What is compiled: by default all, else the parts, of which 0.3 takes one as a word."""
    whole, stated = training.compile is not False, training.cross_entropy
    loss = stated == "compiled" if stated else whole
    parts = [part for part, on in (("model", whole), ("loss", loss)) if on]
    found: dict[str, Any] = {"enable": bool(parts)}
    if stated and parts and (old or len(parts) == 1):
        found["components"] = parts if old else parts[0]
    return found


def _is_mxfp8(intent: Intent) -> bool:
    recipe = intent.job.training.fp8_recipe
    return recipe is not None and recipe.name == "mxfp8"


def _converters(intent: Intent) -> Settings:
    """The converters of 0.2 to fp8: scaled per tensor or row, or MXFP8's, whose experts have one of their own."""
    recipe = intent.job.training.fp8_recipe
    if not _is_mxfp8(intent):
        return {
            "model": {"converters": ["quantize.linear.float8"]},
            "quantize.linear.float8": {"recipe_name": "rowwise"} if recipe is not None and recipe.name == "rowwise"
            else {"enable_fsdp_float8_all_gather": True},
        }  # fmt: skip
    found: Settings = {
        "model": {"converters": ["quantize.linear.mx"]}, "quantize.linear.mx": {"recipe_name": "mxfp8_cublas"},
    }  # fmt: skip
    if intent.model.is_moe:
        found["model"]["converters"] += ["quantize.grouped_mm.mx"]
        found["quantize.grouped_mm.mx"] = {"fqns": ["experts"], "recipe_name": "mxfp8"}
    return found


def _parallelism(intent: Intent, old: bool) -> dict[str, Any]:
    """The mesh: replicas outside, shards of ZeRO-2 (kept gathered between passes) and ZeRO-3 inside."""
    stage, dp = intent["zero_stage"], intent["dp"]
    replicas = dp if stage == 0 and intent["cp"] == 1 else intent["dp_replicate"]
    found: dict[str, Any] = {
        "data_parallel_replicate_degree": replicas, "data_parallel_shard_degree": dp // replicas,
        "fsdp_reshard_after_forward": "always" if stage == 3 else "never",
        "tensor_parallel_degree": intent["tp"], "pipeline_parallel_degree": intent["pp"],
        "context_parallel_degree": intent["cp"], "expert_parallel_degree": intent["ep"],
    }  # fmt: skip
    if intent.job.training.tp_overlap is not None:
        found["enable_async_tensor_parallel"] = bool(intent.job.training.tp_overlap) and intent["tp"] > 1
    if not old and intent["tp"] > 1:
        found["enable_sequence_parallel"] = bool(intent["sequence_parallel"])
    if old and intent.model.is_moe and intent["ep"] > 1:
        found["expert_tensor_parallel_degree"] = intent["etp"]
    return found | (_pipeline(intent, old) if intent["pp"] > 1 else {})


def _pipeline(intent: Intent, old: bool) -> dict[str, Any]:
    schedule = SCHEDULES[intent["schedule"]]
    if schedule == "1F1B" and intent["vpp"] > 1:
        schedule = INTERLEAVED
    found: dict[str, Any] = {
        "pipeline_parallel_schedule": schedule, "pipeline_parallel_microbatch_size": intent["micro_batch_size"],
    }  # fmt: skip
    split = intent.chunk_layers
    if intent.even:  # as many layers in the first and the last chunk as in the others
        weights = dict.fromkeys(("first", "last"), 0)
        less = {f"pipeline_parallel_{end}_stage_less_layers": layers for end, layers in weights.items()}
        return found | less | {"pipeline_parallel_layers_per_stage": split[0]}
    return found | {"module_fqns_per_model_part": _parts(split, "output" if old else "lm_head")}


def _parts(split: tuple[int, ...], head: str) -> list[list[str]]:
    """Names of the modules of each chunk, in the order of the pipeline."""
    starts = [sum(split[:i]) for i in range(len(split))]
    parts = [[f"layers.{start + i}" for i in range(layers)] for start, layers in zip(starts, split, strict=True)]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", head]
    return parts


def _words(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """``--section.name value``; the recompute policy is a word of its own, after all options."""
    words, policy = [], str(settings["activation_checkpoint"]["mode"])
    for section, values in settings.items():
        for name, value in values.items() if section != "activation_checkpoint" else ():
            flag = isinstance(value, bool)
            words += [f"--{section}.{'no-' if flag and not value else ''}{name}", *([] if flag else [str(value)])]
    return [*words, f"activation-checkpoint:{policy}"]


# torchtitan: the TOML of its job, the options of its command line, and what its log says at the start.


HARMLESS = re.compile(
    r"(?:job|profiling|metrics|optimizer|lr_scheduler|checkpoint|comm|experimental|debug|fault_tolerance|validation"
    r"|float8|quantize|compile|validator|memory_estimation|module|config|hf_assets|tokenizer|dataloader)(?:\.|$)"
    r"|training\.(?:steps|max_norm|dataset|seed|deterministic|gc_|compile|enable_|disable_|mixed_precision_reduce|data|debug)"
    r"|model\.(?:tokenizer|converters|print|hf_assets)|parallelism\.(?:enable_|disable_loss|fsdp_reshard"
    r"|context_parallel_rotate|expert_parallel_comm|pipeline_parallel_schedule_csv)"
    r"|activation_checkpoint\.(?:per_op|early_stop|preserve)"
)
_SCHEDULES = {name.lower(): ours for ours, name in SCHEDULES.items()} | {"interleavedzerobubble": "zb-h1"}
_OF_ONE_STAGE = ("1f1b", "gpipe", "")  # every other schedule has two stages per rank where none are stated
# options that change an iteration's time and have no column
_MATTER = (
    "compile.enable",
    "model.converters",
    "parallelism.enable_async_tensor_parallel",
    "training.disable_cuda_graphs",
    "activation_checkpoint.selective_ac_option",
    "training.mixed_precision_reduce",
    "debug.moe_force_load_balance",
)
_SIZE = re.compile(r"Model (?P<name>\S+) (?P<flavor>\S+) size: ([\d,]+) total parameters")
_MESH = re.compile(r"Building device mesh with parallelism: (.+)")
_BATCH = re.compile(
    r"local batch size (?P<local>\d+), global batch size (?P<whole>\d+), .*?sequence length (?P<seq>\d+)"
)
_COMPILED = re.compile(r"Compiling each TransformerBlock with torch\.compile")
_GPU = re.compile(r"CUDA capacity: (?P<gpu>.+?) with [\d.]+GiB")
_RECOMPUTE = re.compile(
    r"Applied (?P<mode>full|selective|SelectiveAC|FullAC)\b.*activation checkpointing", re.IGNORECASE
)


def is_torchtitan(config: Mapping[str, Any]) -> bool:
    """Whether a parsed TOML is a job of torchtitan."""
    return "parallelism" in config or {"training", "model"} <= config.keys()


def option_values(words: Sequence[str]) -> dict[str, Any]:
    """The options such as ``--parallelism.tensor_parallel_degree 8`` by name, of 0.2 or 0.3, and the config's name."""
    values = {name: value for name, value in pairs_of(words) if "." in name or name in ("config", "module")}
    off = {name: value for name, value in values.items() if ".no_" in name and value is True}
    values |= {name.replace(".no_", "."): False for name in off}
    modes = [word.partition(":")[2] for word in words if word.startswith("activation-checkpoint:")]
    values = {name: value for name, value in values.items() if name not in off}
    return values | ({"activation_checkpoint.mode": modes[-1]} if modes else {})


def option_settings(options: Mapping[str, Any]) -> FileSettings:
    """The statements of options of a command line."""
    values = {name: value for name, value in options.items() if name not in ("config", "module")}
    named = options.get("config")
    if isinstance(named, str) and catalogue_name(named):
        values |= {"model.name": named}
    settings = settings_over_preset(values) if named else config_settings(values)
    if isinstance(named, str) and not catalogue_name(named) and settings.plan["vpp"] > 1:
        del settings.plan["vpp"]  # a Python file of one's own may deal the layers out
    return settings


def settings_over_preset(config: Mapping[str, Any]) -> FileSettings:
    """The statements of keys over a preset that is not known, whose function in Python may compile."""
    values = flattened(config)
    settings = config_settings(values)
    for field, name in {"compile": "compile.enable", "tp_overlap": "parallelism.enable_async_tensor_parallel"}.items():
        if name not in values:
            del settings.training[field]
    return settings


def python_settings(text: str) -> FileSettings | None:
    """The statements of a Python file that configures a model of torchtitan 0.3; None for any other file.

    It is read, never run: values that ``config.section.name = ...`` gives as literals, and the function it starts from.
    """
    try:
        found = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    models = [node for node in ast.walk(found) if isinstance(node, ast.ImportFrom) and node.module]
    named = [one.names[0].name for one in models if str(one.module).startswith("torchtitan.models.")]
    values = {}
    for node in ast.walk(found):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            with contextlib.suppress(ValueError):
                values[ast.unparse(node.targets[0]).partition(".")[2]] = ast.literal_eval(node.value)
    if not named:
        return None
    settings = FileSettings("torchtitan config in Python", "torchtitan", model=_read_model(named[0], ""))
    parts = values.pop("parallelism.module_fqns_per_model_part", None)
    settings.rest = lambda plan, _: _read_parts(parts, plan["pp"])
    settings.unread = tuple(name for name in values if not HARMLESS.match(name))
    return settings


def config_settings(config: Mapping[str, Any]) -> FileSettings:
    """The statements of a job of torchtitan, nested or with dotted names; defaults are those of its JobConfig."""
    options = Options(flattened(config))
    name, flavor = str(options.take("model.name") or ""), str(options.take("model.flavor") or "")
    plan, degrees = _plan(options)
    local = options.whole("training.local_batch_size", "training.batch_size") or 8
    batch = options.whole("training.global_batch_size")
    dp = plan.get("dp")
    plan["micro_batch_size"] = local
    if plan["pp"] > 1:  # a local batch is one pass of the pipeline, cut into micro-batches
        part = options.whole("parallelism.pipeline_parallel_microbatch_size")
        plan["micro_batch_size"] = part or 1
    settings = FileSettings(
        "torchtitan config", "torchtitan", model=_read_model(name, flavor), plan=plan,
        training=stated(
            seq_length=options.whole("training.seq_len") or 2048, dtype=_dtype(options), fp8_recipe=_recipe(options),
            global_batch_size=batch if batch and batch > 0 else local * dp if dp else None, **_stated_settings(options),
        ),
        cluster=stated(num_gpus=dp * degrees if dp else None),
    )  # fmt: skip
    if (norm := options.word("model.norm_type")) not in ("", "rmsnorm"):  # of before 0.2, whose models took any
        settings.model = {}
        settings.remarks += (f"model.norm_type {norm} is not that of {flavor or name}, whose shape is not taken",)
    name = "training.mixed_precision_param"
    settings.remarks += precision_remarks(name, options.take(name))
    settings.flags = flags_of({name: options.take(name) for name in _MATTER})
    if load_model(settings.model["catalogue"]).is_moe if settings.model else False:
        forced = options.flag("debug.moe_force_load_balance", "training.debug_moe_force_load_balance")
        settings.training["moe_routing"] = "forced" if forced else "natural"
    each = options.whole("parallelism.pipeline_parallel_layers_per_stage")
    ends = [options.whole(f"parallelism.pipeline_parallel_{end}_stage_less_layers") for end in ("first", "last")]
    if (
        each and plan["pp"] > 1 and "catalogue" in settings.model
    ):  # by default the embedding and the head count as layers
        layers = load_model(settings.model["catalogue"]).num_layers + sum(1 if end is None else end for end in ends)
        plan["vpp"] = max(-(-layers // each) // plan["pp"], 1)
    settings.accumulation = local // plan["micro_batch_size"] if plan["pp"] > 1 else 1
    settings.unread, settings.without_effect = options.unused(HARMLESS)
    return settings


def _stated_settings(options: Options) -> dict[str, Any]:
    """Whether it compiles, and hides tensor parallelism under kernels, as its JobConfig has it; graphs that are off."""
    compiles, parts = bool(options.flag("compile.enable", "training.compile")), options.take("compile.components")
    named = compiles and parts is not None
    return stated(
        compile=compiles and (not named or "model" in str(parts)),
        cross_entropy=("compiled" if "loss" in str(parts) else "unfused") if named else None,
        logits_chunks=options.whole("loss.num_chunks"),
        tp_overlap=bool(options.flag("parallelism.enable_async_tensor_parallel")),
        cuda_graph="none" if options.flag("training.disable_cuda_graphs") else None,
    )


def _read_model(name: str, flavor: str) -> dict[str, Any]:
    known = catalogue_name(f"{name}{flavor}") or {"deepseek_v3671B": "deepseek-v3"}.get(f"{name}{flavor}")
    return {"catalogue": known} if known else {}


def _plan(options: Options) -> tuple[dict[str, Any], int]:
    """The plan's columns, and how many GPUs hold one copy of the model's layers: tp*pp*cp."""

    def degree(name: str) -> int:
        return options.whole(f"parallelism.{name}_degree") or 1

    tp, pp, cp = (degree(f"{kind}_parallel") for kind in ("tensor", "pipeline", "context"))
    tp, ep = options.whole("training.tensor_parallel_degree") or tp, degree("expert_parallel")
    replicas = options.whole("parallelism.data_parallel_replicate_degree") or 1
    shards = options.whole("parallelism.data_parallel_shard_degree", "training.data_parallel_degree") or -1
    in_sequence = options.flag("parallelism.enable_sequence_parallel") is not False
    in_sequence &= not options.flag("parallelism.no_enable_sequence_parallel")
    plan = stated(
        tp=tp, pp=pp, cp=cp, ep=ep,
        etp=options.whole("parallelism.expert_tensor_parallel_degree") or (1 if ep > 1 else None),
        dp=replicas * shards if shards > 0 else None, sequence_parallel=tp > 1 and in_sequence,
        zero_stage=0 if shards * cp == 1 else _zero_stage(options, pp), dp_replicate=replicas if replicas > 1 else None,
    ) | _recompute(options) | _schedule(options, pp)  # fmt: skip
    return plan, tp * pp * cp


def _zero_stage(options: Options, pp: int) -> int:
    """3, and 2 where the weights stay gathered after the forward pass (with pipelines by default)."""
    policy = options.word("parallelism.fsdp_reshard_after_forward") or "default"
    return 2 if policy == "never" or (policy == "default" and pp > 1) else 3


def _recompute(options: Options) -> dict[str, Any]:
    mode = options.word("activation_checkpoint.mode") or "selective"
    options.word("activation_checkpoint.selective_ac_option")
    return {"recompute": mode if mode in ("none", "full", "selective") else "selective"}


def _schedule(options: Options, pp: int) -> dict[str, Any]:
    """The schedule, and the stages per rank that it has: two by default where it loops."""
    name = options.word("parallelism.pipeline_parallel_schedule")
    parts = options.take("parallelism.module_fqns_per_model_part", "parallelism.pipeline_parallel_split_points")
    if pp == 1:
        return {"vpp": 1}
    out: dict[str, Any] = {"schedule": _SCHEDULES[name]} if name in _SCHEDULES else {}
    out["vpp"] = 1 if name in _OF_ONE_STAGE else 2
    return out | _read_parts(parts, pp)


def _read_parts(parts: object, pp: int) -> dict[str, Any]:
    """The layers of each chunk, from the names of its modules."""
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        return {}
    split = ";".join(str(sum(str(m).startswith("layers.") for m in part)) for part in parts)
    return {"stage_layers": split, "vpp": max(len(parts) // pp, 1)}


def _dtype(options: Options) -> str:
    converters = str(options.take("model.converters") or "") + str(options.take("model.quantization") or "")
    if "float8" in converters or "mx" in converters:
        return "fp8"
    word = options.word("training.mixed_precision_param") or "bfloat16"
    options.word("training.dtype")
    return {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}.get(word, "bf16")


def _recipe(options: Options) -> str | None:
    """The recipe of fp8 where one is stated; that of rows, or of all of them but for weights' gradients."""
    converters = str(options.take("model.converters") or "") + str(options.take("model.quantization") or "")
    named = options.word("quantize.linear.float8.recipe_name", "float8.recipe_name")
    if "mx" in converters:
        return "mxfp8"
    return next((kind for kind in ("tensorwise", "rowwise") if named.startswith(kind)), None)


def log_settings(text: str) -> FileSettings:
    """The statements of a log before its first step: mesh, batch, model, GPU, recomputation."""
    settings = FileSettings("torchtitan log", "torchtitan", log=text)
    for line in lines_of(text):
        if mesh := _MESH.search(line.text):
            _read_mesh(settings, dict(re.findall(r"(\w+)=(-?\d+)", mesh[1])))
        elif batch := _BATCH.search(line.text):
            settings.training |= {"seq_length": int(batch["seq"]), "global_batch_size": int(batch["whole"])}
            settings.plan["micro_batch_size"] = int(batch["local"])
        elif size := _SIZE.search(line.text):
            settings.model = _read_model(size["name"], size["flavor"])
        elif _COMPILED.search(line.text):
            settings.training["compile"] = True
        elif gpu := _GPU.search(line.text):
            known = known_gpu(gpu["gpu"])
            settings.cluster |= {"gpu": known.id} if known else {}
        elif mode := _RECOMPUTE.search(line.text):
            settings.plan["recompute"] = "full" if mode["mode"].lower().startswith("full") else "selective"
    if settings.plan.get("pp", 1) > 1:  # of a pipeline the log does not state the micro-batch
        settings.plan.pop("micro_batch_size", None)
    return settings


def _read_mesh(settings: FileSettings, degrees: Mapping[str, str]) -> None:
    size = {name: int(value) for name, value in degrees.items()}
    shards, replicas = size.get("dp_shard", 1), size.get("dp_replicate", 1)
    plan: dict[str, Any] = {name: size[name] for name in ("tp", "pp", "cp", "ep", "etp") if name in size}
    plan |= {"dp": shards * replicas, "sequence_parallel": plan.get("tp", 1) > 1}
    plan["zero_stage"] = 0 if shards * plan.get("cp", 1) == 1 else 3 if plan.get("pp", 1) == 1 else 2
    plan |= {"dp_replicate": replicas} if replicas > 1 else {}
    settings.plan |= plan
    settings.cluster["num_gpus"] = plan["dp"] * plan.get("tp", 1) * plan.get("pp", 1) * plan.get("cp", 1)
