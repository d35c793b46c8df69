"""The program that a script starts, and what its command states."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from jointopt.core.errors import JobError
from jointopt.frameworks.commands.programs import FILE_WORDS, STARTERS, Known, Program, started_program
from jointopt.frameworks.launchers import cluster_of
from jointopt.frameworks.options import Question, Taken, listed_words, pairs_of
from jointopt.frameworks.origins import SECTIONS, fields_of, is_default, questions_of, read_traced
from jointopt.frameworks.shell import read_script
from jointopt.frameworks.shell_words import Run, Script, Word, decided, forks_of, words_of

_MOST_VARIANTS = 32  # of a command
_VARIABLES = ("NCCL_", "NVTE_", "CUDA_DEVICE_MAX_CONNECTIONS", "TORCH_NCCL_")  # which libraries read


_Ways = list[tuple[dict[int, int], list[Word], Program | None]]


def script_taken(
    text: str, name: str, others: Mapping[str, str], given: Mapping[str, str], chosen: int | None
) -> tuple[list[Taken], dict[str, str]]:  # fmt: skip
    """The program that a script starts, and where, and the files that it writes by their names.

    JobError where it trains no decoder, or starts what is not given.
    """
    script = read_script(text, name, others, given)
    refused: dict[str, str] = {}
    starts = [(run, _variants(run, script, given.get("program", ""), refused)) for run in script.runs]
    programs = [(run, ways, program) for run, ways in starts
                if (program := next((found for *_, found in ways if found), None))]  # fmt: skip
    if any(program.trains for *_, program in programs):
        programs = [one for one in programs if one[2].trains]
    elif any(set(STARTERS) & {Path(word).name for word in run.words[:12]} for run, *_ in programs):
        programs = [one for one in programs if set(STARTERS) & {Path(word).name for word in one[0].words[:12]}]
    usual = [one for one in programs
             if all(script.usual.get(fork, at) == at for fork, at in one[0].branches.items())]  # fmt: skip
    unusual = [one for one in programs if one not in usual] if usual else []
    programs = usual or programs
    different: dict[str, tuple[Run, _Ways]] = {}
    for run, ways, program in programs:
        stated = fields_of(program.read(program.parts[0]))
        different.setdefault(str((stated, cluster_of(script, run, others).cluster)), (run, ways))
    if not different:
        _refuse(script, refused)
        return [], {}
    if len(different) > 1 and not (chosen and chosen <= len(different)):
        listed = ", ".join(f"--run {at} ({_where(script, run)})" for at, (run, _) in enumerate(different.values(), 1))
        raise JobError(f"it starts {len(different)} runs that differ: {listed}; give one of these.")
    run, ways = [*different.values()][(chosen or 1) - 1 if len(different) > 1 else 0]
    written = {Path(path).name: inner for path, inner in script.written.items()}
    taken = _taken_of(script, run, ways, {**written, **others})
    _mark_defaults(taken, script, [(other, program) for other, _, program in unusual], others)
    if script.left_out:
        lines = "; ".join(line[:60] for line in script.left_out[:3])
        taken.remarks += (f"{len(script.left_out)} lines are no commands that are understood, and left out: {lines}",)
    named = (*_configs_of(script, run), *taken.names, *(Path(one).name for one in script.missing))
    taken.names = tuple(dict.fromkeys(named))
    taken.reads += tuple(script.read)
    taken.flags |= {key: value for key, value in run.environment.items() if key.startswith(_VARIABLES)}
    return [taken], written


def _refuse(script: Script, refused: Mapping[str, str]) -> None:
    """JobError where a script starts what trains no decoder, or another script that is not given."""
    if refused:
        place, words = next(iter(refused.items()))
        raise JobError(
            f"it starts {words} ({place}); jointopt plans pretraining and fine-tuning of decoders: give a script of "
            "one."
        )
    scripts = [Path(one).name for one in script.missing if one.endswith((".sh", ".bash", ".sbatch", ".slurm"))]
    if scripts:
        names = listed_words(scripts[:3])
        raise JobError(f"it starts or sources {names}, where its values are read: give that too.")


def _mark_defaults(
    taken: Taken, script: Script, unusual: Sequence[tuple[Run, Program]], others: Mapping[str, str]
) -> None:  # fmt: skip
    """Marks the fields that differ in runs which are started only where somebody gives a variable."""
    fields = fields_of(taken)
    for run, program in unusual:
        fork = next(fork for fork, at in run.branches.items() if script.usual.get(fork, at) != at)
        other = fields_of(program.read(program.parts[0])) | {
            f"cluster.{name}": value for name, value in cluster_of(script, run, others).cluster.items()}  # fmt: skip
        differ = [name for name in fields.keys() | other.keys() if fields.get(name) != other.get(name)]
        taken.origins |= dict.fromkeys(differ, f"default of {script.conditions[fork] or run.place}")


def _where(script: Script, run: Run) -> str:
    conditions = [script.conditions.get(fork, "") for fork in run.branches]
    return run.place + "".join(f", by {one}" for one in conditions[-1:] if one)


def _variants(run: Run, script: Script, named: str, refused: dict[str, str]) -> _Ways:
    """(branch of each fork, words, program) of a command for all combinations of its forks; of many, for each alone.

    First those branches that are taken where nobody gives a variable. ``named``: what a script is that no name tells;
    ``refused``: gains what the command starts by its place, where that trains no decoder.
    """
    forks = dict(fork for word in run.words for fork in forks_of(word.pieces))
    ways = {fork: sorted(range(number), key=lambda at: at != script.usual.get(fork, 0))
            for fork, number in forks.items() if fork not in run.branches}  # fmt: skip
    if prod(map(len, ways.values())) <= _MOST_VARIANTS:
        rows = [run.branches | dict(zip(ways, row, strict=True)) for row in product(*ways.values())]
    else:
        ends = [run.branches | {fork: order[end] for fork, order in ways.items()} for end in (0, -1)]
        rows = ends + [one | {fork: at} for one in ends for fork, order in ways.items() for at in order]
    found: _Ways = []
    for row in rows:
        words = [
            part
            for word in run.words
            for part in (words_of(decided(word.pieces, row)) if any(p.unknown for p in word.pieces) else [word])
        ]
        program = started_program(words, named)
        if isinstance(program, Known):
            refused.setdefault(run.place, f"{program.name}, which {program.does}")
        elif program is None:
            found.append((row, words, None))
        else:
            found.append((row, program.words, program))
    return found


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
            stated = {name: value for name, value in found.cluster.items() if not is_default(found, f"cluster.{name}")}
            found.origins |= {f"cluster.{name}": started.places.get(name) or run.place
                              for name in started.cluster if name not in stated}  # fmt: skip
            usual = {} if started.cluster else found.cluster  # a launcher counts more than its program's default
            found.cluster = usual | started.cluster | stated
            found.asked |= {f"cluster.{name}": Question(*why) for name, why in started.asked.items()}
            fields |= {f"cluster.{name}": value for name, value in started.cluster.items()}
            found.remarks += _remark_on_more(words, found.asked)
            found.asked, found.loose = {**found.asked, **program.asked}, (*found.loose, *program.asked)
            found.command, found.reads = run.place or run.words[0], started.reads
            program.leave_open(found, [*others])
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
            if name not in found.asked or name in found.loose:
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
            names = "config" in name or name in ("deepspeed", "yaml_cfg")
            if names and isinstance(value, str) and FILE_WORDS.search(value):
                yield Path(value).name
    if FILE_WORDS.search(named := run.environment.get("CONFIG_FILE", "")):
        yield Path(named).name
