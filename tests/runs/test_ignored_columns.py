"""What is kept of a table but teaches nothing is reported."""

from __future__ import annotations

import pandas as pd
import pytest

from jointopt.core.errors import TableError
from jointopt.runs.ignored_columns import (
    misspelt_lines,
    unfinished_lines,
    unread_lines,
    untimed_lines,
    unused_lines,
    without_time,
)
from jointopt.surrogate.dataset import with_results
from jointopt.surrogate.training import training_set
from jointopt.workflows.evaluate import evaluate

GOOD = {"gpu": "h100-sxm5-80gb", "status": "ok", "iteration_time_s": 1.0}


def test_rows_that_teach_something_need_no_words():
    assert unused_lines(pd.DataFrame([GOOD, {**GOOD, "status": "oom", "iteration_time_s": None, "mfu": 0.4}])) == []


def test_a_column_that_is_nearly_known_is_named():
    (line,) = unused_lines(pd.DataFrame([{**GOOD, "peak_memory_gb": 40.0}]))
    assert line == (
        "column peak_memory_gb is kept, but nothing reads it (did you mean 'peak_memory_gib'? Then rename it, and "
        "multiply it by 0.9313)."
    )


@pytest.mark.parametrize(
    ("name", "meant"), [("tensor_model_parallel_size", "tp"), ("num_experts_per_tok", "moe_router_topk"), ("tp", ""),
     ("torch_compile", "compile"), ("cudagraph", "cuda_graph"), ("async_tp", "tp_overlap"),
     ("overlap_comm", "dp_overlap"), ("moe_a2a_overlap", "ep_overlap"), ("nemo_version", "framework_release")],
)  # fmt: skip
def test_a_column_that_other_programs_call_so_is_named_unless_the_table_has_it(name, meant):
    plans = pd.DataFrame([{"gpu": "h100-sxm5-80gb", name: 2, "own_note": 1}])
    found = [] if not meant else [f"column {name} is kept, but nothing reads it (did you mean {meant!r}?)."]
    assert misspelt_lines(plans) == found
    assert misspelt_lines(plans.assign(**{meant or "pp": 2})) == []


def test_gpus_that_no_catalogue_knows_are_counted():
    lines = unused_lines(pd.DataFrame([GOOD, {**GOOD, "gpu": "h1000"}, {**GOOD, "gpu": None}]))
    assert lines[0].startswith("1 row names no GPU")
    assert "'h1000' is not in the catalogue" in lines[1]


def test_rows_without_any_result_are_counted():
    (line,) = unused_lines(pd.DataFrame([GOOD, {"gpu": "h100-sxm5-80gb"}]))
    assert line.startswith("1 row has neither a result")


def test_another_name_by_which_a_column_is_read_is_not_called_misspelt():
    assert misspelt_lines(pd.DataFrame([{"moe_force_load_balancing": True, "tp_comm_overlap": True}])) == []


def test_precisions_that_the_gpu_has_no_rate_for_are_reported():
    lines = unused_lines(pd.DataFrame([{**GOOD, "dtype": dtype} for dtype in ("bf16", "fp8", "nvfp4", None)]))
    assert lines == [
        "1 row is in fp4 on h100-sxm5-80gb, of which no source states a rate: priced in fp8, and marked out of domain; "
        "expected one of fp32, fp16, bf16, fp8, tf32."
    ]


def test_tf32_on_a_gpu_from_before_it_is_reported():
    (line,) = unread_lines(pd.DataFrame([{**GOOD, "gpu": "v100-sxm2-16gb", "dtype": "tf32"}]))
    assert line.startswith("1 row is in tf32 on v100-sxm2-16gb, of which no source states a rate: priced in fp32")


def test_rows_that_could_be_priced_but_for_their_precision_are_counted():
    rows = [{**GOOD, "seq_length": 2048, "dtype": dtype} for dtype in (None, "bf16", None)]
    (line,) = unread_lines(pd.DataFrame(rows))
    assert line.startswith("2 rows state no precision (columns dtype, precision, fp8_recipe): the 16-bit format")
    assert unread_lines(pd.DataFrame([{**rows[0], "fp8_recipe": "delayed"}])) == []


