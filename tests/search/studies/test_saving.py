import json
import sqlite3
import subprocess
import sys

import numpy as np
import optuna
import pytest
import sqlalchemy as sa

from jointopt.core.errors import UsageError
from jointopt.search.fake import fake_problem
from jointopt.search.nsga2 import search
from jointopt.search.pareto import concat, front_of, is_covered, objectives, take
from jointopt.search.studies import bulk
from jointopt.search.studies.saving import choose, save_study
from jointopt.search.studies.storage import prepare_storage


@pytest.fixture(scope="module")
def plans():
    problem = fake_problem(1, 32, 24, feasible_share=0.6)
    found = search(problem, trials=300, seed=0)
    table = problem.describe(concat([found.front, found.plans]))
    rank = np.arange(len(table["slack"]))
    return table | {
        "avg_power_w": 300.0 + rank,
        "in_domain": rank % 2 == 0,
        "unknown": np.full(len(rank), np.nan),
    }


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/studies.db"


def save(plans, url, **changes):
    return save_study(plans, url, **({"name": "tiny", "job_hash": "0123456789abcdef", "seed": 0} | changes))


def no_tables(monkeypatch):
    """As if Optuna had changed its tables."""
    monkeypatch.setitem(bulk.PINNED_COLUMNS, "trials", {"trial_id", "renamed"})


def test_the_bulk_path_reads_back_as_optunas_own_way_of_writing(plans, url, monkeypatch):
    fast = save(plans, url, max_trials=50, note="# Hello")
    no_tables(monkeypatch)
    slow = save(plans, url, max_trials=50, note="# Hello", name="own")
    one, other = (optuna.load_study(study_name=n, storage=url) for n in (fast, slow))
    fields = ("number", "state", "values", "params", "distributions", "user_attrs", "system_attrs", "constraints",
              "duration", "intermediate_values")  # fmt: skip
    for mine, theirs in zip(one.trials, other.trials, strict=True):
        assert [getattr(mine, f) for f in fields] == [getattr(theirs, f) for f in fields]
    assert (one.user_attrs, one.directions, one.metric_names) == (
        other.user_attrs,
        other.directions,
        other.metric_names,
    )


def test_a_study_goes_on_after_a_bulk_write(plans, url):
    study = optuna.load_study(study_name=save(plans, url), storage=url)
    before = len(study.trials)
    study.add_trial(study.trials[0])
    trial = study.ask()
    study.tell(trial, [1.0, 2.0])
    assert [t.number for t in study.trials] == list(range(before + 2))


