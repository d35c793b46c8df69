import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import optuna
import pytest

from jointopt.core.errors import LauncherError, UsageError
from jointopt.search.pareto import front_of, objectives, stacked
from jointopt.search.studies.workers import LEASE, Queue, _Worker, work_on_study
from tests.fake_problem import fake_problem

IDENTITY = {"job": "fake"}
WORKER = """
import sys, time
from dataclasses import replace
from tests.fake_problem import fake_problem
from jointopt.search.studies.workers import work_on_study
problem, begun = fake_problem(1, 32, 24), []
def slow(layout, clocks):
    begun.append(layout)
    print(len(layout), flush=True)
    time.sleep(600 if len(begun) == int(sys.argv[3]) else 0.02)
    return problem.evaluate(layout, clocks)
done = work_on_study(replace(problem, evaluate=slow), sys.argv[1], name="s", identity={"job": "fake"}, batch=4,
                     trials=int(sys.argv[2]), lease_s=1.0)
print(done.evaluated)
"""


@pytest.fixture(scope="module")
def problem():
    return fake_problem(1, 32, 24)


def work(problem, url, trials=16, **changes):
    return work_on_study(problem, url, **({"name": "s", "identity": IDENTITY, "trials": trials, "batch": 4} | changes))


def process(url, trials, hangs_at=0):
    """A worker that evaluates four plans at a time, and hangs in its call of that number."""
    command = [sys.executable, "-c", WORKER, url, str(trials), str(hangs_at)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def a_worker(problem, url, lease_s=60.0):
    return _Worker(problem, Queue(url, "s", IDENTITY, lease_s=lease_s), 20, batch=5)


def claimed_by(worker):
    return worker.queue.claim(5, worker._breed)


def numbers(trials):
    return {trial.number for trial in trials}


def plans_of(url):
    study = optuna.load_study(study_name="s", storage=url)
    states = [trial.state.name for trial in study.trials]
    rows = {tuple(sorted(trial.params.items())) for trial in study.trials}
    return study, states, rows


def test_a_lone_worker_finishes_every_trial_and_no_plan_twice(problem, shared_url):
    done = work(problem, shared_url)
    study, states, rows = plans_of(shared_url)
    assert done.evaluated == len(study.trials) == len(rows) == 16
    assert set(states) == {"COMPLETE"}
    assert [trial.number for trial in study.trials] == list(range(16))
    np.testing.assert_array_equal([t.values for t in study.trials], np.column_stack(objectives(done.plans)))
    assert study.metric_names == ["iteration_time_s", "energy_j"]


def test_optuna_and_its_dashboard_see_the_constraints_of_shared_trials(shared_url):
    problem = fake_problem(1, 32, 24, feasible_share=0.6)
    done = work(problem, shared_url)
    study, _, _ = plans_of(shared_url)
    constraints = [trial.system_attrs["constraints"] for trial in study.trials]
    np.testing.assert_array_equal(constraints, done.plans["violation"][:, None])
    best = sorted(trial.values for trial in study.best_trials)
    np.testing.assert_array_equal(best, np.column_stack(objectives(front_of(done.plans))))


def test_workers_at_once_claim_different_plans(problem, shared_url):
    claimed = []

    def claim():
        mine = a_worker(problem, shared_url)
        while got := mine.queue.claim(3, mine._breed):
            claimed.extend(got)
            mine.queue.finish([trial.number for trial in got], mine._evaluated(got))

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claimed) == len(numbers(claimed)) == len({trial.user_attrs["plan"] for trial in claimed}) == 20


def test_plans_of_a_silent_worker_are_taken_over_and_its_late_results_are_ignored(problem, shared_url):
    silent = a_worker(problem, shared_url, lease_s=0.05)
    lost = claimed_by(silent)
    time.sleep(0.1)
    assert numbers(claimed_by(a_worker(problem, shared_url))) == numbers(lost)
    silent._work(lost)
    assert silent.evaluated == 0
    assert {trial.state.name for trial in silent.queue.trials()} == {"RUNNING"}


