"""Reads thousands of changed files, each kind in a process of its own with 1 GB and 10 s of CPU for a file.

``python tests/campaign/fuzz.py 10000 [KIND...]`` prints how many were read, refused, escaped as another exception,
crashed the process or hung, and keeps the files of the last three in ``fuzz-failures``. The seed, which it prints
too, is another each time; ``SEED=1`` states one.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

os.environ["OMP_NUM_THREADS"] = "1"  # threads of a library do not outlive a fork
sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.campaign.inputs import NAMES, Kind, inputs, kind_named, outcome

LIMIT_S, MEMORY = 10.0, 2**30  # of CPU; a process that waits has six times as long
FAILURES = Path("fuzz-failures")


class Reader:
    """A process that reads files of one kind, made anew after a crash or a hang."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind, self.file, self.slowest_s = kind, folder / f"input{kind.suffix}", 0.0
        self._start()

    def read(self, content: bytes) -> str:
        """What became of one file."""
        self.file.write_bytes(content)
        self.pipe.send(str(self.file))
        found = "hang"
        try:
            if self.pipe.poll(6 * LIMIT_S):
                result, used_s = self.pipe.recv()
                self.slowest_s = max(self.slowest_s, used_s)
                return str(result)
        except EOFError:
            self.process.join()
            late = self.process.exitcode == -signal.SIGPROF
            found = "hang" if late else f"crash ({self.process.exitcode})"
        self.process.kill()
        self._start()
        return found

    def _start(self) -> None:
        self.pipe, other = multiprocessing.Pipe()
        self.file.write_bytes(self.kind.seeds[0])
        given = (self.kind, self.file, other, self.pipe)
        self.process = multiprocessing.get_context("fork").Process(target=_serve, args=given, daemon=True)
        self.process.start()
        other.close()
        self.pipe.recv()  # it has imported what it needs


def _serve(kind: Kind, good: Path, pipe: Connection, of_parent: Connection) -> None:
    of_parent.close()  # so that this process ends with its parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outcome(kind, good)  # so that libraries are there, and the address space that they reserve
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    pipe.send("ready")
    while True:
        file, before = Path(pipe.recv()), time.process_time()
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)  # SIGPROF ends the process, in a loop of a library too
        result = outcome(kind, file)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        pipe.send((result, time.process_time() - before))


def campaign(kind: Kind, count: int, folder: Path, start: int) -> tuple[Counter[str], float]:
    """Outcomes of so many changed files from a seed on, and the seconds of CPU of the slowest."""
    reader, found = Reader(kind, folder), Counter[str]()

    @seed(start)
    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate], verbosity=Verbosity.quiet,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(inputs(kind))
    def one(content: bytes) -> None:
        result = reader.read(content)
        found[result] += 1
        if result not in ("read", "refused"):
            FAILURES.mkdir(exist_ok=True)
            (FAILURES / f"{kind.name}-{start}-{sum(found.values())}{kind.suffix}").write_bytes(content)

    one()
    reader.process.kill()
    return found, reader.slowest_s


def main() -> int:
    """Print a line per kind; how many files were neither read nor refused."""
    import tempfile

    count, names = int(sys.argv[1]), sys.argv[2:] or NAMES
    start = int(os.environ.get("SEED", random.SystemRandom().randrange(2**32)))
    failed = 0
    for name in names:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found, slowest_s = campaign(kind_named(name), count, Path(folder), start)
        bad = {what: number for what, number in found.items() if what not in ("read", "refused")}
        failed += sum(bad.values())
        print(f"{name}: {sum(found.values()):,} files, {found['read']:,} read, {found['refused']:,} refused, "
              f"{sum(bad.values()):,} others, {time.monotonic() - started:.0f} s, "
              f"slowest {slowest_s:.1f} s of CPU, seed {start}", flush=True)  # fmt: skip
        for what, number in sorted(bad.items(), key=lambda item: -item[1])[:10]:
            print(f"  {number} x {what}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(bool(main()))
