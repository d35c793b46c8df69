"""Times of every rank in logs of Megatron-LM, and logs whose timers do not tell them."""

from __future__ import annotations

import pytest

from jointopt.frameworks.meter_logs import rank_timers

LINE = "[default3]: iteration        7/     500 | elapsed time per iteration (ms): 812.5 | lm loss: 2.5E+00 |\n"
ALL = """INFO:megatron.core.timers:times across ranks (ms):
  forward-compute:
     rank  0: 250.00
     rank 10: 260.50
  forward-recv:
     rank 10: 3.25
[Rank 0] (after 7 iterations) memory (MB) | max reserved: 5000.0
"""


def test_every_rank_has_a_row_with_its_timers_in_seconds_at_the_iteration_above_them() -> None:
    first, second = rank_timers(LINE + ALL)
    assert first == {"iteration": 7.0, "rank": 0.0, "iteration_time_s": 0.8125, "forward-compute": 0.25}
    assert (second["rank"], second["forward-compute"], second["forward-recv"]) == (10.0, 0.2605, 0.00325)


@pytest.mark.parametrize(
    ("text", "option"),
    [(LINE + "(min, max) time across ranks (ms):\n    forward-compute ....: (250.00, 260.00)\n", "--timing-log-option"),
     (LINE + "max time across ranks (ms):\n    forward-compute ....: 260.00\n", "--timing-log-option all"),
     (LINE + "times across ranks (ms):\n  optimizer:\n     rank  0: 9.00\n", "--timing-log-level 2")],
)  # fmt: skip
def test_timers_of_the_slowest_rank_or_of_no_pass_name_the_option_that_is_missing(text: str, option: str) -> None:
    with pytest.raises(ValueError, match=option):
        rank_timers(text)


def test_a_log_without_timers_has_no_rows() -> None:
    assert rank_timers(LINE * 3) == []
