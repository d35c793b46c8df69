"""``jointopt script``: what would be run, printed."""

from __future__ import annotations

from click.testing import CliRunner

from jointopt.cli.main import jointopt

JOB, PLAN = "opt-350m-2x4-a100", "tp=2 pp=2 mbs=1"


def said(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(jointopt, ["script", JOB, "--plan", PLAN, *words])
    return result.exit_code, result.output


def test_the_script_for_slurm_is_printed() -> None:
    code, text = said("--launcher", "slurm", "--folder", "/shared")
    assert code == 0
    assert text.startswith("#!/bin/bash\n#SBATCH --job-name=jointopt-")
    assert "-m jointopt.measure.trainer /shared/jointopt-" in text


def test_the_command_line_of_a_command_is_printed() -> None:
    command = "train 'a b' --dp {dp} --out {result}"
    assert said("--launcher", "command", "--command", command, "--logs", "/l")[1] == (
        "train 'a b' --dp 2 --out /l/result.json\n"
    )


def test_a_launcher_that_starts_nothing_has_nothing_to_print() -> None:
    code, text = said("--launcher", "replay", "--table", "runs.csv")
    assert code == 2
    assert text.startswith("Error: ")
