import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.errors import CatalogError, JobError
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.clocks import clock_grid_mhz, read_clocks
from jointopt.jobs.reading import Section

A100 = load_gpu("a100-sxm4-40gb")
V100 = load_gpu("v100-sxm2-16gb")
UNKNOWN = dataclasses.replace(A100, clock_min_mhz=None, clock_max_mhz=None, clock_step_mhz=None)


def clocks(given: object, gpu: object = A100) -> tuple[float, ...]:
    return read_clocks(Section({"clock_mhz": given}, "search"), gpu)[0]  # type: ignore[arg-type]


def test_without_stated_clocks_all_those_of_the_gpu_are_searched() -> None:
    assert clocks(None) == clock_grid_mhz(A100) == tuple(float(c) for c in range(210, 1411, 15))


def test_half_steps_are_rounded_down_as_the_driver_lists_them() -> None:
    grid = clock_grid_mhz(load_gpu("v100-sxm2-16gb"))
    assert grid[:3] == (135.0, 142.0, 150.0)
    assert grid[-2:] == (1522.0, 1530.0)


def test_a_number_a_list_and_a_range_give_the_same_clocks() -> None:
    assert clocks(1410) == clocks([1410]) == clocks({"min": 1410, "max": 1410}) == (1410.0,)
    assert clocks([1410, 1380, 1395, 1395]) == clocks({"min": 1380}) == (1380.0, 1395.0, 1410.0)


def test_a_range_ends_at_its_maximum_even_where_the_step_does_not() -> None:
    assert clocks({"min": 1200, "max": 1410, "step": 60})[-2:] == (1380.0, 1410.0)


@settings(deadline=None)
@given(st.lists(st.sampled_from(clock_grid_mhz(V100)), min_size=1), st.floats(-1, 1))
def test_every_clock_within_one_mhz_of_half_steps_is_accepted_in_ascending_order(
    chosen: list[float], off: float
) -> None:
    result = clocks([c + off for c in chosen], V100)
    assert list(result) == sorted(set(result))


@pytest.mark.parametrize("value", [1000, [1410, 1000], {"min": 1000, "max": 1410, "step": 15}])
def test_a_clock_that_the_gpu_lacks_names_its_neighbours(value: object) -> None:
    with pytest.raises(JobError, match=r"1000\.0 MHz is not a clock .* the nearest are 990 and 1005"):
        clocks(value)


@pytest.mark.parametrize(("clock", "nearest"), [(1201, "are 1200 and 1215"), (2000, "is 1410"), (100, "is 210")])
def test_a_clock_beside_whole_steps_or_beyond_the_range_is_refused(clock: int, nearest: str) -> None:
    with pytest.raises(JobError, match=f"the nearest {nearest}"):
        clocks(clock)


@pytest.mark.parametrize(
    "value", [[], True, "fast", -1, float("nan"), [[1410]], {"min": 1410, "max": 210}, {"step": 1e-300}, {"stp": 15}]
)
def test_nonsense_is_refused_by_its_key(value: object) -> None:
    with pytest.raises(JobError, match="clock_mhz"):
        clocks(value)


def test_a_gpu_of_unknown_clocks_needs_them_in_the_job_where_they_are_a_named_assumption() -> None:
    with pytest.raises(CatalogError, match=r"give search\.clock_mhz"):
        clocks(None, UNKNOWN)
    found, assumed = read_clocks(Section({"clock_mhz": [900, 1800]}, "search"), UNKNOWN)
    assert found == (900.0, 1800.0)
    assert [(assumption.key, assumption.value) for assumption in assumed] == [("clock_mhz", found)]


def test_a_gpu_of_which_only_the_maximum_is_known_has_a_relative_s_range_and_says_so() -> None:
    gpu = dataclasses.replace(UNKNOWN, clock_max_mhz=1965)
    found, (assumption,) = read_clocks(Section({}, "search"), gpu)
    assert (found[0], found[1] - found[0], found[-1]) == (300.0, 15.0, 1965.0)  # from 15 % of it, as the A100 has
    assert assumption.value == found
    assert str(assumption).startswith("clock range: no source states the lower clocks of a100-sxm4-40gb; 300 to 1965")
    alone, (assumption,) = read_clocks(Section({}, "search"), dataclasses.replace(gpu, power=None))
    assert alone == assumption.value == (1965.0,)
    with pytest.raises(JobError, match="clocks of 0 to 1965 MHz; got 2100"):
        clocks([2100], gpu)
