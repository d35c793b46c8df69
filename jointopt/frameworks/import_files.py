"""One file in: the format by its content, and what it states."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
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
from jointopt.frameworks.launchers import OPTIONS, cluster_of
from jointopt.frameworks.logs import FORMATS, NANOTRON, TORCHTITAN
from jointopt.frameworks.meter_logs import is_trace
from jointopt.frameworks.model_names import catalogue_name, models_of_shape
from jointopt.frameworks.options import Options, Question, Taken, pairs_of, whole_of
from jointopt.frameworks.origins import (
    SECTIONS,
    Reader,
    fields_of,
    questions_of,
    read_config,
    read_traced,
    split_values,
)
from jointopt.frameworks.shell import MOST_CHARACTERS, read_script
from jointopt.frameworks.shell_words import Run, Script, Word, decided, forks_of, unknown_of, words_of
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.models import load_model, model_names
from jointopt.jobs.details import OF_TRAINING, details_of, differing_details
from jointopt.jobs.huggingface import model_from_config
from jointopt.jobs.job import STATE_FIELDS, Job
from jointopt.jobs.jobfile import parse_job
from jointopt.jobs.model import Model
from jointopt.jobs.model_facts import checked_facts, facts
from jointopt.jobs.reading import parse_json, parse_yaml

_MOST_BYTES = 500_000_000
_MOST_POINTS = 200  # in a line of TOML, whose parser takes the square of the parts of a name in time
_OVERRIDE = re.compile(
    r"\+{0,2}((?:training\.)?(?:model|train|trainer|ddp|dataset|exp_manager|mixed_precision)\.?[\w.]*)=(.*)"
)
_TITAN = re.compile(r"(?:parallelism|training|activation_checkpoint|model|job)\.\w")
_STARTERS = ("deepspeed", "accelerate", "torchrun")
_MOST_VARIANTS = 32  # of a command
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


def read_files(paths: Sequence[Path], given: Mapping[str, str] | None = None, run: int | None = None) -> list[Taken]:
    """The statements of the files of one run; a script that another of them sources or starts is read there.

    ``given``: variables and arguments of scripts; ``run``: which of the runs that a script starts. JobError for a file
    that no reader knows.
    """
    texts = {path: _text_of(path) for path in paths}
    found: dict[Path, list[Taken]] = {}
    inside: set[str] = set()
    for path, text in texts.items():
        others = {other.name: inner for other, inner in texts.items() if other != path}
        try:
            found[path] = read_text(text, path.name, others, given, run)
        except (UsageError, RecursionError) as error:
            nested = f"it is nested more deeply than any file of a known program; expected {_KINDS}."
            raise JobError(f"{path}: {nested if isinstance(error, RecursionError) else error}") from error
        for taken in found[path]:
            taken.source = path.name
            inside |= set(taken.reads)
    for path in paths:
        if not found[path] and path.name not in inside:
            raise JobError(f"jointopt cannot import {path}{_what_it_is(path, texts[path])}; expected {_KINDS}.")
    return [taken for path in paths for taken in found[path] if path.name not in inside]


def _text_of(path: Path) -> str:
    try:
        return regular_bytes(path, _MOST_BYTES, "a file of one run, or the part with one", JobError).decode(
            "utf-8", errors="replace"
        )
    except OSError as error:
        raise JobError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_text(
    text: str, name: str = "", others: Mapping[str, str] | None = None, given: Mapping[str, str] | None = None,
    run: int | None = None,
) -> list[Taken]:  # fmt: skip
    """The statements of a text; none where no reader knows it. ``others``: texts of the files beside it."""
    if "\0" in text and "--" in text:  # the arguments of a process, as the kernel shows them
        return _script(sh_command(text.strip("\0\n").split("\0")), name, {}, {}, run)
    if text.lstrip().startswith("{") and (found := _of_json(text, name)):
        return [found]
    if "torchtitan.models." in text and (found := torchtitan.python_taken(text)):
        return [found]
    return _log(text) or _config(text, name) or _script(text, name, others or {}, given or {}, run)


def _of_json(text: str, name: str) -> Taken | None:
    try:
        config = parse_json(text)
    except JobError:
        return None
    if deepspeed.is_deepspeed(config):
        return read_config(deepspeed.config_taken, config, text, name)
    if deepspeed.is_accelerate(config):
        return read_config(deepspeed.accelerate_taken, config, text, name)
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


def _config(text: str, name: str) -> list[Taken]:
    """A TOML or a YAML of at most as many characters as a script, since parsers take long for odd ones."""
    if len(text) > MOST_CHARACTERS:
        return []
    toml: Mapping[str, Any] = {}
    if all(line.count(".") <= _MOST_POINTS for line in text.splitlines()):
        with suppress(ValueError, RecursionError):  # no TOML, a number of thousands of digits, nested too deeply
            toml = tomllib.loads(text)
    if torchtitan.is_torchtitan(toml):
        return [read_config(torchtitan.config_taken, toml, text, name)]
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
    found = next((read for known, read in readers if known(config)), None)
    return [read_config(found, config, text, name)] if found else []


@dataclass(frozen=True)
class _Program:
    """A program that a command starts: how its options are read, and these."""

    read: Reader
    values: dict[str, Any]
    pretrains: bool  # by its options; else it trains by a script of one's own

    @functools.cached_property
    def parts(self) -> tuple[dict[str, Any], dict[str, Word]]:
        """The options that are known, and those that are not."""
        return split_values(self.read, self.values)


_Ways = Sequence[tuple[dict[int, int], list[Word], _Program | None]]


def _script(
    text: str, name: str, others: Mapping[str, str], given: Mapping[str, str], chosen: int | None
) -> list[Taken]:  # fmt: skip
    """The program that a script starts, and where."""
    script = read_script(text, name, others, given)
    starts = [(run, _variants(run, script)) for run in script.runs]
    programs = [(run, ways, program) for run, ways in starts
                if (program := next((found for *_, found in ways if found), None))]  # fmt: skip
    if any(program.pretrains for *_, program in programs):
        programs = [one for one in programs if one[2].pretrains]
    elif any(set(_STARTERS) & {Path(word).name for word in run.words[:12]} for run, *_ in programs):
        programs = [one for one in programs if set(_STARTERS) & {Path(word).name for word in one[0].words[:12]}]
    usual = [one for one in programs
             if all(script.usual.get(fork, at) == at for fork, at in one[0].branches.items())]  # fmt: skip
    programs = usual or programs
    different: dict[str, tuple[Run, _Ways]] = {}
    for run, ways, program in programs:
        stated = fields_of(program.read(program.parts[0]))
        different.setdefault(str((stated, cluster_of(script, run, others).cluster)), (run, ways))
    if not different:
        return []
    if len(different) > 1 and not (chosen and chosen <= len(different)):
        listed = ", ".join(f"--run {at} ({_where(script, run)})" for at, (run, _) in enumerate(different.values(), 1))
        raise JobError(f"it starts {len(different)} runs that differ: {listed}; give one of these.")
    run, ways = [*different.values()][(chosen or 1) - 1 if len(different) > 1 else 0]
    taken = _taken_of(script, run, ways, others)
    if script.left_out:
        lines = "; ".join(line[:60] for line in script.left_out[:3])
        taken.remarks += (f"{len(script.left_out)} lines are no commands that are understood, and left out: {lines}",)
    taken.names = tuple(dict.fromkeys([*_configs_of(script, run), *(Path(one).name for one in script.missing)]))
    taken.reads = tuple(script.read)
    taken.flags |= {key: value for key, value in run.environment.items() if key.startswith(_VARIABLES)}
    return [taken]


def _where(script: Script, run: Run) -> str:
    conditions = [script.conditions.get(fork, "") for fork in run.branches]
    return run.place + "".join(f", by {one}" for one in conditions[-1:] if one)


def _variants(run: Run, script: Script) -> _Ways:
    """(branch of each fork, words, program) of a command for all combinations of its forks; of many, for each alone.

    First those branches that are taken where nobody gives a variable.
    """
    forks = dict(fork for word in run.words for fork in forks_of(word.pieces))
    ways = {fork: sorted(range(number), key=lambda at: at != script.usual.get(fork, 0))
            for fork, number in forks.items() if fork not in run.branches}  # fmt: skip
    if prod(map(len, ways.values())) <= _MOST_VARIANTS:
        rows = [run.branches | dict(zip(ways, row, strict=True)) for row in product(*ways.values())]
    else:
        ends = [run.branches | {fork: order[end] for fork, order in ways.items()} for end in (0, -1)]
        rows = ends + [one | {fork: at} for one in ends for fork, order in ways.items() for at in order]
    found = []
    for row in rows:
        words = [
            part
            for word in run.words
            for part in (words_of(decided(word.pieces, row)) if any(p.unknown for p in word.pieces) else [word])
        ]
        found.append((row, words, _program(words)))
    return found


def _program(words: Sequence[Word]) -> _Program | None:
    """The program that a command starts, if it is one whose options are known."""
    pairs = {name: value for name, value in pairs_of(words) if name not in OPTIONS}
    if set(megatron.SHAPE) <= pairs.keys() or "tensor_model_parallel_size" in pairs:
        return _Program(_megatron, pairs, True)
    if overrides := _override_values(words):
        return _Program(lambda values: _overrides(values, words), overrides, True)
    if any(_TITAN.match(name) for name in pairs):
        return _Program(torchtitan.options_taken, torchtitan.option_values(words), True)
    starter = set(_STARTERS) & {Path(word).name for word in words[:12]}
    if not starter and not {"model_name_or_path", "deepspeed", "deepspeed_config"} & pairs.keys():
        return None
    uses = "deepspeed" in starter or {"deepspeed", "deepspeed_config"} & pairs.keys()

    def read(values: Mapping[str, Any]) -> Taken:
        taken = deepspeed.trainer_taken(values, "launch script")
        taken.framework = "deepspeed" if uses else ""
        return taken

    values = {name: _one_word(value) for name, value in pairs.items()}
    return _Program(read, values, False)


def _one_word(value: Any) -> Any:
    """A variable behind an option of a Hugging Face trainer is its value: flags take true and false there."""
    found = unknown_of(value)
    if found is None or found.is_list:
        return value
    return Word(piece._replace(quoted=True) for piece in value.pieces)


def _taken_of(script: Script, run: Run, ways: _Ways, others: Mapping[str, str]) -> Taken:
    """The statements of a run, and questions on what differs by what only a shell knows."""
    found: Taken | None = None
    first: dict[int, int] = {}
    fields: dict[str, Any] = {}
    for choices, words, program in ways:
        if program is None:
            continue
        started = cluster_of(script, replace(run, words=words), others)
        if found is None:
            found = read_traced(program.read, *program.parts, _places_of(words), run.place)
            fields, first = fields_of(found), choices
            found.cluster = started.cluster | found.cluster
            found.origins |= {f"cluster.{name}": started.places.get(name) or run.place for name in started.cluster}
            found.asked |= {f"cluster.{name}": Question(*why) for name, why in started.asked.items()}
            fields |= {f"cluster.{name}": value for name, value in started.cluster.items()}
            found.remarks += _remark_on_more(words, found.asked)
            _leave_sharding(found, program.values, others)
            continue
        known, unknown = program.parts
        other = fields_of(program.read(known)) | {f"cluster.{n}": value for n, value in started.cluster.items()}
        asked = {**questions_of(program.read, known, unknown), **{f"cluster.{n}": Question(*q) for n, q in
                                                                  started.asked.items()}}  # fmt: skip
        forks = [fork for fork, at in choices.items() if first.get(fork) != at]
        by = " and ".join([*dict.fromkeys(script.conditions.get(fork) or run.place for fork in forks)][:2])
        variable = next((script.deciding[fork] for fork in forks if fork in script.deciding), "")
        differ = [name for name in sorted(fields.keys() | other.keys()) if fields.get(name) != other.get(name)]
        if all(fork in script.usual for fork in forks):
            found.origins |= dict.fromkeys((*differ, *asked), f"default of {by}")
            continue
        for name in differ:
            if name not in found.asked:
                values = " or ".join(str(one.get(name, "nothing")) for one in (fields, other))
                found.asked[name] = Question(f"{values}, by {by}", variable)
        for name, question in asked.items():
            found.asked.setdefault(name, question)
    if found is None:
        raise JobError(f"{run.place}: the command that it starts is not understood.")
    for name in found.asked:
        section, _, key = name.partition(".")
        if section in SECTIONS:
            getattr(found, section).pop(key, None)
    return found


def _leave_sharding(taken: Taken, values: Mapping[str, Any], others: Mapping[str, str]) -> None:
    """Leaves ZeRO to DeepSpeed's config where the command is given one and does not say itself."""
    config = values.get("deepspeed_config") or values.get("deepspeed")
    if not isinstance(config, str) or "zero_stage" in values:
        return
    taken.plan.pop("zero_stage", None)
    if Path(config).name not in others:
        taken.asked["plan.zero_stage"] = Question(f"{Path(config).name} is not given")