def test_a_write_that_is_cut_off_leaves_nothing_behind(plans, url, monkeypatch):
    def cut(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr("jointopt.search.studies.display.plot_attributes", cut)
        with pytest.raises(KeyboardInterrupt):
            save(plans, url)
    assert optuna.get_all_study_names(url) == []
    assert save(plans, url) == "tiny-01234567"


def test_a_full_record_holds_every_plan_in_order(plans, url):
    study = optuna.load_study(study_name=save(plans, url, max_trials=None), storage=url)
    np.testing.assert_array_equal([t.values for t in study.trials], np.column_stack(objectives(plans)))


def test_what_is_too_much_for_people_is_kept_as_a_record_beside_their_study(plans, url):
    assert [save(plans, url, max_trials=50) for _ in range(2)] == ["tiny-01234567"] * 2
    sizes = {s.study_name: s.n_trials for s in optuna.get_all_study_summaries(url)}
    assert sizes == {"tiny-01234567-record": len(plans["slack"]), "tiny-01234567": 50}


def test_plans_of_the_front_are_explained(plans, url):
    study = optuna.load_study(study_name=save(plans, url, note="# Tiny"), storage=url)
    attributes = study._storage.get_study_system_attrs(study._study_id)
    assert attributes["dashboard:note_str:0"].startswith("# Tiny")
    assert "| time s | energy J |" in attributes["dashboard:note_str:0"]
    [best] = [t for t in study.best_trials if t.values == min(t.values for t in study.best_trials)]
    note = attributes[f"dashboard:{best._trial_id}:note_str:0"]
    assert "time +0.0%" in note
    assert f"{best.params['dp']} replicas (dp)" in note


def test_optunas_best_trials_are_the_front(plans, url):
    study = optuna.load_study(study_name=save(plans, url), storage=url)
    best = sorted(trial.values for trial in study.best_trials)
    np.testing.assert_array_equal(best, np.column_stack(objectives(front_of(plans))))
    assert study.metric_names == ["iteration_time_s", "energy_j"]


def test_a_trial_tells_its_plan_its_clocks_its_predictions_and_its_constraint_in_both_forms(plans, url):
    trial = optuna.load_study(study_name=save(plans, url), storage=url).trials[0]
    row = choose(plans, 2000, 0)[0]
    assert trial.params["dp"] == plans["dp"][row]
    assert trial.params["recompute"] in ("none", "selective", "full")
    clocks = [float(clock) for clock in trial.user_attrs["stage_clock_mhz"].split(";")]
    np.testing.assert_allclose(clocks, plans["stage_clock_mhz"][row][: trial.params["pp"]])
    assert trial.user_attrs["avg_power_w"] == plans["avg_power_w"][row]
    assert "unknown" not in trial.user_attrs
    assert trial.system_attrs["constraints"] == [trial.system_attrs["constraints:violation"]]


def test_timestamps_are_spread(plans, url):
    trials = optuna.load_study(study_name=save(plans, url), storage=url).trials
    starts = [trial.datetime_start for trial in trials]
    assert starts == sorted(set(starts))
    assert all(trial.duration.total_seconds() == 1 for trial in trials)


@pytest.mark.parametrize("count", [5, 60, 200, 10_000])
def test_the_choice_is_bounded_distinct_and_holds_the_front_first(plans, count):
    rows = choose(plans, count, 0)
    assert len(rows) == len(set(rows)) <= count
    chosen, front = take(plans, rows), front_of(plans)
    if count >= len(front["energy_j"]):
        assert is_covered(*objectives(front_of(chosen)), *objectives(front)).all()
    else:
        assert is_covered(*objectives(front), *objectives(chosen)).all()


def test_a_changed_job_never_continues_an_old_study(plans, url):
    assert save(plans, url) == "tiny-01234567"
    assert save(plans, url, job_hash="ffff0000ffff") == "tiny-ffff0000"


def test_an_identical_rerun_writes_nothing_and_another_one_gets_a_suffix(plans, url):
    assert save(plans, url) == save(plans, url) == "tiny-01234567"
    fewer = take(plans, np.arange(20))
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
    rows = choose(twice, 10_000, 0)
    assert rows.max() < count
    assert len(np.unique(np.column_stack(objectives(take(twice, rows))), axis=0)) == len(rows)


FIRST_RUN = """
import sys
from jointopt.search.studies.storage import prepare_storage
print("ready", flush=True)
sys.stdin.readline()
assert prepare_storage(sys.argv[1])
"""


@pytest.mark.parametrize("_", range(3))
def test_two_processes_may_make_one_new_database_at_once(tmp_path, _):
    url = f"sqlite:///{tmp_path}/new.db"
    pipe = subprocess.PIPE
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST_RUN, url], stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        for _ in range(2)
    ]
    assert [run.stdout.readline() for run in runs] == ["ready\n"] * 2
    for run in runs:
        run.stdin.write("go\n")
        run.stdin.flush()
    assert [run.communicate()[1] for run in runs] == ["", ""]
    assert optuna.get_all_study_names(url) == []


def test_tables_that_another_process_makes_meanwhile_are_tried_again(plans, url, monkeypatch):
    get, calls = optuna.storages.get_storage, []

    def late(url):
        calls.append(url)
        if len(calls) < 3:
            raise sa.exc.OperationalError(
                "CREATE", {}, sqlite3.OperationalError("table studies already exists")
            )
        return get(url)

    monkeypatch.setattr("optuna.storages.get_storage", late)
    assert prepare_storage(url)
    assert len(calls) == 3


def test_a_database_that_can_only_be_read_is_noticed_before_anything_is_stored(url):
    assert prepare_storage(url)
    with pytest.raises(UsageError, match="readonly database"):
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


def test_optuna_dashboard_shows_the_study(plans, url):
    dashboard = pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed")
    name = save(plans, url, note="# Hello\n" + "long " * 1000, attributes={"jointopt": "0.1"})
    app = dashboard.wsgi(optuna.storages.RDBStorage(url))
    [study] = call(app, "/api/studies")["study_summaries"]
    assert study["study_name"] == name
    detail = call(app, f"/api/studies/{study['study_id']}")
    assert len(detail["trials"]) == len(choose(plans, 2000, 0))
    assert detail["note"]["body"].startswith("# Hello")
    assert "## The front" in detail["note"]["body"][5008:]
    assert detail["plotly_graph_objects"][0]["id"] == "front"
    assert {len(trial["constraints"]) for trial in detail["trials"]} == {1}
    assert detail["objective_names"] == ["iteration_time_s", "energy_j"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sqlite:////no/such/folder/x.db", "unable to open"),
        ("just words", "parse"),
        ("", "parse"),
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
    with pytest.raises(UsageError, match="not a database"):
        save(plans, f"sqlite:///{path}")
