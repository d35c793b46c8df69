"""A table of predicted plans: each figure in its unit, each objective against the first plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jointopt.report.plans import predicted_table, rank_words, rate_words
from jointopt.spec.jobfile import shipped_job

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


def test_places_beyond_those_counted_say_so() -> None:
    assert (rank_words(12, 3456), rank_words(None, 3456)) == ("rank 12 of 3,456", "beyond rank 1,000 of 3,456")
