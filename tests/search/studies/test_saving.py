import json
import math
import sqlite3
import subprocess
import sys
from dataclasses import replace

import numpy as np
import optuna
import pytest
import sqlalchemy as sa

from jointopt.core.errors import UsageError
from jointopt.jobs.plans.text import plan_records, stage_clocks_to_text
from jointopt.search.nsga2 import search
from jointopt.search.pareto import OBJECTIVES, concat, front_of, front_rows, is_covered, objectives, stacked, take
from jointopt.search.studies.display import front_figure
from jointopt.search.studies.storage import prepare_storage
from jointopt.search.studies.study_plans import read_study
from jointopt.search.studies.trials import FRONT_SHARE, choose_rows, save_study
from tests.fake_problem import fake_problem

PROBLEM = fake_problem(1, 32, 24, feasible_share=0.6)


@pytest.fixture(scope="module")
def plans():
    problem = PROBLEM
    found = search(problem, trials=300, seed=0)
    table = problem.describe(concat([found.front, found.plans]))
    rank = np.arange(len(table["slack"]))
    return table | {"avg_power_w": 300.0 + rank, "in_domain": rank % 2 == 0, "unknown": np.full(len(rank), np.nan)}


def save(plans, url, **changes):
    known = {"problem": PROBLEM, "name": "tiny", "job_hash": "0123456789abcdef", "seed": 0, "max_trials": 8}
    return save_study(plans, url, **(known | changes))


@pytest.fixture(scope="module")
def shown(plans, tmp_path_factory):
    """URL and name of a study with a long note, for tests that only look at it."""
    url = f"sqlite:///{tmp_path_factory.mktemp('shown')}/studies.db"
    return url, save(plans, url, note="# Tiny\n" + "long " * 1000, attributes={"jointopt": "0.1"})


def noted(url, study, trial=None):
    """The note of a study or of its trial."""
    storage = optuna.storages.RDBStorage(url)
    study_id = storage.get_study_id_from_name(study.study_name)
    trial_id = trial and storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
    owner = f"{trial_id}:" if trial else ""
    return storage.get_study_system_attrs(study_id)[f"dashboard:{owner}note_str:0"]


def test_a_study_can_be_continued_in_optuna(plans, url):
    study = optuna.load_study(study_name=save(plans, url), storage=url)
    before = len(study.trials)
    study.add_trial(study.trials[0])
    trial = study.ask()
    study.tell(trial, [1.0, 2.0])
    assert [t.number for t in study.trials] == list(range(before + 2))


KILLED = """
import os, sys
from tests.fake_problem import fake_problem
from jointopt.search.nsga2 import search
from jointopt.search.studies import trials
trials.pieces = lambda *_: os.kill(os.getpid(), 9)  # after the trials
problem = fake_problem(1, 8, 4)
plans = problem.describe(search(problem, trials=40).plans)
trials.save_study(plans, sys.argv[1], problem=problem, name="cut", job_hash="0", seed=0)
"""


def test_a_run_that_is_killed_while_it_writes_leaves_nothing_behind(plans, url):
    assert subprocess.run([sys.executable, "-c", KILLED, url], check=False).returncode == -9
    assert optuna.get_all_study_names(url) == []
    assert save(plans, url) == "tiny-01234567"


def test_a_study_is_small_and_its_note_says_where_the_other_plans_are(plans, url):
    study = optuna.load_study(study_name=save(plans, url, max_trials=20), storage=url)
    assert len(study.trials) == 20
    assert "record.csv.gz" in noted(url, study)


def test_all_of_a_front_can_be_chosen_from_however_few_trials_are_shown(plans, url):
    job = {"attributes": {"job": "a job"}}
    rows, attributes = read_study(url, save(plans, url, max_trials=5, **job))
    front = front_of(plans)
    assert {row["energy_j"] for row in rows} >= set(front["energy_j"].tolist())
    assert attributes["job"] == "a job"
    fastest = min(rows, key=lambda row: row["iteration_time_s"])
    assert fastest["stage_clock_mhz"] == stage_clocks_to_text(front["stage_clock_mhz"])[0]


def test_plans_of_the_front_are_explained(shown):
    url, name = shown
    study = optuna.load_study(study_name=name, storage=url)
    assert noted(url, study).startswith("# Tiny")
    assert "| time s | energy J |" in noted(url, study)
    best = min(study.best_trials, key=lambda trial: trial.values)
    assert "time +0.0%" in noted(url, study, best)
    assert f"{json.loads(best.user_attrs['plan'])['dp']} replicas (dp)" in noted(url, study, best)