@pytest.mark.parametrize(("gbytes", "line"), [(400.0, "row 2: inter_node_gbytes_per_s=400"), (100.0, "")])
def test_a_network_that_may_be_in_bits_is_named_with_what_it_would_be_in_bytes(gbytes, line):
    found = unread_lines(pd.DataFrame([GOOD, {**GOOD, "inter_node_gbytes_per_s": gbytes}]))
    assert bool(found) == bool(line)
    assert line in "".join(found)
    assert "Then it is 50." in "".join(found) or not line


@pytest.mark.parametrize(
    ("name", "cells", "count"),
    [
        ("precision", ["bf16", "banana", None, "fp8_mx", "16-mixed", "tf32"], "1 row has an unknown precision"),
        ("dtype", ["bfloat16", "bflaot", "", "e4m3", "bflaot"], "2 rows have an unknown dtype"),
    ],
)
def test_unknown_precisions_are_counted_and_the_first_of_them_is_named(name, cells, count):
    cells = [None if cell == "" else cell for cell in cells]
    (line,) = unread_lines(pd.DataFrame([{**GOOD, name: cell} for cell in cells]))
    assert line.startswith(f"{count} (row 2: {cells[1]!r}), which is not read")
    assert line.endswith("Expected bf16, fp16, fp32, tf32, fp8 or fp4.")


def test_an_unknown_attention_kernel_is_named_with_the_known_ones():
    (line,) = unread_lines(pd.DataFrame([{**GOOD, "attention": cell} for cell in ("flash2", "banana", None, "sdpa")]))
    assert line.startswith("1 row has an unknown attention (row 2: 'banana'), which is not read")
    assert line.endswith("Expected unfused, fused, flash1, flash2 or flash3.")


def test_a_table_that_states_known_precisions_or_none_has_no_such_line():
    for columns in ({}, {"dtype": None}, {"dtype": "bf16", "precision": "bf16-mixed"}):
        assert unread_lines(pd.DataFrame([GOOD | columns])) == []


@pytest.mark.parametrize(("cells", "words"), [
    ({"framework": "megatronn-lm"}, "unknown framework (row 2: 'megatronn-lm')"), ({"framework": "in-house"}, None),
    ({"lora_target_modules": "linear_qkv"}, "1 row states lora_target_modules without lora_dim (row 2)"),
    ({"lora_target_modules": "linear_qkv", "lora_dim": 8}, None), ({"lora_targets": "q"}, "mean 'lora_target_modules'"),
    ({"attention": "flashy"}, "unknown attention (row 2: 'flashy')"), ({"dtype": "halfway"}, "unknown dtype (row 2:"),
])  # fmt: skip
def test_words_that_mean_nothing_are_named_with_their_row(cells, words):
    lines = unread_lines(pd.DataFrame([GOOD, GOOD | cells]))
    assert lines == [] if words is None else words in " ".join(lines)


@pytest.mark.parametrize(("statuses", "line"), [
    (["ok", "failed"], []),
    (["failed", "timeout"], ["none of 2 runs ended well (1 failed, 1 timeout): they teach nothing."]),
    (["oom", "oom"], ["none of 2 runs ended well (2 oom): they teach which plans fit, and nothing of time or power."]),
])  # fmt: skip
def test_a_table_of_which_no_run_ended_well_is_called_that(statuses, line):
    assert unfinished_lines(pd.DataFrame({"status": statuses})) == line


@pytest.mark.parametrize(("status", "taught"), [
    ("failed", "lower bounds of time"), ("oom", "which plans fit and lower bounds of time"),
])  # fmt: skip
def test_runs_that_were_ended_with_a_time_teach_lower_bounds(status, taught):
    runs = pd.DataFrame({"status": [status, "timeout"], "iteration_time_s": [None, 20.0]})
    assert unfinished_lines(runs) == [f"none of 2 runs ended well (1 {status}, 1 timeout): they teach {taught}."]