def test_a_worker_that_renews_keeps_its_plans(problem, shared_url, monkeypatch):
    worker, other = a_worker(problem, shared_url, lease_s=4.0), a_worker(problem, shared_url)
    first = lease_of(worker)
    monkeypatch.setattr(other.queue._storage, "now", lambda: first + 0.1)  # when it is over, on a busy machine too
    with worker.queue.lease():
        held = claimed_by(worker)
        until = time.monotonic() + 60
        while lease_of(worker) < first + 0.5:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert not numbers(held) & numbers(claimed_by(other))


def lease_of(worker):
    attributes = worker.queue._storage.rdb.get_study_system_attrs(worker.queue._study_id)
    return attributes[LEASE + worker.queue.worker]


def test_setting_the_clock_forward_takes_no_plans_from_a_worker(problem, url, monkeypatch):
    held = claimed_by(a_worker(problem, url))
    later = time.time() + 1e6
    monkeypatch.setattr(time, "time", lambda: later)
    assert not numbers(held) & numbers(claimed_by(a_worker(problem, url)))


def test_plans_of_a_worker_from_before_a_reboot_are_taken_over(problem, url):
    lost = claimed_by(worker := a_worker(problem, url))
    uptime_before = time.monotonic() + 1e6
    study_id = worker.queue._study_id
    worker.queue._storage.rdb.set_study_system_attr(study_id, LEASE + worker.queue.worker, uptime_before)
    assert numbers(claimed_by(a_worker(problem, url))) == numbers(lost)


def test_a_worker_that_ends_gives_back_what_it_has_not_finished(problem, shared_url):
    worker = a_worker(problem, shared_url)
    with worker.queue.lease():
        held = claimed_by(worker)
    assert numbers(claimed_by(a_worker(problem, shared_url))) == numbers(held)


@pytest.mark.long
def test_two_processes_share_the_work_and_one_that_is_killed_loses_nothing(problem, shared_url):
    doomed, other = process(shared_url, 20, hangs_at=1), process(shared_url, 20)
    doomed.stdout.readline()
    doomed.send_signal(signal.SIGKILL)
    doomed.communicate()
    assert other.wait() == 0
    other.stdout.close()
    study, states, rows = plans_of(shared_url)
    assert len(study.trials) == len(rows) == 20
    assert set(states) == {"COMPLETE"}


@pytest.mark.long
def test_a_lone_worker_that_was_killed_goes_on_as_if_nothing_had_happened(problem, tmp_path):
    url, whole = f"sqlite:///{tmp_path}/cut.db", f"sqlite:///{tmp_path}/whole.db"
    doomed = process(url, 44, hangs_at=8)  # the last four are children of the first 40
    for _ in range(8):
        doomed.stdout.readline()
    doomed.send_signal(signal.SIGKILL)
    doomed.communicate()
    time.sleep(1.1)  # its lease
    goes_on = work(problem, url, 44)
    assert goes_on.evaluated == 44 - 7 * 4
    assert goes_on.plans["energy_j"].tolist() == work(problem, whole, 44).plans["energy_j"].tolist()


def test_a_plan_that_cannot_be_evaluated_fails_alone(problem, shared_url):
    def picky(layout, clocks):
        if (layout % 5 == 0).any():
            raise RuntimeError("out of luck")
        return problem.evaluate(layout, clocks)

    done = work(replace(problem, evaluate=picky), shared_url)
    study, states, _ = plans_of(shared_url)
    assert done.failed == states.count("FAIL") > 0
    assert done.evaluated == states.count("COMPLETE") == 16 - done.failed
    assert "out of luck" in next(t for t in study.trials if t.state.name == "FAIL").user_attrs["error"]


