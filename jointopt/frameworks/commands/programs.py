"""The program that a command starts, known by its name (``frameworks/programs.yaml``) before its options are read."""

from __future__ import annotations

import fnmatch
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from jointopt.core.errors import JobError
from jointopt.frameworks import deepspeed, megatron, megatron_bridge, torchtitan
from jointopt.frameworks.launchers import OPTIONS
from jointopt.frameworks.model_names import catalogue_name
from jointopt.frameworks.options import SECTIONS, FileSettings, Options, Question, flattened, pairs_of, whole_number
from jointopt.frameworks.origins import Reader, fields_of, is_default, nested, split_values
from jointopt.frameworks.shell_words import Word, literal, unknown_of
from jointopt.jobs.catalog.gpus import known_gpu
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.reading import package_yaml

_OVERRIDE = re.compile(r"\+{0,2}((?:training\.)?(?:model|train|trainer|ddp|comm_overlap|dataset|data|exp_manager"
                       r"|mixed_precision)\.?[\w.]*)=(.*)", re.DOTALL)  # fmt: skip
# what the name of a recipe has beside that of its model
_AROUND_A_NAME = re.compile(
    r"_(?:pretrain|finetune|sft|peft|lora|config|recipe|\d+gpu).*|^(?:training=|[\w.]*\b(?:pretrain|finetune)_)|\.py$"
)
_CONFIG = re.compile(r"[\w-]\.(?:ya?ml|json|toml)$")
_STARTERS = {"deepspeed", "accelerate", "torchrun"}
# what is asked where a recipe, or a config that is not given, fills in what the words leave open
_OPEN_FIELDS = ("plan.tp", "plan.pp", "plan.cp", "plan.ep", "plan.micro_batch_size", "plan.recompute",
                "plan.zero_stage", "training.global_batch_size", "training.seq_length", "training.dtype")  # fmt: skip
CONFIG_PATH = re.compile(r"[\w./-]+\.(?:ya?ml|json|toml)$")
# options that name a config of DeepSpeed or Accelerate, and what it fills in
_CONFIG_OPTIONS = {
    "deepspeed": ("plan.zero_stage",), "deepspeed_config": ("plan.zero_stage",),
    "config_file": ("plan.zero_stage", "plan.recompute", "training.dtype"),
}  # fmt: skip


