"""Which tests can notice a change, by the lines that each has executed, and runs of them: for bench_mutants.py.

Every test file runs once without a change, in a fork of its own (so that no other file has filled a cache before it),
while Coverage.py writes down which lines each test executes. A change is then judged by the tests that execute its
statement first, then by those of the same files, which may use what these keep, and by all that start programs, whose
lines that are not written down. What was written down is kept in build/mutants until the code or the test file changes.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import coverage
import pytest
from hypothesis import Phase, settings
from mutations import Change

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "mutants"
ARGUMENTS = ("-q", "-m", "not services", "-p", "no:cacheprovider", "-n", "0", "--tb=line", "--hypothesis-seed=0")
OUT_OF_TIME = "running out of time"
SLOWER, START_S, LONGEST_S = 6.0, 60.0, 1800.0  # time limit: so many times that without a change, and a start
MOST_BYTES = 12 << 30  # of address space, for a change that allocates arrays without end
STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass
class Test:
    """What one test did without a change; ``lines`` by file of the code."""

    seconds: float = 0.0
    failed: bool = False
    starts_programs: bool = False
    lines: dict[str, list[int]] = field(default_factory=dict)


@dataclass
class TestFile:
    """The tests of a file by name, and the lines that run when it is imported."""

    tests: dict[str, Test]
    imported: dict[str, list[int]]

    @classmethod
    def of(cls, data: dict[str, Any]) -> TestFile:
        return cls({name: Test(**test) for name, test in data["tests"].items()}, data["imported"])


def recorded(name: str, copy: Path) -> TestFile:
    """What the tests of a file do without a change, as it was kept or by a run in a copy of the repository."""
    kept = KEPT / f"{_state()}-{hashlib.sha256((ROOT / name).read_bytes()).hexdigest()[:16]}.json"
    if not kept.is_file():
        record = copy.with_suffix(".json")
        record.unlink(missing_ok=True)
        code, log = _run(copy, LONGEST_S, lambda: _recording(copy, name, record))
        if code not in (0, 1, 5) or not record.is_file():  # 1: some fail; 5: all are of services
            sys.exit(f"The tests of {name} do not run without a change:\n{log[-2000:]}")
        KEPT.mkdir(parents=True, exist_ok=True)
        shutil.move(record, kept)
    return TestFile.of(json.loads(kept.read_text(encoding="utf-8")))


@functools.cache
def _state() -> str:
    """A code of all that tests use: the code, data, and helpers of tests."""
    folders = [ROOT / name for name in ("jointopt", "cli", "models", "studies", "tests")]
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    used = [path for path in files if not path.name.startswith("test_") and path.suffix != ".pyc"]
    outside = [path for path in used if "bench" not in path.parts]
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in outside)).hexdigest()[:16]


def judged(change: Change, files: dict[str, TestFile], share: float, copy: Path, but: str = "") -> str:
    """By which test a change is noticed, in a copy of the repository, ``but`` for one; blank = by none."""
    ranks = ranked(change, (ROOT / change.file).read_bytes(), files, share)
    ranks.pop(but, None)
    if not ranks:
        return ""
    seconds = sum(files[name.split("::")[0]].tests[name].seconds for name in ranks)
    with changed(copy / change.file, change):
        code, log = _run(copy, SLOWER * seconds + START_S, lambda: _judging(copy, ranks))
    failed = _FAILED.search(log)
    if code is None:
        return OUT_OF_TIME
    return failed[1] if failed else f"exit code {code}" * bool(code)


def ranked(change: Change, source: bytes, files: dict[str, TestFile], share: float) -> dict[str, tuple[Any, ...]]:
    """The tests that can notice a change, with the order in which they run.

    Those that execute its statement come first, in quick files first; a statement that runs at import is used by those
    that execute any of its module, in one of constants alone by all that import it, and a line of data by all. Of each
    the slowest are left out that take more than ``share`` of the time.
    """
    module = str(change.file)
    is_data = change.file.suffix != ".py"  # who reads which line of data is not written down: any test may
    statement = set() if is_data else _statement(change, source)
    at_import = any(statement.intersection(file.imported.get(module, ())) for file in files.values())
    only_constants = not any(test.lines.get(module) for file in files.values() for test in file.tests.values())
    found: dict[str, tuple[Any, ...]] = {}
    for name, file in files.items():
        able = {key: test for key, test in file.tests.items() if not test.failed}
        constants = at_import and only_constants and module in file.imported
        uses = [key for key, test in able.items() if is_data or constants or (at_import and test.lines.get(module))]
        uses += [key for key, test in able.items() if statement.intersection(test.lines.get(module, ()))]
        seconds = sum(able[key].seconds for key in uses)
        for place, (key, test) in enumerate(able.items()):
            if uses or test.starts_programs:
                found[key] = (key not in uses, seconds, name, place)
    every = {key: test for file in files.values() for key, test in file.tests.items()}
    by_time = sorted(found, key=lambda key: every[key].seconds)
    most, used = share * sum(every[key].seconds for key in found) + 1e-6, 0.0
    for key in by_time:
        used += every[key].seconds
        if used > most:
            del found[key]
    return found


def _statement(change: Change, source: bytes) -> set[int]:
    """The lines of the statement around a change, of a compound one those before its body."""
    first, last = (source.count(b"\n", 0, at) + 1 for at in (change.start, max(change.end - 1, change.start)))
    spans = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.lineno <= first and last <= (node.end_lineno or node.lineno):
            body = getattr(node, "body", None)
            spans.append((node.lineno, body[0].lineno - 1 if body and last < body[0].lineno else node.end_lineno))
    start, end = max(spans, key=lambda span: (span[0], -span[1]))
    return set(range(start, max(start, end) + 1))


class changed:
    """Context in which a file has a change; bytecode is matched to its source by seconds and size, which may agree."""

    def __init__(self, file: Path, change: Change) -> None:
        self._file, self._change, self._source = file, change, file.read_bytes()

    def __enter__(self) -> None:
        self._write(self._change.applied(self._source))

    def __exit__(self, *_: object) -> None:
        self._write(self._source)

    def _write(self, source: bytes) -> None:
        self._file.write_bytes(source)
        for compiled in (self._file.parent / "__pycache__").glob(f"{self._file.stem}.*"):
            compiled.unlink()


def _run(copy: Path, limit_s: float, work: Callable[[], int]) -> tuple[int | None, str]:
    """(exit code of pytest, None where it ran out of time; its output), of a fork in a copy of the repository."""
    log = copy.with_suffix(".log")
    process = multiprocessing.get_context("fork").Process(target=_in_copy, args=(copy, log, work))
    process.start()
    process.join(limit_s)
    alive = process.is_alive()
    if process.pid is not None:
        with suppress(ProcessLookupError):  # what tests have started ends with them
            os.killpg(process.pid, signal.SIGKILL)
    process.join()
    for folder in (_scratch(copy), copy / ".hypothesis"):
        shutil.rmtree(folder, ignore_errors=True)
    return None if alive else process.exitcode, log.read_text(encoding="utf-8", errors="replace")


def _scratch(copy: Path) -> Path:
    return copy.with_suffix(".tmp")


def _in_copy(copy: Path, log: Path, work: Callable[[], int]) -> None:
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(copy)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    os.environ["PYTHONPATH"] = str(copy)  # of the programs that tests start
    sys.path[:0] = [str(copy)]
    code = work()
    sys.stdout.flush()
    os._exit(code)


def _judging(copy: Path, ranks: dict[str, tuple[Any, ...]]) -> int:
    """Exit code of the ranked tests up to the first that fails."""
    names = sorted({name.split("::")[0] for name in ranks})
    return int(pytest.main([*ARGUMENTS, f"--basetemp={_scratch(copy)}", "-x", *names], plugins=[_Chosen(ranks)]))


def _recording(copy: Path, name: str, record: Path) -> int:
    """Exit code of all tests of a file; writes down what they do."""
    lines = coverage.Coverage(data_file=None, config_file=False, source=[str(copy / "jointopt")])
    recorder = _Recorder(lines)
    sys.addaudithook(recorder.heard)
    lines.start()
    code = pytest.main([*ARGUMENTS, f"--basetemp={_scratch(copy)}", name], plugins=[recorder])
    lines.stop()
    by_test = _by_test(lines.get_data(), copy)
    for test, executed in by_test.items():
        recorder.tests[test].lines = executed
    imported = recorder.tests.pop("", Test()).lines
    record.write_text(json.dumps(asdict(TestFile(dict(recorder.tests), imported))), encoding="utf-8")
    return int(code)


def _by_test(data: coverage.CoverageData, copy: Path) -> dict[str, dict[str, list[int]]]:
    """Lines by test, blank for those at import, and by file of the code."""
    found: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(data.measured_files()):
        for line, tests in data.contexts_by_lineno(file).items():
            for test in tests:
                found[test][str(Path(file).relative_to(copy))].append(line)
    return {test: dict(lines) for test, lines in found.items()}


class _Unshrunk:
    """Imports the tests under the repository's settings, but for the search of a smaller example that fails."""

    def pytest_collection(self) -> None:
        phases = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target)
        settings.register_profile("unshrunk", settings(), phases=phases)
        settings.load_profile("unshrunk")


class _Chosen(_Unshrunk):
    """Runs the ranked tests in their order, and no other."""

    def __init__(self, ranks: dict[str, tuple[Any, ...]]) -> None:
        self._ranks = ranks

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._ranks]
        items[:] = sorted(chosen, key=lambda item: self._ranks[item.nodeid])


class _Recorder(_Unshrunk):
    """Writes down which tests fail, how long they take, what they execute and whether they start programs."""

    def __init__(self, lines: coverage.Coverage) -> None:
        self._lines, self._now = lines, ""
        self.tests: defaultdict[str, Test] = defaultdict(Test)

    def heard(self, event: str, _: tuple[Any, ...]) -> None:
        if event in STARTS and self._now:
            self.tests[self._now].starts_programs = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._now = item.nodeid
        self._lines.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._now = ""
            self._lines.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self.tests[report.nodeid]
        test.seconds += report.duration
        test.failed |= report.failed


def files_of(patterns: Sequence[str], inside: str = "test_*.py") -> list[Path]:
    """Files that the patterns name, and those called ``inside`` of the folders that they name, each once."""
    found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return list(dict.fromkeys(file for path in found for file in (sorted(path.rglob(inside)) or [path])))
