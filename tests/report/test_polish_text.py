"""What polish prints."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from jointopt.jobs.jobfile import shipped_job
from jointopt.report.results import Polished
from jointopt.report.tables import json_text
from jointopt.workflows.polish import polish


@functools.cache
def polished() -> Polished:
    return polish(shipped_job("opt-350m-8x4-gh200"), "dp=8 pp=4 mbs=16 clock=1980", solver="linear", slowdown=0.01)


def test_the_text_says_what_is_saved_at_which_time() -> None:
    saved = 100 * polished().saving(polished().chosen)
    text = " ".join(polished().text().split())
    assert f"saves {saved:.2f} % of the energy at +1.00 % iteration time" in text


def test_the_text_has_a_line_per_schedule_and_per_stage() -> None:
    lines = polished().text().splitlines()
    assert sum(".." in line for line in lines) >= len(polished().points)
    assert [line.split()[0] for line in lines if line.startswith("    ") and " 1980 " in line] == list("1234")


def test_lines_fit_a_terminal() -> None:
    assert max(map(len, polished().text().splitlines())) <= 100


def test_the_json_document_has_every_schedule_and_the_clocks_of_the_chosen_one() -> None:
    document = json.loads(json_text(polished().to_dict()))
    assert len(document["points"]) == len(polished().points)
    assert document["chosen"]["energy_saved"] == pytest.approx(
        1 - document["chosen"]["energy_j"] / document["energy_j"]
    )
    assert [len(stage) for stage in document["chosen"]["stages"]] == [2 * document["num_micro_batches"]] * 4


@pytest.mark.parametrize(
    ("unit_s", "shortest_s", "remarks"),
    [(None, 0.1, []), (0.04, 0.1, []), (0.06, 0.1, ["unit is coarse"]), (None, 0.04, ["40 ms; the time"])],
)
def test_coarse_units_and_passes_as_short_as_a_change_of_clock_are_remarked_on(
    unit_s: float | None, shortest_s: float, remarks: list[str]
) -> None:
    found = replace(polished(), unit_s=unit_s, shortest_pass_s=shortest_s)
    text = " ".join(found.text().split())
    assert [words for words in ("unit is coarse", "40 ms; the time") if words in text] == remarks
    assert ("in units of" in text) == (unit_s is not None)


def test_schedules_have_how_surely_they_differ_from_one_clock_per_stage() -> None:
    document, text = json.loads(json_text(polished().to_dict())), polished().text()
    for point in document["points"]:
        change = 100 * (point["energy_j"] / document["energy_j"] - 1)
        assert point["energy_vs_first_percent"] == pytest.approx(change)
        assert point["energy_vs_first_percent_low"] < change < point["energy_vs_first_percent_high"]
    assert document["chosen"]["leaner_probability"] > 0.5 >= document["chosen"]["faster_probability"]
    assert re.search(r"\+1\.00±\d", text)
    assert "t|E %" in text
    bare = replace(polished(), against_plan={}).text()
    assert "±" not in bare
    assert "t|E" not in bare


def test_each_stage_has_the_clocks_of_its_forward_passes_before_those_of_its_backward_passes() -> None:
    backward = polished().graph.backward
    chosen = replace(polished().chosen, clock_mhz=np.where(backward, 1500.0, 1200.0))
    lines = replace(polished(), chosen=chosen, points=(chosen,), against_plan={}).text().splitlines()
    heads = next(line for line in lines if "backward" in line and "forward" in line)
    assert heads.index("forward") < heads.index("backward")
    stages = [line.split() for line in lines if re.match(r" +[1-4] +1980 ", line)]
    assert stages == [[str(stage), "1980", "1200", "1200", "1500", "1500"] for stage in range(1, 5)]
