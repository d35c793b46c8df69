import json

import pytest

from jointopt.report.listing import listing, listing_text
from jointopt.report.tables import json_text

EVERYTHING = ("gpus", "models", "frameworks", "clusters", "jobs")


@pytest.mark.parametrize("what", EVERYTHING)
def test_every_listing_fits_100_columns(what: str) -> None:
    text = listing_text(listing(what))
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("what", EVERYTHING)
def test_every_name_is_listed_once_and_is_json(what: str) -> None:
    rows = json.loads(json_text(listing(what)))
    names = [next(iter(row.values())) for row in rows]
    assert len(names) == len(set(names)) > 1


def test_a_figure_that_no_source_states_is_a_dash() -> None:
    assert listing_text([{"gpu": "x", "tdp_w": None}]).splitlines()[-1] == "x      -"


def test_a_gpu_of_16_bit_halves_alone_shows_their_rate() -> None:
    volta = next(row for row in listing("gpus") if row["gpu"] == "v100-sxm2-32gb")
    assert (volta["bf16_tflops"], volta["fp16_tflops"]) == (None, 125)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(999_999, "999999"), (1_000_000, "1 M"), (7_241_000_000, "7,241 M"), (9_999_000_000, "9,999 M"),
     (10_000_000_000, "10.0 B"), (549_309_000_000, "549.3 B")],
)  # fmt: skip
def test_counts_are_in_millions_from_one_million_on_and_in_billions_from_ten(value: int, shown: str) -> None:
    assert listing_text([{"model": "x", "parameters": value}]).splitlines()[-1].split(maxsplit=1)[1] == shown
