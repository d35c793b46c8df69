"""How busy a plan keeps GPUs and links, in the words of ``explain`` and in its document."""

from __future__ import annotations

from jointopt.report.explanation import utilization_words
from jointopt.spec.jobfile import shipped_job
from jointopt.workflows.explain import explain

PLAN = "tp=4 pp=4 dp=2 micro_batch_size=1"


def test_explain_says_how_busy_gpus_and_links_are() -> None:
    found = explain(shipped_job("llama-3-70b-4x8-h200"), PLAN, surrogate="none")
    used = dict(found.document()["utilization"])
    assert set(used) == {"kernels", "occupied", "intra_node", "inter_node"}
    assert 0.0 < used["inter_node"] < used["kernels"] < used["occupied"] <= 1.0
    assert f"Kernels run {used['kernels']:.0%} of the time" in " ".join(found.text().split())


def test_links_that_a_cluster_does_not_have_are_not_spoken_of() -> None:
    cluster = shipped_job("llama-3-8b-1x8-h100").cluster
    used = {"kernels": 0.5, "occupied": 0.75, "intra_node": 0.125, "inter_node": 0.0}
    assert utilization_words(cluster, used).endswith("Of a GPU's links 12.5% within nodes is in use.")
    assert utilization_words(cluster, {}) == ""
