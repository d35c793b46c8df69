"""The pages of power over time and between jobs: what is decided first, then power against its limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

import jointopt
from jointopt.cli.main import jointopt as command
from jointopt.report.page.power_page import stepped_figure
from jointopt.report.power_schedule import PowerSchedule

NAME, PLAN = "llama-3-70b-4x8-h200", "dp=4 tp=4 pp=2 vpp=2 mbs=1"


@pytest.fixture(scope="module")
def schedule() -> PowerSchedule:
    table = {"time_s": [0.0, 3600.0, 7200.0, 14400.0], "limit_kw": [45.0, 20.0, 13.0, None]}
    return jointopt.follow(jointopt.load_job(NAME), PLAN, signal=pd.DataFrame(table))


def test_the_page_of_a_schedule_says_first_what_is_lost_and_when_it_pauses(schedule: PowerSchedule) -> None:
    content = schedule.report().content
    assert content["decision"].startswith("Lost: ")
    assert content["decision"].endswith("Paused in hour 2.00 to 4.00.")
    assert dict(card[:2] for card in content["cards"])["Pauses"] == "1"
    assert schedule.text(verbose=True) == content["text"]
    html = schedule.report().html()
    assert html.index("Lost: ") < html.index('id="figure-part-0"')


def test_power_is_drawn_by_steps_with_its_high_end_under_the_limit(schedule: PowerSchedule) -> None:
    power, clocks = schedule.report().content["data"]["figures"].values()
    high, _, limit = (line["y"] for line in power["data"])
    assert limit == [45.0, 45.0, 20.0, 20.0, 13.0, 13.0]
    assert all(drawn <= most for drawn, most in zip(high, limit, strict=True))
    assert clocks["data"][0]["x"] == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0]
    assert clocks["data"][0]["y"][4:] == [None, None]  # paused
    assert None not in clocks["data"][0]["y"][:4]


def test_a_price_has_a_figure_in_the_currency_of_the_job() -> None:
    job = jointopt.load_job(NAME, {"cluster.currency": "CAD", "cluster.price_per_kwh": 0.1})
    prices = pd.DataFrame({"time_s": [0.0, 3600.0, 7200.0], "price_per_kwh": [0.1, 0.3, None]})
    content = jointopt.follow(job, PLAN, signal=prices).report().content
    assert [*content["heads"].values()] == ["Power of the site", "Price of electricity", "Clocks"]
    assert content["data"]["figures"]["part-1"]["layout"]["yaxis"]["title"]["text"] == "CAD per kWh"
    assert content["cards"][1][0] == "Electricity CAD"


def test_a_step_without_a_limit_is_a_gap() -> None:
    line = stepped_figure([0.0, 1.0, 2.0], {"limit": [None, 3.0]}, "kW")["data"][0]
    assert (line["x"], line["y"], line["line"]["dash"]) == ([0.0, 1.0, 1.0, 2.0], [None, None, 3.0, 3.0], "dash")


def test_the_page_of_shares_has_every_job_beside_simpler_ways_and_each_limit(tmp_path: Path) -> None:
    jobs: list[Any] = [NAME, "opt-350m-2x4-a100"]
    (tmp_path / "fleet.yaml").write_text(f"limits: [{{name: <row> 1, kw: 30, jobs: [{NAME}]}}]\n")
    options = ["--site-kw", "33", "--fleet-file", str(tmp_path / "fleet.yaml"), "--report", str(tmp_path / "a.html")]
    found = CliRunner().invoke(command, ["fleet", *jobs, *options])
    assert found.exit_code == 0, found.output
    html = (tmp_path / "a.html").read_text()
    assert "2 jobs under 33 kW" in html
    assert all(f">{job}</th>" in html for job in jobs)
    assert "<row> 1" not in html
    assert '"name":"equal shares"' in html


def test_steps_of_one_pause_are_named_once() -> None:
    table = {"time_s": [0.0, 3600.0, 7200.0, 14400.0], "limit_kw": [13.0, 14.0, 45.0, None]}
    found = jointopt.follow(jointopt.load_job(NAME), PLAN, signal=pd.DataFrame(table))
    assert len([step for step in found.steps if step["paused"]]) == 2
    assert found.report().content["decision"].endswith("Paused in hour 0.00 to 2.00.")
