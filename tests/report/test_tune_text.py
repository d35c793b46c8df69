"""What `tune` prints."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jointopt.core.budget import Spent
from jointopt.jobs.job import Job
from jointopt.report.plans import differing_columns, plan_words
from jointopt.report.real_runs import Gains, gain_words, successful_runs
from jointopt.report.results import Tuned, TunedRun

BOTH = ("iteration_time_s", "energy_j")


@pytest.fixture
def make_tuned(job: Job) -> Callable[..., Tuned]:
    """Three runs of 16-stage plans, the second out of memory; keyword arguments replace fields."""

    def tuned(**fields: Any) -> Tuned:
        plan = {
            "dp": 128, "tp": 8, "pp": 16, "cp": 2, "ep": 1, "vpp": 2, "micro_batch_size": 16, "recompute": "selective",
            "sequence_parallel": True, "zero_stage": 1, "stage_clock_mhz": [1410.0 - 15 * i for i in range(16)],
        }  # fmt: skip
        predicted = {"iteration_time_s": 1234.5, "energy_j": 2.5e9}
        good = {"status": "ok", "iteration_time_s": 1300.25, "energy_j": 2.6e9}
        rows = [good, {"status": "oom"}, good | {"iteration_time_s": 1200.0}]
        runs = tuple(
            TunedRun(plan=plan, row=row, predicted=predicted, round=i + 1, probability_fits=0.9)
            for i, row in enumerate(rows)
        )
        given = {
            "job": job, "launcher": "replay", "seed": 0, "candidates": 40, "runs": runs, "front": (2,),
            "hypervolume": (0.1, 0.1, 0.2), "stopped": "budget", "objectives": job.objectives,
        }  # fmt: skip
        return Tuned(**(given | fields))

    return tuned


def test_the_widest_table_fits_a_terminal_of_100_columns(make_tuned: Callable[..., Tuned]) -> None:
    assert max(map(len, make_tuned().text().splitlines())) <= 100


def test_the_best_run_is_marked_and_the_others_stand_against_it(make_tuned: Callable[..., Tuned]) -> None:
    lines = make_tuned().text().splitlines()
    (best,) = [line for line in lines if line.startswith("* ") and line.endswith("0.0")]
    assert " 1200 " in best
    assert any(line.endswith(" 8.4") for line in lines)


@pytest.mark.parametrize(("spent", "numbers"), [(3, ["1", "2", "3"]), (5, ["3", "4", "5"]), (0, ["1", "2", "3"])])
def test_runs_are_numbered_on_from_those_of_the_same_budget_before(
    make_tuned: Callable[..., Tuned], spent: int, numbers: list[str]
) -> None:
    lines = make_tuned(front=(), spent=Spent(runs=spent)).text().splitlines()
    assert [line.split()[0] for line in lines if " 128 " in line] == numbers


def test_runs_that_were_measured_before_have_no_number(make_tuned: Callable[..., Tuned]) -> None:
    first, *others = make_tuned().runs
    lines = make_tuned(runs=(replace(first, round=0), *others), front=(), spent=Spent(runs=2)).text().splitlines()
    assert [line.split()[0] for line in lines if " 128 " in line] == ["-", "1", "2"]


def test_energy_that_no_run_measured_has_no_column(make_tuned: Callable[..., Tuned]) -> None:
    runs = make_tuned().runs
    timed = tuple(replace(r, row={**r.row, "energy_j": None}) for r in runs)
    assert "energy" not in make_tuned(runs=timed, objectives=("iteration_time_s",)).text()


def test_a_line_of_words_has_all_in_which_plans_differ() -> None:
    plan = {
        "dp": 4, "tp": 2, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1, "sequence_parallel": True,
        "recompute": "none", "zero_stage": 1, "stage_clock_mhz": [1485.0],
    }  # fmt: skip
    plain = "dp=4 tp=2 pp=1 mbs=1 rc=none ZeRO=1"
    assert plan_words(plan, differing_columns([plan])) == plain
    others = [plan | {"stage_clock_mhz": [1980.0]}, plan | {"sequence_parallel": False}]
    varied = differing_columns([plan, *others])
    assert plan_words(plan, varied) == "dp=4 tp=2 pp=1 mbs=1 sp=y rc=none ZeRO=1 clock=1485 MHz"


def test_json_has_null_where_a_failed_run_measured_nothing(make_tuned: Callable[..., Tuned]) -> None:
    failed = make_tuned().to_dict()["measured"][1]
    assert failed["status"] == "oom"
    assert failed["iteration_time_s"] is failed["energy_j"] is None
    assert failed["predicted_iteration_time_s"] == 1234.5


def test_a_run_over_a_bound_has_a_status_and_a_legend_that_names_the_bound(make_tuned: Callable[..., Tuned]) -> None:
    first, *others = make_tuned().runs
    text = make_tuned(runs=(replace(first, broken=("energy_j",)), *others)).text()
    assert " over " in text
    assert "over: beyond the job's bound on energy_j." in " ".join(text.split())


def test_no_text_and_no_document_has_the_password_of_a_storage(make_tuned: Callable[..., Tuned]) -> None:
    tuned = make_tuned(storage="postgresql+psycopg://me:secret@host/runs", study_name="a-study")
    assert "jointopt dashboard --storage 'postgresql+psycopg://me:***@host/runs' --study a-study" in tuned.text()
    assert "secret" not in tuned.text() + str(tuned.to_dict())


@pytest.mark.parametrize(
    ("gain", "objectives", "words"),
    [
        (0.0325, ("iteration_time_s",), "should lower the least time measured by 3.2%"),
        (0.0325, ("energy_j",), "should lower the least energy measured by 3.2%"),
        (0.1, BOTH, "should enlarge the measured front's hypervolume (of logarithms) by 10.0%"),
        (math.nan, BOTH, "is not known yet"),
    ],
)
def test_what_is_left_lowers_the_best_of_one_objective_and_enlarges_the_hypervolume_of_several(
    gain: float, objectives: tuple[str, ...], words: str
) -> None:
    assert words in gain_words(gain, objectives, "The plans that are left")


def test_gains_are_against_the_first_run_that_succeeded(make_tuned: Callable[..., Tuned]) -> None:
    text = " ".join(make_tuned().text().split())
    assert "Run 3 is the fastest: 7.7% less time than run 1, the first that succeeded." in text
    assert "No run needs less energy than that one in no more time." in text
    assert "The measured front's hypervolume grew from 10.0% to 20.0% of the box" in text


def test_gains_are_against_the_fastest_run_before_this_tune(make_tuned: Callable[..., Tuned]) -> None:
    first, *others = make_tuned().runs
    text = " ".join(make_tuned(runs=(replace(first, round=0), *others)).text().split())
    assert "is the fastest: 7.7% less time than a run of an earlier tune, the fastest before this tune." in text


@given(st.lists(st.tuples(st.sampled_from(["ok", "oom"]), st.floats(1, 2), st.floats(1, 2)), min_size=1, max_size=6))
def test_a_gain_is_what_two_runs_show(rows: list[tuple[str, float, float]]) -> None:
    cells = [dict(zip(("status", *BOTH), row, strict=True)) for row in rows]
    runs = [TunedRun(plan={}, row=row, predicted={}, round=1, probability_fits=1.0) for row in cells]
    assume(good := successful_runs(runs))
    found = Gains.of(runs, good[0], "")
    times, energies = ([run.result(name) for run in runs] for name in BOTH)
    assert times[found.fastest] == pytest.approx(times[found.against] * (1.0 - found.less_time))
    assert energies[found.leanest] == pytest.approx(energies[found.against] * (1.0 - found.less_energy))
    assert times[found.leanest] <= times[found.against]
    assert min(found.less_time, found.less_energy) >= 0.0


def test_a_short_answer_has_the_best_run_beside_its_prediction_and_against_the_first(
    make_tuned: Callable[..., Tuned],
) -> None:
    lines = make_tuned(gain_left=0.03).text(brief=True).splitlines()
    text = " ".join(" ".join(lines).split())
    assert len(lines) <= 25
    assert "Best measured: run 3 of 3, least energy within 1% of the fastest's time" in text
    assert "time 1200 s, predicted 1234 s, off by +2.9%" in text
    assert "Against run 1, the first that succeeded, as measured time -7.7 %" in text
    assert "Did not succeed: 1 oom." in text
    assert "The budget is spent." in text
    assert "by 3.0%. A larger --budget runs more of them." in text
