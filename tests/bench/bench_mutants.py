"""Share of wrong formulas that the tests notice: small changes of the code, drawn by chance, and written by hand.

    OMP_NUM_THREADS=1 python tests/bench/bench_mutants.py                        # 200 drawn, and all of the file
    python tests/bench/bench_mutants.py --room physics --sample 40 --no-hand
    python tests/bench/bench_mutants.py --sample 0                               # wrong_formulas.yaml alone
    python tests/bench/bench_mutants.py --sample 0 --alone                     # tests that alone notice one: these stay

Each mutant is one change in a copy of the repository, judged by those tests of its room (mutant_rooms.py) that execute
the line (mutant_tests.py), up to the first that fails; one that runs out of time counts as noticed. Tests that fail
without any change are left out and named. What may be changed is in mutations.py; wrong_formulas.yaml lists formulas by
hand, whose ``before`` must stand in its file exactly once: else the bench reports it and ends with 1. Tests run in
forks of this process, which has the libraries loaded. Modules that move: edit mutant_rooms.py, and ``file`` in
wrong_formulas.yaml.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from mutant_rooms import ROOMS, is_of
from mutant_tests import OUT_OF_TIME, ROOT, TestFile, files_of, judged, recorded
from mutations import Change, changes, compiles

HAND = Path(__file__).with_name("wrong_formulas.yaml")
LOADED = (
    "numpy",
    "scipy.optimize",
    "scipy.linalg",
    "pandas",
    "hypothesis",
    "xgboost",
    "sklearn.base",
    "sqlalchemy.orm",
)
NOT_COPIED = (".*", "__pycache__", "*.egg-info", "build", "dist", "docs", "shared")


@dataclass(frozen=True)
class Verdict:
    """By which test a change was noticed; blank = by none."""

    room: str
    change: Change
    noticed_by: str
    seconds: float
    alone: bool = False  # no other test notices it


def main() -> None:
    options = _options()
    sampled = [one for room in options.room for one in _drawn(room, options)]
    random.Random(options.seed).shuffle(sampled)  # a run that is cut off has judged some of every room
    hand, errors = _hand_written(options.room, options.formulas) if options.hand else ([], [])
    if errors:
        sys.exit("\n".join(errors))
    for name in LOADED:
        importlib.import_module(name)
    rooms = list(dict.fromkeys(room for room, _ in [*hand, *sampled]))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [_copied(Path(folder) / str(i)) for i in range(options.jobs)]
        tests = _without_change(rooms, copies)
        verdicts = list(_judged([*hand, *sampled], tests, copies, options))
    _report(verdicts)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", action="append", choices=list(ROOMS), help="repeatable; default: all")
    parser.add_argument("--sample", type=int, default=200, help="changes drawn, equally many of each room (200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hand", action=argparse.BooleanOptionalAction, default=True, help="wrong_formulas.yaml")
    parser.add_argument("--formulas", type=Path, default=HAND, help="another such file, or a part of it")
    parser.add_argument("--jobs", type=int, default=2)
    quick = "a quick look: leave out the slowest tests, so that the others take this share of the time"
    parser.add_argument("--share", type=float, default=1.0, help=quick)
    parser.add_argument("--alone", action="store_true", help="look for a second test that notices each: takes longer")
    options = parser.parse_args()
    options.room = options.room or list(ROOMS)
    return options


def _drawn(room: str, options: argparse.Namespace) -> list[tuple[str, Change]]:
    """Changes of one room, its share of the sample, every possible one as likely."""
    found = []
    for file in (path.relative_to(ROOT) for path in files_of(ROOMS[room][0], "*.py")):
        if is_of(room, file):
            found += changes(file, (ROOT / file).read_bytes())
    count = len(range(options.room.index(room), options.sample, len(options.room)))
    random.Random(f"{options.seed} {room}").shuffle(found)
    kept = (one for one in found if compiles(one.applied((ROOT / one.file).read_bytes())))
    return [(room, one) for one, _ in zip(kept, range(count), strict=False)]


def _hand_written(rooms: Sequence[str], formulas: Path = HAND) -> tuple[list[tuple[str, Change]], list[str]]:
    """(room, change) of the file's formulas, and a line for each that does not fit the code any more."""
    found, errors = [], []
    for entry in yaml.safe_load(formulas.read_text(encoding="utf-8")):
        file, before = Path(entry["file"]), entry["before"].rstrip("\n").encode()
        room = next((name for name in ROOMS if is_of(name, file)), None)
        source = (ROOT / file).read_bytes() if (ROOT / file).is_file() else b""
        start, times = source.find(before), source.count(before)
        change = Change(file, start, start + len(before), entry["after"].rstrip("\n"), "hand", entry["why"])
        if times != 1 or room is None or not compiles(change.applied(source), file.suffix):
            cause = f"`before` occurs {times} times" if times != 1 else "it is in no room, or no Python or YAML"
            errors.append(f"{formulas.name}: {file}: {entry['why']}: {cause}")
        elif room in rooms:
            found.append((room, change))
    return found, errors


