"""A table of predicted plans: each figure in its unit, each objective against the first plan."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from jointopt.jobs.jobfile import shipped_job
from jointopt.report import tables
from jointopt.report.plans import (
    are_against_first,
    compared_lines,
    predicted_table,
    probability_text,
    rank_words,
    rate_words,
    tight_lines,
)

PLAN: dict[str, Any] = {
    "dp": 8, "tp": 2, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 4, "stage_clock_mhz": [1410.0],
    "iteration_time_s": 2.5, "iteration_time_s_low": 2.0, "iteration_time_s_high": 3.5, "energy_j": 4000.0,
    "avg_power_w": 321.0, "peak_memory_gib": 65.44, "tokens_per_s_per_gpu": 1234.5, "mfu": 0.4321,
}  # fmt: skip
OTHER = PLAN | {"tp": 4, "iteration_time_s": 3.0, "energy_j": 3000.0, "fit_probability": 0.5, "in_domain": False}


def test_each_plan_has_its_figures_and_what_they_are_against_the_first() -> None:
    head, units, first, second = predicted_table([PLAN, OTHER], ["A", "B"])[-4:]
    assert first.split() == ["A", "8", "2", "1", "4", "1410", "2.500", "30", "4.000", "321", "65.4", "1,234", "43.2",
                             "0", "0"]  # fmt: skip
    assert second.split()[0] == "B?~"
    assert second.split()[-8:] == ["25", "3.000", "321", "65.4", "1,234", "43.2", "+20.0", "-25.0"]
    assert {"time", "energy", "power"} <= set(head.split())
    assert {"s", "kJ", "W/GPU", "GiB"} <= set(units.split())


def test_rates_are_a_sentence_of_what_is_known() -> None:
    job = shipped_job("llama-3-8b-1x8-h100")
    job = replace(job, training=replace(job.training, dtype="bf16"))
    rates = {"tokens_per_s": 98765.4, "tokens_per_s_per_gpu": 12345.6, "mfu": 0.4321, "hfu": 0.4321}
    assert rate_words(job, rates) == "98,765 tokens/s, 12,346 per GPU, MFU 43.2% of 989 TFLOP/s in bf16."
    assert rate_words(job, {"mfu": 0.4, "hfu": 0.5}).endswith("MFU 40.0% of 989 TFLOP/s in bf16, HFU 50.0%.")
    assert rate_words(job, {"mfu": float("nan")}) == rate_words(job, {}) == ""


def test_places_beyond_those_counted_are_marked_as_beyond() -> None:
    assert (rank_words(12, 3456), rank_words(None, 3456)) == ("rank 12 of 3,456", "beyond rank 1,000 of 3,456")


ITSELF = {f"{name}_vs_first_percent{end}": 0.0 for name in ("time", "energy") for end in ("", "_low", "_high")}
APART = {
    "time_vs_first_percent": 20.0, "time_vs_first_percent_low": 12.0, "time_vs_first_percent_high": 29.0,
    "energy_vs_first_percent": -25.0, "energy_vs_first_percent_low": -31.0, "energy_vs_first_percent_high": -18.6,
    "faster_probability": 0.004, "leaner_probability": 0.996,
}  # fmt: skip
COMPARED = [PLAN | ITSELF, OTHER | APART]


def test_differences_have_half_their_interval_behind_them_and_how_likely_each_is_better() -> None:
    *_, first, second = predicted_table(COMPARED, ["A", "B"])
    assert first.split()[-3:] == ["0", "0", "-"]
    assert second.split()[-3:] == ["+20.0±8.5", "-25.0±6.2", "0|100"]


def test_differences_from_another_plan_than_the_first_are_not_shown() -> None:
    for first in (PLAN | APART, PLAN):
        assert predicted_table([first, OTHER | APART], ["A", "B"])[-1].split()[-2:] == ["+20.0", "-25.0"]
        assert not are_against_first([first, OTHER | APART])


def test_a_plan_without_an_interval_keeps_its_difference_below_the_others() -> None:
    assert tables.plus_minus(["0", "+20.0", "-3.1"], [float("nan"), 8.46, 12.4]) == [
        "    0    ",
        "+20.0±8.5",
        " -3.1±12 ",
    ]


@pytest.mark.parametrize(("width", "end"), [(100, "0|100"), (80, "-25.0±6.2"), (70, "-25.0")])
def test_a_narrow_table_leaves_out_rates_then_likelihoods_then_intervals(
    monkeypatch: pytest.MonkeyPatch, width: int, end: str
) -> None:
    monkeypatch.setattr(tables, "line_width", lambda *_: width)
    lines = predicted_table(COMPARED, ["A", "B"])
    assert lines[-1].split()[-1] == end
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(
    ("width", "words"),
    [(100, "± there: .*; better: .*both"), (80, "± there: [^;]*either is better"), (70, "a wider terminal")],
)
def test_the_legend_explains_what_the_table_has_room_for(
    monkeypatch: pytest.MonkeyPatch, width: int, words: str
) -> None:
    monkeypatch.setattr(tables, "line_width", lambda *_: width)
    assert re.search(words, " ".join(compared_lines(COMPARED, predicted_table(COMPARED, ["A", "B"]))))
    assert compared_lines([PLAN], []) == []


@pytest.mark.parametrize(("probability", "shown"), [(0.496, "0.49"), (0.799, "0.79"), (0.8, "0.80"), (1.0, "1.00")])
def test_odds_are_rounded_down(probability: float, shown: str) -> None:
    assert probability_text(probability) == shown


def test_the_sentence_on_tight_plans_has_the_least_probability() -> None:
    plans = [PLAN | {"fit_probability": probability} for probability in (0.9, 0.62, 0.71)]
    assert tight_lines(plans) == ["~ tight: may not fit in memory (probability 0.62 at least)."]
    none = [PLAN | {"fit_probability": probability} for probability in (0.3, 0.12)]
    assert "none of these is expected to fit in memory: probability 0.12 to 0.30" in tight_lines(none)[0]


def test_one_plan_that_may_fit_is_enough_not_to_call_all_hopeless() -> None:
    plans = [PLAN | {"fit_probability": probability} for probability in (0.3, 0.6)]
    assert tight_lines(plans) == ["~ tight: may not fit in memory (probability 0.30 at least)."]
