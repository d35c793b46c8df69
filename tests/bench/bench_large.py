"""Seconds and memory of commands on a database of many studies, one of them of many trials, and of a long report.

``python tests/bench/bench_large.py [STUDIES] [TRIALS] [PLANS]`` fills an SQLite file in a temporary folder: 1,000
studies of a proposal and one study with 100,000 trials of workers, copied by SQL, as Optuna would take hours (two
trials of one number in a study would end `work`); 100,000 rows are ingested, and the report is of a proposal of 2,000
plans. The dashboard is timed until it has answered for the list of studies and for one of them.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.bench.bench_store import PROGRAM, timed, write_rows

JOB = "opt-350m-2x4-a100"
OF_STUDIES = ("study_directions", "study_user_attributes", "study_system_attributes")
OF_TRIALS = ("trial_user_attributes", "trial_system_attributes", "trial_params", "trial_values",
             "trial_intermediate_values", "trial_heartbeats")  # fmt: skip


def copied(file: sqlite3.Connection, table: str, owner: str, pairs: str) -> None:
    """The rows of a table once more for each new owner, by a table of (old, new) numbers."""
    names = [row[1] for row in file.execute(f"PRAGMA table_info({table})") if not row[5]]
    others = ", ".join(f"t.{name}" for name in names if name != owner)
    listed = ", ".join(name for name in names if name != owner)
    into, of = f"{owner}{', ' * bool(listed)}{listed}", f"p.new{', ' * bool(others)}{others}"
    file.execute(f"INSERT INTO {table} ({into}) SELECT {of} FROM {table} t JOIN {pairs} p ON t.{owner} = p.old")


def more_studies(file: sqlite3.Connection, count: int) -> None:
    """The first study, with its trials, under so many other names."""
    first, name = file.execute("SELECT study_id, study_name FROM studies ORDER BY study_id").fetchone()
    file.execute("CREATE TEMP TABLE s (old INTEGER, new INTEGER)")
    last = file.execute("SELECT max(study_id) FROM studies").fetchone()[0]
    file.executemany("INSERT INTO studies VALUES (?, ?)", [(last + i, f"{name}-copy-{i}") for i in range(1, count)])
    file.executemany("INSERT INTO s VALUES (?, ?)", [(first, last + i) for i in range(1, count)])
    for table in OF_STUDIES:
        copied(file, table, "study_id", "s")
    trials = file.execute("SELECT trial_id FROM trials WHERE study_id = ? ORDER BY trial_id", (first,)).fetchall()
    more_trials(file, [(one, last + i) for i in range(1, count) for (one,) in trials], "a")


def more_trials(file: sqlite3.Connection, wanted: list[tuple[int, int]], pairs: str) -> None:
    """A copy of a trial in a study for each pair of both."""
    kept = ("trial_id", "study_id", "number")
    names = [row[1] for row in file.execute("PRAGMA table_info(trials)") if row[1] not in kept]
    next_id = file.execute("SELECT max(trial_id) FROM trials").fetchone()[0] + 1
    numbers = Counter(dict(file.execute("SELECT study_id, count(*) FROM trials GROUP BY study_id")))
    file.execute(f"CREATE TEMP TABLE {pairs} (old INTEGER, new INTEGER, study INTEGER, number INTEGER)")
    for at, (old, study) in enumerate(wanted):
        file.execute(f"INSERT INTO {pairs} VALUES (?, ?, ?, ?)", (old, next_id + at, study, numbers[study]))
        numbers[study] += 1
    file.execute(
        f"INSERT INTO trials (trial_id, study_id, number, {', '.join(names)}) SELECT p.new, p.study, p.number, "
        f"{', '.join('t.' + name for name in names)} FROM trials t JOIN {pairs} p ON t.trial_id = p.old"
    )
    for table in OF_TRIALS:
        copied(file, table, "trial_id", pairs)


def dashboard(url: str, study: str) -> str:
    """As `timed`, of the dashboard from its start until it has answered for the list of studies and this one."""
    started = time.monotonic()
    words = ("dashboard", "--storage", url, "--port", "0", "--study", study)
    served = subprocess.Popen([sys.executable, "-u", "-c", PROGRAM, *words], stdout=subprocess.PIPE, text=True)
    assert served.stdout is not None
    name, page = served.stdout.readline().strip(), served.stdout.readline().strip()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())  # the token comes back as a cookie
    try:
        api = page.partition("?")[0].replace("dashboard", "api")
        for address in (page, api.rpartition("/")[0], api):
            with browser.open(address) as answer:
                answer.read()
        status = dict(line.split(":", 1) for line in Path(f"/proc/{served.pid}/status").read_text().splitlines())
        ticks = sum(map(int, Path(f"/proc/{served.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        seconds = f"{ticks / os.sysconf('SC_CLK_TCK'):.2f} s CPU, {time.monotonic() - started:.1f} s"
    finally:
        served.send_signal(signal.SIGINT)
        served.wait()
    return f"dashboard of {name}: {seconds}, {int(status['VmHWM'].split()[0]) // 1024} MB"


def main() -> None:
    """Fill the file, and print a line for each command."""
    usual = (1_000, 100_000, 2_000)
    studies, trials, plans = (int(sys.argv[at + 1]) if len(sys.argv) > at + 1 else usual[at] for at in range(3))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"sqlite:///{folder / 'studies.db'}"
        stored = ("--storage", url, "--surrogate", "none")
        out = ("--study", "first", "--out", str(folder / "out"), "--json")
        print(timed("propose", JOB, *stored, *out), "(empty)")
        print(timed("work", JOB, *stored, "--trials", "60"), "(60 trials)")
        with closing(sqlite3.connect(folder / "studies.db")) as file:
            shared = file.execute("SELECT study_id, study_name FROM studies ORDER BY study_id DESC").fetchone()
            ids = [row[0] for row in file.execute("SELECT trial_id FROM trials WHERE study_id = ?", (shared[0],))]
            more_studies(file, studies)
            more_trials(file, [(ids[at % len(ids)], shared[0]) for at in range(trials - len(ids))], "b")
            file.commit()
            counts = [file.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("studies", "trials")]
        size = (folder / "studies.db").stat().st_size / 1e6
        print(f"{counts[0]:,} studies, {counts[1]:,} trials, {size:,.0f} MB", flush=True)
        rows, few = folder / "rows.csv", folder / "few.csv"
        write_rows(rows, 100_000)
        write_rows(few, 1_000)
        for words in (
            ("propose", JOB, "--surrogate", "none", "--json"), ("select", "first"), ("select", shared[1]),
            ("work", JOB, "--surrogate", "none", "--trials", str(trials + 8)), ("explain", JOB, "--plan", "dp=8 mbs=1"),
            ("ingest", str(rows)), ("predict", str(few), "--out", str(folder / "predicted.csv")), ("store", "check"),
        ):  # fmt: skip
            print(timed(*words, "--storage", url), flush=True)
        for study in ("first", shared[1]):
            print(dashboard(url, study), flush=True)
        document = json.loads((folder / "out" / "proposal.json").read_text())
        front = document["front"]
        document["front"] = [front[at % len(front)] for at in range(plans)]
        (folder / "long.json").write_text(json.dumps(document))
        print(timed("report", str(folder / "long.json"), "--out", str(folder / "long.html")), f"({plans:,} plans)")
        print(timed("select", str(folder / "long.json")), f"({plans:,} plans)")


if __name__ == "__main__":
    main()