def _places_of(words: Sequence[Word]) -> dict[str, str]:
    """The places of options by their names, and whether they are a script's default."""
    names = {
        word: re.sub(r"^--?|=.*", "", word, flags=re.DOTALL).replace("-", "_") for word in words if word[:1] == "-"
    }
    return {name: f"default of {word.place}" if word.default else word.place for word, name in names.items()}


def _remark_on_more(words: Sequence[Word], asked: Mapping[str, Question]) -> tuple[str, ...]:
    """A sentence on words that may hold more options than those that are asked."""
    start = next((at for at, word in enumerate(words) if word.endswith(".py") or word == "-m"), 0)
    reasons = " ".join(question.why for question in asked.values())
    names = [f"{word} ({word.unknown.place})" for word in words[start:]
             if word.unknown and word.many and f"is given {word}," not in reasons]  # fmt: skip
    if not names:
        return ()
    return (f"{', '.join(dict.fromkeys(names))} may hold more options, which only a shell knows and are not read",)


def _configs_of(script: Script, run: Run) -> Iterator[str]:
    """Names of the configs that the commands of a script are given."""
    for words in script.commands:
        for name, value in pairs_of(words):
            if ("config" in name or name == "deepspeed") and isinstance(value, str) and _FILE_WORDS.search(value):
                yield Path(value).name
    if _FILE_WORDS.search(named := run.environment.get("CONFIG_FILE", "")):
        yield Path(named).name


