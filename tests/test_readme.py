"""What the README says can be typed can be typed."""

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from jointopt.cli.main import jointopt
from jointopt.measure.launchers.torchrun import TorchrunProgram, check_model
from jointopt.spec.jobfile import parse_job
from jointopt.workflows.campaign.candidates import searched
from jointopt.workflows.explain import explain
from jointopt.workflows.propose import propose

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = "".join(re.findall(r"```sh\n(.+?)```", README, re.DOTALL))
JOBS = re.findall(r"```yaml\n(.+?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^jointopt (.+)$", SHELL, re.MULTILINE)


def _arguments(command: str) -> list[str]:
    return shlex.split(command.split(" > ")[0], comments=True)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_parses(command: str) -> None:
    name, *arguments = _arguments(command)
    found = jointopt.get_command(click.Context(jointopt), name)
    assert found is not None
    found.make_context(name, arguments)


def test_the_quick_commands_run() -> None:
    for command in [c for c in COMMANDS if c.startswith(("catalog", "explain"))]:
        result = CliRunner().invoke(jointopt, _arguments(command))
        assert result.exit_code == 0, result.output


def test_the_job_file_of_the_readme_is_a_job() -> None:
    assert parse_job(yaml.safe_load(JOBS[0]), "readme", ROOT).cluster.num_gpus == 64


def test_the_tiny_job_of_the_readme_is_proposed_explained_and_has_nine_plans_to_run_on_cores() -> None:
    job = parse_job(yaml.safe_load(JOBS[1]), "tiny", ROOT)
    assert (job.cluster.gpu.id, job.cluster.num_gpus, job.objectives) == ("cpu-core", 4, ("iteration_time_s",))
    assert searched(TorchrunProgram().narrowed(job)).size == 9
    assert propose(job, trials=10).front["iteration_time_s"].size == 1
    assert explain(job, "dp=4 mbs=4 rc=none ZeRO=2").feasible
    check_model(job.model)


def test_the_python_example_runs_with_the_job_file_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.yaml").write_text(JOBS[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    assert names["proposal"].front["iteration_time_s"].size  # type: ignore[attr-defined]


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands_exist(target: str) -> None:
    assert re.search(rf"^make {target}\b", README, re.MULTILINE)
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def test_links_lead_somewhere() -> None:
    for document in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / document).read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), target
