"""Inputs that no user would write: good files with bytes, lines and values changed, and what reads them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from jointopt.core.errors import JointOptError

ROOT = Path(__file__).parents[2]
# values at the edges of what numbers, texts and parsers take
AWKWARD = (
    "nan", "-inf", "1e309", "-1", "0", "1e-320", "99999999999999999999", "null", "~", "true", "{}", "[]", "[[[[",
    "&a", "*a", "!!python/object:os.system", "\0", "﻿", "é", "\u202e", "'", '"', ",", ";", "\r", "\t", ": ", "- ",
    "\n\n",    "%s", "../../x", "a" * 3000, "1;2;3", "0x10", "1_000", "2026-01-01", "=cmd()", "\\", "${HOME}", "$(id)",
)  # fmt: skip
PLAN = {"dp": 2, "tp": 2, "pp": 2, "cp": 1, "micro_batch_size": 1, "stage_clock_mhz": [1410, 1200], "recompute": "none"}
TABLE = """\
dp,tp,pp,num_gpus,gpus_per_node,gpu,framework,model,seq_length,global_batch_size,status,iteration_time_s,energy_j,stage_clock_mhz
2,2,2,8,8,h100-sxm5-80gb,megatron-lm,llama-3-8b,4096,64,ok,5.5,21000,1410;1200
4,2,1,8,8,h100-sxm5-80gb,nemo,llama-3-8b,4096,64,oom,,,1980
"""
CALIBRATION = """\
version: 1
gpu: a100-sxm4-40gb
constants: {max_clock_mhz: 1410.0, static_w: 70.0, knee_fraction: 0.76, voltage_ratio: 1.3, wait_w: 95.0}
plus_minus: {static_w: 5.0}
fitted_on: {kind: stage profile, rows: 5}
fit_error_percent: {time: 0.1}
work: [{work: 0 forward, share: 0.8}]
measure_next: [more clocks]
"""
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(AWKWARD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


@dataclass(frozen=True)
class Kind:
    """Files of one kind: good ones, and the function of jointopt that reads one of that path."""

    name: str
    suffix: str
    seeds: tuple[bytes, ...]
    read: Callable[[Path], object]


def changed(seeds: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    """One of ``seeds`` with up to four changes of bytes, lines and words."""
    place = st.floats(0, 1, exclude_max=True)
    change = st.tuples(st.sampled_from(("flip", "cut", "insert", "line", "word", "end")), place, place,
                       st.sampled_from(AWKWARD))  # fmt: skip
    return st.builds(_apply, st.sampled_from(seeds), st.lists(change, min_size=1, max_size=4))


def restructured(seeds: tuple[bytes, ...], suffix: str) -> st.SearchStrategy[bytes]:
    """One of ``seeds`` (YAML or JSON) with the value of one key replaced by anything that such a file can hold."""
    parse = json.loads if suffix == ".json" else yaml.safe_load
    parsed = [parse(seed) for seed in seeds]
    dump: Callable[[Any], str] = json.dumps if suffix == ".json" else yaml.safe_dump
    return st.builds(
        lambda document, at, value: dump(_replaced(document, at, value)).encode("utf-8", "surrogatepass"),
        st.sampled_from(parsed), st.floats(0, 1, exclude_max=True), VALUES,
    )  # fmt: skip


def _replaced(document: Any, at: float, value: Any) -> Any:
    paths = list(_paths(document))
    path = paths[int(at * len(paths))]
    copy = json.loads(json.dumps(document))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copy


def _paths(document: Any, before: tuple[Any, ...] = ()) -> Any:
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in pairs:
        yield (*before, key)
        if isinstance(value, dict | list):
            yield from _paths(value, (*before, key))


def _apply(seed: bytes, changes: list[tuple[str, float, float, str]]) -> bytes:
    text = bytearray(seed)
    for what, first, second, token in changes:
        at = int(first * max(len(text), 1))
        if what == "flip" and text:
            text[at] ^= 1 + int(second * 255)
        elif what == "cut":
            del text[at : at + 1 + int(second * 40)]
        elif what == "insert":
            text[at:at] = token.encode("utf-8", "surrogatepass")
        elif what == "end":
            del text[at:]
        else:
            text = bytearray(_by_pieces(bytes(text), b"\n" if what == "line" else b" ", first, second, token))
    return bytes(text)


def _by_pieces(text: bytes, mark: bytes, first: float, second: float, token: str) -> bytes:
    """A line doubled elsewhere, or a word replaced."""
    pieces = text.split(mark)
    at = int(first * len(pieces))
    if mark == b"\n":
        pieces.insert(int(second * len(pieces)), pieces[at])
    else:
        pieces[at] = token.encode("utf-8", "surrogatepass")
    return mark.join(pieces)


# pieces of scripts, of which some state in a few lines what no memory holds; $N is a variable, §: another piece
PIECES = (
    "N=§", "N=$N$N", 'N="${N} ${M}"', "N+=§", "N+=$N", "N=(§ §)", 'N=("${N[@]}" "${M[@]}")', "N+=(§)", "M=$((N * N))",
    "N=${M:-§}", "export N=§ M=§", "if [ § = § ]; then §; else §; fi", "if [[ $N == § ]]; then", "elif [ -z $N ]; then",
    "else", "fi", "train --num-layers § --hidden-size § $N", "torchrun --nproc-per-node § train.py $N ${M[@]} \\",
    "  --tensor-model-parallel-size § \\",
    "#SBATCH --nodes=§", "§ && § || §; § | §", "$(§)", "`§`", "$((§))", "'§", '"§',
    "(", ")", "§ > § 2>&1", "for i in §; do", "done", "cat <<END", "END", "§=§", "--§ §", "§ # §",
)  # fmt: skip
_WORDS = ("1", "8", "a", "$N", "${N}", "${M[@]}", "$1", "--seq-length", "4096", " ", "x" * 200, "$((N + 1))", *AWKWARD)


@st.composite
def scripts(draw: st.DrawFn) -> bytes:
    """Pieces of shell, whole groups of them many times over."""
    lines = []
    for _ in range(draw(st.integers(1, 8))):
        group = draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4))
        for word in ("", *draw(st.lists(st.sampled_from(_WORDS), max_size=6))):
            group = [line.replace("§", word or "§", 2 if word else 0) for line in group]
        lines += group * draw(st.sampled_from((1, 1, 2, 20, 60)))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def repeated(seeds: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    """One of ``seeds`` in which a piece stands so often that the file has up to a megabyte."""
    place = st.floats(0, 1, exclude_max=True)
    marks = st.sampled_from((b"", *map(str.encode, "\n .:|[(,")))
    sizes = st.sampled_from((10_000, 100_000, 1_000_000))
    return st.builds(_repeat, st.sampled_from(seeds), place, st.sampled_from((1, 2, 5, 40, 400)), sizes, marks)


def _repeat(seed: bytes, place: float, size: int, total: int, mark: bytes) -> bytes:
    at = int(place * max(len(seed), 1))
    piece = seed[at : at + size] + mark or b" "
    return seed[:at] + piece * (total // len(piece)) + seed[at:]


def _read_job(path: Path) -> object:
    from jointopt.jobs.jobfile import load_job

    return load_job(path)


def _read_table(path: Path) -> object:
    from jointopt.workflows.ingest import ingest

    return ingest(path, "sqlite://")


def _read_plan(path: Path) -> object:
    from jointopt.measure.hardware.gpu_clocks import plan_settings
    from jointopt.workflows.exec import _used_gpus
    from jointopt.workflows.plan_files import read_plan_file

    plan = read_plan_file(path)
    return _used_gpus(plan) and plan_settings(plan)


def _read_calibration(path: Path) -> object:
    from jointopt.jobs.calibration import load_calibration

    return load_calibration(path)


def _read_log(path: Path) -> object:
    from jointopt.frameworks.import_files import read_files

    return read_files([path])


def _logs() -> tuple[bytes, ...]:
    folder = ROOT / "tests" / "frameworks" / "imports" / "samples"
    return tuple(
        file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file() and file.stat().st_size < 60_000
    )


def _jobs() -> tuple[bytes, ...]:
    texts = [file.read_bytes() for file in sorted((ROOT / "studies").rglob("*.yaml"))]
    return tuple(text for text in texts if b"training:" in text and b"cluster:" in text and b"config.json" not in text)


def _plans() -> tuple[bytes, ...]:
    return tuple(json.dumps(one).encode() for one in (PLAN, {"plan": PLAN}, {"front": [PLAN]}))


def _surrogates() -> Kind:
    from tests.campaign import surrogates

    files = sorted(surrogates.good().iterdir())
    return Kind("surrogates", ".bin", tuple(f"{file.name}\n".encode() + file.read_bytes() for file in files),
                surrogates.read)  # fmt: skip


def _rebuilt() -> Kind:
    return replace(_surrogates(), name="rebuilt")


def _exports() -> Kind:
    from tests.campaign import exports

    return Kind("exports", ".json", exports.documents(), exports.read)


_KINDS: dict[str, Callable[[], Kind]] = {
    "jobs": lambda: Kind("jobs", ".yaml", _jobs(), _read_job),
    "tables": lambda: Kind("tables", ".csv", (TABLE.encode(),), _read_table),
    "plans": lambda: Kind("plans", ".json", _plans(), _read_plan),
    "calibrations": lambda: Kind("calibrations", ".yaml", (CALIBRATION.encode(),), _read_calibration),
    "logs": lambda: Kind("logs", ".txt", _logs(), _read_log),
    "scripts": lambda: Kind("scripts", ".sh", (b"torchrun --nproc-per-node 8 pretrain_gpt.py",), _read_log),
    "long logs": lambda: Kind("long logs", ".txt", _logs(), _read_log),
    "surrogates": _surrogates,
    "rebuilt": _rebuilt,
    "exports": _exports,
}
NAMES = tuple(_KINDS)


@functools.cache
def kind_named(name: str) -> Kind:
    """The kind of that name."""
    return _KINDS[name]()


def inputs(kind: Kind) -> st.SearchStrategy[bytes]:
    """Changed files of a kind."""
    if kind.name == "rebuilt":
        from tests.campaign.rebuilt import rebuilt

        return st.integers(0, 2**62).map(rebuilt)
    if kind.name == "surrogates":
        return st.sampled_from(kind.seeds).flatmap(_of_surrogates)
    if kind.name == "scripts":
        return scripts()
    if kind.name == "long logs":
        return repeated(kind.seeds)
    if kind.name in ("jobs", "plans", "calibrations", "exports"):
        return changed(kind.seeds) | restructured(kind.seeds, kind.suffix)
    return changed(kind.seeds)


def _of_surrogates(seed: bytes) -> st.SearchStrategy[bytes]:
    """Changes of one file, whose name stays in the first line."""
    name, _, content = seed.partition(b"\n")
    other = changed((content,)) | restructured((content,), ".json") if name.endswith(b".json") else changed((content,))
    return other.map(lambda text: name + b"\n" + text)


def outcome(kind: Kind, path: Path) -> str:
    """``read``, ``refused`` in one sentence, or the exception that escaped."""
    try:
        kind.read(path)
    except JointOptError as error:
        return "refused" if str(error).strip() else "refused without a sentence"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return "read"