@pytest.mark.parametrize("value", [-1.0, 0.0, np.nan, np.inf])
def test_what_evaluates_plans_may_return_no_figure_that_no_plan_has(problem, shared_url, value):
    def wrong(layout, clocks):
        return problem.evaluate(layout, clocks) | {"energy_j": np.full(len(layout), value)}

    with pytest.raises(LauncherError, match=f"energy_j must be a finite number above 0; got {value:g}"):
        work(replace(problem, evaluate=wrong), shared_url)


def test_where_nothing_can_be_evaluated_the_worker_raises_the_reason(problem, shared_url):
    def never(layout, clocks):
        raise RuntimeError("no cluster")

    with pytest.raises(LauncherError, match="no cluster"):
        work(replace(problem, evaluate=never), shared_url)
    _, states, _ = plans_of(shared_url)
    assert "RUNNING" not in states


def test_workers_of_another_search_are_turned_away(problem, shared_url):
    work(problem, shared_url, 4)
    with pytest.raises(UsageError, match="another search"):
        work(problem, shared_url, 4, identity={"job": "other"})


def test_a_storage_that_cannot_be_shared_is_one_sentence(problem):
    with pytest.raises(UsageError, match=r"study storage .*unable to open"):
        work(problem, "sqlite:////no/such/folder/x.db")


def test_a_search_by_three_goals_keeps_all_of_them_and_its_front(problem, shared_url):
    def third(layout, clocks):
        return problem.evaluate(layout, clocks) | {"peak_memory_gib": 1.0 + layout % 7}

    goals = ("iteration_time_s", "energy_j", "peak_memory_gib")
    wide = replace(problem, evaluate=third, goals=goals)
    done = work(wide, shared_url, 60, batch=20)
    study, _, _ = plans_of(shared_url)
    assert study.metric_names == list(goals)
    np.testing.assert_array_equal([t.values for t in study.trials], stacked(done.plans, goals))
    best = np.unique([trial.values for trial in study.best_trials], axis=0)
    np.testing.assert_array_equal(best, np.unique(stacked(front_of(done.plans, goals), goals), axis=0))
    with pytest.raises(UsageError, match="another search"):
        work(problem, shared_url, 4)


def test_more_trials_go_on_where_fewer_ended(problem, shared_url):
    work(problem, shared_url, 8)
    assert work(problem, shared_url, 12).evaluated == 4


def test_a_space_that_is_smaller_than_the_trials_is_evaluated_once(tmp_path):
    problem = fake_problem(0, 2, 1, drop=0.8, per_stage_clocks=False)
    size = problem.num_layouts * problem.num_clocks
    done = work(problem, f"sqlite:///{tmp_path}/small.db", 20 * size, batch=24)
    assert 0.9 * size <= done.evaluated <= size


def test_amid_an_outage_a_worker_evaluates_the_batch_that_it_holds_besides(problem, url):
    calls, other = [], sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)

    def evaluate(layout, clocks):
        calls.append("away" if other.in_transaction else "there")
        if len(calls) == 1:
            other.execute("BEGIN EXCLUSIVE")
        elif other.in_transaction:
            other.rollback()
        return problem.evaluate(layout, clocks)

    late = threading.Timer(20, lambda: other.in_transaction and other.rollback())  # where no batch is held
    late.start()
    assert work(replace(problem, evaluate=evaluate), url, 12, ahead=1).evaluated == 12
    late.cancel()
    assert calls == ["there", "away", "there"]


def test_after_an_outage_that_outlasted_all_leases_no_worker_takes_what_others_still_evaluate(problem, shared_url):
    worker, other, dead = (a_worker(problem, shared_url, lease_s=1.0) for _ in range(3))
    held, lost = claimed_by(other), claimed_by(dead)
    time.sleep(1.1)  # in which the database hears of nobody
    mine = claimed_by(worker)
    assert not numbers(held + lost) & numbers(mine)
    with other.queue.lease(), worker.queue.lease():
        until = time.monotonic() + 60
        while not (later := worker.queue.claim(10, lambda trials: [], numbers(mine))):
            assert time.monotonic() < until
            time.sleep(0.05)
    assert numbers(later) == numbers(lost)
