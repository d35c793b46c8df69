"""The origin of each field of a job and a plan: the option whose change also changes the field.

The readers of options know nothing of this: each is asked again with one option left out, or with another value. An
option whose value is not known makes the fields that it could move questions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jointopt.frameworks.options import SECTIONS, FileSettings, Question, flattened, unresolved_references
from jointopt.frameworks.shell_words import Word, literal, unknown_of, unknown_text

Reader = Callable[[Mapping[str, Any]], FileSettings]
_NUMBERS = ("3", "7")
_VARIABLE = re.compile(r"\$\{(?:oc\.env:)?(\w+)\}")
_MOST_KEYS = 300  # of a config whose lines are looked for
_MOST_MOVED = 8  # fields; an option that moves more chooses between programs or kinds of models, and states none
# words that some option of a framework knows
_WORDS = (
    "rmsnorm", "rope", "none", "alibi", "full", "selective", "block", "uniform", "flash", "unfused", "hybrid", "e4m3",
    "tensorwise", "mxfp8", "deepep", "flex", "optim", "optim_grads_params", "no_shard", "local", "full_iteration",
    "bfloat16", "float16", "fp8", "gpt2bpetokenizer", "mlp", "([0]*3+[1]*29)", "128,0", "Et*3|t*3L",
    "meta-llama/Meta-Llama-3-8B", "flash_attention_2", "eager", "llama3", "8B", "1F1B", "Interleaved1F1B", "default",
    "never", "learnable", "off-by-one", "relative", "mamba", "residual", "gated_delta_net", "dsa", "post_ln",
    "layernorm1p", "squared-relu", "fast-geglu",
)  # fmt: skip
_NAMES = {"megatron-lm": "Megatron-LM", "megatron-deepspeed": "Megatron-DeepSpeed", "nemo": "NeMo",
          "fsdp": "Accelerate", "deepspeed": "DeepSpeed"}  # fmt: skip


def fields_of(settings: FileSettings) -> dict[str, Any]:
    """The statements of a file by their fields: plan.tp, training.dtype."""
    found = {f"{kind}.{key}": value for kind in SECTIONS for key, value in getattr(settings, kind).items()}
    return found | ({} if settings.accumulation is None else {"accumulation": settings.accumulation})


def read_traced(
    read: Reader, known: Mapping[str, Any], unknown: Mapping[str, Word], places: Mapping[str, str], place: str
) -> FileSettings:  # fmt: skip
    """The statements of options by name, each field with its origin, and with a question where an option is unknown.

    ``known``: words with the places that state them, or True for an option without a value; ``places``: of options by
    their names; ``place``: of the command.
    """
    settings = read(known)
    fields = fields_of(settings)
    settings.questions |= questions_of(read, known, unknown)
    moves = [
        (_changed_fields(read, known, name, fields, (other,)), _origin_of(value, places.get(name, place)))
        for name, value in known.items()
        for other in _other_values(value)  # each alone: a model without its layers is none, one with others is
    ]
    settings.origins |= _choose_origins(settings, fields, moves)
    for field in settings.questions:
        settings.drop(field)
    return settings


def read_config(read: Reader, config: Mapping[str, Any], texts: Mapping[str, str], asks: bool = False) -> FileSettings:
    """The statements of a config, each field with the line that states it, or as a default of its program.

    ``texts``: of the files that it stands in, by their names. A config whose sections do not come back from dotted
    names has no lines. ``asks``: what a key without a known value could move is asked; else the reader asks.
    """
    hidden = unresolved_references(config) if asks else {}
    known = {key: value for key, value in flattened(config).items() if key not in hidden}
    config = nested(known) if hidden else config
    settings = read(config)
    fields, place = fields_of(settings), next(iter(texts)) or settings.format
    files = {name or place: text.splitlines() for name, text in texts.items()}

    def place_of(key: str) -> str:
        return next((f"{name}:{at}" for name, lines in files.items() if (at := _line_of(key, lines))), place)

    def read_flat(options: Mapping[str, Any]) -> FileSettings:
        return read(nested(options))

    settings.origins = dict.fromkeys(fields, place)
    variables = {key: found[1] if (found := _VARIABLE.fullmatch(value)) else "" for key, value in hidden.items()}
    unknown = {key: Word(unknown_text(hidden[key], variables[key], place_of(key))) for key in hidden}
    settings.questions |= questions_of(read_flat, known, unknown) if unknown else {}
    for field in settings.questions:
        settings.drop(field)
    if len(known) > _MOST_KEYS or fields_of(read_flat(known)) != fields:
        return settings
    moves = []
    for key, value in known.items():
        tries = (None, not value) if isinstance(value, bool) else _other_values(value)
        try:
            moved = _changed_fields(read_flat, known, key, fields, tries)
        except (TypeError, ValueError, KeyError, AttributeError):  # a section of another kind than its program has
            continue
        if moved:
            moves.append((moved, place_of(key)))
    settings.origins = _choose_origins(settings, fields_of(settings), moves)
    return settings


def _line_of(key: str, lines: Sequence[str]) -> int:
    """The number of the line that gives a dotted key its value, each section below the one before; 0 without one."""
    at = 0
    for part in key.split("."):
        given = re.compile(rf"(?<![\w.]){re.escape(part)}[\"']?\s*[:=(\]]")
        found = next((number for number, line in enumerate(lines[at:], at) if given.search(line)), None)
        if found is None:
            words = re.compile(rf"(?<![\w.]){re.escape(key.rpartition('.')[2])}(?![\w.])")
            return next((number for number, line in enumerate(lines, 1) if words.search(line)), 0)
        at = found
    return at + 1


def _choose_origins(
    settings: FileSettings, fields: Iterable[str], moves: Iterable[tuple[set[str], str]]
) -> dict[str, str]:
    """The place of each field: of a default that moves it, of the option that moves the fewest others with it,
    else its program's default.

    ``moves``: the fields that an option moves, and its place.
    """
    fewest: dict[str, tuple[bool, int, str]] = {}  # one that hangs on a default is one, whatever else moves it
    for moved, place in moves:
        for one in moved if len(moved) <= _MOST_MOVED else ():
            found = (not place.startswith("default of "), len(moved), place)
            fewest[one] = min(found, fewest.get(one, found), key=lambda way: way[:2])
    usual = default_of(settings)
    return {one: fewest[one][2] if one in fewest else usual for one in fields}


def default_of(settings: FileSettings) -> str:
    """The origin of a field that is a default of the file's program."""
    program = settings.program or _NAMES.get(settings.framework, settings.framework or settings.format)
    return f"default of {program}"


