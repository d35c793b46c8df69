"""Models whose layers are of several kinds, as targets can or cannot be given them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from jointopt.core.errors import ExportError
from jointopt.frameworks.intent import intent_of
from jointopt.frameworks.targets import TARGETS
from jointopt.jobs.model import Layer
from tests.jobs.test_pattern import job

PLAN = dict.fromkeys(("tp", "pp", "cp", "ep", "vpp", "micro_batch_size", "zero_stage"), 1) | {
    "dp": 8, "sequence_parallel": False, "recompute": "none", "stage_layers": "",
}  # fmt: skip


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge", "torchtitan", "nanotron"])
def test_an_export_refuses_layers_that_it_has_no_words_for(target: str) -> None:
    kinds = r"\(short convolution, full attention\); it writes one kind of attention"
    with pytest.raises(ExportError, match=f"no words for the layers of lfm2-1.2b {kinds}"):
        TARGETS[target].export(intent_of(job("lfm2-1.2b"), PLAN))


def test_experts_in_every_other_layer_are_written_to_megatron_and_bridge_alone() -> None:
    whole, layers = job("lfm2-1.2b"), (Layer("full", "dense"), Layer("full", "experts")) * 8
    mixed = replace(whole.model, num_experts=8, moe_router_topk=2, moe_ffn_hidden_size=512, layers=layers)
    intent = intent_of(replace(whole, model=mixed), PLAN)
    words = TARGETS["megatron"].export(intent).words
    assert words[words.index("--moe-layer-freq") + 1] == "([0,1]*8)"
    overrides = TARGETS["megatron-bridge"].export(intent).files["overrides.yaml"]
    assert yaml.safe_load(overrides)["model"]["moe_layer_freq"] == [0, 1] * 8
    with pytest.raises(ExportError, match="and leading dense layers"):
        TARGETS["torchtitan"].export(intent)
