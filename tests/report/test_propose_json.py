import json
from collections.abc import Callable

import numpy as np
import pytest

from jointopt.core.schema import Columns
from jointopt.report.alternatives import JointSavings, SavingShare, joint_words
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


def test_the_savings_of_energy_and_of_time_keep_their_names_and_places() -> None:
    energy, time = SavingShare(0.1, 2.0, 0.05, 0.15, 0.9), SavingShare(0.2, 9e3, 0.15, 0.25, 0.8)
    found = JointSavings({"pp": np.empty(0, np.int64), "stage_clock_mhz": np.empty((0, 1))}, energy, time).document()
    assert (found["largest_energy_saving"], found["at_time_s"]) == (0.1, 2.0)
    assert (found["largest_time_saving"], found["at_energy_j"]) == (0.2, 9e3)
    assert (found["largest_energy_saving_low"], found["largest_time_saving_probability"]) == (0.05, 0.8)


def test_the_sentence_on_savings_has_energy_at_a_time_and_time_at_an_energy() -> None:
    energy, time = SavingShare(0.1, 2.0, 0.05, 0.15, 0.9), SavingShare(0.2, 9e3, 0.15, 0.25, 0.8)
    found = JointSavings({"pp": np.empty(0, np.int64), "stage_clock_mhz": np.empty((0, 1))}, energy, time).document()
    words = joint_words(found)
    assert "at most 10.0% less energy in equal time (at 2.000 s" in words
    assert "at most 20.0% less time at equal energy (at 9.000 kJ" in words
