"""Tables of recorded runs: usual values stand in for blanks, nonsense is a sentence, a bad row stops no others."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jointopt
from jointopt.core.errors import JointOptError, TableError
from jointopt.jobs.catalog.frameworks import framework_names
from jointopt.jobs.catalog.gpus import gpu_ids, load_gpu
from jointopt.jobs.catalog.models import load_model
from jointopt.runs.workloads import workloads
from jointopt.surrogate.intervals import physics_errors

RUN: dict[str, Any] = {
    "group": "g", "model": "m", "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 11008,
    "num_attention_heads": 32, "num_query_groups": 32, "gated_mlp": True, "vocab_size": 32000, "seq_length": 2048,
    "global_batch_size": 128, "dtype": "bf16", "attention": "flash2", "fused_norm": True, "framework": "nemo",
    "gpu": "a100-sxm4-80gb", "gpus_per_node": 8, "num_gpus": 16, "dp": 4, "tp": 2, "pp": 2, "cp": 1, "ep": 1, "vpp": 1,
    "micro_batch_size": 1, "sequence_parallel": True, "recompute": "none", "zero_stage": 1, "status": "ok",
}  # fmt: skip
PREDICTED = [f"predicted_{n}" for n in ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib")]


def table(*changes: dict[str, Any], without: tuple[str, ...] = ()) -> pd.DataFrame:
    """One row per change of `RUN`, minus columns."""
    return pd.DataFrame([RUN | change for change in changes or ({},)]).drop(columns=list(without))


def predict(*changes: dict[str, Any], without: tuple[str, ...] = ()) -> pd.DataFrame:
    return jointopt.predict(table(*changes, without=without), surrogate="none")


def time_s(**change: Any) -> float:
    return float(predict(change).predicted_iteration_time_s[0])


def test_a_complete_row_assumes_nothing() -> None:
    found = predict()
    assert found.assumed.tolist() == [""]
    assert found.not_predicted.tolist() == [""]
    assert np.isfinite(found[PREDICTED]).all(axis=None)


DEFAULTED = (
    "vpp", "zero_stage", "recompute", "micro_batch_size", "sequence_parallel", "attention", "dtype", "framework",
    "vocab_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "gated_mlp", "gpus_per_node",
    "fused_norm",
)  # fmt: skip


def test_a_blank_cell_is_defaulted_and_named() -> None:
    found = predict(*({column: None} for column in DEFAULTED))
    assert found.assumed.tolist() == [*DEFAULTED]
    assert (found.predicted_iteration_time_s > 0).all()


def test_absent_columns_are_defaulted_and_named() -> None:
    found = predict(without=DEFAULTED)
    assert {*found.assumed[0].split()} == {*DEFAULTED}
    assert found.predicted_iteration_time_s[0] > 0


def test_one_unknown_degree_is_what_the_others_leave() -> None:
    for column in ("dp", "tp", "pp", "cp"):
        found = predict({column: None})
        assert (found.assumed[0], found.predicted_energy_j[0]) == ("", predict().predicted_energy_j[0])


def test_rows_of_several_jobs_in_turn_mean_the_plans_that_rows_of_each_job_mean_alone() -> None:
    plans = [{"pp": 2}, {"recompute": "full"}, {"pp": 2}, {"stage_clock_mhz": (1400.0,)}]
    many = table(*({**plan, "seq_length": length} for plan in plans for length in (1024, 2048)))
    found = workloads(many)[0]
    assert [work.rows.tolist() for work in found] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    for work in found:
        (alone,) = workloads(many.iloc[work.rows])[0]
        assert (work.job, work.assumed.tolist()) == (alone.job, alone.assumed.tolist())
        np.testing.assert_array_equal(work.stage_clock_mhz, alone.stage_clock_mhz)
        for name, values in work.plans.items():
            np.testing.assert_array_equal(values, alone.plans[name], err_msg=name)


def test_several_unknown_degrees_are_data_parallel() -> None:
    found = predict({"dp": None, "tp": None, "pp": None, "cp": None})
    assert found.assumed[0].split() == ["cp", "pp", "tp"]
    assert found.predicted_energy_j[0] == predict({"dp": 16, "tp": 1, "pp": 1}).predicted_energy_j[0]


def test_a_blank_degree_of_expert_parallelism_is_assumed_for_experts_only() -> None:
    moe = {"num_experts": 8, "moe_router_topk": 2, "ep": None}
    assert predict(moe, {"ep": None}).assumed.tolist() == ["ep etp", ""]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tp": "abc"}, "Row 2 of the table: tp .* got 'abc'"),
        ({"tp": 0}, "Row 2 of the table: tp must be"),
        ({"num_layers": 1.5}, "num_layers"),
        ({"zero_stage": 4}, "zero_stage .* 0 to 3"),
        ({"clock_mhz": "fast"}, "clock_mhz"),
        ({"stage_clock_mhz": "1410;x"}, "stage_clock_mhz"),
    ],
)
def test_a_number_that_makes_no_sense_is_named_with_row_and_column(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TableError, match=message):
        predict({}, change)


IMPOSSIBLE: tuple[tuple[dict[str, Any], str], ...] = (
    ({"gpu": "x9000"}, "not in the catalogue"),
    ({"gpu": None}, "gpu is blank"),
    ({"gpu": "h100"}, "fits 4 GPUs"),
    ({"num_layers": None}, "num_layers is blank"),
    ({"num_layers": None, "model": None}, "num_layers is blank; a catalogue name in the column model stands for it."),
    ({"dp": 3}, "num_gpus"),
    ({"dp": None, "tp": 3}, "num_gpus"),
    ({"pp": 8, "dp": 1, "num_layers": 4}, "num_layers"),
    ({"global_batch_size": 2}, "global_batch_size"),
    ({"stage_clock_mhz": "1410;1200;900"}, "stage_clock_mhz"),
    ({"gpu": "a40", "power_limit_w": 45}, "draws"),
    ({"power_limit_w": 700}, "power_limit_w"),
    ({"gpu": "cpu-core", "power_limit_w": 100}, "of whose power nothing is known (leave power_limit_w blank"),
    ({"clock_mhz": 3000}, "clock_mhz to be from 210 to 1410 MHz"),
    ({"stage_clock_mhz": "100"}, "stage_clock_mhz to be from 210 to 1410 MHz"),
)


def test_rows_that_cannot_be_predicted_have_a_reason_and_stop_no_other() -> None:
    found = predict({}, *(change for change, _ in IMPOSSIBLE), {})
    missing = [reason for (_, reason), stated in zip(IMPOSSIBLE, found.not_predicted[1:-1], strict=True)
               if reason not in stated]  # fmt: skip
    assert missing == []
    assert found[PREDICTED].isna().all(axis=1).tolist() == [False, *[True] * len(IMPOSSIBLE), False]
    assert found.predicted_fits.tolist() == [True, *[False] * len(IMPOSSIBLE), True]
    assert found.predicted_fits.dtype == found.in_domain.dtype == bool
    assert found.fit_probability.isna().tolist() == (found.not_predicted != "").tolist()
    with pytest.raises(TableError, match="No row of the table can be predicted; row 1: "):
        predict(IMPOSSIBLE[0][0])


@pytest.mark.parametrize("column", ["num_layers", "gpu", "num_gpus"])
def test_a_column_that_nothing_stands_in_for_is_named(column: str) -> None:
    with pytest.raises(TableError, match=f"lacks the column '{column}'"):
        predict(without=(column,))


def test_a_table_without_rows_and_a_column_given_twice_are_refused() -> None:
    with pytest.raises(TableError, match="no rows"):
        jointopt.predict(table().iloc[:0])
    twice = pd.concat([table(), table()[["tp"]]], axis=1)
    with pytest.raises(TableError, match="'tp' more than once"):
        jointopt.predict(twice)
    with pytest.raises(TableError, match="'tp' more than once"):
        jointopt.predict(table().assign(**{"tp.1": 2}))  # as pandas reads it from a file


@pytest.mark.parametrize(
    ("gpu", "dtype", "same_as", "assumed"),
    [
        ("a100-sxm4-80gb", "fp8", "bf16", "dtype"),
        ("v100-sxm2-16gb", "bf16", "fp16", "dtype"),
        ("h100-sxm5-80gb", "nvfp4", "fp8", "dtype fp8_recipe"),
        ("h100-sxm5-80gb", "mxfp8", "fp8", "fp8_recipe"),  # which needs Blackwell
        ("a100-sxm4-80gb", "BFloat16", "bf16", ""),
        ("a100-sxm4-80gb", "float32", "fp32", ""),
        ("a100-sxm4-80gb", "mixed", "bf16", "dtype"),
    ],
)
def test_precisions_are_understood_or_the_next_wider_one_is_assumed(
    gpu: str, dtype: str, same_as: str, assumed: str
) -> None:
    run = {"gpu": gpu, "attention": "fused"}
    found = predict(run | {"dtype": dtype}, run | {"dtype": same_as})
    assert found.assumed[0] == assumed
    assert found.predicted_iteration_time_s[0] == found.predicted_iteration_time_s[1]


PRECISIONS = (
    ("h100-sxm5-80gb", "fp4", False), ("a100-sxm4-80gb", "fp8", False), ("v100-sxm2-16gb", "bf16", False),
    ("v100-sxm2-16gb", "fp8", False), ("h100-sxm5-80gb", "int8", False), ("h100-sxm5-80gb", "mixed", False),
    ("h100-sxm5-80gb", None, False), ("a100-sxm4-80gb", " ", False), ("a100-sxm4-80gb", "bf16", True),
)  # fmt: skip


@pytest.mark.parametrize("surrogate", ["none", "default"])
def test_a_precision_that_is_blank_or_the_gpu_lacks_is_never_in_domain(surrogate: str) -> None:
    run = {"attention": "fused", "framework": "megatron-lm", "micro_batch_size": 4}  # layers that no host delays
    recorded = {"h100-sxm5-80gb": "bf16"}  # of that framework; on the others fp16
    pairs = [
        run | {"gpu": gpu, "dtype": each} for gpu, dtype, _ in PRECISIONS for each in (dtype, recorded.get(gpu, "fp16"))
    ]
    found = jointopt.predict(table(*pairs), surrogate=surrogate)
    assert found.in_domain.tolist() == [answer for *_, inside in PRECISIONS for answer in (inside, True)]
    width = (found.predicted_iteration_time_s_high / found.predicted_iteration_time_s_low).to_numpy()
    outside = ~found.in_domain.to_numpy()[::2]
    assert (width[::2] > 1.3 * width[1::2])[outside].all()


def test_each_row_has_the_names_of_the_doubts_that_take_it_out_of_the_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(physics_errors(), "attentions", ["fused", "flash2"])
    run = {"attention": "fused", "framework": "megatron-lm", "gpu": "h100-sxm5-80gb", "dtype": "bf16"}
    run |= {"micro_batch_size": 4}
    long, kernel = run | {"seq_length": 4_000_000}, run | {"attention": "flash3"}
    found = jointopt.predict(table(run, run | {"dtype": "banana"}, kernel, long), surrogate="none")
    assert found.doubts.tolist() == ["", "not_as_stated", "attention", "size"]
    assert (found.in_domain == (found.doubts == "")).all()
    unlike = jointopt.predict(table(run, long | {"attention": "flash3"}), surrogate="default")
    assert unlike.doubts.tolist()[1].split()[:2] == ["size", "attention"]


def test_tf32_is_fp32_on_tensor_cores() -> None:
    assert time_s(dtype="bf16") < time_s(dtype="tf32") < time_s(dtype="fp32") / 3


@pytest.mark.parametrize(
    ("word", "kernel", "assumed"),
    [("Flash2", "flash2", ""), ("flash_attention_3", "flash3", ""), ("FlashAttention", "flash2", "attention"),
     ("sdpa", "flash2", "attention"), ("secret", "flash2", "attention")],
)  # fmt: skip
def test_attention_kernels_are_understood_or_assumed(word: str, kernel: str, assumed: str) -> None:
    found = predict({"attention": word, "gpu": "h100-sxm5-80gb"}, {"attention": kernel, "gpu": "h100-sxm5-80gb"})
    assert found.assumed[0] == assumed
    assert found.predicted_iteration_time_s[0] == found.predicted_iteration_time_s[1]


@pytest.mark.parametrize(("column", "word", "expected"), [
    ("fp8_recipe", "mx", "one of delayed, tensorwise, rowwise, blockwise, mxfp8, nvfp4, or blank"),
    ("schedule", "1f1c", "one of 1f1b, zb-h1, zbv, dualpipev, or blank"),
    ("recompute", "half", "one of none, selective, full, or blank"),
    ("sequence_parallel", "perhaps", "true, false or blank"),
    ("token_dispatcher", "banana", "one of alltoall, deepep, hybridep, or blank"),
    ("cuda_graph", "whole", "one of none, transformer_engine, full_iteration, or blank"),
])  # fmt: skip
def test_a_word_that_its_column_does_not_know_leaves_out_its_row_alone(
    column: str, word: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = predict({}, {column: word})
    reason = f"{column} must be {expected}; got {word!r}."
    assert found.not_predicted.tolist() == ["", reason]
    assert found.predicted_iteration_time_s.isna().tolist() == [False, True]
    assert f"1 row not predicted (row 2): {reason}" in caplog.messages
    assert found.predicted_iteration_time_s[0] == predict().predicted_iteration_time_s[0]


def test_a_table_of_nothing_but_unknown_words_or_with_a_senseless_number_is_refused() -> None:
    with pytest.raises(TableError, match="No row of the table can be predicted; row 1: schedule must be one of"):
        predict({"schedule": "1f1c"})
    with pytest.raises(TableError, match="Row 2 of the table: tp must be a whole number"):
        predict({}, {"tp": "two", "schedule": "1f1c"})


KERNELS = {"banana": False, "flash3": False, "flash2": True, "sdpa": True, "flash": True, None: True}


@pytest.mark.parametrize("surrogate", ["none", "default"])
def test_an_unknown_kernel_or_one_that_does_not_run_there_is_out_of_domain_and_a_blank_one_is_not(
    surrogate: str,
) -> None:
    rows = [{"attention": word, "framework": "megatron-lm"} for word in KERNELS]
    found = jointopt.predict(table(*rows), surrogate=surrogate)
    assert found.in_domain.tolist() == [*KERNELS.values()]
    assert found.assumed.tolist() == ["" if word == "flash2" else "attention" for word in KERNELS]


@pytest.mark.parametrize(
    ("gpu", "dtype", "kernel"),
    [("h100-sxm5-80gb", "bf16", "flash2"), ("gb200", "fp8", "flash2"), ("gh200-96gb", None, "flash2"),
     ("l40s", "bf16", "flash2"), ("mi300x", "bf16", "flash2"), ("h100-sxm5-80gb", "fp32", "fused"),
     ("a100-sxm4-80gb", "bf16", "fused"), ("v100-sxm2-16gb", "fp16", "fused")],
)  # fmt: skip
def test_a_blank_kernel_is_a_flash_one_where_gpus_are_new_enough_and_that_of_the_framework_profile_elsewhere(
    gpu: str, dtype: str | None, kernel: str
) -> None:
    change = {"gpu": gpu, "dtype": dtype, "attention": None, "framework": "megatron-lm"}
    (found,), _ = workloads(table(change))
    assert found.job.training.attention == kernel
    assert "attention" in found.assumed[0]


def test_every_gpu_predicts_and_each_precision_and_framework_on_many() -> None:
    every = zip(gpu_ids(), itertools.cycle([("fp32", "bf16"), ("bf16", "fp8"), ("fp8", "fp4")]), strict=False)
    precisions = [{"gpu": gpu, "dtype": dtype} for gpu, dtypes in every for dtype in dtypes]
    frameworks = [{"gpu": gpu, "framework": name} for gpu in gpu_ids()[::6] for name in framework_names()]
    changes = [*precisions, *frameworks]
    found = predict(*changes)[PREDICTED]
    known = np.array([load_gpu(change["gpu"]).power is not None for change in changes])
    assert (found[["predicted_iteration_time_s", "predicted_peak_memory_gib"]] > 0).all(axis=None)
    assert np.isfinite(found[known]).all(axis=None)
    assert (found[known] > 0).all(axis=None)
    assert found.loc[~known, ["predicted_energy_j", "predicted_avg_power_w"]].isna().all(axis=None)


ODD = (
    {"tp": 2.0, "num_layers": "32", "vpp": " 1 "},
    {"vpp": 4, "pp": 8, "dp": 1, "global_batch_size": 10},
    {"vpp": 5},
    {"global_batch_size": 130, "micro_batch_size": 4},
    {"global_batch_size": 5, "micro_batch_size": 8},
    {"num_attention_heads": 30},
    {"tp": 16, "dp": 1, "pp": 1, "num_attention_heads": 8},
    {"num_gpus": 12, "dp": 3},
    {"gpus_per_node": 32},
    {"num_experts": 8, "moe_router_topk": 2, "ep": 3},
    {"num_experts": 8, "moe_router_topk": None, "ep": 4},
    {"status": "oom", "iteration_time_s": None},
    {"recompute": True},
    {"seq_length": 1_048_576, "cp": 4, "dp": 1},
)


def test_odd_but_possible_runs_get_finite_numbers() -> None:
    found = predict(*ODD)
    assert found.not_predicted.tolist() == [""] * len(ODD)
    assert np.isfinite(found[PREDICTED]).all(axis=None)
    assert (found.predicted_iteration_time_s_low < found.predicted_iteration_time_s).all()


def test_rates_of_a_gpu_count_those_that_train_not_all_of_the_last_node() -> None:
    found = predict({"num_gpus": 12, "dp": 3, "global_batch_size": 96})
    rate = 96 * 2048 / found.predicted_iteration_time_s[0]
    assert found.tokens_per_s_per_gpu[0] == pytest.approx(rate / 12)


@pytest.mark.parametrize("stated", [None, 8, 36, 64])
def test_a_job_takes_trays_of_a_rack_that_is_stated_as_one_node(stated: int | None) -> None:
    experts = {"num_experts": 64, "moe_router_topk": 4, "moe_ffn_hidden_size": 1024, "framework": "megatron-bridge"}
    run = experts | {"gpu": "gb200", "num_gpus": 256, "dp": 64, "tp": 1, "pp": 4, "ep": 64, "global_batch_size": 1024}
    found = predict(run | {"gpus_per_node": 72}, run | {"gpus_per_node": stated})
    assert found.predicted_iteration_time_s.nunique() == 1
    assert found.predicted_energy_j.nunique() == 1


def test_context_parallelism_that_only_the_other_degrees_leave_is_named() -> None:
    found = predict({"num_gpus": 64, "cp": None}, {"cp": None}, {"num_gpus": 64, "cp": 4})
    assert found.assumed.tolist() == ["cp", "", ""]
    assert found.predicted_iteration_time_s[0] == found.predicted_iteration_time_s[2]


def test_a_micro_batch_larger_than_the_ranks_share_is_cut_and_a_broken_batch_padded() -> None:
    found = predict({"micro_batch_size": 64}, {"micro_batch_size": 32}, {"global_batch_size": 127})
    assert found.assumed.tolist() == ["micro_batch_size", "", "global_batch_size"]
    assert found.predicted_energy_j[0] == found.predicted_energy_j[1]
    assert found.predicted_iteration_time_s[2] == time_s()


@pytest.mark.parametrize(("batch", "micro", "padded", "cut"), [
    (126, 3, 132, 3), (126, 2, 128, 2), (120, 3, 120, 3), (6, 4, 8, 1),
])  # fmt: skip
def test_batches_are_padded_to_whole_micro_batches_of_all_four_ranks(
    batch: int, micro: int, padded: int, cut: int
) -> None:
    (work,), _ = workloads(table({"global_batch_size": batch, "micro_batch_size": micro}))
    assert work.job.training.global_batch_size == padded
    assert work.plans["micro_batch_size"].tolist() == [cut]


def test_clocks_come_from_the_stages_else_from_one_else_the_maximum() -> None:
    assert time_s(stage_clock_mhz="1410;1410") == time_s(clock_mhz=1410) == time_s()
    assert time_s(stage_clock_mhz="900;900") == time_s(stage_clock_mhz=900.0) == time_s(clock_mhz=900) > time_s()
    assert time_s(clock_mhz=900) > time_s(stage_clock_mhz="1410;900") > time_s()


def test_a_power_limit_slows_a_run_down_and_saves_energy() -> None:
    found = predict({"power_limit_w": 250}, {"power_limit_w": None}, {"power_limit_w": 400})
    assert found.predicted_iteration_time_s[0] > found.predicted_iteration_time_s[1]
    assert found.predicted_energy_j[0] < found.predicted_energy_j[1] == found.predicted_energy_j[2]
    assert found.predicted_avg_power_w[0] < 250


def test_a_plain_mlp_is_four_hidden_sizes_wide_where_the_table_states_no_width() -> None:
    jobs, _ = workloads(table({"ffn_hidden_size": 16384}, {"ffn_hidden_size": 11008}, without=("gated_mlp",)))
    assert [work.job.model.gated_mlp for work in jobs] == [False, True]
    (blank,), _ = workloads(table(without=("gated_mlp", "ffn_hidden_size")))
    assert (blank.job.model.ffn_hidden_size, blank.job.model.gated_mlp) == (4 * 4096, False)


@pytest.mark.parametrize(
    ("stated", "experts", "top_k"), [((2, 1), 2, 1), ((2, 2), 2, 2), ((8, 0), 8, 1), ((1, 2), 0, 0), ((None, 2), 0, 0)]
)
def test_tokens_go_to_at_least_one_expert_and_to_no_more_than_there_are(
    stated: tuple[int | None, int], experts: int, top_k: int
) -> None:
    jobs, _ = workloads(table({"num_experts": stated[0], "moe_router_topk": stated[1]}))
    assert (jobs[0].job.model.num_experts, jobs[0].job.model.moe_router_topk) == (experts, top_k)


def test_a_row_whose_tokens_go_to_more_experts_than_there_are_is_refused() -> None:
    _, reasons = workloads(table({"num_experts": 2, "moe_router_topk": 8}, {}))
    assert list(reasons) == [0]
    assert "moe_router_topk to be at most num_experts, got moe_router_topk=8 num_experts=2" in reasons[0]


def test_experts_without_a_top_k_go_to_two_and_one_expert_is_dense() -> None:
    jobs, _ = workloads(table({"num_experts": 8, "moe_router_topk": None}, {"num_experts": 1}))
    assert [(w.job.model.is_moe, w.job.model.moe_router_topk) for w in jobs] == [(True, 2), (False, 0)]


def test_rows_of_one_job_share_a_workload_and_keep_their_positions() -> None:
    jobs, reasons = workloads(table({}, {"gpu": "h200"}, {"dp": 8, "tp": 1}, {"dp": 3}))
    assert [work.rows.tolist() for work in jobs] == [[0, 2], [1]]
    assert list(reasons) == [3]
    assert jobs[0].plans["tp"].tolist() == [2, 1]


def test_the_interleaving_of_the_framework_profile_stands_in_for_a_blank() -> None:
    jobs, _ = workloads(table({"vpp": None, "framework": "nemo"}, {"vpp": None, "framework": "nanotron"}))
    assert [int(work.plans["vpp"][0]) for work in jobs] == [8, 1]


CELLS = st.one_of(
    st.none(), st.integers(-3, 70), st.floats(allow_nan=True, allow_infinity=True), st.text(max_size=6), st.booleans(),
    st.sampled_from(["full", "h100-sxm5-80gb", "mi300x", "1410;1395", "fp8", "torchtitan", "2.0"]),
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from([*RUN, "clock_mhz", "stage_clock_mhz", "power_limit_w"]), CELLS, max_size=4))
def test_whatever_a_cell_holds_there_is_a_prediction_a_reason_or_one_sentence(change: dict[str, Any]) -> None:
    sentence, found = "", table()
    try:
        found = predict(change, {})
    except JointOptError as error:
        sentence = str(error)
    assert "\n" not in sentence
    if not sentence:
        assert len(found) == 2
        assert np.isfinite(found[PREDICTED].iloc[0]).all() != bool(found.not_predicted[0])


@pytest.mark.parametrize(("gpu", "kernel"), [("v100-sxm2-32gb", "fused"), ("a100-sxm4-80gb", "flash2")])
def test_an_attention_kernel_that_the_gpu_cannot_run_gives_way_and_is_named(gpu: str, kernel: str) -> None:
    change = {"gpu": gpu, "attention": "flash3", "dtype": "fp16"}
    (found,), _ = workloads(table(change))
    assert (found.job.training.attention, found.assumed) == (kernel, ["attention"])


SHAPE = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "gated_mlp",
         "vocab_size")  # fmt: skip


def test_a_catalogue_name_stands_for_the_shape_of_the_model() -> None:
    (found,), _ = workloads(table({"model": "llama-3-8b"}, without=SHAPE))
    assert (found.job.model, found.assumed) == (load_model("llama-3-8b"), [""])


def test_one_blank_cell_of_a_row_that_agrees_with_the_catalogue_is_the_catalogue_s() -> None:
    model = load_model("llama-3-8b")
    cells = {name: getattr(model, name) for name in SHAPE} | {"model": model.name, "vocab_size": None}
    (found,), _ = workloads(table(cells))
    assert (found.job.model, found.assumed) == (model, [""])


def test_a_name_spelled_another_way_and_one_width_for_experts_are_the_catalogue_s_model() -> None:
    model = load_model("deepseek-v3")
    cells = {name: getattr(model, name) for name in SHAPE} | {"model": "DeepSeekV3", "num_query_groups": None}
    cells |= {"ffn_hidden_size": 2048, "num_experts": 256, "moe_router_topk": 8}
    (found,), _ = workloads(table(cells))
    assert replace(found.job.model, mtp_num_layers=model.mtp_num_layers) == model
    (other,), _ = workloads(table(cells | {"ffn_hidden_size": 3072}))
    assert other.job.model.kv_lora_rank == 0


def test_the_release_whose_throughput_a_recipe_quotes_is_its_release() -> None:
    (found,), _ = workloads(table({"framework": "Megatron-Bridge 26.08", "published_release": "26.04.01"}))
    assert found.job.training.framework_release == "26.04.01"


def test_a_release_newer_than_any_known_and_an_open_balance_are_assumptions() -> None:
    cells = {"framework": "Megatron-Bridge", "model": "qwen3-30b-a3b", "moe_routing": "natural"}
    rows = table(*(cells | {"framework_release": release} for release in ("26.08", "27.02")), without=SHAPE)
    words = {w.job.training.framework_release: w.assumed[0].split() for w in workloads(rows)[0]}
    assert "framework_release" in words["27.02"]
    assert "framework_release" not in words["26.08"]
    assert all("moe_load_imbalance" in named for named in words.values())


def test_cells_that_contradict_the_catalogue_model_win() -> None:
    (found,), _ = workloads(table({"model": "llama-3-8b", "num_layers": 16, "vocab_size": None}))
    assert (found.job.model.num_layers, found.job.model.hidden_size) == (16, 4096)
    assert found.assumed == ["vocab_size"]


def test_a_blank_head_count_is_that_of_the_same_source_and_width_whose_depth_is_nearest() -> None:
    known = [{"source": "a", "num_layers": 8, "num_attention_heads": 16}, {"source": "a", "num_attention_heads": 64}]
    blank = [{"source": source, "num_layers": 30, "num_attention_heads": np.nan} for source in ("a", "b")]
    found, _ = workloads(table(*known, *blank))
    heads = {int(row): w.job.model.num_attention_heads for w in found for row in w.rows}
    assert heads == {0: 16, 1: 64, 2: 64, 3: 32}
    assert all("num_attention_heads" in w.assumed[0] for w in found if {2, 3} & set(w.rows))


def test_rows_of_another_table_fill_blank_head_counts_too() -> None:
    kin = table({"source": "a", "num_attention_heads": 16}, {"source": "b", "num_attention_heads": 64})
    blank = table(*({"source": source, "num_attention_heads": np.nan} for source in ("a", "c")))
    for rows in (blank, blank.drop(columns="num_attention_heads")):
        found, _ = workloads(rows, kin)
        assert {int(row): w.job.model.num_attention_heads for w in found for row in w.rows} == {0: 16, 1: 32}


def test_rows_of_known_and_of_unknown_models_may_share_a_table() -> None:
    blank = dict.fromkeys(SHAPE)
    found, reasons = workloads(table({"model": "llama-3-8b", **blank}, {"model": "mine", **blank}, {}))
    assert sorted(int(row) for work in found for row in work.rows) == [0, 2]
    assert reasons[1].startswith(
        "num_layers and hidden_size are blank, and the model 'mine' is not in the catalogue; `"
    )
    assert list(reasons) == [1]


def test_an_unknown_model_without_a_shape_is_answered_with_the_nearest_names() -> None:
    _, reasons = workloads(table({"model": "lama-3-8b", "hidden_size": None}, {}))
    assert reasons[0].startswith(
        "hidden_size is blank, and the model 'lama-3-8b' is not in the catalogue (did you mean"
    )
    assert "'llama-3-8b'" in reasons[0]


def test_a_model_that_no_catalogue_knows_is_named_where_its_shape_is_missing() -> None:
    with pytest.raises(
        TableError, match=r"'num_layers' \('llama-3-8' in the column model is not listed .* mean 'llama-3-8b'"
    ):
        predict({"model": "llama-3-8"}, without=("num_layers",))


def test_a_table_states_the_experts_of_a_model_and_how_tokens_reach_them() -> None:
    stated = {"num_experts": 16, "moe_router_topk": 4, "moe_ffn_hidden_size": 256, "num_shared_experts": 1}
    stated |= {"num_dense_layers": 2, "token_dispatcher": "flex/deepep", "overlap_moe_a2a": True}
    (found,), _ = workloads(table(stated))
    job, model = found.job, found.job.model
    assert (model.moe_ffn_hidden_size, model.num_shared_experts, model.num_dense_layers) == (256, 1, 2)
    assert (job.training.token_dispatcher, job.training.ep_overlap) == ("deepep", True)


@pytest.mark.parametrize(("gpu", "usual"), [("gh200-96gb", 4), ("h100-sxm5-80gb", 8), ("h100-pcie-80gb", 8)])
def test_a_blank_node_has_the_gpus_that_are_usual_for_its_kind(gpu: str, usual: int) -> None:
    (found,), _ = workloads(
        table({"gpu": gpu, "dtype": "bf16", "inter_node_gbytes_per_s": 25.0}, without=("gpus_per_node",))
    )
    assert found.job.cluster.gpus_per_node == usual
    assert found.assumed == ["gpus_per_node"]


def test_rows_under_different_fabrics_are_different_workloads() -> None:
    rows = pd.concat([table({"inter_node_gbytes_per_s": figure}) for figure in (6.25, np.nan)], ignore_index=True)
    found, _ = workloads(rows)
    usual = load_gpu("a100-sxm4-80gb").usual_inter_node_gbytes_per_s
    assert [one.job.cluster.inter_node_gbytes_per_s for one in found] == [6.25, usual]


@pytest.mark.parametrize(
    ("cell", "framework", "kind"),
    [
        ("transformer_engine:attn+moe_router", "megatron-bridge", "transformer_engine"),
        ("local:full_iteration", "megatron-bridge", "full_iteration"),
        ("local", "megatron-bridge", "transformer_engine"),
        ("none", "megatron-bridge", "none"),
        ("False", "megatron-bridge", "none"),
        ("full_iteration", "torchtitan", ""),
        ("none", "torchtitan", "none"),
    ],
)
def test_a_table_states_the_cuda_graphs_of_megatron_core(cell: str, framework: str, kind: str) -> None:
    (found,), _ = workloads(table({"cuda_graph": cell, "framework": framework}))
    assert found.job.training.cuda_graph == kind


FINE: dict[str, Any] = {
    "num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 1408, "num_shared_experts": 2,
    "num_dense_layers": 3, "mtp_num_layers": 1, "attention_kind": "MLA",
}  # fmt: skip


def test_columns_of_experts_and_attention_reach_the_model() -> None:
    model = workloads(table(FINE))[0][0].job.model
    for name in ("moe_ffn_hidden_size", "num_shared_experts", "num_dense_layers", "mtp_num_layers"):
        assert getattr(model, name) == FINE[name]
    for name in ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        assert getattr(model, name) == getattr(load_model("deepseek-v3"), name)
    assert "kv_lora_rank" in predict(FINE).assumed[0].split()


def test_a_row_that_states_all_of_a_catalogue_model_has_its_latent_attention() -> None:
    model = load_model("deepseek-v3")
    cells = {name: getattr(model, name) for name in (*RUN, *FINE) if hasattr(model, name)}
    row = cells | {"model": "deepseek-v3", "attention_kind": "mla", "mtp_num_layers": 1, "ep": 8}
    found = workloads(table(row))[0][0].job.model
    assert (found.kv_lora_rank, found.head_dim, found.mtp_num_layers) == (model.kv_lora_rank, model.head_dim, 1)


def test_formats_of_states_in_a_table_reach_the_training() -> None:
    stated = {"grad_reduce_dtype": "float32", "exp_avg_dtype": "bfloat16", "precision_aware_optimizer": True}
    training = workloads(table(stated))[0][0].job.training
    assert (training.grad_reduce_dtype, training.exp_avg_dtype) == ("fp32", "bf16")
    assert training.precision_aware_optimizer
    assert training.main_grads_dtype is None


def test_a_row_fits_where_its_probability_is_a_half_at_least() -> None:
    found = predict(*({"micro_batch_size": n, "global_batch_size": 4 * n} for n in (1, 8, 16, 24, 64)))
    probability = found.fit_probability
    assert probability.is_monotonic_decreasing
    assert (probability[0] > 0.99, probability.iloc[-1] < 0.01) == (True, True)
    assert found.predicted_fits.tolist() == (probability >= 0.5).tolist()


@pytest.mark.parametrize(("change", "sentence"), [
    ({"kv_lora_rank": 512}, "expected kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim and v_head_dim together"),
    ({"q_lora_rank": 64}, "expected kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim and v_head_dim together"),
    ({"attention_kind": "mha", "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
     "expected attention_kind to be mla where kv_lora_rank is above 0"),
    ({"position_embedding": "alibbi"}, "position_embedding must be one of rope, learned, alibi, none, or blank"),
])  # fmt: skip
def test_latent_attention_in_part_or_against_its_kind_is_not_predicted(change: dict[str, Any], sentence: str) -> None:
    reasons = predict({}, change).not_predicted
    assert reasons[0] == ""
    assert sentence in reasons[1]


def test_a_catalogue_model_stated_with_another_attention_is_not_the_catalogue_s() -> None:
    cells = {"model": "llama-3-8b", "num_layers": None, "hidden_size": None, "num_query_groups": 8} | dict.fromkeys(
        ("ffn_hidden_size", "vocab_size", "gated_mlp"), None
    )
    assert predict(cells).not_predicted[0] == ""
    assert "num_layers" in predict({}, cells | {"attention_kind": "mla"}).not_predicted[1]


@pytest.mark.parametrize(("name", "position"), [("MPT-7b", "alibi"), ("bloom-176b", "alibi"), ("GPT-18B", "rope")])
def test_models_that_are_known_for_alibi_have_it(name: str, position: str) -> None:
    assert workloads(table({"model": name}))[0][0].job.model.position_embedding == position


def test_a_catalogue_model_stated_with_its_learned_positions_keeps_the_rows_of_their_table() -> None:
    known = load_model("opt-1.3b")
    cells = {name: getattr(known, name) for name in SHAPE} | {"model": known.name, "seq_length": 512}
    for stated in ({}, {"position_embedding": "learned"}):
        (found,), _ = workloads(table(cells | stated))
        assert found.job.model == known
