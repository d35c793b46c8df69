"""``jointopt goodput``: exit codes, and one document."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt
from tests.workflows.test_goodput import LOGS

RUN = ("--run-tokens", "1e11", "--surrogate", "none", "--storage", "none")


def goodput(*words: str) -> Result:
    return CliRunner().invoke(jointopt, ["goodput", *words])


def test_a_plan_without_spares_is_answered_in_one_document() -> None:
    ended = goodput("opt-350m-2x4-a100", *RUN, "--plan", "dp=8 mbs=4", "--set", "reliability.spares=0", "--json")
    found = json.loads(ended.stdout)
    assert (ended.exit_code, found["spares"], found["policy"], found["feasible"]) == (0, 0, "restart", True)
    assert found["lost"]["idle"] > 0.0


def test_a_plan_that_does_not_fit_is_answered_and_ends_with_1() -> None:
    ended = goodput("llama-3-70b-4x8-h200", *RUN, "--plan", "dp=32 zero_stage=0 mbs=1", "--json")
    assert ended.exit_code == 1
    assert "The plan is not feasible" in ended.stderr
    assert json.loads(ended.stdout)["feasible"] is False


def test_a_run_of_unknown_length_ends_with_2_and_one_line() -> None:
    ended = goodput("opt-350m-2x4-a100", "--surrogate", "none", "--storage", "none")
    assert ended.exit_code == 2
    assert ended.stderr.count("\n") == 1
    assert "training.run_tokens is missing" in ended.stderr


def test_options_stand_for_the_job_and_for_what_stops_its_run() -> None:
    shape = ("--model", "opt-350m", "--gpu", "a100-sxm4-40gb", "--gpus", "8", "--gpus-per-node", "4", "--framework",
             "megatron-lm", "--global-batch-size", "256", "--seq-length", "2048")  # fmt: skip
    own = ("--failures-per-gpu-hour", "0.001", "--spares", "1", "--policy", "restart", "--policy", "spare")
    ended = goodput(*shape, *own, *RUN, "--plan", "dp=8 mbs=4", "--json")
    found = json.loads(ended.stdout)
    assert found["mean_time_between_failures_s"] == 3600 / 0.008
    assert found["spares"] == 1
    assert [one["policy"] for one in found["policies"]] == ["restart", "spare"]


def test_logs_make_a_page_and_a_bad_one_ends_with_2_and_one_line(tmp_path: Path) -> None:
    words = ("opt-350m-2x4-a100", *RUN, "--plan", "dp=8 mbs=4")
    logs = [word for path in LOGS for word in ("--from", str(path))]
    ended = goodput(*words, *logs, "--report", str(tmp_path / "run.html"))
    assert (ended.exit_code, ended.stdout.count("Jeffreys")) == (0, 1)
    assert "figure-events" in (tmp_path / "run.html").read_text()
    (tmp_path / "bad.log").write_text("hello\n")
    refused = goodput(*words, "--from", str(tmp_path / "bad.log"))
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "bad.log: it holds no iteration; expected a log" in refused.stderr


def test_the_seed_plays_the_runs_of_the_spread() -> None:
    words = ("opt-350m-2x4-a100", *RUN, "--plan", "dp=8 mbs=4", "--simulate", "50", "--set", "reliability.spares=0")
    often = ("--set", "reliability.failures_per_gpu_hour=0.01")
    first, again, other = (goodput(*words, *often, "--seed", seed).stdout for seed in "112")
    assert first == again != other
