"""Surrogates that replace others: only by what is as good, and always the same from the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jointopt import retraining
from jointopt.errors import InfeasibleError, TableError, UsageError
from jointopt.retraining import retrain
from jointopt.store import Store
from jointopt.surrogate.model import load
from jointopt.training import HeldOut, Scores, score_table


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained surrogate, to be replaced."""
    return Path(shutil.copytree(trained, tmp_path / "surrogate"))


@pytest.fixture
def quick(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training that is over at once, and right within 2 % on held-out groups of one source."""
    surrogate = load(trained)
    held = HeldOut(np.full(5, 0.02), np.zeros(5), np.ones(5), np.arange(5))
    scores = score_table([Scores("a100", 0.2, held, None, None, None, None)])
    monkeypatch.setattr(retraining, "train", lambda table, seed: (surrogate, scores))


def card(folder: Path) -> dict:
    return json.loads((folder / "card.json").read_text(encoding="utf-8"))


def with_error(folder: Path, value: float) -> None:
    """Rewrite what the card says of held-out groups."""
    told = card(folder)
    told["error"] = {name: row | {"group out": value} for name, row in told["error"].items()}
    (folder / "card.json").write_text(json.dumps(told), encoding="utf-8")


def test_the_card_says_what_it_was_made_of_and_how_to_make_it_again(trained):
    told = card(trained)
    assert told["data"] == {"a100": 20, "h100": 20, "titan": 20}
    assert told["licences"] == ["a100: made up"]
    assert told["seed"] == 0
    assert told["rebuild"] == (
        "jointopt retrain --table runs.csv --licence 'a100: made up' --seed 0 --out surrogate"
    )
    assert {"xgboost-cpu", "numpy", "jointopt"} <= told["versions"].keys()
    assert len(told["files_sha256"]["runs.csv"]) == 64
    assert told["error"]["mean"]["group out"] < told["error"]["mean"]["physics"]


def test_the_same_files_and_seed_make_the_same_bytes(trained, tmp_path):
    report = retrain(
        tables=[trained.parent / "runs.csv"], out=tmp_path / "surrogate", licences=["a100: made up"]
    )
    again = tmp_path / "surrogate"
    assert f"written to {again}" in report
    assert (again / "trees.ubj").read_bytes() == (trained / "trees.ubj").read_bytes()
    with np.load(again / "support.npz") as one, np.load(trained / "support.npz") as two:
        assert one.files == two.files
        assert all((one[name] == two[name]).all() for name in one.files)
    first, second = card(again), card(trained)
    first.pop("date"), second.pop("date")
    assert first == second


def test_the_card_has_the_error_of_every_group_that_was_held_out(trained):
    told = card(trained)
    assert told["error_per_group"].keys() == {"a100", "h100", "titan"}
    for source, groups in told["error_per_group"].items():
        assert len(groups) > 1
        assert min(groups.values()) <= told["error"][source]["group out"] <= max(groups.values())


def test_a_password_of_the_store_is_not_in_the_card(three_sources, tmp_path, quick, monkeypatch):
    monkeypatch.setattr(retraining, "_gathered", lambda tables, storage: three_sources)
    retrain(storage="postgresql+psycopg://me:secret@host/runs", out=tmp_path / "out")
    assert "secret" not in (tmp_path / "out" / "card.json").read_text()
    assert "postgresql+psycopg://me:***@host/runs" in card(tmp_path / "out")["rebuild"]


def test_a_file_in_the_place_of_the_folder_is_said_before_anything_is_trained(trained):
    with pytest.raises(UsageError, match="is a file; expected a folder"):
        retrain(tables=[trained.parent / "runs.csv"], out=trained.parent / "runs.csv")


def test_a_better_surrogate_is_replaced_by_force_alone(trained, folder, quick):
    with_error(folder, 0.0001)
    before = (folder / "card.json").read_bytes()
    with pytest.raises(InfeasibleError, match=r"the one now in .* 0\.0% .*a100 0\.0% to 2\.0%.* --force"):
        retrain(tables=[trained.parent / "runs.csv"], out=folder)
    assert (folder / "card.json").read_bytes() == before
    assert "the surrogate now in" in retrain(tables=[trained.parent / "runs.csv"], out=folder, force=True)
    assert card(folder)["error"]["mean"]["group out"] == pytest.approx(0.0198)


def test_a_surrogate_that_is_as_good_or_better_replaces(trained, folder, quick):
    with_error(folder, 0.0198)
    retrain(tables=[trained.parent / "runs.csv"], out=folder)
    with_error(folder, 0.5)
    assert "50.0%" in retrain(tables=[trained.parent / "runs.csv"], out=folder)


def test_only_sources_that_both_were_judged_on_are_compared(trained, folder, quick):
    told = card(folder)
    told["error"] = {"a100": {"group out": 0.4}, "elsewhere": {"group out": 0.0}, "mean": {"group out": 0.0}}
    (folder / "card.json").write_text(json.dumps(told), encoding="utf-8")
    assert "the surrogate now in" in retrain(tables=[trained.parent / "runs.csv"], out=folder)


def test_a_damaged_surrogate_is_replaced_by_force_alone(trained, folder, quick):
    (folder / "trees.ubj").write_bytes(b"")
    with pytest.raises(TableError, match="holds no surrogate"):
        retrain(tables=[trained.parent / "runs.csv"], out=folder)
    retrain(tables=[trained.parent / "runs.csv"], out=folder, force=True)
    assert load(folder).card["seed"] == 0


@pytest.mark.parametrize(("rows", "words"), [(0, "Nothing to train on"), (5, "at least 20 timed rows")])
def test_too_little_to_train_on_is_one_sentence(three_sources, tmp_path, rows, words):
    three_sources.head(max(rows, 1)).to_csv(tmp_path / "few.csv", index=False)
    with pytest.raises(TableError, match=words):
        retrain(tables=[tmp_path / "few.csv"] if rows else [], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rows_without_a_source_are_of_their_file(three_sources, tmp_path):
    for name in ("a100", "h100"):
        rows = three_sources[three_sources["source"] == name].drop(columns="source")
        rows.to_csv(tmp_path / f"{name}-file.csv", index=False)
    retrain(tables=[tmp_path / "a100-file.csv", tmp_path / "h100-file.csv"], out=tmp_path / "out")
    assert card(tmp_path / "out")["data"] == {"a100-file": 20, "h100-file": 20}


def test_the_store_trains_as_a_table_does(three_sources, tmp_path):
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    rows = three_sources[three_sources["source"] != "titan"]
    unnamed = rows.assign(source=rows["source"].where(rows["source"] == "a100"))
    Store(url).add(unnamed, origin="lab")
    report = retrain(storage=url, out=tmp_path / "out")
    assert "held-out groups: median error" in report
    assert card(tmp_path / "out")["data"] == {"a100": 20, "lab": 20}
    assert "--storage" in card(tmp_path / "out")["rebuild"]


def test_sources_of_one_group_each_leave_the_error_unknown(three_sources, tmp_path):
    table = three_sources[three_sources["global_batch_size"] == 256]
    pd.concat([table, table]).to_csv(tmp_path / "runs.csv", index=False)
    report = retrain(tables=[tmp_path / "runs.csv"], out=tmp_path / "out")
    assert "median error unknown (no source has two groups)" in report


def test_a_surrogate_whose_error_is_unknown_replaces_none_that_was_judged(folder, trained, monkeypatch):
    unjudged = score_table([Scores("alone", 0.2, None, None, None, None, None)])
    monkeypatch.setattr(retraining, "train", lambda table, seed: (load(trained), unjudged))
    with pytest.raises(InfeasibleError, match="not known to be as good"):
        retrain(tables=[trained.parent / "runs.csv"], out=folder)
