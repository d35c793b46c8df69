"""The examples for other places, GitHub and Grafana: their own steps are run, and they ask for what there is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from jointopt.measure.metrics import HELP

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
LABELS = {  # of the exporter's metrics, beside Prometheus' own
    "jointopt_iteration_time_seconds": {"kind"}, "jointopt_power_watts": {"kind", "gpu"},
    "jointopt_clock_mhz": {"gpu", "stage"},
}  # fmt: skip
SAMPLES = ROOT / "tests" / "frameworks" / "imports" / "samples"


def read(name: str) -> Any:
    return yaml.safe_load((EXAMPLES / "github" / name).read_text(encoding="utf-8"))


@pytest.fixture
def act(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Runs the steps of the action as GitHub does: the exit code of the last one that ran, and the summary."""
    program = tmp_path / "bin" / "jointopt"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m jointopt "$@"\n')
    program.chmod(0o755)
    summary = tmp_path / "summary.md"
    places = {"RUNNER_TEMP": str(tmp_path), "GITHUB_STEP_SUMMARY": str(summary), "PYTHONPATH": str(ROOT)}
    places |= {"PATH": f"{program.parent}:{os.environ['PATH']}"}

    def run(**given: str) -> tuple[int, str]:
        action = read("action.yml")
        inputs = {name: given.get(name, one.get("default")) for name, one in action["inputs"].items()}
        for step in action["runs"]["steps"]:
            own = {k: re.sub(r"\$\{\{ inputs\.(\w+) }}", lambda m: inputs[m[1]], v) for k, v in step["env"].items()}
            shell = [step["shell"], "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
            code = subprocess.run(shell, env={**os.environ, **places, **own}, cwd=ROOT, capture_output=True).returncode
            if code:
                break
        return code, summary.read_text() if summary.exists() else ""

    return run


@pytest.mark.long
def test_the_action_fails_a_recipe_that_is_worse_than_the_front_and_says_by_how_much(
    act: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    code, summary = act(recipe=f"{SAMPLES}/megatron_llama3_8b.sh", options="--gpu h100-sxm5-80gb")
    saved = json.loads((tmp_path / "proposal" / "proposal.json").read_text())["decision"]["savings"]
    assert code == 1
    assert f"{saved['time']['percent']:.1f} % less time at no more energy" in summary
    assert (tmp_path / "proposal" / "report.html").exists()
    assert all(line.startswith("    ") for line in summary.splitlines())  # a block of code, for Markdown
    options = "--gpu h100-sxm5-80gb --nodes 8"
    assert act(recipe=f"{SAMPLES}/titan_llama3_8b.toml", options=options, percent="90")[0] == 0


def test_the_action_fails_as_bad_usage_where_the_recipe_cannot_be_read(act: Callable[..., tuple[int, str]]) -> None:
    assert act(recipe="README.md") == (2, "")


def test_the_workflow_gives_the_action_what_it_needs_and_nothing_that_it_does_not_know() -> None:
    (given,) = [step["with"] for step in read("workflow.yml")["jobs"]["front"]["steps"] if "./" in step.get("uses", "")]
    inputs = read("action.yml")["inputs"]
    assert set(given) <= set(inputs)
    assert {name for name, one in inputs.items() if one.get("required")} <= set(given)


def test_the_dashboard_shows_every_metric_of_the_exporter_and_asks_for_no_other_name_or_label() -> None:
    board = json.loads((EXAMPLES / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
    asked = [(target["expr"], target["legendFormat"]) for panel in board["panels"] for target in panel["targets"]]
    assert {name for query, _ in asked for name in re.findall(r"jointopt_\w+", query)} == set(HELP)
    for query, legend in asked:
        known = {"instance"}.union(*(LABELS.get(name, set()) for name in re.findall(r"jointopt_\w+", query)))
        assert {*re.findall(r"(\w+)!?=~?\"", query), *re.findall(r"{{(\w+)}}", legend)} <= known, query
    assert set(re.findall(r'kind="(\w+)"', str(asked))) <= {"predicted", "measured", "drawn", "limit"}


def test_the_panels_of_the_dashboard_lie_beside_each_other_and_have_what_grafana_needs() -> None:
    board = json.loads((EXAMPLES / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
    cells: list[tuple[int, int]] = []
    for panel in board["panels"]:
        assert {"id", "type", "title", "description", "datasource", "targets", "fieldConfig"} <= panel.keys()
        at = panel["gridPos"]
        cells += [(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
