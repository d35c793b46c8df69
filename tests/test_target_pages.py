"""The pages of export targets: from an empty folder, every command runs and prints what the page shows.

Blocks of ``sh`` are commands, of ``console`` commands behind ``$`` with their output, in which ``...`` stands for lines
that are left out. Blocks of ``bash`` need GPUs or the framework and are not run. ``run.log`` is there from the
beginning, as if the program had been started already.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from jointopt.cli.main import jointopt
from jointopt.measure.exports.targets import TARGETS
from jointopt.runs.rules import MEASUREMENT_RULES
from jointopt.runs.table import read_measurements
from tests.places import ROOT
from tests.stand_in import framework

FOLDER = ROOT / "docs" / "export"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
# what each program prints for an iteration of 128 sequences of 8,192 tokens
LINES = {
    "megatron": "bridge", "megatron-bridge": "bridge", "torchtitan": "titan", "deepspeed": "deepspeed",
    "nanotron": "nanotron", "slurm": "titan", "kubernetes": "bridge",
}  # fmt: skip


def steps(page: str) -> Iterator[tuple[str, list[str] | None]]:
    """Commands of a page in order, each with the lines that it is to print; None where the page shows none."""
    for language, block in re.findall(r"```(sh|console)\n(.*?)```", page, re.DOTALL):
        if language == "console":
            for command, shown in re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
                yield command, shown.splitlines()
        else:
            yield from ((one, None) for one in re.findall(r"cat >> (?:.*\n)*?END|(?:.*\\\n)*.+", block))


@functools.cache
def proposed(words: tuple[str, ...]) -> tuple[int, str, str]:
    """Exit code, document and job file of one proposal, which several pages begin with."""
    result = CliRunner().invoke(jointopt, list(words))
    return result.exit_code, result.stdout, Path("job.yaml").read_text()


def ran(command: str) -> tuple[int, str]:
    """Exit code and output of one command of a page in the working directory."""
    if command.startswith("cat >> "):
        head, *lines, _ = command.split("\n")
        path = Path(head.split()[2])
        path.write_text(path.read_text() + "\n".join(lines) + "\n")
        return 0, ""
    words, _, target = command.replace("\\\n", " ").partition(" > ")
    name, *arguments = shlex.split(words, comments=True)
    found = [str(path) for word in arguments for path in (sorted(Path().glob(word)) if "*" in word else [word])]
    if name == "cat":
        return 0, "".join(Path(path).read_text() for path in found)
    assert name == "jointopt", f"a page runs {name}: make it a block of bash"
    if found[0] == "propose":
        code, printed, job = proposed(tuple(found))
        Path("job.yaml").write_text(job)
        Path(target.strip()).write_text(printed)
        return code, ""
    result = CliRunner().invoke(jointopt, found)
    if target:
        Path(target.strip()).write_text(result.stdout)
    return result.exit_code, result.output


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


@pytest.mark.parametrize("target", PAGES)
def test_the_commands_of_a_page_print_what_it_shows(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(framework, "STEP_S", 9.0)
    monkeypatch.setattr(framework, "WORLD", 16)
    if target == "accelerate":
        lines = [f"step {n} loss 5.6954 time 9.174" for n in range(1, 21)]
    else:
        lines = [getattr(framework, LINES[target])(n, 20, 128, 128 * 8192) for n in range(1, 21)]
    Path("run.log").write_text("\n".join(lines) + "\n")
    for command, shown in steps(PAGES[target]):
        code, output = ran(command)
        refused = shown is not None and shown[0].startswith("Error: ")
        assert (code != 0) == refused, f"{command}\n{output}"
        if shown is not None:
            check_shown(output, shown)
    rows, problems = read_measurements(Path("runs.csv"), MEASUREMENT_RULES)
    assert (list(rows["status"]), problems) == (["ok"], [])


def test_every_target_has_a_page_which_the_overview_links() -> None:
    assert set(PAGES) == set(TARGETS)
    overview = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(export/([\w-]+)\.md\)", overview)) == set(TARGETS)


@pytest.mark.parametrize("target", PAGES)
def test_every_page_proposes_exports_refuses_and_imports(target: str) -> None:
    commands = [command.split()[1] for command, _ in steps(PAGES[target]) if command.startswith("jointopt")]
    assert {"propose", "select", "export", "import"} <= set(commands)
    assert any(shown and shown[0].startswith("Error: ") for _, shown in steps(PAGES[target]))
    headings = re.findall(r"^## (.+)$", PAGES[target], re.MULTILINE)
    assert headings == ["Start it", "Bring its log back", "Refused by name", "Yours to fill in", "Checked"]
