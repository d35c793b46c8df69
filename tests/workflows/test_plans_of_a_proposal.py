"""What Python asks of a proposal and its plans: exports, parts, comparisons, a choice under limits, other sizes."""

from __future__ import annotations

import pytest

import jointopt
from jointopt.core.errors import UsageError
from jointopt.report.results import Proposal
from jointopt.report.tables import Result


@pytest.fixture(scope="module")
def proposal() -> Proposal:
    job = jointopt.job(
        model="opt-350m", gpu="a100-sxm4-40gb", gpus=8, gpus_per_node=4, global_batch_size=256, seq_length=2048,
        framework="megatron-lm", cluster__price_per_kwh=0.2, search={"tp": [1, 2]},
    )  # fmt: skip
    return jointopt.propose(job, surrogate="none")


def test_a_job_takes_any_key_of_its_file(proposal: Proposal) -> None:
    assert (proposal.job.cluster.price_per_kwh, proposal.job.search.tp) == (0.2, (1, 2))
    with pytest.raises(UsageError, match="did you mean"):
        jointopt.job("opt-350m", "a100-sxm4-40gb", 8, global_batch_size=8, seq_length=2048, cluster__prise_per_kwh=1)


def test_a_plan_is_exported_to_its_own_framework(proposal: Proposal) -> None:
    words = proposal[0].export().to_dict()["words"]
    assert words[words.index("--global-batch-size") + 1] == "256"
    assert "deepspeed" in proposal.recommended.export("deepspeed").text()


def test_its_parts_add_up_to_what_the_front_says(proposal: Proposal) -> None:
    found = proposal[1].explain()
    assert found.iteration_time_s == pytest.approx(proposal.front["iteration_time_s"][1])
    assert sum(found.time_s.values()) == pytest.approx(found.iteration_time_s)


def test_plans_are_compared_with_others_and_with_words(proposal: Proposal) -> None:
    found = proposal[0].compare(proposal[1], "tp=2").to_dict()["plans"]
    assert [one["plan"]["tp"] for one in found][2] == 2


def test_a_deadline_chooses_the_leanest_plan_within_it(proposal: Proposal) -> None:
    deadline = float(proposal.front["iteration_time_s"][2])
    assert proposal.select(deadline=deadline).row == 2
    assert proposal.select().objective == "knee"


def test_what_is_no_number_or_place_is_refused(proposal: Proposal) -> None:
    with pytest.raises(UsageError, match=r"max_iteration_time_s must be a number above 0, .*; got 'x'"):
        proposal.select(deadline="x")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"taken by its number, 0 to .*; got 'x'"):
        proposal["x"]  # type: ignore[call-overload]
    with pytest.raises(UsageError, match=r"/nowhere/x\.html: .*; expected a folder that exists"):
        proposal.report().write("/nowhere/x.html")


def test_one_job_is_scaled_to_several_sizes(proposal: Proposal) -> None:
    found = jointopt.scale(proposal.job, gpus=[4, 8], surrogate="none").to_dict()["sizes"]
    assert [size["num_gpus"] for size in found] == [4, 8]
    with pytest.raises(UsageError, match="sizes of one job"):
        jointopt.scale([proposal.job], gpus=[4])


def test_a_slice_of_a_proposal_is_its_plans(proposal: Proposal) -> None:
    assert [plan.row for plan in proposal[:3]] == [0, 1, 2]
    assert proposal[-2:][1].plan == proposal[len(proposal) - 1].plan


def test_what_a_prompt_shows_is_short(proposal: Proposal) -> None:
    job, first, scaled = proposal.job, proposal[0], jointopt.scale(proposal.job, gpus=[8], surrogate="none")
    parts = [job.model, job.training, job.training.framework, job.cluster, job.cluster.gpu, job.search]
    answers = [proposal, proposal.decision, proposal.joint, *proposal.best_layouts, first.explain(), proposal.select()]
    others = [first.compare("tp=2"), first.export(), scaled, *scaled.sizes, proposal.report(), jointopt.check(job)]
    for found in (*parts, *answers, *others, job, first, jointopt.optuna_objective(job, "physics"), proposal.model):
        assert (len(repr(found)) <= 2000, repr(found).count("\n") < 30) == (True, True), type(found)


def test_no_result_has_the_long_repr_of_its_fields() -> None:
    for kind in kinds_of_results():
        assert kind.__repr__ in (Result.__repr__, Proposal.__repr__), kind


def kinds_of_results(kind: type[Result] = Result) -> list[type[Result]]:
    return [one for sub in kind.__subclasses__() for one in (sub, *kinds_of_results(sub))]


def test_a_notebook_shows_a_decision_in_few_bytes(proposal: Proposal) -> None:
    assert len(proposal._repr_html_()) <= 20_000
