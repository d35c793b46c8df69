"""Figures for Prometheus in the format of its text files."""

from __future__ import annotations

import math
import re

from jointopt.measure.metrics import HELP, Sample, metrics_text

LINE = re.compile(r'(# (HELP|TYPE) \w+ .+|\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? (\+Inf|-?[\d.]+(e[+-]?\d+)?))')


def test_samples_stand_under_the_help_and_type_of_their_metric_and_unknown_ones_are_left_out() -> None:
    samples = [Sample("jointopt_power_watts", 512.5, {"kind": "drawn", "gpu": "0"}), Sample("jointopt_slow_ranks", 2),
               Sample("jointopt_power_watts", math.inf, {"kind": "limit"}),
               Sample("jointopt_clock_mhz", math.nan, {"gpu": "0", "stage": "1"})]  # fmt: skip
    lines = metrics_text(samples).splitlines()
    assert all(map(LINE.fullmatch, lines))
    assert 'jointopt_power_watts{kind="limit"} +Inf' in lines
    assert lines[-1] == "jointopt_slow_ranks 2"
    assert len(lines) == 2 * 2 + 3
    assert "clock" not in "".join(lines)


def test_every_metric_has_a_unit_or_a_total_in_its_name() -> None:
    assert all(re.search(r"_(seconds|watts|mhz|joules_total|ranks)$", name) for name in HELP)
