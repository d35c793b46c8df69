"""What holds for every command, run as people run it."""

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from jointopt.cli.main import COMMANDS, jointopt
from jointopt.core.errors import InfeasibleError, JobError
from tests.each import each

JOB = Path(__file__).parents[2] / "studies" / "charllm-strategies" / "gpt3-175b-h100.yaml"
HEAVY = ("numpy", "pandas", "scipy", "optuna", "sklearn", "xgboost", "torch", "yaml")


@pytest.mark.parametrize("arguments", [["--help"], ["propose", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import sys
from jointopt.cli.main import jointopt
jointopt({arguments!r}, standalone_mode=False)
heavy = [name for name in {HEAVY!r} if name in sys.modules]
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [["propose", "--storage", "none"], ["explain", "--plan", "dp=1 tp=8 pp=8"]])
def test_an_answer_without_runs_or_studies_imports_no_library_of_tables_trees_or_databases(arguments) -> None:
    job = str(JOB)
    code = f"""
import sys
from jointopt.cli.main import jointopt
jointopt({[arguments[0], job, *arguments[1:], "--allow-tight"]!r}, standalone_mode=False)
sys.exit([name for name in ("pandas", "sklearn", "xgboost", "sqlalchemy", "optuna") if name in sys.modules] or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@each("name", COMMANDS)
def test_every_help_has_an_example_that_parses(name: str) -> None:
    text = CliRunner().invoke(jointopt, [name, "--help"]).output
    assert "Example" in text
    assert f"jointopt {name} " in text
    assert max(map(len, text.splitlines())) <= 100


def test_an_unknown_command_is_bad_usage() -> None:
    result = CliRunner().invoke(jointopt, ["prpose"])
    assert result.exit_code == 2
    assert "prpose" in result.stderr


@pytest.mark.parametrize(
    ("error", "exit_code", "line"),
    [
        (JobError("training.dtype is\nwrong."), 2, "Error: training.dtype is wrong.\n"),
        (InfeasibleError("Nothing fits."), 1, "Error: Nothing fits.\n"),
        (PermissionError(13, "Permission denied", "out"), 2, "Error: out: Permission denied.\n"),
        (KeyboardInterrupt(), 130, "Error: interrupted.\n"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, exit_code: int, line: str
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("jointopt.cli.catalog.catalog", click.Command("catalog", callback=fail))
    result = CliRunner().invoke(jointopt, ["catalog"])
    assert (result.exit_code, result.stderr) == (exit_code, line)


def test_a_message_names_an_argument_as_the_option_of_the_command() -> None:
    result = CliRunner().invoke(jointopt, ["select", "plans.json", "--max-energy-j", "-1"])
    assert result.stderr == "Error: --max-energy-j must be a number above 0, at most 1e+15; got -1.\n"


def test_a_reader_that_goes_away_ends_the_command_quietly(tmp_path: Path) -> None:
    command = f"{sys.executable} -c 'from jointopt.cli.main import main; main()' catalog models --json | head -c 1"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.stdout, done.stderr) == ("[", "")


def commands(group: click.Group) -> Iterator[click.Command]:
    """Every command of a group and of the groups in it."""
    for name in group.list_commands(context := click.Context(group)):
        if isinstance(found := group.get_command(context, name), click.Group):
            yield from commands(found)
        elif found is not None:
            yield found


def lines_of(command: click.Command) -> set[int]:
    """The lines of a command's own function that run, without those of the decorators around it."""
    assert command.callback is not None
    code = inspect.unwrap(command.callback).__code__
    return {line for _, _, line in code.co_lines() if line} - {code.co_firstlineno}


def test_a_command_is_short() -> None:
    lengths = {command.name: len(lines_of(command)) for command in commands(jointopt)}
    assert lengths.keys() > {"propose", "report", "restore"}
    assert {name: length for name, length in lengths.items() if length > 15} == {}


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "jointopt", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("jointopt, version")


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [(MemoryError, 1, "There is not enough memory for this"), (RecursionError, 2, "nested too deeply to be read")],
)
def test_running_out_of_memory_or_of_stack_depth_is_one_sentence(
    monkeypatch, error: type[Exception], code: int, sentence: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("jointopt.jobs.jobfile.load_job", fail)
    found = CliRunner().invoke(jointopt, ["explain", "job.yaml", "--plan", "dp=1"])
    assert (found.exit_code, sentence in found.stderr, "Traceback" in found.output) == (code, True, False)
