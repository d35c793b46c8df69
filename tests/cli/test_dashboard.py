"""What a person sees of a stored study, in a real browser."""

import http.client
import os
import re
import signal
import subprocess
import sys
import urllib.parse
from pathlib import Path

import numpy as np
import optuna
import pytest
from click.testing import CliRunner

from jointopt.cli.main import jointopt
from jointopt.search.nsga2 import search
from jointopt.search.pareto import front_rows
from jointopt.search.studies.trials import save_study
from tests.fake_problem import fake_problem

CHROMIUM = next((p for p in ("/usr/bin/chromium", "/usr/bin/google-chrome") if Path(p).exists()), None)
COMMAND = "from jointopt.cli.main import main; main()"


PROBLEM = fake_problem(1, 32, 24, feasible_share=0.6)


@pytest.fixture(scope="module")
def plans():
    return PROBLEM.describe(search(PROBLEM, trials=300).plans)


@pytest.fixture(scope="module")
def storage(plans, tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('studies')}/studies.db"
    for name in ("older", "tiny"):
        save_study(plans, url, problem=PROBLEM, name=name, job_hash="0123456789", seed=0, note="# A tiny job")
    return url


@pytest.fixture(scope="module")
def served(storage):
    """The page that `jointopt dashboard` prints, while it runs."""
    pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed")
    arguments = [sys.executable, "-c", COMMAND, "dashboard", "--storage", storage, "--port", "0"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    running = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)
    name, url = running.stdout.readline().strip(), running.stdout.readline().strip()
    yield name, url
    running.send_signal(signal.SIGINT)
    assert running.wait(20) == 130
    running.stdout.close()


@pytest.fixture
def page(served):
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(180_000)
        yield page
        browser.close()


def test_the_newest_study_is_pointed_to(served):
    name, url = served
    assert name == "tiny-01234567"
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/dashboard/studies/2\?token=[\w-]{43}", url)


def status_of(url: str, path: str = "", method: str = "GET", **headers: str) -> int:
    """The status of a request to the dashboard; with its token where ``path`` or a header has it."""
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=60)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    return connection.getresponse().status


@pytest.mark.parametrize(
    ("method", "headers", "token"),
    [
        ("GET", {}, False), ("DELETE", {}, False), ("GET", {"Cookie": "jointopt=guessed"}, False),
        ("GET", {"Host": "evil.example.com"}, True), ("DELETE", {"Host": "evil.example.com"}, True),
        ("GET", {"Origin": "http://evil.example.com"}, True), ("DELETE", {}, True), ("POST", {}, True),
    ],
)  # fmt: skip
def test_a_foreign_host_or_origin_a_missing_token_and_every_change_are_refused(served, storage, method, headers, token):
    before = optuna.get_all_study_names(storage)
    query = served[1].partition("?")[2] if token else ""
    assert status_of(served[1], f"/api/studies/1?{query}", method, **headers) == 403
    assert optuna.get_all_study_names(storage) == before


def test_with_the_token_a_study_is_read_and_the_cookie_holds_it_afterwards(served):
    token = served[1].partition("=")[2]
    port = urllib.parse.urlsplit(served[1]).port
    assert status_of(served[1], f"/dashboard/studies/2?token={token}") == 303
    cookie = {"Cookie": f"jointopt-{port}={token}"}
    assert status_of(served[1], "/api/studies/2", **cookie) == 200
    assert status_of(served[1], "/api/studies/2", "DELETE", **cookie) == 403


def drawn(page, plot, trace):
    """The x values of a plot's trace, once it is there."""
    wanted = f"[...(document.getElementById('{plot}')?.data ?? [])].find(t => (t.name ?? '').startsWith('{trace}'))"
    return page.wait_for_function(f"({wanted})?.x").json_value()


def test_the_front_is_a_plot_of_its_own(served, page, plans):
    page.goto(served[1])
    x = drawn(page, "user-defined-plot:front", "front")
    np.testing.assert_allclose(x, plans["iteration_time_s"][front_rows(plans)], rtol=1e-5)


def test_trials_that_break_a_constraint_are_known_as_infeasible(served, page, storage):
    page.goto(served[1])
    page.get_by_text("Pareto Front").first.wait_for()
    infeasible = drawn(page, "plot-history", "Infeasible")
    trials = optuna.load_study(study_name=served[0], storage=storage).trials
    assert len(infeasible) == sum(trial.system_attrs["constraints"][0] > 0 for trial in trials) > 0


def test_the_notes_say_what_the_front_and_its_plans_are(served, page, storage):
    page.goto(served[1])
    page.goto(served[1].partition("?")[0] + "/note")
    page.get_by_text("A tiny job").first.wait_for()
    page.get_by_text(re.compile("plans that no other one beats in both time and energy")).first.wait_for()
    trials = optuna.load_study(study_name=served[0], storage=storage).trials
    kept = [trial for trial in trials if trial.system_attrs["constraints"][0] <= 0]
    page.goto(f"{served[1].partition('?')[0]}/trials?numbers={min(kept, key=lambda trial: trial.values[0]).number}")
    page.get_by_text(re.compile("On the front: time .0.0%")).first.wait_for()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--study", "tinny-01234567"), "did you mean 'tiny-01234567'"),
        (("--storage", "sqlite:////no/such.db"), "There is no study in"),
        (("--storage", "just words"), "is no database URL; expected one such as sqlite:///"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(storage, arguments, reason):
    result = CliRunner().invoke(jointopt, ["dashboard", "--storage", storage, *arguments])
    assert result.exit_code == 2
    assert reason in result.output


def test_a_port_that_is_taken_is_one_sentence(storage, served):
    port = re.search(r":(\d+)/", served[1]).group(1)
    result = CliRunner().invoke(jointopt, ["dashboard", "--storage", storage, "--port", port])
    assert result.exit_code == 2
    assert f"--port: {port} cannot be listened on" in result.output
