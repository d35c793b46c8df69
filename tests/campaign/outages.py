"""Takes the database away from a tune while it measures: restarts, locks, kills; no run may be lost.

``python tests/campaign/outages.py restarts 10``: so many restarts of a PostgreSQL server during one tune.
``python tests/campaign/outages.py kills 40 locked [SEED]``: so many tunes, each killed at a random moment, by
SIGKILL mostly, while another program has locked its SQLite file, its disk is ``full``, or its PostgreSQL server is
``restarting``.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from jointopt.runs.store import Store
from tests.campaign.together import JOB

# the program writes its result, and then on a ledger that it has
RUN = """
import json, random, sys, time
result, ledger, seconds = sys.argv[1:]
time.sleep(float(seconds))
took = random.uniform(0.5, 2.0)
json.dump({"iteration_time_s": took}, open(result, "w"))
with open(ledger, "a") as file: file.write(f"{took}\\n")
"""
REPORTED = re.compile(r"^run \d+: (\S+) (m?s)\b", re.MULTILINE)
KEPT = "runs that had ended are kept"
BAD = {"reported and lost", "lost", "twice", "false", "traceback"}


class Tune:
    """A tune with a program that takes some seconds, in a folder of its own."""

    def __init__(self, folder: Path, url: str, budget: int, seconds: float, seed: int = 0) -> None:
        self.folder, self.url = folder, url
        (folder / "job.yaml").write_text(JOB)
        (folder / "run.py").write_text(RUN)
        (folder / "tmp").mkdir(exist_ok=True)
        program = f"{sys.executable} {folder / 'run.py'} {{result}} {folder / 'ledger'} {seconds}"
        command = [sys.executable, "-m", "jointopt", "tune", "job.yaml", "--launcher", "command", "--command", program,
                   "--budget", str(budget), "--seed", str(seed), "--storage", url, "--surrogate", "none"]  # fmt: skip
        environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "TMPDIR": str(folder / "tmp")}
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        """Its messages."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def reported(self) -> int:
        """Runs of which it has said how they ended."""
        return len(REPORTED.findall(self.log))

    @property
    def ledger(self) -> list[float]:
        """Results of the programs that have ended."""
        file = self.folder / "ledger"
        return [float(line) for line in file.read_text().split()] if file.exists() else []

    def wait_for(self, runs: int, within_s: float = 120.0) -> None:
        """Wait until so many runs were reported, or the tune has ended."""
        until = time.monotonic() + within_s
        while self.reported < runs and self.process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)


def stored(url: str) -> Counter[float]:
    """Times of all rows, and how often each is there."""
    return Counter(Store(url).read()["iteration_time_s"].tolist())


def restarted(server: Any, url: str, folder: Path, restarts: int, away_s: float) -> dict[str, Any]:
    """The end of a tune during which the server was away so often, for so many seconds each time."""
    tune = Tune(folder, url, budget=restarts + 3, seconds=1.5)
    tune.wait_for(1)
    for number in range(restarts):
        server.stop("immediate" if number % 2 else "fast")
        time.sleep(away_s)
        server.start()
        tune.wait_for(tune.reported + 1)
    code, rows, ledger = tune.process.wait(300), stored(url), tune.ledger
    return {"restarts": restarts, "code": code, "runs": len(ledger), "lost": len(set(ledger) - set(rows)),
            "twice": sum(rows.values()) - len(rows), "tracebacks": tune.log.count("Traceback")}  # fmt: skip


def killed(folder: Path, chance: random.Random, away: Away) -> Counter[str]:
    """A tune whose database goes away while it runs, and that is killed; what is wrong after the next start."""
    url, wrong = away.begin(folder), Counter[str]()
    tune = Tune(folder, url, budget=8, seconds=0.3, seed=chance.randrange(99))
    tune.wait_for(chance.randint(1, 3))
    with away.gone():
        time.sleep(chance.choice((0.5, 2, 4, 8, 16)) * chance.uniform(0.5, 1.5))
        tune.process.send_signal(chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)))
        tune.process.wait(60)
        log, reported, ended = tune.log, tune.reported, tune.ledger
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    Store(url).take_in()
    rows = stored(url)
    wrong["runs"], wrong["reported"] = len(ended), reported
    wrong["reported and lost"] = max(0, reported - len(rows))
    # the program that ended last may have ended with the tool, which did not come to read its result
    lost = [time_s for time_s in ended if time_s not in rows]
    wrong["ended with the tool"], wrong["lost"] = int(lost == ended[-1:]), len(lost) if lost != ended[-1:] else 0
    wrong["twice"] = sum(rows.values()) - len(rows)
    wrong["false"] = int(KEPT in log and reported > len(rows))
    wrong["traceback"] = log.count("Traceback")
    away.end()
    return +wrong


class Away:
    """A database that goes away: a file that another program ``locked`` or whose disk is ``full``, or a server."""

    def __init__(self, how: str, server: Any = None) -> None:
        self.how, self._server, self._disk, self._number = how, server, Path(), 0

    def begin(self, folder: Path) -> str:
        """The URL of a new database."""
        if self._server is not None:
            self._number += 1
            return str(self._server.database(f"runs{self._number}_{os.getpid()}"))
        self._disk = folder / "disk"
        self._disk.mkdir()
        if self.how == "full":
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(self._disk)], check=True)
        return f"sqlite:///{self._disk / 'runs.db'}"

    @contextmanager
    def gone(self) -> Iterator[None]:
        """It is away in the body, and back after it."""
        if self._server is not None:
            self._server.stop()
            yield
            self._server.start()
        elif self.how == "full":
            with suppress(OSError), (self._disk / "fill").open("wb") as file:
                while True:
                    file.write(bytes(4096))
            yield
            (self._disk / "fill").unlink()
        else:
            with closing(sqlite3.connect(self._disk / "runs.db", timeout=60, isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                yield
                other.rollback()

    def end(self) -> None:
        """Leave nothing mounted."""
        if self.how == "full":
            subprocess.run(["umount", "--lazy", str(self._disk)], check=True)


def main() -> int:
    """Print the ends of the runs."""
    verb, count = sys.argv[1], int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, as would commands
    if verb == "restarts":
        from tests.postgres_server import server

        with server() as running:
            found = restarted(running, running.database("runs"), Path(tempfile.mkdtemp(prefix="restarts-")), count, 6.0)
        print(json.dumps(found))
        return int(found["code"] != 0 or found["lost"] > 0 or found["twice"] > 0)
    how, seed = sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 0
    chance, wrong = random.Random(seed), Counter[str]()
    with ExitStack() as stack:
        if how == "restarting":
            from tests.postgres_server import server

            away = Away(how, stack.enter_context(server()))
        else:
            away = Away(how)
        for number in range(count):
            folder = Path(tempfile.mkdtemp(prefix="outage-"))
            wrong += (found := killed(folder, chance, away))
            print(f"{how}, {number + 1} kills: {dict(found)}; in all {dict(wrong)}", flush=True)
            if not BAD & set(found):
                shutil.rmtree(folder)
    return int(bool(BAD & set(wrong)))


if __name__ == "__main__":
    sys.exit(main())
