"""A network that is not stated: which plans depend on it, by how much, and what removes the doubt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from jointopt.core.schema import CONSTANTS, LAYOUT_COLUMNS
from jointopt.jobs.cluster import Machine
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.sensitivities import sensitivities
from jointopt.runs.workloads import workloads
from jointopt.surrogate.correction import Correction
from jointopt.surrogate.features import delay_of, network_assumed, network_delay, network_half_width
from jointopt.surrogate.intervals import DOUBTS, MeasuredClocks
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.kernel import DELAY, Runs
from jointopt.workflows.explain import explain

OVER_NODES, INSIDE = "dp=1 tp=16 pp=1", "dp=2 tp=8 pp=1 mbs=4"
HIDDEN = "dp=16 tp=1 pp=1 cp=4 mbs=1 zero_stage=3 recompute=none"


def job(gpu: str = "h100-sxm5-80gb", nodes: int = 2, **cluster: Any) -> Job:
    training = {"seq_length": 4096, "global_batch_size": 64, "framework": "megatron-lm"}
    where = {"gpu": gpu, "nodes": nodes} | cluster
    return parse_job({"name": "j", "model": "llama-3-8b", "training": training, "cluster": where}, "j", Path())


def machine(**figures: float) -> Machine:
    return Machine("h100-sxm5-80gb", 8, figures)


def upper(one: Job, plan: str, **options: Any) -> float:
    """The upper end of the interval of time over the prediction."""
    found = explain(one, plan, **options)
    return found.intervals["iteration_time_s"][1] / found.iteration_time_s


def test_a_network_is_assumed_where_traffic_leaves_nodes_and_its_speed_is_not_stated() -> None:
    assert network_assumed(job())
    assert not network_assumed(job(nodes=1))
    assert not network_assumed(job(inter_node_gbytes_per_s=50))
    assert not network_assumed(job(gpu="gb200", nodes=18, gpus_per_node=4))  # a rack is one scale-up domain
    assert network_assumed(job(gpu="gb200", nodes=20, gpus_per_node=4))
    catalogued = {"name": "j", "model": "llama-3-8b", "cluster": {"catalog": "selene", "nodes": 2}}
    training = {"training": {"seq_length": 4096, "global_batch_size": 64}}
    assert not network_assumed(parse_job(catalogued | training, "j", Path()))


def test_a_table_without_a_network_assumes_one_even_where_the_gpu_has_no_reference_system() -> None:
    row = {"model": "llama-3-8b", "seq_length": 4096, "global_batch_size": 64, "num_gpus": 16}
    table = pd.DataFrame([row | {"gpu": "l40s"}, row | {"gpu": "h100-sxm5-80gb"}])
    assert all(network_assumed(work.job) for work in workloads(table)[0])
    stated = workloads(table.assign(inter_node_gbytes_per_s=12.5))[0]
    assert not any(network_assumed(work.job) for work in stated)


def test_an_assumed_network_may_be_e_times_slower_unless_a_run_depends_half_as_much_on_it() -> None:
    delay = np.array([0.0, 0.1, 0.4])
    assert network_half_width(job(), delay) == pytest.approx([0.0, 0.1, 0.4])
    assert network_half_width(job(), delay, 0.05) == pytest.approx([0.0, 0.0, 0.4])
    assert not network_half_width(job(), delay, 0.2).any()
    assert not network_half_width(job(inter_node_gbytes_per_s=50), delay).any()


def priced(one: Job, *plans: str) -> CostModel:
    parsed = [parse_plan(plan, one) for plan in plans]
    return CostModel(one, {name: np.concatenate([p.layouts[name] for p in parsed]) for name in LAYOUT_COLUMNS})


def test_the_delay_of_a_plan_is_what_it_takes_longer_on_a_network_e_times_slower() -> None:
    one, both = job(), np.arange(2)
    physics = priced(one, OVER_NODES, INSIDE)
    network = replace(one.cluster, inter_node_gbytes_per_s=one.cluster.inter_node_gbytes_per_s / np.e)
    slower = CostModel(replace(one, cluster=network), physics.layouts)
    top = np.full((2, 1), physics.top_mhz)
    longer = slower.evaluate(both, top)["iteration_time_s"] / physics.evaluate(both, top)["iteration_time_s"]
    delay = network_delay(physics, both)
    assert delay == pytest.approx(np.log(longer))
    assert delay[0] > 0.3 > 0.1 > delay[1]


def test_traffic_that_hides_on_the_assumed_network_is_doubted_where_a_slower_one_would_show_it() -> None:
    training = {"seq_length": 8192, "global_batch_size": 128, "framework": "torchtitan"}
    cluster = {"gpu": "h100-sxm5-80gb", "nodes": 8}
    one = parse_job({"name": "j", "model": "llama-3-70b", "training": training, "cluster": cluster}, "j", Path())
    hides = replace(
        one.training.framework, dp_overlap=0.9
    )  # of its gathers, as long as there are kernels to hide under
    one = replace(one, training=replace(one.training, framework=hides))
    physics, plan = priced(one, HIDDEN), np.arange(1)
    straight = sensitivities(physics, plan, np.full((1, 1), physics.top_mhz))[:, CONSTANTS.index("inter_node")]
    assert straight < 0.1 < network_delay(physics, plan) / 3.0
    assert DOUBTS["network"] in explain(one, HIDDEN).doubts


def test_runs_of_an_older_surrogate_have_the_delay_of_a_straight_line() -> None:
    runs = Runs(np.full((2, len(CONSTANTS)), 0.2), {}, np.full(2, "lab"), np.full(2, "one"))
    assert delay_of(runs) == pytest.approx([0.2, 0.2])
    assert delay_of(replace(runs, features={DELAY: np.array([0.3, 0.5])})) == pytest.approx([0.3, 0.5])
    assert replace(runs, features={DELAY: np.zeros(2), "log2_tp": np.ones(2)}).names == ("log2_tp",)


@pytest.mark.parametrize("surrogate", ["default", "none"])
def test_the_doubt_is_of_plans_that_depend_on_the_network_and_goes_with_a_stated_or_measured_one(
    surrogate: str,
) -> None:
    assumed = explain(job(), OVER_NODES, surrogate=surrogate)
    assert DOUBTS["network"] in assumed.doubts
    assert not assumed.in_domain
    assert DOUBTS["network"] not in explain(job(), INSIDE, surrogate=surrogate).doubts
    stated = upper(job(inter_node_gbytes_per_s=50), OVER_NODES, surrogate=surrogate)
    measured = upper(job(), OVER_NODES, surrogate=surrogate, machine=machine(inter_node_gbytes_per_s=50.0))
    assert stated == pytest.approx(measured)
    assert upper(job(), OVER_NODES, surrogate=surrogate) > 1.15 * stated


@pytest.mark.parametrize("figures", [{"inter_node_gbytes_per_s": 2.0}, {"memory_gbytes_per_s": 2900.0}])
def test_a_measured_machine_is_no_unknown_gpu_and_widens_nothing(figures: dict[str, float]) -> None:
    found = explain(job(), INSIDE, machine=machine(**figures))
    assert found.in_domain
    assert upper(job(), INSIDE, machine=machine(**figures)) <= upper(job(), INSIDE) + 1e-9


def test_a_sweep_of_clocks_that_was_learned_leaves_no_doubt_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = f"{INSIDE} clock_mhz=990"
    assert DOUBTS["clock"] in explain(job(), plan).doubts
    monkeypatch.setattr(Correction, "_measured_clocks", MeasuredClocks(low=0.4))
    assert DOUBTS["clock"] not in explain(job(), plan).doubts
    assert DOUBTS["clock"] not in {DOUBTS[name] for name, of in _doubts(plan).items() if of.any()}


def _doubts(plan: str) -> Any:
    model = JobModel.of(job())
    parsed = parse_plan(plan, model.job)
    return model.doubts(parsed.layouts | {"stage_clock_mhz": parsed.stage_clock_mhz})
