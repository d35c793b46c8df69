"""Files of a surrogate with bytes changed: refused in one sentence, each of a thousand; nothing crashes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jointopt.core.atomic_write import READY
from jointopt.core.errors import TableError
from jointopt.surrogate.features import PEAK, RISE
from jointopt.surrogate.files import CARD, SUPPORT, load, save, write_card
from jointopt.surrogate.kernel import FEATURES, Runs, default_kernel
from jointopt.surrogate.own_cluster import OwnRuns
from jointopt.surrogate.own_mix import Mix, OwnTarget, inputs
from jointopt.surrogate.power import PowerScale
from jointopt.surrogate.surrogate import Surrogate, Widths
from jointopt.surrogate.trees import fit_trees

pytestmark = pytest.mark.long  # the short part of a campaign

SOURCE, NAMES = "lab|megatron-lm|h100-sxm5-80gb|8", ("log2_tp", "log2_pp")
TREES = tuple(f"own-0-{of}.json" for of in ("time", "power", PEAK, RISE))
FILES = (CARD, "support.npz", "learned_rows.npz", *TREES)


def _known() -> Runs:
    rng = np.random.default_rng(0)
    features = {name: rng.integers(0, 4, 60).astype(float) for name in FEATURES}
    return Runs(rng.uniform(0, 0.3, (60, 3)), features, np.full(60, SOURCE), np.full(60, "m|64|8|2048"))


KNOWN = _known()


def _mix(seed: int) -> Mix:
    target = 0.1 * KNOWN.features["log2_tp"] + 0.01 * np.random.default_rng(seed).standard_normal(60)
    of_two = {"max_depth": 2, "n_estimators": 2, "reg_lambda": 1.0, "min_child_weight": 1.0}
    return Mix(fit_trees(inputs(KNOWN, NAMES), target, **of_two), 0.5, False, NAMES)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A surrogate with trees of every quantity, each in a file of its own."""
    heat = {name: OwnTarget(PowerScale(1.1, 0.05), _mix(i), 1.2) for i, name in enumerate((PEAK, RISE))}
    own = OwnRuns(SOURCE, time=_mix(2), power=PowerScale(1.1, 0.05), power_mix=_mix(3), heat=heat)
    surrogate = Surrogate(
        kernel=default_kernel(3), support=KNOWN, residual=np.zeros(60), widths=Widths(1.1, 1.2, 1.3), card={"seed": 7},
        own=(own,), learned_rows=np.arange(40, dtype=np.uint64), training_range=dict.fromkeys(FEATURES[:5], (0.0, 3.0)),
    )  # fmt: skip
    save(surrogate, folder := tmp_path_factory.mktemp("good") / "mine")
    return folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "mine")
    return tmp_path / "mine"


def four_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for at in rng.choice(len(content), 4, replace=False):
        changed[at] ^= int(rng.integers(1, 256))
    return bytes(changed)


def to_the_point(content: bytes, rng: np.random.Generator) -> bytes:
    """With what a reader would follow changed: up to four digits of JSON, four bytes of one array of an archive."""
    if content[:2] == b"PK":
        with np.load(io.BytesIO(content)) as arrays:
            kept = dict(arrays)
        name = list(kept)[int(rng.integers(len(kept)))]
        kept[name] = np.frombuffer(four_bytes(kept[name].tobytes(), rng), kept[name].dtype).reshape(kept[name].shape)
        np.savez(file := io.BytesIO(), **kept)
        return file.getvalue()
    changed, digits = bytearray(content), [at for at, byte in enumerate(content) if byte in b"0123456789"]
    for at in rng.choice(digits, int(rng.integers(1, 5)), replace=False):
        changed[at] = int(rng.choice(list(b"0123456789-")))
    return bytes(changed)


def damaged(folder: Path, change: Callable[[bytes, np.random.Generator], bytes], count: int = 1000) -> Iterator[str]:
    """So many times the name of a file of the folder that was changed; it is as it was after each."""
    rng, kept = np.random.default_rng(1), {name: (folder / name).read_bytes() for name in FILES}
    for number in range(count):
        content = kept[name := FILES[number % len(FILES)]]
        while (changed := change(content, rng)) == content:
            pass
        (folder / name).write_bytes(changed)
        yield name
        for one in {name, CARD}:
            if (folder / one).read_bytes() != kept[one]:
                (folder / one).write_bytes(kept[one])


def seal_again(folder: Path, name: str) -> None:
    """As whoever means harm would write it: every hash is right."""
    with contextlib.suppress(ValueError, KeyError):  # a card that can have no hash
        card = json.loads((folder / CARD).read_bytes())
        if name != CARD:
            card["model"]["sha256"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        write_card(folder, card)


def reason(folder: Path, name: str) -> str:
    """The sentence by which a surrogate is refused; blank where the trees of a file give and share out numbers."""
    columns = inputs(KNOWN.take(np.arange(3)), NAMES)
    try:
        found = load(folder)
        trees = dict(zip(TREES, (mix.trees for mix in found.own[0].mixes.values()), strict=True))
        if (one := trees.get(name)) is not None:
            for answers in (one.predict(columns), one.contributions(columns)):
                assert np.abs(answers).max() < 100.0
    except TableError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", FILES)
def test_a_surrogate_with_trees_of_every_quantity_is_read(folder: Path, name: str) -> None:
    assert reason(folder, name) == ""


@pytest.mark.parametrize("change", [four_bytes, to_the_point])
def test_of_a_thousand_files_with_four_bytes_or_digits_changed_each_is_refused_in_one_sentence(
    folder: Path, change: Callable[[bytes, np.random.Generator], bytes]
) -> None:
    for name in damaged(folder, change):
        sentence = reason(folder, name)
        assert sentence, name
        assert "\n" not in sentence


def test_of_a_thousand_whose_hashes_are_right_none_crashes_and_those_that_are_read_give_finite_numbers(
    folder: Path,
) -> None:
    refused = dict.fromkeys(FILES, 0)
    for name in damaged(folder, to_the_point):
        seal_again(folder, name)
        sentence = reason(folder, name)
        assert "\n" not in sentence
        refused[name] += bool(sentence)
    assert min(refused[name] for name in TREES) > 45  # of 125: other digits are read by nothing, or other numbers


def test_a_surrogate_that_was_being_replaced_is_read_as_the_new_one(good: Path, tmp_path: Path) -> None:
    """As after a kill between two moves: one file is in place, the others wait."""
    shutil.copytree(good, old := tmp_path / "mine")
    new = replace(load(good), card={"seed": 8}, residual=np.full(60, 0.1))
    save(new, ready := old / READY)
    (ready / SUPPORT).replace(old / SUPPORT)
    for _ in range(2):
        assert load(old).card["seed"] == 8
        assert not ready.exists()
