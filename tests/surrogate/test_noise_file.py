"""The noise of remembered runs on disk: what was found once is not looked for again, and nothing else changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jointopt.core.errors import TableError
from jointopt.surrogate import posterior
from jointopt.surrogate.files import load, save, write_card
from jointopt.surrogate.model import Surrogate
from jointopt.surrogate.own_kernel import OwnKernel
from jointopt.surrogate.own_runs import OwnRuns
from jointopt.surrogate.residual_gp import FEATURES, Kernel, Runs, default_kernel, together
from tests.each import each

SOURCE, KIN = "lab|megatron-lm|h100-sxm5-80gb|8", "lab|megatron-lm|a100-sxm4-80gb|8"
KERNEL = default_kernel(3)
OWN = OwnKernel.around(KERNEL)


def runs(count: int, seed: int = 0, source: str = SOURCE) -> Runs:
    rng = np.random.default_rng(seed)
    features = {name: rng.integers(0, 4, count).astype(float) for name in FEATURES}
    return Runs(rng.uniform(0, 0.3, (count, 3)), features, np.full(count, source), np.full(count, "a|1|1|1"))


def surrogate(kernel: Kernel | None, count: int = 60) -> Surrogate:
    """One that learned from ``count`` runs of a source, of which every tenth took twice as long, and knows a kin."""
    residual = 0.1 * np.random.default_rng(1).standard_normal(count + 5)
    residual[:count:10] += 0.7
    own = OwnRuns(SOURCE, kernel, errors={"physics": 0.1, "process": 0.1, "time": 0.1})
    return Surrogate(KERNEL, None, (), together([runs(count), runs(5, 2, KIN)]), residual, own=(own,))


@pytest.fixture(params=["own", "shared", "shared by a sample"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if "sample" in request.param:
        monkeypatch.setattr(posterior, "SAMPLES", ((20, 10**6), (40, 2)))
    save(surrogate(OWN if request.param == "own" else None), tmp_path)
    return tmp_path


def test_predictions_by_the_noise_on_disk_are_those_without_it_to_the_last_digit(folder: Path) -> None:
    read, new = load(folder), runs(30, 9)
    assert set(read.noise) == {SOURCE}
    kept, anew = (one.conditioned(SOURCE, True).predict(new) for one in (read, replace(read, noise={})))
    for one, other in zip(kept, anew, strict=True):
        np.testing.assert_array_equal(one, other)


def test_runs_are_not_weighed_anew_where_their_noise_is_on_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = load(folder)
    monkeypatch.setattr(posterior, "REWEIGHTS", None)  # which a loop over it would raise for
    read.conditioned(SOURCE, True)
    with pytest.raises(TypeError):
        replace(read, noise={}).conditioned(SOURCE, True)


def test_measured_runs_of_the_source_are_weighed_together_with_the_remembered_ones(folder: Path) -> None:
    read, new, measured = load(folder), runs(30, 9), (runs(4, 7), np.full(4, 0.4))
    kept, anew = (one.conditioned(SOURCE, True, measured).predict(new)[0] for one in (read, replace(read, noise={})))
    np.testing.assert_array_equal(kept, anew)
    assert (kept != read.conditioned(SOURCE, True).predict(new)[0]).all()
    elsewhere = (runs(4, 7, "other|nemo|h100-sxm5-80gb|8"), np.full(4, 0.4))
    assert read.conditioned(SOURCE, True, elsewhere).posterior.noise is read.noise[SOURCE]


def test_runs_far_off_are_noisier_than_others(tmp_path: Path) -> None:
    save(surrogate(OWN), tmp_path)
    noise = load(tmp_path).noise[SOURCE]
    assert noise.rows.tolist() == list(range(65))  # those of the kin too
    spread = noise.spread[0, :60]
    assert spread[::10].min() > 5.0 * np.median(spread)


def test_a_folder_of_an_earlier_version_has_no_noise_and_answers_alike(folder: Path) -> None:
    new, before = runs(30, 9), load(folder)
    _with_card(folder, lambda hashes: hashes.pop("noise.npz"))
    (folder / "noise.npz").unlink()
    after = load(folder)
    assert not after.noise
    both = (one.conditioned(SOURCE, True).predict(new)[1] for one in (before, after))
    np.testing.assert_array_equal(*both)


@pytest.mark.parametrize("harm", [lambda file: file.unlink(), lambda file: file.write_bytes(file.read_bytes()[:-9])])
def test_a_noise_file_that_is_damaged_is_refused_by_name(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    save(surrogate(OWN), tmp_path)
    harm(tmp_path / "noise.npz")
    with pytest.raises(TableError, match=r"is damaged \(noise\.npz .*\): copy the folder anew"):
        load(tmp_path)


NONSENSE: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "fewer spreads": lambda a: {"spread-0": a["spread-0"][:, 1:]},
    "a spread that is not a number": lambda a: {"spread-0": a["spread-0"] * np.nan},
    "a spread below the least": lambda a: {"spread-0": a["spread-0"] * 0.1},
    "a run twice": lambda a: {"rows-0": np.sort(np.append(a["rows-0"][1:], 3))},
    "a run beyond the last": lambda a: {"rows-0": a["rows-0"] + 1},
    "a run before the first": lambda a: {"rows-0": a["rows-0"] - 1},
    "half of a run": lambda a: {"rows-0": a["rows-0"] / 2.0},
    "noise of nothing": lambda a: {"squares-0": a["squares-0"] * 1e-320},
    "shares of more than all": lambda a: {"share-0": a["share-0"] * 2.0},
    "shares of another form": lambda a: {"share-0": a["share-0"][None]},
    "no multiples": lambda a: {"squares-0": a["squares-0"][:, :4]},
    "no evidence": lambda a: {"log_evidence-0": np.nan},
    "another source": lambda a: {name.replace("-0", "-1"): value for name, value in a.items()},
    "many scales": lambda a: {
        "share-0": np.full(1000, 1e-3), "squares-0": np.ones((1000, 5)), "spread-0": np.repeat(a["spread-0"], 1000, 0)
    },
}  # fmt: skip


@each("what", NONSENSE)
def test_noise_that_no_runs_have_is_refused_in_one_sentence(tmp_path: Path, what: str) -> None:
    save(surrogate(OWN), tmp_path)
    with np.load(tmp_path / "noise.npz") as file:
        arrays = dict(file)
    np.savez(tmp_path / "noise.npz", **(arrays | NONSENSE[what](arrays)))
    digest = hashlib.sha256((tmp_path / "noise.npz").read_bytes()).hexdigest()
    _with_card(tmp_path, lambda hashes: hashes.update({"noise.npz": digest}))
    with pytest.raises(TableError, match=r"is damaged \(noise\.npz .*\): copy the folder anew") as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def _with_card(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    """As whoever means harm, or an earlier version, would write the hashes."""
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    change(card["model"]["sha256"])
    write_card(folder, card)
