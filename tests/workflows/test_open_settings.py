"""Settings that a job leaves open, and by how much they move its answer."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pandas as pd
import pytest

from jointopt.core.errors import UsageError
from jointopt.jobs.catalog.priors import USUAL, open_priors
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import job_from_options, load_jobs, with_changes
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.report.doubts import LINES, OF_ONE
from jointopt.report.proposal import Proposal
from jointopt.surrogate.mixture import mixture_of
from jointopt.workflows.explain import explain
from jointopt.workflows.open_settings import AS_USUAL, open_settings, open_words
from jointopt.workflows.propose import propose
from jointopt.workflows.scale import scale
from tests.each import each

SMALL = ("llama-3-8b", "h100-sxm5-80gb", 16, 64, 8192)
JOBS = {
    "generic": job_from_options(*SMALL),
    "megatron": job_from_options("llama-2-13b", "a100-sxm4-80gb", 16, 64, 4096, framework="megatron-lm"),
    "experts": job_from_options("mixtral-8x7b", "b200-sxm-180gb", 16, 64, 4096, dtype="fp8", framework="nemo"),
    "bridge": job_from_options(
        "mixtral-8x7b", "b200-sxm-180gb", 16, 64, 4096, dtype="fp8", framework="megatron-bridge"
    ),
}


@pytest.fixture(scope="module")
def found() -> Proposal:
    return propose(JOBS["generic"], surrogate="none")


def test_stating_an_alternative_changes_the_first_row_by_what_is_announced(found: Proposal) -> None:
    first_s = found.front["iteration_time_s"][0]
    for one in found.hangs_on:
        there = propose(with_changes(found.job, {one.key: one.alternative}), surrogate="none")
        change = 100.0 * (there.front["iteration_time_s"][0] / first_s - 1.0)
        assert one.time_change_percent == pytest.approx(change, abs=1.0), one  # by another layout nearby
        stated = str(one.alternative).lower() if isinstance(one.alternative, bool) else one.alternative
        assert one.states == f"--set {one.key}={stated}"


@each("job", JOBS.values())
def test_a_setting_is_open_until_the_job_states_it_and_its_alternatives_are_none_of_it(job: Job) -> None:
    for key, assumed, others in open_settings(job):
        assert assumed not in others
        for other in others:
            with suppress(UsageError):  # the job cannot be run so
                assert key not in [name for name, *_ in open_settings(with_changes(job, {key: other}))]


def test_the_largest_change_comes_first_in_json_text_and_doubts(found: Proposal) -> None:
    document = found.to_dict()
    changes = [abs(one["time_change_percent"]) for one in document["hangs_on"]]
    assert changes == sorted(changes, reverse=True)
    assert document["hangs_on"][0]["key"] == "training.framework"
    text = found.text().split("\n\n")[0]
    assert f"if training.framework={document['hangs_on'][0]['alternative']}" in text
    assert f" % if training.framework={document['hangs_on'][0]['alternative']} (not generic" in document["doubts"][0]


def test_people_are_shown_few_of_them(found: Proposal) -> None:
    head = found.text().split("\n\n")[0]
    keys = [line.split("if ")[1].split("=")[0] for line in head.splitlines() if " %  if " in line]
    assert 0 < len(keys) <= LINES
    assert max(keys.count(key) for key in keys) <= OF_ONE


def test_runs_measured_on_such_a_cluster_leave_no_setting_open(make_runs) -> None:
    job = job_from_options("llama-2-13b", "a100-sxm4-80gb", 16, 64, 4096, framework="megatron-lm")
    rows = pd.DataFrame([{
        "model": "llama-2-13b", "gpu": "a100-sxm4-80gb", "gpus_per_node": 8, "num_gpus": 16, "seq_length": 4096,
        "global_batch_size": 64, "dtype": "bf16", "framework": "megatron-lm", "dp": dp, "tp": 16 // dp, "pp": 1,
        "micro_batch_size": 1, "status": "ok", "iteration_time_s": 40.0,
    } for dp in (4, 8)])  # fmt: skip
    assert propose(job).hangs_on
    assert propose(job, measured=rows).hangs_on == ()


def test_explain_prices_the_plan_as_it_is_with_each_alternative() -> None:
    job, plan = JOBS["megatron"], "dp=8 tp=2"
    alone = explain(job, plan, surrogate="none")
    assert {one.key for one in alone.hangs_on} >= {"training.attention", "training.recipe_class"}
    for one in alone.hangs_on:
        there = explain(with_changes(job, {one.key: one.alternative}), plan, surrogate="none")
        assert one.time_change_percent == pytest.approx(100 * (there.iteration_time_s / alone.iteration_time_s - 1))
    assert "The plan's time hangs on open settings" in alone.text()


def test_scale_names_them_once() -> None:
    found = scale(load_jobs("opt-350m-2x4-a100", (4, 8), {"training.framework": "generic"}), surrogate="none")
    words = open_words(found.sizes[0].job)
    assert "training.framework generic" in words
    assert found.to_dict()["open_settings"] == words
    assert found.text().count("Left open, and so assumed: training.framework generic") == 1


def test_what_the_mixture_of_open_settings_names_is_priced_once_each_with_the_key_that_states_it() -> None:
    job = JOBS["bridge"]
    keys = [key for key, *_ in open_settings(job)]
    named = mixture_of(CostModel(job, parse_plan("dp=16 ep=8", job).layouts)).names[0].split()
    assert {f"training.{name}" for name in named} <= {*keys}
    assert {"training.cuda_graph", "training.fp8_recipe", "training.moe_routing"} <= {*keys}
    assert len(keys) == len({*keys})
    assert "training.moe_load_imbalance" not in keys  # which natural routing stands for
    weighed = {f"training.{name}": {*of} - {USUAL} for name, of in open_priors(job).items()}
    assert all({*others} <= weighed[key] for key, _, others in open_settings(job) if key in weighed)


def test_a_proposal_in_80_columns_says_in_words_which_settings_of_the_software_move_it(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = propose(JOBS["bridge"], surrogate="none")
    settings = [one for one in found.hangs_on if one.assumed == AS_USUAL]
    head = found.text().split("\n\n")[0]
    assert abs(settings[0].time_change_percent) > 5.0
    assert settings[0].states.removeprefix("--set ") in head
    assert "(not as usual" in head
    assert "hangs on open settings (estimates; --set KEY=VALUE):" in head


def test_where_power_is_bounded_settings_move_the_recommended_plan_and_no_other_layout() -> None:
    bounded = replace(JOBS["megatron"], constraints=replace(JOBS["megatron"].constraints, avg_power_w=250.0))
    found = propose(bounded, surrogate="none")
    plan = found.recommended.plan
    assert found.hangs_on
    assert {one.plan for one in found.hangs_on} == {""}
    now_s = explain(bounded, plan, surrogate="none").iteration_time_s
    for one in found.hangs_on:
        there_s = explain(with_changes(bounded, {one.key: one.alternative}), plan, surrogate="none").iteration_time_s
        assert one.time_change_percent == pytest.approx(100 * (there_s / now_s - 1), abs=0.01)
