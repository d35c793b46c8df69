"""One file in: the format by its content, and what it states."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from jointopt.core.errors import JobError, UsageError
from jointopt.core.input_files import regular_bytes
from jointopt.core.quote import our_command, sh_command
from jointopt.core.schema import DEGREES, LAYOUT_COLUMNS
from jointopt.frameworks import deepspeed, kubernetes, megatron, megatron_bridge, meter_logs, nanotron, torchtitan
from jointopt.frameworks import logs as megatron_log
from jointopt.frameworks.commands.programs import is_megatron, shards_for_bf16, yaml_settings
from jointopt.frameworks.commands.scripts import script_settings
from jointopt.frameworks.configs.config_programs import config_settings, program_of, python_config, refusal
from jointopt.frameworks.failures import failure_of
from jointopt.frameworks.logs import FORMATS, NANOTRON, TORCHTITAN, TRAINER, version_of
from jointopt.frameworks.meter_logs import is_trace
from jointopt.frameworks.model_names import models_of_shape
from jointopt.frameworks.options import SECTIONS, FileSettings, Question, listed_words, resolve_references, whole_number
from jointopt.frameworks.origins import Reader, fields_of, is_default, read_config
from jointopt.frameworks.shell import MOST_CHARACTERS
from jointopt.frameworks.shell_statements import ENDINGS
from jointopt.frameworks.shell_values import outside_quotes
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.models import load_model, model_names
from jointopt.jobs.details import OF_TRAINING, details_of, differing_details
from jointopt.jobs.huggingface import model_from_config
from jointopt.jobs.job import SETTINGS, STATE_FIELDS, Job
from jointopt.jobs.jobfile import parse_job
from jointopt.jobs.model import Model
from jointopt.jobs.model_facts import check_facts, facts
from jointopt.jobs.pattern import layer_mappings
from jointopt.jobs.reading import parse_json, parse_yaml

_MOST_BYTES = 500_000_000
_MOST_POINTS = 200  # in a line of TOML, whose parser takes the square of the parts of a name in time
_ARGUMENTS = re.compile(r"^[^\n]*-{8,} arguments -{8,}", re.MULTILINE)
_FILE_KINDS = (
    "a launch script, a config of Megatron-Bridge, NeMo, torchtitan, DeepSpeed, nanotron, Accelerate or another one "
    "in docs/imports.md, a log of one, or what Zeus, dcgmi dmon, dcgm-exporter or nvidia-smi wrote beside it"
)


def _job_file_hint(path: Path, text: str) -> str:
    """A remark on a file that is a job already, or nothing."""
    try:
        ours = {"model", "training", "cluster"} <= parse_yaml(text).keys()
    except JobError:
        return ""
    return f" (it is already a job file: use `{our_command('propose', str(path))}`)" if ours else ""


def read_files(
    paths: Sequence[Path], given: Mapping[str, str] | None = None, run: int | None = None
) -> list[FileSettings]:
    """The statements of the files of one run; a script that another of them sources or starts is read there.

    ``given``: variables and arguments of scripts; ``run``: which of the runs that a script starts. JobError for a file
    that no reader knows.
    """
    texts = {path: _read_bytes(path) for path in paths}
    found: dict[Path, list[FileSettings]] = {}
    refused: dict[Path, UsageError | RecursionError] = {}
    inside: set[str] = set()
    for path, text in texts.items():
        others = {other.name: inner for other, inner in texts.items() if other != path}
        try:
            found[path] = read_text(text, path.name, others, given, run)
        except (UsageError, RecursionError) as error:
            found[path], refused[path] = [], error
        for settings in found[path]:
            settings.source = path.name
            inside |= set(settings.reads)
    for path in paths:
        if path in refused and path.name not in inside:
            nested = f"it is nested more deeply than any file of a known program; expected {_FILE_KINDS}."
            why = refused[path]
            raise JobError(f"{path}: {nested if isinstance(why, RecursionError) else why}") from why
        if not found[path] and path.name not in inside:
            raise JobError(f"jointopt cannot import {path}{_job_file_hint(path, texts[path])}; expected {_FILE_KINDS}.")
    return [one for path in paths for one in found[path] if path.name not in inside or (one.format and not one.command)]


def _read_bytes(path: Path) -> str:
    try:
        return regular_bytes(path, _MOST_BYTES, "a file of one run, or the part with one", JobError).decode(
            "utf-8", errors="replace"
        )
    except OSError as error:
        raise JobError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_text(
    text: str, name: str = "", others: Mapping[str, str] | None = None, given: Mapping[str, str] | None = None,
    run: int | None = None,
) -> list[FileSettings]:  # fmt: skip
    """The statements of a text; none where no reader knows it. ``others``: texts of the files beside it."""
    if "\0" in text and "--" in text:  # the arguments of a process, as the kernel shows them
        return read_words(text.strip("\0\n").split("\0"), name, others, given, run)
    if text.lstrip().startswith("{") and (found := _read_json(text, name)):
        return [found]
    if "torchtitan.models." in text and (found := torchtitan.python_settings(text)):
        return [found]
    module, calls = python_config(text) if len(text) <= MOST_CHARACTERS else ("", {})
    if module and (found := _read_program_config(calls, {name: text}, module)):
        return [found]
    if (pods := kubernetes.pods_of(text)) is not None:
        return _read_pods(pods, text, name, others or {}, given or {}, run)
    quotes = text.startswith("#!") or name.endswith(ENDINGS)  # a script, perhaps with a log in a comment, or before one
    log = [] if quotes and len(text) <= MOST_CHARACTERS and not _read_log(outside_quotes(text)) else _read_log(text)
    settings = log or _read_config(text, name, others or {}, given or {})
    return settings or _read_script(text, name, others or {}, given or {}, run)


def _read_script(
    text: str, name: str, others: Mapping[str, str], given: Mapping[str, str], run: int | None
) -> list[FileSettings]:  # fmt: skip
    """The settings of the run that a script starts, and of the configs that the script writes for it."""
    found, written = script_settings(text, name, others, given, run)
    for settings in found[:1]:
        state_release(settings, text, name)
        inner = {one: configs for one in settings.names if (configs := read_text(written.get(one, ""), one))}
        settings.names = tuple(one for one in settings.names if one not in inner)
        found += [config for configs in inner.values() for config in configs]
    return found


# containers of NVIDIA and AMD, whose tags are releases
_IMAGE = re.compile(
    r"(?:nvcr\.io[/#]nvidia/(?:nemo|pytorch)|\brocm/(?:megatron-lm|pytorch-training|primus)):v?(\d+(?:\.\d+)+)"
)


def state_release(settings: FileSettings, text: str, name: str) -> None:
    """States the release of the container that a script or manifest names; of two that differ none."""
    lines = text.splitlines() if _IMAGE.search(text) else []
    found = {
        image[1]: at
        for at, line in reversed([*enumerate(lines, 1)])
        if not re.match(r"\s*#(?!SBATCH)", line)
        for image in _IMAGE.finditer(line)
    }
    if len(found) == 1 and "framework_release" not in settings.training:
        settings.training["framework_release"], at = next(iter(found.items()))
        settings.origins["training.framework_release"] = f"{name}:{at}"


def _read_pods(
    pods: kubernetes.Pods, manifest: str, name: str, others: Mapping[str, str], given: Mapping[str, str],
    run: int | None,
) -> list[FileSettings]:  # fmt: skip
    """The statements of the script that pods run, of the files that a manifest gives them, and of the manifest."""
    found = _read_script(pods.script, name, {**pods.files, **others}, given, run)
    configs = [one for config in dict.fromkeys(file for settings in found for file in settings.names)
               if config in pods.files for one in read_text(pods.files[config], config, pods.files)]  # fmt: skip
    for settings in found:
        settings.format = f"manifest of Kubernetes, {settings.format}"
        pods.state(settings, name)
        state_release(settings, manifest, name)
    return [*found, *configs]


def read_words(
    words: Sequence[str], name: str = "", others: Mapping[str, str] | None = None,
    given: Mapping[str, str] | None = None, run: int | None = None,
) -> list[FileSettings]:  # fmt: skip
    """The statements of the words of one command, as a process has them."""
    return _read_script(sh_command(words), name, others or {}, given or {}, run)


def _read_json(text: str, name: str) -> FileSettings | None:
    try:
        config = parse_json(text, infinite=True)
    except JobError:
        return None
    if found := _read_program_config(config, {name: text}):
        return found
    if deepspeed.is_deepspeed(config):
        return read_config(deepspeed.config_settings, config, {name: text})
    if {"tp", "pp"} <= config.keys():
        return FileSettings("plan", plan={key: value for key, value in config.items() if key in LAYOUT_COLUMNS})
    if "model_type" in config or "architectures" in config:
        model = model_from_config(config, "")
        layers = layer_mappings(model.layers) or None
        return FileSettings("Hugging Face config", model=vars(model) | {"name": None, "layers": layers})
    return None


# of formats that the configs of other programs contain
_READERS: Mapping[str, Reader] = {
    "deepspeed": deepspeed.config_settings, "torchtitan": torchtitan.settings_over_preset,
    "megatron": lambda options: megatron.option_settings(options, ""), "megatron_plugin": deepspeed.plugin_settings,
}  # fmt: skip


def _read_program_config(config: Mapping[str, Any], texts: Mapping[str, str], module: str = "") -> FileSettings | None:
    """The statements of a config by the table of its program; JobError for a run that is none of a decoder's training.

    ``module``: that a config in Python imports. Others of ``texts`` that are parts of the config are read with it.
    """
    program = program_of(config, module)
    if program is None:
        return None
    names = [*texts][:1]
    for name, text in [*texts.items()][1:] if program.merges else ():
        with suppress(JobError):
            more = parse_yaml(text)
            if program_of(more) is program:
                config, names = {**more, **config}, [*names, name]
    if names[0] != min(names):
        return FileSettings("", reads=(names[0],))  # read with the first of them
    if what := refusal(program, config):
        raise JobError(f"this config of {program.name} is {what}; expected pretraining or supervised fine-tuning of a "
                       f"decoder.")  # fmt: skip
    read = functools.partial(config_settings, program, readers=_READERS)
    settings = read_config(read, config, {name: texts[name] for name in names})
    settings.reads = tuple(names[1:])
    return settings


def _read_log(text: str) -> list[FileSettings]:
    """The log of a program, with what it says of its options, and what a meter wrote, perhaps into the same file."""
    if meter_logs.is_zeus(text):
        return [FileSettings("Zeus windows", meter=text)]
    if is_trace(text):
        return [FileSettings("trace of GPUs", meter=text), *_read_program_log(text)]
    return _read_program_log(text)


def _read_program_log(text: str) -> list[FileSettings]:
    dump = megatron.dump_settings(text)
    if dump or megatron_log.is_log(text):
        return [_read_last_run(text) if dump else FileSettings(*megatron_log.writer_of(text), log=text)]
    form = next((form for form in FORMATS if form.is_log(text)), None)
    if form is TORCHTITAN or "Building device mesh with parallelism" in text:
        return [torchtitan.log_settings(text)]
    if form is not None and (form.framework == "deepspeed" or (form is TRAINER and "print_user_config" in text)):
        return [deepspeed.log_settings(text)]
    if form is NANOTRON or "Config(general=GeneralArgs(" in text:
        return [nanotron.log_settings(text)]
    if form is not None:
        return [FileSettings(f"{form.program or form.framework} log".strip(), form.framework, log=text)]
    if "Traceback (most recent call last)" in text and failure_of(text, 1, False, 0.0).status == "oom":
        return [FileSettings("log of a failed run", log=text)]
    return []


def _read_last_run(text: str) -> FileSettings:
    """A log with lists of Megatron's arguments, from the first one on that states what the last does."""
    starts = [found.start() for found in _ARGUMENTS.finditer(text)][1:]
    parts = [text[start:end] for start, end in zip([0, *starts], [*starts, len(text)], strict=True)]
    dumps = [found for part in parts if (found := megatron.dump_settings(part))]
    if len(dumps) < len(parts):
        parts, dumps = [text], [megatron.dump_settings(text) or FileSettings("Megatron-LM log")]
    at = max((at + 1 for at, one in enumerate(dumps) if fields_of(one) != fields_of(dumps[-1])), default=0)
    settings = dumps[-1]
    settings.log = "".join(parts[at:])
    if at:
        settings.remarks += ("it holds runs whose arguments differ; the last ones count, and what was logged since",)
    return settings


