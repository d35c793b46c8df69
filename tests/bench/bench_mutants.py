"""Share of wrong formulas that the tests notice: small changes of the code, drawn by chance, and written by hand.

    OMP_NUM_THREADS=1 python tests/bench/bench_mutants.py                        # 200 drawn, and all of the file
    python tests/bench/bench_mutants.py --room physics --sample 40 --no-hand
    python tests/bench/bench_mutants.py --sample 0                               # wrong_formulas.yaml alone

Each mutant is one change in a copy of the repository, judged by the tests of its room (`ROOMS`), quick ones first,
up to the first that fails; one that runs out of time counts as noticed. Tests that fail without any change are left
out and named. What may be changed is in mutations.py; wrong_formulas.yaml lists formulas by hand, whose ``before`` must
stand in its file exactly once: else the bench says so at once and ends with 1. Tests run in forks of this process,
which has the libraries loaded. Rooms that move: edit `ROOMS`, and ``file`` in wrong_formulas.yaml.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, settings
from mutations import Change, changes, compiles

ROOT = Path(__file__).parents[2]
HAND = Path(__file__).with_name("wrong_formulas.yaml")
QUICK = ("tests/golden", "tests/physics/hand*", "tests/**/test_*by_hand.py")
NOT_DRAWN = (
    "launchers/process.py",  # it ends processes: a change in which may end those of others
    "guard",  # so does a guardian, which outlives what started it
    "trainer", "launchers/slurm.py", "launchers/slurm_control.py", "launchers/slurm_fleet.py",
    "launchers/slurm_watch.py",  # tests of PyTorch and Slurm are those of services
)  # fmt: skip
# room: (its code, what of it is not drawn, its tests in the order in which they run)
ROOMS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "physics": (
        ("jointopt/physics",), ("jointopt/physics/polish",),
        (*QUICK, "tests/physics/test_*.py", "tests/physics/calibrate", "tests/test_accuracy_gate.py"),
    ),
    "plans": (("jointopt/spec/plans",), (), (*QUICK, "tests/spec/plans")),
    "surrogate": (
        ("jointopt/surrogate", "jointopt/core/units.py"), (),
        (*QUICK, "tests/surrogate", "tests/test_accuracy_gate.py"),
    ),
    "polish": (
        ("jointopt/physics/polish", "jointopt/workflows/polish.py"), (),
        (*QUICK, "tests/physics/polish", "tests/workflows/test_polish.py", "tests/surrogate/test_job_model.py"),
    ),
    "tables": (("jointopt/runs",), (), ("tests/runs", "tests/surrogate/test_dataset.py")),
    "measure": (
        ("jointopt/measure",), tuple(f"jointopt/measure/{name}" for name in NOT_DRAWN),
        tuple(f"tests/measure/{name}" for name in ("devices", "exports", "imports", "logs", "launchers")),
    ),
    "search": (("jointopt/search",), (), ("tests/search", "tests/contracts/test_searchers.py", "tests/golden")),
    "workflows": (
        ("jointopt/workflows",), ("jointopt/workflows/polish.py",),
        ("tests/workflows", "tests/golden", "tests/report"),
    ),
    "report": (("jointopt/report",), (), ("tests/report", "tests/workflows/test_layouts.py", "tests/golden")),
}  # fmt: skip
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
SLOWER, START_S = 6.0, 60.0  # time limit of a mutant: so many times that of the room, and a start
ARGUMENTS = ("-q", "-m", "not services", "-p", "no:cacheprovider", "-n", "0", "--tb=line", "--hypothesis-seed=0")
OUT_OF_TIME = "running out of time"
MOST_BYTES = 12 << 30  # of address space, for a change that asks for arrays without end
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass
class Tests:
    """What judges a room: test files, tests that fail without a change, seconds of each test, limit for all."""

    files: list[str]
    failing: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    limit_s: float = 3600.0

    def ordered(self, mutated: Path) -> list[str]:
        """Quick files, then those named as the module, those that import it, and the others by the time they take."""
        quick = {str(path.relative_to(ROOT)) for path in _files(QUICK)}
        imported = ".".join(mutated.with_suffix("").parts), f"import {mutated.stem}"
        file_s: Counter[str] = Counter()
        for name, seconds in self.seconds.items():
            file_s[name.split("::")[0]] += seconds

        def rank(name: str) -> tuple[bool, bool, bool, float]:
            mentioned = any(one in (ROOT / name).read_text(encoding="utf-8") for one in imported)
            return name not in quick, mutated.stem not in Path(name).stem, not mentioned, file_s[name]

        return sorted(self.files, key=rank)

    def slowest(self, share: float) -> list[str]:
        """Tests that are left out where all others are to take that share of the time."""
        ranked = sorted(self.seconds, key=self.seconds.__getitem__)
        used = itertools.accumulate(self.seconds[name] for name in ranked)
        most = share * sum(self.seconds.values()) + 1e-6
        return [name for name, so_far in zip(ranked, used, strict=True) if so_far > most]


@dataclass(frozen=True)
class Verdict:
    """By which test a change was noticed; blank = by none."""

    room: str
    change: Change
    noticed_by: str
    seconds: float


class Recorder:
    """Leaves tests out, and writes down which of the others failed and how long each took."""

    def __init__(self, left_out: Sequence[str]) -> None:
        self._left_out = set(left_out)
        self.failing: list[str] = []
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_collection(self) -> None:
        """Import the tests under the repository's settings, but for the search of a smaller example that fails."""
        phases = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target)
        settings.register_profile("unshrunk", settings(), phases=phases)
        settings.load_profile("unshrunk")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self._left_out]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failing.append(report.nodeid)