def _megatron(pairs: Mapping[str, Any]) -> Taken:
    """Options of Megatron-LM, or of Megatron-DeepSpeed."""
    by_deepspeed = "deepspeed" in pairs or "deepspeed_config" in pairs
    if "num_key_value_heads" in pairs:  # of Megatron-DeepSpeed
        pairs = {"group_query_attention": True, "num_query_groups": pairs["num_key_value_heads"], **pairs}
    # a command line that does not ask for overlap has none
    taken = megatron.options_taken(({} if by_deepspeed else megatron.OFF) | dict(pairs), "Megatron-LM options")
    if by_deepspeed:
        options = Options(pairs)
        taken.framework = "megatron-deepspeed"
        stage = options.whole("zero_stage")
        taken.plan |= {"zero_stage": stage} if stage is not None else {}
        if not taken.plan["zero_stage"] and taken.training.get("dtype") == "bf16":
            taken.plan["zero_stage"] = 1  # its optimizer for bf16 shards moments and main weights in any case
            taken.remarks += ("bf16 under Megatron-DeepSpeed shards its optimizer, as zero_stage 1 does",)
        ours = ("deepspeed", "zero_stage", "no_pipeline_parallel", "num_key_value")
        taken.unread = tuple(name for name in taken.unread if not name.startswith(ours))
    return taken


