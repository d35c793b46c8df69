"""The text of a whole run: where its time goes, on one screen."""

from __future__ import annotations

import pytest

from jointopt.report.effective_time import days
from tests.workflows.test_goodput import LOGS, llama, small


def test_the_answer_is_a_screen_of_25_lines_and_80_columns() -> None:
    lines = llama(spares=8, policy=["restart", "spare", "drop_replica", "nonuniform_tp"]).text().splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("llama-3-405b-2048x8-h100: 9")


def test_what_happened_fits_the_screen_too_and_all_of_it_is_more() -> None:
    found = small(logs=LOGS, reliability__spares=1, reliability__weibull_shape=0.8)
    lines = found.text().splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert "47.1 %" in next(line for line in lines if line.startswith("  useful training"))
    assert "Jeffreys' prior" in found.text()
    assert "measured in megatron-3.log" in found.text(brief=False).replace("\n ", "")


def test_the_text_states_parts_interval_policy_and_what_would_help() -> None:
    text = small(simulate=100, cluster__price_per_gpu_hour=2.0, reliability__spares=1).text()
    for words in ("useful training", "lost work", "waits for repair", "Young", "Daly", "1 spare.",
                  "80 % of runs, simulated)",
                  "A minute less per restart saves", "one more spare", "; cost ", "100 simulated runs",
                  "Assumed (-v has the sources): detection_s 60"):  # fmt: skip
        assert words in text.replace("\n  ", " ")


def test_the_page_shows_the_decision_first_and_pictures_that_add_up() -> None:
    found = small(logs=LOGS, reliability__spares=1)
    html, content = found.report().html(), found.report().content
    figures = content["data"]["figures"]
    assert html.index("Recommended.") < html.index('class="cards"') < html.index("figure-waterfall")
    steps = figures["waterfall"]["data"][0]["y"]
    assert sum(steps[:-1]) == pytest.approx(steps[-1], rel=1e-3)
    assert "one more spare" in figures["worth"]["data"][0]["y"]
    assert [one["name"] for one in figures["events"]["data"]][:2] == ["restart and waits", "training"]
    assert "What happened, and should have" in html
    assert "What happened" not in small().report().html()


def test_parts_that_take_no_time_are_not_listed() -> None:
    assert "waits for repair" not in small().text()


@pytest.mark.parametrize(("seconds", "words"), [(0.5, "0.5 s"), (90, "1.5 min"), (7200, "2 h"), (1e7, "116 days")])
def test_times_of_a_run_are_in_the_unit_that_suits_them(seconds: float, words: str) -> None:
    assert days(seconds) == words


def test_a_table_has_a_row_for_each_policy() -> None:
    frame = small(reliability__policy=["restart", "spare"]).to_frame()
    assert frame["policy"].tolist() == ["restart", "spare"]
    assert frame["lost.work"].notna().all()
