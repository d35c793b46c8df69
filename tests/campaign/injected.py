"""Fails the n-th call by which a tune keeps its runs, n = 1, 2, ... until a tune passes without, as SQLite does.

``python tests/campaign/injected.py [replay|command] [INJECTIONS] [ONE_IN] [FIRST]``: calls are those of files (open,
write, fsync, truncate, unlink, replace) and of the database (connect, statement, commit), each failed once or from then
on, a commit also after it was done; ``FIRST``: the mode to begin with, 1 to 8. After each tune the next start takes
in what waits; counted are rows that the launcher returned and the store lacks, rows twice, tracebacks, and sentences
that claim what is not so.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shlex
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import sqlalchemy as sa
from sqlalchemy.dialects.sqlite.base import SQLiteDialect

from jointopt.core.errors import JointOptError
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.measure.local import CommandLauncher
from jointopt.measure.replay import ReplayLauncher
from jointopt.report.real_runs import TERMINATED
from jointopt.runs import database
from jointopt.runs.spill import rows_in, spill_files
from jointopt.runs.store import Store
from jointopt.workflows.campaign import campaign, record
from jointopt.workflows.tune import tune

RUNS = 3
TINY: dict[str, Any] = {
    "model": {"num_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "vocab_size": 1024},
    "training": {"seq_length": 128, "global_batch_size": 16, "dtype": "fp32", "framework": "torchtitan"},
    "cluster": {"gpu": "cpu-core", "nodes": 1, "gpus_per_node": 4},
    "search": {"cp": [1], "vpp": [1], "recompute": ["none"], "zero_stage": [2]},
    "objectives": ["iteration_time_s"],
}
FILES = ("open", "write", "fsync", "ftruncate", "unlink", "replace")
LOCKED, BROKEN = "database is locked", "disk I/O error"
MODES = (  # what fails, with what, whether all later calls fail too, and which share of calls is tried: one in so many
    ("files", "EIO", False, 1), ("files", "ENOSPC", True, 1), ("answer", LOCKED, False, 1),
    ("answer", BROKEN, False, 1), ("database", BROKEN, False, 2), ("database", LOCKED, False, 2),
    ("database", BROKEN, True, 5), ("database", LOCKED, True, 10),
)  # fmt: skip
PROGRAM = "import json, sys; json.dump({'iteration_time_s': 1 + int(sys.argv[2]) / 7 + int(sys.argv[3])}, open(sys.argv[1], 'w'))"  # noqa: E501


@dataclass
class Fault:
    """The failure of the ``number``-th call of ``what``; ``calls`` counts those that there were."""

    what: str
    reason: str
    lasting: bool
    number: int
    calls: int = 0
    armed: bool = True

    def hit(self, what: str) -> bool:
        """Count a call; whether it fails."""
        if not self.armed or what != self.what:
            return False
        self.calls += 1
        return self.calls == self.number or (self.lasting and self.calls > self.number)


class Returned:
    """A launcher whose rows are noted as it returns them."""

    def __init__(self, launcher: Any) -> None:
        self._launcher, self.rows, self.name = launcher, [], launcher.name

    def candidates(self, job: Job) -> Any:
        return self._launcher.candidates(job)

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        row = self._launcher.run(job, plan)
        self.rows.append(row["iteration_time_s"])
        return row  # type: ignore[no-any-return]


def table(job: Job) -> pd.DataFrame:
    """Recorded plans of the job, each of a time of its own."""
    rows = pd.DataFrame([(4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 2, 2)], columns=["dp", "tp", "pp"])
    return rows.assign(
        micro_batch_size=1, num_layers=4, hidden_size=128, num_attention_heads=4, vocab_size=1024, seq_length=128,
        global_batch_size=16, dtype="fp32", framework="torchtitan", gpu="cpu-core", gpus_per_node=4, num_gpus=4,
        zero_stage=2, status="ok", iteration_time_s=[1.25, 1.5, 1.75, 2.25, 2.5],
    )  # fmt: skip


@contextmanager
def injected(fault: Fault) -> Iterator[None]:
    """The fault in this process, in the body."""
    before = {name: getattr(os, name) for name in FILES}

    def failing(name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            if fault.hit("files"):
                number = getattr(errno, fault.reason)
                raise OSError(number, os.strerror(number), *(given[:1] if isinstance(given[0], str) else ()))
            return before[name](*given, **named)

        return call

    def statement(*_: Any) -> None:
        if fault.hit("database"):
            raise sqlite3.OperationalError(fault.reason)

    def commit(self: Any, connection: Any) -> None:
        statement()
        done(self, connection)
        if fault.hit("answer"):
            raise sqlite3.OperationalError(fault.reason)

    done = SQLiteDialect.do_commit
    sa.event.listen(sa.Engine, "before_cursor_execute", statement)
    sa.event.listen(sa.Engine, "do_connect", statement)
    SQLiteDialect.do_commit = commit
    for name in FILES:
        setattr(os, name, failing(name))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(os, name, function)
        SQLiteDialect.do_commit = done
        sa.event.remove(sa.Engine, "before_cursor_execute", statement)
        sa.event.remove(sa.Engine, "do_connect", statement)


class Sentences(logging.Handler):
    """The messages of the tool."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, entry: logging.LogRecord) -> None:
        self.messages.append(entry.getMessage())


