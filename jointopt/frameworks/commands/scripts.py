"""The program that a script starts, and what its command states."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path

from jointopt.core.errors import JobError
from jointopt.frameworks.commands.programs import CONFIG_PATH, ProgramRow, StartedProgram, started_program, starters_in
from jointopt.frameworks.launchers import Allocation, cluster_of
from jointopt.frameworks.options import FileSettings, Question, listed_words, pairs_of
from jointopt.frameworks.origins import fields_of, is_default, questions_of, read_traced
from jointopt.frameworks.shell import read_script
from jointopt.frameworks.shell_words import Run, Script, Word, forks_of, resolve_forks, split_words

_MOST_VARIANTS = 32  # of a command
_VARIABLES = ("NCCL_", "NVTE_", "CUDA_DEVICE_MAX_CONNECTIONS", "TORCH_NCCL_")  # which libraries read


_Variants = list[tuple[dict[int, int], list[Word], StartedProgram | None]]


def script_settings(
    text: str, name: str, others: Mapping[str, str], given: Mapping[str, str], chosen: int | None
) -> tuple[list[FileSettings], dict[str, str]]:  # fmt: skip
    """The settings of the program that a script starts, and the texts of files that it writes by their names.

    JobError where it trains no decoder, or starts what is not given.
    """
    script = read_script(text, name, others, given)
    refused: dict[str, str] = {}
    starts = [(run, _variants(run, script, given.get("program", ""), refused)) for run in script.runs]
    programs = [(run, ways, program) for run, ways in starts
                if (program := next((found for *_, found in ways if found), None))]  # fmt: skip
    if any(program.trains for *_, program in programs):
        programs = [one for one in programs if one[2].trains]
    else:
        programs = [one for one in programs if starters_in(one[0].words)] or programs
    by_default = [one for one in programs
             if all(script.default_branches.get(fork, at) == at for fork, at in one[0].branches.items())]  # fmt: skip
    conditional = [one for one in programs if one not in by_default] if by_default else []
    programs = by_default or programs
    different: dict[str, tuple[Run, _Variants]] = {}
    for run, ways, program in programs:
        stated = fields_of(program.read(program.parts[0]))
        different.setdefault(str((stated, cluster_of(script, run, others).cluster)), (run, ways))
    if not different:
        _refuse(script, refused)
        return [], {}
    if len(different) > 1 and not (chosen and chosen <= len(different)):
        listed = ", ".join(
            f"--run {at} ({_run_label(script, run)})" for at, (run, _) in enumerate(different.values(), 1)
        )
        raise JobError(f"it starts {len(different)} runs that differ: {listed}; give one of these.")
    run, ways = [*different.values()][(chosen or 1) - 1 if len(different) > 1 else 0]
    written = {Path(path).name: inner for path, inner in script.written.items()}
    settings = _run_settings(script, run, ways, {**written, **others})
    _mark_defaults(settings, script, [(other, program) for other, _, program in conditional], others)
    if script.unparsed:
        lines = "; ".join(line[:60] for line in script.unparsed[:3])
        settings.remarks += (
            f"{len(script.unparsed)} lines are no commands that are understood, and left out: {lines}",
        )
    named = (*_configs_of(script, run), *settings.names, *(Path(one).name for one in script.missing_files))
    settings.names = tuple(dict.fromkeys(named))
    settings.reads += tuple(script.files_read)
    settings.flags |= {key: value for key, value in run.environment.items() if key.startswith(_VARIABLES)}
    return [settings], written


def _refuse(script: Script, refused: Mapping[str, str]) -> None:
    """Raises JobError where a script starts what trains no decoder, or another script that was not given."""
    if refused:
        place, words = next(iter(refused.items()))
        raise JobError(
            f"it starts {words} ({place}); jointopt plans pretraining and fine-tuning of decoders: give a script of "
            "one."
        )
    scripts = [Path(one).name for one in script.missing_files if one.endswith((".sh", ".bash", ".sbatch", ".slurm"))]
    if scripts:
        names = listed_words(scripts[:3])
        raise JobError(f"it starts or sources {names}, where its values are read: give that too.")


def _mark_defaults(
    settings: FileSettings, script: Script, conditional: Sequence[tuple[Run, StartedProgram]], others: Mapping[str, str]
) -> None:  # fmt: skip
    """Marks the fields as defaults that differ in runs which are started only where a variable is set from outside."""
    fields = fields_of(settings)
    for run, program in conditional:
        fork = next(fork for fork, at in run.branches.items() if script.default_branches.get(fork, at) != at)
        other = fields_of(program.read(program.parts[0])) | {
            f"cluster.{name}": value for name, value in cluster_of(script, run, others).cluster.items()}  # fmt: skip
        differ = [name for name in fields.keys() | other.keys() if fields.get(name) != other.get(name)]
        settings.origins |= dict.fromkeys(differ, f"default of {script.conditions[fork] or run.place}")


def _run_label(script: Script, run: Run) -> str:
    conditions = [script.conditions.get(fork, "") for fork in run.branches]
    return run.place + "".join(f", by {one}" for one in conditions[-1:] if one)


def _variants(run: Run, script: Script, named: str, refused: dict[str, str]) -> _Variants:
    """(branch of each fork, words, program) of a command for all combinations of its forks; of many, for each alone.

    First those branches that are taken where nobody gives a variable. ``named``: what a script is that no name tells;
    ``refused``: gains what the command starts by its place, where that trains no decoder.
    """
    forks = dict(fork for word in run.words for fork in forks_of(word.pieces))
    ways = {fork: sorted(range(number), key=lambda at: at != script.default_branches.get(fork, 0))
            for fork, number in forks.items() if fork not in run.branches}  # fmt: skip
    if prod(map(len, ways.values())) <= _MOST_VARIANTS:
        rows = [run.branches | dict(zip(ways, row, strict=True)) for row in product(*ways.values())]
    else:
        ends = [run.branches | {fork: order[end] for fork, order in ways.items()} for end in (0, -1)]
        rows = ends + [one | {fork: at} for one in ends for fork, order in ways.items() for at in order]
    found: _Variants = []
    for row in rows:
        words = [
            part
            for word in run.words
            for part in (
                split_words(resolve_forks(word.pieces, row)) if any(p.unknown for p in word.pieces) else [word]
            )
        ]
        program = started_program(words, named)
        if isinstance(program, ProgramRow):
            refused.setdefault(run.place, f"{program.name}, which {program.does}")
        elif program is None:
            found.append((row, words, None))
        else:
            found.append((row, program.words, program))
    return found


def _run_settings(script: Script, run: Run, variants: _Variants, others: Mapping[str, str]) -> FileSettings:
    """The settings of a run: those of its first variant, and a question for each field in which another differs."""
    known = [(choices, words, program) for choices, words, program in variants if program is not None]
    if not known:
        raise JobError(f"{run.place}: the command that it starts is not understood.")
    first, words, program = known[0]
    allocation = cluster_of(script, replace(run, words=words), others)
    options = {word: re.sub(r"^--?|=.*", "", word, flags=re.DOTALL) for word in words if word[:1] == "-"}
    places = {name.replace("-", "_"): f"default of {word.place}" if word.default else word.place
              for word, name in options.items()}  # fmt: skip
    found = read_traced(program.read, *program.parts, places, run.place)
    fields = fields_of(found) | {f"cluster.{name}": value for name, value in allocation.cluster.items()}
    _add_allocation(found, run, words, program, allocation)
    program.ask_open_fields(found, [*others])
    for choices, words, program in known[1:]:
        allocation = cluster_of(script, replace(run, words=words), others)
        certain, unknown = program.parts
        other = fields_of(program.read(certain)) | {f"cluster.{n}": value for n, value in allocation.cluster.items()}
        questions = questions_of(program.read, certain, unknown) | allocation.field_questions
        forks = [fork for fork, at in choices.items() if first.get(fork) != at]
        by = " and ".join([*dict.fromkeys(script.conditions.get(fork) or run.place for fork in forks)][:2])
        variable = next((script.fork_variables[fork] for fork in forks if fork in script.fork_variables), "")
        differ = [name for name in sorted(fields.keys() | other.keys()) if fields.get(name) != other.get(name)]
        if all(fork in script.default_branches for fork in forks):
            found.origins |= dict.fromkeys((*differ, *questions), f"default of {by}")
            continue
        for name in differ:
            if name not in found.questions or name in found.unstated_fields:
                values = " or ".join(str(one.get(name, "nothing")) for one in (fields, other))
                found.questions[name] = Question(f"{values}, by {by}", variable)
        found.questions |= {name: question for name, question in questions.items() if name not in found.questions}
    for name in found.questions:
        found.drop(name)
    return found


def _add_allocation(
    found: FileSettings, run: Run, words: list[Word], program: StartedProgram, allocation: Allocation
) -> None:
    """Adds where a command is started to its settings: it counts more than defaults, less than what options state."""
    stated = {name: value for name, value in found.cluster.items() if not is_default(found, f"cluster.{name}")}
    found.origins |= {f"cluster.{name}": allocation.places.get(name) or run.place
                      for name in allocation.cluster if name not in stated}  # fmt: skip
    found.cluster = ({} if allocation.cluster else found.cluster) | allocation.cluster | stated
    found.questions |= allocation.field_questions
    found.remarks += _remark_on_more(words, found.questions)
    found.questions |= program.questions
    found.unstated_fields += tuple(program.questions)
    found.command, found.reads = run.place or run.words[0], allocation.reads


def _remark_on_more(words: Sequence[Word], questions: Mapping[str, Question]) -> tuple[str, ...]:
    """A sentence on words that may hold more options than those that are asked."""
    start = next((at for at, word in enumerate(words) if word.endswith(".py") or word == "-m"), 0)
    reasons = " ".join(question.why for question in questions.values())
    names = [f"{word} ({word.unknown.place})" for word in words[start:]
             if word.unknown and word.may_split and f"is given {word}," not in reasons]  # fmt: skip
    if not names:
        return ()
    return (f"{', '.join(dict.fromkeys(names))} may hold more options, which only a shell knows and are not read",)


def _configs_of(script: Script, run: Run) -> Iterator[str]:
    """Names of the configs that the commands of a script are given."""
    for words in script.commands:
        for name, value in pairs_of(words):
            names = "config" in name or name in ("deepspeed", "yaml_cfg")
            if names and isinstance(value, str) and CONFIG_PATH.search(value):
                yield Path(value).name
    if CONFIG_PATH.search(named := run.environment.get("CONFIG_FILE", "")):
        yield Path(named).name
