"""Precision in tables: the words of Megatron-Bridge, blanks that they fill, and what contradicts."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from jointopt.measure.replay import ReplayLauncher
from jointopt.runs.cells import with_precision
from jointopt.runs.checks import MEASUREMENT_RULES
from jointopt.runs.dtype_names import named_precision, named_recipe
from jointopt.runs.ignored_columns import unused_lines
from jointopt.runs.table import check_measurements
from jointopt.runs.workloads import workloads
from jointopt.surrogate.dataset import price
from jointopt.workflows.campaign.candidates import measurement_columns
from tests.each import each

RUN: dict[str, Any] = {
    "model": "llama-3-8b", "gpu": "gb200", "gpus_per_node": 4, "num_gpus": 8, "dp": 8, "tp": 1, "pp": 1,
    "micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096, "framework": "megatron-bridge",
}  # fmt: skip


def training(**cells: Any) -> tuple[str, str | None, str]:
    """(dtype, recipe, what was assumed) of one row."""
    (found,), _ = workloads(pd.DataFrame([RUN | cells]))
    recipe = found.job.training.fp8_recipe
    assumed = set(found.assumed[0].split()) & {"dtype", "fp8_recipe"}
    return found.job.training.dtype, recipe and recipe.name, " ".join(sorted(assumed))


@each(
    ("word", "dtype", "recipe"),
    [
        ("fp8_cs", "fp8", "tensorwise"), ("FP8-CS", "fp8", "tensorwise"), ("fp8_ds", "fp8", "delayed"),
        ("fp8_sc", "fp8", "blockwise"), ("fp8_mx", "fp8", "mxfp8"), ("mxfp8", "fp8", "mxfp8"),
        ("nvfp4", "fp4", "nvfp4"), ("fp8", "fp8", None), ("bf16", "bf16", None), ("bf16-mixed", "bf16", None),
        ("bf16_with_fp8_subchannel_scaling_mixed", "fp8", "blockwise"), ("tf32", "tf32", None),
        ("16-mixed", "fp16", None), ("32-true", "fp32", None), ("mixed", None, None),
    ],
)  # fmt: skip
def test_a_precision_names_a_dtype_and_perhaps_a_recipe(word: str, dtype: str | None, recipe: str | None) -> None:
    assert (named_precision(word), named_recipe(word)) == (dtype, recipe)


@each(
    ("cells", "found"),
    [
        ({"precision": "fp8_mx"}, ("fp8", "mxfp8", "")),
        ({"precision": "fp8_mx", "dtype": "fp8"}, ("fp8", "mxfp8", "")),
        ({"precision": "nvfp4"}, ("fp4", "nvfp4", "")), ({"precision": "bf16"}, ("bf16", None, "")),
        ({"fp8_recipe": "Current"}, ("fp8", "tensorwise", "")), ({"dtype": "fp8"}, ("fp8", None, "")),
        ({"dtype": "mxfp8"}, ("fp8", "mxfp8", "")), ({"dtype": "fp8_cs"}, ("fp8", "tensorwise", "")),
        ({"dtype": "tf32", "gpu": "v100-sxm2-16gb"}, ("fp32", None, "dtype")),
        ({"precision": "mixed"}, ("bf16", None, "dtype")),
        ({"precision": "fp8_mx", "gpu": "h100-sxm5-80gb"}, ("fp8", None, "fp8_recipe")),
        ({"dtype": "fp4"}, ("fp4", "nvfp4", "fp8_recipe")), ({"dtype": "fp4", "gpu": "mi355x"}, ("fp4", None, "")),
        ({"precision": "nvfp4", "gpu": "h100-sxm5-80gb"}, ("fp8", None, "dtype fp8_recipe")),
    ],
)  # fmt: skip
def test_blank_cells_follow_from_the_others_and_what_does_not_run_is_assumed(
    cells: dict[str, Any], found: tuple[str, str | None, str]
) -> None:
    assert training(**cells) == found


def test_rows_of_one_table_may_have_recipes_of_their_own() -> None:
    table = pd.DataFrame([RUN | {"precision": word} for word in ("fp8_cs", "fp8_mx", None, "bf16")])
    seconds = price(table).physics["iteration_time_s"]
    assert len({*seconds.tolist()}) == 3  # a blank one is bf16, GB200's usual
    assert seconds[0] < seconds[1] < seconds[2] == seconds[3]


def test_fp4_costs_the_same_whether_its_only_recipe_is_stated_or_not() -> None:
    table = pd.DataFrame([RUN | {"precision": "nvfp4"}, RUN | {"dtype": "fp4"}])
    stated, blank = price(table).physics["iteration_time_s"]
    assert stated == blank


def test_a_table_without_such_cells_is_left_as_it_is() -> None:
    table = pd.DataFrame([RUN | {"dtype": "bf16"}])
    pd.testing.assert_frame_equal(with_precision(table), table)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (
            {"precision": "fp8_cs", "dtype": "bf16"},
            "expected precision and dtype to mean the same, got precision=fp8_cs",
        ),
        ({"fp8_recipe": "mxfp8", "dtype": "bf16"}, "expected dtype and fp8_recipe to mean the same"),
        ({"fp8_recipe": "mxfp8", "precision": "fp8_cs"}, "expected precision and fp8_recipe to mean the same"),
    ],
)
def test_what_contradicts_is_one_sentence(cells: dict[str, Any], message: str) -> None:
    table = pd.DataFrame([RUN | {"dtype": "fp8"} | cells | {"iteration_time_s": 5.0}, RUN | {"dtype": "fp8"}])
    good, problems = check_measurements(table)
    assert [message in problem.message for problem in problems] == [True]
    assert len(good) == 1
    assert message in workloads(table)[1][0]


def test_a_precision_decides_what_is_too_fast_and_is_no_misspelt_dtype() -> None:
    # 6 flop for 7.5 billion parameters and 262,144 tokens on 8 GPUs: 0.59 s at 2.5 PFLOP/s in bf16, 0.29 in fp8
    rows = [RUN | {"iteration_time_s": 0.4, "precision": precision} for precision in ("bf16", "fp8_cs")]
    _, problems = check_measurements(pd.DataFrame(rows), rules=MEASUREMENT_RULES)
    assert [(problem.line, problem.column) for problem in problems] == [(2, "iteration_time_s")]
    assert not [line for line in unused_lines(pd.DataFrame(rows)) if "precision" in line]


def test_rows_of_a_job_state_its_recipe_and_replay_finds_those_of_it() -> None:
    table = pd.DataFrame([
        RUN | {"precision": word, "iteration_time_s": seconds} for word, seconds in (("fp8_cs", 4.0), ("fp8_mx", 5.0))
    ])  # fmt: skip
    (_, found), _ = workloads(table)
    rows = measurement_columns(found.job, found.plans | {"stage_clock_mhz": found.stage_clock_mhz})
    assert rows["fp8_recipe"].tolist() == ["mxfp8"]
    plan = rows.iloc[0].to_dict() | {"stage_clock_mhz": None}
    assert ReplayLauncher(table.drop(columns="gpus_per_node")).run(found.job, plan)["iteration_time_s"] == 5.0