def main() -> None:
    options = _options()
    sampled = [one for room in options.room for one in _drawn(room, options)]
    hand, errors = _hand_written(options.room, options.formulas) if options.hand else ([], [])
    if errors:
        sys.exit("\n".join(errors))
    for name in LOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [_copied(Path(folder) / str(i)) for i in range(options.jobs)]
        tests = {room: _without_change(room, copies[0]) for room in options.room}
        verdicts = list(_judged([*hand, *sampled], tests, copies, options.share))
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
    options = parser.parse_args()
    options.room = options.room or list(ROOMS)
    return options


def _drawn(room: str, options: argparse.Namespace) -> list[tuple[str, Change]]:
    """Changes of one room, its share of the sample, every possible one as likely."""
    found = []
    for file in (path.relative_to(ROOT) for path in _files(ROOMS[room][0], "*.py")):
        if _is_of(room, file):
            found += changes(file, (ROOT / file).read_bytes())
    count = len(range(options.room.index(room), options.sample, len(options.room)))
    random.Random(f"{options.seed} {room}").shuffle(found)
    kept = (one for one in found if compiles(one.applied((ROOT / one.file).read_bytes())))
    return [(room, one) for one, _ in zip(kept, range(count), strict=False)]


def _is_of(room: str, file: Path) -> bool:
    code, left_out, _ = ROOMS[room]
    return str(file).startswith(code) and not str(file).startswith(left_out)


def _hand_written(rooms: Sequence[str], formulas: Path = HAND) -> tuple[list[tuple[str, Change]], list[str]]:
    """(room, change) of the file's formulas, and a line for each that does not fit the code any more."""
    found, errors = [], []
    for entry in yaml.safe_load(formulas.read_text(encoding="utf-8")):
        file, before = Path(entry["file"]), entry["before"].rstrip("\n").encode()
        room = next((name for name in ROOMS if _is_of(name, file)), None)
        source = (ROOT / file).read_bytes() if (ROOT / file).is_file() else b""
        start, times = source.find(before), source.count(before)
        change = Change(file, start, start + len(before), entry["after"].rstrip("\n"), "hand", entry["why"])
        if times != 1 or room is None or not compiles(change.applied(source)):
            cause = f"`before` occurs {times} times" if times != 1 else "it is in no room, or no Python"
            errors.append(f"{formulas.name}: {file}: {entry['why']}: {cause}")
        elif room in rooms:
            found.append((room, change))
    return found, errors


def _files(patterns: Sequence[str], inside: str = "test_*.py") -> list[Path]:
    """Files that the patterns name, and those called ``inside`` of the folders that they name, each once."""
    found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    files = [sorted(path.rglob(inside)) if path.is_dir() else [path] for path in found]
    return list(dict.fromkeys(itertools.chain.from_iterable(files)))


def _copied(folder: Path) -> Path:
    """The repository without links, so that a change in a copy stays in it."""
    return Path(shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_COPIED)))