def _read_config(text: str, name: str, others: Mapping[str, str], given: Mapping[str, str]) -> list[FileSettings]:
    """A TOML or a YAML of at most as many characters as a script, since parsers take long for odd ones."""
    if len(text) > MOST_CHARACTERS:
        return []
    toml: Mapping[str, Any] = {}
    if all(line.count(".") <= _MOST_POINTS for line in text.splitlines()):
        with suppress(ValueError, RecursionError):  # no TOML, a number of thousands of digits, nested too deeply
            toml = tomllib.loads(text)
    if torchtitan.is_torchtitan(toml):
        return [read_config(torchtitan.config_settings, toml, {name: text})]
    twice: list[str] = []
    try:
        config: Mapping[str, Any] = resolve_references(parse_yaml(text, twice), given)
    except JobError:
        return []
    remarks = (f"{', '.join(twice[:3])} stands twice; the last counts",) * bool(twice)
    if settings := _read_program_config(config, {name: text} | dict(others)):
        settings.remarks += remarks
        return [settings]
    inner = config.get("training")
    config = inner if isinstance(inner, Mapping) and megatron_bridge.is_nemo(inner) else config
    readers = (
        (megatron_bridge.is_nemo, megatron_bridge.nemo_settings), (nanotron.is_nanotron, nanotron.config_settings),
        (megatron_bridge.is_bridge, megatron_bridge.bridge_settings),
        (is_megatron, yaml_settings),
    )  # fmt: skip
    found = next((read for known, read in readers if known(config)), None)
    if found is None:
        return []
    settings = read_config(found, config, {name: text}, asks=True)
    settings.remarks += remarks
    return [settings]


