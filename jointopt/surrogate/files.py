"""Surrogates on disk: a card (JSON), plain arrays and XGBoost's JSON, none of which can run code; all of it checked."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jointopt.core.atomic_write import finish_replacing
from jointopt.core.errors import TableError, UsageError, nearest_hint
from jointopt.core.facts import Source
from jointopt.core.schema import ATTENTIONS, Floats
from jointopt.physics.sensitivities import CATEGORY
from jointopt.surrogate.features import HEAT_NAMES
from jointopt.surrogate.kernel import CLOCK, FEATURES, SHAPES, SHARES, Kernel, Runs
from jointopt.surrogate.new_sources import WEIGHTS, NewGroups
from jointopt.surrogate.own_cluster import OwnRuns
from jointopt.surrogate.own_mix import Mix, OwnTarget
from jointopt.surrogate.power import PowerScale
from jointopt.surrogate.surrogate import Surrogate, Widths
from jointopt.surrogate.trees import Trees

CARD, SUPPORT = "card.json", "support.npz"
OWN_TREES = "own-{}-{}.json"  # number of the source, and what of its runs they predict
LEARNED = "learned_rows.npz"  # fingerprints of the runs that it learned from; surrogates of earlier versions have none
_HASHED = {".json", ".npz"}
_UNSEALED = "0" * 64
# 1 had one length per class of features, 2 no memory speed of GPUs, 3 no hashes of its files, 4 two kernels, 5 trees in
# a form that could not be checked, and nothing of a source's own, 6 trees of all sources
FORMAT, OLDEST = 7, 6
_MOST_BYTES = 1 << 28  # of one file, unpacked; the default's take 0.3 MB
# what readers of JSON, zip archives and arrays raise for a damaged file, and what a card of another shape leads to
DAMAGED = (
    OSError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError, OverflowError,
    zipfile.BadZipFile, zlib.error, SyntaxError, tokenize.TokenError,  # the last two: of an array's header
    SystemError,  # of an array's text that is none
    MemoryError,  # of an array that says to be larger than any memory
)  # fmt: skip

# Arrays of the files: kind and dimensions, and the largest number of any run: shares of time are below 1, and residuals
# of those that are learned from too; features are logarithms of sizes, shares, and numbers of kinds.
_ARRAYS: Mapping[str, tuple[str, int, float, str]] = {
    "sensitivity": ("f", 2, 100.0, "sensitivities of runs, each below 100"),
    "residual": ("f", 1, 100.0, "residuals of runs, each below 100"),
    "features": ("f", 2, 1e4, "features of runs, each below 10,000"),
    "source": ("U", 1, 0.0, "sources of runs"),
    "group": ("U", 1, 0.0, "groups of runs"),
    "row": ("u", 1, np.inf, "row of fingerprints"),
}
# Entries of a card, as `_read` reads them: a callable, a pair of the least and the most of a number, a list of one kind
# ([kind, ...]) or of several, a table of any names ({str: kind}), or a dataclass with the kinds of its fields, of which
# those that a card of an earlier version lacks have their defaults. A set: the value is one of these.
_POSITIVE, _SHARE = (1e-9, 1e9), (0.0, 1.0)
_KERNEL = Kernel, {
    "constants": [_POSITIVE, ...], "source": _POSITIVE, "shape": _POSITIVE, "lengths": [_POSITIVE, ...],
    "noise": _POSITIVE, "varying": [_POSITIVE, ...], "varying_lengths": [_POSITIVE, ...],
}  # fmt: skip
_BOUNDS = {name: [_POSITIVE, _POSITIVE] for name in ("new_cluster", "new_software")}
_WIDTHS = Widths, {field.name: _BOUNDS.get(field.name, _POSITIVE) for field in dataclasses.fields(Widths)}
_SCALE = PowerScale, {"factor": _POSITIVE, "log_sd": _POSITIVE, "offset_w": (-1e6, 1e6)}
_SLOPE = [(-1e4, 1e4)] * 4
_MIX = Mix, {
    "trees": lambda trees: trees, "weight": _SHARE, "beyond": bool, "names": [str, ...], "slopes": {str: _SLOPE},
}  # fmt: skip
_OWN = OwnRuns, {
    "source": str, "kernel": _KERNEL, "time": _MIX, "width": _POSITIVE, "width_of_known": _POSITIVE, "power": _SCALE,
    "power_mix": _MIX, "clocks": [_POSITIVE, _POSITIVE], "errors": {str: float}, "held_out": str,
    "importance": {str: {str: float}},
    "power_limit_w": _POSITIVE, "heat": {str: (OwnTarget, {"scale": _SCALE, "mix": _MIX, "overshoot": _POSITIVE})},
    "as_sure": bool, "of_new": _SHARE, "of_known": _SHARE, "outlying": int, "outlying_from": (0.0, 1e9),
}  # fmt: skip
_RANGE = {str: [(-1e4, 1e4), (-1e4, 1e4)]}
_NEW_GROUPS = NewGroups, {
    "sources": [str, ...], "weight": {*WEIGHTS}, "wider": (1.0, 1e3), "errors": {str: (0.0, 1e9)}, "judged": int,
    "as_sure": bool,
}  # fmt: skip


def _read(kind: Any, value: Any, name: str) -> Any:
    """The value that a card's entry of that kind holds; ValueError, TypeError or KeyError for another one."""
    if callable(kind):
        return kind(value)
    if isinstance(kind, set):
        if float(value) not in kind:
            raise ValueError(f"{name} is none that retrain writes")
        return float(value)
    if isinstance(kind, list):
        kinds = kind[:1] * len(value) if kind[-1] is ... else kind
        return tuple(_read(each, one, name) for each, one in zip(kinds, value, strict=True))
    if isinstance(kind, dict):
        return {str(key): _read(kind[str], one, str(key)) for key, one in value.items()}
    least, most = kind
    if isinstance(most, dict):
        given = {}
        for field in dataclasses.fields(least):
            absent = field.name not in value or (field.default is None and value[field.name] is None)
            if field.name in most and not absent:
                given[field.name] = _read(most[field.name], value[field.name], field.name)
        return least(**given)
    if not least <= float(value) <= most:
        raise ValueError(f"{name} is not between {least:g} and {most:g}")
    return float(value)