@dataclass(frozen=True)
class ProgramRow:
    """A row of ``programs.yaml``, whose head says what each field is."""

    name: str
    by: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    does: str = ""  # what a program does that is refused
    read: str = ""
    table: str = ""
    default_values: Mapping[str, Any] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)
    short: Mapping[str, str] = field(default_factory=dict)
    implied: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    recipe: tuple[str, ...] | None = None
    config: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    asks: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    fills: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gpus: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    precisions: Mapping[str, str] = field(default_factory=dict)
    defaults_of: str = ""
    harmless: tuple[str, ...] = ()

    def megatron_options(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Options by Megatron's names, with what they imply and what the program does without them."""
        named = {self.named.get(name, name): value for name, value in values.items()}
        implied = {key: value for name, more in self.implied.items() if values.get(name) not in (None, "False", "false")
                   for key, value in more.items()}  # fmt: skip
        return {**self.default_values, **implied, **named}


def starters_in(words: Sequence[str]) -> set[str]:
    """Which of DeepSpeed's, Accelerate's and PyTorch's launchers stand at the beginning of a command."""
    return _STARTERS & {Path(word).name for word in words[:12]}


@functools.cache
def known_programs() -> tuple[ProgramRow, ...]:
    """The rows of all programs, those that are refused first."""
    table = package_yaml(Path(__file__).parents[1] / "programs.yaml")
    rows: list[dict[str, Any]] = [
        {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
        for row in (*table["refused"], *table["programs"])
    ]
    return tuple(ProgramRow(**row) for row in rows)


@dataclass(frozen=True)
class StartedProgram:
    """A program that a command starts: its row, its options, and the function that reads them."""

    known: ProgramRow
    read: Reader
    values: dict[str, Any]
    words: list[Word]  # of the command, short options written out
    questions: Mapping[str, Question] = field(default_factory=dict)

    @functools.cached_property
    def parts(self) -> tuple[dict[str, Any], dict[str, Word]]:
        """The options that are known, and those that are not."""
        return split_values(self.read, self.values)

    @property
    def trains(self) -> bool:
        """Whether it is known to train a decoder; else it is a script of one's own."""
        return bool(self.known.name)

    def ask_open_fields(self, settings: FileSettings, given: Sequence[str]) -> None:
        """Drops the program's defaults where a recipe or config sets those fields instead, and asks for them.

        ``given``: names of the other files.
        """
        known, stated = self.known, self.values
        self._defer_to_configs(settings, given)
        for one in known.asks:
            if one not in fields_of(settings) or is_default(settings, one):
                _ask(settings, one, f"{settings.program} has no default of it")
        for name in known.fills:
            if stated.get(name):
                _drop_defaults(settings, known.fills[name], f"--{name.replace('_', '-')} takes it from a checkpoint")
        files = [str(stated[one]) for one in known.config if str(stated.get(one, "")) not in ("", *known.configs)]
        if (known.recipe is None and not files) or f"{stated.get('module')}.py" in given:
            return
        by = next((f"{name} {stated[name]}" for name in known.recipe or () if name in stated), "") or " ".join(files)
        why = f"what {by or 'a recipe'} of {settings.program} fills in is not known"
        left = _drop_defaults(settings, SECTIONS, why, known.keeps)
        if settings.rest == megatron.chunks_of(Options({})):
            settings.rest = None
        model, named = settings.model, settings.model.get("catalogue")
        experts = model.get("num_experts") or settings.plan.get("ep") or (named and load_model(named).is_moe)
        for one in _OPEN_FIELDS:
            if one not in fields_of(settings) and (one != "plan.ep" or experts):
                _ask(settings, one, why)
        left = [one for one in left if one.startswith("plan.") and one not in settings.questions and one != "plan.ep"]
        if left and not any(Path(name).name in given for name in files):
            settings.remarks += (f"{', '.join(left)}: {why}",)

    def _defer_to_configs(self, settings: FileSettings, given: Sequence[str]) -> None:
        """Drops the fields that a config of DeepSpeed or Accelerate sets, and asks for them where it is not given."""
        values = {**dict(pairs_of(self.words)), **self.values}
        launches = "accelerate" in starters_in(self.words)
        for option, fields in _CONFIG_OPTIONS.items():
            config = values.get(option)
            if not isinstance(config, str) or not CONFIG_PATH.search(config):
                continue
            if not launches if option == "config_file" else "zero_stage" in values and not self.known.table:
                continue
            for one in fields:
                if is_default(settings, one) or (one not in fields_of(settings) and one not in settings.questions):
                    settings.drop(one)
                    if Path(config).name not in given:
                        _ask(settings, one, f"{Path(config).name} is not given")


def _drop_defaults(settings: FileSettings, names: Sequence[str], why: str, kept: Sequence[str] = ()) -> list[str]:
    """Drops the defaults of fields and sections, and asks for the model where its shape is gone; the dropped fields."""
    lacks = [one for one in fields_of(settings) if is_default(settings, one) and one not in ("model.catalogue", *kept)
             and any(one == name or one.startswith(f"{name}.") for name in names)]  # fmt: skip
    for one in lacks:
        settings.drop(one)
        if one in names:
            _ask(settings, one, why)
    shaped = {"num_layers", "hidden_size", "num_attention_heads"} <= settings.model.keys()
    if "catalogue" not in settings.model and not shaped and any(one.startswith("model.") for one in lacks):
        _ask(settings, "model.catalogue", why)
    return lacks


def _ask(settings: FileSettings, name: str, why: str) -> None:
    if name in settings.questions or (name == "training.global_batch_size" and settings.accumulation is not None):
        return
    settings.drop(name)
    settings.questions[name] = Question(why)
    settings.unstated_fields += (name,)


def started_program(words: list[Word], named: str = "") -> StartedProgram | ProgramRow | None:
    """The program that a command starts, a row that is refused by the command's words, or None for any other.

    ``named``: the name of the row of a script that no row knows by its name; JobError where there is no such row.
    """
    known, at = _find_row(words)
    pairs = {name: value for name, value in pairs_of(words) if name not in OPTIONS}
    like_megatron = set(megatron.SHAPE) <= pairs.keys() or "tensor_model_parallel_size" in pairs
    if named and like_megatron and (known is None or known.does):
        trains = [row for row in known_programs() if not row.does and row.by]
        known = next((row for row in trains if row.name.lower() == named.lower()), None)
        if known is None:
            listed = ", ".join(row.name for row in trains)
            raise JobError(f"--set program={named:.60} is no program that is known; expected one of {listed}.")
        at = next((at for at, word in enumerate(words) if word.endswith(".py")), -1)
    if known is not None and known.does:
        word = PurePosixPath(words[at]).name if at >= 0 else next((w for w in words if w.endswith(".py")), words[0])
        more = [one for one in words[at + 1 : at + 2] if at >= 0 and not re.search(r"[._-]", word + one)]
        return replace(known, name=" ".join([word, *more]))
    if known is not None:
        return _program(known, [*words[:at], *_expand_short_options(words[at:], known.short)], at)
    if like_megatron:
        return _unknown_program(words, pairs)
    if not starters_in(words) and not {"model_name_or_path", "deepspeed", "deepspeed_config"} & pairs.keys():
        return None
    return _program(ProgramRow("", read="table", table="words"), words, -1)


def _program(known: ProgramRow, words: list[Word], at: int) -> StartedProgram:
    """The program of a row with its own options, which stand behind its name."""
    own = [word for word in words[at + 1 :] if known.read not in _OVERRIDDEN or not _OVERRIDE.fullmatch(word)]
    if known.table:  # launchers of trainers have options of their own
        own, at = words, -1
    found = {name: value for name, value in pairs_of(own) if at >= 0 or name not in OPTIONS}
    values, read = _READERS[known.read](known, words, found)
    questions = {}
    if file := next((str(found[name]) for name in known.whole if name in found), ""):
        values, read = {}, lambda _: FileSettings(f"{known.name} options")
        questions = {"model.catalogue": Question(f"all is in {Path(file).name}, and no option counts")}
    return StartedProgram(known, _with_defaults_of(known, read), values, words, questions)


def _with_defaults_of(known: ProgramRow, read: Reader) -> Reader:
    """The reader with the name of the program whose defaults apply, and without options that have no effect."""

    def reading(values: Mapping[str, Any]) -> FileSettings:
        settings = read(values)
        settings.program = settings.program or known.defaults_of or known.name
        settings.unread = tuple(
            name for name in settings.unread if not name.removeprefix("model.").startswith(known.harmless)
        )
        return settings

    return reading


def _unknown_program(words: list[Word], pairs: dict[str, Any]) -> StartedProgram:
    """A program of an unknown name with Megatron-LM's options: its settings ask which program it is."""
    script = next((word for word in words if word.endswith(".py")), next((w for w in words if w.unknown), words[0]))
    unknown = unknown_of(script)
    variable = unknown.variable if unknown and unknown.variable else "program"
    why = f"{script} has options of Megatron-LM, and its defaults are not known; a name such as Megatron-LM or ms-swift"
    read = _with_defaults_of(
        ProgramRow("", defaults_of=f"{script}"), lambda values: _megatron_settings(ProgramRow(""), values)
    )
    return StartedProgram(ProgramRow(""), read, pairs, words, {"program": Question(why, variable)})


def _find_row(words: list[Word]) -> tuple[ProgramRow | None, int]:
    """The row that the words name, and where; one without a name of its own goes by options alone."""
    rows = known_programs()
    first_words = {pattern.split()[0] for row in rows for pattern in row.by}
    names = frozenset(_option_names(words))
    at_script = False
    for at, word in enumerate(words):
        before, end = words[at - 1] if at else "", _known_suffix(word)
        if not end or word.startswith("-") or (at_script and before.startswith("-")):
            continue
        module, script = before in ("-m", "--module"), end.endswith((".py", ".sh"))
        if not module and not script and PurePosixPath(end).name not in first_words:
            continue
        ends = (end, f"{end.replace('.', '/')}.py") if before == "-m" else (end,)
        for row in rows:
            fits = (_name_matches(pattern, one, words[at + 1 :], names) for pattern in row.by for one in ends)
            if any(fits) and _options_match(row, names):
                return row, at
        at_script = at_script or end.endswith(".py")
    return next(((row, -1) for row in rows if not row.by and _options_match(row, names)), (None, -1))


def _option_names(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if word.startswith("-"):
            yield word.lstrip("-").partition("=")[0].replace("-", "_")
        elif match := _OVERRIDE.fullmatch(word):
            yield match[1].removeprefix("training.") + "="


def _known_suffix(word: Word) -> str:
    """The word, or the known path behind an unknown folder: ``/pretrain_gpt.py`` of ``$HOME/pretrain_gpt.py``."""
    known = [*itertools.takewhile(lambda piece: piece.unknown is None, reversed(word.pieces))]
    end = "".join(piece.text for piece in reversed(known))
    return end if len(known) == len(word.pieces) else "/".join(["", *end.split("/")[1:]]) if "/" in end else ""


def _name_matches(pattern: str, word: str, following: Sequence[str], names: frozenset[str]) -> bool:
    first, *rest = pattern.split()
    word = word if "/" in first else PurePosixPath(word).name
    if not (fnmatch.fnmatchcase(word, first) or fnmatch.fnmatchcase(word, f"*/{first}")):
        return False
    follow = [one for one in rest if not one.startswith("--")]
    options = {one[2:].replace("-", "_") for one in rest if one.startswith("--")}
    return list(following[: len(follow)]) == follow and options <= names


def _options_match(row: ProgramRow, names: frozenset[str]) -> bool:
    if not row.beside:
        return bool(row.by)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in row.beside for name in names)


def _expand_short_options(words: Sequence[Word], short: Mapping[str, str]) -> Iterator[Word]:
    """The words with short options by their long names."""
    for word in words:
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and not word.startswith("--") and name in short and word.unknown is None:
            yield Word(literal(f"--{short[name]}{equals}{value}", word.place, word.default))
        else:
            yield word


# Readers: of a row, the words of a command and the pairs of its options, the options that count and how they are read.

_OptionReader = Callable[[ProgramRow, list[Word], dict[str, Any]], tuple[dict[str, Any], Reader]]


def _megatron_settings(known: ProgramRow, values: Mapping[str, Any]) -> FileSettings:
    """The settings of options of Megatron-LM, or of Megatron-DeepSpeed."""
    by_deepspeed = known.name == "Megatron-DeepSpeed"
    pairs = known.megatron_options(values)
    if "num_key_value_heads" in pairs:  # of Megatron-DeepSpeed
        pairs = {"group_query_attention": True, "num_query_groups": pairs["num_key_value_heads"], **pairs}
    layers = str(pairs.get("transformer_impl", "")).lower()  # its own, whose attention is unfused, or those of TE
    if layers and "attention_backend" not in values:
        pairs["attention_backend"] = "local" if layers == "local" else None
    # a command line that does not ask for overlap has none
    settings = megatron.option_settings(({} if by_deepspeed else megatron.OFF) | pairs, "Megatron-LM options")
    settings.flags = {name: value for name, value in settings.flags.items() if name in values or name not in pairs}
    settings.unread = tuple(name for name in settings.unread if name not in known.default_values)
    if by_deepspeed:
        options = Options(pairs)
        settings.framework = "megatron-deepspeed"
        stage = options.whole("zero_stage")
        settings.plan |= {"zero_stage": stage} if stage is not None else {}
        settings.remarks += shards_for_bf16(settings)
        if settings.model.get("num_experts") and (every := options.whole("expert_interval") or 1) > 1:
            why = f"experts stand in one of {every} layers by --expert-interval, and a model here has dense ones first"
            settings.questions["model.num_dense_layers"] = Question(why)
        if (options.whole("context_parallel_size") or 1) > 1:
            settings.remarks += ("sequences cut over heads (Ulysses) are taken for context parallelism",)
        ours = ("deepspeed", "zero_stage", "no_pipeline_parallel", "num_key_value", "expert_interval")
        settings.unread = tuple(name for name in settings.unread if not name.startswith(ours))
    return settings


def is_megatron(config: Mapping[str, Any]) -> bool:
    """Whether a YAML mapping is what ``--yaml-cfg`` of Megatron-LM names."""
    return {"language_model", "model_parallel"} <= config.keys()


def yaml_settings(config: Mapping[str, Any]) -> FileSettings:
    """The statements of a YAML of Megatron-LM: its options, and in sections the fields of its transformer's config."""
    values = {name.rpartition(".")[2]: value for name, value in flattened(config).items() if value is not None}
    values["swiglu"] = values.pop("activation_func", "gelu") == "swiglu"
    values["group_query_attention"] = "num_query_groups" in values
    settings = _megatron_settings(ProgramRow("Megatron-LM"), values)
    settings.format, settings.unread = "Megatron-LM config", ()  # it must hold every field
    return settings


def shards_for_bf16(settings: FileSettings) -> tuple[str, ...]:
    """A remark where Megatron-DeepSpeed's optimizer for bf16 shards moments and main weights though at stage 0."""
    if settings.plan.get("zero_stage") != 0 or settings.training.get("dtype") != "bf16":
        return ()
    settings.plan["zero_stage"] = 1
    return ("bf16 under Megatron-DeepSpeed shards its optimizer, as zero_stage 1 does",)


def _read_swift_megatron(known: ProgramRow, words: list[Word], pairs: dict[str, Any]) -> tuple[dict[str, Any], Reader]:
    def read(values: Mapping[str, Any]) -> FileSettings:
        longest = values.get("packing_length", values.get("max_length"))
        named = {} if longest is None else {"seq_length": longest}
        dtype = {"bfloat16": "bf16", "float16": "fp16"}.get(str(values.get("torch_dtype")), "")
        settings = _megatron_settings(known, {**named, **({dtype: True} if dtype else {}), **values})
        model = next((str(values[name]) for name in ("model", "load", "mcore_model") if name in values), "")
        model = model.rstrip("/").removesuffix("-mcore")
        if not settings.model.get("num_layers"):
            settings.model = {"catalogue": found} if (found := catalogue_name(model)) else {}
        if "lora" in str(values.get("train_type", values.get("tuner_type"))):
            lora = {"dim": values.get("lora_rank", 8), "alpha": values.get("lora_alpha", 32),  # the program's defaults
                    "target_modules": values.get("target_modules", "all")}  # fmt: skip
            settings.training |= megatron_bridge.adapters_of(lora, "dim")
            settings.framework = "megatron-bridge"
            settings.remarks += ("adapters of ms-swift are priced as those of Megatron-Bridge",)
        if not dtype and not any(values.get(name) for name in ("bf16", "fp16")):
            settings.training.pop("dtype", None)
        return settings

    return pairs, read


def _read_table(known: ProgramRow, words: list[Word], pairs: dict[str, Any]) -> tuple[dict[str, Any], Reader]:
    """Options of a program by the table of its configs; without any, all is in its config."""
    if not pairs:
        return _READERS["config"](known, words, pairs)
    starter = "deepspeed" in starters_in(words)

    def read(values: Mapping[str, Any]) -> FileSettings:
        settings = deepspeed.trainer_settings(values, "launch script", known.table)
        settings.framework = "deepspeed" if starter else settings.framework
        return settings

    return {name: _one_word(value) for name, value in pairs.items()}, read


def _one_word(value: Any) -> Any:
    """An unknown value as one word: behind a flag of a Hugging Face trainer stands true or false."""
    found = unknown_of(value)
    if found is None or found.is_list:
        return value
    return Word(piece._replace(quoted=True) for piece in value.pieces)


def _read_titan(known: ProgramRow, words: list[Word], pairs: dict[str, Any]) -> tuple[dict[str, Any], Reader]:
    def read(values: Mapping[str, Any]) -> FileSettings:
        return torchtitan.option_settings({**known.configs.get(str(values.get("config")), {}), **values})

    return torchtitan.option_values(words), read


def _read_bridge(known: ProgramRow, words: list[Word], pairs: dict[str, Any]) -> tuple[dict[str, Any], Reader]:
    """Options of Megatron-Bridge's scripts, and overrides behind them, which count more."""
    model, overrides = _model_in(words), override_values(words)

    def read(values: Mapping[str, Any]) -> FileSettings:
        under = {name: value for name, value in known.megatron_options(values).items() if name not in overrides}
        flat = {f"model.{name}": value for name, value in under.items()}
        dtype = known.precisions.get(str(under.get("compute_dtype")))
        flat |= {"mixed_precision": dtype} if dtype else {}
        settings = _override_settings(
            flat | {name: value for name, value in values.items() if name in overrides}, model
        )
        gpu, number = known.gpus.get(str(values.get("gpu")), ("", None))
        per_node = whole_number(values.get("gpus_per_node")) or number
        cluster = {"gpu": known_gpu(gpu) and known_gpu(gpu).id, "gpus_per_node": per_node,  # type: ignore[union-attr]
                   **{name: whole_number(values.get(name)) for name in ("num_gpus", "nodes")}}  # fmt: skip
        settings.cluster |= {name: value for name, value in cluster.items() if value}
        return settings

    return pairs | overrides, read


def _read_overrides(known: ProgramRow, words: list[Word], pairs: dict[str, Any]) -> tuple[dict[str, Any], Reader]:
    model = _model_in(words)
    named = {name: pairs[name] for name in (*(known.recipe or ()), *known.config) if name in pairs}
    default_values = {} if named else known.default_values
    return override_values(words) | named, lambda values: _override_settings(
        {**default_values, **{name: value for name, value in values.items() if name not in named}}, model)  # fmt: skip


def _read_nemo_run(known: ProgramRow, words: list[Word], pairs: dict[str, Any]) -> tuple[dict[str, Any], Reader]:
    """Overrides of a recipe of NeMo 2.0: of the strategy, the data and the model's config."""
    model = _model_in([*words, *(str(value) for name, value in pairs.items() if name == "factory")])
    named = {name: pairs[name] for name in known.recipe or () if name in pairs}

    def read(values: Mapping[str, Any]) -> FileSettings:
        flat = {re.sub(r"^(?:trainer\.strategy|data|model\.config)\.", "model.", name): value
                for name, value in values.items() if name not in named}  # fmt: skip
        return _override_settings({"trainer.recipe": "", **flat}, model)

    return override_values(words) | named, read


def override_values(words: Sequence[Word]) -> dict[str, Any]:
    """Overrides of Hydra, ``model.tensor_model_parallel_size=4``, by their names."""
    found: dict[str, Any] = {}
    for word in words:
        match = _OVERRIDE.fullmatch(word)
        name = match[1].removeprefix("training.") if match else ""
        if match and ("." in name or name == "mixed_precision"):
            found[name] = word.rest(match.start(2)) if isinstance(word, Word) else match[2]
    return found


def _override_settings(flat: Mapping[str, Any], model: str) -> FileSettings:
    """The statements of overrides of NeMo or Megatron-Bridge over a recipe of a model of the catalogue."""
    config = nested({name: _parse_scalar(value) for name, value in flat.items()})
    of_nemo = {"trainer", "exp_manager"} & config.keys()
    read = megatron_bridge.nemo_settings if of_nemo else megatron_bridge.bridge_settings
    settings = read(config)
    settings.unread = tuple(name for name in settings.unread if name != "trainer.recipe")
    if model and not settings.model.get("num_layers"):
        settings.model = {
            "catalogue": model,
            **{key: settings.model[key] for key in ("other", "config") if key in settings.model},
        }
    return settings


def _model_in(words: Sequence[str]) -> str:
    """The catalogue's model that a recipe among the words is named by; blank without one."""
    recipes = (_AROUND_A_NAME.sub("", PurePosixPath(word).name) for word in words)
    return next((name for word in recipes if (name := catalogue_name(word))), "")


def _parse_scalar(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.startswith("["):  # a list, as Hydra takes it; with words that are not quoted it stays text
        with suppress(ValueError):
            return json.loads(value)
    word = value.strip("'\"")
    return {"true": True, "false": False, "null": None}.get(word.lower(), word)


_OVERRIDDEN = ("bridge", "overrides", "nemo_run")
_READERS: Mapping[str, _OptionReader] = {
    "megatron": lambda known, words, pairs: (pairs, lambda values: _megatron_settings(known, values)),
    "config": lambda known, words, pairs: (
        {}, lambda _: FileSettings(
            "launch script", names=tuple(w.rpartition("/")[2] for w in words if _CONFIG.search(w)))),
    "swift_megatron": _read_swift_megatron, "table": _read_table, "titan": _read_titan, "bridge": _read_bridge,
    "overrides": _read_overrides, "nemo_run": _read_nemo_run,
}  # fmt: skip
