"""What propose has stored is read back as it was, and what is no such thing is refused in one sentence."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest

from jointopt.core.errors import UsageError
from jointopt.jobs.jobfile import shipped_job
from jointopt.report.results import Proposal
from jointopt.workflows.plan_files import read_plan_file
from jointopt.workflows.stored_plans import stored_plans

Proposals = Callable[..., Proposal]


@pytest.fixture
def folder(make_proposal: Proposals, tmp_path: Path) -> Path:
    replace(make_proposal(7), job=shipped_job("opt-350m-2x4-a100")).write(tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize("name", ["", "proposal.json", "front.csv"])
def test_a_front_is_read_back_as_it_was(folder: Path, name: str, make_proposal: Proposals) -> None:
    plans, front = stored_plans(str(folder / name)).plans, make_proposal(7).front
    for column, values in front.items():
        np.testing.assert_allclose(plans[column].astype(float), values.astype(float), rtol=1e-12)


def test_a_proposal_carries_its_job_and_a_table_the_figures_of_its_site(folder: Path) -> None:
    whole, table = stored_plans(str(folder)), stored_plans(str(folder / "front.csv"))
    assert (whole.job, whole.job_name) == (shipped_job("opt-350m-2x4-a100"), "opt-350m-2x4-a100")
    assert (table.job, table.job_name) == (None, "")
    for name in ("facility_energy_j", "cluster_power_kw", "cluster_power_kw_high"):
        np.testing.assert_allclose(table.plans[name], whole.plans[name])


def test_a_job_that_is_given_replaces_the_one_that_was_stored(folder: Path) -> None:
    job = shipped_job("opt-350m-2x4-a100")
    dear = replace(job, cluster=replace(job.cluster, price_per_kwh=0.3, pue=1.0, host_power_w=0.0, host_load_share=0.0))
    plans = stored_plans(str(folder), job=dear).plans
    np.testing.assert_allclose(plans["facility_energy_j"], plans["energy_j"])
    np.testing.assert_allclose(plans["cost"], plans["energy_j"] / 3.6e6 * 0.3)


@pytest.mark.parametrize(
    ("job", "source", "words"),
    [
        ("llama-3-8b-1x8-h100", "", "are for opt-350m on a100-sxm4-40gb"),
        ("llama-3-70b-4x8-h200", "front.csv", "are for 8 GPUs and job .* has 32"),
    ],
)
def test_a_job_of_other_plans_is_refused(folder: Path, job: str, source: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        stored_plans(str(folder / source), job=shipped_job(job))


def test_the_job_may_have_another_name(folder: Path) -> None:
    job = shipped_job("opt-350m-2x4-a100")
    renamed = replace(job, name="other", model=replace(job.model, name="other"))
    assert stored_plans(str(folder), job=renamed).job_name == "other"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read as JSON"),
        ('{"front": NaN}', "NaN is no number"),
        ('{"job": "tiny"}', "holds no front of plans"),
        ('{"front": []}', "holds no feasible plan"),
        ('{"front": [{"dp": 8}]}', "has no column tp, pp"),
    ],
)
def test_a_document_of_another_kind_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(UsageError, match=words):
        stored_plans(str(tmp_path / "other.json"))


@pytest.mark.parametrize(
    ("column", "cell", "words"),
    [
        ("tp", 0, "tp of plan 2"),
        ("iteration_time_s", -1.0, "iteration_time_s of plan 2"),
        ("energy_j", None, "energy_j of plan 2 is blank"),
        ("stage_clock_mhz", "1410;1410;1410", "2 pipeline stages; got 3"),
        ("recompute", "some", "recompute of plan 2"),
    ],
)
def test_a_cell_that_makes_no_sense_is_named(folder: Path, column: str, cell: Any, words: str) -> None:
    table = pd.read_csv(folder / "front.csv").astype({column: object})
    table.loc[1, column] = cell
    table.to_csv(folder / "front.csv", index=False)
    with pytest.raises(UsageError, match=words):
        stored_plans(str(folder / "front.csv"))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("missing.json", "does not exist"),
        ("out/proposal.txt", r"is no \.json or \.csv file"),
        ("a-study", "There is no study 'a-study'"),
    ],
)
def test_what_is_not_there_is_refused_in_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: str
) -> None:
    monkeypatch.chdir(folder.parent)
    with pytest.raises(UsageError, match=words):
        stored_plans(source)
    assert not Path("jointopt.db").exists()


def test_a_study_of_another_kind_is_refused_and_a_wrong_name_corrected(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    optuna.create_study(storage=url, study_name="other")
    with pytest.raises(UsageError, match="holds no plans of jointopt"):
        stored_plans("other", url)
    half = optuna.create_study(storage=url, study_name="half", directions=["minimize"] * 2)
    half.set_user_attr("job", "model: opt-350m")
    with pytest.raises(UsageError, match="was not written to its end"):
        stored_plans("half", url)
    with pytest.raises(
        UsageError, match=r"no study 'othr' \(did you mean 'other'\?\); expected one of (half, other|other, half)"
    ):
        stored_plans("othr", url)


def test_a_stored_job_that_can_no_longer_be_read_is_refused_with_the_option_that_gives_one(folder: Path) -> None:
    document = json.loads((folder / "proposal.json").read_text())
    document["job_file"]["cluster"]["gpu"] = "gone"
    (folder / "proposal.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"stored in .* cannot be read: .*'gone'.* Give the job by --job"):
        stored_plans(str(folder))


def test_what_propose_prints_is_read_from_a_pipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (folder / "proposal.json").read_text()
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    piped = stored_plans("-")
    assert piped.source == "standard input"
    assert len(piped.plans["energy_j"]) == len(json.loads(text)["front"])


def test_a_pue_that_is_given_counts_in_place_of_the_job_s(folder: Path) -> None:
    usual, other = (stored_plans(str(folder), pue=pue) for pue in (None, 1.5))
    assert (usual.job.cluster.pue, other.job.cluster.pue) == (1.2, 1.5)
    ratio = other.plans["facility_energy_j"] / usual.plans["facility_energy_j"]
    np.testing.assert_allclose(ratio, 1.5 / 1.2)


def test_rows_of_a_file_with_plans_count_from_one(folder: Path) -> None:
    front = json.loads((folder / "proposal.json").read_text())["front"]
    for row in (1, 2, len(front)):
        found = read_plan_file(folder / "proposal.json", row)
        assert found["stage_clock_mhz"] == front[row - 1]["stage_clock_mhz"]