def test_optunas_best_trials_are_the_front(plans, url):
    study = optuna.load_study(study_name=save(plans, url, max_trials=60), storage=url)
    best = sorted(trial.values for trial in study.best_trials)
    np.testing.assert_array_equal(best, np.column_stack(objectives(front_of(plans))))
    assert study.metric_names == ["iteration_time_s", "energy_j"]


def with_memory(problem, goals):
    """The problem by these goals, where each layout takes some memory."""
    memory_gib = np.random.default_rng(0).uniform(1.0, 80.0, problem.num_layouts)

    def evaluate(layout, clocks):
        return problem.evaluate(layout, clocks) | {"peak_memory_gib": memory_gib[layout]}

    return replace(problem, evaluate=evaluate, goals=goals)


@pytest.mark.parametrize("goals", [OBJECTIVES, (*OBJECTIVES, "peak_memory_gib")])
@pytest.mark.parametrize("seed", range(3))
def test_optunas_best_trials_are_of_the_front_however_few_are_stored(url, seed, goals):
    rng = np.random.default_rng(seed)
    problem = with_memory(fake_problem(seed, 32, 24, feasible_share=0.6), goals)
    plans = problem.describe(search(problem, trials=300, seed=seed).plans)
    front = {tuple(values) for values in stacked(front_of(plans, goals), goals)}
    for count in rng.integers(2, 40, 4).tolist():
        study = optuna.load_study(study_name=save(plans, url, max_trials=count, problem=problem), storage=url)
        best = {tuple(trial.values) for trial in study.best_trials}
        assert best <= front
        assert len(best) == min(len(front), math.ceil(count * FRONT_SHARE))


def test_a_trial_knows_its_plan_its_predictions_and_its_constraint(plans, shown):
    trial = min(optuna.load_study(study_name=shown[1], storage=shown[0]).best_trials, key=lambda best: best.values)
    row = front_rows(plans)[0]
    [plan] = plan_records(plans, plans["stage_clock_mhz"], [row])
    assert json.loads(trial.user_attrs["plan"]) == plan
    assert trial.params["clock_mhz"] == plans["clock_mhz"][row]
    assert trial.user_attrs["avg_power_w"] == plans["avg_power_w"][row]
    assert trial.user_attrs["tp"] == plan["tp"]


def test_trials_are_inserted_as_optuna_adds_them(shown, url):
    there = optuna.load_study(study_name=shown[1], storage=shown[0])
    added = optuna.create_study(storage=url, directions=there.directions)
    added.add_trials(there.trials)
    for one, other in zip(there.trials, added.trials, strict=True):
        assert {**vars(one), "_trial_id": 0} == {**vars(other), "_trial_id": 0}
    again = [optuna.load_study(study_name=study.study_name, storage=where) for study, where in
             ((there, shown[0]), (added, url))]  # fmt: skip
    assert again[0].best_trials == again[1].best_trials


def test_trials_are_numbered_towards_the_front(plans, url):
    study = optuna.load_study(study_name=save(plans, url, max_trials=60), storage=url)
    best = [trial.number for trial in study.best_trials]
    assert best == list(range(60 - len(best), 60))
    product = [trial.values[0] * trial.values[1] for trial in study.trials[: 60 - len(best)]]
    assert product == sorted(product, reverse=True)


def test_parameters_of_a_study_have_the_range_of_the_whole_space(shown):
    trial = optuna.load_study(study_name=shown[1], storage=shown[0]).trials[0]
    layouts, clocks = PROBLEM.layouts, PROBLEM.clocks_mhz
    splits = {tuple(row) for row in np.stack([layouts[name] for name in ("dp", "tp", "pp", "cp")], axis=1).tolist()}
    assert len(trial.distributions["layout"].choices) == len(splits)
    assert (trial.distributions["clock_mhz"].low, trial.distributions["clock_mhz"].high) == (clocks[0], clocks[-1])
    assert (trial.distributions["slack"].low, trial.distributions["slack"].high) == (0.0, 1.0)


@pytest.mark.parametrize(("count", "step"), [(24, 60.0), (110, None)])
def test_clocks_in_whole_steps_are_suggested_as_such_and_others_rounded(url, count, step):
    problem = fake_problem(1, 8, count)
    name = save(problem.describe(search(problem, trials=40).plans), url, problem=problem)
    known = optuna.load_study(study_name=name, storage=url).trials[0].distributions["clock_mhz"]
    assert (known.low, known.high, known.step) == (600.0, 1980.0, step)


