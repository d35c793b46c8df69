"""``jointopt retrain``."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt
from jointopt.surrogate.files import load
from jointopt.workflows import retrain as retraining


def run(*arguments: object) -> Result:
    return CliRunner().invoke(jointopt, ["retrain", *map(str, arguments)])


def test_it_prints_held_out_errors_before_and_after_and_writes_the_folder(trained, tmp_path):
    out = tmp_path / "new"
    result = run("--table", trained.parent / "runs.csv", "--licence", "a100: mine", "--seed", 3, "--out", out, "-v")
    assert result.exit_code == 0, result.stderr
    for name in ("a100", "h100", "titan", "mean", "physics", "group out", "+3 runs"):
        assert name in result.stdout
    assert f"written to {out}" in result.stdout
    assert sorted(path.name for path in out.iterdir()) == [
        "card.json", "held_out.npz", "learned_rows.npz", "support.npz",
    ]  # fmt: skip
    card = json.loads((out / "card.json").read_text())
    assert card["licences"] == ["a100: mine"]
    assert card["seed"] == 3


def test_a_worse_surrogate_is_refused_with_exit_code_1_and_forced_with_0(trained, tmp_path, monkeypatch):
    surrogate, scores = load(trained), pd.DataFrame([{"source": "mean", "physics": 0.2, "group out": 0.1}])
    monkeypatch.setattr(retraining, "train", lambda *_: (surrogate, scores))
    arguments = ("--table", trained.parent / "runs.csv", "--out", tmp_path / "mine")
    for error, force, code in ((0.0, (), 0), (0.1, (), 1), (0.1, ("--force",), 0)):
        scores.attrs["rows"] = [("a100", "tiny", 0.01 * i, error) for i in range(20)]
        done = run(*arguments, *force)
        assert done.exit_code == code
        assert ("--force" in done.stderr) == (code == 1)


@pytest.mark.parametrize(
    ("rows", "flags", "words"),
    [
        (0, (), "Nothing to train on"),
        (5, (), "at least 20 timed rows"),
        (5, ("--seed", "-1"), "--seed"),
        (5, ("--table", "missing.csv"), "missing.csv"),
    ],
)
def test_what_cannot_be_trained_on_is_exit_code_2(three_sources, tmp_path, rows, flags, words):
    three_sources.head(max(rows, 1)).to_csv(tmp_path / "few.csv", index=False)
    tables = ("--table", tmp_path / "few.csv") if rows else ()
    result = run(*tables, *flags, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert words in result.stderr
    assert not (tmp_path / "out").exists()
