"""Memory: Korthikanti's activation formulas, the bytes of ZeRO, limits, and counts against the models' own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from jointopt.core.schema import Columns, Floats
from jointopt.core.units import GB
from jointopt.jobs.catalog.models import load_model, model_names
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import Job, Training
from jointopt.jobs.model import Model
from jointopt.physics import memory as mem
from jointopt.physics.cost_model import CostModel
from jointopt.physics.layouts import LayoutArrays
from jointopt.physics.memory import memory_parts, peak_memory_bytes, stage_parameters
from tests.each import each

S, B, H, A = 2048, 4, 6144, 64
UNFUSED = Training(S, 64, "fp16", "unfused")
HALF = Framework(gradient_bytes=2)
ON, OFF = np.array(True), np.array(False)


def kept(model: Model, tp: float, sp: np.ndarray, training: Training = UNFUSED) -> float:
    return float(mem.dense_layer_activations(model, training, np.array(float(S * B)), np.array(tp), sp))


@pytest.mark.parametrize("t", [1, 2, 8])
def test_a_gpt_layer_keeps_the_bytes_of_korthikanti_equation_2(t: int, gpt_model: Callable[..., Model]) -> None:
    # arXiv:2205.05198: s·b·h·(10 + 24/t + 5·a·s/(h·t))
    expected = S * B * H * (10 + 24 / t + 5 * A * S / (H * t))
    assert kept(gpt_model(hidden=H, heads=A), t, OFF) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("t", [1, 2, 8])
def test_under_sequence_parallelism_it_keeps_equation_4(t: int, gpt_model: Callable[..., Model]) -> None:
    expected = S * B * H / t * (34 + 5 * A * S / H)
    assert kept(gpt_model(hidden=H, heads=A), t, ON) == pytest.approx(expected, rel=1e-12)


def test_gpt3_selective_recompute_saves_70_percent_of_the_activations(gpt_model: Callable[..., Model]) -> None:
    # arXiv:2205.05198, section 5: 5as/h is 80 for GPT-3, "70 % for GPT-3"
    model = gpt_model(hidden=12288, heads=96)
    whole = kept(model, 8, ON)
    scores = float(S * B * mem.score_bytes(model, UNFUSED, np.array(8.0)))
    assert scores / whole == pytest.approx(0.70, abs=0.005)


@pytest.mark.parametrize(("sp", "share"), [(OFF, 1), (ON, 8)])
def test_full_recompute_keeps_the_layer_input(sp: np.ndarray, share: int, gpt_model: Callable[..., Model]) -> None:
    found = mem.layer_input_bytes(gpt_model(hidden=H), UNFUSED, np.array(float(S * B)), np.array(8.0), sp)
    assert float(found) == 2 * S * B * H / share


def test_a_flash_kernel_keeps_four_bytes_per_head_whatever_the_sequence(gpt_model: Callable[..., Model]) -> None:
    model = gpt_model(hidden=H, heads=A)
    for length in (2048, 65536):
        training = Training(length, 64, "bf16", "flash2")
        assert float(mem.score_bytes(model, training, np.array(1.0))) == 4 * A


@pytest.mark.parametrize(
    ("dtype", "dropped", "per_score"), [("fp16", True, 2 + 1 + 2), ("fp32", True, 4 + 1 + 4), ("fp32", False, 4)]
)
def test_unfused_scores_keep_softmax_mask_and_what_is_left_of_them(
    dtype: str, dropped: bool, per_score: int, gpt_model: Callable[..., Model]
) -> None:
    # OPT drops out hidden values, but no scores: their softmax alone is kept, in fp32
    model = replace(gpt_model(hidden=H, heads=A), score_dropout=dropped)
    assert model.dropout
    training = Training(S, 64, dtype, "unfused")
    assert float(mem.score_bytes(model, training, np.array(2.0))) == per_score * A / 2 * S


def test_many_layouts_at_once_equal_each_alone(gpt_model: Callable[..., Model]) -> None:
    tokens, tp, sp = np.array([2048.0, 4096.0]), np.array([2.0, 4.0]), np.array([True, False])
    model = gpt_model()
    together = mem.dense_layer_activations(model, UNFUSED, tokens, tp, sp)
    alone = [float(mem.dense_layer_activations(model, UNFUSED, *row)) for row in zip(tokens, tp, sp, strict=True)]
    assert together.tolist() == alone


@pytest.mark.parametrize(("stage", "gbytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_stages_hold_the_bytes_of_rajbhandari_figure_1(stage: int, gbytes: float) -> None:
    # arXiv:1910.02054: 7.5 billion parameters on 64 GPUs
    params = mem.Parameters(np.array(7.5e9), np.array(0.0))
    state = mem.state_bytes(params, np.array(stage), np.array(64.0), np.array(64.0), Training(1, 1, framework=HALF))
    total = float(state["weights"] + state["gradients"] + state["optimizer"])
    assert total / GB == pytest.approx(gbytes, abs=0.051)


def test_an_fp32_run_keeps_16_bytes_per_parameter_too() -> None:
    params, one = mem.Parameters(np.array(1.0), np.array(0.0)), np.array(1.0)
    state = mem.state_bytes(params, np.array(0), one, one, Training(1, 1, "fp32"))
    assert [float(x) for x in (state["weights"], state["gradients"], state["optimizer"])] == [4.0, 4.0, 8.0]


def test_experts_are_sharded_over_fewer_ranks_than_dense_parameters() -> None:
    params, zero = mem.Parameters(np.array(0.0), np.array(64.0)), np.array(1)
    state = mem.state_bytes(params, zero, np.array(64.0), np.array(8.0), Training(1, 1))
    assert float(state["optimizer"]) == 12 * 64 / 8


@each("name", [n for n in model_names() if not load_model(n).embedding_size])
def test_the_ranks_of_a_layout_hold_the_parameters_of_the_model(
    name: str, make_job: Callable[..., Job], layouts_of: Callable[..., Columns]
) -> None:
    model = replace(load_model(name), mtp_num_layers=0)
    job, layouts = make_job(model=model), layouts_of()
    held = stage_parameters(job, LayoutArrays(job, layouts))
    assert float(held.dense.sum() + held.expert.sum()) == pytest.approx(model.parameters, rel=0.001)


def test_a_tied_head_is_a_second_copy_on_the_last_stage(
    make_job: Callable[..., Job], layouts_of: Callable[..., Columns], gpt_model: Callable[..., Model]
) -> None:
    model = gpt_model(tied_embeddings=True)
    job = make_job(model=model)

    def held(pp: int) -> float:
        layouts = layouts_of(pp=pp)
        return float(stage_parameters(job, LayoutArrays(job, layouts)).dense.sum())

    assert held(2) - held(1) == model.vocab_size * model.hidden_size


def parts(job: Job, layouts: Columns) -> dict[str, Floats]:
    return {name: values.max(axis=1) for name, values in memory_parts(job, layouts).items()}


def test_each_zero_stage_needs_less_memory_than_the_one_before(
    make_job: Callable[..., Job], layouts_of: Callable[..., Columns], catalogue_model: Callable[[str], Model]
) -> None:
    job = make_job(64, catalogue_model("llama-3-8b"), framework="fsdp")
    needed = peak_memory_bytes(job, layouts_of(dp=64, zero_stage=[0, 1, 2, 3]))
    assert (np.diff(needed) < 0).all()


def test_recompute_frees_memory_and_full_more_than_selective(
    make_job: Callable[..., Job], layouts_of: Callable[..., Columns], gpt_model: Callable[..., Model]
) -> None:
    job = make_job(model=gpt_model(48, 6144, 64), attention="unfused")
    needed = peak_memory_bytes(job, layouts_of(tp=8, micro_batch_size=4, recompute=[0, 1, 2]))
    assert (np.diff(needed) < 0).all()


def test_with_one_micro_batch_every_stage_keeps_one_and_with_many_the_first_keeps_pp(
    make_job: Callable[..., Job], layouts_of: Callable[..., Columns], gpt_model: Callable[..., Model]
) -> None:
    few, many = (make_job(model=gpt_model(8), global_batch_size=n) for n in (1, 64))
    layouts = layouts_of(pp=8)
    ratio = parts(many, layouts)["activations"] / parts(few, layouts)["activations"]
    assert ratio.tolist() == pytest.approx([8.0])


def test_context_parallelism_divides_the_activations(
    make_job: Callable[..., Job], layouts_of: Callable[..., Columns]
) -> None:
    kept_bytes = parts(make_job(), layouts_of(cp=[1, 2, 8]))["activations"]
    assert kept_bytes / kept_bytes[0] == pytest.approx([1, 1 / 2, 1 / 8])


def test_logits_of_fp32_training_take_twice_the_bytes_of_16_bit(
    make_job: Callable[..., Job], price: Callable[..., CostModel], gpt_model: Callable[..., Model]
) -> None:
    # a wide vocabulary on one narrow layer, so that the layer at work leaves nothing else of them
    model = replace(gpt_model(layers=1, hidden=64, heads=1), vocab_size=128_000)
    jobs = (make_job(1, model, dtype=dtype, attention="flash2") for dtype in ("bf16", "fp32"))
    narrow, wide = (float(memory_parts(p.job, p.layouts)["logits"].max()) for p in map(price, jobs))
    assert wide == pytest.approx(2.0 * narrow, rel=0.01)


def test_logits_are_split_over_tp_only_where_the_framework_does(gpt_model: Callable[..., Model]) -> None:
    model = gpt_model(vocab=50304)
    split, whole = (mem.logits_bytes(model, np.array(2048.0), np.array(8.0), 6.0, tp) for tp in (True, False))
    assert float(whole) == 6.0 * 2048 * 50304 == pytest.approx(8 * float(split))


@pytest.mark.parametrize(("recompute", "sp"), [(2, False), (1, True)])
def test_gpt_22b_keeps_the_activations_of_korthikanti_equations_5_and_6(
    recompute: int, sp: bool, make_job: Callable[..., Job], layouts_of: Callable[..., Columns],
    gpt_model: Callable[..., Model],
) -> None:  # fmt: skip
    """2sbh a layer under full recompute, 34sbh/t under selective with SP, beside one layer's working set."""
    model = gpt_model(48, H, A)
    job = make_job(model=model, attention="unfused", dtype="fp16", global_batch_size=4)
    layouts = layouts_of(tp=8, micro_batch_size=4, recompute=recompute, sequence_parallel=sp)
    found = mem.batch_bytes(job, LayoutArrays(job, layouts))
    formula = 48 * S * B * H * (2 if recompute == 2 else 34 / 8)
    assert float(found[0, 0]) == pytest.approx(formula, rel=1e-9)


@pytest.mark.parametrize("graph", ["", "transformer_engine"])
@pytest.mark.parametrize("index", [1, 3, 4, 5])
def test_the_few_ranks_that_are_looked_at_hold_what_the_heaviest_of_all_holds(
    index: int, graph: str, shipped_physics: Callable[[int], CostModel]
) -> None:
    job, layouts = shipped_physics(index).job, shipped_physics(index).layouts
    job = replace(job, training=replace(job.training, cuda_graph=graph))
    needed = peak_memory_bytes(job, layouts)
    for depth in np.unique(layouts["pp"]):
        at = layouts["pp"] == depth
        every = memory_parts(job, {name: values[at] for name, values in layouts.items()})
        np.testing.assert_allclose(needed[at], np.sum(list(every.values()), axis=0).max(axis=1), rtol=1e-12)
