"""Trials that people add with plain Optuna to a study of jointopt, which goes on without them."""

import json
import sqlite3
from contextlib import closing

import optuna
import pytest
from click.testing import CliRunner
from optuna.trial import TrialState, create_trial

import jointopt
from jointopt.cli.main import jointopt as command
from jointopt.core.errors import UsageError
from jointopt.search.studies.study_plans import read_study
from jointopt.search.studies.trials import WORKER, is_evaluated
from jointopt.search.studies.workers import Queue, _Worker, work_on_study
from jointopt.workflows.work import work
from tests.fake_problem import fake_problem
from tests.search.studies.test_measured import OK, PLAN, PREDICTED, opened

JOB, IDENTITY = "opt-350m-2x4-a100", {"job": "fake"}
ADDED = {
    "told": lambda study: study.tell(study.ask(), [1e-6, 1e-6]),
    "left running": lambda study: study.ask(),
    "failed": lambda study: study.tell(study.ask(), state=TrialState.FAIL),
    "pruned": lambda study: study.tell(study.ask(), state=TrialState.PRUNED),
    "enqueued": lambda study: study.enqueue_trial({"clock_mhz": 900.0}),
    "enqueued again": lambda study: study.enqueue_trial({}, user_attrs=study.trials[0].user_attrs),
    "added": lambda study: study.add_trial(create_trial(values=[1e-6, 1e-6])),
    "a parameter": lambda study: study.tell(suggested(study), [1e-6, 1e-6]),
}


def suggested(study):
    """A running trial with a parameter of its own."""
    trial = study.ask()
    trial.suggest_float("learning_rate", 0.0, 1.0)
    return trial


def add(url, name, *kinds):
    study = optuna.load_study(study_name=name, storage=url, sampler=optuna.samplers.NSGAIISampler(seed=0))
    for kind in kinds:
        ADDED[kind](study)


def share_to(trials, url):
    return work_on_study(fake_problem(1, 32, 24), url, name="s", identity=IDENTITY, trials=trials, batch=4)


@pytest.mark.parametrize("kind", ADDED)
def test_workers_go_on_past_a_trial_of_any_kind_that_optuna_added(url, kind):
    share_to(8, url)
    add(url, "s", kind)
    done = share_to(16, url)
    assert done.evaluated == 8
    assert len(done.plans["energy_j"]) == 16
    assert done.plans["energy_j"].min() > 1e-3


def test_plans_are_the_same_with_and_without_trials_that_optuna_added(tmp_path):
    alone, joined = (f"sqlite:///{tmp_path}/{name}.db" for name in ("alone", "joined"))
    for url in (alone, joined):
        share_to(40, url)
    add(joined, "s", *ADDED)
    found = [share_to(60, url).plans["energy_j"].tolist() for url in (alone, joined)]
    assert found[0] == found[1]


def test_a_worker_keeps_the_trials_of_others_running_when_it_leaves(shared_url):
    share_to(4, shared_url)
    add(shared_url, "s", "left running")
    share_to(8, shared_url)
    states = [trial.state for trial in optuna.load_study(study_name="s", storage=shared_url).trials]
    assert states.count(TrialState.RUNNING) == 1
    assert TrialState.WAITING not in states


def test_a_plan_whose_trial_optuna_ended_has_no_result_and_its_batch_keeps_theirs(shared_url):
    worker = _Worker(fake_problem(1, 32, 24), Queue(shared_url, "s", IDENTITY), 5, batch=5)
    claimed = worker.queue.claim(5, worker._breed)
    optuna.load_study(study_name="s", storage=shared_url).tell(claimed[2].number, [1e-6, 1e-6])
    worker._work(claimed)
    assert worker.evaluated == 4
    done = share_to(8, shared_url)
    assert done.evaluated == 3
    assert len(done.plans["energy_j"]) == 7


def test_a_waiting_plan_that_optuna_began_is_taken_over_when_the_lease_ends(url):
    left = _Worker(fake_problem(1, 32, 24), Queue(url, "s", IDENTITY, lease_s=0.05), 5, batch=5)
    with left.queue.lease():
        left.queue.claim(5, left._breed)
    add(url, "s", "left running")
    assert share_to(8, url).evaluated == 8
    assert {trial.state for trial in optuna.load_study(study_name="s", storage=url).trials} == {TrialState.COMPLETE}


def test_a_choice_is_among_the_workers_plans_alone(url):
    name = work(jointopt.load_job(JOB), url, trials=12).study_name
    before, _ = read_study(url, name)
    add(url, name, *ADDED)
    assert read_study(url, name)[0] == before
    found = CliRunner().invoke(command, ["select", name, "--storage", url, "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["stored_plans"] == len(before)


def test_plans_of_workers_are_read_as_optuna_has_them_and_without_making_its_trials(shared_url, monkeypatch):
    name = work(jointopt.load_job(JOB), shared_url, trials=24).study_name
    add(shared_url, name, *ADDED)
    study = optuna.load_study(study_name=name, storage=shared_url)
    trials = [trial for trial in study.trials if is_evaluated(trial) and max(trial.constraints.values()) <= 0.0]
    monkeypatch.delattr(optuna.Study, "get_trials")
    plans, _ = read_study(shared_url, name)
    assert [[plan["iteration_time_s"], plan["energy_j"]] for plan in plans] == [trial.values for trial in trials]
    for trial, plan in zip(trials, plans, strict=True):
        clocks = [float(clock) for clock in plan.pop("stage_clock_mhz").split(";")]
        known = {key: value for key, value in trial.user_attrs.items() if key not in (WORKER, "plan")}
        assert (json.loads(trial.user_attrs["plan"]) | known).items() <= (plan | {"stage_clock_mhz": clocks}).items()


def test_a_database_in_which_two_trials_have_one_number_is_called_that(url):
    name = work(jointopt.load_job(JOB), url, trials=8).study_name
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
        file.execute("UPDATE trials SET number = 0")
        file.commit()
    with pytest.raises(UsageError, match=r"has two trials of one number in a study, as a copy .*; number the trials"):
        work(jointopt.load_job(JOB), url, trials=16, study=name)


def test_a_study_of_runs_goes_on_past_trials_that_optuna_added(url):
    study = opened(url)
    study.end(study.begin(PLAN, PREDICTED), OK)
    add(url, study.name, *ADDED)
    again = opened(url)
    again.end(again.begin({**PLAN, "tp": 4, "dp": 2}, PREDICTED), {**OK, "iteration_time_s": 3.0})
    assert [plan["tp"] for plan in read_study(url, study.name)[0]] == [2, 4]


def test_a_study_of_runs_leaves_what_optuna_added_when_it_is_made_again_for_time_alone(url):
    study = opened(url)
    first = study.name
    run = study.begin(PLAN, PREDICTED)
    add(url, first, *ADDED)
    study.end(run, {**OK, "energy_j": float("nan")})
    kept = optuna.load_study(study_name=first, storage=url).trials
    assert [1e-6, 1e-6] in [trial.values for trial in kept]
    assert (study.name, study.objectives) == (f"{first}-2", ("iteration_time_s",))
