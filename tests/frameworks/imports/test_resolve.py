"""Statements of files and options, put together to one job and plan."""

from __future__ import annotations

from typing import Any

import pytest

from jointopt.core.errors import JobError
from jointopt.frameworks.import_files import ImportedRun, resolve_run
from jointopt.frameworks.model_names import catalogue_name, models_of_shape
from jointopt.frameworks.options import FileSettings
from jointopt.jobs.catalog.models import load_model

GPU = "h100-sxm5-80gb"
SIZES = {"nodes": 2, "gpus_per_node": 8}
BATCH = {"seq_length": 4096, "global_batch_size": 64}


def run(given: dict[str, Any] | None = None, *more: FileSettings, **parts: Any) -> ImportedRun:
    """A run of Llama 3 8B on 2 x 8 H100, but for these parts of its file."""
    usual: dict[str, Any] = {
        "model": {"catalogue": "llama-3-8b"}, "training": BATCH, "cluster": SIZES,
        "plan": {"tp": 2, "micro_batch_size": 1},
    }  # fmt: skip
    parts = {name: dict(value) if isinstance(value, dict) else value for name, value in (usual | parts).items()}
    parts["plan"] = {"zero_stage": 0, "recompute": "none"} | parts["plan"]
    parts["training"] = {"dtype": "bf16"} | parts["training"]
    return resolve_run([FileSettings("words", source="a.sh", **parts), *more], "x", {"gpu": GPU} | (given or {}))


SIZED: list[tuple[dict[str, Any], dict[str, Any], tuple[int, ...]]] = [  # parts, options; nodes x GPUs, dp
    ({}, {}, (2, 8, 8)),
    ({"cluster": {"num_gpus": 16}}, {}, (2, 8, 8)),
    ({"cluster": {"num_gpus": 16}}, {"gpus_per_node": 4}, (4, 4, 8)),
    ({"cluster": {}, "plan": {"dp": 4, "tp": 2, "micro_batch_size": 1}}, {"gpus_per_node": 4}, (2, 4, 4)),
    ({"cluster": {"num_gpus": 16, "nodes": 2}}, {"gpus_per_node": 4}, (2, 4, 4)),  # an option counts more than the file
    ({"cluster": {"num_gpus": 4}}, {}, (1, 4, 2)),
    ({"cluster": {"num_gpus": 16, "nodes": 4}}, {}, (4, 4, 8)),
    ({"cluster": {"gpus_per_node": 4}}, {}, (1, 4, 2)),
    ({"cluster": {"nodes": 4}}, {}, (4, 8, 16)),
    ({"cluster": {}, "plan": {"dp": 8, "tp": 2, "micro_batch_size": 1}}, {}, (2, 8, 8)),
    ({"plan": {"dp": 8, "tp": 2, "micro_batch_size": 1}}, {"nodes": 4}, (4, 8, 16)),
    ({"plan": {"tp": 2, "pp": 2, "cp": 4, "micro_batch_size": 1}}, {}, (2, 8, 1)),
]