# Several files of one run into one job and its plan; what none of them states is required by its option.


_OPTION_TEXT = {
    "gpu": "the GPU (--gpu)", "model": "the model (--model)", "vocab_size": "the vocabulary (--vocab-size)",
    "seq_length": "the sequence length (--seq-length)", "global_batch_size": "the batch (--global-batch-size)",
    "nodes": "the number of nodes (--nodes)", "gpus_per_node": "GPUs per node (--gpus-per-node)",
}  # fmt: skip
_TRAINING = (
    "seq_length", "global_batch_size", "dtype", "fp8_recipe", "attention", "framework", *STATE_FIELDS,
    "lora_dim", "lora_alpha", "lora_target_modules", "token_dispatcher", *SETTINGS,
)  # fmt: skip
_CLUSTER = ("gpu", "nodes", "gpus_per_node", "inter_node_gbytes_per_s")


# options that answer a field; any other is answered by --set FIELD=VALUE
_OPTION_OF_FIELD = {
    "training.seq_length": "seq_length", "training.global_batch_size": "global_batch_size", "training.dtype": "dtype",
    "cluster.nodes": "nodes", "cluster.gpus_per_node": "gpus_per_node", "cluster.gpu": "gpu",
    "model.vocab_size": "vocab_size", "model": "model", "model.catalogue": "model",
}  # fmt: skip


