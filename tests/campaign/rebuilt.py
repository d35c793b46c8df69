"""Files of a surrogate made anew with other arrays, trees and cards, as whoever means harm would.

`tests/campaign/inputs.py` changes bytes, few of which leave an archive that can be opened; these are all well-formed.
"""

from __future__ import annotations

import copy
import functools
import io
import json
import random
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.campaign import surrogates

Array = np.ndarray[Any, np.dtype[Any]]

NUMBERS = (
    float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-320, 1e308, -1e308, 3.5e38, 1e9, -1.0, 0.5, 1, -1, 0,
    2**31 - 1, 2**31, -(2**31), 2**63, -(2**63), 2**64, 10**30,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, True, False, "", "1", "nan", "x" * 100_000, [], {}, [[]], [None], {"a": 1}, [0] * 10_000, ["a", 1, None],
)  # fmt: skip
TYPES = ("f2", "f4", "f8", "i1", "i8", "u8", "?", "c16", "U8", "S8", "M8[s]", "m8[s]", "V4", "O", ">f8", [("a", "f4")])
OF_NODES = ("left_children", "right_children", "parents", "split_indices", "split_conditions", "default_left",
            "base_weights", "loss_changes", "sum_hessian")  # fmt: skip


def rebuilt(seed: int) -> bytes:
    """A file's name in the first line, then its content: one of the good surrogate with one to three parts changed."""
    draw = random.Random(seed)
    name = draw.choice(sorted(_contents()))
    content = _contents()[name]
    change = _archive if name.endswith(".npz") else _card if name == surrogates.CARD else _trees
    return name.encode() + b"\n" + change(content, draw)


@functools.cache
def _contents() -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in surrogates.good().iterdir()}


def _archive(content: bytes, draw: random.Random) -> bytes:
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files}
    for _ in range(draw.randint(1, 2)):
        if draw.random() < 0.25:  # all of them alike, so that they still belong together
            size = draw.choice((0, 1, 2, 59))
            arrays = {name: values[:size] if values.ndim else values for name, values in arrays.items()}
        elif arrays and draw.random() < 0.2:
            arrays = _renamed(arrays, draw)
        elif arrays:
            name = draw.choice(sorted(arrays))
            arrays[name] = draw.choice(_ARRAYS)(arrays[name], draw)
    if arrays and draw.random() < 0.15:
        return _with_header(arrays, draw)
    np.savez(file := io.BytesIO(), **arrays)  # type: ignore[arg-type]  # its keywords have a bool among them
    return file.getvalue()


def _renamed(arrays: dict[str, Array], draw: random.Random) -> dict[str, Array]:
    """One is missing, has another name, or is there under a second one."""
    out, name = dict(arrays), draw.choice(sorted(arrays))
    what = draw.choice(("missing", "moved", "twice"))
    other = draw.choice((*sorted(arrays), "rows-7", "rows-x", "row", "squares-0", "x" * 50))
    if what != "twice":
        del out[name]
    return out if what == "missing" else out | {other: arrays[name]}


def _with_header(arrays: dict[str, Array], draw: random.Random) -> bytes:
    """One array says that it is of another shape or type than its bytes."""
    wrong, file = draw.choice(sorted(arrays)), io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in arrays.items():
            header = np.lib.format.header_data_from_array_1_0(np.ascontiguousarray(values))
            if name == wrong:
                header["shape"] = draw.choice(((-1,), (2**40,), (2**20, 2**20), (0, 2**62), (1,) * 70, (10**30,)))
                header["descr"] = draw.choice((header["descr"], "<f8", "|O", "<U99999", "|V999999"))
            np.lib.format.write_array_header_1_0(part := io.BytesIO(), header)
            archive.writestr(f"{name}.npy", part.getvalue() + np.ascontiguousarray(values).tobytes())
    return file.getvalue()


def _of_type(values: Array, draw: random.Random) -> Array:
    wanted: Any = draw.choice(TYPES)
    try:
        with np.errstate(all="ignore"):
            return values.astype(wanted)
    except (ValueError, TypeError):
        return np.zeros(values.shape, wanted)


def _with_numbers(values: Array, draw: random.Random) -> Array:
    """Some numbers, or all, are others; a type that cannot hold them becomes one that can."""
    out = np.array(values, copy=True)
    if values.dtype.kind in "US":
        words: Any = draw.choice(("", "|||", "a|b|c|d", "\x00", "☃" * 40, "nan"))
        return np.full(values.shape, words)
    if values.dtype.kind not in "?iuf":
        return out
    number = draw.choice(NUMBERS)
    if out.dtype.kind in "iu" and not np.iinfo(out.dtype).min <= number <= np.iinfo(out.dtype).max:
        out = out.astype(np.float64)
    with np.errstate(all="ignore"):
        if draw.random() < 0.5 or not out.size:
            out[...] = number
        else:
            out.flat[[draw.randrange(out.size) for _ in range(draw.randint(1, 3))]] = number
    return out


def _scaled(values: Array, draw: random.Random) -> Array:
    if values.dtype.kind != "f":
        return values[::-1] if values.ndim else values
    with np.errstate(all="ignore"):
        return values * values.dtype.type(draw.choice((1e-30, 1e-8, -1.0, 1e6, 1e20, 1e30)))