@pytest.mark.parametrize(("parts", "given", "sizes"), SIZED)
def test_nodes_gpus_and_dp_follow_from_what_is_stated(
    parts: dict[str, Any], given: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    found = run(given, **parts)
    assert (found.job.cluster.nodes, found.job.cluster.gpus_per_node, found.plan["dp"]) == sizes


BATCHES: list[tuple[dict[str, Any], int | None, dict[str, Any], tuple[int, int, int]]] = [
    # training, accumulation, plan; batch, micro-batch, remarks; dp is 8
    (BATCH, None, {"micro_batch_size": 4}, (64, 4, 0)), ({"seq_length": 1}, None, {"micro_batch_size": 4}, (32, 4, 0)),
    ({"seq_length": 1}, 2, {"micro_batch_size": 4}, (64, 4, 0)),
    (BATCH, 4, {}, (64, 2, 0)), (BATCH, 16, {}, (64, 1, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("training", "accumulation", "plan", "expected"), BATCHES)
def test_batch_and_micro_batch_follow_from_each_other(
    training: dict[str, Any], accumulation: int | None, plan: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    found = run(training=training, accumulation=accumulation, plan=plan | {"tp": 2}, framework="megatron-lm")
    batch, micro_batch = found.job.training.global_batch_size, found.plan["micro_batch_size"]
    assert (batch, micro_batch, len(found.remarks)) == expected


CONTRADICTIONS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"plan": {"tp": 3, "micro_batch_size": 1}},
        {},
        "tp, pp and cp of the plan take 3 GPUs, which do not divide the 16 of the run",
    ),
    (
        {"plan": {"tp": 2, "dp": 4, "micro_batch_size": 1}},
        {},
        r"The plan's degrees make 8 GPUs; the run has 16 \(--nodes\)",
    ),
    ({"cluster": {"num_gpus": 12}}, {}, r"The run has 12 GPUs, which are no 2 nodes of 8; give --nodes and"),
    ({"cluster": {"num_gpus": 12, "nodes": 5}}, {}, r"The run has 12 GPUs, which are no 5 nodes of 2; give --nodes"),
    ({"cluster": {}}, {}, r"a\.sh does not state the number of nodes \(--nodes\); give it"),
    ({"cluster": {}}, {"gpus_per_node": 8}, r"a\.sh does not state the number of nodes \(--nodes\); give it"),
    (
        {"cluster": {}, "model": {}},
        {"gpu": None},
        r"state the GPU \(--gpu\), the number of nodes \(--nodes\) and the model \(--model\); give them",
    ),
    (
        {"training": {}, "plan": {}},
        {},
        r"the sequence length \(--seq-length\), the batch \(--global-batch-size\) and plan\.mi",
    ),
]


@pytest.mark.parametrize(("parts", "given", "words"), CONTRADICTIONS)
def test_what_is_missing_or_contradicts_is_named(parts: dict[str, Any], given: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        run(given, **parts)


def test_a_log_counts_before_a_script_and_what_counts_less_is_remarked_on() -> None:
    other = FileSettings("x", "nemo", training={"seq_length": 8192, "dtype": "fp8"}, source="b.log", log="x",
                         accumulation=2, remarks=("cut off",), names=("a.sh", "c.yaml", "d.yaml"))  # fmt: skip
    found = run({}, other)
    assert (found.job.training.seq_length, found.job.training.dtype) == (8192, "fp8")
    assert found.job.training.framework.name == "nemo"
    assert found.remarks == (
        "a.sh states dtype bf16, the run has fp8 (b.log)", "a.sh states seq_length 4096, the run has 8192 (b.log)",
        "b.log: cut off",
        "b.log reads c.yaml, d.yaml, which may be given too",
    )  # fmt: skip


def test_an_option_counts_more_than_a_file() -> None:
    found = run({"model": "mistral-7b", "seq_length": 2048, "framework": "nemo", "inter_node_gbytes_per_s": 25.0})
    assert (found.job.model.name, found.job.training.seq_length) == ("mistral-7b", 2048)
    assert (found.job.training.framework.name, found.job.cluster.inter_node_gbytes_per_s) == ("nemo", 25.0)


def shape_of(name: str, **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in vars(load_model(name)).items() if key not in ("name", "config")} | changes


def test_a_shape_of_the_catalogue_goes_by_its_name_and_another_is_written_out() -> None:
    assert run(model=shape_of("llama-3-8b")).job.model.name == "llama-3-8b"
    assert run(model=shape_of("llama-3-8b", vocab_size=128257)).job.model.name == "llama-3-8b"
    own = run(model=shape_of("llama-3-8b", num_layers=30)).job.model
    assert (own.num_layers, own.num_experts, own.name != "llama-3-8b") == (30, 0, True)
    dropped = run(model=shape_of("llama-3-8b", dropout=True)).job.model
    assert (dropped.name, dropped.dropout, dropped.num_layers) == ("llama-3-8b-dropout", True, 32)
    assert run(model=shape_of("gpt2", dropout=False)).job.model.name == "gpt2-no-dropout"


def test_without_a_vocabulary_the_only_model_of_that_shape_is_taken_else_the_vocabulary_is_required() -> None:
    found = run(model=shape_of("llama-3-405b", vocab_size=None), plan={"tp": 8, "micro_batch_size": 1})
    assert found.job.model.name == "llama-3-405b"
    assert "the vocabulary is not stated; that of llama-3-405b, whose shape it is, is taken" in found.remarks
    with pytest.raises(JobError, match=r"the vocabulary \(--vocab-size, or --model llama-2-70b or llama-3-70b\)"):
        run(model=shape_of("llama-3-70b", vocab_size=None))
    assert run({"vocab_size": 128256}, model=shape_of("llama-3-70b", vocab_size=None)).job.model.name == "llama-3-70b"


@pytest.mark.parametrize(("vocabulary", "known"), [(128256, True), (128255, True), (128257, True), (129024, True),
                                                   (131072, True), (128300, False), (128254, False)])  # fmt: skip
def test_a_vocabulary_may_be_padded_or_one_token_more(vocabulary: int, known: bool) -> None:
    # 129,024 is the next multiple of 512, 131,072 of 4,096
    found = models_of_shape(shape_of("llama-3-8b", vocab_size=vocabulary))
    assert [model.name for model in found] == (["llama-3-8b"] if known else [])


@pytest.mark.parametrize(("text", "name"), [("Llama-3_8B", "llama-3-8b"), ("own/Mixtral-8x7B", "mixtral-8x7b"),
                                            ("/models/meta/llama3-8b", "llama-3-8b"),
                                            ("llama-3-9b", ""), ("", "")])  # fmt: skip
def test_a_model_goes_by_other_spellings(text: str, name: str) -> None:
    assert catalogue_name(text) == name


OF_NO_LAYER = [  # a model, what a script may state as it likes, and whether the shape is still the model's
    ("mixtral-8x7b", {"ffn_hidden_size": 1}, True),  # no layer has a dense MLP
    ("deepseek-v2-lite", {"ffn_hidden_size": 1}, False),  # one has
    ("llama-3-8b", {"ffn_hidden_size": 1}, False),
    ("deepseek-v2-lite", {"head_dim": 64}, True),  # latent attention has widths of its own
    ("llama-3-8b", {"head_dim": 64}, False),
    ("llama-3-8b", {"max_position_embeddings": 8192}, True),
    ("gpt2", {"max_position_embeddings": 512}, False),
    ("mixtral-8x7b", {"num_experts": 4}, False),
]


@pytest.mark.parametrize(("name", "changes", "known"), OF_NO_LAYER)
def test_of_a_shape_only_what_the_model_uses_must_agree(name: str, changes: dict[str, Any], known: bool) -> None:
    assert (name in [model.name for model in models_of_shape(shape_of(name, **changes))]) is known


def test_positions_that_are_learned_may_be_left_out_of_a_shape() -> None:
    shape = shape_of("gpt2", head_dim=None)
    del shape["max_position_embeddings"], shape["head_dim"]
    assert [model.name for model in models_of_shape(shape)] == ["gpt2"]


@pytest.mark.parametrize("of", [{"log": "x"}, {"process": 7}], ids=["log", "process"])
def test_what_runs_counts_and_what_a_script_says_otherwise_is_named_by_its_line(of: dict[str, Any]) -> None:
    runs = FileSettings("words", source="the run", cluster={"num_gpus": 32}, plan={"tp": 4, "pp": 1}, **of)
    found = run({}, runs, origins={"plan.tp": "a.sh:3", "cluster.nodes": "a.sh:2"})
    assert (found.plan["tp"], found.job.cluster.nodes, found.origins["plan.tp"]) == (4, 4, "the run")
    assert found.remarks == (
        "a.sh:3 states tp 2, the run has 4 (the run)", "a.sh:2 states 2 nodes of 8 GPUs, the run has 32 GPUs",
    )  # fmt: skip


def test_a_vocabulary_that_the_run_has_padded_is_no_other_one() -> None:
    padded = FileSettings("words", source="run.log", log="x", model={"vocab_size": 50304})
    assert run({"model": "gpt2"}, padded, model={"vocab_size": 50257}).remarks == ()
    other = run({"model": "gpt2"}, padded, model={"vocab_size": 32000})
    assert other.remarks == ("a.sh states vocab_size 32000, the run has 50304 (run.log)",)
