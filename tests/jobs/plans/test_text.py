"""Plans as text: round trips, defaults that are named, and errors that help."""

import contextlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.errors import JobError, PlanError
from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.jobs.framework import Framework
from jointopt.jobs.jobfile import shipped_job, with_changes
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import (
    PLAN_KEYS,
    format_plan,
    parameters_of_trial,
    parse_plan,
    plan_assumptions,
    plan_records,
)
from tests.each import each

FULL = (
    "dp=4 tp=2 pp=1 cp=1 ep=1 vpp=1 micro_batch_size=1 sequence_parallel=true recompute=full zero_stage=1 "
    "clock_mhz=1410"
)


def record(parsed):
    return parsed.record


def test_a_full_plan_reads_as_written_and_assumes_nothing(make_job):
    parsed = parse_plan(FULL, make_job())
    assert parsed.assumed == ()
    assert format_plan(parsed.layouts, parsed.stage_clock_mhz) == FULL


def test_records_are_json_ready_and_in_the_order_of_the_contract(make_job):
    plan = record(parse_plan("dp=2 tp=2 pp=2 stage_clock_mhz=1410;1395", make_job()))
    assert tuple(plan) == (*LAYOUT_COLUMNS, "stage_clock_mhz")
    assert json.loads(json.dumps(plan)) == plan
    assert plan["recompute"] == "none"
    assert plan["stage_clock_mhz"] == [1410.0, 1395.0]


@settings(max_examples=30, deadline=None)
@given(data=st.data(), watts=st.none() | st.floats(50, 400))
def test_any_plan_of_the_space_survives_text_and_json(make_job, moe, data, watts):
    job = make_job(model=moe, attention="fused")
    layouts = enumerate_layouts(job).layouts
    i = data.draw(st.integers(0, len(layouts["dp"]) - 1))
    row = {name: column[i : i + 1] for name, column in layouts.items()}
    row |= {} if watts is None else {"power_limit_w": np.array([watts])}
    clocks = data.draw(st.lists(st.floats(210, 1410), min_size=int(row["pp"][0]), max_size=int(row["pp"][0])))
    plan = plan_records(row, np.array([clocks]), [0])[0]
    assert record(parse_plan(format_plan(row, np.array([clocks])), job)) == plan
    assert record(parse_plan(json.dumps(plan), job)) == record(parse_plan(plan, job)) == plan


def test_absent_keys_follow_the_framework_and_are_named(make_job):
    framework = Framework(default_zero_stage=3, default_recompute="full", default_sequence_parallel=False)
    parsed = parse_plan("tp=2", make_job(framework=framework))
    plan = record(parsed)
    assert (plan["dp"], plan["zero_stage"], plan["recompute"]) == (4, 3, "full")
    assert plan["stage_clock_mhz"] == [1410.0]
    assert set(parsed.assumed) == {
        "dp", "pp", "cp", "micro_batch_size", "sequence_parallel", "recompute", "zero_stage", "stage_clock_mhz",
    }  # fmt: skip


def test_choices_without_effect_are_canonical_and_no_assumption(make_job):
    parsed = parse_plan("dp=1 tp=1 pp=8 cp=1 micro_batch_size=1 recompute=selective zero_stage=2", make_job())
    plan = record(parsed)
    assert (plan["sequence_parallel"], plan["recompute"], plan["zero_stage"]) == (False, "none", 0)
    assert parsed.assumed == ("vpp", "stage_clock_mhz")
    assert check_plan(make_job(), plan) == []


def test_a_power_limit_per_stage_survives_text_and_json(make_job):
    parsed = parse_plan("pp=2 stage_power_limit_w=300;250.5 clock_mhz=600", make_job())
    assert parsed.layouts["stage_power_limit_w"].tolist() == [[300.0, 250.5]]
    text = format_plan(parsed.layouts, parsed.stage_clock_mhz)
    assert record(parse_plan(text, make_job())) == record(parsed)
    assert record(parse_plan(json.dumps(record(parsed)), make_job())) == record(parsed)


@pytest.mark.parametrize("watts", [0.5, 999_999.0])
def test_a_power_limit_may_be_any_watts_up_to_a_million(make_job, watts):
    assert parse_plan(f"power_limit_w={watts}", make_job()).layouts["power_limit_w"].tolist() == [watts]


def test_a_plan_under_a_power_profile_is_not_predicted(job):
    with pytest.raises(PlanError, match="power_profile does is measured and never predicted"):
        parse_plan({"tp": 2, "power_profile": "max-q"}, job)
    assert int(parse_plan({"tp": 2, "power_profile": None}, job).layouts["tp"][0]) == 2


def test_one_clock_serves_all_stages(make_job):
    assert parse_plan("pp=4 clock_mhz=600", make_job()).stage_clock_mhz.tolist() == [[600.0] * 4]


