"""Workers on a job: what they evaluate, with what, and what they report."""

import sqlite3
import sys
import time
from dataclasses import replace

import numpy as np
import optuna
import pytest
from click.testing import CliRunner

import jointopt
from jointopt.cli.main import jointopt as command
from jointopt.core.errors import LauncherError, UsageError
from jointopt.jobs.job import Constraints
from jointopt.measure.local import CommandLauncher
from jointopt.measure.replay import ReplayLauncher
from jointopt.physics.site import bill
from jointopt.search.pareto import front_of, non_dominated, objectives, stacked
from jointopt.search.studies.display import plan_text
from jointopt.search.studies.study_plans import read_study
from jointopt.workflows.by_dask import load_function
from jointopt.workflows.work import work

JOB = "opt-350m-2x4-a100"
SIMULATOR = """
def run(job, plans):
    return {"iteration_time_s": 2.0 / plans["tp"], "energy_j": 100.0 * plans["tp"]}

def many(job, plans):
    more = {"peak_memory_gib": 40.0 / plans["pp"], "peak_power_w": 300.0 + plans["tp"], "cost": 5.0 / plans["dp"]}
    return run(job, plans) | more

def half(job, plans):
    return {"iteration_time_s": 1.0 / plans["tp"]}

def nothing(job, plans):
    return run(job, plans) | {"iteration_time_s": 0.0 * plans["tp"]}

def below(job, plans):
    return many(job, plans) | {"cost": -1.5 / plans["tp"] * plans["tp"]}

word = 3
"""