def save(surrogate: Surrogate, folder: Path) -> None:
    """Write card (JSON), trees of own runs (XGBoost's JSON) and supporting runs (plain arrays) into ``folder``.

    The card has the hashes of these, and of arrays that lie there already (`retrain` writes the held-out runs first).
    """
    folder.mkdir(parents=True, exist_ok=True)
    runs, names = surrogate.support, sorted(surrogate.support.features)
    np.savez_compressed(
        folder / SUPPORT, sensitivity=runs.sensitivity.astype(np.float32),
        residual=surrogate.residual.astype(np.float32), features=runs.matrix(names).astype(np.float32),
        source=runs.source.astype(str), group=runs.group.astype(str),
    )  # fmt: skip
    if surrogate.learned_rows is not None:
        np.savez_compressed(folder / LEARNED, row=np.unique(surrogate.learned_rows))
    own = [_entry_of_own(one, folder, number) for number, one in enumerate(surrogate.own)]
    written = sorted(path for path in folder.iterdir() if path.suffix in _HASHED and path.name != CARD)
    model = {
        "format": FORMAT, "kernel": surrogate.kernel, "widths": surrogate.widths,
        "support_features": names, "own": own, "training_range": surrogate.training_range,
        "sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in written},
    }  # fmt: skip
    if surrogate.new_groups:
        model["new_groups"] = surrogate.new_groups
    write_card(folder, {**surrogate.card, "model": model})