def _override_values(words: Sequence[Word]) -> dict[str, Any]:
    """Overrides of Hydra, ``model.tensor_model_parallel_size=4``, by their names."""
    found: dict[str, Any] = {}
    for word in words:
        match = _OVERRIDE.fullmatch(word)
        name = match[1].removeprefix("training.") if match else ""
        if match and ("." in name or name == "mixed_precision"):
            found[name] = word.rest(match.start(2)) if isinstance(word, Word) else match[2]
    return found


def _overrides(flat: Mapping[str, Any], words: Sequence[str]) -> Taken:
    """The statements of overrides of NeMo or Megatron-Bridge."""
    config: dict[str, Any] = {}
    for name, value in flat.items():
        *places, last = name.split(".")
        inner = config
        for place in places:
            inner[place] = inner[place] if isinstance(inner.get(place), dict) else {}
            inner = inner[place]
        inner[last] = _plain(str(value))
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


# options that answer a field; any other is answered by --set FIELD=VALUE
_ANSWERS = {
    "training.seq_length": "seq_length", "training.global_batch_size": "global_batch_size", "training.dtype": "dtype",
    "cluster.nodes": "nodes", "cluster.gpus_per_node": "gpus_per_node", "cluster.gpu": "gpu",
    "model.vocab_size": "vocab_size",
}  # fmt: skip