@each(
    ("text", "sentence"),
    [
        ("tq=2", "'tq' .did you mean 'tp'"),
        ("tp", "got 'tp'"),
        ("tp=2 tp=4", "states tp twice; give each key once"),
        ("tp=two", "tp .* 1 to 1000000; got 'two'"),
        ("tp=0", "got '0'"),
        ("dp=99999999999999999999", "got '99999999999999999999'"),
        ("recompute=selectiv", r"one of none, selective, full; got 'selectiv' \(did you mean 'selective'\?\)"),
        ("sequence_parallel=2", "true, 1, yes, false, 0, no; got '2'"),
        ("pp=2 stage_clock_mhz=600;700;800", "2 stages; got '600;700;800'"),
        ("clock_mhz=600 stage_clock_mhz=600", "got both"),
        ("clock_mhz=1500", "210 and 1410 MHz.*; got 1500"),
        ("power_limit_w=0", "power_limit_w .*; got '0'"),
        ("power_limit_w=1000000", "got '1000000'"),
        ("power_limit_w=300 stage_power_limit_w=300", "got both"),
        ("pp=2 stage_power_limit_w=300", "2 stages; got '300'"),
        ('{"tp": 2', "is not a JSON mapping"),
        ('{"tp": true}', "got True"),
        ('{"tp": 2.5}', "got 2.5"),
        ('{"clock_mhz": []}', r"1 stages; got \[\]"),
    ],
)
def test_a_bad_plan_is_refused_with_the_key_or_what_was_given(make_job, text, sentence):
    with pytest.raises(PlanError, match=sentence):
        parse_plan(text, make_job())


def test_a_clock_that_no_source_states_must_be_given(make_job):
    job = make_job(search={"clock_mhz": ()})
    blank = replace(job, cluster=replace(job.cluster, gpu=replace(job.cluster.gpu, clock_max_mhz=None)))
    assert parse_plan("clock_mhz=900", blank).stage_clock_mhz.tolist() == [[900.0]]
    with pytest.raises(Exception, match="no clock_max_mhz for GPU 'gpu-x'"):
        parse_plan("tp=1", blank)


WORDS = st.sampled_from(PLAN_KEYS) | st.text(max_size=6)
VALUES = st.text(max_size=8) | st.integers().map(str) | st.floats().map(str) | st.sampled_from(["true", "full", "1;2"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)


@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.tuples(WORDS, VALUES), max_size=4), json_like=st.booleans())
def test_no_text_ever_raises_anything_but_a_plan_error(make_job, words, json_like):
    text = json.dumps(dict(words)) if json_like else " ".join(f"{key}={value}" for key, value in words)
    with contextlib.suppress(PlanError):
        parse_plan(text, make_job())


@settings(max_examples=60, deadline=None)
@given(plan=st.dictionaries(WORDS, SCALARS | st.lists(SCALARS, max_size=3), max_size=4))
def test_no_mapping_ever_raises_anything_but_a_plan_error(make_job, plan):
    with contextlib.suppress(PlanError):
        parse_plan(plan, make_job())


def test_a_row_of_the_table_reads_back(make_job):
    row = "dp=1 tp=2 pp=4 mbs=2 sp=y rc=all ZeRO=0 clock=1400×3,1310"
    plan = record(parse_plan(row, make_job()))
    assert (plan["micro_batch_size"], plan["sequence_parallel"], plan["recompute"]) == (2, True, "full")
    assert plan["stage_clock_mhz"] == [1400.0, 1400.0, 1400.0, 1310.0]
    assert record(parse_plan(row.replace("×", "x").replace(" ", ","), make_job())) == plan


def test_a_short_name_beside_the_long_one_gives_the_key_twice(make_job):
    with pytest.raises(PlanError, match="states micro_batch_size twice; give each key once"):
        parse_plan("mbs=1 micro_batch_size=1", make_job())


def test_what_is_neither_text_nor_a_mapping_is_no_plan(make_job):
    expected = "A plan is text such as 'dp=4 tp=2' or a mapping of its keys; got int."
    with pytest.raises(PlanError, match=re.escape(expected)):
        parse_plan(3, make_job())


def test_what_the_table_prints_for_no_is_no(make_job):
    plan = record(parse_plan("tp=2, sp=-, rc=-, clock_mhz=1410", make_job()))
    assert (plan["sequence_parallel"], plan["recompute"]) == (False, "none")


def test_an_absent_key_is_assumed_with_its_value(make_job):
    parsed = parse_plan("tp=2 pp=2 micro_batch_size=1 recompute=full zero_stage=1", make_job())
    first, *_, last = plan_assumptions(parsed)
    assert (first.key, first.value, str(first)) == ("dp", 2, "dp is not given; 2 is assumed")
    assert (last.key, str(last)) == ("stage_clock_mhz", "stage_clock_mhz is not given; 1410 is assumed")


def test_no_overlap_beside_some_overlap_is_refused_in_a_plan_and_in_a_search(make_job):
    expected = "must be none, or some of dp, tp, separated by semicolons; got 'none;dp'"
    with pytest.raises(PlanError, match=f"The overlap of a plan {expected}"):
        parse_plan("dp=8 overlap=none;dp", make_job())
    with pytest.raises(JobError, match=f"search.overlap {expected}"):
        with_changes(shipped_job("opt-350m-2x4-a100"), {"search.overlap": ["dp", "none;dp"]})


def test_a_blank_value_outside_of_a_search_is_called_blank(make_job):
    job = make_job()
    job = replace(job, search=replace(job.search, overlap=("dp",)))
    plan = record(parse_plan("dp=8 zero_stage=1", job))
    assert "overlap blank is outside the job's search.overlap (dp)." in check_plan(job, plan)


@each("text", ['{"layout": 1', '["layout"]', '"layout"', "[1]", "null"])
def test_parameters_of_a_trial_are_a_mapping_or_refused(text):
    assert parameters_of_trial('{"layout": "dp=4"}') == parameters_of_trial({"layout": "dp=4"}) == {"layout": "dp=4"}
    with pytest.raises(PlanError, match=r"must be a JSON mapping, as trial.params prints"):
        parameters_of_trial(text)