@dataclass(frozen=True)
class ImportedRun:
    """The job of a run, the plan that it runs (columns that its files state), remarks, and the origin of each field."""

    job: Job
    plan: dict[str, Any]
    remarks: tuple[str, ...]
    origins: dict[str, str]


def resolve_run(files: Sequence[FileSettings], name: str, given: Mapping[str, Any]) -> ImportedRun:
    """The job and plan of one run; ``given`` are options, which count more than files.

    Raises JobError: one sentence that names each value that is missing or not known with its option, or contradicts.
    """
    remarks: list[str] = []
    files = sorted(files, key=lambda one: (_precedence(one), one.source))
    whole = _merge(files, remarks)
    options = {key: value for key, value in given.items() if value is not None and key != "set"}
    _apply_options(whole, options, given.get("set") or {})
    own_script = (options.get("framework") or whole.framework or "generic") in _OWN_SCRIPTS
    if any(one.format != "Hugging Face config" for one in files):  # which is of a model, and of no run
        _ask_unstated(whole, own_script, any(one.format.startswith(("DeepSpeed", "Accelerate")) for one in files))
    missing = [key for key in ("gpu",) if not whole.cluster.get(key)]
    cluster = _cluster(whole, missing, any(one.command for one in files))
    if question := whole.questions.pop("model.config", None):  # which takes no time
        remarks.append(f"details of the model are not known ({question.why}): exports write the usual ones")
    open_ = [field for field in whole.questions if field.partition(".")[0] in (*SECTIONS, "accumulation", "program")]
    sized = not any(field.startswith(_SIZE_FIELDS) for field in open_)
    if sized:
        _fill_batch(whole, cluster, missing)
    model = (
        None
        if any(field.split(".")[0] == "model" for field in open_)
        else _resolve_model(whole, options, remarks, missing)
    )
    unsized = sized or (whole.accumulation is None and (own_script or not whole.plan.get("micro_batch_size")))
    missing += [key for key in ("seq_length", "global_batch_size")[: 1 + unsized] if not whole.training.get(key)]
    if missing or open_:
        raise JobError(_missing_message(whole, files, missing, open_, remarks))
    training = {key: whole.training[key] for key in _TRAINING if whole.training.get(key) is not None}
    training["framework"] = options.get("framework") or whole.framework or "generic"
    for one in (one for one in files if one.log and "framework_release" not in training):
        if version := version_of(one.log, training["framework"]):
            training["framework_release"] = version
            whole.origins["training.framework_release"] = one.source
    job = parse_job({"name": name, "model": model, "training": training, "cluster": cluster}, name, Path())
    remarks += [one.reason for one in job.cluster.assumed if one.key.startswith("model.")]
    sized_plan = whole.plan | {"nodes": cluster["nodes"]}
    rest = [one.rest(sized_plan, job.model.num_layers) for one in reversed(files) if one.rest]
    plan = {key: value for one in (*rest, whole.plan) for key, value in one.items()}
    stated = {f"training.{key}" for key in training} | {f"cluster.{key}" for key in cluster}
    stated |= {f"plan.{key}" for key in plan} | {f"model.{key}" for key in whole.model}
    usual = {"plan.dp": "the GPUs of the run over those of the other degrees", "training.framework": "its options",
             "cluster.gpus_per_node": f"assumed: usual of {cluster['gpu']}"}  # fmt: skip
    origins = {field: whole.origins.get(field) or usual.get(field, "the other fields") for field in sorted(stated)}
    return ImportedRun(job, plan, tuple(remarks), origins)


