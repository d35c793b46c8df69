"""The study of what was really run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState

from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.search.studies.measured import MeasuredStudy

PLAN: dict[str, Any] = {
    "dp": 4, "tp": 2, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 2, "sequence_parallel": False,
    "recompute": "none", "zero_stage": 1, "stage_clock_mhz": [1410.0],
}  # fmt: skip
OK = {"status": "ok", "iteration_time_s": 2.5, "energy_j": 900.0, "notes": "10 iterations"}
PREDICTED = {"iteration_time_s": 2.0, "iteration_time_s_low": 1.5, "iteration_time_s_high": 2.4, "energy_j": math.nan}
BOTH = ("iteration_time_s", "energy_j")


def opened(url: str, objectives: tuple[str, ...] = BOTH) -> MeasuredStudy:
    plans = {name: np.array([1, 8]) for name in LAYOUT_COLUMNS} | {"stage_clock_mhz": np.array([[1200.0], [1410.0]])}
    return MeasuredStudy(url, "job", "0123456789", objectives, plans, "# job\n")


def trials(url: str, name: str) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name=name, storage=url).trials


def system_attributes(url: str, name: str) -> dict[str, Any]:
    storage = optuna.storages.get_storage(url)
    return storage.get_study_system_attrs(storage.get_study_id_from_name(name))


def test_a_run_is_a_running_trial_and_then_one_with_predicted_and_measured_side_by_side(url: str) -> None:
    study = opened(url)
    trial = study.begin(PLAN, PREDICTED, round=1)
    assert trials(url, study.name)[0].state == TrialState.RUNNING
    study.end(trial, OK, run_seconds=3.0)
    (done,) = trials(url, study.name)
    assert (done.state, done.values) == (TrialState.COMPLETE, [2.5, 900.0])
    assert done.params["dp"] == 4
    expected = {
        "predicted_iteration_time_s": 2.0,
        "iteration_time_s": 2.5,
        "notes": "10 iterations",
        "run_seconds": 3.0,
    }
    assert expected.items() <= done.user_attrs.items()
    assert "predicted_energy_j" not in done.user_attrs


def test_a_plan_with_a_clock_per_stage_is_a_trial_at_the_fastest_of_them(url: str) -> None:
    study = opened(url)
    study.end(study.begin({**PLAN, "pp": 2, "stage_clock_mhz": [1200.0, 1410.0]}, PREDICTED), OK)
    assert trials(url, study.name)[0].params["clock_mhz"] == 1410.0


def test_the_dashboard_finds_a_note_per_trial_and_a_figure(url: str) -> None:
    study = opened(url)
    trial = study.begin(PLAN, PREDICTED)
    study.end(trial, OK)
    shown = system_attributes(url, study.name)
    assert "| iteration_time_s (s) | 2 | 1.5 to 2.4 | 2.5 | -20.0% |" in shown[f"dashboard:{trial}:note_str:0"]
    figure = json.loads(shown["dashboard:plot_data:measured:0"])
    assert [trace["y"] for trace in figure["data"]] == [[2.0], [2.5], [2.5]]
    assert shown["study:metric_names"] == list(BOTH)


def test_a_failed_run_has_its_reason_and_a_broken_bound_is_a_constraint(url: str) -> None:
    study = opened(url)
    study.end(study.begin(PLAN, {}), {"status": "oom", "notes": "out of memory on rank 3"})
    study.end(study.begin(PLAN, {}), OK, broken=("energy_j",))
    failed, broken = trials(url, study.name)
    assert (failed.state, failed.user_attrs["notes"]) == (TrialState.FAIL, "out of memory on rank 3")
    assert broken.system_attrs["constraints"] == [1.0]


def test_without_a_meter_the_study_is_of_time_alone_and_keeps_the_runs_that_failed(url: str) -> None:
    study = opened(url)
    study.end(study.begin(PLAN, {}), {"status": "oom", "notes": "too large"})
    study.end(study.begin(PLAN, PREDICTED), {**OK, "energy_j": math.nan})
    failed, good = trials(url, study.name)
    assert study.objectives == ("iteration_time_s",)
    assert (failed.state, good.values) == (TrialState.FAIL, [2.5])
    assert optuna.get_all_study_names(url) == [study.name]


def test_the_same_job_continues_its_study_and_other_objectives_make_another(url: str) -> None:
    study = opened(url)
    study.end(study.begin(PLAN, {}), OK)
    again, other = opened(url), opened(url, ("iteration_time_s",))
    assert again.name == study.name != other.name
    assert again.has_trial_of(PLAN)
    assert not again.has_trial_of({**PLAN, "tp": 1})


def test_what_a_killed_process_ran_does_not_run_any_more_and_what_it_recorded_is_known(url: str) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[2]); import test_measured as t; s = t.opened(sys.argv[1]);"
        "s.set_unfinished({'spent': 3}); s.begin(t.PLAN, {}); import os; os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", program, url, str(Path(__file__).parent)], check=False)
    assert killed.returncode == -9
    study = opened(url)
    assert [trial.state for trial in trials(url, study.name)] == [TrialState.FAIL]
    assert not study.has_trial_of(PLAN)
    assert study.unfinished is not None
    assert study.unfinished["spent"] == 3


def test_runs_that_a_killed_process_has_begun_are_left_until_their_plan_runs_again(url: str) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[2]); import test_measured as t; s = t.opened(sys.argv[1]);"
        "s.begin(t.PLAN, {}, origin='tune');"
        "s.end_without_result(s.begin({**t.PLAN, 'tp': 1}, {}, origin='tune'), 'why');"
        "import os; os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, url, str(Path(__file__).parent)], check=False)
    study = opened(url)
    assert [json.loads(trial.user_attrs["plan"]) for trial in study.abandoned("tune")] == [PLAN]
    assert study.abandoned("validate") == []
    study.end(study.begin(PLAN, {}, origin="tune"), OK)
    assert opened(url).abandoned("tune") == []


def test_what_a_living_process_records_is_its_own_until_it_pauses(url: str) -> None:
    study = opened(url)
    study.set_unfinished({"spent": 1})
    assert opened(url).unfinished is None
    study.set_unfinished({"spent": 2}, paused=True)
    assert (opened(url).unfinished or {})["spent"] == 2
    study.set_unfinished(None)
    assert opened(url).unfinished is None
