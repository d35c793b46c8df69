"""Reasons for wider intervals in one form for every table: those of all plans once, then those of some."""

from __future__ import annotations

from jointopt.report.doubts import NOT_KNOWN, distinct_reasons, reasons_of, unlike_recorded_runs, wider_lines
from jointopt.surrogate.intervals import DOUBTS

EXPERTS, CLOCK = DOUBTS["model"], DOUBTS["clock"]


def test_reasons_of_a_plan_are_the_words_of_its_doubts_and_a_supported_plan_has_none() -> None:
    outside = {"in_domain": False, "doubts": "model clock"}
    assert reasons_of([outside, outside | {"in_domain": True}, {}]) == [(EXPERTS, CLOCK), (), ()]
    assert reasons_of([{"in_domain": False, "doubts": "unlike_known_runs"}], "mine") == [
        (unlike_recorded_runs("mine"),)
    ]


def test_a_stored_plan_without_its_reasons_refers_to_explain() -> None:
    assert reasons_of([{"in_domain": False}, {"in_domain": False, "doubts": None}]) == [(NOT_KNOWN,)] * 2


def test_a_reason_of_all_plans_is_stated_once_and_is_no_plans_own() -> None:
    reasons = [(EXPERTS,), (EXPERTS, CLOCK), (EXPERTS, CLOCK)]
    assert distinct_reasons(reasons) == [(), (CLOCK,), (CLOCK,)]
    assert wider_lines(reasons) == [
        f"The interval (±) is wider for every plan here: {EXPERTS}.",
        f"? the interval (±) is wider still: {CLOCK}.",
    ]


def test_plans_with_names_are_named_those_of_the_same_reasons_together() -> None:
    lines = wider_lines([(), ("a",), ("b",), ("a",)], "ABCD", "interval")
    assert lines == ["The interval of B and D is wider: a.", "The interval of C is wider: b."]


def test_reasons_that_only_some_of_the_marked_plans_have_are_counted() -> None:
    lines = wider_lines([(), ("a",), ("a", "b"), ("a", "b"), ("a", "c")])
    assert lines == ["? the interval (±) is wider: a; b (2 plans); c (1 plan)."]


def test_one_plan_alone_needs_no_mark_and_supported_ones_no_words() -> None:
    assert wider_lines([("a",)]) == ["The interval (±) is wider: a."]
    assert wider_lines([(), ()]) == wider_lines([]) == []