@pytest.fixture
def url(url, tmp_path, monkeypatch):
    """A database in a working directory that has a module with functions that evaluate plans."""
    (tmp_path / "a_simulator.py").write_text(SIMULATOR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return url


def test_the_physics_evaluates_plans_by_default(url):
    job = jointopt.load_job(JOB)
    found = work(job, url, trials=10)
    assert (found.evaluated, found.finished, found.failed) == (10, 10, 0)
    again = jointopt.explain(job, plan_text(found.front, 0))
    assert again.iteration_time_s == pytest.approx(found.front["iteration_time_s"][0])


def test_a_function_of_the_users_evaluates_them_instead(url):
    found = work(jointopt.load_job(JOB), url, trials=10, evaluate="a_simulator:run")
    time_s, energy_j = objectives(found.front)
    np.testing.assert_allclose(time_s * energy_j, 200.0)
    trials = optuna.load_study(study_name=found.study_name, storage=url).trials
    assert all(t.user_attrs["avg_power_w"] == t.values[1] / t.values[0] / 8 for t in trials)


def test_constraints_of_the_job_judge_what_the_function_returns(url):
    job = replace(jointopt.load_job(JOB), constraints=Constraints(iteration_time_s=1.5))
    found = work(job, url, trials=20, evaluate="a_simulator:run")
    assert (found.front["iteration_time_s"] <= 1.5).all()
    trials = optuna.load_study(study_name=found.study_name, storage=url).trials
    assert any(max(trial.constraints.values()) > 0 for trial in trials)


MANY = ("iteration_time_s", "energy_j", "peak_memory_gib", "peak_power_w", "cost")


def priced(*objectives):
    job = jointopt.load_job(JOB)
    return replace(job, cluster=replace(job.cluster, price_per_kwh=0.2, carbon_kg_per_kwh=0.4), objectives=objectives)


def test_a_function_s_plans_are_searched_by_every_objective_of_the_job_that_it_returns(url):
    found = work(priced(*MANY), url, trials=80, evaluate="a_simulator:many")
    study = optuna.load_study(study_name=found.study_name, storage=url)
    assert study.metric_names == ["iteration_time_s", "energy_j", "peak_memory_gib", "peak_power_w", "cost"]
    values = np.array([t.values for t in study.trials if max(t.constraints.values()) <= 0])
    front = stacked(found.front, MANY)
    np.testing.assert_allclose(front[:, 4] * found.front["dp"], 5.0)  # its own costs, not those of energy
    assert len(front) == len(non_dominated(values)) > len(front_of(found.front)["pp"])
    np.testing.assert_array_equal(front.min(axis=0), values.min(axis=0))
    assert "on the front of time, energy, peak memory, peak power and cost" in found.text(url)
    plans, _ = read_study(url, found.study_name)
    assert {plan["cost"] for plan in plans} == set(values[:, 4])


def test_carbon_and_mean_power_that_a_function_does_not_return_follow_from_time_and_energy(url):
    found = work(priced("iteration_time_s", "carbon_kg", "avg_power_w"), url, trials=12, evaluate="a_simulator:run")
    plans = found.front
    np.testing.assert_allclose(plans["avg_power_w"], plans["energy_j"] / plans["iteration_time_s"] / 8)
    carbon = bill(priced("carbon_kg"), plans["iteration_time_s"], plans["energy_j"])["carbon_kg"]
    np.testing.assert_allclose(plans["carbon_kg"], carbon)


@pytest.mark.parametrize("objective", ["peak_memory_gib", "peak_power_w"])
def test_an_objective_that_a_function_does_not_return_ends_the_worker_in_a_sentence_at_once(url, objective):
    with pytest.raises(LauncherError, match=f"returns no {objective}, an objective of the search; return a value") as e:
        work(priced("iteration_time_s", objective), url, trials=4, evaluate="a_simulator:run")
    assert str(e.value).count(".") == 1


@pytest.mark.parametrize(
    ("function", "figure"),
    [("nothing", "iteration_time_s 0 for dp=.*, not a finite number above 0"), ("below", "cost -1.5 for dp=.* 0 on")],
)
def test_a_figure_that_no_plan_has_is_named_with_function_and_plan(url, function, figure):
    with pytest.raises(LauncherError, match=f"a_simulator:{function} returned {figure}; fix what evaluates them"):
        work(priced("iteration_time_s", "cost"), url, trials=8, evaluate=f"a_simulator:{function}")


def test_the_physics_is_searched_by_all_objectives_too_from_the_front_that_propose_counts(url):
    job = priced("iteration_time_s", "energy_j", "peak_memory_gib")
    found, goals = work(job, url, trials=60), job.goals
    best = jointopt.propose(job).front
    assert found.goals == goals
    np.testing.assert_allclose(stacked(found.front, goals).min(axis=0), stacked(best, goals).min(axis=0), rtol=1e-6)


def test_another_way_to_evaluate_is_another_study(url):
    job = jointopt.load_job(JOB)
    names = {work(job, url, trials=4, evaluate=e).study_name for e in (None, "a_simulator:run")}
    assert len(names) == len(optuna.get_all_study_names(url)) == 2


RUNS = """
import json, sys
tp, result = int(sys.argv[1]), sys.argv[2]
open("ran", "a").write(f"{tp} ")
if tp == 4:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory.")
json.dump({"iteration_time_s": 2.0 / tp, "energy_j": 100.0 * tp}, open(result, "w"))
"""
COMMAND = [sys.executable, "-c", RUNS.replace("{", "{{").replace("}", "}}"), "{tp}", "{result}"]


def test_real_runs_answer_and_a_plan_that_fails_ends_no_search(url, tmp_path):
    job = jointopt.load_job(JOB)
    found = work(job, url, trials=12, launcher="command", command=COMMAND, batch=3)
    time_s, energy_j = objectives(found.front)
    np.testing.assert_allclose(time_s * energy_j, 200.0)
    ran = (tmp_path / "ran").read_text().split()
    assert (found.evaluated + found.failed, len(ran)) == (12, 12)  # a failed one has its neighbours run once
    assert found.failed == ran.count("4")


class Interrupted(CommandLauncher):
    """Raises an interrupt in place of its third run."""

    def run(self, job, plan):
        self.left = getattr(self, "left", 3) - 1
        if self.left == 0:
            raise KeyboardInterrupt
        return super().run(job, plan)


def test_runs_of_a_worker_that_ended_before_it_could_report_them_are_not_run_again(url, tmp_path):
    job = jointopt.load_job(JOB)
    with pytest.raises(KeyboardInterrupt):
        work(job, url, trials=5, launcher=Interrupted(COMMAND), batch=4, study="s")
    assert len(list(tmp_path.glob("runs.db.work-*.jsonl"))) == 1
    found = work(job, url, trials=5, launcher="command", command=COMMAND, batch=4, study="s")
    ran = (tmp_path / "ran").read_text().split()
    assert (found.evaluated + found.failed, len(ran)) == (5, 5)
    assert list(tmp_path.glob("runs.db.work-*.jsonl")) == []


class Locking(CommandLauncher):
    """Another program has the database locked from the first run to the second."""

    def run(self, job, plan):
        if not hasattr(self, "other"):
            self.other = sqlite3.connect("runs.db", isolation_level=None, check_same_thread=False)
            while self.other.execute("SELECT count(*) FROM trials WHERE state = 'RUNNING'").fetchone()[0] < 2:
                time.sleep(0.01)  # until the worker holds another batch
            self.other.execute("BEGIN EXCLUSIVE")
        elif self.other.in_transaction:
            self.other.rollback()
        return super().run(job, plan)


@pytest.mark.parametrize("fails", [False, True])
def test_runs_go_on_while_the_database_is_away(url, fails):
    command = ["false", "{result}"] if fails else COMMAND
    found = work(jointopt.load_job(JOB), url, trials=3, launcher=Locking(command), batch=1)
    assert found.evaluated + found.failed == 3  # with no batch in hand it would wait for ever


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"launcher": "command", "command": COMMAND, "evaluate": "a_simulator:run"}, "both evaluate plans; give one"),
        ({"launcher": "command", "command": COMMAND, "workers": 2}, "share out what --evaluate"),
        ({"dask": "tcp://127.0.0.1:1"}, "share out what --evaluate"),
        ({"iterations": 3}, "iterations belong to a launcher, and none is given"),
    ],
)
def test_plans_are_evaluated_in_one_way(url, options, words):
    with pytest.raises(UsageError, match=words):
        work(jointopt.load_job(JOB), url, trials=4, **options)


