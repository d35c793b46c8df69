"""What polish prints."""

from __future__ import annotations

import dataclasses
import functools
import json

import pytest

from jointopt.report.plain import json_text
from jointopt.report.polish_json import polish_document
from jointopt.report.polish_results import Polished
from jointopt.report.polish_text import polished_text
from jointopt.spec.jobfile import shipped_job
from jointopt.workflows.polish import polish


@functools.cache
def polished() -> Polished:
    return polish(
        shipped_job("opt-350m-8x4-gh200"), "dp=8 pp=4 mbs=16 clock=1980", solver="linear", slowdown=0.01
    )


def test_the_text_says_what_is_saved_at_which_time() -> None:
    saved = 100 * polished().saving(polished().chosen)
    text = " ".join(polished_text(polished()).split())
    assert f"saves {saved:.2f} % of the energy at +1.00 % iteration time" in text


def test_the_text_has_a_line_per_schedule_and_per_stage() -> None:
    lines = polished_text(polished()).splitlines()
    assert sum(".." in line for line in lines) >= len(polished().points)
    assert [line.split()[0] for line in lines if line.startswith("    ") and " 1980 " in line] == list("1234")


def test_a_coarse_unit_of_time_is_called_so() -> None:
    rough = dataclasses.replace(polished(), solver="lowtime", unit_s=0.9 * polished().shortest_pass_s)
    assert "coarse" in polished_text(rough)
    assert "(90 % of the shortest pass)" in " ".join(polished_text(rough).split())


def test_micro_batches_that_stand_for_many_are_told() -> None:
    few = dataclasses.replace(polished(), solved_micro_batches=4)
    assert "the 4 between run at one pace" in " ".join(polished_text(few).split())


def test_lines_fit_a_terminal() -> None:
    assert max(map(len, polished_text(polished()).splitlines())) <= 100


def test_the_json_document_has_every_schedule_and_the_clocks_of_the_chosen_one() -> None:
    document = json.loads(json_text(polish_document(polished())))
    assert len(document["points"]) == len(polished().points)
    assert document["chosen"]["energy_saved"] == pytest.approx(
        1 - document["chosen"]["energy_j"] / document["energy_j"]
    )
    assert [len(stage) for stage in document["chosen"]["stages"]] == [2 * document["num_micro_batches"]] * 4
