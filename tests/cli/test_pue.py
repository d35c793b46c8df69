"""The PUE of the command line, in every command that shows what the site draws or pays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt
from jointopt.workflows.page import page

JOB = """
model: opt-350m
training: {seq_length: 2048, global_batch_size: 256, framework: megatron-lm, run_tokens: 3e11}
cluster: {gpu: a100-sxm4-40gb, nodes: 2, gpus_per_node: 4, carbon_kg_per_kwh: 0.4, price_per_kwh: 0.2, currency: EUR}
"""
PLAN = ("--plan", "dp=8 zero_stage=1")
ANSWERS = {
    "propose": ("job.yaml", "-v", "--study", "other"), "explain": ("job.yaml", "-v", *PLAN),
    "compare": ("job.yaml", "-v", *PLAN, "--plan", "dp=4 tp=2"), "scale": ("job.yaml", "--gpus", "4,8"),
    "select": ("proposal.json", "--facility"),
}  # fmt: skip
PAID = ("facility_energy_j", "cluster_power_kw", "cost", "carbon_kg", "run_cost", "run_carbon_kg")


def run(*words: object) -> Result:
    done = CliRunner().invoke(jointopt, [str(word) for word in words])
    assert done.exit_code == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pue")
    (folder / "job.yaml").write_text(JOB)
    run("propose", folder / "job.yaml", "--storage", "none", "--surrogate", "none", "--out", folder)
    return folder


def paid(document: Any) -> Iterator[tuple[str, float]]:
    """Every figure of what the site draws or pays in a document, in its order."""
    if isinstance(document, dict):
        for name, value in document.items():
            whole = name.removesuffix("_low").removesuffix("_high")
            yield from [(name, value)] if whole in PAID and isinstance(value, float) else paid(value)
    elif isinstance(document, list):
        for entry in document:
            yield from paid(entry)


@pytest.mark.parametrize("command", ANSWERS)
def test_twice_the_pue_is_twice_what_the_site_draws_and_pays(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    storage = () if command == "select" else ("--storage", "none", "--surrogate", "none")
    found = [
        dict(enumerate(paid(json.loads(run(command, *ANSWERS[command], *storage, "--pue", pue, "--json").stdout))))
        for pue in (1, 2)
    ]
    assert {name for name, _ in found[0].values()} >= {"facility_energy_j", "cost", "carbon_kg"}
    twice = {at: (name, pytest.approx(2.0 * value)) for at, (name, value) in found[0].items()}
    assert found[1] == twice


def test_twice_the_pue_is_twice_the_column_of_a_predicted_table(place: Path, tmp_path: Path) -> None:
    sizes = {"gpu": "a100-sxm4-40gb", "num_gpus": 8, "seq_length": 2048, "global_batch_size": 256, "model": "opt-350m"}
    pd.DataFrame([sizes]).to_csv(tmp_path / "runs.csv", index=False)
    for pue in (1, 2):
        out = ("--out", tmp_path / f"{pue}.csv", "--storage", "none")
        run("predict", tmp_path / "runs.csv", *out, "--pue", pue)
    once, twice = (pd.read_csv(tmp_path / f"{pue}.csv").predicted_facility_energy_j for pue in (1, 2))
    assert twice.tolist() == pytest.approx((2.0 * once).tolist())


@pytest.mark.parametrize(("command", "shown"), [
    ("propose", "times PUE 1.4, per"), ("explain", "Energy of the site (PUE 1.4)"), ("select", "times PUE 1.4, per"),
    ("compare", "Site energy (PUE 1.4), kJ"), ("scale", "(PUE 1.4)"),
])  # fmt: skip
def test_a_pue_that_is_stated_shows_in_texts_of_jobs_without_prices(
    command: str, shown: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    plain = JOB.replace(", carbon_kg_per_kwh: 0.4, price_per_kwh: 0.2, currency: EUR", "").replace(
        ", run_tokens: 3e11", ""
    )
    Path("plain.yaml").write_text(plain)
    source = ("proposal.json", "--job", "plain.yaml") if command == "select" else ("plain.yaml", *ANSWERS[command][1:])
    basis = () if command == "select" else ("--storage", "none", "--surrogate", "none")
    assert shown in " ".join(run(command, *source, *basis, "--pue", 1.4).stdout.split())
    assert "PUE 1.4" not in run(command, *source, *basis).stdout


def test_a_report_bills_its_plans_at_the_pue_that_is_given(place: Path) -> None:
    once, twice = (page(str(place / "proposal.json"), surrogate="none", pue=pue) for pue in (1.0, 2.0))
    assert ("PUE 1)" in once.page.html(), "PUE 2)" in twice.page.html()) == (True, True)
    for low, high in zip(once.plans, twice.plans, strict=True):
        for name in ("facility_energy_j", "run_cost", "run_carbon_kg"):
            assert high.chosen.entry[name] == pytest.approx(2.0 * low.chosen.entry[name])


@pytest.mark.parametrize("command", ["tune", "validate"])
def test_commands_that_run_plans_bound_the_power_of_that_site(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: dict[str, Any] = {}

    def stand_in(job: Any, *words: Any, **options: Any) -> None:
        passed["job"] = job
        raise SystemExit(0)

    monkeypatch.setattr(f"jointopt.workflows.{command}.{command}", stand_in)
    budget = ("--budget", 1) if command == "tune" else ()
    run(command, place / "job.yaml", "--launcher", "replay", *budget, "--pue", 1.07)
    assert (passed["job"].cluster.pue, passed["job"].cluster.origin("pue")) == (1.07, "stated")


def test_plans_without_a_job_have_no_site_for_a_pue(place: Path) -> None:
    found = CliRunner().invoke(jointopt, ["select", str(place / "front.csv"), "--pue", "1.1"])
    assert found.exit_code == 2
    assert found.stderr.splitlines()[-1].endswith("front.csv states none: give --job.")


def test_the_commands_that_take_a_pue_are_those_that_know_a_site() -> None:
    context = click.Context(jointopt)
    commands = {name: jointopt.get_command(context, name) for name in jointopt.list_commands(context)}
    taking = {name for name, one in commands.items() if one and any("--pue" in option.opts for option in one.params)}
    assert taking == {*ANSWERS, "fleet", "follow", "goodput", "predict", "report", "tune", "validate"}