@pytest.mark.parametrize(("cells", "words"), [
    ({"power_limit_w": 400.0}, None), ({"gpu_count": 8}, None),
    ({"power_limit_w": 450.0}, "above the 400 W that a100-sxm4-80gb is rated for (row 2: power_limit_w=450)"),
    ({"gpu": "mi355x", "num_gpus": 16}, "no network between nodes, and no source states a usual one of mi355x (row 2"),
    ({"gpu": "mi355x", "num_gpus": 8}, None),
    ({"gpu": "mi355x", "num_gpus": 16, "inter_node_gbytes_per_s": 50.0}, None),
])  # fmt: skip
def test_limits_beyond_the_rating_and_networks_without_a_usual_figure_are_named(cells, words):
    lines = unread_lines(pd.DataFrame([GOOD | {"gpu": "a100-sxm4-80gb"}, GOOD | {"gpu": "a100-sxm4-80gb"} | cells]))
    assert lines == [] if words is None else words in " ".join(lines)


def test_no_run_at_all_is_no_run_that_failed():
    assert unfinished_lines(pd.DataFrame({"status": []})) == []


def test_many_columns_that_nothing_reads_are_one_sentence():
    (line,) = misspelt_lines(pd.DataFrame([dict.fromkeys(("DP", "TP", "PP", "CP", "EP", "GPU", "MODEL"), 1)]))
    assert line.startswith("7 columns are kept, but nothing reads them (DP, TP, PP, CP, EP, ...): did you mean 'dp' by")


@pytest.mark.parametrize(("name", "change"), [
    ("iteration_time_ms", ", and divide it by 1,000"), ("Step Time (msec)", ", and divide it by 1,000"),
    ("step_time_us", ", and divide it by 1,000,000"), ("step_time", ""), ("time_s", ""), ("sec_per_iter", ""),
])  # fmt: skip
def test_a_time_by_another_name_is_to_be_renamed_and_converted(name, change):
    run = {key: value for key, value in GOOD.items() if key != "iteration_time_s"}
    assert without_time(pd.DataFrame([{**run, name: 4.0}])) == f"; rename the column {name} to iteration_time_s{change}"


def test_a_column_that_is_there_and_blank_hides_no_other_spelling_of_it():
    (line,) = misspelt_lines(pd.DataFrame([{**GOOD, "iteration_time_s": None, "step_time_ms": 4.0}]))
    assert "(did you mean 'iteration_time_s'? Then rename it, and divide it by 1,000)" in line


def test_a_table_that_is_out_of_memory_alone_says_what_to_do():
    table = pd.DataFrame([{**GOOD, "status": "oom", "iteration_time_s": None}] * 3)
    assert without_time(table).startswith("; none of 3 runs ended well (3 oom): add runs that did, or give these to")
    with pytest.raises(TableError, match="propose --measured"):
        training_set(table)
    with pytest.raises(TableError, match="propose --measured"):
        evaluate(table)


def test_rows_that_ended_well_without_a_time_are_counted_with_the_first():
    table = with_results(pd.DataFrame([GOOD, {**GOOD, "iteration_time_s": None}, {**GOOD, "status": "oom"}]))
    (line,) = untimed_lines(table)
    assert line.startswith("1 row says that its run ended well (status ok or blank) but has no iteration_time_s (row 2")
    assert untimed_lines(table.head(1)) == []


@pytest.mark.parametrize("name", ["intra_node_gbytes_per_s", "NVLink GB/s"])
def test_links_within_a_node_are_never_taken_for_the_network(name: str) -> None:
    (line,) = misspelt_lines(pd.DataFrame({name: [300.0]}))
    assert "no column for the links within a node; the job file (cluster.intra_node_gbytes_per_s)" in line
