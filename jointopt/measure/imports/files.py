"""One file in: the format by its content, and what it states."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jointopt.core.errors import JobError, UsageError
from jointopt.core.input_files import regular_bytes
from jointopt.core.quote import our_command, sh_command
from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.jobs.huggingface import model_from_config
from jointopt.jobs.reading import parse_json, parse_yaml
from jointopt.measure.imports import deepspeed, megatron, nanotron, nemo, torchtitan
from jointopt.measure.imports.catalogue import catalogue_name
from jointopt.measure.imports.launch import OPTIONS, cluster_of
from jointopt.measure.imports.shell import MOST_CHARACTERS, UNKNOWN, Script, read_script
from jointopt.measure.imports.taken import Options, Taken, pairs_of
from jointopt.measure.launchers.failures import failure_of
from jointopt.measure.logs import megatron as megatron_log
from jointopt.measure.logs import zeus
from jointopt.measure.logs.others import FORMATS, NANOTRON, TORCHTITAN
from jointopt.measure.logs.traces import is_trace

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
    if zeus.is_zeus(text):
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
    config = inner if isinstance(inner, Mapping) and nemo.is_nemo(inner) else config
    readers = (
        (nemo.is_nemo, nemo.nemo_taken), (nanotron.is_nanotron, nanotron.config_taken),
        (deepspeed.is_accelerate, deepspeed.accelerate_taken), (nemo.is_bridge, nemo.bridge_taken),
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
    read = nemo.nemo_taken if "trainer" in config else nemo.bridge_taken
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