# frameworks whose plan is that of a script of one's own, and fields on which the sizes of a run hang
_OWN_SCRIPTS = ("generic", "deepspeed", "fsdp")
_SIZE_FIELDS = (
    *(f"plan.{name}" for name in (*DEGREES, "micro_batch_size")),
    "cluster.",
    "accumulation",
    "training.global",
)


def _ask_unstated(whole: FileSettings, own_script: bool, sharded: bool) -> None:
    """Asks for what decides time and memory and no file states, not even as a program's default.

    ``own_script``: a script that has no degrees but dp, unless a file states them. ``sharded``: a config of DeepSpeed
    or Accelerate says what is recomputed, or nothing is.
    """
    names = ["plan.zero_stage", *([] if sharded else ["plan.recompute"]), "training.dtype"]
    names = [] if "tp" in whole.plan and not own_script else names
    names += [] if "tp" in whole.plan or own_script else ["plan.tp", "plan.pp"]
    batch = whole.training.get("global_batch_size") and whole.accumulation
    names += [] if batch or "training.global_batch_size" in whole.questions else ["plan.micro_batch_size"]
    for name in names:
        section, _, key = name.partition(".")
        if getattr(whole, section).get(key) is None:
            whole.questions.setdefault(name, Question("no file states it"))


def _apply_options(whole: FileSettings, options: Mapping[str, Any], fields: Mapping[str, str]) -> None:
    """Puts options in the place of what files state, and takes away the questions that they answer."""
    for section, names in (("training", _TRAINING), ("cluster", _CLUSTER)):
        for key in names:
            if key in options:
                getattr(whole, section)[key] = options[key]
                whole.origins[f"{section}.{key}"] = f"--{key.replace('_', '-')}"
                whole.questions.pop(f"{section}.{key}", None)
    for field, text in fields.items():
        section, _, key = field.partition(".")
        if section in SECTIONS and key:
            number = whole_number(text)
            words = {"true": True, "false": False}
            getattr(whole, section)[key] = words.get(text.lower(), text) if number is None else number
            whole.origins[field] = f"--set {field}"
            question = whole.questions.pop(field, None)
            if field == "plan.tp" and question and whole.questions.get("plan.sequence_parallel") == question:
                whole.plan["sequence_parallel"] = number != 1  # it is on, but for a single rank
                del whole.questions["plan.sequence_parallel"]
    if "nodes" in options or ("gpus_per_node" in options and whole.cluster.get("nodes")):
        whole.cluster.pop("num_gpus", None)
        whole.plan.pop("dp", None)
    elif "gpus_per_node" in options and (whole.cluster.get("num_gpus") or whole.plan.get("dp")):
        whole.questions.pop("cluster.nodes", None)  # they follow from the GPUs of the run
    for field in [*whole.questions]:
        if field.startswith("model.") and (
            "model" in options or (field == "model.vocab_size" and "vocab_size" in options)
        ):
            del whole.questions[field]


