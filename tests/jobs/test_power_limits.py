import numpy as np
import pytest

from jointopt.core.errors import UsageError
from jointopt.core.schema import POWER_LIMIT
from jointopt.jobs.clocks import repeat_per_limit, under_limits, without_limits
from jointopt.jobs.jobfile import dump_job, parse_job, shipped_job, with_changes
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.text import parse_plan, plan_records

JOB = shipped_job("opt-350m-2x4-a100")  # GPUs of 400 W
LAYOUTS = {"pp": np.array([8, 4]), "stage": np.array([[1, 2], [3, 4]])}


def limited(limits):
    return with_changes(JOB, {f"search.{POWER_LIMIT}": limits})


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (300, (300.0,)), ([200, 400, 200], (400.0, 200.0)), ({"min": 250, "step": 100}, (400.0, 300.0)),
        ({"min": 350, "max": 390}, (390.0, 365.0)), (None, None),
    ],
)  # fmt: skip
def test_limits_are_a_number_a_list_or_a_range_from_the_highest_down(given, read) -> None:
    assert limited(given).search.power_limit_w == read


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (401, "lists 401 W.* at most 400 W"), (0, "lists 0 W"), ([], "up to 100 of them"), ("low", "a limit in W"),
        ([300, 500, 401], "lists 500, 401 W"),
        ({"max": 300}, r"search\.power_limit_w\.min"), ({"min": 300, "max": 200}, "must not be above max"),
        ({"min": 100, "step": 1}, "at most 100 limits"), ({"min": 100, "stop": 1}, "stop"),
    ],
)  # fmt: skip
def test_a_limit_that_no_gpu_of_the_job_takes_is_refused_with_what_it_takes(given, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        limited(given)


def test_limits_of_a_gpu_of_unknown_power_are_refused() -> None:
    on_cores = {"cluster": {"gpu": "cpu", "nodes": 1, "gpus_per_node": 8}, "search": {POWER_LIMIT: 100}}
    with pytest.raises(UsageError, match="nothing is known of the power"):
        parse_job(
            {"model": "opt-350m", "training": {"seq_length": 128, "global_batch_size": 8}} | on_cores, "job", None
        )


@pytest.mark.parametrize(
    ("limits", "listed"), [([700, 199, 60], "199, 60 W"), ({"min": 100, "max": 200, "step": 50}, "150, 100 W")]
)
def test_limits_that_the_driver_of_a_gpu_does_not_take_are_named_with_those_it_does(limits, listed: str) -> None:
    job = shipped_job("llama-3-8b-1x8-h100")
    with pytest.raises(UsageError, match=rf"lists {listed}, .* at least 200 and at most 700 W"):
        with_changes(job, {f"search.{POWER_LIMIT}": limits})
    assert with_changes(job, {f"search.{POWER_LIMIT}": 200}).search.power_limit_w == (200.0,)


def test_a_gpu_like_another_takes_what_limits_its_own_driver_takes() -> None:
    own = {"name": "mine", "like": "h100-sxm5-80gb", "tdp_w": 150}
    cluster = {"gpu": own, "nodes": 1, "gpus_per_node": 8}
    given = {"model": "opt-350m", "training": {"seq_length": 128, "global_batch_size": 8}, "cluster": cluster}
    job = parse_job(given | {"search": {POWER_LIMIT: 140}}, "job", None)
    assert job.search.power_limit_w == (140.0,)
    own["power_limit_min_w"] = 145
    with pytest.raises(UsageError, match="at least 145"):
        parse_job(given | {"search": {POWER_LIMIT: 140}}, "job", None)


def test_a_job_with_limits_reads_back_from_its_own_file() -> None:
    import yaml

    job = limited([200, 300])
    assert parse_job(yaml.safe_load(dump_job(job)), job.name, None) == job


def test_every_layout_is_there_under_every_limit_and_comes_back_without_them() -> None:
    found = under_limits(LAYOUTS, (400.0, 300.0, 200.0))
    assert found[POWER_LIMIT].tolist() == [400.0, 400.0, 300.0, 300.0, 200.0, 200.0]
    assert repeat_per_limit(np.array([1.0, 2.0]), 6).tolist() == [1.0, 2.0] * 3
    bare, of = without_limits(found)
    assert of.tolist() == [0, 1] * 3
    assert {name: values.tolist() for name, values in bare.items()} == {k: v.tolist() for k, v in LAYOUTS.items()}


def test_without_limits_layouts_stay_what_they_are() -> None:
    assert under_limits(LAYOUTS, None) is LAYOUTS
    mixed = {"pp": np.array([8, 4, 2]), POWER_LIMIT: np.array([300.0, 200.0, 300.0])}
    bare, of = without_limits(mixed)
    assert (bare["pp"].tolist(), of.tolist()) == ([8, 4, 2], [0, 1, 2])


@pytest.mark.parametrize(
    ("stated", "refused"),
    [("power_limit_w=250", ""), ("power_limit_w=401", "power_limit_w states 401 W"),
     ("stage_power_limit_w=250;410;300;500", "stage_power_limit_w states 410, 500 W")],
)  # fmt: skip
def test_limits_that_a_plan_states_are_those_that_its_gpus_take(stated: str, refused: str) -> None:
    parsed = parse_plan(f"dp=2 pp=4 {stated}", JOB)
    broken = check_plan(JOB, plan_records(parsed.layouts, parsed.stage_clock_mhz, [0])[0])
    assert [sentence[: len(refused)] for sentence in broken] == ([refused] if refused else [])


def test_a_plan_takes_a_limit_as_tables_and_answers_print_it() -> None:
    assert parse_plan("dp=8 limit=250 W clock=1410 MHz", JOB).layouts[POWER_LIMIT].tolist() == [250.0]