def _entry_of_own(own: OwnRuns, folder: Path, number: int) -> dict[str, Any]:
    """A card's entry on a source's own runs, whose trees are written into ``folder``."""
    mixes = {}
    for of, mix in own.mixes.items():
        booster = mix.trees and mix.trees.save(folder / OWN_TREES.format(number, of))
        mixes[of] = {"weight": mix.weight, "beyond": mix.beyond, "names": mix.names, "booster": booster}
        if mix.slopes:
            mixes[of]["slopes"] = mix.slopes
    heat = {
        name: {"scale": target.scale, "mix": mixes[name], "overshoot": target.overshoot}
        for name, target in own.heat.items()
    }
    simple = {name: getattr(own, name) for name in _OWN[1]}
    return simple | {"time": mixes["time"], "power_mix": mixes["power"], "heat": heat}


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Write a card with its own hash among those of its files: of its bytes with zeros where that hash will stand."""
    model = card["model"] | {"sha256": card["model"]["sha256"] | {CARD: _UNSEALED}}
    text = json.dumps({**card, "model": model}, indent=1, sort_keys=True, default=dataclasses.asdict)
    content = f"{text}\n".encode()
    (folder / CARD).write_bytes(content.replace(_UNSEALED.encode(), hashlib.sha256(content).hexdigest().encode()))


def holds_surrogate(folder: Path) -> bool:
    """Whether a surrogate lies in ``folder``; files of a `retrain` that was killed while it moved them are moved first.

    Raises TableError where these cannot be moved.
    """
    try:
        finish_replacing(folder)
    except OSError as error:
        raise TableError(
            f"{folder} holds files of a `jointopt retrain` that was killed, which cannot be put in place "
            f"({error.strerror}): read the surrogate once as somebody who may write there."
        ) from error
    return (folder / CARD).exists()


def load(folder: Path) -> Surrogate:
    """The surrogate in ``folder``; only JSON, XGBoost's format and plain arrays are read, so no file can run code.

    Raises TableError for a folder that is none, one of another format, and where a file is missing or is not what it
    should be.
    """
    if not holds_surrogate(folder):
        raise TableError(
            f"{folder} holds no surrogate (no {CARD}); expected a folder that `jointopt retrain --out` wrote."
        )
    try:
        card = _checked_card(folder)
        model = card.pop("model")
        arrays = _arrays(folder / SUPPORT, ("sensitivity", "residual", "features", "source", "group"))
        columns = zip(model["support_features"], arrays["features"].T.astype(np.float64), strict=True)
        support = Runs(arrays["sensitivity"].astype(np.float64), dict(columns), arrays["source"], arrays["group"])
        groups = model.get("new_groups", [])
        if isinstance(groups, Mapping):  # a version that judged those of one origin alone: it was all of them
            groups = [{**groups, "sources": np.unique(support.source).tolist()}]
        # a card written before few runs and many were distinguished has the same width for both
        widths = {"few": model["widths"]["measured"], **model["widths"]}
        surrogate = Surrogate(
            kernel=_read(_KERNEL, model["kernel"], "kernel"), support=support,
            residual=arrays["residual"].astype(np.float64), widths=_read(_WIDTHS, widths, "widths"), card=card,
            own=tuple(_read_own(folder, number, values) for number, values in enumerate(model["own"])),
            new_groups=tuple(_read(_NEW_GROUPS, one, "groups") for one in groups),
            learned_rows=_arrays(folder / LEARNED, ("row",))["row"] if LEARNED in model["sha256"] else None,
            training_range=_read(_RANGE, _training_range(model), "training_range"),
        )  # fmt: skip
        _check_sizes(surrogate)
        _check_names(surrogate)
    except DAMAGED as error:
        if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
            reason = f"{CARD} is no JSON"
        else:
            reason = str(error).split("\n")[0].strip(" .:") or type(error).__name__
        raise TableError(
            f"The surrogate in {folder} is damaged ({reason}{' is missing' * isinstance(error, KeyError)}): copy the "
            "folder anew from where it was written, or repeat `jointopt retrain` with --force."
        ) from error
    return surrogate


def _checked_card(folder: Path) -> dict[str, Any]:
    """The card of this format in ``folder``, whose hashes are right: its own, and that of each file that is read.

    An earlier version wrote no hash of the card. ValueError where one is missing or wrong, TableError for another
    format.
    """
    _check_file(folder / CARD)
    card: dict[str, Any] = json.loads(content := (folder / CARD).read_bytes())
    model = card["model"]
    hashes = model["sha256"] if model["format"] in (OLDEST, FORMAT) else {}
    seal = hashes.get(CARD)
    if seal is not None and hashlib.sha256(content.replace(seal.encode(), _UNSEALED.encode())).hexdigest() != seal:
        raise ValueError(f"{CARD} has changed since it was written: its sha256 is not the one that it states")
    if (written := int(model["format"])) > FORMAT:
        raise TableError(
            f"The surrogate in {folder} is of format {written}, and this version reads {FORMAT}: update jointopt."
        )
    shared = model.get("booster")
    if written < OLDEST or (shared is not None and shared["parameters"]["strength"] != 0.0):
        again = " ".join(str(card.get("rebuild", "")).split())
        how = f" (its card has how: `{again}`)" if again else ""
        what = f"is of format {written}" if written < OLDEST else "corrects by trees of all sources"
        raise TableError(
            f"The surrogate in {folder} {what}, of an earlier version; retrain it for format {FORMAT}{how}."
        )
    boosters = dict[str, Any]()
    for number, own in enumerate(model["own"]):
        boosters |= {OWN_TREES.format(number, of): mix["booster"] for of, mix in _mixes(own).items()}
    for name in (SUPPORT, *(name for name, booster in boosters.items() if booster is not None)):
        if name not in hashes:
            raise ValueError(f"its card has no hash of {name}")
    for name in hashes.keys() - {CARD}:
        _check_file(folder / name)
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != hashes[name]:
            raise ValueError(f"{name} has changed since it was written: its sha256 is not that of the card")
    return card


def _training_range(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """A card's entry on ranges of features; one of format 6 has them with trees of all sources, of no weight."""
    if (shared := model.get("booster")) is None:
        return dict(model.get("training_range", {}))
    ranges = zip(model["feature_names"], zip(shared["low"], shared["high"], strict=True), strict=True)
    return {name: ends for name, ends in ranges if name != CLOCK and CATEGORY not in name}


