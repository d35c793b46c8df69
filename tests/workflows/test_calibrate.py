"""``calibrate`` as a function, on synthetic profiles and, where they are, on recorded ones."""

import numpy as np
import pandas as pd
import pytest

from jointopt.core.errors import TableError
from jointopt.workflows.calibrate import calibrate
from tests.places import DATA

recorded = pytest.mark.skipif(not DATA.is_dir(), reason="the recorded measurements are not beside the repository")
CLOCKS = (855, 990, 1125, 1260, 1410)


def profile(clocks: tuple[int, ...] = CLOCKS, factor: float = 1.0, stage: int = 0) -> pd.DataFrame:
    """One stage's forward and backward passes: a simple law in which nothing is limited."""
    x = np.array(clocks) / 1410
    v = 1.0 - 0.2 * (1.0 - np.maximum(x, 0.77)) / 0.23
    parts = []
    for name, seconds in (("forward", 0.05), ("backward", 0.1)):
        time = seconds * factor * (0.8 / x + 0.2)
        columns = {"stage": stage, "instruction": name, "clock_mhz": clocks, "time_s": time}
        parts.append(pd.DataFrame(columns | {"energy_j": time * (62 + 250 * x * v**2)}))
    return pd.concat(parts, ignore_index=True)


def without_results(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns=["time_s", "energy_j"])


def test_clocks_between_are_predicted_within_their_intervals() -> None:
    between = profile((900, 1050, 1200, 1350))
    predicted = calibrate(profile(), "a100-sxm4-80gb", without_results(between)).predictions
    assert predicted is not None
    assert predicted.predicted_time_s.to_numpy() == pytest.approx(between.time_s.to_numpy(), rel=0.01)
    assert predicted.predicted_energy_j.to_numpy() == pytest.approx(between.energy_j.to_numpy(), rel=0.03)
    assert (predicted.predicted_energy_j_low < predicted.predicted_energy_j).all()
    assert (predicted.not_predicted == "").all()


def test_an_error_that_rounding_alone_makes_is_printed_as_none() -> None:
    text = calibrate(profile((1410,)).iloc[:1], "a100-sxm4-80gb").text()
    assert "1 row; mean error on it: time 0.0 %" in text


def test_the_query_keeps_its_columns_and_order() -> None:
    query = without_results(profile((1300, 900))).assign(note=["a", "b", "c", "d"])
    query.index = pd.Index([7, 3, 9, 1])
    predicted = calibrate(profile(), "a100-sxm4-80gb", query).predictions
    assert predicted is not None
    assert predicted.note.tolist() == ["a", "b", "c", "d"]
    assert predicted.index.tolist() == [7, 3, 9, 1]


def test_a_query_changes_nothing_of_the_calibration() -> None:
    below = profile(CLOCKS[:-1])
    for gpu in ("a100-sxm4-80gb", "my-gpu"):
        alone = calibrate(below, gpu).calibration
        assert calibrate(below, gpu, without_results(profile((855, 1260)))).calibration == alone


def test_a_gpu_that_no_catalogue_knows_is_calibrated_all_the_same() -> None:
    found = calibrate(profile(), "my-gpu").calibration
    assert found.gpu == "my-gpu"
    assert found.constants.max_clock_mhz == 1410


def test_work_without_a_reading_is_left_blank_and_named() -> None:
    query = without_results(pd.concat([profile((1200,)), profile((1200,), stage=5)]))
    predicted = calibrate(profile(), "a100-sxm4-80gb", query).predictions
    assert predicted is not None
    assert predicted.predicted_time_s.notna().tolist() == [True, True, False, False]
    assert "no reading of 5 forward" in predicted.not_predicted.iloc[2]


def test_one_reading_of_a_stage_borrows_the_shape_of_another() -> None:
    known = pd.concat([profile(), profile((1125,), factor=1.3, stage=1)])
    other = profile((855, 990, 1260), factor=1.3, stage=1)
    predicted = calibrate(known, "a100-sxm4-80gb", without_results(other)).predictions
    assert predicted is not None
    assert predicted.predicted_energy_j.to_numpy() == pytest.approx(other.energy_j.to_numpy(), rel=0.03)


@pytest.mark.parametrize(
    ("clocks", "advice"),
    [((1290, 1410), "far below the knee"), ((855, 1410), "the voltage begins"), ((855, 1080), "maximum clock")],
)
def test_clocks_that_teach_too_little_are_followed_by_the_one_to_measure_next(
    clocks: tuple[int, ...], advice: str
) -> None:
    advised = calibrate(profile(clocks), "a100-sxm4-80gb").calibration.measure_next
    assert any(advice in text for text in advised)


def test_a_good_profile_needs_no_further_reading() -> None:
    assert calibrate(profile(), "a100-sxm4-80gb").calibration.measure_next == ()


