"""``jointopt goodput``: exit codes, and one document."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt

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


def test_the_seed_plays_the_runs_of_the_spread() -> None:
    words = ("opt-350m-2x4-a100", *RUN, "--plan", "dp=8 mbs=4", "--simulate", "50", "--set", "reliability.spares=0")
    often = ("--set", "reliability.failures_per_gpu_hour=0.01")
    first, again, other = (goodput(*words, *often, "--seed", seed).stdout for seed in "112")
    assert first == again != other