def _mixes(own: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """A card's entries on trees of a source's own runs by quantity; ValueError for a quantity that is none.

    Peak power and temperature are absent from cards of a version that learned neither.
    """
    heat = own.get("heat", {})
    if unknown := set(heat) - set(HEAT_NAMES):
        raise ValueError(f"it has learned of {', '.join(sorted(unknown))}, expected {' or '.join(HEAT_NAMES)}")
    return {"time": own["time"], "power": own["power_mix"]} | {name: one["mix"] for name, one in heat.items()}


def _read_own(folder: Path, number: int, values: dict[str, Any]) -> OwnRuns:
    """The `OwnRuns` that a card describes, with its trees; KeyError, TypeError or ValueError for another shape.

    TableError for one of an earlier version, which answered by other functions of what it had learned.
    """
    boosters = [mix["booster"] for mix in _mixes(values).values() if mix["booster"] is not None]
    if values.get("response") or any("width" not in booster for booster in boosters):
        raise TableError(
            f"The surrogate in {folder} learned from the runs of {values['source']} by an earlier version, whose "
            "answers differ from this one's: repeat `jointopt retrain` on its tables with --force."
        )
    mixes = {
        of: {**mix, "trees": Trees.read(folder / OWN_TREES.format(number, of), mix["booster"])}
        for of, mix in _mixes(values).items()
    }
    importance = values["importance"]
    if not all(isinstance(sizes, Mapping) for sizes in importance.values()):  # an earlier version's, of time alone
        importance = {"time": importance}
    importance = {of: dict(sorted(sizes.items(), key=lambda one: -one[1])) for of, sizes in importance.items()}
    heat = {name: {**one, "mix": mixes[name]} for name, one in values.get("heat", {}).items()}
    changed = {"time": mixes["time"], "power_mix": mixes["power"], "heat": heat, "importance": importance}
    own: OwnRuns = _read(_OWN, values | changed, "own")
    return own


def _check_file(path: Path) -> None:
    """ValueError where a path is nothing, a pipe or a device, which would be waited for, or a file too large."""
    if not path.is_file():
        raise ValueError(f"{path.name} is {'no file' if path.exists() else 'missing'}")
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path.name} is larger than {_MOST_BYTES:,} bytes")


