"""Options of the launchers on the command line."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from jointopt.cli.main import jointopt
from jointopt.measure.framework_launchers import framework_launcher
from jointopt.measure.local import CommandLauncher
from jointopt.measure.slurm import SlurmLauncher
from jointopt.measure.torchrun import TorchrunLauncher


def output_of(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(jointopt, list(words))
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize("command", ["tune", "validate", "script"])
@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("poll_s=[1,2", "'[1,2' for poll_s is not a value that YAML can read"),
        ("poll_s=-3", "poll_s of the launcher 'slurm' must be a number of seconds above 0; got -3"),
        ("iterations=abc", "iterations: 'abc' is not a valid integer range"),
        ("limit-s=", "expected NAME=VALUE"),
        ("spread=1", "'spread' is not an option of any launcher"),
        ("job=1", "'job' is not an option of any launcher"),
    ],
)
def test_a_value_that_makes_no_sense_is_bad_usage(command: str, pair: str, words: str) -> None:
    needed = {"tune": ["--budget", "1"], "script": ["--plan", "tp=2"]}.get(command, [])
    launcher = ["--launcher", "slurm", "--set", pair]
    code, text = output_of(command, "opt-350m-2x4-a100", *launcher, *needed)
    assert code == 2
    assert words in text


def test_a_key_of_the_job_file_changes_the_job_as_in_other_commands() -> None:
    start = "script", "opt-350m-2x4-a100", "--launcher", "slurm", "--plan", "tp=4"
    assert "#SBATCH --nodes=2" in output_of(*start)[1]
    code, text = output_of(*start, "--set", "cluster.nodes=1")
    assert code == 0
    assert "#SBATCH --nodes=1" in text
    code, text = output_of(*start, "--set", "cluster.nodes=1", "--set", "master_port=29501")
    assert code == 2
    assert "no option 'master_port'" in text  # what is no key of the job file is one of the launcher


@pytest.mark.parametrize(("command", "needed"), [("tune", ["--budget", "1"]), ("validate", []), ("work", [])])
def test_a_key_that_no_job_file_has_is_refused_by_its_section(command: str, needed: list[str], tmp_path: Path) -> None:
    given = ["--launcher", "slurm", "--storage", f"sqlite:///{tmp_path / 'runs.db'}", "--set", "cluster.gpus=8"]
    code, text = output_of(command, "opt-350m-2x4-a100", *given, *needed)
    assert code == 2
    assert "gpus" in text
    assert "cluster" in text
    assert "launcher" not in text


def test_the_help_states_the_defaults_that_the_launchers_have() -> None:
    text = output_of("tune", "--help")[1]
    for name in ("limit-s", "iterations", "warmup-iterations"):
        found = re.search(rf"--{name} .*?default: (?:(\d+) for (\w+)(?: and (\w+))?, else )?(\d+)\.", text)
        assert found is not None, name
        named = {found[2], found[3]}
        for launcher in (CommandLauncher, SlurmLauncher, TorchrunLauncher, framework_launcher):
            own, key = inspect.signature(launcher).parameters, name.replace("-", "_")
            expected = found[1] if getattr(launcher, "name", "") in named else found[4]
            assert key not in own or own[key].default == float(expected)
