from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jointopt.core.facts import Assumption
from jointopt.core.schema import Columns
from jointopt.report.plans import predicted_table
from jointopt.report.proposal import ROWS_FOR_PEOPLE, rows_along_front
from jointopt.report.results import Proposal
from jointopt.report.tables import plan_entries

Fronts = Callable[..., Columns]
Proposals = Callable[..., Proposal]


def test_the_reference_comes_first_and_the_others_are_compared_with_it(make_front: Fronts) -> None:
    lines = predicted_table(plan_entries(make_front(3)), ["=", "", ""])
    body = [line.split() for line in lines if line[:1] in ("=", " ") and line.split()[-1][0] in "0+-"]
    assert [cells[-2:] for cells in body] == [["0", "0"], ["+2.0", "-2.0"], ["+4.0", "-4.0"]]
    assert body[0][0] == "="


def test_columns_that_never_differ_are_shown_once(make_front: Fronts) -> None:
    lines = predicted_table(plan_entries(make_front(3)), [""] * 3)
    assert lines[0].startswith("All plans: cp=1 ep=1 vpp=1 sp=n rc=none ZeRO=1")
    assert "vpp" not in lines[1]


def test_a_column_that_differs_is_shown(make_front: Fronts) -> None:
    lines = predicted_table(plan_entries(make_front(3, recompute=np.array([0, 1, 2]))), [""] * 3)
    assert "rc" in lines[1].split()
    assert [line.split()[4] for line in lines[-3:]] == ["-", "sel", "all"]


def test_a_long_front_is_thinned_and_the_text_states_it(make_proposal: Proposals) -> None:
    text = make_proposal(300).text()
    assert "280 more plans" in text
    assert "--all" in text
    assert len(make_proposal(300).text(show_all=True).splitlines()) > 300


def test_the_reference_is_printed_once_where_it_is_a_plan_of_the_front(
    make_proposal: Proposals, make_front: Fronts
) -> None:
    lines = make_proposal(300).text().splitlines()
    table = [line for line in lines if line[:1] in ("=", " ") and line.split()[-1][0] in "0+-"]
    assert len(table) == ROWS_FOR_PEOPLE
    assert [line for line in table if line.split()[-2:] in (["0", "0"], ["+0.0", "+0.0"])] == [table[0]]
    other = make_front(1, stage_clock_mhz=np.full((1, 2), 1425.0))
    assert make_proposal(5, reference=other).text().count("+0.0") == 2
    assert make_proposal(1).text().count("\n= ") == 2  # the one plan, and the legend


def test_thinning_keeps_both_ends_and_spreads_the_rest(make_front: Fronts) -> None:
    kept = rows_along_front(make_front(300), ROWS_FOR_PEOPLE)
    assert (kept[0], kept[-1], len(kept)) == (0, 299, ROWS_FOR_PEOPLE)
    assert np.diff(kept).max() <= 17


@pytest.mark.parametrize(("span", "kept"), [(0.01, [0, 2, 4]), (1.0, [0, 2, 4]), (0.0, [0, 3, 4])])
def test_thinning_goes_along_the_front_as_drawn_whatever_its_extents(span: float, kept: list[int]) -> None:
    time_s, energy_j = np.exp([0.0, 1.0, 2.0, 4.0, 10.0]), np.exp(span * np.array([10.0, 4.0, 2.0, 1.0, 0.0]))
    front = {"pp": np.ones(5, int), "iteration_time_s": time_s, "energy_j": energy_j}
    assert rows_along_front(front, 3).tolist() == kept


@pytest.mark.parametrize("n", [1, 2, 20, 21])
def test_thinning_never_invents_a_plan(make_front: Fronts, n: int) -> None:
    kept = rows_along_front(make_front(n), ROWS_FOR_PEOPLE)
    assert set(kept.tolist()) <= set(range(n))
    assert {0, n - 1} <= set(kept.tolist())


