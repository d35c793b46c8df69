"""Measured power that is of something else than one GPU in watts: what is refused, and the sentence on it."""

from __future__ import annotations

import functools
import logging

import numpy as np
import pandas as pd
import pytest

from jointopt.runs.row_names import join_named_tables, row_names
from jointopt.runs.table import checked_results
from jointopt.studies.learning import truths
from jointopt.surrogate.data_doubts import MeasuredWatts, power_lines, power_log_ratio
from jointopt.surrogate.dataset import price, with_results
from jointopt.surrogate.measurements import Measurements
from jointopt.surrogate.training import training_set
from jointopt.workflows.evaluate import evaluate
from jointopt.workflows.predict import predict


@functools.cache
def runs() -> pd.DataFrame:
    """Runs on one and on several nodes of eight GPUs, with power and energy."""
    return truths.table("T", 60, seed=11, clocks=True)


def of_energy(factor: np.ndarray) -> pd.DataFrame:
    """The runs with energy alone, times ``factor``."""
    return runs().drop(columns="avg_power_w").assign(energy_j=runs()["energy_j"] * factor)


def share_and_lines(table: pd.DataFrame) -> tuple[float, list[str]]:
    """The share of runs whose power is learned from, and the sentences on the others."""
    sound = with_results(checked_results(table)[0])
    priced = price(sound)
    return np.isfinite(power_log_ratio(sound, priced)).mean(), power_lines(sound, priced, row_names(sound))


def watts(ratios: list[float], slower: list[float] | None = None, column: str = "avg_power_w") -> MeasuredWatts:
    """Runs on two nodes of eight GPUs that draw so many times the 500 W of the physics, 100 W of them at rest."""
    table = pd.DataFrame({"avg_power_w": 500.0 * np.array(ratios), "num_gpus": 16, "gpus_per_node": 8, "status": "ok"})
    if column == "energy_j":
        table = table.assign(energy_j=table.pop("avg_power_w") * 16, iteration_time_s=1.0)
    ones = np.ones(len(ratios))
    return MeasuredWatts.of(table, 500.0 * ones, ones if slower is None else np.array(slower), 100.0 * ones)


def sentences(found: MeasuredWatts) -> str:
    """The sentences on runs of one source."""
    of_one = np.full(len(found.watts), "mine")
    return " ".join(found.lines(of_one, np.arange(len(of_one)), lambda row: f"row {row + 1} of runs.csv"))


def test_power_near_that_of_the_physics_is_learned_without_a_word():
    assert share_and_lines(runs()) == (1.0, [])


def test_power_of_a_gpu_divided_by_the_gpus_of_a_node_once_more_is_refused():
    share, lines = share_and_lines(runs().assign(avg_power_w=runs()["avg_power_w"] / 8, energy_j=np.nan))
    assert share == 0.0
    assert "avg_power_w of" in lines[0]
    assert "divided by the GPUs of a node once more?" in lines[0]


def test_energy_of_one_gpu_or_of_one_node_is_refused_and_named():
    gpus = runs()["num_gpus"].to_numpy(float)
    for factor, words in ((1 / gpus, "of one GPU?"), (8 / gpus, "of one node?")):
        share, lines = share_and_lines(of_energy(factor))
        assert share == 0.0
        assert f"is it {words} Expected J of all GPUs of the job for one iteration" in lines[0]


def test_one_of_two_sources_in_another_unit_is_refused_alone():
    half = np.arange(60) % 2 == 0
    wrong = runs()["avg_power_w"] / np.where(half, 5.0, 1.0)
    table = runs().assign(source=np.where(half, "lab a", "lab b"), avg_power_w=wrong, energy_j=np.nan)
    share, lines = share_and_lines(table)
    assert share == pytest.approx(0.5, abs=0.05)
    assert [("lab a" in line, "lab b" in line) for line in lines] == [(True, False)]


def test_odd_rows_among_sound_ones_are_refused_alone_and_the_first_is_named():
    found = watts([1.0, 1.1, 0.45, 0.9, 2.1])
    assert found.refused(np.full(5, "mine")).tolist() == [False, False, True, False, True]
    assert "avg_power_w of 2 of 5 measured runs" in sentences(found)
    assert "(row 3 of runs.csv is the first)" in sentences(found)


def test_a_run_whose_gpus_wait_may_draw_less():
    assert not watts([0.4] * 3, slower=[4.0] * 3).refused(np.full(3, "mine")).any()
    assert watts([0.15] * 3, slower=[4.0] * 3).refused(np.full(3, "mine")).all()


@pytest.mark.parametrize(("ratio", "refused", "words"), [
    (0.65, False, ""), (0.55, False, "it is used all the same"), (1.7, False, "it is used all the same"),
    (0.48, True, "not learned from"),
])  # fmt: skip
def test_a_source_off_by_less_than_twice_is_used_with_a_doubt(ratio, refused, words):
    found = watts([ratio] * 4)
    assert found.refused(np.full(4, "mine")).all() == refused
    assert (words in sentences(found)) if words else not sentences(found)


def test_half_of_the_energy_of_two_nodes_is_refused_before_it_is_half_of_the_physics():
    found = watts([0.55] * 4, column="energy_j")
    assert found.refused(np.full(4, "mine")).all()
    assert "is it of one node?" in sentences(found)


def test_training_learns_time_and_not_the_power_of_one_gpu_and_names_the_file(caplog):
    data = training_set(
        join_named_tables([("a.csv", runs().head(20)), ("b.csv", of_energy(0.3 * np.ones(60)).tail(40))]), 5.0
    )
    assert len(data.source) == 60
    assert np.isfinite(data.log_power).sum() == 20
    assert "row 1 of b.csv is the first" in caplog.text


def test_measured_runs_in_another_unit_move_no_predicted_power(caplog):
    wrong = of_energy(0.3 * np.ones(60))
    with caplog.at_level(logging.WARNING):
        by_wrong = predict(runs().head(3), "default", Measurements.of(wrong, "own.csv"))
    bare = predict(runs().head(3), "default", Measurements.of(wrong.drop(columns="energy_j"), "own.csv"))
    assert "row 1 of own.csv is the first" in caplog.text
    assert by_wrong["predicted_avg_power_w"].tolist() == pytest.approx(bare["predicted_avg_power_w"].tolist())


def test_evaluate_says_that_power_is_of_something_else(caplog):
    evaluate(of_energy(0.3 * np.ones(60)).head(12))
    assert "row 1 is the first" in caplog.text
    assert "errors of power and energy say nothing" in caplog.text
