"""Reads thousands of changed files of each kind, each kind in a process of its own with 1 GB and 10 s for a file.

``python tests/campaign/fuzz.py 10000 [KIND...]`` prints how many were read, refused, escaped as another exception,
crashed the process or hung, and keeps the files of the last three in ``fuzz-failures``.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, given, settings

os.environ["OMP_NUM_THREADS"] = "1"  # threads of a library do not outlive a fork
sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.campaign.inputs import NAMES, Kind, inputs, kind_named, outcome

LIMIT_S, MEMORY = 10.0, 2**30
FAILURES = Path("fuzz-failures")


class Reader:
    """A process that reads files of one kind, made anew after a crash or a hang."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind, self.file = kind, folder / f"input{kind.suffix}"
        self._start()

    def read(self, content: bytes) -> str:
        """What became of one file."""
        self.file.write_bytes(content)
        self.pipe.send(str(self.file))
        found = "hang"
        try:
            if self.pipe.poll(LIMIT_S):
                return str(self.pipe.recv())
        except EOFError:
            self.process.join()
            found = f"crash ({self.process.exitcode})"
        self.process.kill()
        self._start()
        return found

    def _start(self) -> None:
        self.pipe, other = multiprocessing.Pipe()
        self.file.write_bytes(self.kind.seeds[0])
        given = (self.kind, self.file, other)
        self.process = multiprocessing.get_context("fork").Process(target=_serve, args=given, daemon=True)
        self.process.start()
        other.close()
        self.pipe.recv()  # it has imported what it needs


def _serve(kind: Kind, good: Path, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outcome(kind, good)  # so that libraries are there, and the address space that they reserve
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    pipe.send("ready")
    while True:
        pipe.send(outcome(kind, Path(pipe.recv())))


def campaign(kind: Kind, count: int, folder: Path) -> Counter[str]:
    """Outcomes of so many changed files."""
    reader, found = Reader(kind, folder), Counter[str]()

    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate], verbosity=Verbosity.quiet,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(inputs(kind))
    def one(content: bytes) -> None:
        result = reader.read(content)
        found[result] += 1
        if result not in ("read", "refused"):
            FAILURES.mkdir(exist_ok=True)
            (FAILURES / f"{kind.name}-{sum(found.values())}{kind.suffix}").write_bytes(content)

    one()
    reader.process.kill()
    return found


def main() -> int:
    """Print a line per kind; how many files were neither read nor refused."""
    import tempfile

    count, names = int(sys.argv[1]), sys.argv[2:] or NAMES
    failed = 0
    for name in names:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = campaign(kind_named(name), count, Path(folder))
        bad = {what: number for what, number in found.items() if what not in ("read", "refused")}
        failed += sum(bad.values())
        print(f"{name}: {sum(found.values()):,} files, {found['read']:,} read, {found['refused']:,} refused, "
              f"{sum(bad.values()):,} others, {time.monotonic() - started:.0f} s", flush=True)  # fmt: skip
        for what, number in sorted(bad.items(), key=lambda item: -item[1])[:10]:
            print(f"  {number} x {what}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(bool(main()))