def test_all_evaluated_plans_are_stored_on_request(plans, url):
    study = optuna.load_study(study_name=save(plans, url, max_trials=None), storage=url)
    distinct = np.unique(np.column_stack([*objectives(plans), np.maximum(plans["violation"], 0.0)]), axis=0)
    assert len(study.trials) >= len(distinct)
    assert {trial.values[0] for trial in study.trials} >= set(plans["iteration_time_s"].tolist())


def test_timestamps_are_spread(shown):
    trials = optuna.load_study(study_name=shown[1], storage=shown[0]).trials
    starts = [trial.datetime_start for trial in trials]
    assert starts == sorted(set(starts))
    assert all(trial.duration.total_seconds() == 1 for trial in trials)


@pytest.mark.parametrize("count", [5, 60, 10_000])
def test_the_choice_is_bounded_distinct_and_holds_the_front_first(plans, count):
    rows = choose_rows(plans, count, 0)
    assert len(rows) == len(set(rows)) <= count
    chosen, front = take(plans, rows), front_of(plans)
    if count >= len(front["energy_j"]):
        assert is_covered(*objectives(front_of(chosen)), *objectives(front)).all()
    else:
        assert is_covered(*objectives(front), *objectives(chosen)).all()


@pytest.mark.parametrize(("count", "front", "near"), [(20, 15, 3), (8, 6, 1), (12, 9, 2), (3, 3, 0)])
def test_three_quarters_are_the_front_and_half_of_the_rest_is_near_it(count, front, near):
    time_s = np.geomspace(1.0, 4.0, 60)
    times = np.concatenate([time_s, 1.001 * time_s, 1.5 * time_s, 9.0 * time_s[:30]])
    energies = np.concatenate([4.0 / time_s, 4.004 / time_s, 6.0 / time_s, 36.0 / time_s[:30]])
    plans = {"iteration_time_s": times, "energy_j": energies, "violation": np.zeros(len(times))}
    kinds = np.digitize(choose_rows(plans, count, 0), [60, 120, 180])  # on the front, near it, beyond, outlying
    assert np.bincount(kinds, minlength=4).tolist() == [front, near, count - front - near, 0]


def test_a_changed_job_never_continues_an_old_study(plans, url):
    assert save(plans, url) == "tiny-01234567"
    assert save(plans, url, job_hash="ffff0000ffff") == "tiny-ffff0000"


def test_an_identical_rerun_writes_nothing_and_another_one_gets_a_suffix(plans, url):
    assert save(plans, url) == save(plans, url) == "tiny-01234567"
    fewer = take(plans, np.arange(5))
    assert save(fewer, url) == "tiny-01234567-2"
    assert save(fewer, url) == "tiny-01234567-2"
    assert len(optuna.get_all_study_names(url)) == 2


def test_a_name_given_is_the_name_stored_unless_another_study_has_it(plans, url):
    def named(**changes):
        return save(plans, url, name="mine", versioned=False, **changes)

    assert named() == named() == "mine"
    assert named(job_hash="ffff0000ffff") == "mine-2"
    assert named(job_hash="ffff0000ffff") == "mine-2"
    assert named() == "mine"


def test_of_plans_tied_in_both_objectives_one_is_kept_and_the_front_stays(plans):
    twice = {name: np.concatenate([values, values]) for name, values in plans.items()}
    count = len(plans["slack"])
    twice["micro_batch_size"] = np.concatenate([plans["micro_batch_size"], 2 * plans["micro_batch_size"]])
    rows = choose_rows(twice, 10_000, 0)
    assert rows.max() < count
    assert len(np.unique(np.column_stack(objectives(take(twice, rows))), axis=0)) == len(rows)


FIRST_RUN = """
import sys
from jointopt.search.studies.storage import prepare_storage
print("ready", flush=True)
sys.stdin.readline()
assert prepare_storage(sys.argv[1])
"""