def is_default(settings: FileSettings, field: str) -> bool:
    """Whether a field is a default of the file's program, not stated by the file."""
    return settings.origins.get(field) == default_of(settings)


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A nested mapping from dotted names; empty where one of them is both a value and a section."""
    found: dict[str, Any] = {}
    for name, value in flat.items():
        *places, last = name.split(".")
        inner = found
        for place in places:
            inner = inner.setdefault(place, {})
            if not isinstance(inner, dict):
                return {}
        inner[last] = value
    return found


def split_values(read: Reader, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Word]]:
    """The options that are known, and those that are not: a flag before words that only a shell knows is known."""
    known = {name: value for name, value in values.items() if _unknown_word(value) is None}
    unknown: dict[str, Word] = {}
    for name, value in values.items():
        found = _unknown_word(value)
        if found is not None:
            if found.may_split and _is_flag(read, known, name):
                known[name] = True
            else:
                unknown[name] = found
        elif (value is True or value == "") and _takes_value(read, known, name):
            del known[name]
            unknown[name] = Word(())
        elif value is not True and _is_text(value) and _is_unreadable(read, known, name):
            del known[name]
            unknown[name] = Word(literal(" ".join(value) if isinstance(value, list) else str(value), ""))
    return known, unknown


def _unknown_word(value: object) -> Word | None:
    parts = value if isinstance(value, list) else [value]
    return next((part for part in parts if isinstance(part, Word) and unknown_of(part)), None)


def _is_text(value: object) -> bool:
    number = r"[-+]?[\d_.]+(?:e[-+]?\d+)?|null|none|true|false"
    return re.fullmatch(number, str(value).lower().strip("'\"")) is None


def _is_unreadable(read: Reader, known: Mapping[str, Any], name: str) -> bool:
    """Whether an option takes numbers, but its value is none: ``--num-experts 64 64 128``."""
    without = {key: value for key, value in known.items() if key != name}
    first, second, *words = (fields_of(read({**known, name: value})) for value in (*_NUMBERS, "one", "two"))
    takes_words = words[0] != words[1]  # and states them as they stand
    return first != second and not takes_words and fields_of(read(known)) == fields_of(read(without))


def _is_flag(read: Reader, known: Mapping[str, Any], name: str) -> bool:
    """Whether an option changes fields without a value, and by any number alike."""
    first, second, alone = (fields_of(read({**known, name: value})) for value in (*_NUMBERS, True))
    absent = fields_of(read({key: value for key, value in known.items() if key != name}))
    return first == second and alone != absent


def _takes_value(read: Reader, known: Mapping[str, Any], name: str) -> bool:
    """Whether the value of an option changes fields: two numbers, or two words, are read differently.

    One that means true where it stands alone, and asks where it is neither true nor false, needs none.
    """
    taken, other = (read({**known, name: number}) for number in _NUMBERS)
    if fields_of(taken) != fields_of(other):
        return True
    absent = read({key: value for key, value in known.items() if key != name})
    alone = fields_of(read({**known, name: True}))
    if alone != fields_of(absent):  # a flag
        return False
    if name in taken.unread or taken.without_effect > absent.without_effect:  # nobody reads it, whatever its value
        return False
    true, odd = (fields_of(read({**known, name: value})) for value in ("true", "no-word"))
    if alone == true != odd:
        return False
    readings = [fields_of(read({**known, name: word})) for word in _WORDS]
    return any(one != readings[0] for one in readings)


def questions_of(read: Reader, known: Mapping[str, Any], unknown: Mapping[str, Word]) -> dict[str, Question]:
    """A question for each field that an unknown option may change, alone or beside a value of another one."""
    found: dict[str, Question] = {}
    plain = fields_of(read(known))
    bases: list[tuple[str, dict[str, Any]]] = []
    for name, word in unknown.items():
        question = question_of(name, word)
        first, second = (fields_of(read({**known, name: number})) for number in _NUMBERS)
        words = _WORDS if first == second else ()  # what takes numbers takes no words
        for one in sorted(_changed_fields(read, known, name, plain, (None, *_NUMBERS, True, *words))):
            found.setdefault(one, question)
        seen: list[dict[str, Any]] = [plain]
        for value in (_NUMBERS[0], *words):
            reading = fields_of(read({**known, name: value}))
            if reading not in seen and len(seen) < 6:
                seen.append(reading)
                bases.append((name, {**known, name: value}))
    for other, base in bases[:40]:
        fields = fields_of(read(base))
        for name, word in unknown.items():
            if name != other:
                for one in sorted(_changed_fields(read, base, name, fields, (None, *_NUMBERS, "full", "block"))):
                    found.setdefault(one, question_of(name, word))
    return found


def question_of(name: str, word: Word) -> Question:
    """The question on an option without a known value."""
    unknown = word.unknown
    option = "--" + name.replace("_", "-") if "." not in name else name
    if unknown is None:
        return Question(f"{option} is given {word}, which is no number" if word else f"{option} has no value")
    by = f", which {unknown.set_by} may set" if unknown.set_by else ""
    return Question(f"{option} is given {word}{by}, {unknown.place or word.place}", unknown.variable)


def _changed_fields(
    read: Reader, known: Mapping[str, Any], name: str, fields: Mapping[str, Any], tries: tuple[Any, ...]
) -> set[str]:  # fmt: skip
    """The fields that change where an option is left out (None) or has another value."""
    found: set[str] = set()
    rest = {key: value for key, value in known.items() if key != name}
    for value in tries:
        other = fields_of(read(rest if value is None else {**rest, name: value}))
        found |= {one for one in fields.keys() | other.keys() if fields.get(one) != other.get(one)}
    return found


def _other_values(value: object) -> tuple[Any, ...]:
    """Values to try for an option in the place of its own; None: without it."""
    text = str(value).lower()
    if text in ("true", "false") and value is not True:
        return (None, "false" if text == "true" else "true")
    if text in ("null", "none"):
        return (None, *_NUMBERS, "full", "true")
    if value is True or text.replace(".", "").replace("-", "").isdigit():
        return (None, *_NUMBERS)
    return (None, "rmsnorm", "full", "8B", "e4m3", *(_NUMBERS if "${" in text or text in ("null", "None") else ()))


def _origin_of(value: object, place: str) -> str:
    words = [part for part in (value if isinstance(value, list) else [value]) if isinstance(part, Word)]
    if not words or not words[0].place:
        return place
    return f"default of {words[0].place}" if any(word.default for word in words) else words[0].place