def _missing_message(
    whole: FileSettings, files: Sequence[FileSettings], missing: Sequence[str], open_: Sequence[str],
    remarks: Sequence[str],
) -> str:  # fmt: skip
    """The sentence that names what no file states, with the option that answers it and why it is not known."""
    alike = f", or --model {' or '.join(found)}" if (found := [r for r in remarks if r in model_names()]) else ""
    names = _OPTION_TEXT | {"vocab_size": _OPTION_TEXT["vocab_size"].replace(")", f"{alike})")}
    answered = {_OPTION_OF_FIELD.get(field, "") for field in open_}
    wanted = [names[key] for key in dict.fromkeys(missing) if key not in answered]
    by_why: dict[Question, list[str]] = {}
    for field in open_:
        by_why.setdefault(whole.questions[field], []).append(field)
    for question, fields in by_why.items():
        why = question.why.replace("states it", "states them") if len(fields) > 1 else question.why
        ways = [f"--set {question.variable}=..."] if question.variable else []
        ways += [f"--{_OPTION_OF_FIELD[field].replace('_', '-')}" for field in fields if field in _OPTION_OF_FIELD]
        others = [field for field in fields if field not in _OPTION_OF_FIELD and not question.variable]
        ways += [f"--set {field}=..." for field in others[: 1 if ways else 3]]
        named = ["the model" if field == "model.catalogue" else field for field in fields]
        wanted.append(f"{listed_words(named)} ({why}; {' or '.join(dict.fromkeys(ways))})")
    sources = [*dict.fromkeys(one.source for one in files)]
    unseen = [*dict.fromkeys(name for one in files for name in _missing_configs(one, files))]
    more = f", or {listed_words(unseen)} too, which may state more" if unseen else ""
    do = "do" if len(sources) > 1 else "does"
    them = "it" if len(wanted) == 1 and len(open_) < 2 else "them"
    return f"{listed_words(sources)} {do} not state {listed_words(wanted)}; give {them}{more}."


# which files count more: a log, then what DeepSpeed takes from its own file, the command line, and configs
_RANKS = ("plan", "log", "DeepSpeed config", "", "config", "Hugging Face config")


def _precedence(one: FileSettings) -> int:
    """The rank of a file among others, the lowest of which counts most; those of a process count before all."""
    kinds = [kind for kind in _RANKS if kind in one.format]  # "" is in all
    kind = "log" if one.log else "" if one.command else max(kinds, key=len) or "config"
    return _RANKS.index(kind) - (len(_RANKS) if one.process else 0)