def attempt(empty: Path, kind: str, fault: Fault) -> Counter[str]:
    """One tune with a fault in it, and the start after it; what is wrong then."""
    folder = Path(tempfile.mkdtemp(prefix="injected-"))
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    url = f"sqlite:///{shutil.copy(empty, folder / 'runs.db')}"
    job, sentences = parse_job(TINY, "tiny", Path()), Sentences()
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(PROGRAM.replace('{', '{{').replace('}', '}}'))}"
    launcher = Returned(
        ReplayLauncher(table(job)) if kind == "replay" else CommandLauncher(f"{command} {{result}} {{dp}} {{tp}}")
    )
    logging.getLogger("jointopt").addHandler(sentences)
    wrong, text = Counter[str](), ""
    try:
        with injected(fault), _only_while_keeping(fault) if kind == "command" else nullcontext():
            text = tune(job, launcher, RUNS, storage=url, surrogate="none").text()
    except JointOptError as error:
        text = str(error)
    except Exception as error:
        wrong[f"traceback {type(error).__name__}: {error}"[:100]] += 1
    finally:
        logging.getLogger("jointopt").removeHandler(sentences)
    wrong += _false(" ".join((*sentences.messages, text)), text, url, launcher.rows)
    Store(url).add_spilled()
    found = Counter(Store(url).read()["iteration_time_s"].tolist())
    wrong["lost"] = len(set(launcher.rows) - set(found))
    wrong["twice"] = sum(count - 1 for count in found.values())
    shutil.rmtree(folder)
    return +wrong


@contextmanager
def _only_while_keeping(fault: Fault) -> Iterator[None]:
    """Faults while the record is at work alone, not of the programs that run."""
    names = ("_keep", "settle", "reserve", "others", "progress", "pause", "_begin_trial")
    before, fault.armed = {name: getattr(record.Record, name) for name in names}, False

    def arming(name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            armed, fault.armed = fault.armed, True
            try:
                return before[name](*given, **named)
            finally:
                fault.armed = armed

        return call

    for name in names:
        setattr(record.Record, name, arming(name))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(record.Record, name, function)


def _false(messages: str, text: str, url: str, ended: list[float]) -> Counter[str]:
    """Claims that are not so when the tool has ended."""
    stored = set(Store(url).read()["iteration_time_s"].tolist())
    files = {file: {row["iteration_time_s"] for _, row in rows_in(file)} for file in spill_files(url)}
    kept, false = stored.union(*files.values()), Counter[str]()
    for name in re.findall(r"(?:runs are|run is) kept in (\S+?),? which", text):
        false[f"false: kept in {Path(name).name}"] += not files.get(Path(name))
    false["false: all are kept"] += TERMINATED in messages and not set(ended) <= kept
    false["false: in the store"] += "Measurements:" in text and "without the" not in text and not set(ended) <= stored
    false["false: has all runs"] += "The store has all runs now" in text and not set(ended) <= stored
    return +false


def empty_database(folder: Path) -> Path:
    """A file with all tables, which take long to make."""
    url = f"sqlite:///{folder / 'empty.db'}"
    optuna.storages.RDBStorage(url)
    Store(url).add(pd.DataFrame({"tp": [1]}), "nobody")
    return folder / "empty.db"


def injections(kind: str, most: int, modes: Iterable[tuple[str, str, bool, int]]) -> tuple[int, Counter[str]]:
    """(number of failures that were injected, what was wrong after them); each mode until a tune passes without one."""
    database.PATIENCE_S = campaign.PATIENCE_S = 0.2
    record._WAIT_S = record._RESERVE_WAIT_S = 0.1
    sa.event.listen(sa.Engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
    done, wrong = 0, Counter[str]()
    folder = Path(tempfile.mkdtemp(prefix="empty-"))
    empty = empty_database(folder)
    with sqlite3.connect(empty) as connection:
        connection.execute("DELETE FROM jointopt_measurements")
    for what, reason, lasting, step in modes:
        number = 1
        while done < most:
            fault = Fault(what, reason, lasting, number)
            found = attempt(empty, kind, fault)
            if fault.calls < number:
                print(f"{kind}: {what}, {reason}, {lasting}: {fault.calls} calls; {done}; {dict(wrong)}", flush=True)
                break
            if found:
                print(f"{kind}: {what} {number}, {reason}, {lasting}: {dict(found)}", flush=True)
            done, wrong, number = done + 1, wrong + found, number + step
    shutil.rmtree(folder)
    return done, wrong


def main() -> int:
    """Print what was wrong after so many failures; how much that was."""
    kind, most = sys.argv[1] if len(sys.argv) > 1 else "replay", int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    rarer, first = (int(sys.argv[place]) if len(sys.argv) > place else 1 for place in (3, 4))
    done, wrong = injections(kind, most, [(*mode, step * rarer) for *mode, step in MODES[first - 1 :]])
    print(f"{done:,} failures injected into tunes by {kind}: {dict(wrong) or 'no row lost or twice, nothing false'}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
