"""The pages of export targets: from an empty folder, all commands run and print what the page shows (tests/pages.py).

``run.log`` is there from the beginning, as if the program had been started already.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jointopt.frameworks.targets import TARGETS
from jointopt.runs.checks import MEASUREMENT_RULES
from jointopt.runs.table import read_measurements
from tests.pages import followed, steps
from tests.places import ROOT
from tests.stand_in import framework

FOLDER = ROOT / "docs" / "export"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
# what each program prints for an iteration of 128 sequences of 8,192 tokens
LINES = {
    "megatron": "bridge", "megatron-bridge": "bridge", "torchtitan": "titan", "deepspeed": "deepspeed",
    "nanotron": "nanotron", "slurm": "titan", "kubernetes": "bridge",
}  # fmt: skip


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
    followed(PAGES[target])
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