def _merge(files: Sequence[FileSettings], remarks: list[str]) -> FileSettings:
    """The settings of all files in one: statements before defaults, and of each those of the first rank first.

    The defaults of what runs count as statements. A differing value that does not count is remarked on; one that
    differs among files of one rank is asked.
    """
    whole = FileSettings("")
    by: dict[str, FileSettings] = {}
    for default in (False, True):
        for one in files:
            for name, value in fields_of(one).items():
                kind, _, key = name.partition(".")
                if kind not in SECTIONS or (_is_overridable(one, name) is not default):
                    continue
                here = getattr(whole, kind)
                if name not in by:
                    by[name], here[key] = one, value
                    whole.origins[name] = one.origins.get(name) or one.source
                else:
                    _note_difference(whole, name, by[name], one, remarks)
    for one in (*(one for one in files if not _is_overridable(one, "accumulation")), *files):
        whole.accumulation = whole.accumulation or one.accumulation
    for one in files:
        for name, question in one.questions.items():
            if not _is_answered(name, one, files):
                whole.questions.setdefault(name, question)
        remarks += [f"{one.source}: {remark}" for remark in one.remarks]
        unseen = _missing_configs(one, files)
        remarks += [f"{one.source} reads {', '.join(unseen)}, which may be given too"] if unseen else []
    named = (*(one for one in files if one.command), *files)
    whole.framework = next((one.framework for one in named if one.framework), "")
    if whole.framework == "megatron-deepspeed":
        remarks += shards_for_bf16(whole)
    _drop_nodes(whole, by, remarks)
    for name in whole.questions:
        whole.drop(name)
    return whole


def _runs(one: FileSettings) -> bool:
    """Whether a file shows what runs: a process or a log."""
    return bool(one.process or one.log)


def _is_overridable(one: FileSettings, name: str) -> bool:
    """Whether a value is a default that the statement of another file overrides; no default of what runs is."""
    return is_default(one, name) and not _runs(one)


def _drop_nodes(whole: FileSettings, by: Mapping[str, FileSettings], remarks: list[str]) -> None:
    """Drops the nodes that a script states where the run has another number of GPUs."""
    ran = {name for name, one in by.items() if _runs(one)}
    every, nodes, each = (whole.cluster.get(name) for name in ("num_gpus", "nodes", "gpus_per_node"))
    if "cluster.num_gpus" in ran and "cluster.nodes" not in ran and nodes and each and nodes * each != every:
        place = whole.origins.pop("cluster.nodes")
        remarks.append(f"{place} states {nodes} nodes of {each} GPUs, the run has {every} GPUs")
        del whole.cluster["nodes"]


def _note_difference(
    whole: FileSettings, name: str, first: FileSettings, other: FileSettings, remarks: list[str]
) -> None:
    """Remarks that the differing value of another file does not count; asks where neither counts more."""
    kind, _, key = name.partition(".")
    values = getattr(first, kind)[key], getattr(other, kind)[key]
    padded = 128 * 64 if key == "vocab_size" and all(values) else 0  # to a multiple of up to 128 for each of 64 ranks
    if values[0] == values[1] or (padded and abs(values[0] - values[1]) < padded):
        return
    default, place = _is_overridable(other, name), other.origins.get(name) or other.source
    if _runs(first):
        said = f"{other.source} leaves {key} at {values[1]}" if default else f"{place} states {key} {values[1]}"
        remarks.append(f"{said}, the run has {values[0]} ({whole.origins[name]})")
    elif default:
        return
    elif _precedence(first) == _precedence(other):
        parts = sorted(f"{value} by {one.source}" for value, one in zip(values, (first, other), strict=True))
        whole.questions[name] = Question(listed_words(parts))
    elif kind != "model":
        remarks.append(f"{place} states {key} {values[1]}, {first.source} {values[0]}, which counts")


def _is_answered(name: str, asking: FileSettings, files: Sequence[FileSettings]) -> bool:
    """Whether another file answers a question; one of a command line needs a file that counts more."""
    unstated = name in asking.unstated_fields
    any_will_do = unstated or not asking.command or name.startswith("cluster.")
    for one in files:
        if one is not asking and (any_will_do or _precedence(one) < _precedence(asking)):
            states = name in fields_of(one) and (unstated or not _is_overridable(one, name))
            if states or (name == "model.catalogue" and one.model):
                return True
    return False


def _missing_configs(one: FileSettings, files: Sequence[FileSettings]) -> list[str]:
    return [name for name in one.names if name not in {other.source for other in files}]