def test_a_table_of_other_gpus_is_refused() -> None:
    with pytest.raises(TableError, match="No row of the table is of GPU 'a40'"):
        calibrate(profile().assign(gpu="a100-sxm4-80gb"), "a40")


@recorded
def test_the_least_energy_of_recorded_stages_is_at_three_quarters_of_the_maximum_clock() -> None:
    rows = pd.read_csv(DATA / "clock_stage_profiles.csv")
    work = calibrate(rows, "a100-sxm4-80gb").calibration.work
    assert all(0.755 <= entry["least_energy_clock_mhz"] / 1410 <= 0.775 for entry in work)
    assert all(26 <= entry["least_energy_saving_percent"] <= 32.5 for entry in work)
    assert all(8 <= entry["saving_percent_at_5_percent_slowdown"] <= 15 for entry in work)
    assert all(16 <= entry["saving_percent_at_10_percent_slowdown"] <= 22 for entry in work)


@recorded
def test_five_clocks_of_recorded_stages_predict_the_other_33() -> None:
    rows = pd.read_csv(DATA / "clock_stage_profiles.csv")
    seen = rows.clock_mhz.isin(CLOCKS)
    held_out = rows[~seen]
    predicted = calibrate(
        rows[seen], "a100-sxm4-80gb", held_out.drop(columns=["time_s", "energy_j", "avg_power_w"])
    ).predictions
    assert predicted is not None
    assert (predicted.predicted_time_s / held_out.time_s - 1).abs().mean() < 0.005
    assert (predicted.predicted_avg_power_w / held_out.avg_power_w - 1).abs().mean() < 0.01


@recorded
def test_five_plans_of_a_recorded_pipeline_predict_the_others() -> None:
    rows = pd.read_csv(DATA / "energy_pipeline_ranks.csv")
    rows = rows[(rows.gpu == "a100-pcie-80gb") & (rows.model == "gpt3-xl") & (rows.method == "perseus")]
    seen = rows.plan.isin([2, 10, 18, 26, 34])
    results = ["forward_time_sum_s", "backward_time_sum_s", "iteration_time_s", "energy_j", "avg_power_w"]
    predicted = calibrate(rows[seen], "a100-pcie-80gb", rows[~seen].drop(columns=results)).predictions
    assert predicted is not None
    assert (predicted.predicted_iteration_time_s / rows[~seen].iteration_time_s - 1).abs().mean() < 0.01
    assert (predicted.predicted_energy_j / rows[~seen].energy_j - 1).abs().mean() < 0.015


def test_rows_in_no_order_of_stages_that_no_column_distinguishes_get_an_interval_that_holds_both() -> None:
    two = pd.concat([profile(), profile(factor=1.1)]).drop(columns="stage")
    between = profile((900, 930, 960, 1050, 1200, 1290, 1350))
    other = between.assign(time_s=1.1 * between.time_s, energy_j=1.1 * between.energy_j)
    query = pd.concat([between, other]).drop(columns="stage").sample(frac=1, random_state=1)
    predicted = calibrate(two.sample(frac=1, random_state=2), "a100-sxm4-80gb", without_results(query)).predictions
    assert predicted is not None
    assert (predicted.assumed == "mean of 2 profiles").all()
    assert query.time_s.between(predicted.predicted_time_s_low, predicted.predicted_time_s_high).all()


def test_a_reading_without_clock_and_limit_teaches_nothing() -> None:
    blank = profile((855,)).assign(clock_mhz=np.nan)
    query = without_results(profile((1050, 1200)))
    with_blank = calibrate(pd.concat([profile(), blank]), "a100-sxm4-80gb", query).predictions
    without = calibrate(profile(), "a100-sxm4-80gb", query).predictions
    assert with_blank is not None
    assert without is not None
    assert with_blank.predicted_time_s.to_numpy() == pytest.approx(without.predicted_time_s.to_numpy(), rel=1e-9)


def test_iterations_by_mean_clocks_get_wider_intervals_where_passes_had_other_clocks() -> None:
    x = np.array(CLOCKS) / 1410
    rows = pd.DataFrame({"clock_mhz": CLOCKS, "iteration_time_s": 5 * (0.8 / x + 0.2)})
    rows = rows.assign(energy_j=rows.iteration_time_s * (62 + 200 * x))
    query = pd.DataFrame({"clock_mhz": [1050]})
    width = {}
    for pp in (1, 4):
        predicted = calibrate(rows.assign(pp=pp), "a100-sxm4-80gb", query.assign(pp=pp)).predictions
        assert predicted is not None
        width[pp] = predicted.predicted_iteration_time_s_high[0] / predicted.predicted_iteration_time_s_low[0]
    assert width[4] > 1.05 * width[1]
