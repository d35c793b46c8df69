"""Predictions of recorded runs stay as accurate as tests/data/accuracy.json records, within a point."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from tests.data.record_accuracy import POINT, RECORDED, SURROGATES, Figures, figures, worse
from tests.data.sample import LEAST_TO_RANK, SAMPLE, SOURCES, Source, draw

ADVICE = "Where that is meant: python tests/data/record_accuracy.py, and say why in the commit."


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_no_source_is_predicted_worse_than_recorded(surrogate: str) -> None:
    recorded: Figures = json.loads(RECORDED.read_text(encoding="utf-8"))[surrogate]
    now = figures(surrogate)
    assert {s: set(f) for s, f in now.items()} == {s: set(f) for s, f in recorded.items()}, ADVICE
    found = worse(recorded, now)
    assert not found, f"surrogate {surrogate}: {'; '.join(found)}. {ADVICE}"


def test_every_source_of_the_sample_is_recorded_and_some_can_be_ranked_or_failed() -> None:
    runs = pd.read_csv(SAMPLE)
    timed = runs["iteration_time_s"].notna().groupby([runs["source"], runs["group"]]).sum()
    ranked = timed[timed >= LEAST_TO_RANK].index.get_level_values("source")
    assert set(runs["source"]) == {source.name for source in SOURCES}
    assert set(ranked) == {source.name for source in SOURCES if source.ranked}
    assert (runs["status"] == "oom").any()
    assert (runs["status"] == "failed").any()


@pytest.mark.parametrize(
    ("name", "by", "alarms"),
    [("time_bias", 1.1, True), ("time_bias", 0.9, False), ("time_bias", -1.1, False),
     ("kendall_tau", -1.1, True), ("kendall_tau", 1.1, False), ("failures_found", -1.1, True)],
)  # fmt: skip
def test_only_a_loss_of_more_than_a_point_is_reported(name: str, by: float, alarms: bool) -> None:
    recorded = {"lab": {name: 0.5, "false_alarms": 0.1}}
    now = {"lab": {name: 0.5 + by * POINT, "false_alarms": 0.1}}
    found = worse(recorded, now)
    assert found == ([f"lab: {name} was recorded as 0.500, is now {0.5 + by * POINT:.3f}"] if alarms else [])


@pytest.mark.parametrize("now", [{}, {"lab": {}}, {"lab": {"time_bias": float("nan")}}])
def test_a_figure_that_is_gone_is_reported_as_a_loss(now: Figures) -> None:
    found = worse({"lab": {"time_bias": 0.1}}, now)
    assert len(found) == 1
    assert "lab: time_bias was recorded as 0.100" in found[0]


def test_a_draw_keeps_groups_whole_and_does_not_depend_on_the_order_of_rows(
    make_runs: Callable[..., pd.DataFrame],
) -> None:
    runs = pd.concat([make_runs(group=f"g{n}", model=f"m{n % 3}") for n in range(9)], ignore_index=True)
    source = Source("lab", ranked=0, others=4)
    drawn = draw(runs, source)
    shuffled = draw(runs.iloc[np.random.default_rng(1).permutation(len(runs))], source)
    pd.testing.assert_frame_equal(drawn, shuffled.sort_index())
    assert drawn["group"].nunique() == 4
    assert len(drawn) == 4 * len(make_runs())