@dataclass(frozen=True)
class Resolved:
    """The job of a run, the plan that it runs (columns that its files state), remarks, and the origin of each field."""

    job: Job
    plan: dict[str, Any]
    remarks: tuple[str, ...]
    origins: dict[str, str]


def resolved(files: Sequence[Taken], name: str, given: Mapping[str, Any]) -> Resolved:
    """The job and plan of one run; ``given`` are options, which count more than files, earlier files than later.

    Raises JobError: one sentence that names each value that is missing or not known with its option, or contradicts.
    """
    remarks: list[str] = []
    whole = _joined(files, remarks)
    options = {key: value for key, value in given.items() if value is not None and key != "set"}
    _answer(whole, options, given.get("set") or {})
    missing = [key for key in ("gpu",) if not whole.cluster.get(key)]
    cluster = _sizes(whole, missing)
    if question := whole.asked.pop("model.config", None):  # which takes no time
        remarks.append(f"details of the model are not known ({question.why}): exports write the usual ones")
    open_ = [field for field in whole.asked if field.partition(".")[0] in (*SECTIONS, "accumulation")]
    sized = not any(field.startswith(("plan.", "cluster.", "accumulation", "training.global")) for field in open_)
    if sized:
        _fill_batch(whole, cluster, missing, remarks)
    model = None if any(field.startswith("model.") for field in open_) else _model(whole, options, remarks, missing)
    missing += [key for key in ("seq_length", "global_batch_size")[: 1 + sized] if not whole.training.get(key)]
    if missing or open_:
        raise JobError(_missing(whole, files, missing, open_, remarks))
    training = {key: whole.training[key] for key in _TRAINING if whole.training.get(key) is not None}
    training["framework"] = options.get("framework") or whole.framework or "generic"
    job = parse_job({"name": name, "model": model, "training": training, "cluster": cluster}, name, Path())
    remarks += [one.reason for one in job.cluster.assumed if one.key.startswith("model.")]
    rest = [one.rest(whole.plan, job.model.num_layers) for one in files if one.rest]
    plan = {key: value for one in (*rest, whole.plan) for key, value in one.items()}
    stated = {f"training.{key}" for key in training} | {f"cluster.{key}" for key in cluster}
    stated |= {f"plan.{key}" for key in plan} | {f"model.{key}" for key in whole.model}
    usual = {"plan.dp": "the GPUs of the run over those of the other degrees", "training.framework": "its options",
             "cluster.gpus_per_node": f"assumed: usual of {cluster['gpu']}"}  # fmt: skip
    origins = {field: whole.origins.get(field) or usual.get(field, "the other fields") for field in sorted(stated)}
    return Resolved(job, plan, tuple(remarks), origins)


