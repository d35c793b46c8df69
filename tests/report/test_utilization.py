"""How busy a plan keeps GPUs and links, in the words of ``explain`` and in its document."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from jointopt.jobs.jobfile import load_job, shipped_job
from jointopt.report.results import Explanation
from jointopt.workflows.explain import explain

PLAN = "tp=4 pp=4 dp=2 micro_batch_size=1"
Explanations = Callable[..., Explanation]


def words_of(found: Explanation) -> str:
    return " ".join(found.text().split())


def test_explain_shows_how_busy_gpus_and_links_are() -> None:
    found = explain(shipped_job("llama-3-70b-4x8-h200"), PLAN, surrogate="none")
    used = dict(found.document()["utilization"])
    assert set(used) == {"kernels", "occupied", "intra_node", "inter_node"}
    assert 0.0 < used["inter_node"] < used["kernels"] < used["occupied"] <= 1.0
    assert f"Kernels run {used['kernels']:.0%} of the time" in " ".join(found.text().split())


def test_links_that_a_cluster_does_not_have_are_not_mentioned(make_explanation: Explanations) -> None:
    used = {"kernels": 0.5, "occupied": 0.75, "intra_node": 0.125, "inter_node": 0.0}
    text = words_of(make_explanation(job=shipped_job("llama-3-8b-1x8-h100"), utilization=used))
    assert "A GPU uses 12.5% of its bandwidth within nodes. " in text
    assert "Kernels run" not in words_of(make_explanation())


def test_sentences_of_large_and_of_steady_plans_have_no_exponent_and_no_range_of_equal_ends(
    make_explanation: Explanations,
) -> None:
    swing = {"window_s": 1.0, "gpu_peak_w": 322.1, "gpu_trough_w": 321.9, "cluster_peak_kw": 59388.2}
    sent = {"parallelism": "dp", "kind": "all_reduce", "share": 0.8, "link": "intra_node"}
    messages = tuple(sent | {"size_bytes": size} for size in (12.75e9, 221184.0))
    text = words_of(make_explanation(messages=messages, power_swing=swing | {"cluster_trough_kw": 15282.0}))
    assert "draws 322 W, all GPUs 15,282 to 59,388 kW." in text
    assert "(all_reduce, 12.8 GB), dp 80% within nodes (all_reduce, 221 kB)." in text


def test_energy_by_level_of_a_gpu_of_unknown_power_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(json.dumps({
        "model": "opt-350m", "training": {"seq_length": 128, "global_batch_size": 8, "dtype": "fp32"},
        "cluster": {"gpu": "cpu-core", "nodes": 1, "gpus_per_node": 4},
    }))  # fmt: skip
    found = explain(load_job(str(tmp_path / "job.yaml")), "tp=2 pp=2 micro_batch_size=1", surrogate="none").document()
    assert found["energy_by_level_j"] == found["power_swing"] == found["power_excursion"] == {}


def test_power_above_the_limit_lasts_milliseconds_and_is_counted_from_the_limit(make_explanation: Explanations) -> None:
    above = {"peak_w": 800.0, "limit_w": 700.0, "lasts_s": 0.025, "share": 0.1}
    words = "For up to 25 ms after a pause a GPU draws up to 800 W, 100 above its limit."
    assert words in words_of(make_explanation(power_excursion=above))
    assert "after a pause" not in words_of(make_explanation(power_excursion=above | {"lasts_s": 0.0}))
