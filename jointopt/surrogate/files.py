"""Surrogates on disk: a card (JSON), plain arrays and XGBoost's JSON, none of which can run code; all of it checked."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jointopt.core.atomic_write import finish_replacing
from jointopt.core.errors import TableError
from jointopt.core.facts import Source
from jointopt.core.schema import ATTENTIONS, Floats
from jointopt.surrogate.clock_response import ClockResponse, LearnedResponse
from jointopt.surrogate.features import HEAT_NAMES
from jointopt.surrogate.kernel import FEATURES, Kernel, Runs
from jointopt.surrogate.new_sources import WEIGHTS, NewGroups
from jointopt.surrogate.own_cluster import OwnRuns
from jointopt.surrogate.own_mix import Mix, OwnTarget
from jointopt.surrogate.power import PowerScale
from jointopt.surrogate.surrogate import Fingerprints, Surrogate, Widths
from jointopt.surrogate.trees import Trees

CARD, TREES, SUPPORT = "card.json", "trees.json", "support.npz"
LEARNED = "learned_rows.npz"  # fingerprints of the runs that it learned from; surrogates of earlier versions have none
_HASHED = {".json", ".npz"}
_UNSEALED = "0" * 64
# 1 had one length per class of features, 2 no memory speed of GPUs, 3 no hashes of its files, 4 two kernels, 5 trees in
# a form that could not be checked, and nothing of a source's own
FORMAT = 6
_MOST_OFFSET_W, _MOST_WIDER = 1e6, 1e3
_MOST_SHARE = 100.0  # of a logarithm; shares of time are below 1, and residuals of those that are learned from too
_MOST_FEATURE = 1e4  # of a run: logarithms of sizes, shares, and numbers of kinds
_MOST_BYTES = 1 << 28  # of one file, unpacked; the default's take 0.3 MB
# what readers of JSON, zip archives and arrays raise for a damaged file, and what a card of another shape leads to
DAMAGED = (
    OSError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError, OverflowError,
    zipfile.BadZipFile, zlib.error, SyntaxError, tokenize.TokenError,  # the last two: of an array's header
    SystemError,  # of an array's text that is none
    MemoryError,  # of an array that says to be larger than any memory
)  # fmt: skip


def save(surrogate: Surrogate, folder: Path) -> None:
    """Write card (JSON), trees (XGBoost's own JSON) and supporting runs (plain arrays) into ``folder``.

    The card has the hashes of these, and of arrays that lie there already (`retrain` writes the held-out runs first).
    """
    folder.mkdir(parents=True, exist_ok=True)
    runs = surrogate.support
    names = sorted(runs.features)
    residual = surrogate.residual.astype(np.float32)
    np.savez_compressed(
        folder / SUPPORT, sensitivity=runs.sensitivity.astype(np.float32), residual=residual,
        features=np.column_stack([runs.features[n] for n in names]).astype(np.float32), source=runs.source.astype(str),
        group=runs.group.astype(str),
    )  # fmt: skip
    if surrogate.learned_rows is not None:
        np.savez_compressed(folder / LEARNED, row=np.unique(surrogate.learned_rows))
    trees = surrogate.trees and surrogate.trees.save(folder / TREES)
    own = [entry_of_own(one, folder, number) for number, one in enumerate(surrogate.own)]
    written = sorted(path.name for path in folder.iterdir() if path.suffix in _HASHED and path.name != CARD)
    model = {
        "format": FORMAT,
        **{name: dataclasses.asdict(getattr(surrogate, name)) for name in ("kernel", "widths")},
        "feature_names": list(surrogate.feature_names),
        "support_features": names,
        "booster": trees,
        "own": own,
        "sha256": {name: _sha256(folder / name) for name in written},
    }
    if surrogate.new_groups:
        model["new_groups"] = [dataclasses.asdict(one) for one in surrogate.new_groups]
    write_card(folder, {**surrogate.card, "model": model})


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Write a card with its own hash among those of its files: of its bytes with zeros where that hash will stand."""
    model = card["model"] | {"sha256": card["model"]["sha256"] | {CARD: _UNSEALED}}
    content = (json.dumps({**card, "model": model}, indent=1, sort_keys=True) + "\n").encode()
    (folder / CARD).write_bytes(content.replace(_UNSEALED.encode(), hashlib.sha256(content).hexdigest().encode()))


def _new_groups(
    sources: np.ndarray[Any, Any], values: Mapping[str, Any] | list[Mapping[str, Any]] | None
) -> tuple[NewGroups, ...]:
    """How far few runs count for groups of which none is known; ``sources`` of all that are remembered.

    A version that judged those of one origin alone wrote no list and no sources: it was all of them.
    """
    known = set(sources.tolist())
    if isinstance(values, Mapping):
        values = [{**values, "sources": sorted(known)}]
    found = tuple(map(_new_groups_of, values or ()))
    if any(not set(one.sources) <= known for one in found):
        raise ValueError("groups without runs are of a source that it does not remember")
    return found


def _new_groups_of(values: Mapping[str, Any]) -> NewGroups:
    errors = {name: float(values["errors"][name]) for name in ("physics", "process", "time")}
    numbers = (
        float(values["weight"]),
        float(values["wider"]),
        errors,
        int(values["judged"]),
        bool(values.get("as_sure")),
    )
    found = NewGroups(tuple(map(str, values["sources"])), *numbers)
    of_errors = np.isfinite(list(errors.values())).all() and min(errors.values()) >= 0.0 and found.judged > 0
    if not (found.sources and found.weight in WEIGHTS and 1.0 <= found.wider <= _MOST_WIDER and of_errors):
        raise ValueError("weight, width or errors of groups without runs are none that retrain writes")
    return found


def _widths(values: Mapping[str, Any]) -> Widths:
    """A card's widths; one written before few runs and many were distinguished has the same for both."""
    return Widths(**{name: _width(width) for name, width in {"few": values["measured"], **values}.items()})


def _width(value: Any) -> Any:
    """A factor, half-widths below and above, or None, where a card has no such."""
    if isinstance(value, list):
        below, above = map(float, value)
        return below, above
    return number_or_none(value)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


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
        _check_file(folder / CARD)
        card = json.loads(content := (folder / CARD).read_bytes())
        model = card.pop("model")
        _check_seal(content, model["sha256"] if model["format"] == FORMAT else {})
        if (written := int(model["format"])) != FORMAT:
            raise TableError(_of_format(folder, written, card))
        _check_hashes(folder, model)
        remembered = _read_support(folder, model["support_features"])
        surrogate = Surrogate(
            kernel=read_kernel(model["kernel"]), trees=Trees.read(folder / TREES, model["booster"]),
            feature_names=tuple(model["feature_names"]), **remembered,
            widths=_widths(model["widths"]), card=card,
            own=tuple(read_own(folder, number, values) for number, values in enumerate(model["own"])),
            new_groups=_new_groups(remembered["support"].source, model.get("new_groups")),
            learned_rows=_learned_rows(folder) if LEARNED in model["sha256"] else None,
        )  # fmt: skip
        _check_sizes(surrogate)
        _check_values(surrogate)
    except DAMAGED as error:
        raise TableError(
            f"The surrogate in {folder} is damaged ({_reason(error)}): copy the folder anew from where it was written, "
            "or repeat `jointopt retrain` with --force."
        ) from error
    return surrogate


def _reason(error: Exception) -> str:
    """The fault of a damaged surrogate in some words."""
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return f"{CARD} is no JSON"
    words = str(error).split("\n")[0].strip(" .:") or type(error).__name__
    return f"{words} is missing" if isinstance(error, KeyError) else words


def _of_format(folder: Path, written: int, card: Mapping[str, Any]) -> str:
    """A sentence on a surrogate of another format than `FORMAT`, and on what to do."""
    if written > FORMAT:
        return f"The surrogate in {folder} is of format {written}, and this version reads {FORMAT}: update jointopt."
    again = " ".join(str(card.get("rebuild", "")).split())
    how = f" (its card has how: `{again}`)" if again else ""
    return (
        f"The surrogate in {folder} is of format {written}, of an earlier version; retrain it for format {FORMAT}{how}."
    )


def _learned_rows(folder: Path) -> Fingerprints:
    """The fingerprints in a file whose hash the card has; ValueError where they are no such numbers."""
    _check_unpacked(folder / LEARNED)
    with np.load(folder / LEARNED, allow_pickle=False) as arrays:
        rows = arrays["row"]
    if rows.dtype != np.uint64 or rows.ndim != 1:
        raise ValueError(f"{LEARNED} holds no row of fingerprints")
    return np.asarray(rows)


def _check_hashes(folder: Path, model: Mapping[str, Any]) -> None:
    """ValueError where a file that the surrogate reads has no hash in the card, or one has changed."""
    read = [SUPPORT, *([TREES] if model["booster"] is not None else [])]
    for number, own in enumerate(model["own"]):
        mixes = {"time": own["time"], "power": own["power_mix"]} | {n: t["mix"] for n, t in heat_of(own).items()}
        read += [OWN_TREES.format(number, of) for of, mix in mixes.items() if mix["booster"] is not None]
    without = next((name for name in read if name not in model["sha256"]), None)
    if without:
        raise ValueError(f"its card has no hash of {without}")
    for name, written in model["sha256"].items():
        if name == CARD:
            continue
        _check_file(folder / name)
        if _sha256(folder / name) != written:
            raise ValueError(f"{name} has changed since it was written: its sha256 is not that of the card")


def _check_seal(content: bytes, hashes: Mapping[str, str]) -> None:
    """ValueError where a card is not what its own hash was made of; an earlier version wrote none."""
    seal = hashes.get(CARD)
    if seal is not None and hashlib.sha256(content.replace(seal.encode(), _UNSEALED.encode())).hexdigest() != seal:
        raise ValueError(f"{CARD} has changed since it was written: its sha256 is not the one that it states")


def _check_file(path: Path) -> None:
    """ValueError where a path is nothing, a pipe or a device, which would be waited for, or a file too large."""
    if not path.is_file():
        raise ValueError(f"{path.name} is {'no file' if path.exists() else 'missing'}")
    _check_size(path.name, path.stat().st_size)


def _check_unpacked(path: Path) -> None:
    """ValueError where the arrays in a file are too large together."""
    with zipfile.ZipFile(path) as archive:
        _check_size(path.name, sum(entry.file_size for entry in archive.infolist()))


def _check_size(name: str, count: int) -> None:
    if count > _MOST_BYTES:
        raise ValueError(f"{name} is larger than {_MOST_BYTES:,} bytes")


def _check_values(surrogate: Surrogate) -> None:
    """ValueError for numbers that no training writes, which would make every prediction senseless."""
    runs, trees = surrogate.support, surrogate.trees
    kernel = surrogate.kernel
    positive = [*_flat(dataclasses.astuple(surrogate.widths)), *kernel.values]
    for own in surrogate.own:
        positive += [own.width, own.width_of_known or 1.0, *own.clocks, own.measured_limit_w]
        positive += [target.overshoot for target in own.heat.values() if target.overshoot is not None]
        scales = (own.power, *(target.scale for target in own.heat.values()))
        positive += [value for scale in scales for value in (float(scale.factor), scale.log_sd or 1.0)]
        if not all(abs(float(scale.offset_w)) < _MOST_OFFSET_W for scale in scales):
            raise ValueError("an offset of power or temperature is not finite")
        positive += [] if own.kernel is None else [*own.kernel.values]
        if not 0.0 <= own.off_below < np.inf:
            raise ValueError("an error below the top clock is no positive number")
        weights = own.of_new, own.of_known, *(mix.weight for mix in own.mixes.values())
        if not all(0.0 <= weight <= 1.0 for weight in weights):
            raise ValueError("a weight of the process or of trees is not between 0 and 1")
    if not all(1e-9 < value < 1e9 for value in positive):
        raise ValueError("a width, length or standard deviation is not between 1e-9 and 1e9")
    given = [surrogate.residual, runs.sensitivity, *runs.features.values()]
    given += [trees.low, trees.high] if trees is not None else []
    if not all(np.isfinite(values).all() for values in given):
        raise ValueError("a number is not finite")
    if max(np.abs(values).max(initial=0.0) for values in (runs.sensitivity, surrogate.residual)) > _MOST_SHARE:
        raise ValueError(f"a share or a residual of its runs is beyond {_MOST_SHARE:g}")
    _check_features(runs.features)
    for source in {str(one) for one in runs.source} | {own.source for own in surrogate.own}:
        Source.parse(source)
    if not all(isinstance(name, str) for name in surrogate.feature_names):
        raise ValueError("the name of a feature is no text")
    _check_card(surrogate.card)


def _check_card(card: Mapping[str, Any]) -> None:
    """ValueError where a card says something in another form than `jointopt.workflows.retrain` writes."""
    texts = [*(card.get(name, {}) for name in ("data", "recipe_classes", "files_sha256"))]
    if not all(isinstance(values, dict) for values in texts):
        raise ValueError("what its card says of files or recipe classes is no list of names with values")
    for row in card.get("error", {}).values():
        if not all(isinstance(value, float | int) for value in row.values()):
            raise ValueError("an error on held-out groups is no number")


def _check_features(features: Mapping[str, Floats]) -> None:
    """ValueError for features (n,) that no run has, or a number of an attention kernel that stands for none."""
    if any(np.abs(values).max(initial=0.0) > _MOST_FEATURE for values in features.values()):
        raise ValueError(f"a feature of its runs is beyond {_MOST_FEATURE:g}")
    if not np.isin(np.rint(features.get("attention", np.zeros(1))), np.arange(len(ATTENTIONS))).all():
        raise ValueError("an attention kernel of its runs is none that is known")


def _flat(widths: Iterable[Any]) -> list[float]:
    return [
        value for width in widths for value in (width if isinstance(width, tuple) else [width] * (width is not None))
    ]


def _check_sizes(surrogate: Surrogate) -> None:
    """ValueError where parts that were read one by one do not belong together."""
    runs, trees = surrogate.support, surrogate.trees
    count, constants = runs.sensitivity.shape
    sizes = {
        "residuals": {count, *surrogate.residual.shape, *runs.source.shape, *runs.group.shape},
        "supporting features": {count, *(len(values) for values in runs.features.values())},
        "constants": {constants, len(surrogate.kernel.constants)},
        "lengths": {len(FEATURES), len(surrogate.kernel.lengths)},
    }
    if trees is not None:
        sizes["features"] = {len(surrogate.feature_names), len(trees.low)}
    for own in surrogate.own:
        kernel = own.kernel or surrogate.kernel
        sizes[f"constants of {own.source}"] = {constants, len(kernel.constants)}
        sizes |= {f"{name} of {own.source}": set(numbers) for name, numbers in kernel.sizes.items()}
        for of, mix in own.mixes.items():
            if mix.trees is not None:
                sizes[f"features of {of} of {own.source}"] = {len(mix.names) + constants, len(mix.trees.low)}
    if any(values.ndim != 1 for values in (surrogate.residual, runs.source, runs.group)):
        raise ValueError("what is known of its runs is no row")
    wrong = next((name for name, found in sizes.items() if len(found) > 1), None)
    if wrong:
        raise ValueError(f"its {wrong} differ in number: {', '.join(map(str, sorted(sizes[wrong])))}")


def _read_support(folder: Path, names: list[str]) -> dict[str, Any]:
    """Supporting runs with features of these ``names``, and their residuals, by what a `Surrogate` calls both."""
    _check_unpacked(folder / SUPPORT)
    with np.load(folder / SUPPORT, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return {"support": _support(arrays, names), "residual": arrays["residual"].astype(np.float64)}


def _support(arrays: dict[str, Any], names: list[str]) -> Runs:
    kinds = {"source": "U", "group": "U"} | dict.fromkeys(("features", "sensitivity", "residual"), "f")
    if wrong := [name for name, kind in kinds.items() if arrays[name].dtype.kind != kind]:
        raise ValueError(f"{wrong[0]} of its runs has values of another kind")
    if arrays["features"].shape[1] != len(names):
        raise ValueError(f"{len(names)} names for {arrays['features'].shape[1]} columns of supporting features")
    features = {name: arrays["features"][:, i].astype(np.float64) for i, name in enumerate(names)}
    return Runs(arrays["sensitivity"].astype(np.float64), features, arrays["source"], arrays["group"])


# A source's own runs, as a surrogate learned from them, in its card and its files of trees.


OWN_TREES = "own-{}-{}.json"  # number of the source, and what of its runs they predict


def entry_of_own(own: OwnRuns, folder: Path, number: int) -> dict[str, Any]:
    """A card's entry on a source's own runs, whose trees are written into ``folder``."""
    kept: dict[str, Any] = {
        name: getattr(own, name)
        for name in (
            "source",
            "width",
            "width_of_known",
            "held_out",
            "off_below",
            "clock_remark",
            "power_limit_w",
            "as_sure",
            "of_new",
            "of_known",
        )
    }
    for name, of, mix in (("time", "time", own.time), ("power_mix", "power", own.power_mix)):
        kept[name] = _of_mix(mix, folder / OWN_TREES.format(number, of))
    kept["heat"] = {
        name: {
            "scale": dataclasses.asdict(target.scale),
            "mix": _of_mix(target.mix, folder / OWN_TREES.format(number, name)),
            "overshoot": target.overshoot,
        }
        for name, target in own.heat.items()
    }
    kept["kernel"] = None if own.kernel is None else dataclasses.asdict(own.kernel)
    power = dataclasses.asdict(own.power)
    return kept | {
        "response": own.response and dataclasses.asdict(own.response), "power": power, "clocks": list(own.clocks),
        "errors": dict(own.errors), "importance": {of: dict(sizes) for of, sizes in own.importance.items()},
    }  # fmt: skip


def _of_mix(mix: Mix, path: Path) -> dict[str, Any]:
    """A card's entry on trees beside something else, which are written to ``path``."""
    booster = mix.trees and mix.trees.save(path)
    return {"weight": mix.weight, "beyond": mix.beyond, "names": list(mix.names), "booster": booster}


def read_own(folder: Path, number: int, values: dict[str, Any]) -> OwnRuns:
    """The `OwnRuns` that a card describes; KeyError, TypeError or ValueError for another shape."""
    mixes: dict[str, Any] = {
        name: _mix(folder / OWN_TREES.format(number, of), values[name])
        for name, of in (("time", "time"), ("power_mix", "power"))
    }
    low, high = map(float, values["clocks"])
    heat = {
        name: OwnTarget(
            _scale(target["scale"]), _mix(folder / OWN_TREES.format(number, name), target["mix"]),
            number_or_none(target.get("overshoot")),
        )
        for name, target in heat_of(values).items()
    }  # fmt: skip
    return OwnRuns(
        source=str(values["source"]), kernel=values["kernel"] and read_kernel(values["kernel"]),
        width=float(values["width"]), width_of_known=number_or_none(values.get("width_of_known")),
        power=_scale(values["power"]), clocks=(low, high), heat=heat,
        power_limit_w=number_or_none(values.get("power_limit_w")),
        errors={str(name): float(error) for name, error in values["errors"].items()},
        held_out=str(values["held_out"]), **mixes, response=_response(values.get("response")),
        off_below=float(values.get("off_below", 0.0)), clock_remark=str(values.get("clock_remark", "")),
        as_sure=bool(values.get("as_sure", False)), of_new=float(values.get("of_new", 1.0)),
        of_known=float(values.get("of_known", 1.0)),
        importance=_importance(values["importance"]),
    )  # fmt: skip


def _importance(values: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Importance of features by quantity, the largest first; an earlier version had that of time alone."""
    by = values if all(isinstance(sizes, Mapping) for sizes in values.values()) else {"time": values}
    return {
        str(of): {str(name): float(size) for name, size in sorted(sizes.items(), key=lambda one: -one[1])}
        for of, sizes in by.items()
    }


def heat_of(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A card's peak power and temperature; none by a version that learned neither. ValueError for another quantity."""
    heat: Mapping[str, Any] = values.get("heat", {})
    if unknown := set(heat) - set(HEAT_NAMES):
        raise ValueError(f"it has learned of {', '.join(sorted(unknown))}, expected {' or '.join(HEAT_NAMES)}")
    return heat


def _scale(values: Mapping[str, Any]) -> PowerScale:
    log_sd = values["log_sd"]
    factor, offset_w = (float(values[name]) for name in ("factor", "offset_w"))
    return PowerScale(factor, number_or_none(log_sd), offset_w)


def number_or_none(value: Any) -> float | None:
    """A card's number; None where it has none."""
    return None if value is None else float(value)


def _mix(path: Path, values: dict[str, Any]) -> Mix:
    trees = Trees.read(path, values["booster"])
    return Mix(trees, float(values["weight"]), bool(values["beyond"]), tuple(map(str, values["names"])))


def _response(values: Mapping[str, Any] | None) -> LearnedResponse | None:
    """The learned clock response of a card; None where nothing was learned, or by a version that learned none."""
    if values is None:
        return None
    response = ClockResponse(*(float(values["response"][name]) for name in ("compute", "memory")))
    if not (0.0 < response.compute <= 1.0 and 0.0 <= response.memory <= 1.0):
        raise ValueError("a share that follows the clock is not between 0 and 1")
    return LearnedResponse(response, float(values["before"]), float(values["after"]))


def read_kernel(values: dict[str, Any]) -> Kernel:
    """The kernel that a card describes, of a cluster's own runs where it says which constants vary."""
    read: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else float(v) for k, v in values.items()}
    return Kernel(**read)
