"""What commands print by default: a decision, how it starts and how sure it is, on one screen of 80 columns."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from jointopt.cli.main import jointopt
from jointopt.report.decision import LINES, WIDTH

JOB = "llama-3-8b-1x8-h100"
PLANS = ("--plan", "dp=8 zero_stage=3", "--plan", "dp=4 tp=2 zero_stage=2", "--plan", "dp=2 tp=4 zero_stage=1")
REPLAY = ("job.yaml", "--launcher", "replay", "--table", "runs.csv")
LIMITED = ("--gpus", "8..64", "--run-tokens", "1e12", "--deadline-days", "60")
PAID = ("--run-tokens", "1e12", "--price-per-gpu-hour", "2", "--price-per-kwh", "0.1", "--storage", "none",
        "--set", "training.lora_dim=16", "--set", "training.framework=nemo")  # fmt: skip
# by command: what answers which plan, how it is started, what it saves, how sure that is, what to state to be surer
ANSWERED = {
    ("scale", JOB, *LIMITED): ("Picked of", "jointopt export", "Against", "with probability", "--set KEY=VALUE"),
    ("explain", JOB, *PLANS[2:4]): ("Feasible", "jointopt export", "90 % interval", "--set KEY=VALUE"),
    ("compare", JOB, *PLANS): ("Best of", "jointopt export", "against A", "90 % interval", "--set KEY=VALUE"),
    ("tune", *REPLAY, "--budget", "3"):
        ("Best measured", "jointopt export", "than run 1", "in their 90 % interval", "-v"),
    ("validate", *REPLAY): ("Best measured", "jointopt export", "row 1", "in their 90 % interval", "-v"),
}  # fmt: skip


def shown(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(jointopt, [*words, "--quiet"])
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def fits_a_screen(text: str) -> bool:
    lines = text.splitlines()
    return len(lines) <= LINES and max(map(len, lines)) <= WIDTH


@pytest.mark.parametrize("words", ANSWERED, ids=lambda words: words[0])
def test_the_answer_fits_a_screen_and_answers_what_people_ask(
    words: tuple[str, ...], recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(monkeypatch, *words)
    assert fits_a_screen(text), text
    assert [one for one in ANSWERED[words] if one not in " ".join(text.split())] == []


@pytest.mark.parametrize("words", ANSWERED, ids=lambda words: words[0])
def test_all_of_it_fits_80_columns(words: tuple[str, ...], recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(map(len, shown(monkeypatch, *words, "-v").splitlines())) <= WIDTH


@pytest.mark.parametrize("words", ANSWERED, ids=lambda words: words[0])
def test_the_command_that_is_printed_runs(
    words: tuple[str, ...], recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(monkeypatch, *words)
    command = text[text.index("  jointopt ") :].split("\nAll ")[0]
    again = CliRunner().invoke(jointopt, [*shlex.split(command.replace("\\\n", " "))[1:], "--quiet"])
    assert again.exit_code == 0, again.output


def test_scale_proposes_the_cluster_that_it_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    pick = json.loads(shown(monkeypatch, "scale", JOB, *LIMITED, "--json"))
    nodes = pick["sizes"][pick["pick"]["size"]]["nodes"]
    assert f"--set cluster.nodes={nodes}" in " ".join(shown(monkeypatch, "scale", JOB, *LIMITED).split())


def test_eight_plans_are_compared_on_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = [word for mhz in range(1200, 2000, 100) for word in ("--plan", f"dp=8 zero_stage=3 clock_mhz={mhz}")]
    assert fits_a_screen(shown(monkeypatch, "compare", JOB, *clocks))


def test_no_cluster_that_is_feasible_is_one_line_and_its_reason_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(jointopt, ["scale", "llama-3-70b-4x8-h200", "--gpus", "2..4", "--quiet"])
    assert result.exit_code == 1
    assert result.stdout == "Not feasible (-v says why): 2 x h200-sxm-141gb, 4 x h200-sxm-141gb.\n"
    assert "It would fit on" in result.stderr


def test_without_a_run_to_use_it_says_how_runs_ended(
    recorded: Path, make_runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_runs(status="oom", iteration_time_s=float("nan")).to_csv("runs.csv", index=False)
    result = CliRunner().invoke(jointopt, ["tune", *REPLAY, "--budget", "2", "--quiet"])
    assert result.exit_code == 1
    assert "No run gives a plan to use (2 oom)." in " ".join(result.stdout.split())


def test_retrain_says_what_was_learned_and_what_would_teach_most(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    again = ["retrain", "--table", str(trained.parent / "runs.csv"), "--out", str(trained.parent / "again")]
    text = CliRunner().invoke(jointopt, again).stdout
    assert fits_a_screen(text.replace(str(trained.parent), "folder"))
    for words in (
        "Learned from 60 timed rows of 3 sources",
        "physics alone by",
        "90 % interval",
        "Most is left to learn",
    ):
        assert words in " ".join(text.split())
    assert f"--surrogate {trained.parent}/again" in " ".join(text.split())


def test_propose_answers_all_five_questions_on_the_first_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, "propose", JOB)
    assert fits_a_screen(text)
    for words in ("Recommended", "jointopt export", "Against the fastest plan", "(90 %:", "--set KEY=VALUE"):
        assert words in text


def test_a_proposal_for_the_least_money_says_what_the_run_costs_and_what_is_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = " ".join(shown(monkeypatch, "propose", JOB, *PAID).split())
    for words in ("least money", "with LoRA of rank 16", " days (90 %: ", ", cost "):
        assert words in text
