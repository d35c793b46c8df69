"""The best layouts of a proposal, on the front and behind it, and the rank of one."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.core.errors import PlanError
from jointopt.core.schema import SPLIT_COLUMNS
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.text import PLAN_KEYS
from jointopt.report.plans import Rank
from jointopt.report.results import Proposal
from jointopt.search.exact import lowest_bounds
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.compare import compare
from jointopt.workflows.explain import explain
from jointopt.workflows.feasible_layouts import prepare_search, top_times
from jointopt.workflows.propose import RANKED, propose
from jointopt.workflows.search_steps import Stopwatch

JOB = "llama-3-70b-4x8-h200"
MODEL = JobModel.of(shipped_job(JOB))


@pytest.fixture(scope="module")
def proposal() -> Proposal:
    return propose(MODEL)


def plan_of(entry) -> dict:
    return {name: entry[name] for name in PLAN_KEYS if name in entry}


def test_the_first_layout_is_that_of_the_fastest_plan_and_every_layout_of_the_front_is_there(proposal):
    layouts = proposal.best_layouts
    assert layouts[0].plans[0]["iteration_time_s"] == pytest.approx(proposal.front["iteration_time_s"][0], rel=1e-3)
    assert [layout.rank for layout in layouts] == sorted(layout.rank for layout in layouts)
    assert sum(layout.on_front for layout in layouts) == len(proposal.front["pp"])
    assert any(not layout.on_front for layout in layouts)


def test_each_has_its_fastest_plan_its_knee_and_its_least_energy(proposal):
    assert len(proposal.best_layouts) > 2
    for layout in proposal.best_layouts:
        times, energies = ([plan[name] for plan in layout.plans] for name in ("iteration_time_s", "energy_j"))
        assert 1 <= len(times) <= 3
        assert times == sorted(times)
        assert energies == sorted(energies, reverse=True)


def test_their_figures_are_those_of_explain(proposal):
    assert len(proposal.best_layouts) > 2
    for layout in proposal.best_layouts[:3]:
        for plan in layout.plans:
            found = explain(MODEL, plan_of(plan))
            assert (plan["iteration_time_s"], plan["energy_j"]) == pytest.approx(
                (found.iteration_time_s, found.energy_j)
            )
        first = explain(MODEL, plan_of(layout.plans[0]))
        assert layout.time_s == pytest.approx(dict(first.time_s), rel=1e-3, abs=1e-3 * first.iteration_time_s)


def test_the_rank_of_a_layout_is_its_place_among_all_of_them(proposal):
    ready = prepare_search(MODEL, Stopwatch(quiet=True))
    problem, physics = ready.problem, ready.physics
    times = top_times(problem, physics)(np.arange(problem.num_layouts))
    fastest = proposal.to_dict()["reference"]
    first = explain(MODEL, plan_of(fastest), ranked=True).rank
    later = explain(MODEL, "dp=4 tp=8", ranked=True)
    assert (first.rank, first.of, first.behind) == (1, problem.num_layouts, 0.0)
    assert later.rank.behind == pytest.approx(later.iteration_time_s / fastest["iteration_time_s"] - 1.0)
    assert later.rank.rank == 1 + (times < later.iteration_time_s * (1 - 1e-9)).sum()
    assert f"rank {later.rank.rank} of" in later.text()


def test_the_baseline_is_what_the_others_are_compared_with():
    found = propose(MODEL, baseline="dp=4 tp=8")
    assert found.to_dict()["reference"]["tp"] == 8
    assert "= the baseline, dp=4 tp=8; Δ% is relative to it." in found.text()
    with pytest.raises(PlanError, match="A plan has no key"):
        propose(MODEL, baseline="dp=4 tq=8")


def test_a_script_can_be_the_baseline_of_a_comparison(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun --nproc-per-node 8 --nnodes 4 pretrain_gpt.py --num-layers 80 --hidden-size 8192 "
        "--ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention --num-query-groups 8 "
        "--seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 128 --bf16 --swiglu "
        "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 1 --use-flash-attn\n"
    )
    found = compare(MODEL, ["dp=4 tp=4 pp=2"], baseline=str(script))
    assert [(plan.plan["tp"], plan.plan["pp"]) for plan in found.plans] == [(8, 1), (4, 2)]


def test_near_layouts_are_those_of_the_same_split_within_one_percent_of_its_fastest(proposal) -> None:
    found = prepare_search(MODEL, Stopwatch(quiet=True))
    order, time_s = lowest_bounds(found.problem, RANKED)
    split = [name for name in SPLIT_COLUMNS if name != "etp"]  # of a dense model
    for layout in proposal.best_layouts:
        of_split = np.all([found.physics.layouts[n][order] == layout.plans[0][n] for n in split], 0)
        times = time_s[of_split[: len(time_s)]]
        assert len(times) == 0 or layout.near == (times <= 1.01 * times.min()).sum() - 1


def test_a_layout_that_does_not_fit_is_ranked_by_its_time_and_energy_and_called_infeasible(tight, proposal):
    first = proposal.to_dict()["reference"]
    assert tight.rank.behind == pytest.approx(tight.iteration_time_s / first["iteration_time_s"] - 1.0)
    assert tight.rank.energy_behind == pytest.approx(tight.energy_j / first["energy_j"] - 1.0)
    assert not tight.feasible
    assert "It is not expected to fit in memory (probability 0.02)" in " ".join(tight.text().split())


@pytest.fixture(scope="module")
def tight():
    """A layout that is likely not to fit, explained with its rank."""
    return explain(MODEL, "dp=2 tp=2 pp=4 cp=2 vpp=5 micro_batch_size=1 zero_stage=0 clock_mhz=1980", ranked=True)


@pytest.mark.parametrize(
    ("behind", "energy", "words"),
    [(-0.02, None, "2.0% faster than the first."), (0.0, -0.1, "0.0% slower than the first, at 10.0% less energy.")],
)
def test_a_rank_states_what_is_known_of_the_distance_to_the_first(behind, energy, words):
    assert Rank(7, 9, behind, energy).sentence() == f"Its layout is rank 7 of 9 at the highest clock, {words}"
    assert Rank(1, 9, 0.0).sentence() == "Its layout is rank 1 of 9 at the highest clock."
