"""Surrogates on disk: what comes back is what was saved, and nothing else is accepted."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jointopt.core.errors import TableError
from jointopt.surrogate.files import load, save, write_card
from jointopt.surrogate.kernel import FEATURES, Runs, default_kernel, joined_runs
from jointopt.surrogate.own_cluster import OwnRuns
from jointopt.surrogate.own_mix import Mix, inputs
from jointopt.surrogate.surrogate import SPEEDS, Surrogate, Widths
from jointopt.surrogate.trees import fit_trees

NAMES = FEATURES
RAN: list[str] = []


A, B = "a|megatron-lm|a100-sxm4-80gb|8", "b|megatron-lm|a100-sxm4-80gb|8"
MANY, TREES = "many|jax|v100-sxm2-16gb|8", "own-0-time.json"


def runs(n: int, seed: int = 0, source: str = A) -> Runs:
    rng = np.random.default_rng(seed)
    # what single precision holds exactly, as the files do
    values = rng.integers(-8, 8, (n, len(NAMES))) / 8.0
    features = dict(zip(NAMES, values.T, strict=True)) | {"attention": (values[:, 0] > 0.0) * 1.0}
    return Runs(rng.integers(0, 8, (n, 3)) / 8.0, features, np.full(n, source), np.full(n, "g"))


@pytest.fixture(scope="module")
def surrogate() -> Surrogate:
    support, residual = runs(60), np.round(np.linspace(-16, 16, 60)) / 128.0
    own = OwnRuns(MANY, time=Mix(fit_trees(inputs(support, NAMES), residual, n_estimators=9), 0.5, False, NAMES))
    return Surrogate(
        kernel=default_kernel(3), support=support, residual=residual, widths=Widths(1.1, 1.2, 1.3), card={"seed": 7},
        own=(own,), training_range=dict.fromkeys(NAMES, (-1.0, 1.0)),
    )  # fmt: skip


@pytest.fixture
def folder(surrogate: Surrogate, tmp_path: Path) -> Path:
    save(surrogate, tmp_path / "mine")
    return tmp_path / "mine"


@pytest.mark.parametrize("source", [A, B, MANY])
def test_a_loaded_surrogate_predicts_as_the_saved_one(surrogate: Surrogate, folder: Path, source: str) -> None:
    new = runs(9, seed=3, source=source)
    given = (runs(4, seed=5, source=source), np.full(4, 0.2))
    for fitted in (True, False):
        for before, after in zip(
            surrogate.predict(new, fitted, given), load(folder).predict(new, fitted, given), strict=True
        ):
            np.testing.assert_array_equal(before, after)


def test_a_loaded_surrogate_is_saved_to_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    save(load(folder), tmp_path / "again")
    for name in ("card.json", TREES, "support.npz"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name


def test_a_card_of_an_earlier_version_with_a_figure_that_nothing_reads_is_loaded(folder: Path) -> None:
    card = json.loads((folder / "card.json").read_text())
    assert "memory_log_sd" not in card["model"]
    card["model"]["memory_log_sd"] = 0.18
    write_card(folder, card)
    assert load(folder).widths == Widths(1.1, 1.2, 1.3)


def test_a_file_of_noise_that_an_earlier_version_wrote_is_checked_and_not_read(folder: Path) -> None:
    np.savez(folder / "noise.npz", rows=np.arange(3))
    save(load(folder), folder)  # whose card has the hashes of all that lies there
    assert len(load(folder).support)
    (folder / "noise.npz").write_bytes(b"changed")
    with pytest.raises(TableError, match=r"noise\.npz has changed"):
        load(folder)


def test_a_source_without_runs_keeps_the_physics_and_wider_intervals(surrogate: Surrogate) -> None:
    mean, half, _ = surrogate.predict(runs(5, source=B), fitted=True)
    np.testing.assert_array_equal(mean, 0.0)
    assert (half > surrogate.predict(runs(5), fitted=True)[1]).all()
    assert (surrogate.predict(runs(5, source=B), fitted=False)[1] > half).all()


def test_trees_of_all_sources_of_an_earlier_version_leave_their_range_where_they_counted_not_at_all(
    folder: Path, surrogate: Surrogate
) -> None:
    names = [*NAMES, "clock", "framework=jax"]
    trees = {"parameters": {"strength": 0.0}, "low": [-1.0] * len(names), "high": [1.0] * len(names)}
    _card(format=6, feature_names=names, booster=trees, training_range={})(folder)
    assert load(folder).training_range == surrogate.training_range
    trees["parameters"] = {"strength": 0.25}
    _card(booster=trees)(folder)
    with pytest.raises(TableError, match="by trees of all sources, of an earlier version; retrain it for format 7"):
        load(folder)


def test_only_runs_of_the_same_source_move_a_prediction(surrogate: Surrogate) -> None:
    new = runs(5, seed=2, source=B)
    without = surrogate.predict(new, True)
    other = surrogate.predict(new, True, (runs(4, source="c"), np.full(4, 0.5)))
    own = surrogate.predict(new, True, (runs(4, source=B), np.full(4, 0.5)))
    np.testing.assert_array_equal(without[0], other[0])
    assert (own[0] > without[0]).all()


def test_features_never_seen_and_unknown_software_are_out_of_domain(surrogate: Surrogate) -> None:
    far = runs(5)
    far = replace(far, features={name: values + 100 for name, values in far.features.items()})
    middle = replace(far, features={**dict.fromkeys(NAMES, np.zeros(5)), "log2_peak": np.full(5, 0.125)})
    assert not surrogate.predict(far, True)[2].any()
    assert surrogate.predict(middle, True)[2].all()
    assert not surrogate.predict(replace(middle, source=np.full(5, B)), fitted=False)[2].any()


def test_a_plan_with_a_tenth_of_its_features_beyond_those_of_training_is_out_of_domain(surrogate: Surrogate) -> None:
    names = [name for name in NAMES if name not in SPEEDS][:20]
    spanned = replace(surrogate, training_range=dict.fromkeys(names, (-1.0, 1.0)))
    for beyond, inside in ((1, True), (2, False)):
        far = dict.fromkeys(names[:beyond], np.array([1.001]))
        one = replace(runs(1), features={**dict.fromkeys(NAMES, np.zeros(1)), "log2_peak": np.full(1, 0.125), **far})
        assert spanned.predict(one, True)[2].tolist() == [inside]


def test_a_gpu_of_a_speed_never_seen_is_out_of_domain_until_a_run_of_it_is_measured(surrogate: Surrogate) -> None:
    new = runs(4)
    faster = replace(new, features={**{name: np.zeros(4) for name in NAMES}, "log2_peak": np.full(4, 1.5)})
    plain = replace(surrogate, training_range={})
    assert not plain.predict(faster, True)[2].any()
    assert plain.predict(faster, True, (faster, np.zeros(4)))[2].all()


def test_a_gpu_with_other_memory_is_another_gpu_although_it_multiplies_as_fast(surrogate: Surrogate) -> None:
    plain = replace(surrogate, training_range={})
    same = replace(runs(4), features={name: np.zeros(4) for name in NAMES} | {"log2_memory": np.zeros(4)})
    wider = replace(same, features={**same.features, "log2_memory": np.full(4, 0.3)})
    assert plain.predict(same, True, (same, np.zeros(4)))[2].all()
    assert not plain.predict(wider, True, (same, np.zeros(4)))[2].any()


def test_copies_of_measured_runs_change_nothing(surrogate: Surrogate) -> None:
    new, own = runs(5, seed=2, source=B), runs(4, seed=4, source=B)
    residual = np.array([0.1, 0.2, 0.15, 0.9])
    fifty = np.tile(np.arange(4), 50)
    once = surrogate.predict(new, True, (own, residual))
    often = surrogate.predict(new, True, (own.take(fifty), residual[fifty]))
    for before, after in zip(once, often, strict=True):
        np.testing.assert_allclose(before, after)


def test_a_log_of_many_iterations_counts_as_the_run_that_it_is(surrogate: Surrogate) -> None:
    new, own = runs(5, seed=2, source=B), runs(3, seed=4, source=B)
    noise = 0.01 * np.random.default_rng(0).standard_normal((3, 41))
    residual = np.array([0.1, 0.2, 0.15])[:, None] + noise - np.median(noise, axis=1, keepdims=True)
    logged = surrogate.predict(new, True, (own.take(np.repeat(np.arange(3), 41)), residual.ravel()))
    np.testing.assert_allclose(logged[0], surrogate.predict(new, True, (own, np.array([0.1, 0.2, 0.15])))[0])


def test_runs_of_dense_models_are_not_known_runs_of_experts(surrogate: Surrogate) -> None:
    dense, experts = runs(3, source=B), runs(3, source=B)
    dense.features.update(moe=np.zeros(3), dtype=np.full(3, 2.0))
    experts.features.update(moe=np.ones(3), dtype=np.full(3, 2.0))
    known = surrogate.conditioned(dense.source[0], True, (dense, np.zeros(3)))
    assert known.knows_kind(dense)
    assert not known.knows_kind(experts)


def test_joined_runs_have_all_features_and_zeros_where_one_side_lacks_them() -> None:
    first, second = runs(2), runs(3, source=B)
    second.features["extra"] = np.ones(3)
    both = joined_runs([first, second])
    assert len(both) == 5
    np.testing.assert_array_equal(both.features["extra"], [0, 0, 1, 1, 1])
    assert both.source.tolist() == [A, A, B, B, B]


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return RAN.append, ("ran",)


def _object_array(folder: Path) -> None:
    with np.load(folder / "support.npz") as arrays:
        kept = dict(arrays)
    kept["source"] = np.array([Payload()] * len(kept["source"]), dtype=object)
    np.savez(folder / "support.npz", **kept)


def _setting(**parameters: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        card = json.loads((folder / "card.json").read_text())
        card["model"]["own"][0]["time"]["booster"]["parameters"] |= parameters
        write_card(folder, card)

    return damage


def _array(name: str, change: Callable[[Any], Any]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        with np.load(folder / "support.npz") as arrays:
            np.savez(folder / "support.npz", **{**arrays, name: change(arrays[name])})
        _hash_again(folder)

    return damage


def _hash_again(folder: Path) -> None:
    """As whoever means harm would write it."""
    digest = hashlib.sha256((folder / "support.npz").read_bytes()).hexdigest()
    card = json.loads((folder / "card.json").read_text())
    card["model"]["sha256"]["support.npz"] = digest
    write_card(folder, card)


def _bytes(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def _pipe(name: str) -> Callable[[Path], object]:
    def replace_by_pipe(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return replace_by_pipe


def _cut(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-200])


def _card(**model: Any) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        card = json.loads((folder / "card.json").read_text())
        card["model"] |= model
        write_card(folder, card)

    return edit


def _says(**card: Any) -> Callable[[Path], object]:
    return lambda folder: write_card(folder, json.loads((folder / "card.json").read_text()) | card)


def _attention(folder: Path) -> None:
    """Of the runs it is the number of no kernel."""
    column = json.loads((folder / "card.json").read_text())["model"]["support_features"].index("attention")
    _array("features", lambda values: values + 5.0 * (np.arange(values.shape[1]) == column))(folder)


def _version_of_zip(folder: Path) -> None:
    content = bytearray((folder / "support.npz").read_bytes())
    content[content.index(b"PK\x01\x02") + 6] = 193  # needed to extract: 19.3
    (folder / "support.npz").write_bytes(content)


def _header_without_end(folder: Path) -> None:
    text = b"{'descr': (\n"
    with zipfile.ZipFile(folder / "support.npz", "w") as archive:
        archive.writestr("residual.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    _hash_again(folder)


def _first_is(value: float) -> Callable[[Any], Any]:
    def change(values: Any) -> Any:
        changed = np.array(values, float)
        changed.flat[0] = value
        return changed

    return change


DAMAGE = {
    "one residual that is no number": _array("residual", _first_is(np.nan)),
    "one sensitivity without end": _array("sensitivity", _first_is(np.inf)),
    "a number as the group of a run": _array("group", lambda values: np.zeros(values.shape)),
    "whole numbers as features": _array("features", lambda values: values.astype(np.int64)),
    "a feature beyond any run's": _array("features", _first_is(1e5)),
    "an attention kernel that is unknown": _attention,
    "recipe classes in a list": _says(recipe_classes=["vendor"]),
    "a number of files": _says(files_sha256=1.0),
    "an array whose header does not end": _header_without_end,
    "pickled arrays": _object_array,
    "a pickle as arrays": _bytes("support.npz", pickle.dumps(Payload())),
    "a pickle as trees": _bytes(TREES, pickle.dumps(Payload())),
    "a pickle as card": _bytes("card.json", pickle.dumps(Payload())),
    "empty arrays": _bytes("support.npz", b""),
    "arrays packed in a way to come": _version_of_zip,
    "empty trees": _bytes(TREES, b""),
    "cut arrays": _cut("support.npz"),
    "cut trees": _cut(TREES),
    "no arrays": lambda folder: (folder / "support.npz").unlink(),
    "no trees": lambda folder: (folder / TREES).unlink(),
    "a list": _bytes("card.json", b"[]"),
    "a number": _bytes("card.json", b"3"),
    "deep brackets": _bytes("card.json", b"[" * 100_000),
    "a format that is no number": _card(format="new"),
    "a feature that is a list": _card(support_features=[["log2_tp"]]),
    "a training range of one end": _card(training_range={"log2_tp": [0.0]}),
    "a training range that is no number": _card(training_range={"log2_tp": [0.0, float("nan")]}),
    "training ranges in a list": _card(training_range=[0.0, 1.0]),
    "text for a width": _card(widths={"measured": "wide"}),
    "fewer support features": _card(support_features=["log2_tp"]),
    "an unknown setting": _setting(colour=1),
    "residuals missing": _array("residual", lambda values: values[:3]),
    "residuals that are no numbers": _array("residual", lambda values: values * np.nan),
    "runs of a source without its GPU": _array("source", lambda values: np.full(values.shape, "mine")),
    "a depth that is text": _setting(max_depth="3"),
    "a pipe as card": _pipe("card.json"),
    "a pipe as arrays": _pipe("support.npz"),
    "a pipe as trees": _pipe(TREES),
    "a negative width": _card(widths={"measured": -1.0}),
    "a width that is no number": _card(widths={"fitted": float("nan")}),
    "a bound that is negative": _card(widths={"measured": 1.0, "new_cluster": [0.2, -0.3]}),
    "a bound of one end": _card(widths={"measured": 1.0, "new_cluster": [0.2]}),
}


def test_a_card_from_before_few_runs_were_distinguished_from_many_has_one_width_for_both(folder: Path) -> None:
    _card(widths={"measured": 1.4, "fitted": 0.8, "unknown": 1.0, "difference": 1.3})(folder)
    assert load(folder).widths == Widths(measured=1.4, fitted=0.8, difference=1.3, few=1.4)


def test_bounds_of_new_sources_are_kept_with_a_card(surrogate: Surrogate, tmp_path: Path) -> None:
    widths = Widths(1.1, new_cluster=(0.25, 0.3), new_software=(0.3, 0.4))
    save(replace(surrogate, widths=widths), tmp_path / "bounds")
    assert load(tmp_path / "bounds").widths == widths


@pytest.mark.parametrize("name", ["support.npz", TREES])
def test_a_file_without_a_hash_in_the_card_is_refused_by_name(folder: Path, name: str) -> None:
    card = json.loads((folder / "card.json").read_text())
    del card["model"]["sha256"][name]
    write_card(folder, card)
    with pytest.raises(TableError, match=rf"is damaged \(its card has no hash of {name}\)"):
        load(folder)


def test_a_folder_without_a_surrogate_and_one_of_another_version_have_errors_of_their_own(folder: Path) -> None:
    _card(format=4)(folder)
    with pytest.raises(TableError, match=r"of format 4, of an earlier version; retrain it for format 7"):
        load(folder)
    _card(format=99)(folder)
    with pytest.raises(TableError, match=r"of format 99, and this version reads 7: update jointopt\."):
        load(folder)
    (folder / "card.json").unlink()
    with pytest.raises(TableError, match=r"holds no surrogate \(no card\.json\); expected a folder that"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_cut("support.npz"), "support.npz has changed since it was written: its sha256 is not that of the card"),
        (lambda folder: (folder / TREES).unlink(), f"{TREES} is missing"),
        (_bytes("card.json", b"{"), "card.json is no JSON"), (_bytes("card.json", b"{}"), "'model' is missing"),
    ],
)  # fmt: skip
def test_the_file_that_is_damaged_is_named(folder: Path, change: Callable[[Path], object], words: str) -> None:
    change(folder)
    with pytest.raises(TableError, match=re.escape(f"is damaged ({words})")):
        load(folder)


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_no_surrogate_is_refused_in_one_sentence_and_runs_nothing(folder: Path, damage: str) -> None:
    DAMAGE[damage](folder)
    with pytest.raises(TableError, match="is damaged") as error:
        load(folder)
    assert "\n" not in str(error.value)
    assert "retrain" in str(error.value)
    assert RAN == []


def test_a_layout_at_many_clocks_is_answered_as_each_of_its_plans_alone(surrogate: Surrogate) -> None:
    some = surrogate.support.take(np.arange(4, dtype=np.int64))
    rows = np.array([0, 1, 1, 3, 0, 2, 3, 0], dtype=np.int64)
    features = dict(some.take(rows).features) | {"clock": np.linspace(0.6, 1.0, len(rows))}
    plans = replace(some.take(rows), features=features)
    first, of = plans.distinct("clock")
    assert len(first) == 4
    np.testing.assert_array_equal(rows[first][of], rows)
    alone = [surrogate.predict(plans.take(np.array([i])), True) for i in range(8)]
    for values, each in zip(surrogate.predict(plans, True), zip(*alone, strict=True), strict=True):
        np.testing.assert_allclose(values, np.concatenate(each), rtol=1e-9)
    assert len(plans.distinct("log2_tp")[0]) == 8  # clocks differ


@pytest.mark.parametrize(("residual", "low"), [(0.0, 0.2), (0.3, 0.2), (-0.2, 0.2), (0.33, 0.2 * 1.1**6), (-0.4, 12.8)])
def test_after_a_run_an_interval_is_at_most_a_new_sources_wider_by_how_far_the_run_is_beyond_it(
    surrogate: Surrogate, residual: float, low: float
) -> None:
    bounded = replace(surrogate, widths=replace(surrogate.widths, new_cluster=(0.2, 0.3)))
    new, one = "c|nemo|h100-sxm5-80gb|8", runs(1, source="c|nemo|h100-sxm5-80gb|8")
    found = bounded.conditioned(new, True, (one, np.array([residual]))).bounds_of_new(runs(2, source=new))
    assert found is not None
    assert found[0] == pytest.approx([low, low])
    assert found[1] == pytest.approx([1.5 * low, 1.5 * low])
    assert np.ravel(bounded.conditioned(new, True).bounds_of_new(one)).tolist() == [0.2, 0.3]
