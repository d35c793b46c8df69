"""One file in: the format by its content, and what it states."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from jointopt.core.errors import JobError, UsageError
from jointopt.core.input_files import regular_bytes
from jointopt.core.quote import our_command, sh_command
from jointopt.core.schema import DEGREES, LAYOUT_COLUMNS
from jointopt.frameworks import deepspeed, megatron, megatron_bridge, meter_logs, nanotron, torchtitan
from jointopt.frameworks import logs as megatron_log
from jointopt.frameworks.failures import failure_of
from jointopt.frameworks.logs import FORMATS, NANOTRON, TORCHTITAN
from jointopt.frameworks.meter_logs import is_trace
from jointopt.frameworks.model_names import catalogue_name, models_of_shape
from jointopt.frameworks.options import Options, Taken, pairs_of
from jointopt.frameworks.shell import MOST_CHARACTERS, OPTIONS, UNKNOWN, Script, cluster_of, read_script
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.models import model_names
from jointopt.jobs.huggingface import model_from_config
from jointopt.jobs.job import STATE_FIELDS, Job
from jointopt.jobs.jobfile import parse_job
from jointopt.jobs.model import Model
from jointopt.jobs.reading import parse_json, parse_yaml

_MOST_BYTES = 500_000_000
_MOST_POINTS = 200  # in a line of TOML, whose parser takes the square of the parts of a name in time
_OVERRIDE = re.compile(
    r"\+{0,2}((?:training\.)?(?:model|train|trainer|ddp|dataset|exp_manager|mixed_precision)\.?[\w.]*)=(.*)"
)
_TITAN = re.compile(r"(?:parallelism|training|activation_checkpoint|model|job)\.\w")
_FILE_WORDS = re.compile(r"[\w./-]+\.(?:ya?ml|json|toml)$")
_VARIABLES = (
    "NCCL_",
    "NVTE_",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "TORCH_NCCL_",
)  # of the environment, which libraries read
_KINDS = (
    "a launch script, a config of Megatron-Bridge, NeMo, torchtitan, DeepSpeed, nanotron or Accelerate, a log of one, "
    "or what Zeus, dcgmi dmon, dcgm-exporter or nvidia-smi wrote beside it"
)


def _what_it_is(path: Path, text: str) -> str:
    """A remark on a file that is a job already, or nothing."""
    try:
        ours = {"model", "training", "cluster"} <= parse_yaml(text).keys()
    except JobError:
        return ""
    return f" (it is already a job file: use `{our_command('propose', str(path))}`)" if ours else ""


def read_file(path: Path) -> list[Taken]:
    """The statements of a file, in one or several records; JobError for one that no reader knows."""
    try:
        raw = regular_bytes(path, _MOST_BYTES, "a file of one run, or the part with one", JobError)
        text = raw.decode("utf-8", errors="replace")
    except OSError as error:
        raise JobError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        found = read_text(text)
    except UsageError as error:
        raise JobError(f"{path}: {error}") from error
    except RecursionError as error:
        raise JobError(
            f"{path}: it is nested more deeply than any file of a known program; expected {_KINDS}."
        ) from error
    if not found:
        raise JobError(f"jointopt cannot import {path}{_what_it_is(path, text)}; expected {_KINDS}.")
    for taken in found:
        taken.source = path.name
    return found


def read_text(text: str) -> list[Taken]:
    """The statements of a text; none where no reader knows it."""
    if "\0" in text and "--" in text:  # the arguments of a process, as the kernel shows them
        return _script(sh_command(text.strip("\0\n").split("\0")))
    if text.lstrip().startswith("{") and (found := _of_json(text)):
        return [found]
    if "torchtitan.models." in text and (found := torchtitan.python_taken(text)):
        return [found]
    return _log(text) or _config(text) or _script(text)


def _of_json(text: str) -> Taken | None:
    try:
        config = parse_json(text)
    except JobError:
        return None
    if deepspeed.is_deepspeed(config):
        return deepspeed.config_taken(config)
    if deepspeed.is_accelerate(config):
        return deepspeed.accelerate_taken(config)
    if {"tp", "pp"} <= config.keys():
        return Taken("plan", plan={key: value for key, value in config.items() if key in LAYOUT_COLUMNS})
    if "model_type" in config or "architectures" in config:
        shape = vars(model_from_config(config, "")) | {"name": None}
        return Taken("Hugging Face config", model=shape)
    return None


def _log(text: str) -> list[Taken]:
    """The log of a program, with what it says of its options, and what a meter wrote, perhaps into the same file."""
    if meter_logs.is_zeus(text):
        return [Taken("Zeus windows", meter=text)]
    if is_trace(text):
        return [Taken("trace of GPUs", meter=text), *_log_alone(text)]
    return _log_alone(text)


def _log_alone(text: str) -> list[Taken]:
    dump = megatron.dump_taken(text)
    if dump or megatron_log.is_log(text):
        taken = dump or Taken("Megatron-LM log", "megatron-lm")
        taken.log = text
        return [taken]
    form = next((form for form in FORMATS if form.is_log(text)), None)
    if form is TORCHTITAN or "Building device mesh with parallelism" in text:
        return [torchtitan.log_taken(text)]
    if form is not None and form.framework == "deepspeed":
        return [deepspeed.log_taken(text)]
    if form is NANOTRON or "Config(general=GeneralArgs(" in text:
        return [nanotron.log_taken(text)]
    if form is not None:
        return [Taken(f"{form.framework} log", form.framework, log=text)]
    if "Traceback (most recent call last)" in text and failure_of(text, 1, False, 0.0).status == "oom":
        return [Taken("log of a failed run", log=text)]
    return []


def _config(text: str) -> list[Taken]:
    """A TOML or a YAML of at most as many characters as a script, since parsers take long for odd ones."""
    if len(text) > MOST_CHARACTERS:
        return []
    toml: Mapping[str, Any] = {}
    if all(line.count(".") <= _MOST_POINTS for line in text.splitlines()):
        with suppress(ValueError, RecursionError):  # no TOML, a number of thousands of digits, nested too deeply
            toml = tomllib.loads(text)
    if torchtitan.is_torchtitan(toml):
        return [torchtitan.config_taken(toml)]
    try:
        config = parse_yaml(text)
    except JobError:
        return []
    inner = config.get("training")
    config = inner if isinstance(inner, Mapping) and megatron_bridge.is_nemo(inner) else config
    readers = (
        (megatron_bridge.is_nemo, megatron_bridge.nemo_taken), (nanotron.is_nanotron, nanotron.config_taken),
        (deepspeed.is_accelerate, deepspeed.accelerate_taken),
        (megatron_bridge.is_bridge, megatron_bridge.bridge_taken),
    )  # fmt: skip
    found = [read(config) for known, read in readers if known(config)]
    return found[:1]


def _script(text: str) -> list[Taken]:
    """The program that a script starts, and where."""
    script = read_script(text)
    found = next(_programs(script), None)
    if found is None:
        return []
    found.cluster = cluster_of(script) | found.cluster
    if script.left_out:
        lines = "; ".join(line[:60] for line in script.left_out[:3])
        found.remarks += (f"{len(script.left_out)} lines hang on what only a shell knows and are left out: {lines}",)
    found.names = tuple(dict.fromkeys(_configs_of(script)))
    known = {name: value for name, value in script.variables.items() if UNKNOWN not in value}
    found.flags |= {name: value for name, value in known.items() if name.startswith(_VARIABLES)}
    return [found]


def _configs_of(script: Script) -> Iterator[str]:
    """Names of the configs that the commands of a script are given."""
    for words in script.commands:
        for name, value in pairs_of(words):
            if ("config" in name or name == "deepspeed") and isinstance(value, str) and _FILE_WORDS.search(value):
                yield Path(value).name
    if _FILE_WORDS.search(named := script.variables.get("CONFIG_FILE", "")):
        yield Path(named).name


def _programs(script: Script) -> Iterator[Taken]:
    """The statements of the commands of a script, those that state most first."""
    commands = sorted(script.commands, key=len, reverse=True)
    for words in commands:
        pairs = {name: value for name, value in pairs_of(words) if name not in OPTIONS}
        if set(megatron.SHAPE) <= pairs.keys() or "tensor_model_parallel_size" in pairs:
            yield _megatron(pairs)
        elif overrides := _overrides(words):
            yield overrides
        elif any(_TITAN.match(name) for name in pairs):
            yield torchtitan.words_taken(words)
    for words in commands:
        pairs = {name: value for name, value in pairs_of(words) if name not in OPTIONS}
        starter = {"deepspeed", "accelerate", "torchrun"} & {Path(word).name for word in words[:6]}
        if starter or {"model_name_or_path", "deepspeed", "deepspeed_config"} & pairs.keys():
            taken = deepspeed.trainer_taken(pairs, "launch script")
            uses = "deepspeed" in starter or {"deepspeed", "deepspeed_config"} & pairs.keys()
            taken.framework = "deepspeed" if uses else ""
            yield taken


def _megatron(pairs: Mapping[str, Any]) -> Taken:
    """Options of Megatron-LM, or of Megatron-DeepSpeed."""
    by_deepspeed = "deepspeed" in pairs or "deepspeed_config" in pairs
    # a command line that does not ask for overlap has none
    taken = megatron.options_taken(({} if by_deepspeed else megatron.OFF) | dict(pairs), "Megatron-LM options")
    if by_deepspeed:
        options = Options(pairs)
        taken.framework = "megatron-deepspeed"
        stage = options.whole("zero_stage")
        taken.plan |= {"zero_stage": stage} if stage is not None else {}
        ours = ("deepspeed", "zero_stage", "no_pipeline_parallel")
        taken.unread = tuple(name for name in taken.unread if not name.startswith(ours))
    return taken


def _overrides(words: list[str]) -> Taken | None:
    """Overrides of Hydra, ``model.tensor_model_parallel_size=4``, of NeMo or Megatron-Bridge."""
    found = (_OVERRIDE.fullmatch(word) for word in words)
    flat = {match[1].removeprefix("training."): match[2] for match in found if match}
    flat = {name: value for name, value in flat.items() if "." in name or name == "mixed_precision"}
    if not flat:
        return None
    config: dict[str, Any] = {}
    for name, value in flat.items():
        *places, last = name.split(".")
        inner = config
        for place in places:
            inner[place] = inner[place] if isinstance(inner.get(place), dict) else {}
            inner = inner[place]
        inner[last] = _plain(value)
    read = megatron_bridge.nemo_taken if "trainer" in config else megatron_bridge.bridge_taken
    taken = read(config)
    recipes = [re.sub(r"_(?:pretrain|config|recipe|\d+gpu).*|^(?:training=|pretrain_)|\.py$", "", w) for w in words]
    known = next((name for word in recipes if (name := catalogue_name(Path(word).name))), "")
    if not taken.model.get("num_layers"):
        taken.model = {"catalogue": known} if known else {}
    return taken


def _plain(value: str) -> Any:
    if value.startswith("["):  # a list, as Hydra takes it; with words that are not quoted it stays text
        with suppress(ValueError):
            return json.loads(value)
    word = value.strip("'\"")
    return {"true": True, "false": False, "null": None, "none": None}.get(word.lower(), word)


# Several files of one run into one job and its plan; what none of them states is required by its option.


_NAMES = {
    "gpu": "the GPU (--gpu)", "model": "the model (--model)", "vocab_size": "the vocabulary (--vocab-size)",
    "seq_length": "the sequence length (--seq-length)", "global_batch_size": "the batch (--global-batch-size)",
    "nodes": "the number of nodes (--nodes)", "gpus_per_node": "GPUs per node (--gpus-per-node)",
}  # fmt: skip
_TRAINING = (
    "seq_length", "global_batch_size", "dtype", "fp8_recipe", "attention", "framework", "cuda_graph", *STATE_FIELDS,
    "lora_dim", "lora_alpha", "lora_target_modules", "token_dispatcher", "overlap_moe_a2a",
    "moe_router_force_load_balancing",
)  # fmt: skip
_CLUSTER = ("gpu", "nodes", "gpus_per_node", "inter_node_gbytes_per_s")


@dataclass(frozen=True)
class Resolved:
    """The job of a run, the plan that it runs (columns that its files state), and remarks on both."""

    job: Job
    plan: dict[str, Any]
    remarks: tuple[str, ...]


def resolved(files: Sequence[Taken], name: str, given: Mapping[str, Any]) -> Resolved:
    """The job and plan of one run; ``given`` are options, which count more than files, earlier files than later.

    Raises JobError: one sentence that names each value that is missing with its option, or what contradicts.
    """
    remarks: list[str] = []
    whole = _joined(files, remarks)
    options = {key: value for key, value in given.items() if value is not None}
    whole.training |= {key: options[key] for key in _TRAINING if key in options}
    whole.cluster |= {key: options[key] for key in _CLUSTER if key in options}
    if {"nodes", "gpus_per_node"} & options.keys():
        whole.cluster.pop("num_gpus", None)
        whole.plan.pop("dp", None)
    missing = [key for key in ("gpu",) if not whole.cluster.get(key)]
    cluster = _sizes(whole, missing)
    _fill_batch(whole, cluster, missing, remarks)
    model = _model(whole, options, remarks, missing)
    missing += [key for key in ("seq_length", "global_batch_size") if not whole.training.get(key)]
    if missing:
        alike = f", or --model {' or '.join(found)}" if (found := [r for r in remarks if r in model_names()]) else ""
        names = _NAMES | {"vocab_size": _NAMES["vocab_size"].replace(")", f"{alike})")}
        wanted = [names[key] for key in dict.fromkeys(missing)]
        sources = [*dict.fromkeys(one.source for one in files)]
        raise JobError(f"{_and(sources)} {'do' if len(sources) > 1 else 'does'} not state {_and(wanted)}; give them.")
    training = {key: whole.training[key] for key in _TRAINING if whole.training.get(key) is not None}
    training["framework"] = options.get("framework") or whole.framework or "generic"
    job = parse_job({"name": name, "model": model, "training": training, "cluster": cluster}, name, Path())
    rest = [one.rest(whole.plan, job.model.num_layers) for one in files if one.rest]
    return Resolved(job, {key: value for one in (*rest, whole.plan) for key, value in one.items()}, tuple(remarks))


def _and(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def _joined(files: Sequence[Taken], remarks: list[str]) -> Taken:
    """All files in one: the first that states a value counts, and a later one that differs is remarked on."""
    whole = Taken("")
    for one in files:
        for kind in ("model", "training", "cluster", "plan"):
            here = getattr(whole, kind)
            for key, value in getattr(one, kind).items():
                if key in here and here[key] != value and kind != "model":
                    remarks.append(f"{one.source} states {key} {value}, another file {here[key]}, which counts")
                here.setdefault(key, value)
        whole.framework = whole.framework or one.framework
        whole.accumulation = whole.accumulation or one.accumulation
        remarks += [f"{one.source}: {remark}" for remark in one.remarks]
        unseen = [name for name in one.names if name not in {other.source for other in files}]
        remarks += [f"{one.source} reads {', '.join(unseen)}, which may be given too"] if unseen else []
    return whole


def _sizes(whole: Taken, missing: list[str]) -> dict[str, Any]:
    """The cluster's mapping, with nodes and GPUs per node from what is stated of either, of all GPUs, or the plan."""
    stated = whole.cluster
    degrees = [whole.plan.get(name) or (1 if name != "dp" else None) for name in DEGREES]
    every = stated.get("num_gpus") or (prod(d for d in degrees if d) if None not in degrees else None)
    nodes, per_node = stated.get("nodes"), stated.get("gpus_per_node")
    usual = load_gpu(stated["gpu"]).usual_gpus_per_node if stated.get("gpu") else None
    if per_node is None and nodes and every:
        per_node = every // nodes
    if per_node is None and usual:
        per_node = min(usual, every or usual)
    if nodes is None and per_node:  # launchers start on one node where none are stated
        nodes = -(-every // per_node) if every else 1 if stated.get("gpus_per_node") else None
    missing += [key for key, value in (("gpus_per_node", per_node), ("nodes", nodes)) if not value and "gpu" in stated]
    if nodes is None and "gpu" not in stated and every is None:
        missing.append("nodes")
    sizes = {"gpu": stated.get("gpu"), "nodes": nodes, "gpus_per_node": per_node}
    return sizes | {key: stated[key] for key in _CLUSTER if key in stated and key not in sizes}


def _fill_batch(whole: Taken, cluster: Mapping[str, Any], missing: list[str], remarks: list[str]) -> None:
    """dp, the micro-batch and the batch, each from the others; a rank passes once where no file says how often."""
    plan, training = whole.plan, whole.training
    if cluster["nodes"] and cluster["gpus_per_node"]:
        every = cluster["nodes"] * cluster["gpus_per_node"]
        if whole.cluster.get("num_gpus") not in (None, every):
            raise JobError(
                f"The run has {whole.cluster['num_gpus']} GPUs, which are no {cluster['nodes']} nodes of "
                f"{cluster['gpus_per_node']}; give --nodes and --gpus-per-node."
            )
        others = prod(plan.get(name) or 1 for name in DEGREES if name != "dp")
        if every % others:
            raise JobError(f"tp, pp and cp of the plan take {others} GPUs, which do not divide the {every} of the run.")
        if plan.get("dp") not in (None, every // others):
            raise JobError(f"The plan's degrees make {plan['dp'] * others} GPUs; the run has {every} (--nodes).")
        plan["dp"] = every // others
    elif plan.get("dp") is None:
        missing.append("nodes")
        return
    steps, micro_batch = whole.accumulation or 1, plan.get("micro_batch_size")
    if not training.get("global_batch_size") and micro_batch:
        training["global_batch_size"] = micro_batch * steps * plan["dp"]
    elif training.get("global_batch_size") and not micro_batch:
        plan["micro_batch_size"] = max(training["global_batch_size"] // (plan["dp"] * steps), 1)
        if not whole.accumulation:
            remarks.append("no file states the micro-batch; a rank is taken to pass its batch at once")


def _model(
    whole: Taken, options: Mapping[str, Any], remarks: list[str], missing: list[str]
) -> str | dict[str, Any] | None:
    """A catalogue name where the shape is one, else the shape written out."""
    named = options.get("model") or whole.model.get("catalogue")
    if named:
        return str(named)
    shape = {key: value for key, value in whole.model.items() if value is not None}
    if "vocab_size" in options:
        shape["vocab_size"] = options["vocab_size"]
    if not {"num_layers", "hidden_size", "num_attention_heads"} <= shape.keys():
        missing.append("model")
        return None
    found = models_of_shape(shape)
    if len(found) == 1 or (found and "vocab_size" in shape):
        if "vocab_size" not in shape:
            remarks.append(f"the vocabulary is not stated; that of {found[0].name}, whose shape it is, is taken")
        return _as_trained(found[0], shape)
    if "vocab_size" not in shape:
        missing.append("vocab_size")
        remarks += [model.name for model in found]
    if shape.get("position_embedding") == "learned":
        shape.setdefault("max_position_embeddings", whole.training.get("seq_length"))
    if not shape.get("num_experts"):
        shape = {key: value for key, value in shape.items() if "moe" not in key and "experts" not in key}
    return shape


def _as_trained(model: Model, shape: Mapping[str, Any]) -> str | dict[str, Any]:
    """The catalogue's name, or its shape where dropout differs."""
    if bool(shape.get("dropout")) == model.dropout:
        return model.name
    filled = {key: value for key, value in vars(model).items() if value or isinstance(value, bool)}
    return filled | {
        "name": f"{model.name}-{'dropout' if not model.dropout else 'no-dropout'}",
        "dropout": not model.dropout,
    }