def _answer(whole: Taken, options: Mapping[str, Any], fields: Mapping[str, str]) -> None:
    """Puts options in the place of what files state, and takes away the questions that they answer."""
    for section, names in (("training", _TRAINING), ("cluster", _CLUSTER)):
        for key in names:
            if key in options:
                getattr(whole, section)[key] = options[key]
                whole.origins[f"{section}.{key}"] = f"--{key.replace('_', '-')}"
                whole.asked.pop(f"{section}.{key}", None)
    for field, text in fields.items():
        section, _, key = field.partition(".")
        if section in SECTIONS and key:
            number = whole_of(text)
            words = {"true": True, "false": False}
            getattr(whole, section)[key] = words.get(text.lower(), text) if number is None else number
            whole.origins[field] = f"--set {field}"
            whole.asked.pop(field, None)
    if {"nodes", "gpus_per_node"} & options.keys():
        if whole.asked.pop("cluster.nodes", None) is None or "nodes" in options:
            whole.cluster.pop("num_gpus", None)  # else the nodes follow from the GPUs that are started
        whole.plan.pop("dp", None)
    for field in [*whole.asked]:
        if field.startswith("model.") and (
            "model" in options or (field == "model.vocab_size" and "vocab_size" in options)
        ):
            del whole.asked[field]


