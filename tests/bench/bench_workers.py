"""Throughput of workers that share a study, where the objective is a call of 50 ms; and one of them killed.

    python -m tests.bench.bench_workers [postgresql+psycopg://user@host/an_empty_database]

Prints trials per second of one worker and of four from their first trial to their last (the start of Python left out),
duplicates among the plans, and, with one of four killed half way, what was lost.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time

import optuna

TRIALS = 400
WORKER = """
import sys, time
from dataclasses import replace
from tests.fake_problem import fake_problem
from jointopt.search.studies.workers import work_on_study
problem = fake_problem(1, 64, 110)
def slow(layout, clocks):
    time.sleep(0.05 * len(layout))
    return problem.evaluate(layout, clocks)
sys.stdin.readline()
url, name, trials = sys.argv[1:]
work_on_study(replace(problem, evaluate=slow), url, name=name, identity={"bench": name}, trials=int(trials), batch=4,
      lease_s=2.0)
"""


def start(url: str, name: str, count: int) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WORKER, url, name, str(TRIALS)]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE, text=True) for _ in range(count)]
    time.sleep(5.0 + count)  # imports
    for worker in workers:
        assert worker.stdin
        worker.stdin.close()
    return workers


def trials_of(url: str, name: str) -> tuple[int, int, float]:
    """Finished trials, duplicates among all trials, and seconds from the first start to the last end."""
    trials = optuna.load_study(study_name=name, storage=url).trials
    done = [t for t in trials if t.datetime_complete and t.datetime_start]
    spent = max(t.datetime_complete for t in done) - min(t.datetime_start for t in done)
    plans = {tuple(sorted(trial.params.items())) for trial in trials}
    finished = sum(trial.state.name == "COMPLETE" for trial in trials)
    return finished, len(trials) - len(plans), spent.total_seconds()


def main(url: str) -> None:
    rates = {}
    for count in (1, 4):
        name = f"bench-{count}-{time.time():.0f}"
        for worker in start(url, name, count):
            worker.wait()
        finished, twice, seconds = trials_of(url, name)
        rates[count] = finished / seconds
        print(f"{count} workers: {finished} trials, {twice} twice, {rates[count]:.1f} trials/s", flush=True)
    print(f"four workers do {rates[4] / rates[1]:.2f} times the work of one")
    name = f"bench-killed-{time.time():.0f}"
    doomed, *others = start(url, name, 4)
    time.sleep(3.0)
    doomed.send_signal(signal.SIGKILL)
    for worker in (doomed, *others):
        worker.wait()
    finished, twice, _ = trials_of(url, name)
    print(f"one of four killed: {finished} of {TRIALS} trials finished, {twice} twice")


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="of an empty database; a file of SQLite where it is not given")
    url = parser.parse_args().url
    with tempfile.TemporaryDirectory() as folder:
        main(url or f"sqlite:///{folder}/bench.db")
