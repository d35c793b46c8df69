"""The command around the search: arguments in, text or JSON out; the search is replaced where it is not meant."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt
from jointopt.report.results import Proposal

SHAPE = [
    "--model=llama-3-8b", "--gpu=h100-sxm5-80gb", "--gpus=16", "--global-batch-size=64", "--seq-length=4096",
]  # fmt: skip
JOB = """
model: llama-3-8b
training: {seq_length: 4096, global_batch_size: 64}
cluster: {gpu: h100-sxm5-80gb, nodes: 1, gpus_per_node: 8}
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(jointopt, ["propose", *map(str, arguments)])


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch, make_proposal: Callable[..., Proposal]) -> dict[str, Any]:
    """The arguments that the command passed to the library; the answer is made by hand."""
    questions: dict[str, Any] = {}

    def propose(job: Any, **options: Any) -> Proposal:
        questions.update(options, job=job)
        logging.getLogger("jointopt.workflows.propose").info("searching ...")
        return make_proposal(30)

    monkeypatch.setattr("jointopt.workflows.propose.propose", propose)
    return questions


def test_json_is_one_document_on_stdout_and_progress_goes_to_stderr(passed: dict[str, Any]) -> None:
    result = run(*SHAPE, "--json")
    assert result.exit_code == 0
    assert len(json.loads(result.stdout)["front"]) == 30
    assert result.stderr == "searching ...\n"


def test_options_reach_the_search(passed: dict[str, Any]) -> None:
    run(*SHAPE, "--trials", 7, "--seed", 3, "--storage", "none", "--study", "mine", "--framework", "nemo")
    job = passed.pop("job")
    same = {
        "trials": 7,
        "seed": 3,
        "storage": None,
        "study": "mine",
        "all_trials": False,
        "baseline": "",
        "source": " ".join([*SHAPE, "--framework nemo"]).replace("=", " "),
        "surrogate": "default",
        "measured": None,
        "calibration": None,
        "machine": None,
        "allow_tight": False,
    }
    assert passed == same
    assert (job.model.name, job.cluster.num_gpus, job.training.framework.name) == ("llama-3-8b", 16, "nemo")


def test_the_pue_of_the_command_line_is_that_of_the_site_and_no_assumption(passed: dict[str, Any]) -> None:
    run(*SHAPE)
    assumed = passed["job"].cluster
    run(*SHAPE, "--pue", 1.07)
    assert (assumed.pue, passed["job"].cluster.pue) == (1.2, 1.07)
    assert [one.key for one in assumed.assumed if one not in passed["job"].cluster.assumed] == ["pue"]


def test_a_site_that_takes_less_than_its_nodes_is_refused(passed: dict[str, Any]) -> None:
    result = run(*SHAPE, "--pue", 0.9)
    assert (result.exit_code, passed) == (2, {})
    assert "Invalid value for '--pue': 0.9 is not in the range 1.0<=x<=10.0." in result.stderr


def test_the_study_is_kept_in_sqlite_by_default(passed: dict[str, Any]) -> None:
    run(*SHAPE)
    assert passed["storage"] == "sqlite:///jointopt.db"


def test_a_saved_job_stands_for_the_options(passed: dict[str, Any], tmp_path: Path) -> None:
    run(*SHAPE, "--save-job", tmp_path / "job.yaml")
    assert "assumed" not in (tmp_path / "job.yaml").read_text()
    by_options = passed["job"]
    run(tmp_path / "job.yaml")
    assert passed["job"] == by_options


def test_out_writes_files_and_all_prints_every_plan(passed: dict[str, Any], tmp_path: Path) -> None:
    result = run(*SHAPE, "--out", tmp_path / "out", "--all")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"proposal.json", "front.csv", "proposal.txt"}
    assert "more plans" not in result.stdout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("seq_length: 4096", "seq_lenght: 4096"), ("seq_lenght", "seq_length")),
        (("h100-sxm5-80gb", "h100-sxm5-81gb"), ("h100-sxm5-81gb", "h100-sxm5-80gb")),
        (("llama-3-8b", "llama-3-9b"), ("llama-3-9b", "llama-3-8b")),
        (("nodes: 1", "nodes: 0"), ("cluster.nodes", "0")),
        (("global_batch_size: 64", "global_batch_size: -64"), ("global_batch_size", "-64")),
        (("model: llama-3-8b", "model: ["), ("job.yaml",)),
    ],
)
def test_a_bad_job_file_is_one_line_that_names_the_key(
    tmp_path: Path, change: tuple[str, str], words: tuple[str, ...]
) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace(*change))
    result = run(tmp_path / "job.yaml")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert all(word in result.stderr for word in words)


