import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.report.tables import tidy_parts


def test_leakage_below_the_reference_temperature_is_less_static_energy() -> None:
    assert tidy_parts({"compute": 5.0, "static": 2.0, "leakage": -0.5}) == {"compute": 5.0, "static": 1.5}


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_rounding_noise_is_no_part(scale: float) -> None:
    assert tidy_parts({"compute": 2.0 * scale, "host": -1e-16 * scale}) == {"compute": 2.0 * scale, "host": 0.0}
    assert tidy_parts({"compute": scale, "host": 0.9e-9 * scale})["host"] == 0.0
    some = {"compute": scale, "host": 1.1e-9 * scale}
    assert tidy_parts(some) == some


@given(st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1e6), min_size=1), st.floats(-1.0, 1.0))
def test_tidy_parts_add_up_to_the_same(parts: dict[str, float], leakage: float) -> None:
    whole = {**parts, "static": 2.0, "leakage": leakage}
    assert sum(tidy_parts(whole).values()) == pytest.approx(sum(whole.values()), rel=1e-12)
    assert min(tidy_parts(whole).values()) >= 0
