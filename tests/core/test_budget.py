"""What a tune may spend."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.budget import Budget, Spent
from jointopt.core.errors import UsageError

BOUND = st.none() | st.floats(0.01, 1e3)


def test_a_budget_without_a_bound_is_refused_with_the_options_that_give_one() -> None:
    with pytest.raises(UsageError, match="--gpu-hours"):
        Budget()


@pytest.mark.parametrize("bound", [{"runs": 0}, {"gpu_hours": -1.0}, {"minutes": float("nan")}])
def test_a_bound_is_above_zero(bound: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="above zero"):
        Budget(**bound)


def test_the_first_run_may_always_begin_and_none_that_would_go_beyond() -> None:
    budget = Budget(gpu_hours=1.0)
    assert budget.runs_left(Spent()) > 0
    half = Spent().after_run(900.0, 2, 15.0)  # 2 GPUs, a quarter of an hour
    assert budget.runs_left(half) == 1
    assert budget.runs_left(half.after_run(900.0, 2, 30.0)) == 0


def test_the_tightest_bound_counts() -> None:
    spent = Spent(2, 0.2, 10.0)
    assert Budget(runs=9, gpu_hours=0.5, minutes=100.0).runs_left(spent) == 3
    assert Budget(runs=4, gpu_hours=0.5, minutes=100.0).runs_left(spent) == 2
    assert Budget(runs=9, gpu_hours=0.5, minutes=12.0).runs_left(spent) == 0


@given(st.none() | st.integers(1, 50), BOUND, BOUND, st.lists(st.floats(0.1, 5e3), max_size=30))
def test_spending_never_raises_what_is_left_by_runs_and_never_makes_it_negative(runs, hours, minutes, seconds) -> None:
    if runs is None and hours is None and minutes is None:
        return
    budget, spent = Budget(runs, hours, minutes), Spent()
    for run_s in seconds:
        left = budget.runs_left(spent)
        assert left >= 0
        assert runs is None or left <= runs - spent.runs
        if not left:
            break
        spent = spent.after_run(run_s, 4, spent.minutes + run_s / 60)