def _cluster(whole: FileSettings, missing: list[str], launched: bool) -> dict[str, Any]:
    """The cluster's mapping, with nodes and GPUs per node from what is stated of either, of all GPUs, or the plan.

    ``launched``: whether a command is among the files, which may leave nodes to its launcher.
    """
    stated = whole.cluster
    degrees = [whole.plan.get(name) or (1 if name != "dp" else None) for name in DEGREES]
    every = stated.get("num_gpus") or (prod(d for d in degrees if d) if None not in degrees else None)
    nodes, per_node = stated.get("nodes"), stated.get("gpus_per_node")
    usual = load_gpu(stated["gpu"]).usual_gpus_per_node if stated.get("gpu") else None
    if per_node is None and nodes and every:
        per_node = every // nodes
    unsure = {"cluster.nodes", "cluster.gpus_per_node"} & whole.questions.keys()
    if per_node is None and usual and not unsure:
        per_node = min(usual, every or usual)
    # launchers start on one node where none are stated
    by_option = whole.origins.get("cluster.gpus_per_node", "").startswith("--")
    if nodes is None and per_node and "cluster.nodes" not in unsure:
        alone = stated.get("gpus_per_node") and (launched or not by_option)
        nodes = -(-every // per_node) if every else 1 if alone else None
    missing += [key for key, value in (("gpus_per_node", per_node), ("nodes", nodes)) if not value and "gpu" in stated]
    if "cluster.nodes" in unsure and every:  # GPUs per node follow
        missing[:] = [key for key in missing if key != "gpus_per_node"]
    if nodes is None and "gpu" not in stated and every is None:
        missing.append("nodes")
    sizes = {"gpu": stated.get("gpu"), "nodes": nodes, "gpus_per_node": per_node}
    return sizes | {key: stated[key] for key in _CLUSTER if key in stated and key not in sizes}


def _fill_batch(whole: FileSettings, cluster: Mapping[str, Any], missing: list[str]) -> None:
    """dp, the micro-batch and the batch, each from the others; a rank passes once where its program does by itself."""
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
    own_script = (whole.framework or "generic") in _OWN_SCRIPTS
    steps, micro_batch = whole.accumulation or (0 if own_script else 1), plan.get("micro_batch_size")
    batch = training.get("global_batch_size")
    if batch and micro_batch and batch % (micro_batch * plan["dp"]):
        raise JobError(
            f"The batch of {batch} sequences is no multiple of the {micro_batch * plan['dp']} that dp {plan['dp']} and "
            f"micro-batches of {micro_batch} make; give --global-batch-size, or --nodes and --gpus-per-node."
        )
    if not batch and micro_batch:
        training["global_batch_size"] = micro_batch * steps * plan["dp"]
    elif batch and not micro_batch and steps:
        plan["micro_batch_size"] = max(batch // (plan["dp"] * steps), 1)


def _resolve_model(
    whole: FileSettings, options: Mapping[str, Any], remarks: list[str], missing: list[str]
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
        check_facts(other, whole.origins.get("model.other", "the run"))
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
        return _catalogue_or_variant(found[0], shape, remarks)
    if "vocab_size" not in shape:
        missing.append("vocab_size")
        remarks += [model.name for model in found]
    if shape.get("position_embedding") == "learned":
        shape.setdefault("max_position_embeddings", whole.training.get("seq_length"))
    if not shape.get("num_experts"):
        shape = {key: value for key, value in shape.items() if "moe" not in key and "experts" not in key}
    return shape


def _catalogue_or_variant(model: Model, shape: Mapping[str, Any], remarks: list[str]) -> str | dict[str, Any]:
    """The catalogue's name, or its shape where dropout or a stated detail differs."""
    stated = int(shape.get("vocab_size") or model.vocab_size)
    if abs(stated - model.vocab_size) > 1:
        remarks.append(f"vocab_size {stated} is taken for that of {model.name}, {model.vocab_size}, padded")
    config = {**(model.config or {}), **(shape.get("config") or {})}
    varies = differing_details(details_of(replace(model, config=config)), details_of(model))
    own_script = [f"{name} {value:g}" for name, value in varies.items() if name in OF_TRAINING]
    varies = {name: value for name, value in varies.items() if name not in OF_TRAINING}
    if own_script and not varies:
        remarks.append(f"{' and '.join(own_script)} of the run: yours to set, exports write those of {model.name}")
    if bool(shape.get("dropout")) == model.dropout and not varies:
        return model.name
    filled = {key: value for key, value in vars(model).items() if value or isinstance(value, bool)}
    other = "" if bool(shape.get("dropout")) == model.dropout else "-no-dropout" if model.dropout else "-dropout"
    return filled | {"name": f"{model.name}{other}", "dropout": bool(shape.get("dropout")), "config": config}