_ARRAYS: tuple[Callable[[Array, random.Random], Array], ...] = (
    _of_type, _with_numbers, _with_numbers, _scaled,
    lambda values, draw: values[None],
    lambda values, draw: values.ravel(),
    lambda values, draw: values.T,
    lambda values, draw: np.asarray(values.ravel()[0] if values.size else 0),
    lambda values, draw: values[: draw.choice((0, 1, -1))] if values.ndim else values,
    lambda values, draw: np.concatenate([values] * draw.choice((2, 50))) if values.ndim else values,
    lambda values, draw: values[..., :-1] if values.ndim else values,
    lambda values, draw: values[..., :0] if values.ndim else values,
    lambda values, draw: np.zeros(draw.choice(((10**6,), (3000, 3000), (0, 10**9)))),
    lambda values, draw: np.full_like(values, values.ravel()[0] if values.size else 0),
)  # fmt: skip


def _trees(content: bytes, draw: random.Random) -> bytes:
    document = json.loads(content)
    trees = document["learner"]["gradient_booster"]["model"]["trees"]
    for _ in range(draw.randint(1, 2)):
        if draw.random() < 0.5:
            _change_nodes(draw.choice(trees), draw)
        else:
            _change_value(document, draw)
    return json.dumps(document).encode()


def _change_nodes(tree: dict[str, Any], draw: random.Random) -> None:
    """An array of a tree's nodes with cycles, indices that are out of range, another length, or all of one number."""
    name = draw.choice(OF_NODES)
    values = tree.get(name)
    if not isinstance(values, list) or not values:  # it was changed before
        return
    count = len(values)
    what = draw.choice(("node", "node", "node", "number", "shorter", "longer", "alike", "other", "swapped", "deep"))
    if what == "node":
        values[draw.randrange(count)] = draw.choice((-2, -1, 0, 1, count - 1, count, 2**31 - 1, 2**31, 2**63, 0.5))
    elif what == "number":
        values[draw.randrange(count)] = draw.choice((*NUMBERS, *OTHERS))
    elif what == "shorter":
        del values[draw.randrange(count) :]
    elif what == "longer":
        values += values[-1:] * draw.choice((1, 100_000))
    elif what == "alike":
        tree[name] = [draw.choice(NUMBERS)] * count
    elif what == "other":
        tree[name] = draw.choice(OTHERS)
    elif what == "swapped":
        tree["left_children"], tree["right_children"] = tree["right_children"], tree["left_children"]
    else:
        tree.update(_deep(draw.choice((2, 63, 64, 65, 5000)), tree))


def _deep(levels: int, tree: dict[str, Any]) -> dict[str, Any]:
    """Nodes of a tree whose left child is always another node: one path of so many ``levels``."""
    count = 2 * levels + 1
    left = [at + 1 if not at else at + 2 if at % 2 and at + 3 < count else -1 for at in range(count)]
    right = [one + 1 if one >= 0 else -1 for one in left]
    parents = [2**31 - 1] + [0] * (count - 1)
    for at, one in enumerate(left):
        if 0 <= one < count - 1:
            parents[one] = parents[one + 1] = at
    weight = [float(count)] * count
    return {
        "left_children": left, "right_children": right, "parents": parents, "split_indices": [0] * count,
        "split_conditions": [0.5] * count, "default_left": [0] * count, "base_weights": [0.1] * count,
        "loss_changes": [0.0] * count, "sum_hessian": weight, "split_type": [0] * count,
        "tree_param": tree["tree_param"] | {"num_nodes": str(count)},
    }  # fmt: skip


def _card(content: bytes, draw: random.Random) -> bytes:
    card = json.loads(content)
    for _ in range(draw.randint(1, 3)):
        model = card.get("model")
        _change_value(model if isinstance(model, dict) and draw.random() < 0.8 else card, draw)
    text = json.dumps(card)
    if draw.random() < 0.03:
        text = text[:-1] + ', "deep": ' + "[" * draw.choice((500, 200_000)) + "}"
    return text.encode()


def _change_value(document: Any, draw: random.Random) -> None:
    """Something at a random depth is another value, missing, there twice, or moved from elsewhere in the document."""
    inner, key = document, None
    for _ in range(20):
        keys = sorted(inner) if isinstance(inner, dict) else range(len(inner))
        if not keys:
            break
        parent, key = inner, draw.choice(keys)
        inner = parent[key]
        if not isinstance(inner, dict | list) or draw.random() < 0.15:
            break
    if key is None:
        return
    what = draw.random()
    if what < 0.2:
        del parent[key]
    elif what < 0.6:
        parent[key] = draw.choice(NUMBERS) if draw.random() < 0.7 else copy.deepcopy(draw.choice(OTHERS))
    elif what < 0.75 and isinstance(inner, int | float):
        parent[key] = inner * draw.choice((-1, 1e-12, 1e-3, 1.0001, 1e3, 1e12))
    elif what < 0.85 and isinstance(inner, list):
        parent[key] = draw.choice((inner[:-1], inner * 2, inner[::-1], [inner]))
    elif isinstance(parent, dict):
        parent[str(draw.choice(("x", "strength", *map(str, parent))))] = copy.deepcopy(inner)
    else:
        parent.insert(0, copy.deepcopy(inner))
