"""Takes the database away from a command while it measures: restarts, locks, kills; no run may be lost.

``python -m tests.campaign.outages restarts 10``: so many restarts of a PostgreSQL server during one tune.
``python -m tests.campaign.outages kills 40 locked [SEED] [COMMAND]``: so many commands (tune, validate or work), each
killed at a random moment, half by SIGKILL, while another program has ``locked`` its SQLite file, its disk is ``full``,
or its PostgreSQL server is ``restarting``, or just after. Those that had ended before the signal are not counted. Most
of it is waiting: several may run at once, each with another seed.
"""

from __future__ import annotations

import json
import multiprocessing
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import optuna

from jointopt.runs.spill import rows_in, spill_files
from jointopt.runs.store import Store
from tests.campaign.together import FIELDS, JOB

# the program writes its result, and then on a ledger that it has
RUN = """
import json, random, sys, time
result, ledger, seconds, *plan = sys.argv[1:]
time.sleep(float(seconds))
took = random.uniform(0.5, 2.0)
json.dump({"iteration_time_s": took, "energy_j": 10 * took}, open(result, "w"))
with open(ledger, "a") as file: file.write(" ".join([str(took), *plan]) + "\\n")
"""
REPORTED = re.compile(r"^run \d+: (\S+) (m?s)\b", re.MULTILINE)
KEPT = ("runs that had ended are kept", "all else is kept", "The store has all runs now", "kept in ")
NOWHERE = ("kept nowhere", "No file takes the run")  # where folders of state and temporary files take all
BAD = {"reported and lost", "lost", "twice", "false", "traceback", "stuck", "ended badly"}
COMMANDS = {
    "tune": ["--budget", "8"],
    "validate": ["--top", "8"],
    "work": ["--trials", "8", "--batch", "2", "--lease", "2"],
}
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


# processes that have read all modules, of which commands are forked: reading them takes most of a command's time
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([
    "jointopt.cli.main", *(f"jointopt.workflows.{name}" for name in COMMANDS), "jointopt.measure.local",
    "jointopt.runs.reservations", "jointopt.search.studies.measured", "jointopt.search.studies.workers",
    "sqlalchemy.dialects.postgresql.psycopg", "tests.campaign.outages",
])  # fmt: skip


def run(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
    """A command in this process and a folder, which ends with it."""
    from jointopt.cli.main import main

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # as found anew
    log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = ["jointopt", *words]
    main()


class Measuring:
    """A command (tune by default) with a program that takes some seconds, in a folder of its own."""

    def __init__(
        self, folder: Path, url: str, seconds: float, seed: int = 0, command: str = "tune", *options: str
    ) -> None:
        self.folder, self.url = folder, url
        (folder / "job.yaml").write_text(JOB)
        (folder / "run.py").write_text(RUN)
        (folder / "tmp").mkdir(exist_ok=True)
        plan = " ".join(f"{{{name}}}" for name in FIELDS)
        program = f"{sys.executable} {folder / 'run.py'} {{result}} {folder / 'ledger'} {seconds} {plan}"
        words = [command, "job.yaml", "--launcher", "command", "--command", program, "--seed", str(seed),
                 "--storage", url, "--surrogate", "none", *(options or COMMANDS[command])]  # fmt: skip
        environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "TMPDIR": str(folder / "tmp")}
        self.process = FORKS.Process(target=run, args=(words, folder, environment))
        self.process.start()

    @property
    def ended(self) -> bool:
        """Whether the command has ended."""
        return self.process.exitcode is not None

    def wait(self, within_s: float) -> int | None:
        """Its exit code; None and its death where it lasts longer."""
        self.process.join(within_s)
        if (code := self.process.exitcode) is None:
            self.process.kill()
            self.process.join()
        return code

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
        return [float(line.split()[0]) for line in self._lines()]

    @property
    def plans(self) -> list[str]:
        """Plans of the programs that have ended."""
        return [line.partition(" ")[2] for line in self._lines()]

    def wait_for(self, runs: int, within_s: float = 120.0) -> None:
        """Wait until so many runs have ended, or the command."""
        until = time.monotonic() + within_s
        while len(self.ledger) < runs and not self.ended and time.monotonic() < until:
            time.sleep(0.05)

    def _lines(self) -> list[str]:
        file = self.folder / "ledger"
        return file.read_text().splitlines() if file.exists() else []


def stored(url: str) -> Counter[float]:
    """Times of all rows, and how often each is there."""
    return Counter(Store(url).read()["iteration_time_s"].tolist())


def shared(url: str) -> Counter[float]:
    """Times of all plans of a study of workers, and how often each is there."""
    (name,) = optuna.get_all_study_names(url)
    return Counter(trial.values[0] for trial in optuna.load_study(study_name=name, storage=url).trials if trial.values)


def restarted(server: Any, url: str, folder: Path, restarts: int, away_s: float) -> dict[str, Any]:
    """The end of a tune during which the server was away so often, for so many seconds each time."""
    tune = Measuring(folder, url, 1.5, 0, "tune", "--budget", str(restarts + 3))
    tune.wait_for(1)
    for number in range(restarts):
        server.stop("immediate" if number % 2 else "fast")
        time.sleep(away_s)
        server.start()
        tune.wait_for(len(tune.ledger) + 1)
    code, rows, ledger = tune.wait(300), stored(url), tune.ledger
    return {"restarts": restarts, "code": code, "runs": len(ledger), "lost": len(set(ledger) - set(rows)),
            "twice": sum(rows.values()) - len(rows), "tracebacks": tune.log.count("Traceback")}  # fmt: skip