@pytest.mark.parametrize(
    ("best", "words", "others"),
    [(0.4, "~ none of these is expected to fit in memory: probability 0.35 to 0.40.", "plan that fits"),
     (0.6, "~ tight: may not fit in memory (probability 0.55 at least)", "is expected to fit")],
)  # fmt: skip
def test_a_front_of_which_no_plan_is_expected_to_fit_is_called_so(
    make_proposal: Proposals, make_front: Fronts, best: float, words: str, others: str
) -> None:
    """The reference is the front's first plan, and expected to fit as far as the best of them is."""
    front = make_front(3, fit_probability=np.array([best, best - 0.05, best]))
    reference = make_front(1, fit_probability=np.array([best]))
    text = " ".join(make_proposal(front=front, reference=reference).text().split())
    assert words in text
    assert others not in text


def test_an_extrapolated_plan_is_marked_and_explained(make_proposal: Proposals, make_front: Fronts) -> None:
    columns = {"in_domain": np.array([True, False]), "doubts": np.array(["", "framework"], object)}
    text = make_proposal(front=make_front(2, **columns)).text()
    assert "\n? " in text
    assert "? the interval (±) is wider: no recorded runs of the framework." in text


def test_what_holds_for_every_plan_stands_below_the_table_and_marks_none(
    make_proposal: Proposals, make_front: Fronts
) -> None:
    def of_experts(n: int, *more: str) -> Columns:
        doubts = np.array([" ".join(filter(None, ["model", one])) for one in more], object)
        return make_front(n, in_domain=np.zeros(n, bool), doubts=doubts)

    text = make_proposal(front=of_experts(2, "", "clock"), reference=of_experts(1, "")).text()
    assert [line[:1] for line in text.splitlines() if line.split()[-1:] in (["0"], ["-2.0"])] == ["=", "?"]
    assert "is wider for every plan here: few recorded runs of mixtures of experts." in text
    assert "? the interval (±) is wider still: clock response not measured on this GPU." in text


def test_the_summary_has_reasons_assumptions_and_the_dashboard(make_proposal: Proposals) -> None:
    pue = Assumption.not_given("pue", 1.2, "1.2", "1.2 is assumed (a survey of 2023)")
    text = make_proposal(storage="sqlite:///tiny.db", study_name="tiny", assumed=(pue,)).text()
    assert "4,880  tp does not divide the heads" in text
    assert "\n- not given: pue 1.2\n" in text
    assert "jointopt dashboard --storage sqlite:///tiny.db" in text


def test_many_reasons_are_summed_up_but_none_is_lost(make_proposal: Proposals) -> None:
    text = make_proposal(infeasible={f"reason {i}": 100 - i for i in range(11)}).text()
    assert "100  reason 0" in text
    assert f"{92 + 91 + 90}  for 3 other reasons" in text


def test_layouts_are_counted_under_each_of_several_power_limits(make_proposal: Proposals) -> None:
    job = make_proposal().job
    under = replace(job, search=replace(job.search, power_limit_w=(700.0, 500.0, 400.0)))
    text = " ".join(make_proposal(job=under, layouts=8, feasible_layouts=6).text().split())
    assert "8 layouts, each under 3 power limits, 6 of them feasible" in text
    assert "power limits" not in make_proposal().text()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_every_line_fits_100_columns_whatever_the_plans(
    make_proposal: Proposals, make_front: Fronts, data: st.DataObject
) -> None:
    n = 4

    def draw(top: int) -> np.ndarray:
        return np.array(data.draw(st.lists(st.integers(1, top), min_size=n, max_size=n)))

    columns = {"dp": draw(16384), "tp": draw(64), "cp": draw(64), "ep": draw(256), "vpp": draw(64)}
    columns |= {"micro_batch_size": draw(256), "zero_stage": draw(3), "recompute": draw(2)}
    columns |= {"sequence_parallel": draw(2) > 1, "stage_clock_mhz": 210.0 + 15 * np.stack([draw(118)] * 9, 1)}
    columns["stage_clock_mhz"][:, 1:8:2] -= 7
    columns |= {"iteration_time_s": np.sort(draw(900)) * data.draw(st.sampled_from([1e-3, 1.0]))}
    columns |= {"energy_j": 1.0 * draw(10**6), "avg_power_w": 1.0 * draw(1400), "peak_memory_gib": 1.0 * draw(288)}
    text = make_proposal(front=make_front(n, **columns), reference=make_front(1)).text(show_all=True)
    assert max(map(len, text.splitlines())) <= 100