def _arrays(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """The `_ARRAYS` of these names in a file; ValueError where one is another, or not finite."""
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES:
            raise ValueError(f"{path.name} is larger than {_MOST_BYTES:,} bytes")
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in names}
    for name, values in arrays.items():
        kind, dimensions, most, words = _ARRAYS[name]
        known = (values.dtype.kind, values.ndim) == (kind, dimensions)
        if not known or (kind == "f" and not (np.abs(values) <= most).all()):
            raise ValueError(f"{path.name} holds no {words}")
    return arrays


def _check_names(surrogate: Surrogate) -> None:
    """ValueError where a source, a feature or a table of the card is none that `jointopt.workflows.retrain` writes."""
    known, card = set(surrogate.support.source.tolist()), surrogate.card
    for source in known | {own.source for own in surrogate.own}:
        Source.parse(source)
    for groups in surrogate.new_groups:
        if not groups.sources or not set(groups.sources) <= known:
            raise ValueError("groups without runs are of a source that it does not remember")
        if not {"physics", "process", "time"} <= groups.errors.keys():
            raise ValueError("errors of groups without runs are none that retrain writes")
    kernels: Floats = surrogate.support.features.get("attention", np.zeros(1))
    if not np.isin(np.rint(kernels), np.arange(len(ATTENTIONS))).all():
        raise ValueError("an attention kernel of its runs is none that is known")
    if not all(isinstance(card.get(name, {}), dict) for name in ("data", "recipe_classes", "files_sha256")):
        raise ValueError("what its card says of files or recipe classes is no list of names with values")
    if not all(isinstance(value, float | int) for row in card.get("error", {}).values() for value in row.values()):
        raise ValueError("an error on held-out groups is no number")


def _check_sizes(surrogate: Surrogate) -> None:
    """ValueError where parts that were read one by one do not belong together."""
    runs = surrogate.support
    count, constants = runs.sensitivity.shape
    of_runs = (surrogate.residual, runs.source, runs.group, *runs.features.values())
    sizes = {"runs": {count, *map(len, of_runs)}}
    kernels = {own.source: own.kernel for own in surrogate.own if own.kernel is not None}
    for source, kernel in ({"all": surrogate.kernel} | kernels).items():
        varying = bool(kernel.varying)
        shapes = len(SHAPES) - (len(kernel.varying_lengths) == len(SHAPES) - 1)  # an earlier version's has no clock
        sizes |= {
            f"constants of {source}": {constants, len(kernel.constants)},
            f"lengths of {source}": {
                shapes + len(SHARES) + constants if varying else len(FEATURES), len(kernel.lengths),
            },
            f"varying constants of {source}": {varying * constants, len(kernel.varying)},
            f"lengths of varying constants of {source}": {varying * shapes, len(kernel.varying_lengths)},
        }  # fmt: skip
    for own in surrogate.own:
        for of, mix in own.mixes.items():
            if mix.trees is not None:
                sizes[f"features of {of} of {own.source}"] = {len(mix.names) + constants, mix.trees.width}
    wrong = next((name for name, found in sizes.items() if len(found) > 1), None)
    if wrong:
        raise ValueError(f"its {wrong} differ in number: {', '.join(map(str, sorted(sizes[wrong])))}")


_MODELS = Path(__file__).parents[1] / "models"


def surrogate_names() -> tuple[str, ...]:
    """Names of the surrogates that come with jointopt."""
    return tuple(sorted(card.parent.name for card in _MODELS.glob("*/card.json")))


@functools.cache
def load_surrogate(name: str) -> Surrogate | None:
    """The shipped surrogate of that name, else the one in that folder; None for ``none``; UsageError for any other."""
    if name == "none":
        return None
    if ((shipped := _MODELS / name) / "card.json").is_file():
        return load(shipped)
    if Path(name).is_dir():
        return load(Path(name))
    known = (*surrogate_names(), "none")
    raise UsageError(
        f"The surrogate {name!r} is neither shipped nor a folder; expected one of {', '.join(known)}, or the folder "
        f"that `jointopt retrain --out` wrote{nearest_hint(name, known)}."
    )