def killed(folder: Path, chance: random.Random, away: Away, command: str = "tune") -> Counter[str]:
    """A command whose database goes away while it runs, and that is killed; what is wrong after the next start.

    ``kills`` is 0 of a command that had ended by itself before.
    """
    url, found = away.begin(folder), Counter[str]()
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    seed, number, late = chance.randrange(99), chance.choice(SIGNALS), chance.random() < 0.2
    measuring = Measuring(folder, url, 0.3, seed, command)
    measuring.wait_for(chance.randint(1, 3))
    with away.gone(chance):
        time.sleep(away.seconds(chance))
        if not late:
            found += _ended(measuring, number)
    if late:  # as it makes up for what it owes the database
        time.sleep(chance.uniform(0.0, 0.6))
        found += _ended(measuring, number)
    log, ended = measuring.log, measuring.ledger
    found["runs"], found["reported"], found["traceback"] = len(ended), measuring.reported, log.count("Traceback")
    found["false"] = sum(words in log for words in NOWHERE)
    if command == "work":
        found += _worked_on(folder, url, seed, ended, measuring.plans)
    else:
        found += _taken_in(url, log, ended, measuring.reported)
    away.end()
    return +found


def _ended(measuring: Measuring, number: signal.Signals) -> Counter[str]:
    """Send a signal and wait for the end."""
    alive = not measuring.ended
    with suppress(ProcessLookupError):
        os.kill(measuring.process.pid, number)
    return Counter({"kills": alive, number.name: alive, "stuck": measuring.wait(60) is None})


def _lost(ended: list[float], rows: Counter[float]) -> Counter[str]:
    """Results that are in no row. The program that ended last may have ended with the tool, which did not read it."""
    lost = [time_s for time_s in ended if time_s not in rows]
    with_the_tool = lost == ended[-1:]
    return Counter({"ended with the tool": int(with_the_tool), "lost": 0 if with_the_tool else len(lost),
                    "twice": sum(rows.values()) - len(rows)})  # fmt: skip


def _taken_in(url: str, log: str, ended: list[float], reported: int) -> Counter[str]:
    """What is wrong in the store after the next start."""
    files = [row["iteration_time_s"] for file in spill_files(url) for _, row in rows_in(file)]
    held = len({*stored(url), *files})
    Store(url).add_spilled()
    rows = stored(url)
    false = any(words in log for words in KEPT) and reported > min(held, len(rows))
    return _lost(ended, rows) + Counter({"reported and lost": max(0, reported - len(rows)), "false": int(false)})


def _worked_on(folder: Path, url: str, seed: int, ended: list[float], plans: list[str]) -> Counter[str]:
    """What is wrong in the study after another worker has ended it; no plan but the last runs again."""
    other = Measuring(folder, url, 0.0, seed, "work")
    code = other.wait(120)
    again = sum(count - 1 for plan, count in Counter(other.plans).items() if plan not in plans[-1:])
    return _lost(ended, shared(url)) + Counter({"twice": again, "ended badly": int(code != 0)})


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

    def seconds(self, chance: random.Random) -> float:
        """How long it is away; a full disk ends most commands in a moment, others go on in steps."""
        return (
            chance.uniform(0.0, 0.8)
            if self.how == "full"
            else chance.choice((0.5, 2, 4, 8, 16)) * chance.uniform(0.5, 1.5)
        )

    @contextmanager
    def gone(self, chance: random.Random) -> Iterator[None]:
        """It is away in the body, and back after it."""
        if self._server is not None:
            self._server.stop()
            yield
            self._server.start()
        elif self.how == "full":
            with suppress(OSError), (self._disk / "fill").open("wb") as file:
                while True:
                    file.write(bytes(4096))
            with (self._disk / "fill").open("r+b") as file:  # some have room for a file, but not for the database
                file.truncate(max(0, file.seek(0, 2) - chance.choice((0, 0, 4096, 32768))))
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
    how, seed, *commands = sys.argv[3], *(sys.argv[4:] or ["0"])
    chance, found = random.Random(f"{how} {seed}"), Counter[str]()
    with ExitStack() as stack:
        if how == "restarting":
            from tests.postgres_server import server

            away = Away(how, stack.enter_context(server()))
        else:
            away = Away(how)
        while found["kills"] < count:
            folder = Path(tempfile.mkdtemp(prefix="outage-"))
            command = chance.choice(commands or ("tune", "tune", "validate", "work"))
            new = killed(folder, chance, away, command)
            found += new + Counter({command: new["kills"]})
            print(f"{how}, {command}: {dict(new)}; in all {dict(found)}", flush=True)
            if BAD & set(new):
                print(f"{folder} is left", flush=True)
            else:
                shutil.rmtree(folder)
    return int(bool(BAD & set(found)))


if __name__ == "__main__":
    sys.exit(main())
