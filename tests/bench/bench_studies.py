"""Studies written, and the study for people in a browser.

    python -m tests.bench.bench_studies [SCREENSHOT.png]

Prints the seconds for studies of 40, 60 and 100 trials to SQLite and, where optuna-dashboard, playwright and Chromium
are there, the seconds until the dashboard has drawn the front of a study; the least of three. With a file name it keeps
a picture of the page of a shipped job's study.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import jointopt
from jointopt.search.studies.storage import prepare_storage
from jointopt.search.studies.trials import save_study
from jointopt.workflows.propose import propose
from tests.fake_problem import fake_problem

EVALUATED, TRIALS, REPEATS = 2_000, (40, 60, 100), 3
JOB = "mixtral-8x22b-8x8-h100"
CHROMIUM = "/usr/bin/chromium"
DRAWN = "document.getElementById('graph-pareto-front')?.data?.some(trace => trace.x?.length > 0)"
COMMAND = (sys.executable, "-c", "from jointopt.cli.main import main; main()", "dashboard", "--port", "0", "--storage")


def write(folder: Path) -> None:
    problem, rng = fake_problem(0, 256, 110), np.random.default_rng(0)
    layout = rng.integers(0, problem.num_layouts, EVALUATED)
    plans = problem.describe(
        problem.evaluate_genes(layout, rng.integers(0, problem.num_clocks, EVALUATED), rng.random(EVALUATED))
    )
    for count in TRIALS:
        spent = []
        for turn in range(REPEATS):
            url = f"sqlite:///{folder}/{count}-{turn}.db"
            prepare_storage(url)
            start, cpu = time.perf_counter(), time.process_time()
            save_study(plans, url, problem=problem, name="bench", job_hash="0" * 8, seed=0, max_trials=count)
            spent.append((time.perf_counter() - start, time.process_time() - cpu))
        wall_s, cpu_s = (min(values) for values in zip(*spent, strict=True))
        print(f"{count} trials to SQLite: {wall_s:.1f} s wall, {cpu_s:.1f} s CPU", flush=True)


def browse(folder: Path, screenshot: str | None) -> None:
    from playwright.sync_api import sync_playwright

    url = f"sqlite:///{folder}/people.db"
    propose(jointopt.load_job(JOB), trials=EVALUATED, storage=url)
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen([*COMMAND, url], stdout=subprocess.PIPE, text=True, env=environment)
    assert server.stdout
    name, page_url = server.stdout.readline().strip(), server.stdout.readline().strip()
    spent = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for _ in range(REPEATS):
            page = browser.new_page(viewport={"width": 1280, "height": 1180}, device_scale_factor=0.75)
            start = time.perf_counter()
            page.goto(page_url)
            page.wait_for_function(DRAWN, timeout=120_000)
            spent.append(time.perf_counter() - start)
        if screenshot:
            page.wait_for_timeout(5_000)
            page.screenshot(path=screenshot)
        browser.close()
    server.terminate()
    server.wait()
    print(f"first paint of {name} ({EVALUATED:,} plans evaluated): {min(spent):.2f} s")


def main(screenshot: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        browse(Path(folder), screenshot)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("screenshot", nargs="?", help="PNG for a picture of the study's page")
    main(parser.parse_args().screenshot)