def _copied(folder: Path) -> Path:
    """The repository without links, so that a change in a copy stays in it."""
    return Path(shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_COPIED)))


def _without_change(rooms: Sequence[str], copies: Sequence[Path]) -> dict[str, dict[str, TestFile]]:
    """What the tests of each room do without a change, by file."""
    named = {room: [str(path.relative_to(ROOT)) for path in files_of(ROOMS[room][2])] for room in rooms}
    names = list(dict.fromkeys(name for files in named.values() for name in files))
    started = time.perf_counter()
    with _pool(copies) as pool:
        files = dict(zip(names, pool.map(_recorded, names), strict=True))
    print(f"{len(files)} test files without a change: {time.perf_counter() - started:.0f} s", flush=True)
    for failing in [name for file in files.values() for name, test in file.tests.items() if test.failed]:
        print(f"  left out, as it fails: {failing}", flush=True)
    return {room: {name: files[name] for name in named[room]} for room in rooms}


def _judged(
    mutants: Sequence[tuple[str, Change]], tests: dict[str, dict[str, TestFile]], copies: Sequence[Path],
    options: argparse.Namespace,
) -> Iterator[Verdict]:  # fmt: skip
    """Verdicts as they come."""
    _tests.update(tests)  # before the forks: workers have them without a copy
    with _pool(copies) as pool:
        waiting = [pool.submit(_judge, room, change, options.share, options.alone) for room, change in mutants]
        for done, future in enumerate(as_completed(waiting), 1):
            verdict = future.result()
            how = f"noticed by {verdict.noticed_by}" if verdict.noticed_by else f"NOT NOTICED\n{_shown(verdict)}\n"
            print(f"[{done}/{len(waiting)}] {_title(verdict)}: {how} ({verdict.seconds:.0f} s)", flush=True)
            yield verdict


_copy: list[Path] = []  # of this worker process
_tests: dict[str, dict[str, TestFile]] = {}


def _pool(copies: Sequence[Path]) -> ProcessPoolExecutor:
    """Workers of which each has a copy of its own."""
    context = multiprocessing.get_context("fork")
    free = context.SimpleQueue()
    for copy in copies:
        free.put(copy)
    return ProcessPoolExecutor(len(copies), context, _take_copy, (free,))


def _take_copy(free: Any) -> None:
    _copy.append(free.get())


def _recorded(name: str) -> TestFile:
    return recorded(name, _copy[0])


def _judge(room: str, change: Change, share: float, alone: bool) -> Verdict:
    started = time.perf_counter()
    noticed_by = judged(change, _tests[room], share, _copy[0])
    alone = alone and "::" in noticed_by and not judged(change, _tests[room], share, _copy[0], noticed_by)
    return Verdict(room, change, noticed_by, time.perf_counter() - started, alone)


def _title(verdict: Verdict) -> str:
    change = verdict.change
    return f"{change.file}:{change.line(_source(change.file))} {change.kind}"


def _shown(verdict: Verdict) -> str:
    change = verdict.change
    diff = "".join(f"    {line}\n" for line in change.diff(_source(change.file)).splitlines())
    return (f"    {change.why}\n" if change.why else "") + diff.rstrip("\n")


@functools.cache
def _source(file: Path) -> bytes:
    return (ROOT / file).read_bytes()


def _report(verdicts: Sequence[Verdict]) -> None:
    print("\nnot noticed:")
    for verdict in sorted(verdicts, key=lambda v: (v.change.kind != "hand", v.change.file, v.change.start)):
        if not verdict.noticed_by:
            print(f"{_title(verdict)}\n{_shown(verdict)}")
    for test in sorted({v.noticed_by for v in verdicts if v.alone}):
        print(f"alone notices a change: {test}")
    hand = [v for v in verdicts if v.change.kind == "hand"]
    drawn = [v for v in verdicts if v.change.kind != "hand"]
    print("\nnoticed, by room:", _shares([(v.room, v) for v in drawn]))
    print("noticed, by kind:", _shares([(v.change.kind, v) for v in drawn]))
    print("hand-written, by room:", _shares([(v.room, v) for v in hand]))
    late = sum(v.noticed_by == OUT_OF_TIME for v in verdicts)
    print(f"of those noticed {late} by {OUT_OF_TIME}")
    print(f"drawn: {_share(drawn)} noticed (mark: 90 %)")
    print(f"hand-written: {_share(hand)} noticed (mark: 95 %)")


def _shares(named: Sequence[tuple[str, Verdict]]) -> str:
    names = Counter(name for name, _ in named)
    return ", ".join(f"{name} {_share([v for n, v in named if n == name])}" for name in names)


def _share(verdicts: Sequence[Verdict]) -> str:
    noticed = sum(bool(v.noticed_by) for v in verdicts)
    return f"{noticed} of {len(verdicts)} ({noticed / max(len(verdicts), 1):.0%})"


if __name__ == "__main__":
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    main()
