"""The command on what a real search has left behind."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt

JOB = """
model: opt-350m
training: {seq_length: 2048, global_batch_size: 256, framework: megatron-lm, run_tokens: 3e11}
cluster: {gpu: a100-sxm4-40gb, nodes: 2, gpus_per_node: 4, carbon_kg_per_kwh: 0.4, price_per_kwh: 0.2, currency: EUR}
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(jointopt, [str(word) for word in arguments])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("select")
    (folder / "job.yaml").write_text(JOB)
    storage = f"sqlite:///{folder}/studies.db"
    stored = ["--storage", storage, "--study", "mine", "--out", folder]
    done = run("propose", folder / "job.yaml", "--trials", 200, "--surrogate", "none", *stored)
    assert done.exit_code == 0, done.stderr
    return folder


@pytest.fixture(params=["proposal.json", "front.csv", "study"])
def source(request: pytest.FixtureRequest, place: Path) -> list[str]:
    """The same plans in each of the three forms."""
    if request.param == "study":
        return ["mine", "--storage", f"sqlite:///{place}/studies.db"]
    return [str(place / request.param)]


def chosen(*arguments: object) -> dict[str, Any]:
    done = run("select", *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def budget_of(place: Path) -> float:
    """Between the energies of two neighbours in the middle of the front."""
    front = json.loads((place / "proposal.json").read_text())["front"]
    return 0.5 * float(front[len(front) // 2]["energy_j"] + front[len(front) // 2 + 1]["energy_j"])


def test_files_and_study_give_the_same_plan_under_a_budget(source: list[str], place: Path) -> None:
    budget = budget_of(place)
    front = json.loads((place / "proposal.json").read_text())["front"]
    fastest = next(plan for plan in front if plan["energy_j"] <= budget)
    document = chosen(*source, "--max-energy-j", budget)
    assert document["plan"].items() <= fastest.items()
    for name in ("iteration_time_s", "energy_j_high", "avg_power_w_low", "facility_energy_j"):
        assert document[name] == pytest.approx(fastest[name])
    assert (document["objective"], document["binding"]) == ("time", ["energy_j"])


def test_the_document_names_limits_relaxations_and_a_command_that_runs(source: list[str], place: Path) -> None:
    document = chosen(*source, "--max-energy-j", budget_of(place), "--max-cluster-kw", 20)
    assert document["constraints"].keys() == document["relaxations"].keys() == {"energy_j", "cluster_power_kw"}
    relaxed = document["relaxations"]["energy_j"]
    assert relaxed["relaxed_to"] == pytest.approx(1.05 * budget_of(place))
    assert relaxed["gain"] == pytest.approx(document["iteration_time_s"] - relaxed["iteration_time_s"])
    assert document["relaxations"]["cluster_power_kw"]["gain"] == 0
    words = shlex.split(document["next"])[1:]
    words[1:2] = [place / "job.yaml"] if words[1] == "job.yaml" else words[1:2]  # which front.csv does not hold
    explained = run(*words, "--surrogate", "none", "--json").stdout
    assert json.loads(explained)["facility_energy_j"] == pytest.approx(document["facility_energy_j"])


def test_the_text_says_which_limit_binds_and_what_the_run_costs(place: Path) -> None:
    text = run("select", place, "--max-energy-j", budget_of(place), "--max-power-w", 390).stdout
    rows = [line.split() for line in text.splitlines() if line.startswith(("energy_j", "avg_power_w"))]
    assert [("yes" in row, row[-1]) for row in rows] == [(True, "a"), (False, "-")]
    assert "for a run of 300,000,000,000 tokens (572,205 iterations)" in " ".join(text.split())
    prose = [line for line in text.splitlines() if not line.startswith("  jointopt explain")]
    assert max(map(len, prose)) <= 100


def test_without_a_limit_the_knee_and_both_ends_are_shown(source: list[str]) -> None:
    text = run("select", *source).stdout
    assert {line[:1] for line in text.splitlines()} >= {"=", "f", "e"}


def test_a_study_keeps_why_intervals_of_its_plans_are_wider(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        JOB.replace("a100-sxm4-40gb", "h100-sxm5-80gb") + "search: {clock_mhz: [1980, 1200]}\n"
    )
    storage = ["--storage", f"sqlite:///{tmp_path}/studies.db"]
    assert run("propose", tmp_path / "job.yaml", *storage, "--study", "mine", "--out", tmp_path).exit_code == 0
    for source in ([tmp_path], [tmp_path / "front.csv"], ["mine", *storage]):
        text = run("select", *source, "--objective", "energy").stdout
        assert "interval (±) is wider: clock response not measured on this GPU." in text


def test_out_of_reach_is_exit_code_1_and_one_sentence(source: list[str]) -> None:
    done = run("select", *source, "--max-energy-j", 10)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "keeps every limit; the closest, dp=" in done.stderr


def test_hosts_move_the_plan_of_least_energy_to_a_higher_clock(place: Path) -> None:
    gpus = chosen(place, "--objective", "energy")
    site = chosen(place, "--objective", "energy", "--facility")
    assert site["iteration_time_s"] < gpus["iteration_time_s"]
    assert site["facility_energy_j"] < gpus["facility_energy_j"]
    assert site["energy"] == "facility_energy_j"


def test_what_workers_have_finished_can_be_chosen_from(place: Path) -> None:
    storage = f"sqlite:///{place}/shared.db"
    assert run("work", place / "job.yaml", "--trials", 30, "--storage", storage, "--study", "ours").exit_code == 0
    document = chosen("ours", "--storage", storage, "--max-power-w", 250)
    assert document["avg_power_w"] <= 250
    assert document["binding"] == ["avg_power_w"]


@pytest.mark.parametrize(
    "flags", [["--max-power-w", "0"], ["--max-energy-j", "nan"], ["--max-energy-j", "much"], ["--objective", "best"],
              ["--objective", "knee", "--max-energy-j", "9"], ["--job", "missing.yaml"]],
)  # fmt: skip
def test_bad_usage_is_exit_code_2(place: Path, flags: list[str]) -> None:
    done = run("select", place, *flags)
    assert done.exit_code == 2
    assert done.stderr
    assert done.stdout == ""


def test_the_environment_states_where_studies_are_and_leaves_files_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("select", "mine", "--json").exit_code == 2
    monkeypatch.setenv("JOINTOPT_STORAGE", f"sqlite:///{place}/studies.db")
    chosen = [json.loads(run("select", source, "--json").stdout)["plan"] for source in ("mine", place / "front.csv")]
    assert chosen[0] == chosen[1]


def test_json_has_the_probability_of_fitting_whatever_form_the_plans_are_in(source: list[str]):
    result = run("select", *source, "--json")
    assert 0.5 < json.loads(result.stdout)["fit_probability"] <= 1.0


def test_a_plan_of_a_study_is_exported_without_its_job(place: Path) -> None:
    storage = ["--storage", f"sqlite:///{place}/studies.db"]
    front = json.loads((place / "proposal.json").read_text())["front"]
    found = json.loads(run("export", "--plan", "mine:2", "--to", "megatron", "--json", *storage).stdout)
    words = found["words"]
    assert words[words.index("--micro-batch-size") + 1] == str(front[1]["micro_batch_size"])
    assert "from mine:1 to mine:" in run("export", "--plan", "mine:9999", *storage).stderr


def test_a_plan_of_a_study_is_none_of_another_job(place: Path) -> None:
    answer = run("explain", "llama-3-8b-1x8-h100", "--plan", "mine:2", "--storage", f"sqlite:///{place}/studies.db")
    assert (answer.exit_code, "is of another job than llama-3-8b-1x8-h100" in answer.stderr) == (2, True)


def test_plans_of_two_jobs_are_not_compared(place: Path) -> None:
    storage = ["--storage", f"sqlite:///{place}/studies.db"]
    other = ["--set", "training.global_batch_size=128", "--study", "other", "--surrogate", "none", "--quiet"]
    assert run("propose", place / "job.yaml", *storage, *other).exit_code == 0
    answer = run("compare", "--plan", "mine:1", "--plan", "other:1", *storage)
    assert (answer.exit_code, "other:1 is of another job" in answer.stderr) == (2, True)
