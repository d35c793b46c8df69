"""What README and documentation show to be typed can be typed, and leads where they state."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from jointopt.jobs.jobfile import parse_job
from jointopt.measure.torchrun import TorchrunProgram, check_model
from jointopt.workflows.campaign.candidates import searched
from jointopt.workflows.explain import explain
from jointopt.workflows.propose import propose
from tests.pages import code, followed, not_run, parsed, ran, titled
from tests.places import ROOT

DOCS = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "export"]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *DOCS)}
RUN = [name for name, page in PAGES.items() if re.search(r"^```(sh|console|python)\n", page, re.MULTILINE)]
TARGETS = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "export").glob("*.md"))]
PARSED = [words for page in (*PAGES.values(), *TARGETS) for words in not_run(page)]
JOB = titled(PAGES["job-file"])["job.yaml"]
TINY = titled(PAGES["real-runs"])["job.yaml"]
BEFORE = {"reliability": ["jointopt ingest runs.csv"]}
PROFILE = pd.DataFrame({
    "stage": 0, "instruction": "forward", "clock_mhz": [1410, 1260, 1125, 990, 855],
    "time_s": [0.050, 0.0555, 0.0615, 0.069, 0.0785], "energy_j": [19.0, 17.1, 15.6, 15.7, 16.0],
})  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what a reader of any page has: a job file, a plan, measured runs, a profile of a GPU."""
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text('{"dp": 4, "pp": 2}')
    Path("job.yaml").write_text(JOB, encoding="utf-8")
    recorded = pd.read_csv(ROOT / "tests" / "data" / "recorded_runs.csv")
    runs = recorded[recorded["source"] == "internevo"].dropna(axis=1, how="all")
    for name, rows in {"runs": runs, "ten-runs": runs[:10], "wrong": runs[-1:]}.items():
        rows.to_csv(f"{name}.csv", index=False)
    PROFILE.to_csv("profile.csv", index=False)
    PROFILE.drop(columns=["time_s", "energy_j"]).to_csv("clocks.csv", index=False)
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize("name", RUN)
def test_the_commands_and_programs_of_a_page_run(name: str, folder: Path) -> None:
    for title, text in titled(PAGES[name]).items():
        (folder / title).write_text(text, encoding="utf-8")
    for command in BEFORE.get(name, []):
        assert ran(command)[0] == 0
    followed(PAGES[name])
    for program in code(PAGES[name], "python"):
        exec(program, {})


@pytest.mark.parametrize("words", PARSED, ids=" ".join)
def test_commands_that_need_more_than_this_machine_are_commands(words: list[str], folder: Path) -> None:
    parsed(words)


def test_every_command_of_the_pages_is_run_or_parsed() -> None:
    shown = re.findall(r"^(?:\$ )?jointopt \S+", "".join(PAGES.values()), re.MULTILINE)
    in_text = re.findall(r"^\$ jointopt \S+", "".join(b for p in PAGES.values() for b in code(p, "text")), re.MULTILINE)
    assert len(shown) > 50
    assert len(in_text) <= 1  # the run of real-runs.md, which needs PyTorch and is among the tests of services


def test_the_job_file_of_the_pages_is_a_job() -> None:
    assert parse_job(yaml.safe_load(JOB), "readme", ROOT).cluster.num_gpus == 64


def test_the_tiny_job_is_proposed_explained_and_has_nine_plans_to_run_on_cores() -> None:
    job = parse_job(yaml.safe_load(TINY), "tiny", ROOT)
    assert (job.cluster.gpu.id, job.cluster.num_gpus, job.objectives) == ("cpu-core", 4, ("iteration_time_s",))
    assert searched(TorchrunProgram().narrow_search(job)).size == 9
    assert propose(job, trials=10).front["iteration_time_s"].size == 1
    assert explain(job, "dp=4 mbs=4 rc=none ZeRO=2").feasible
    check_model(job.model)


def test_the_targets_of_make_that_the_readme_names_exist() -> None:
    made = set(re.findall(r"\bmake ([a-z]+)\b", PAGES["README"]))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"demo", "test", "docs"} <= made <= targets


def test_the_readme_is_two_screens() -> None:
    assert PAGES["README"].count("\n") <= 100


def test_links_lead_somewhere() -> None:
    top = (ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG"))
    for path in (*top, *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)[^):]*\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.relative_to(ROOT)}: {target}"


def test_paths_of_the_repository_that_texts_name_exist() -> None:
    top = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
    texts = [*(ROOT / name for name in top), *(ROOT / "docs").rglob("*.md"), *(ROOT / "studies").rglob("*.md")]
    for text in texts:
        found = re.findall(r"`((?:jointopt|cli|docs|examples|models|studies|tests)/[\w./-]+)`", text.read_text("utf-8"))
        assert [path for path in found if not (ROOT / path).exists()] == [], text


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f"- {page}\n" not in listed] == []
