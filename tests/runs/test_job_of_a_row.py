"""The job that a row of a table states: each cell moves its own fields, and no others."""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import Any

import pandas as pd

from jointopt.runs.workloads import workloads
from tests.each import each
from tests.runs.test_workloads import RUN


def job_of(change: dict[str, Any]) -> dict[str, Any]:
    """Fields of model, training and cluster of a row, its clocks, and what is assumed."""
    (found,), _ = workloads(pd.DataFrame([RUN | change]))
    job, framework = found.job, found.job.training.framework
    sizes = ("nodes", "gpus_per_node", "inter_node_gbytes_per_s", "power_limit_w")
    cluster = {name: getattr(job.cluster, name) for name in sizes}
    fields = asdict(job.model) | asdict(job.training) | cluster
    fields |= {"framework": framework.name, "tf32": framework.tf32, "gpu": job.cluster.gpu.id}
    return fields | {
        "clocks": found.stage_clock_mhz[0].tolist(), "assumed": found.assumed[0], "as_stated": found.as_stated,
    }  # fmt: skip


@functools.cache
def usual() -> dict[str, Any]:
    return job_of({})


H100 = {"gpu": "h100-sxm5-80gb"}
OF_H100 = H100 | {"inter_node_gbytes_per_s": 50, "power_limit_w": 700.0, "clocks": [1980.0, 1980.0]}
LATENT = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
RANKS = {"kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 96}
STATES = {"main_grads_dtype": "bf16", "precision_aware_optimizer": True, "fp8_param_gather": True}
EXPERTS = {"moe_ffn_hidden_size": 1408, "num_shared_experts": 2, "num_dense_layers": 1, "moe_router_topk": 4}
CELLS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"dtype": "fp8"}, {"assumed": "dtype", "as_stated": False}),  # an A100 has 16 bit at the least
    ({"dtype": None}, {"assumed": "dtype", "as_stated": False}),
    ({"dtype": "E4M3"} | H100, {"dtype": "fp8"} | OF_H100),
    ({"dtype": "tf32"}, {"dtype": "fp32", "tf32": True}),
    ({"attention": None}, {"attention_assumed": True, "assumed": "attention"}),
    ({"attention": "sdpa"}, {"attention_assumed": True, "assumed": "attention"}),
    ({"attention": "flash3"}, {"attention_assumed": True, "assumed": "attention", "as_stated": False}),
    ({"attention": "FA3"} | H100, {"attention": "flash3"} | OF_H100),
    ({"fused_norm": False}, {"fused_norm": False}), ({"fused_norm": None}, {"assumed": "fused_norm"}),
    ({"framework": "mystery"}, {"framework": "generic", "assumed": "framework"}),
    ({"recipe_class": "Vendor"}, {"recipe_class": "vendor"}),
    ({"framework": "NeMo, MLPerf submission"}, {"recipe_class": "submission"}),
    ({"framework": "MLPerf's NeMo", "recipe_class": "community"}, {"recipe_class": "community"}),
    ({"lora_dim": 8}, {"lora_dim": 8}),
    ({"lora_dim": 8, "lora_target_modules": "linear_fc1; linear_qkv"},
     {"lora_dim": 8, "lora_target_modules": ("linear_qkv", "linear_fc1")}),
    ({"cuda_graph": "local"}, {"cuda_graph": "transformer_engine"}),
    ({"cuda_graph": "full_iteration"}, {"cuda_graph": "full_iteration"}),
    ({"cuda_graph": "local", "framework": "torchtitan"}, {"framework": "torchtitan"}),
    ({"token_dispatcher": "flex/deepep", "ep_overlap": True},  # of a dense model, as all of these
     {"token_dispatcher": "deepep", "assumed": "ep_overlap"}),
    ({"moe_load_imbalance": 1.5}, {"assumed": "moe_load_imbalance"}),
    ({"moe_load_imbalance": 1.0}, {}),
    ({"num_experts": 8, "moe_load_imbalance": 1.5, "ep_overlap": True} | EXPERTS,
     {"num_experts": 8, "moe_load_imbalance": 1.5, "ep_overlap": True, "assumed": "etp"} | EXPERTS),
    ({"moe_routing": "Natural"}, {"moe_routing": "natural", "assumed": "moe_load_imbalance"}),
    ({"tp_overlap": "0.50", "dp_overlap": "yes"}, {"tp_overlap": 0.5, "dp_overlap": True}),
    ({"compile": "yes", "fp8_activations": 0}, {"compile": True, "fp8_activations": False}),
    ({"cross_entropy": "TE", "logits_chunks": 4.0}, {"cross_entropy": "fused", "logits_chunks": 4}),
    ({"framework_release": "0.16.1"}, {"framework_release": "0.16.1"}),
    ({"framework": "NeMo 24.07"}, {"framework_release": "24.07"}), ({"framework_release": "nightly"}, {}),
    (STATES | {"main_grads_dtype": "bfloat16"}, STATES),
    ({"num_experts": 8} | EXPERTS, {"num_experts": 8, "assumed": "etp"} | EXPERTS),
    ({"num_experts": 8},
     {"num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 11008, "assumed": "moe_router_topk etp"}),
    ({"num_experts": 8, "num_dense_layers": 40, "moe_router_topk": 8},  # one layer has experts
     {"num_experts": 8, "moe_router_topk": 8, "moe_ffn_hidden_size": 11008, "num_dense_layers": 31, "assumed": "etp"}),
    ({"num_experts": 4, "moe_router_topk": 0},
     {"num_experts": 4, "moe_router_topk": 1, "moe_ffn_hidden_size": 11008, "assumed": "etp"}),
    ({"num_experts": 1, "moe_router_topk": 1}, {}),
    (RANKS, RANKS), (RANKS | {"attention_kind": "mla", "q_lora_rank": 96}, RANKS | {"q_lora_rank": 96}),
    ({"position_embedding": "alibi"}, {"position_embedding": "alibi"}), ({"position_embedding": "RoPE"}, {}),
    ({"position_embedding": "learned"}, {"position_embedding": "learned", "max_position_embeddings": 2048}),
    ({"attention_kind": "mla"}, LATENT | {"assumed": " ".join(LATENT)}), ({"mtp_num_layers": 1}, {"mtp_num_layers": 1}),
    ({"window_size": 512}, {"window_size": 512}), ({"window_attn_skip_freq": "6"}, {}),
    ({"window_size": 512, "window_attn_skip_freq": 6}, {"window_size": 512, "window_attn_skip_freq": 6}),
    ({"window_size": 512, "window_attn_skip_freq": "0, 1;" * 16},
     {"window_size": 512, "window_attn_skip_freq": (0, 1) * 16}),
    ({"gated_mlp": None}, {"assumed": "gated_mlp"}),
    ({"block": "layer"}, {"block": "layer", "vocab_size": 0, "final_norm": False}),
    ({"block": "attention", "vocab_size": None, "ffn_hidden_size": None, "gated_mlp": True},
     {"block": "attention", "vocab_size": 0, "ffn_hidden_size": 0, "final_norm": False}),
    ({"block": "feed_forward", "num_attention_heads": None, "num_query_groups": None},
     {"block": "feed_forward", "vocab_size": 0, "num_attention_heads": 0, "num_query_groups": 0, "final_norm": False,
      "position_embedding": "alibi"}),
    ({"ffn_hidden_size": None, "gated_mlp": None},
     {"ffn_hidden_size": 16384, "gated_mlp": False, "rmsnorm": False, "assumed": "ffn_hidden_size gated_mlp"}),
    ({"num_attention_heads": None, "num_query_groups": None}, {"assumed": "num_attention_heads num_query_groups"}),
    ({"hidden_size": 8192, "num_attention_heads": None},
     {"hidden_size": 8192, "num_attention_heads": 64, "assumed": "num_attention_heads"}),
    ({"vocab_size": None}, {"vocab_size": 50257, "assumed": "vocab_size"}),
    ({"gpus_per_node": None}, {"assumed": "gpus_per_node"}), ({"gpus_per_node": 4}, {"nodes": 4, "gpus_per_node": 4}),
    ({"gpus_per_node": 32}, {"nodes": 1, "gpus_per_node": 16}),
    ({"inter_node_gbytes_per_s": 12.5}, {"inter_node_gbytes_per_s": 12.5}),
    ({"power_limit_w": 300.0}, {"power_limit_w": 300.0}), ({"clock_mhz": 1200.0}, {"clocks": [1200.0, 1200.0]}),
    ({"clock_mhz": 1200.0, "stage_clock_mhz": "1400;1300"}, {"clocks": [1400.0, 1300.0]}),
    ({"stage_clock_mhz": "1300"}, {"clocks": [1300.0, 1300.0]}),
]  # fmt: skip


@each(("cells", "moved"), CELLS)
def test_a_cell_moves_its_own_fields_of_the_job(cells: dict[str, Any], moved: dict[str, Any]) -> None:
    before, after = usual(), job_of(cells)
    assert {name: value for name, value in after.items() if before[name] != value} == moved
