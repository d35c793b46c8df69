"""Training on recorded runs, judged on runs held out."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.errors import TableError
from jointopt.core.schema import CONSTANTS
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.surrogate import training
from jointopt.surrogate import training as own_training
from jointopt.surrogate.held_out import (
    LEFT_OUT,
    HeldOut,
    Scores,
    group_folds,
    measured_split,
    score_table,
    with_conformal_widths,
)
from jointopt.surrogate.kernel import Runs, default_kernel
from jointopt.surrogate.surrogate import SPEEDS
from jointopt.surrogate.training import (
    BROKEN,
    LARGEST_RESIDUAL,
    TrainingSet,
    _remembered_runs,
    cross_validate,
    fit,
    leave_groups_out,
    leave_source_out,
    source_runs,
    source_weights,
    train,
    training_set,
)

pytestmark = pytest.mark.long  # each trains surrogates

KERNEL = default_kernel(len(CONSTANTS))


@pytest.fixture(scope="module")
def data(three_sources: pd.DataFrame) -> TrainingSet:
    return training_set(three_sources)


def without(data: TrainingSet, name: str):
    others = data.of(set(data.source.tolist()) - {name})
    return fit(data, others, KERNEL)


def test_the_residuals_are_what_the_sources_were_made_with(data):
    for name, factor in {"a100": 1.3, "h100": 0.9, "titan": 1.1}.items():
        rows = data.of({name})
        assert len(rows) == 20
        assert np.median(data.known_residual[rows]) == pytest.approx(np.log(factor), abs=0.02)


def test_failed_untimed_and_broken_runs_are_left_out(three_sources):
    table = three_sources.copy()
    table.loc[0, "status"] = "oom"
    table.loc[1, "iteration_time_s"] = np.nan
    table.loc[2, "iteration_time_s"] *= 2 * BROKEN
    assert len(training_set(table).source) == len(table) - 3


def test_every_source_reports_how_many_of_its_rows_were_learned_from_and_why_not_all(three_sources):
    table = three_sources.copy()
    slow = table.index[table["source"] == "a100"][:15]
    table.loc[slow, "iteration_time_s"] *= 2 * BROKEN
    table.loc[table.index[table["source"] == "titan"][:2], "gpu"] = "abacus"
    first, second, third = (use.to_text() for use in training_set(table).use)
    assert first == ("a100: learned from 5 of 20 timed rows; left out: 15 more than 2 times off the physics")
    assert second == "h100: learned from 20 of 20 timed rows"
    assert third.startswith("titan: learned from 18 of 20 timed rows; left out: 2 that cannot be priced (")
    assert "abacus" in third


def test_too_little_to_train_on_is_refused_with_what_became_of_the_rest(three_sources):
    table = three_sources[three_sources["source"] != "titan"].copy()
    table.loc[table["source"] == "a100", "iteration_time_s"] *= 1000
    with pytest.raises(TableError, match=r"got 20 rows of 1 \(a100: learned from 0 of 20 .* seconds"):
        train(table)


def test_known_and_unknown_rows_are_the_same_runs(data):
    time_known = np.exp(data.known_residual)
    assert data.known.runs.sensitivity.shape == data.unknown.runs.sensitivity.shape
    assert len(time_known) == len(data.unknown_residual) == len(data.source)
    np.testing.assert_array_equal(data.known.runs.features["log2_tp"], data.unknown.runs.features["log2_tp"])


def test_a_table_without_timed_rows_or_with_too_few_is_refused_in_one_sentence(three_sources):
    with pytest.raises(TableError, match="No row has status ok"):
        train(three_sources.drop(columns="iteration_time_s"))
    with pytest.raises(TableError, match=r"at least 20 timed rows of two sources .*; got 5 rows of 1"):
        train(three_sources.head(5))
    with pytest.raises(TableError, match="got 20 rows of 1"):
        train(three_sources.head(20))


@settings(max_examples=40, deadline=None)
@given(groups=st.lists(st.integers(0, 8), min_size=2, max_size=40), seed=st.integers(0, 9))
def test_folds_hold_out_whole_groups_and_every_run_once(groups, seed):
    group = np.array(groups).astype(str)
    folds = list(group_folds(group, seed))
    tested = np.concatenate([test for _, test in folds]) if folds else np.arange(0)
    assert sorted(tested.tolist()) == (list(range(len(group))) if len(np.unique(group)) > 1 else [])
    for rest, test in folds:
        assert not set(group[rest]) & set(group[test])
        assert len(rest) + len(test) == len(group)


def test_the_factor_of_a_source_is_learned_from_its_other_groups(data):
    held = leave_groups_out(data, without(data, "a100"), data.of({"a100"}), data.known.runs.group)
    assert held is not None
    assert len(held.rows) == 20
    assert held.median_error < 0.05


def test_a_source_left_out_is_known_by_physics_until_runs_are_measured(data):
    surrogate = without(data, "a100")
    none, three = (leave_source_out(data, surrogate, "a100", count) for count in (0, 3))
    assert none is not None
    assert three is not None
    np.testing.assert_array_equal(none.mean, 0.0)
    assert none.median_error == pytest.approx(1 - 1 / 1.3, abs=0.02)
    assert three.median_error < 0.05
    assert len(three.rows) == 8 * 14  # measured runs are no test; few are judged in eight draws


def test_a_source_is_judged_after_no_run_three_and_ten_of_each_group_or_of_its_software(data):
    held = {one.source: one for one in cross_validate(data, {"a100", "h100", "titan"})}["a100"]
    assert held.physics == pytest.approx(1 - 1 / 1.3, abs=0.02)
    known = {kind: one.known for kind, one in held.held.items() if kind in LEFT_OUT}
    # of two groups of ten runs, of which "ten" leaves none to judge
    assert known == {"source_out": 0, "three": 6, "unseen": 0, "unseen_three": 6, "few": 3, "unseen_few": 3}


def test_the_static_share_of_a_measured_run_is_of_the_power_that_the_physics_predicts(data):
    rows = data.of({"h100"})
    found = source_runs(data, rows)
    assert found.static_w == load_gpu("h100-sxm5-80gb").power.static_w
    assert found.static_share * data.known.physics["avg_power_w"][rows] == pytest.approx(found.static_w)
    assert found.residual == pytest.approx(np.full(20, np.log(0.9)), abs=0.08)


def test_measured_runs_come_from_groups_that_have_more_and_are_not_judged():
    group = np.repeat(["a", "b", "c"], [3, 4, 9])
    split = measured_split(group, 3, seed=1)
    assert split is not None
    chosen, judged = split
    assert sorted(group[chosen]) == ["b"] * 3 + ["c"] * 3
    assert sorted([*chosen, *judged]) == list(range(3, 16))


def test_groups_too_small_to_measure_from_are_not_judged(data):
    assert leave_source_out(data, without(data, "a100"), "a100", 10) is None


def test_widths_are_calibrated_to_cover_nine_tenths_of_sources_weighed_alike(data):
    rng = np.random.default_rng(0)
    parts = [
        HeldOut(scale * rng.normal(size=n), np.zeros(n), np.full(n, 0.1), np.arange(n))
        for scale, n in ((0.1, 2000), (0.3, 100))
    ]
    surrogate = with_conformal_widths(without(data, "a100"), {"fitted": parts, "measured": [], "unknown": []})
    covered = [replace(p, half_width=p.half_width * surrogate.widths.fitted).coverage for p in parts]
    assert np.mean(covered) == pytest.approx(0.9, abs=0.01)
    assert surrogate.widths.measured == 1.0


def test_training_beats_physics_on_what_it_has_not_seen(three_sources):
    surrogate, scores = train(three_sources, seed=1)
    mean = scores.set_index("source").loc["mean"]
    assert mean["group out"] < 0.05 < mean["physics"]
    assert mean["+3 runs"] < mean["source out"]
    assert surrogate.kernel != default_kernel(len(CONSTANTS))
    assert surrogate.widths.measured < 2


def test_scores_without_what_could_not_be_judged_are_blank():
    table = score_table([Scores("alone", 0.2)])
    assert table["source"].tolist() == ["alone", "mean"]
    assert table["physics"].tolist() == [0.2, 0.2]
    assert table["group out"].isna().all()


def test_a_source_counts_with_the_root_of_its_size_and_a_run_for_one_in_the_mean() -> None:
    # runs of the small source count twice those of one with four times as many: 2 and 1, over the mean 6 / 5
    assert source_weights(np.array(["b", "a", "b", "b", "b"])) == pytest.approx([5 / 6, 10 / 6, 5 / 6, 5 / 6, 5 / 6])


def test_the_domain_of_several_sources_spans_their_features_less_clocks_and_categories(data) -> None:
    surrogate, runs = without(data, "titan"), data.known.runs.take(data.of({"a100", "h100"}))
    ranges = surrogate.training_range
    assert ranges["log2_gpus"] == (runs.features["log2_gpus"].min(), runs.features["log2_gpus"].max())
    assert {"clock", "framework=torchtitan"} < set(runs.names) - set(ranges)
    far = replace(runs, features={name: values + 99.0 for name, values in runs.features.items()} | {
        name: runs.features[name] for name in SPEEDS
    })  # fmt: skip
    assert surrogate.predict(runs, True)[2].all()
    assert not surrogate.predict(far, True)[2].any()


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_residuals_that_are_remembered_lie_within_what_a_factor_can_be(data, sign) -> None:
    far = np.where(np.arange(len(data.known_residual)) % 4, data.known_residual, sign * 9.0)
    support, residual = _remembered_runs(replace(data, known_residual=far), data.of({"h100"}), 0)
    assert len(support) == len(residual) == 20
    assert np.abs(residual).max() == LARGEST_RESIDUAL
    assert np.median(residual) == pytest.approx(np.log(0.9), abs=0.1)


def test_what_other_sources_are_predicted_from_knows_no_framework_and_one_source_alone_has_no_others(three_sources):
    data = training_set(three_sources)
    assert not np.allclose(data.known_residual, data.unknown_residual)
    alone = training_set(three_sources[three_sources["source"] == "a100"])
    np.testing.assert_array_equal(alone.known_residual, alone.unknown_residual)


@pytest.mark.parametrize(("times", "kept"), [(1.9, 20), (2.1, 19), (1 / 1.9, 20), (1 / 2.1, 19)])
def test_a_run_beyond_twice_the_physics_or_its_half_is_left_out(data, three_sources, times: float, kept: int) -> None:
    table = three_sources.copy()
    table.loc[0, "iteration_time_s"] *= times / np.exp(data.known_residual[0])
    assert len(training_set(table).of({"a100"})) == kept


def test_a_source_of_few_runs_is_judged_after_several_draws_of_measured_ones(data) -> None:
    drawn = []
    leave_source_out(data, without(data, "a100"), "a100", 3, predicted=lambda *one: drawn.append(one[3:5]))
    judged, measured_runs = drawn[0]
    assert len(drawn) == min(-(-training.ENOUGH_JUDGED // len(judged)), training.MOST_DRAWS)
    assert len(judged) + len(measured_runs) == 20
    leave_source_out(data, without(data, "a100"), "a100", 0, predicted=lambda *one: drawn.append(one[3:5]))
    assert len(drawn[-1][0]) == 20  # of nothing there is one draw


def test_runs_of_one_source_are_learned_around_the_surrogate_that_is_given(data, three_sources, monkeypatch) -> None:
    monkeypatch.setattr(training, "learn_every_own", lambda *_: [])
    base = without(data, "a100")
    found, _ = train(three_sources[three_sources["source"] == "a100"], base=base)
    assert found.kernel is base.kernel
    assert set(found.support.source) == set(data.known.runs.source[data.of({"a100"})])


@pytest.mark.parametrize(("count", "learned"), [(49, []), (50, ["lab"])])
def test_what_is_of_one_source_alone_is_learned_from_fifty_plans_on(monkeypatch, count: int, learned) -> None:
    rows = np.repeat(np.arange(count, dtype=float), 2)  # every plan twice, which counts once
    runs = Runs(rows[:, None], {}, np.full(len(rows), "lab"), np.full(len(rows), "model|8"))
    source = SimpleNamespace(runs=runs)
    monkeypatch.setattr(own_training, "learn_source", lambda key, *_: key)
    assert own_training.learn_every_own(SimpleNamespace(known=source), KERNEL) == learned


@pytest.mark.parametrize(("times", "doubtful"), [(1000.0, True), (0.001, True), (20.0, False)])
def test_the_unit_is_in_doubt_where_a_third_of_the_rows_are_in_another(three_sources, times, doubtful):
    """Twenty times the physics is a run that went wrong, a thousand times is one in milliseconds."""
    third = np.arange(len(three_sources)) % 3 == 0
    time_s = three_sources["iteration_time_s"] * np.where(third, times, 1.0)
    (use, *_) = training_set(three_sources.assign(source="one", iteration_time_s=time_s)).use
    assert use.broken == third.sum()
    assert ("is iteration_time_s in seconds?" in use.to_text()) is doubtful
