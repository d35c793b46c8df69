"""Surrogates that replace others: only by what is as good, and always the same from the same."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jointopt.core.errors import InfeasibleError, TableError, UsageError
from jointopt.runs.store import Store
from jointopt.surrogate.files import load, write_card
from jointopt.surrogate.held_out import Scores, score_table
from jointopt.workflows import retrain as retraining
from jointopt.workflows.evaluate import evaluate
from jointopt.workflows.predict import predict
from jointopt.workflows.retrain import retrain

pytestmark = pytest.mark.long  # each trains surrogates


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained surrogate, to be replaced."""
    return Path(shutil.copytree(trained, tmp_path / "surrogate"))


Rows = dict[str, list[object]]
TRUE = np.linspace(-0.2, 0.3, 12).tolist()  # log(measured / physics) of runs that are held out


def held_out(error: float, source: str = "a100", true: list[float] = TRUE) -> Rows:
    """Held-out runs of one source, each predicted ``error`` too long."""
    count = len(true)
    return {"source": [source] * count, "group": ["tiny|256"] * count, "truth": [*true], "error": [error] * count}


def both(first: Rows, second: Rows) -> Rows:
    return {name: [*first[name], *second[name]] for name in first}


@pytest.fixture
def retrained(trained: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Replaces the surrogate in ``folder`` by one whose training is over at once, with these held-out rows."""
    surrogate, scores = load(trained), score_table([Scores("a100", 0.2)])

    def replaced(rows: Rows, force: bool = False) -> str:
        scores.attrs["rows"] = rows
        monkeypatch.setattr(retraining, "train", lambda *_: (surrogate, scores))
        return retrain(tables=[trained.parent / "runs.csv"], out=folder, force=force).text()

    return replaced


def card(folder: Path) -> dict:
    return json.loads((folder / "card.json").read_text(encoding="utf-8"))


def test_the_card_states_what_it_was_made_of_and_how_to_make_it_again(trained):
    content = card(trained)
    assert content["data"] == {"a100": 20, "h100": 20, "titan": 20}
    assert content["licences"] == ["a100: made up"]
    assert content["seed"] == 0
    assert content["rebuild"] == (
        "jointopt retrain --table runs.csv --licence 'a100: made up' --seed 0 --out surrogate"
    )
    assert {"xgboost-cpu", "numpy", "jointopt"} <= content["versions"].keys()
    assert len(content["files_sha256"]["runs.csv"]) == 64
    assert content["error"]["mean"]["group out"] < content["error"]["mean"]["physics"]


def test_the_report_and_the_card_count_the_rows_that_were_learned_from(three_sources, tmp_path):
    table = three_sources.assign(status="OK")
    table.loc[table.index[:5], "iteration_time_s"] *= 10
    table.loc[table.index[-1], "iteration_time_s"] = np.inf
    table.to_csv(tmp_path / "runs.csv", index=False)
    report = retrain(tables=[tmp_path / "runs.csv"], out=tmp_path / "out").text()
    assert "runs.csv: 1 row with an impossible iteration_time_s (row 60: expected a" in " ".join(report.split())
    assert "\na100: learned from 15 of 20 timed rows; left out: 5 more than 2 times off the physics" in report
    assert "h100: learned from 20 of 20 timed rows\n" in report
    content = card(tmp_path / "out")
    assert content["data"] == {"a100": 20, "h100": 20, "titan": 19}
    assert content["learned_from"] == {"a100": 15, "h100": 20, "titan": 19}
    assert content["rebuild_in"] == "the folder of the files that files_sha256 names"


def test_the_same_files_and_seed_make_the_same_bytes(trained, tmp_path):
    report = retrain(
        tables=[trained.parent / "runs.csv"], out=tmp_path / "surrogate", licences=["a100: made up"]
    ).text()
    again = tmp_path / "surrogate"
    assert f"written to {again}" in report
    with np.load(again / "support.npz") as one, np.load(trained / "support.npz") as two:
        assert one.files == two.files
        assert all((one[name] == two[name]).all() for name in one.files)
    first, second = card(again), card(trained)
    first.pop("date"), second.pop("date")
    assert first == second


def test_the_card_has_the_error_of_every_group_that_was_held_out(trained):
    content = card(trained)
    assert content["error_per_group"].keys() == {"a100", "h100", "titan"}
    for source, groups in content["error_per_group"].items():
        assert len(groups) > 1
        assert min(groups.values()) <= content["error"][source]["group out"] <= max(groups.values())


def test_a_password_of_the_store_is_not_in_the_card(three_sources, tmp_path, retrained, monkeypatch):
    monkeypatch.setattr(retraining, "_training_rows", lambda tables, storage: (three_sources, []))
    retrained({}, force=True)
    retrain(storage="postgresql+psycopg://me:secret@host/runs", out=tmp_path / "out")
    assert "secret" not in (tmp_path / "out" / "card.json").read_text()
    assert "postgresql+psycopg://me:***@host/runs" in card(tmp_path / "out")["rebuild"]


def test_a_file_in_the_place_of_the_folder_is_refused_before_anything_is_trained(trained):
    with pytest.raises(UsageError, match="is a file; expected a folder"):
        retrain(tables=[trained.parent / "runs.csv"], out=trained.parent / "runs.csv")


def test_a_better_surrogate_is_replaced_by_force_alone(folder, retrained):
    retrained(held_out(0.03), force=True)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    words = r"On the 12 held-out rows .* errs by 5\.0% and .* by 3\.0% \(a100 3\.0% to 5\.0%\).* --force"
    with pytest.raises(InfeasibleError, match=words):
        retrained(held_out(0.05))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert "mean of sources: before 3.0%, now 5.0%" in retrained(held_out(0.05), force=True)
    retrained(held_out(0.05))


def test_a_surrogate_that_is_as_good_or_better_replaces(retrained):
    retrained(held_out(0.03), force=True)
    assert "before 3.0%, now 3.0%" in retrained(held_out(0.03004))
    assert "before 3.0%, now 2.0%" in retrained(held_out(0.02))


def test_only_rows_that_both_had_held_out_are_compared(retrained):
    retrained(both(held_out(0.03), held_out(0.001, "elsewhere")), force=True)
    report = retrained(both(held_out(0.02), held_out(0.5, true=[0.4] * 3)))
    assert report.splitlines()[-3].split() == ["a100", "12", "3.0%", "2.0%"]


@pytest.mark.parametrize(
    "rows", [{}, held_out(0.001, "elsewhere"), held_out(0.001, true=[t + 0.01 for t in TRUE]),
             held_out(0.001, true=TRUE[:9])],
    ids=["none", "another source", "another physics", "too few"],
)  # fmt: skip
def test_surrogates_that_share_no_held_out_rows_are_replaced_by_force_alone(retrained, rows):
    retrained(held_out(0.03), force=True)
    with pytest.raises(InfeasibleError, match=r"not comparable: (fewer than 10|no row) .* --force replaces"):
        retrained(rows)
    assert "not comparable" in retrained(rows, force=True)


def few_runs(place: Path, model: str) -> Path:
    """A table of one source and one group, of which nothing can be held out."""
    runs = pd.DataFrame({"model": model, "gpu": "a100-sxm4-80gb", "num_gpus": 8, "gpus_per_node": 8, "tp": 4, "dp": 2,
                         "pp": 1, "micro_batch_size": 1, "seq_length": 2048, "dtype": "bf16", "global_batch_size": 64,
                         "iteration_time_s": np.linspace(6.0, 8.0, 24)})  # fmt: skip
    runs.to_csv(place / f"{model}.csv", index=False)
    return place / f"{model}.csv"


def test_a_surrogate_that_cannot_be_judged_is_replaced_by_one_of_the_same_tables_alone(tmp_path: Path):
    table, out = few_runs(tmp_path, "llama-2-7b"), tmp_path / "own"
    for _ in range(2):
        assert "not comparable" not in retrain(tables=table, out=out).text()
    other = few_runs(tmp_path, "opt-6.7b")
    with pytest.raises(InfeasibleError, match=r"no row could be held out .* are needed; it was not"):
        retrain(tables=other, out=out)


def test_rows_that_are_in_two_tables_count_once(tmp_path: Path):
    table = few_runs(tmp_path, "llama-2-7b")
    text = retrain(tables=[table, table], out=tmp_path / "own").text()
    assert "learned from 24 of 24 timed rows" in text
    assert "24 rows are in a table before, too: counted once." in text


@pytest.mark.parametrize("harm", [lambda file: file.unlink(), lambda file: file.write_bytes(b"PK")])
def test_a_surrogate_whose_card_knows_no_held_out_rows_is_loaded_and_cannot_be_compared(folder, retrained, harm):
    content = card(folder)
    del content["model"]["sha256"]["held_out.npz"]  # as an earlier version wrote it
    write_card(folder, content)
    harm(folder / "held_out.npz")
    assert load(folder).card["seed"] == 0
    with pytest.raises(InfeasibleError, match="not comparable"):
        retrained(held_out(0.01))


def test_held_out_rows_that_have_changed_are_refused_by_name(folder, retrained):
    content = bytearray((folder / "held_out.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "held_out.npz").write_bytes(content)
    with pytest.raises(TableError, match=r"held_out\.npz has changed since it was written"):
        retrained(held_out(0.01))
    retrained(held_out(0.01), force=True)


def test_training_again_on_the_same_and_more_rows_is_compared_row_by_row(folder, trained, synthetic_runs):
    more = synthetic_runs("fourth", 0.8, seed=4, gpu="h200-sxm-141gb")
    more.to_csv(folder / "more.csv", index=False)
    report = retrain(tables=[trained.parent / "runs.csv", folder / "more.csv"], out=folder, force=True).text()
    lines = [line.split() for line in report.splitlines()]
    assert [line[:2] for line in lines if line and line[0] in ("a100", "h100", "titan")][-3:] == [
        ["a100", "20"], ["h100", "20"], ["titan", "20"],
    ]  # fmt: skip
    assert load(folder).card["data"]["fourth"] == 20


def test_sources_that_the_new_one_forgets_are_named(folder, trained, retrained):
    content = card(folder)
    content["data"]["vanished"] = 7
    write_card(folder, content)
    assert "only the one now there was trained on vanished" in retrained({}, force=True)


def test_a_damaged_surrogate_is_replaced_by_force_alone(folder, retrained):
    (folder / "support.npz").write_bytes(b"")
    with pytest.raises(TableError, match="is damaged"):
        retrained(held_out(0.01))
    retrained(held_out(0.01), force=True)
    assert load(folder).card["seed"] == 0


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_trained(trained):
    with pytest.raises(UsageError, match="cannot be written there"):
        retrain(tables=[trained.parent / "runs.csv"], out=Path("/proc/surrogate"))


@pytest.mark.parametrize(("rows", "words"), [(0, "Nothing to train on"), (5, "at least 20 timed rows")])
def test_too_little_to_train_on_is_one_sentence(three_sources, tmp_path, rows, words):
    three_sources.head(max(rows, 1)).to_csv(tmp_path / "few.csv", index=False)
    with pytest.raises(TableError, match=words):
        retrain(tables=[tmp_path / "few.csv"] if rows else [], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_refusal_says_why_rows_that_have_times_do_not_count(three_sources, tmp_path):
    """Batches in tokens would need hundreds of times the full rate of the GPUs."""
    tokens = three_sources["global_batch_size"] * three_sources["seq_length"]
    three_sources.assign(global_batch_size=tokens).to_csv(tmp_path / "tokens.csv", index=False)
    with pytest.raises(TableError, match=r"training needs timed runs\. .* rows with an impossible iteration_time_s"):
        retrain(tables=[tmp_path / "tokens.csv"], out=tmp_path / "out")


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
    report = retrain(storage=url, out=tmp_path / "out").text()
    assert "held-out groups: median error" in report
    assert card(tmp_path / "out")["data"] == {"a100": 20, "lab": 20}
    assert "--storage" in card(tmp_path / "out")["rebuild"]


def test_sources_of_one_group_each_leave_the_error_unknown(three_sources, tmp_path):
    table = three_sources[three_sources["global_batch_size"] == 256]
    pd.concat([table, table]).to_csv(tmp_path / "runs.csv", index=False)
    report = retrain(tables=[tmp_path / "runs.csv"], out=tmp_path / "out").text()
    assert "median error unknown (too few runs or groups to judge by)" in report


def test_a_few_runs_of_one_source_are_judged_on_groups_left_out(three_sources, tmp_path):
    runs = three_sources[three_sources["source"] == "a100"]  # 1.3 times the physics throughout
    found = retrain(tables=[save(runs, tmp_path)], out=tmp_path / "out").sources.iloc[0]
    assert found["group out"] < 0.1 < 0.2 < found["physics"]


def test_a_table_that_does_not_name_its_source_is_predicted_by_a_surrogate_of_few_runs(three_sources, tmp_path):
    runs = three_sources[three_sources["source"] == "a100"].reset_index(drop=True)  # 1.3 times the physics throughout
    retrain(tables=[save(runs, tmp_path)], out=tmp_path / "out")
    named, unnamed = (predict(table, str(tmp_path / "out")) for table in (runs, runs.drop(columns="source")))
    pd.testing.assert_series_equal(named["predicted_iteration_time_s"], unnamed["predicted_iteration_time_s"])
    assert (unnamed["predicted_iteration_time_s"] / runs["iteration_time_s"]).median() == pytest.approx(1.0, abs=0.03)


def test_two_groups_that_do_not_help_with_each_other_are_named(three_sources, tmp_path):
    runs = three_sources[three_sources["source"] == "a100"]
    one = runs["global_batch_size"] == runs["global_batch_size"].iloc[0]  # half of the groups are off by another factor
    time_s = runs["iteration_time_s"] * np.where(one, 1.4, 0.6)
    report = retrain(tables=[save(runs.assign(iteration_time_s=time_s), tmp_path)], out=tmp_path / "out").text()
    assert "On groups left out these runs do not help: compare plans of others with --surrogate none." in report


def test_a_few_runs_that_do_not_help_with_other_groups_leave_those_to_the_physics(synthetic_runs, tmp_path):
    runs = synthetic_runs("lab", 1.0, rows=4, groups=(32, 64, 128, 256, 512, 1024), seed=8)
    odd = np.log2(runs["global_batch_size"]) % 2  # a group's neighbours are off the other way
    time_s = runs["iteration_time_s"] * np.where(odd, 1.25, 0.8)
    found = retrain(tables=[save(runs.assign(iteration_time_s=time_s), tmp_path)], out=tmp_path / "out")
    errors, (kept,) = found.sources.iloc[0], load(tmp_path / "out").new_groups
    assert kept.weight < 1.0
    assert kept.errors["time"] <= kept.errors["physics"] < kept.errors["process"]
    assert errors["group out"] <= errors["physics"]
    assert [kept.to_text()] == card(tmp_path / "out")["groups_without_runs"]
    assert f"lab: process {kept.weight:g} for groups without runs" in found.text()


def save(runs: pd.DataFrame, folder: Path) -> Path:
    runs.to_csv(folder / "runs.csv", index=False)
    return folder / "runs.csv"


def test_rows_that_a_surrogate_learned_from_are_known_again_in_another_file(trained, three_sources):
    shuffled = three_sources.sample(frac=0.5, random_state=0).drop(columns="group", errors="ignore")
    slower = shuffled.assign(iteration_time_s=1.01 * shuffled["iteration_time_s"])
    assert evaluate(shuffled, str(trained)).learned_rows == len(shuffled)
    assert evaluate(pd.concat([shuffled, slower]), str(trained)).learned_rows == len(shuffled)
    assert evaluate(slower, str(trained)).learned_rows == 0


def test_rows_that_are_measured_runs_too_are_counted_as_learned_from(trained, three_sources):
    slower = three_sources.assign(iteration_time_s=1.01 * three_sources["iteration_time_s"])
    for surrogate in ("none", str(trained)):
        assert evaluate(slower, surrogate, measured=slower.head(5)).learned_rows == 5
        assert evaluate(three_sources.tail(9), surrogate, measured=slower.head(5)).learned_rows == 9 * (
            surrogate != "none"
        )


def test_what_was_learned_from_is_stated_in_a_sentence_and_in_json(trained, three_sources):
    few = three_sources.head(7)
    found = evaluate(few, str(trained))
    words = "7 of 7 rows are among those that predictions learned from: these are training errors, not"
    assert words in " ".join(found.text().split())
    assert found.to_dict()["learned_rows"] == 7
    assert "learned from" not in evaluate(few, "none").text()
    assert evaluate(few, "none").to_dict()["learned_rows"] is None


def test_a_row_that_was_left_out_of_the_training_is_none_that_was_learned_from(three_sources, tmp_path):
    table = three_sources.copy()
    table.loc[table.index[:2], "iteration_time_s"] *= 40.0  # beyond what training takes
    table.to_csv(tmp_path / "runs.csv", index=False)
    retrain(tables=[tmp_path / "runs.csv"], out=tmp_path / "made")
    assert evaluate(table.head(5), str(tmp_path / "made")).learned_rows == 3


def test_a_surrogate_without_a_list_of_its_rows_does_not_know_them(folder, three_sources):
    (folder / "learned_rows.npz").unlink()
    content = card(folder)
    del content["model"]["sha256"]["learned_rows.npz"]
    write_card(folder, content)
    assert evaluate(three_sources, str(folder)).learned_rows is None
    np.savez(folder / "learned_rows.npz", row=np.zeros(3))
    content["model"]["sha256"]["learned_rows.npz"] = hashlib.sha256(
        (folder / "learned_rows.npz").read_bytes()
    ).hexdigest()
    write_card(folder, content)
    with pytest.raises(TableError, match=r"learned_rows\.npz holds no row of fingerprints"):
        load(folder)


def test_rows_are_named_with_the_table_that_they_stand_in(three_sources, tmp_path, caplog):
    good, bad, failed = (tmp_path / f"{name}.csv" for name in ("good", "bad", "failed"))
    three_sources.to_csv(good, index=False)
    three_sources.head(3).assign(status="failed").to_csv(failed, index=False)
    three_sources.head(4).assign(tp=[1, 1, 1, "x"]).to_csv(bad, index=False)
    with pytest.raises(TableError, match=f"Row 4 of {bad}: tp must be"):
        retrain(tables=[good, failed, bad], out=tmp_path / "out")
    assert f"{failed}: none of 3 runs ended well (3 failed): they teach nothing." in caplog.text


def test_rows_without_a_time_and_a_renamed_column_are_named_before_there_is_too_little(tmp_path, caplog):
    run = {"gpu": "h100-sxm5-80gb", "status": "ok", "num_gpus": 8, "model": "llama-2-7b"}
    pd.DataFrame([run | {"iteration_time_s": 9.0}, run]).to_csv(tmp_path / "blank.csv", index=False)
    pd.DataFrame([run | {"step_time_ms": 9.0}]).to_csv(tmp_path / "ms.csv", index=False)
    with pytest.raises(TableError):
        retrain(tables=tmp_path / "blank.csv", out=tmp_path / "out")
    assert "blank.csv: 1 row says that its run ended well" in caplog.text
    with pytest.raises(TableError, match="rename the column step_time_ms to iteration_time_s, and divide it by 1,000"):
        retrain(tables=tmp_path / "ms.csv", out=tmp_path / "out")
