import json
from collections.abc import Callable

import pytest

from jointopt.core.schema import Columns
from jointopt.report.results import Proposal
from jointopt.report.tables import json_text


def test_the_document_has_the_keys_that_others_rely_on(make_proposal: Callable[..., Proposal]) -> None:
    document = json.loads(json_text(make_proposal(3).to_dict()))
    assert document.keys() >= {"job", "seed", "surrogate", "space", "front", "seconds"}
    assert document["space"].keys() >= {"layouts", "feasible_layouts", "infeasible"}
    assert document["space"]["infeasible"]["does not fit in the GPU's memory"] == 30
    assert (document["job"], document["seed"], len(document["front"])) == ("tiny", 0, 3)


def test_the_front_keeps_every_digit_and_its_order(make_proposal: Callable[..., Proposal]) -> None:
    proposal = make_proposal(4)
    times = [entry["iteration_time_s"] for entry in json.loads(json_text(proposal.to_dict()))["front"]]
    assert times == proposal.front["iteration_time_s"].tolist() == sorted(times)


def test_every_plan_has_its_throughput(make_proposal: Callable[..., Proposal]) -> None:
    proposal = make_proposal(2)
    rates = {"tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "tokens_per_j"}
    for entry in (*proposal.to_dict()["front"], proposal.to_dict()["reference"]):
        assert rates <= entry.keys()
        tokens = proposal.job.training.global_batch_size * proposal.job.training.seq_length
        assert entry["tokens_per_j"] * entry["energy_j"] == pytest.approx(tokens)
    assert set(proposal.to_frame()) >= rates


def test_a_missing_reference_is_null(
    make_proposal: Callable[..., Proposal], make_front: Callable[..., Columns]
) -> None:
    assert make_proposal(reference=make_front(0)).to_dict()["reference"] is None
    assert make_proposal().to_dict()["reference"]["dp"] == 4
