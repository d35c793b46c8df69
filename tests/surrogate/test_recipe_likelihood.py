"""Which recipe class runs look like: by hand, and on runs that a job's own physics made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from jointopt.physics.sensitivities import CONSTANTS
from jointopt.surrogate.measurements import Measurements
from jointopt.surrogate.recipe_likelihood import Resemblance, class_lines, class_words, efficiencies, log_likelihood
from jointopt.surrogate.residual_gp import Runs
from jointopt.workflows.predict import predict

TUNED = "submission or vendor"


def runs(compute: float, elementwise: float, network: float = 0.0, count: int = 3) -> Runs:
    slopes = np.zeros((count, len(CONSTANTS)))
    for name, value in (("compute", compute), ("elementwise", elementwise), ("inter_node", network)):
        slopes[:, CONSTANTS.index(name)] = value
    same = np.full(count, "here||none|0")
    return Runs(slopes, {}, same, same)


def rows(**columns: object) -> pd.DataFrame:
    """Runs of one model on 8 A100, of three micro-batch sizes."""
    same = {
        "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 16384, "num_attention_heads": 32, "seq_length": 2048,
        "gated_mlp": False, "global_batch_size": 64, "gpu": "a100-sxm4-80gb", "gpus_per_node": 8, "num_gpus": 8,
        "tp": 2, "dp": 4, "pp": 1, "dtype": "bf16", "attention": "flash2", "fused_norm": True, "status": "ok",
    }  # fmt: skip
    return pd.DataFrame({"micro_batch_size": [1, 2, 4]}).assign(**same | columns)


def simulated(framework: str, recipe_class: str, times: float = 1.0) -> Measurements:
    """Runs of a framework as a class would have them, in a table that does not state the class."""
    table = rows(framework=framework)
    of_class = predict(table.assign(recipe_class=recipe_class))["predicted_iteration_time_s"]
    return Measurements.of(table.assign(iteration_time_s=times * of_class))


def words_of(measurements: Measurements) -> str:
    (evidence,) = measurements.evidence_by_source().values()
    return class_words(evidence)


def test_classes_of_one_efficiency_are_one() -> None:
    assert efficiencies() == {TUNED: (1.0, 1.0), "community": (1.17, 1.17)}


def test_the_likelihood_of_three_runs_that_are_slower_throughout_by_hand() -> None:
    # kernels have 0.8 of the time: one factor of 0.08 for all, 0.08 of noise for each
    common, noise = 3 * (0.8 * 0.08) ** 2 + 0.08**2, 0.08**2
    right, slow = (log_likelihood(runs(0.6, 0.2), np.full(3, off)) for off in (0.0, 0.157))
    assert right == pytest.approx(-0.5 * np.log(common * noise**2))
    assert right - slow == pytest.approx(0.5 * 3 * 0.157**2 / common)


def test_runs_that_wait_for_the_network_are_weaker_evidence() -> None:
    right, slow = (log_likelihood(runs(0.6, 0.1, network=0.3), np.full(3, off)) for off in (0.0, 0.1))
    common = 3 * ((0.7 * 0.08) ** 2 + (0.3 * 0.48) ** 2) + 0.08**2
    assert right - slow == pytest.approx(0.5 * 3 * 0.1**2 / common)


def test_one_run_far_from_the_others_does_not_decide() -> None:
    far, near = (log_likelihood(runs(0.8, 0.2), np.array([0.0, 0.0, value])) for value in (3.0, 0.24))
    assert far == pytest.approx(near)


def test_the_sentence_has_both_times_and_the_odds_or_states_that_runs_do_not_decide() -> None:
    ratio = {TUNED: 0.97, "community": 0.84}
    likely = Resemblance(3, ratio, {TUNED: -0.1, "community": -1.2})
    assert likely.words() == (
        "3 measured runs take 0.97 times as long as a submission or vendor recipe and 0.84 times as long as a "
        "community recipe: they look like a submission or vendor recipe (3.0 to 1)."
    )
    assert (
        replace(likely, log_likelihood={TUNED: -0.1, "community": -0.7})
        .words()
        .endswith(": they do not tell which it is.")
    )
    assert "(more than 10 to 1)" in replace(likely, log_likelihood={TUNED: -0.1, "community": -9.0}).words()
    assert replace(likely, ratio={TUNED: 1.4, "community": 1.2}).words() == ""


@pytest.mark.parametrize("framework", ["megatron-lm", "nemo", "megatron-deepspeed", "an unheard-of trainer"])
def test_simulated_runs_look_like_the_class_that_made_them(framework: str) -> None:
    for name, looks in (("vendor", TUNED), ("community", "community")):
        assert f"they look like a {looks} recipe" in words_of(simulated(framework, name))


def test_few_runs_and_runs_far_from_every_class_are_passed_over() -> None:
    assert words_of(simulated("nemo", "vendor", times=3.0)) == ""
    assert words_of(simulated("nemo", "vendor").take(np.array([True, True, False]))) == ""


def test_runs_of_several_stated_classes_are_passed_over_and_of_one_are_priced_as_that() -> None:
    runs_of_nemo = simulated("nemo", "vendor")
    stated = [
        runs_of_nemo.table.assign(recipe_class=classes) for classes in (["vendor"] * 2 + ["community"], "community")
    ]
    assert [words_of(Measurements.of(table)) for table in stated] == ["", words_of(runs_of_nemo)]


def test_every_source_of_a_table_is_named_before_what_its_runs_look_like() -> None:
    tables = [simulated(name, "community").table for name in ("nemo", "internevo")]
    lines = class_lines(Measurements.of(pd.concat(tables, ignore_index=True)).evidence_by_source())
    assert [line.partition(":")[0] for line in lines] == [
        f"{name}, a100-sxm4-80gb, 8 GPUs a node" for name in ("internevo", "nemo")
    ]


# Korthikanti et al. 2022, arXiv:2205.05198, table 5: seconds an iteration of NVIDIA's own runs, selective recomputation
SELECTIVE = [  # layers, width, heads, sequences, GPUs, stages, chunks, micro-batch, seconds
    (48, 6144, 64, 4, 8, 1, 1, 4, 1.10), (96, 12288, 96, 64, 64, 8, 3, 1, 13.75),
    (105, 20480, 128, 280, 280, 35, 3, 1, 37.83), (128, 25600, 160, 512, 512, 64, 1, 1, 71.49),
]  # fmt: skip


def test_published_runs_of_the_vendor_look_like_a_vendor_s() -> None:
    names = ["num_layers", "hidden_size", "num_attention_heads", "global_batch_size", "num_gpus", "pp", "vpp"]
    table = pd.DataFrame(SELECTIVE, columns=[*names, "micro_batch_size", "iteration_time_s"])
    table = table.assign(
        gpu="a100-sxm4-80gb", gpus_per_node=8, dtype="fp16", framework="Megatron-LM", vocab_size=51200, gated_mlp=False,
        seq_length=2048, tp=8, dp=1, recompute="selective", sequence_parallel=True, status="ok",
        ffn_hidden_size=4 * table["hidden_size"],
    )  # fmt: skip
    assert f"they look like a {TUNED} recipe" in words_of(Measurements.of(table))
