"""The documentation as programs: files that a page shows, commands that it gives, and output that it promises.

A block of ``sh`` holds commands, one of ``console`` commands behind ``$`` with their output, in which ``...`` stands
for lines that are left out; both are run in their order. A block with ``title="NAME"`` is a file, there from the
beginning. Blocks of ``bash`` need GPUs, a server, a framework or the network: their commands are parsed, not run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from jointopt.cli.main import jointopt

Found = tuple[int, str, str, dict[Path, bytes]]
_proposed: dict[tuple[str, ...], Found] = {}


def titled(page: str) -> dict[str, str]:
    """The files that a page shows, by their names."""
    return dict(re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', page, re.DOTALL))


def code(page: str, language: str) -> list[str]:
    """The blocks of a language that are no files."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def steps(page: str) -> Iterator[tuple[str, list[str] | None]]:
    """Commands of a page in order, each with the lines that it is to print; None where the page shows none."""
    for language, block in re.findall(r"```(sh|console)\n(.*?)```", page, re.DOTALL):
        if language == "console":
            for command, shown in re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
                yield command, shown.splitlines()
        else:
            yield from ((one, None) for one in re.findall(r"cat >> (?:.*\n)*?END|(?:.*\\\n)*.+", block))


def not_run(page: str) -> list[list[str]]:
    """The words of the commands of jointopt that a page gives without their being run."""
    lines = "\n".join(code(page, "bash")).replace("\\\n", " ").splitlines()
    found = [shlex.split(re.split(r" 2?> ?| \| ", line)[0], comments=True) for line in lines if "jointopt " in line]
    return [words[words.index("jointopt") + 1 :] for words in found if "jointopt" in words]


def parsed(words: list[str]) -> None:
    """Raises click's error where the words are no command."""
    command = jointopt.get_command(click.Context(jointopt), words[0])
    assert command is not None, words[0]
    command.make_context(words[0], words[1:])


def contents() -> dict[Path, bytes]:
    """Every file below the working directory."""
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def proposed(words: tuple[str, ...]) -> tuple[int, str, str]:
    """Exit code, output and errors of a proposal without a job file; of one that another page began with, its copy."""
    if words not in _proposed:
        before = contents()
        result = CliRunner().invoke(jointopt, list(words))
        made = {path: data for path, data in contents().items() if before.get(path) != data}
        _proposed[words] = result.exit_code, result.stdout, result.output, made
    exit_code, printed, output, made = _proposed[words]
    for path, data in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return exit_code, printed, output


def ran(command: str) -> tuple[int, str]:
    """Exit code and output of one command of a page in the working directory."""
    if command.startswith("cat >> "):
        head, *lines, _ = command.split("\n")
        path = Path(head.split()[2])
        path.write_text(path.read_text() + "\n".join(lines) + "\n")
        return 0, ""
    words, _, target = command.replace("\\\n", " ").partition(" > ")
    name, *arguments = shlex.split(words, comments=True)
    found = [str(path) for word in arguments for path in (sorted(Path().glob(word)) if "*" in word else ()) or [word]]
    if name == "cat":
        return 0, "".join(Path(path).read_text() for path in found)
    assert name == "jointopt", f"a page runs {name}: make it a block of bash"
    if found[0] == "propose" and "job.yaml" not in found[1:2]:
        exit_code, printed, output = proposed(tuple(found))
    else:
        result = CliRunner().invoke(jointopt, found)
        exit_code, printed, output = result.exit_code, result.stdout, result.output
    if target:
        Path(shlex.split(target, comments=True)[0]).write_text(printed)
    return exit_code, output


def check_shown(output: str, shown: list[str]) -> None:
    """Every line of the page in order; between them only what ``...`` leaves out."""
    lines, cut = output.rstrip("\n").split("\n"), False
    for line in [*shown, None]:  # None: the end
        if line == "...":
            cut = True
            continue
        at = lines.index(line) if cut and line in lines else 0 if line is not None else len(lines) * cut
        assert lines[at : at + 1] == ([] if line is None else [line]), f"{line!r} is not what comes of it:\n{output}"
        lines, cut = lines[at + 1 :], False


def followed(page: str) -> None:
    """Runs all commands of a page and compares what it shows of their output."""
    for command, shown in steps(page):
        exit_code, output = ran(command)
        refused = shown is not None and bool(shown) and shown[0].startswith("Error: ")
        assert (exit_code != 0) == refused, f"{command}\n{output}"
        if shown is not None:
            check_shown(output, shown)