def test_two_processes_may_make_one_new_database_at_once(tmp_path):
    url = f"sqlite:///{tmp_path}/new.db"
    pipe = subprocess.PIPE
    runs = [
        subprocess.Popen([sys.executable, "-c", FIRST_RUN, url], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        for _ in range(2)
    ]
    assert [run.stdout.readline() for run in runs] == ["ready\n"] * 2
    for run in runs:
        run.stdin.write("go\n")
        run.stdin.flush()
    assert [run.communicate()[1] for run in runs] == ["", ""]
    assert optuna.get_all_study_names(url) == []


def test_tables_that_another_process_makes_meanwhile_are_tried_again(plans, url, monkeypatch):
    get, calls = optuna.storages.RDBStorage, []

    def late(url, *more, **options):
        calls.append(url)
        if len(calls) < 3:
            raise sa.exc.OperationalError("CREATE", {}, sqlite3.OperationalError("table studies already exists"))
        return get(url, *more, **options)

    monkeypatch.setattr("jointopt.search.studies.storage.RDBStorage", late)
    assert prepare_storage(url)
    assert len(calls) == 3


def test_a_database_that_can_only_be_read_is_noticed_before_anything_is_stored(url):
    assert prepare_storage(url)
    with pytest.raises(UsageError, match="may not be written by this user"):
        prepare_storage(f"sqlite:///file:{url.removeprefix('sqlite:///')}?mode=ro&uri=true")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_a_database_in_memory_keeps_nothing(url):
    assert not prepare_storage(url)


def test_infinite_violations_stay_valid_json(plans, url):
    endless = plans | {"violation": np.full(len(plans["slack"]), -np.inf)}
    study = optuna.load_study(study_name=save(endless, url), storage=url)
    assert json.dumps(study.trials[0].system_attrs, allow_nan=False)


def call(app, path):
    from io import BytesIO

    answered = {}

    def start_response(status, headers, exc_info=None):
        answered["status"] = status

    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": "", "SERVER_NAME": "x", "SERVER_PORT": "80",
               "wsgi.input": BytesIO(), "wsgi.url_scheme": "http", "wsgi.errors": BytesIO()}  # fmt: skip
    body = b"".join(app(environ, start_response))
    assert answered["status"].startswith("200"), answered
    return json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def outlying(plans, times):
    """The plans, with one feasible plan that takes so many times the slowest's time."""
    time_s, _ = objectives(plans)
    row = int(np.argmax(time_s))
    violation = np.where(np.arange(len(time_s)) == row, 0.0, plans["violation"])
    return plans | {"iteration_time_s": np.where(np.arange(len(time_s)) == row, times * time_s, time_s),
                    "violation": violation}, row  # fmt: skip


def test_an_outlier_neither_stretches_the_axes_nor_stands_among_the_trials(plans):
    table, row = outlying(plans, 100.0)
    x = front_figure(table)["layout"]["xaxis"]["range"]
    front = front_of(table)["iteration_time_s"]
    assert x[0] < front.min() < front.max() < x[1]
    assert x[1] < table["iteration_time_s"][row] / 10.0
    assert all(row not in choose_rows(table, len(choose_rows(table, 10_000, 0)) // 2, seed) for seed in range(8))


def test_a_front_over_decades_has_a_logarithmic_axis(plans):
    first, last = np.argsort(plans["iteration_time_s"])[[0, 1]]
    two = take(plans, np.array([first, last]))
    two |= {"iteration_time_s": np.array([1.0, 50.0]), "energy_j": np.array([9.0, 1.0]), "violation": np.zeros(2)}
    layout = front_figure(two)["layout"]
    assert (layout["xaxis"]["type"], layout["yaxis"].get("type")) == ("log", None)
    assert layout["xaxis"]["range"][0] < 0.0 < np.log10(50.0) < layout["xaxis"]["range"][1]


def test_optuna_dashboard_shows_the_study(shown):
    dashboard = pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed")
    url, name = shown
    app = dashboard.wsgi(optuna.storages.RDBStorage(url))
    [study] = call(app, "/api/studies")["study_summaries"]
    assert study["study_name"] == name
    detail = call(app, f"/api/studies/{study['study_id']}")
    assert len(detail["trials"]) == 8
    assert detail["note"]["body"].startswith("# Tiny")
    assert "## The front" in detail["note"]["body"][5007:]
    assert detail["plotly_graph_objects"][0]["id"] == "front"
    assert {len(trial["constraints"]) for trial in detail["trials"]} == {1}
    assert detail["objective_names"] == ["iteration_time_s", "energy_j"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sqlite:////no/such/folder/x.db", "unable to open"),
        ("just words", "is no database URL"),
        ("", "is no database URL"),
        ("nosuchdb://host/name", "plugin"),
        ("oracle://me:secret@host/name", "import"),
        ("postgresql+psycopg://me:secret@host:port/name", "makes no sense"),
        ("sqlite:////", "unable to open"),
    ],
)
def test_a_storage_that_cannot_be_used_is_one_sentence(plans, url, reason):
    for use in (prepare_storage, lambda url: save(take(plans, np.arange(3)), url)):
        with pytest.raises(UsageError, match=f"study storage .*{reason}") as caught:
            use(url)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database_is_one_sentence(plans, tmp_path):
    path = tmp_path / "notes.db"
    path.write_text("not a database, " * 100)
    with pytest.raises(UsageError, match="is no SQLite database"):
        save(plans, f"sqlite:///{path}")
