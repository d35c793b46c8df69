"""Predictions moved by measured runs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from jointopt.core.errors import TableError, UsageError
from jointopt.surrogate.files import load_surrogate, surrogate_names
from jointopt.surrogate.intervals import RESULTS
from jointopt.workflows import predict as predicting
from jointopt.workflows.predict import predict


@pytest.fixture(scope="module")
def table(synthetic_runs) -> pd.DataFrame:
    """Twenty runs of one source."""
    return synthetic_runs()


@pytest.fixture(scope="module")
def plain(table) -> pd.DataFrame:
    """What the shipped surrogate predicts of them."""
    return predict(table, "default")


@pytest.fixture(scope="module")
def informed(table) -> pd.DataFrame:
    """The same, with five of them as measured runs."""
    return predict(table, "default", table.head(5))


def error(predicted: pd.DataFrame) -> float:
    return float((predicted["predicted_iteration_time_s"] / predicted["iteration_time_s"] - 1).abs().median())


@pytest.mark.parametrize(("factor", "before"), [(1.3, 0.23), (0.75, 0.33)])
def test_three_measured_runs_per_group_bring_a_new_cluster_from_a_third_to_a_twentieth(synthetic_runs, factor, before):
    table = synthetic_runs(factor=factor, groups=(256, 512, 1024))
    measured = table.groupby("group").head(3)
    rest = table.drop(index=measured.index)
    assert error(predict(rest, "default")) == pytest.approx(before, abs=0.04)
    # a twentieth, roughly: the nearer sources are to the physics, the less nine runs so far off are trusted
    assert error(predict(rest, "default", measured)) < 0.055


def test_after_measured_runs_time_still_falls_with_the_clock_and_power_rises(synthetic_runs):
    table = synthetic_runs(factor=1.4, rows=12, groups=(256, 512))
    measured = table.groupby("group").head(5)
    rest = table.drop(index=measured.index)
    clocks = np.linspace(450, 1410, 25)
    queried = pd.concat([rest.assign(clock_mhz=f"{clock:.0f}") for clock in clocks], ignore_index=True)
    found = predict(queried, "default", measured)
    time_s, power_w = (
        found[f"predicted_{name}"].to_numpy().reshape(len(clocks), len(rest))
        for name in ("iteration_time_s", "avg_power_w")
    )
    assert (np.diff(time_s, axis=0) <= 0).all()
    assert (np.diff(power_w, axis=0) >= 0).all()


def test_more_measured_runs_never_hurt_much_and_intervals_narrow(synthetic_runs):
    runs = synthetic_runs(rows=20)
    test, pool = runs.groupby("group").tail(6), runs.groupby("group").head(14)
    found = [predict(test, "default", pool.groupby("group").head(n)) for n in (1, 4, 14)]
    ratio = [(f["predicted_iteration_time_s_high"] / f["predicted_iteration_time_s_low"]).median() for f in found]
    assert error(found[2]) <= error(found[0])
    assert ratio[0] > ratio[1] > ratio[2]


def test_rows_keep_their_order_index_and_columns(table):
    shuffled = table.sample(frac=1.0, random_state=2).assign(extra="kept")
    predicted = predict(shuffled, "default", shuffled.head(4))
    pd.testing.assert_frame_equal(predicted[shuffled.columns], shuffled)
    alone = predict(shuffled.tail(3), "default", shuffled.head(4))
    np.testing.assert_allclose(
        alone["predicted_iteration_time_s"], predicted["predicted_iteration_time_s"].tail(3), rtol=1e-9
    )


def test_measured_runs_leave_rows_of_other_sources_alone(synthetic_runs):
    own = synthetic_runs("own").assign(peak_memory_gib=30.0)
    other = synthetic_runs("other", seed=5)
    both = pd.concat([own, other], ignore_index=True)
    before, after = predict(both, "default"), predict(both, "default", own.head(6))
    names = [c for c in before if c.startswith("predicted_")]
    pd.testing.assert_frame_equal(after[names].tail(len(other)), before[names].tail(len(other)))
    assert (after["predicted_iteration_time_s"] > before["predicted_iteration_time_s"]).head(len(own)).all()
    assert (after["predicted_peak_memory_gib"] != before["predicted_peak_memory_gib"]).head(len(own)).all()


def test_intervals_hold_the_prediction_and_power_stays(table, informed):
    physics = predict(table)
    for name in RESULTS:
        middle = informed[f"predicted_{name}"]
        assert (informed[f"predicted_{name}_low"] <= middle).all()
        assert (middle <= informed[f"predicted_{name}_high"]).all()
    np.testing.assert_allclose(informed["predicted_avg_power_w"], physics["predicted_avg_power_w"])
    moved = informed["predicted_iteration_time_s"] / physics["predicted_iteration_time_s"]
    np.testing.assert_allclose(informed["predicted_energy_j"] / physics["predicted_energy_j"], moved)


def test_measured_memory_moves_memory_and_what_fits(synthetic_runs):
    table = synthetic_runs(rows=40, groups=(256,))
    physics = predict(table, "default")
    measured = table.assign(peak_memory_gib=physics["predicted_peak_memory_gib"] * 1.2)
    measured = measured[measured["peak_memory_gib"] < 40.0].head(8)
    learned = predict(table, "default", measured)
    ratio = learned["predicted_peak_memory_gib"] / physics["predicted_peak_memory_gib"]
    assert 1.15 < ratio.min() <= ratio.max() < 1.2
    assert learned["predicted_fits"].sum() <= physics["predicted_fits"].sum()


def test_in_domain_is_false_under_unknown_software_until_it_is_measured(table):
    inhouse = table.assign(framework="inhouse")
    assert not predict(inhouse, "default")["in_domain"].any()
    assert predict(inhouse, "default", inhouse.head(5))["in_domain"].any()


def test_a_blank_precision_widens_intervals_until_runs_that_leave_it_blank_are_measured(table):
    blank = table.assign(dtype="")
    width = {}
    for name, known in (("none", None), ("blank", blank.head(10)), ("stated", table.head(10))):
        found = predict(blank.tail(10), "default", known)
        width[name] = (found["predicted_iteration_time_s_high"] / found["predicted_iteration_time_s"]).median()
    assert width["blank"] < 1.3 < width["stated"]
    assert width["none"] > 1.3


def test_low_clocks_are_in_domain_only_where_a_clock_response_was_published(synthetic_runs):
    slow, fast = (synthetic_runs(gpu="h100-sxm5-80gb", clock_mhz=clock) for clock in (900, 1980))
    assert predict(fast, "default")["in_domain"].any()
    assert not predict(slow, "default")["in_domain"].any()
    assert predict(synthetic_runs(clock_mhz=900), "default")["in_domain"].any()


def test_rows_get_the_same_answer_together_apart_repeated_and_in_any_order(synthetic_runs, monkeypatch):
    monkeypatch.setattr(predicting, "_MOST_ROWS", 25)
    parts = [synthetic_runs("a"), synthetic_runs("b", gpu="h100-sxm5-80gb", framework="inhouse")]
    table = pd.concat([*parts, parts[0]], ignore_index=True).sample(frac=1.0, random_state=1)
    names = [f"predicted_{n}{side}" for n in RESULTS for side in ("", "_low", "_high")]
    measured = parts[0].head(5)
    together = predict(table, "default", measured)[names].sort_index()
    apart = [predict(part, "default", measured)[names] for part in parts]
    np.testing.assert_allclose(together, pd.concat([*apart, apart[0]]), rtol=1e-9)


@pytest.mark.parametrize("surrogate", ["none", "default"])
def test_answers_are_the_same_to_the_last_digit_however_many_workers_there_are(synthetic_runs, monkeypatch, surrogate):
    monkeypatch.setattr(predicting, "_MOST_ROWS", 20)
    table = synthetic_runs("a", rows=50, clock_mhz=[1410, 1200, 900, 600, 300] * 20)
    found = []
    for workers in (1, 7):
        monkeypatch.setattr(predicting.os, "cpu_count", lambda workers=workers: workers)
        found.append(predict(table, surrogate))
    pd.testing.assert_frame_equal(*found, check_exact=True)


def test_what_stood_in_for_blanks_is_named(table):
    predicted = predict(table.head(3).drop(columns=["attention", "zero_stage"]), "default")
    assert predicted["assumed"].str.split().map({"attention", "zero_stage"}.issubset).all()


def test_rows_that_cannot_be_predicted_stay_blank_with_the_reason(table):
    odd = table.assign(gpu=table["gpu"].where(table.index != 3, "abacus"))
    predicted = predict(odd, "default", odd.head(6))
    assert "abacus" in predicted.loc[3, "not_predicted"]
    assert np.isnan(predicted.loc[3, "predicted_iteration_time_s"])
    assert not predicted.loc[3, "predicted_fits"]
    assert predicted.drop(index=3)["predicted_iteration_time_s"].notna().all()


def test_measured_rows_without_a_time_move_no_time(table, plain):
    untimed = table.head(5).copy()
    untimed.loc[:2, "status"] = "oom"
    untimed.loc[3:, "iteration_time_s"] = np.nan
    predicted = predict(table, "default", untimed)
    times = plain.columns[~plain.columns.str.contains("memory|fit")]
    pd.testing.assert_frame_equal(predicted[times], plain[times])


def test_text_among_measured_times_is_named(table):
    with pytest.raises(TableError, match="measured runs: row 1 of the table: iteration_time_s"):
        predict(table, "default", table.assign(iteration_time_s="fast"))


def test_a_surrogate_that_does_not_exist_is_named_with_the_nearest():
    with pytest.raises(UsageError, match=r"expected one of default, none.*did you mean 'default'"):
        load_surrogate("defualt")
    assert load_surrogate("none") is None
    assert "default" in surrogate_names()


def test_a_name_that_is_like_none_is_answered_without_a_guess():
    with pytest.raises(UsageError, match=r"'nofolder' is neither shipped nor a folder; expected one of") as caught:
        load_surrogate("nofolder")
    assert "did you mean" not in str(caught.value)


def test_the_shipped_surrogate_is_small_and_states_what_it_is_made_of():
    surrogate = load_surrogate("default")
    assert surrogate is not None
    card = surrogate.card
    assert {"data", "licences", "error", "seed", "versions", "rebuild", "files_sha256", "date"} <= set(card)
    named = {text.split(":")[0] for text in card["licences"]}
    assert named == set(card["data"])
    assert card["error"]["mean"]["group out"] < card["error"]["mean"]["physics"]


def test_a_retrained_folder_predicts_its_sources(synthetic_runs, trained):
    table = synthetic_runs("a100", 1.3, seed=11)
    assert error(predict(table, str(trained))) < 0.05 < error(predict(table, "none"))


def test_measured_runs_under_another_name_or_none_are_those_of_the_table(synthetic_runs):
    table = synthetic_runs(factor=1.3, groups=(256, 512)).assign(source="cluster")
    measured, rest = table.head(4), table.iloc[4:]
    own = predict(rest, "default", measured)["predicted_iteration_time_s"]
    other = predict(rest, "default", measured.assign(source=["mine", np.nan] * 2))["predicted_iteration_time_s"]
    np.testing.assert_allclose(other, own)


def half_widths(found: pd.DataFrame) -> tuple[float, float]:
    """The widest logarithms of the bounds of time below and above the prediction."""
    low, high = (
        np.abs(np.log(found[f"predicted_iteration_time_s_{end}"] / found["predicted_iteration_time_s"]))
        for end in ("low", "high")
    )
    return float(low.max()), float(high.max())


@pytest.mark.parametrize("runs", [1, 2])
def test_runs_as_they_were_expected_widen_no_interval(synthetic_runs, runs: int) -> None:
    table = synthetic_runs(factor=1.05)
    before, after = (half_widths(predict(table, "default", given)) for given in (None, table.head(runs)))
    assert after[0] <= before[0] * 1.02  # from what recorded combinations show to what these runs do
    assert after[1] <= before[1] * 1.02


def test_a_run_far_from_what_was_expected_may_widen_them(synthetic_runs) -> None:
    table = synthetic_runs(factor=1.6)  # beyond 1.36 times
    assert half_widths(predict(table, "default", table.head(1)))[0] > 1.2 * half_widths(predict(table, "default"))[0]