def _without_change(room: str, copy: Path) -> Tests:
    """The tests of a room after a run of the code as it is."""
    tests = Tests([str(path.relative_to(ROOT)) for path in _files(ROOMS[room][2])])
    started = time.perf_counter()
    record = copy.with_suffix(".json")
    code, log = _run(copy, tests.files, tests.limit_s, record=record)
    if code not in (0, 1) or not record.is_file():  # 1: some fail; others: none ran
        sys.exit(f"The tests of {room} do not run without a change:\n{log[-2000:]}")
    found = json.loads(record.read_text(encoding="utf-8"))
    tests.failing, tests.seconds = found["failing"], found["seconds"]
    tests.files = [name for name in tests.files if any(test.startswith(name) for test in tests.seconds)]
    seconds = time.perf_counter() - started
    tests.limit_s = SLOWER * seconds + START_S
    print(
        f"{room}: {len(tests.files)} test files, {seconds:.0f} s, {len(tests.failing)} failing without a change",
        flush=True,
    )
    for name in tests.failing:
        print(f"  left out: {name}")
    return tests


def _judged(
    mutants: Sequence[tuple[str, Change]], tests: dict[str, Tests], copies: Sequence[Path], share: float
) -> Iterator[Verdict]:
    """Verdicts as they come; each worker process has a copy of its own."""
    context = multiprocessing.get_context("fork")
    free = context.SimpleQueue()
    for copy in copies:
        free.put(copy)
    with ProcessPoolExecutor(len(copies), context, _take_copy, (free,)) as pool:
        waiting = [pool.submit(_judge, room, change, tests[room], share) for room, change in mutants]
        for done, future in enumerate(as_completed(waiting), 1):
            verdict = future.result()
            how = f"noticed by {verdict.noticed_by}" if verdict.noticed_by else f"NOT NOTICED\n{_shown(verdict)}\n"
            print(f"[{done}/{len(waiting)}] {_title(verdict)}: {how} ({verdict.seconds:.0f} s)", flush=True)
            yield verdict


_copy: list[Path] = []  # of this worker process


def _take_copy(free: Any) -> None:
    _copy.append(free.get())


def _judge(room: str, change: Change, tests: Tests, share: float) -> Verdict:
    file = _copy[0] / change.file
    source, started = file.read_bytes(), time.perf_counter()
    try:
        file.write_bytes(change.applied(source))
        _forget_compiled(file)
        left_out = [*tests.failing, *tests.slowest(share)]
        code, log = _run(_copy[0], tests.ordered(change.file), tests.limit_s, left_out)
    finally:
        file.write_bytes(source)
        _forget_compiled(file)
    return Verdict(room, change, _noticed_by(code, log), time.perf_counter() - started)


def _noticed_by(code: int | None, log: str) -> str:
    failed = _FAILED.search(log)
    if code is None:
        return OUT_OF_TIME
    if failed:
        return failed[1]
    return f"exit code {code}" if code else ""


def _forget_compiled(file: Path) -> None:
    """Bytecode is told from its source by a time in whole seconds and a size, which a change need not alter."""
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()


def _run(
    copy: Path, files: Sequence[str], limit_s: float, left_out: Sequence[str] = (), record: Path | None = None
) -> tuple[int | None, str]:
    """(exit code of pytest, None where it ran out of time; its output), of a fork in a copy of the repository."""
    log, scratch = copy.with_suffix(".log"), copy.with_suffix(".tmp")
    arguments = [*ARGUMENTS, f"--basetemp={scratch}", *([] if record else ["-x"]), *files]
    of_pytest = (copy, log, arguments, left_out, record)
    process = multiprocessing.get_context("fork").Process(target=_pytest, args=of_pytest)
    process.start()
    process.join(limit_s)
    alive = process.is_alive()
    if process.pid is not None:
        with suppress(ProcessLookupError):  # what tests have started ends with them
            os.killpg(process.pid, signal.SIGKILL)
    process.join()
    for folder in (scratch, copy / ".hypothesis"):
        shutil.rmtree(folder, ignore_errors=True)
    return None if alive else process.exitcode, log.read_text(encoding="utf-8", errors="replace")


def _pytest(copy: Path, log: Path, arguments: list[str], left_out: Sequence[str], record: Path | None) -> None:
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(copy)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    os.environ["PYTHONPATH"] = str(copy)  # of the programs that tests start
    sys.path[:0] = [str(copy)]
    recorder = Recorder(left_out)
    code = pytest.main(arguments, plugins=[recorder])
    if record is not None:
        found = {"failing": recorder.failing, "seconds": recorder.seconds}
        record.write_text(json.dumps(found), encoding="utf-8")
    sys.stdout.flush()
    os._exit(code)


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
