"""The page of real runs: every run of a tune or a validate, beside its prediction."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from jointopt.jobs.job import Job
from jointopt.report.results import Tuned, TunedRun, Validated, ValidatedRun

PLAN = {"dp": 8, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1, "sequence_parallel": False,
        "recompute": "none", "zero_stage": 1, "stage_clock_mhz": [1410.0]}  # fmt: skip


def foreseen(time_s: float) -> dict[str, float]:
    return {"iteration_time_s": time_s, "iteration_time_s_low": 0.9 * time_s, "iteration_time_s_high": 1.1 * time_s}


BOTH = ("iteration_time_s", "energy_j")


def one(kind: type, mbs: int, predicted: float, measured: float, **fields: Any) -> Any:
    row = (
        {"status": "ok", "iteration_time_s": measured} if measured else {"status": "oom", "notes": "20 GiB <too> much"}
    )
    return kind(plan=PLAN | {"micro_batch_size": mbs}, row=row, predicted=foreseen(predicted), **fields)


@pytest.fixture
def tuned(job: Job) -> Tuned:
    runs = [
        one(TunedRun, 1, 3.0, 3.6, round=1, probability_fits=1.0),
        one(TunedRun, 2, 3.4, 3.3, round=2, probability_fits=1.0),
        one(TunedRun, 4, 3.2, 0.0, round=2, probability_fits=0.6),
    ]  # fmt: skip
    return Tuned(
        job=job, launcher="replay", seed=0, candidates=9, runs=tuple(runs), front=(1,), hypervolume=(0.1, 0.2, 0.2),
        stopped="budget", objectives=("iteration_time_s",),
    )  # fmt: skip


def data(html: str) -> Any:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    return json.loads(text)["figures"]


def test_runs_stand_where_prediction_and_measurement_meet(tuned: Tuned) -> None:
    runs = data(tuned.report().html())["against-iteration_time_s"]["data"][1]
    assert (runs["x"], runs["y"], runs["text"]) == ([3.0, 3.4], [3.6, 3.3], ["1", "2"])
    assert runs["error_x"]["array"] == pytest.approx([0.3, 0.34])


def test_the_picture_reaches_a_tenth_beyond_its_runs_and_bars_reach_down_as_well(tuned: Tuned) -> None:
    figure = data(tuned.report().html())["against-iteration_time_s"]
    line, runs = figure["data"]
    assert runs["error_x"]["arrayminus"] == pytest.approx([0.3, 0.34])
    for ends in (line["x"], line["y"], figure["layout"]["xaxis"]["range"], figure["layout"]["yaxis"]["range"]):
        assert ends == pytest.approx([0.9 * 3.0, 1.1 * 3.6])


def test_cards_name_the_best_run_the_errors_and_what_did_not_succeed(tuned: Tuned) -> None:
    content: Any = replace(tuned, gain_left=0.123).report().content
    assert content["cards"] == [
        ("Time measured", "3.300 s", "predicted 3.400 s (90 %: 3.060 s to 3.740 s), off by +3.0%"),
        ("Time against run 1", "-8.3 %", "the first that succeeded"),
        ("Time off by", f"{(0.6 / 3.6 + 0.1 / 3.3) / 2:.1%}", "median; 1 of 2 in their 90 % interval"),
        ("Expected of the plans left", "12.3%", "off the least time measured"),
        ("Did not succeed", "1", "out of memory, failed, timed out"),
    ]


def test_the_error_of_each_round_is_that_of_its_predictions(tuned: Tuned) -> None:
    errors, volume = data(replace(tuned, objectives=BOTH).report().html())["rounds"]["data"]
    assert errors["x"] == [1, 2]
    assert errors["y"] == pytest.approx([100 * 0.6 / 3.6, 100 * 0.1 / 3.3], rel=1e-3)
    assert volume["y"] == [50.0, 100.0]


def test_the_best_so_far_never_rises_and_leaves_out_what_failed(tuned: Tuned) -> None:
    measured, best = data(tuned.report().html())["progress"]["data"]
    assert (measured["y"], best["y"]) == ([3.6, 3.3, None], [3.6, 3.3, 3.3])


def test_the_table_has_every_run_and_escapes_its_notes(tuned: Tuned) -> None:
    html = tuned.report().html()
    assert "oom: 20 GiB &lt;too&gt; much" in html
    assert html.count(">3.300 s</td>") == 1
    assert len(html.encode()) < 4_000_000


def test_a_run_stands_as_measured_then_as_predicted_and_its_error_under_its_head(tuned: Tuned) -> None:
    table = tuned.report().content["table"]
    shown = dict(zip(table["head"], table["rows"][0], strict=True))
    assert (shown["time"], shown["predicted"], shown["off by"]) == ("3.600 s", "3.000 s", "-16.7%")
    (line,) = [line for line in tuned.text().splitlines() if line.split()[:1] == ["1"]]
    assert line.split()[-3:] == ["3.600", "3.000", "9.1"]


def test_a_validate_marks_the_runs_whose_reasons_not_all_of_them_have(job: Job) -> None:
    doubted = {"in_domain": False, "earlier": False}
    runs = [one(ValidatedRun, 1, 3.0, 3.6, doubts="model", reference=True, **doubted),
            one(ValidatedRun, 2, 3.0, 3.0, doubts="model clock", reference=False, **doubted)]  # fmt: skip
    text = Validated(job=job, launcher="replay", runs=tuple(runs), stopped="done", surrogate="none", proposed=5).text()
    assert [line[:1] for line in text.splitlines() if " ok " in line] == ["=", "?"]
    sentences = " ".join(text.split())
    assert "The interval is wider for every plan here: few recorded runs of mixtures of experts." in sentences
    assert "? the interval is wider still: clock response not measured on this GPU." in sentences


def test_a_validate_shows_what_it_missed_and_nothing_of_rounds(job: Job) -> None:
    runs = [one(ValidatedRun, 1, 3.0, 3.6, in_domain=True, reference=True, earlier=False),
            one(ValidatedRun, 2, 3.0, 3.0, in_domain=True, reference=False, earlier=True)]  # fmt: skip
    found = Validated(job=job, launcher="replay", runs=tuple(runs), stopped="done", surrogate="none", proposed=5)
    content: Any = found.report().content
    assert [one["id"] for one in content["pictures"]] == ["against-iteration_time_s"]
    assert ("Time off by", "16.7%", "median; 0 of 1 in their 90 % interval") in content["cards"]


def test_runs_that_all_failed_make_a_page_without_pictures(tuned: Tuned, job: Job) -> None:
    failed = one(TunedRun, 4, math.nan, 0.0, round=1, probability_fits=0.6)
    found = Tuned(job=job, launcher="replay", seed=0, candidates=9, runs=(failed,), front=(), hypervolume=(0.0,),
                  stopped="failed", objectives=("iteration_time_s",), fault="No run succeeded.")  # fmt: skip
    html = found.report().html()
    assert data(html) == {}
    assert "No run succeeded." in html


@pytest.mark.parametrize(("rounds", "step"), [(2, 1), (30, 2)])
def test_rounds_are_marked_one_by_one_or_about_twelve_of_them(tuned: Tuned, rounds: int, step: int) -> None:
    runs = tuple(replace(tuned.runs[0], round=number + 1) for number in range(rounds))
    many = replace(tuned, runs=runs, front=(0,), hypervolume=(0.1,) * rounds)
    assert data(many.report().html())["rounds"]["layout"]["xaxis"]["dtick"] == step


@pytest.mark.parametrize(("launcher", "earlier", "words"), [
    ("replay", (False, True), "2 proposed plans (surrogate none), looked up in the table (a replay runs nothing)."),
    ("torchrun", (False,), "1 proposed plan (surrogate none), run by torchrun."),
    ("replay", (True, True), "2 proposed plans (surrogate none), all measured before and not run again"),
])  # fmt: skip
def test_a_validate_states_whether_anything_was_run(job: Job, launcher: str, earlier: tuple[bool, ...], words: str):
    runs = tuple(one(ValidatedRun, 1, 3.0, 3.6, in_domain=True, reference=False, earlier=known) for known in earlier)
    found = Validated(job=job, launcher=launcher, runs=runs, stopped="done", surrogate="none", proposed=5)
    assert words in " ".join(found.text().split())
    assert found.text().count("\n0 ") == (0 if all(earlier) else sum(earlier))


def test_a_tune_by_replay_states_that_nothing_was_run(tuned: Tuned) -> None:
    replayed, run = replace(tuned, launcher="replay"), replace(tuned, launcher="torchrun")
    assert "plans looked up in the table (a replay runs nothing), for " in " ".join(replayed.text().split())
    assert "plans run by torchrun, for " in " ".join(run.text().split())
    assert "looked up in the table (a replay runs nothing), each the most promising then" in replayed.report().html()