def test_a_directory_and_a_missing_file_are_bad_usage(tmp_path: Path) -> None:
    for path, complaint in (
        (tmp_path, "is a directory"),
        (tmp_path / "missing.yaml", "is neither a file nor a shipped job"),
    ):
        result = run(path)
        assert result.exit_code == 2
        assert complaint in result.stderr


def test_options_that_make_no_job_are_listed() -> None:
    result = run("--model", "llama-3-8b", "--gpus", 8)
    assert result.exit_code == 2
    assert "missing: --gpu, --global-batch-size, --seq-length" in result.stderr


def test_a_job_and_options_at_once_are_refused() -> None:
    result = run("opt-350m-2x4-a100", "--gpus", 8)
    assert result.exit_code == 2
    assert "not both" in result.stderr


@pytest.mark.parametrize("flags", [["--trials", "-1"], ["--seed", "x"], ["--surrogate", "best"], ["--gpus", "many"]])
def test_an_option_out_of_range_is_bad_usage(flags: list[str]) -> None:
    assert run(*SHAPE, *flags).exit_code == 2


def test_a_folder_that_cannot_be_made_is_one_line(passed: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run(*SHAPE, "--out", tmp_path / "file" / "out")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("Error: --out: ")
    assert not passed, "the search is not started"


def test_what_cannot_be_written_names_its_option(passed: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for option, path in (("--out", tmp_path / "file"), ("--save-job", tmp_path)):
        result = run(*SHAPE, option, path)
        assert result.exit_code == 2
        last = result.stderr.splitlines()[-1]
        assert last.startswith(f"Error: {option}: {path}: ")
        assert last.endswith("; expected a folder that exists and can be written.")


def test_a_network_without_a_usual_figure_can_be_given(passed: dict[str, Any]) -> None:
    slow = ["--gpu=l40s", "--gpus-per-node=4", "--framework=nemo"]
    assert "--inter-node-gbytes-per-s" in run(*SHAPE, *slow).stderr
    assert run(*SHAPE, *slow, "--inter-node-gbytes-per-s", 12.5).exit_code == 0
    assert passed["job"].cluster.inter_node_gbytes_per_s == 12.5


@pytest.mark.parametrize(
    "words", [("--network", "200G"), ("--network", "hdr"), ("--inter-node-gbytes-per-s", "200Gb/s")]
)
def test_a_network_has_the_name_or_the_unit_that_people_use(passed: dict[str, Any], words: tuple[str, str]) -> None:
    slow = ["--gpu=l40s", "--gpus-per-node=4", "--framework=nemo"]
    assert run(*SHAPE, *slow, *words).exit_code == 0
    assert passed["job"].cluster.inter_node_gbytes_per_s == 25


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--network", "400"), "--network 400: of which unit? Give 400G"),
        (("--network", "ndr", "--inter-node-gbytes-per-s", "50"), "Give --network or --inter-node-gbytes-per-s, not"),
        (("--inter-node-gbytes-per-s", "400"), "400 Gb/s are 50: write 400Gb/s, or 400GB/s if it is really 400 GB/s."),
    ],
)
def test_a_network_of_an_unclear_unit_is_a_question(words: tuple[str, ...], sentence: str) -> None:
    result = run(*SHAPE, "--gpu=h100-sxm5-80gb", *words)
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_where_nothing_comes_near_to_fitting_the_leanest_is_an_answer_marked_as_such_if_asked_for() -> None:
    small = ("--set", "cluster.nodes=1", "--set", "cluster.gpus_per_node=4", "--storage", "none")
    words = ("llama-3-70b-4x8-h200", *small)
    assert run(*words).exit_code == 1
    answered = run(*words, "--allow-tight")
    assert answered.exit_code == 0, answered.output
    assert "NOT FEASIBLE: it is not expected to fit in memory (probability 0.00)" in answered.stdout
    assert answered.stdout.rstrip().endswith("--allow-tight")
    document = json.loads(run(*words, "--allow-tight", "--json").stdout)
    assert {plan["feasible"] for plan in document["front"]} == {document["feasible"]} == {False}
