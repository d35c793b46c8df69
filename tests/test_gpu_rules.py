"""Clocks and power limits that no GPU of that name has."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from jointopt.gpu_rules import MEASUREMENT_RULES
from jointopt.tables import check_measurements

RUN = {"gpu": "a100-sxm4-80gb", "pp": 2, "status": "ok", "iteration_time_s": 1.5}


@pytest.mark.parametrize(
    ("change", "column", "words"),
    [
        ({"clock_mhz": 3000}, "clock_mhz", "from 210 to 1410 MHz on this GPU, got clock_mhz=3000 gpu=a100"),
        ({"clock_mhz": 150.0}, "clock_mhz", "got clock_mhz=150"),
        ({"stage_clock_mhz": "1410;1425"}, "stage_clock_mhz", "got stage_clock_mhz=1410;1425"),
        ({"stage_clock_mhz": "200"}, "stage_clock_mhz", "from 210 to 1410 MHz"),
        ({"power_limit_w": 900}, "power_limit_w", "to 600 W on this GPU, got power_limit_w=900"),
        ({"power_limit_w": -300}, "power_limit_w", "above 0 and at most 2,000"),
        ({"clock_mhz": -1410}, "clock_mhz", "from 1 to 100,000"),
        ({"stage_clock_mhz": "1410;-1"}, "stage_clock_mhz", "above 0"),
    ],
)
def test_what_the_gpu_does_not_have_is_refused_with_line_and_column(
    change: dict[str, Any], column: str, words: str
) -> None:
    good, problems = check_measurements(pd.DataFrame([RUN, RUN | change]), rules=MEASUREMENT_RULES)
    assert len(good) == 1
    assert [(p.line, p.column) for p in problems] == [(3, column)]
    assert words in problems[0].message


@pytest.mark.parametrize(
    "change",
    [
        {"clock_mhz": 1410}, {"clock_mhz": 1410.4}, {"stage_clock_mhz": "210;1410"}, {"power_limit_w": 400},
        {"gpu": "of-my-own", "clock_mhz": 4000, "power_limit_w": 1500}, {"gpu": None, "clock_mhz": 4000},
        {"gpu": "b200-sxm-180gb", "clock_mhz": 300},
    ],
)  # fmt: skip
def test_what_it_has_and_what_nobody_knows_passes(change: dict[str, Any]) -> None:
    good, problems = check_measurements(pd.DataFrame([RUN | change]), rules=MEASUREMENT_RULES)
    assert (len(good), problems) == (1, [])