def test_an_objective_that_runs_do_not_measure_ends_the_worker_in_a_sentence(url):
    job = priced("iteration_time_s", "energy_j", "peak_power_w")
    with pytest.raises(LauncherError, match="the run measured no peak_power_w, an objective of the job: leave it out"):
        work(job, url, trials=8, launcher="command", command=COMMAND)


def test_a_launcher_of_listed_plans_has_no_workers(url, make_runs):
    with pytest.raises(UsageError, match="replay runs listed plans alone"):
        work(jointopt.load_job(JOB), url, trials=4, launcher=ReplayLauncher(make_runs()))


@pytest.mark.parametrize(
    ("name", "reason"),
    [("a_simulator", "module:function"), ("no_such:run", "cannot be imported"), ("a_simulator:word", "no function")],
)
def test_what_is_no_function_is_one_sentence(url, name, reason):
    with pytest.raises(UsageError, match=reason):
        load_function(name)


def test_a_simulator_may_import_its_neighbours_when_it_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour_of_it.py").write_text("FACTOR = 3")
    (tmp_path / "lazy_simulator.py").write_text(
        "def run():\n    import neighbour_of_it\n    return neighbour_of_it.FACTOR"
    )
    assert load_function("lazy_simulator:run")() == 3


def test_a_function_that_returns_too_little_ends_the_worker(url):
    result = CliRunner().invoke(
        command, ["work", JOB, "--storage", url, "--evaluate", "a_simulator:half", "--trials", "20"]
    )
    assert result.exit_code == 1
    assert "returns no energy_j" in result.output


def test_the_command_reports_what_it_did_and_how_to_look_at_it(url):
    result = CliRunner().invoke(command, ["work", JOB, "--storage", url, "--trials", "20", "--batch", "5"])
    assert result.exit_code == 0, result.output
    assert "20 plans evaluated here; the study has 20" in result.output
    assert f"jointopt dashboard --storage {url}" in result.output