def _missing(
    whole: Taken, files: Sequence[Taken], missing: Sequence[str], open_: Sequence[str], remarks: Sequence[str]
) -> str:  # fmt: skip
    """The sentence that names what no file states, with the option that answers it and why it is not known."""
    alike = f", or --model {' or '.join(found)}" if (found := [r for r in remarks if r in model_names()]) else ""
    names = _NAMES | {"vocab_size": _NAMES["vocab_size"].replace(")", f"{alike})")}
    answered = {_ANSWERS.get(field, "") for field in open_}
    wanted = [names[key] for key in dict.fromkeys(missing) if key not in answered]
    by_why: dict[Question, list[str]] = {}
    for field in open_:
        by_why.setdefault(whole.asked[field], []).append(field)
    for question, fields in by_why.items():
        ways = [f"--set {question.variable}=..."] if question.variable else []
        ways += [f"--{_ANSWERS[field].replace('_', '-')}" for field in fields if field in _ANSWERS]
        ways = ways or [f"--set {field}=..." for field in fields[:3]]
        wanted.append(f"{_and(fields[:6])} ({question.why}; {' or '.join(ways)})")
    sources = [*dict.fromkeys(one.source for one in files)]
    return f"{_and(sources)} {'do' if len(sources) > 1 else 'does'} not state {_and(wanted)}; give them."


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
                if key not in here:
                    whole.origins[f"{kind}.{key}"] = one.origins.get(f"{kind}.{key}") or one.source
                here.setdefault(key, value)
        whole.framework = whole.framework or one.framework
        whole.asked = {**one.asked, **whole.asked}
        whole.accumulation = whole.accumulation or one.accumulation
        remarks += [f"{one.source}: {remark}" for remark in one.remarks]
        unseen = [name for name in one.names if name not in {other.source for other in files}]
        remarks += [f"{one.source} reads {', '.join(unseen)}, which may be given too"] if unseen else []
    stated = {f"{kind}.{key}" for kind in SECTIONS for key in getattr(whole, kind)}
    whole.asked = {field: why for field, why in whole.asked.items() if field not in stated}
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
    unsure = {"cluster.nodes", "cluster.gpus_per_node"} & whole.asked.keys()
    if per_node is None and usual and not unsure:
        per_node = min(usual, every or usual)
    if (
        nodes is None and per_node and "cluster.nodes" not in unsure
    ):  # launchers start on one node where none are stated
        nodes = -(-every // per_node) if every else 1 if stated.get("gpus_per_node") else None
    missing += [key for key, value in (("gpus_per_node", per_node), ("nodes", nodes)) if not value and "gpu" in stated]
    if "cluster.nodes" in unsure and every:  # GPUs per node follow
        missing[:] = [key for key in missing if key != "gpus_per_node"]
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
    batch = training.get("global_batch_size")
    if batch and micro_batch and batch % (micro_batch * plan["dp"]):
        raise JobError(
            f"The batch of {batch} sequences is no multiple of the {micro_batch * plan['dp']} that dp {plan['dp']} and "
            f"micro-batches of {micro_batch} make; give --global-batch-size, or --nodes and --gpus-per-node."
        )
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
    other = whole.model.get("other") or ()
    if isinstance(other, str):  # by --set
        other = whole.model["other"] = tuple(one for one in re.split(r"[,; ]+", other) if one != "none")
    if "model" in options and other:
        remarks.append(f"--model counts, and not that the run has {', '.join(facts()[name].words for name in other)}")
    if named := options.get("model") or (whole.model.get("catalogue") if not other else None):
        return str(named)
    try:
        checked_facts(other, whole.origins.get("model.other", "the run"))
    except JobError as error:
        raise JobError(f"{str(error)[:-1]}, or price it without (--set model.other=none).") from error
    base = whole.model.get("catalogue")
    catalogue = vars(load_model(base)) | {"name": f"{base}-variant"} if base else {}
    shape = catalogue | {key: value for key, value in whole.model.items() if value is not None and key != "catalogue"}
    if "vocab_size" in options:
        shape["vocab_size"] = options["vocab_size"]
    if not {"num_layers", "hidden_size", "num_attention_heads"} <= shape.keys():
        missing.append("model")
        return None
    found = models_of_shape(shape)
    if len(found) == 1 or (found and "vocab_size" in shape):
        if "vocab_size" not in shape:
            remarks.append(f"the vocabulary is not stated; that of {found[0].name}, whose shape it is, is taken")
        return _as_trained(found[0], shape, remarks)
    if "vocab_size" not in shape:
        missing.append("vocab_size")
        remarks += [model.name for model in found]
    if shape.get("position_embedding") == "learned":
        shape.setdefault("max_position_embeddings", whole.training.get("seq_length"))
    if not shape.get("num_experts"):
        shape = {key: value for key, value in shape.items() if "moe" not in key and "experts" not in key}
    return shape


def _as_trained(model: Model, shape: Mapping[str, Any], remarks: list[str]) -> str | dict[str, Any]:
    """The catalogue's name, or its shape where dropout or a stated detail differs."""
    config = {**(model.config or {}), **(shape.get("config") or {})}
    varies = differing_details(details_of(replace(model, config=config)), details_of(model))
    own = [f"{name} {value:g}" for name, value in varies.items() if name in OF_TRAINING]
    varies = {name: value for name, value in varies.items() if name not in OF_TRAINING}
    if own and not varies:
        remarks.append(f"{' and '.join(own)} of the run: yours to set, exports write those of {model.name}")
    if bool(shape.get("dropout")) == model.dropout and not varies:
        return model.name
    filled = {key: value for key, value in vars(model).items() if value or isinstance(value, bool)}
    other = "" if bool(shape.get("dropout")) == model.dropout else "-no-dropout" if model.dropout else "-dropout"
    return filled | {"name": f"{model.name}{other}", "dropout": bool(shape.get("dropout")), "config": config}
