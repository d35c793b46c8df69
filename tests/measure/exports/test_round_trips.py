"""What is exported is read back by `jointopt import`'s readers as the same plan."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given

from jointopt.measure.exports.intent import Intent, intent_of
from jointopt.measure.exports.targets import TARGETS
from jointopt.measure.imports import megatron, torchtitan
from jointopt.measure.imports.files import read_text
from tests.measure.exports.conftest import job_named, layouts, plan_of

LLAMA = job_named("llama-3-8b", gpus=64)
# what a target has of the drawn layouts
LIMITS: dict[str, dict[str, Any]] = {
    "megatron": {}, "torchtitan": {"zero_stage": 3}, "torchtitan 0.2.2": {"zero_stage": 3}, "nanotron": {"vpp": 1},
    "deepspeed": {"vpp": 1, "cp": 1, "recompute": "none"}, "accelerate": {"vpp": 1, "zero_stage": 1},
}  # fmt: skip


def read_back(target: str, made: Intent) -> dict[str, Any]:
    name, _, version = target.partition(" ")
    exported = TARGETS[name].export(made, version)
    if target == "megatron":
        return megatron.words_taken(list(exported.words)).plan
    if target == "torchtitan":
        return torchtitan.words_taken(list(exported.words)).plan
    return read_text(next(iter(exported.files.values())))[0].plan


@pytest.mark.parametrize("target", LIMITS)
@given(columns=layouts)
def test_the_plan_that_is_read_is_the_one_that_was_exported(target: str, columns: dict[str, Any]) -> None:
    columns = columns | LIMITS[target]
    assume(64 % (columns["tp"] * columns["pp"] * columns["cp"]) == 0)
    plan = plan_of(LLAMA, **columns)
    assume(plan["dp"] > 1)  # of one rank alone, no stage shards anything
    read = read_back(target, intent_of(LLAMA, plan))
    if target == "deepspeed":  # whose file does not say it
        del read["sequence_parallel"]
    read = {"tp": 1, "pp": 1, **read}
    assert read == {name: plan[name] for name in read}
