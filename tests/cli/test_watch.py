"""``jointopt watch``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from jointopt.cli.main import jointopt
from tests.rank_logs import Run


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("watch") / "ranks.csv"
    Run(8, "host", dp=16, pp=2, gpus_per_node=8).frame().to_csv(file, index=False)
    return str(file)


def test_the_document_has_the_slow_ranks_with_their_cost(rows: str) -> None:
    ran = CliRunner().invoke(jointopt, ["watch", rows, "--plan", "dp=16 pp=2", "--gpus-per-node", "8", "--json"])
    assert ran.exit_code == 0
    (one,) = json.loads(ran.stdout)["slow"]
    assert one.keys() >= {"rank", "stage", "kind", "since_iteration", "cost_s"}
    assert (one["kind"], len(one["ranks"]), one["cost_s"] > 0) == ("host", 8, True)


def test_the_text_is_short_and_says_what_to_do(rows: str) -> None:
    text = CliRunner().invoke(jointopt, ["watch", rows, "--plan", "dp=16 pp=2", "--gpus-per-node", "8"]).stdout
    lines = text.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert "look at the CPUs" in text


def test_bad_input_is_one_sentence_and_exit_code_2(rows: str, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("")
    for words in ([str(tmp_path / "empty.csv")], [str(tmp_path)], [rows, "--plan", "dp=x"], [rows, "--warmup", "9999"]):
        ran = CliRunner().invoke(jointopt, ["watch", *words])
        assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1), ran.stderr
