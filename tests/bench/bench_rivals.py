"""Other planners that can be had as packages, on jobs with a published run: time, memory and best plan, beside ours.

    pip install --no-deps llm-analysis fire termcolor hetu-galvatron; pip install torch
    .venv/bin/python tests/bench/bench_rivals.py [--checkout MEGATRON_LM] [DATA_FOLDER]

The default folder is ../shared/data beside the repository; without it nothing is shown as measured. Every tool is
given the published plan as far as it has words for it, and searches for a better one where it can:

- llm-analysis 0.2.2 has no search. It counts flops at a share of the peak that its user states: half, as its README
  names. Without context parallelism, cp counts as data parallelism; its 8-bit peak stands for FP8.
- Galvatron (hetu-galvatron 2.4.0) searches a strategy for each layer from a profile of the model and the cluster, which
  takes the GPUs. Here jointopt's own predictions of one layer and the catalogue's links are written as that profile,
  so that what is compared is the search, not the model: six minutes, BF16 and dense layers alone. Its plan is priced
  by us too.
- Megatron-LM's theoretical_memory_usage.py, of a checkout, says what weights, optimizer and activations take.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import re
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from bench_accuracy import ROOT
from bench_peers import BITS, FLOPS_SHARE

import jointopt
from jointopt.core.units import GIB
from jointopt.jobs.job import Job
from jointopt.report.results import Explanation

H100 = "h100-sxm5-80gb"


@dataclass(frozen=True)
class Case:
    """A job with a published run: its plan, and where a table has its time."""

    name: str
    job: Job
    plan: str
    table: str
    row: str  # a query of that table


CASES = (
    Case(
        "Llama-3 8B, 64 H100, torchtitan, BF16, 96 sequences",
        jointopt.job(
            "llama-3-8b", "h100-sxm-96gb", 64, global_batch_size=96, seq_length=8192, framework="torchtitan"
        ),
        "dp=8 tp=8 micro_batch_size=12 recompute=selective zero_stage=3",
        "layouts_torchtitan.csv", "num_gpus == 64 and model == 'Llama3.1-8B' and dtype == 'bf16' and tp == 8",
    ),
    Case(
        "Llama-3 70B, 64 H100, NeMo, FP8, 128 sequences",
        jointopt.job(
            "llama-3-70b", H100, 64, global_batch_size=128, seq_length=8192, dtype="fp8", framework="nemo"
        ),
        "dp=2 tp=4 pp=4 cp=2 vpp=5 micro_batch_size=1 recompute=none",
        "layouts_nvidia_nemo_docs.csv", "model == 'LLAMA3-70B' and gpu == 'h100-sxm5-80gb' and tp == 4",
    ),
    Case(
        "Qwen3 30B-A3B, 32 H100, Megatron-LM, BF16, 256 sequences",
        jointopt.job(
            "qwen3-30b-a3b", H100, 32, global_batch_size=256, seq_length=4096, framework="megatron-lm",
            training__token_dispatcher="hybridep", training__moe_routing="forced",
        ),
        "dp=32 ep=8 micro_batch_size=1 recompute=none",
        "layouts_mcore_moe_recipes.csv", "num_gpus == 32 and dtype == 'bf16'",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What a tool says: of the published plan, and of the best plan that it finds."""

    tool: str
    time_s: float | None = None
    memory_gib: float | None = None
    best: str = ""
    best_s: float | None = None
    best_by_us_s: float | None = None  # the best plan, priced by jointopt


def ours(case: Case) -> Answer:
    """The published plan and the fastest plan, by jointopt."""
    found = jointopt.propose(case.job, baseline=case.plan)
    today, first = found.to_dict()["reference"], found[0].predicted
    return Answer(
        "jointopt", today["iteration_time_s"], today["peak_memory_gib"], _words(first), first["iteration_time_s"]
    )


def _words(plan: Mapping[str, Any]) -> str:
    names = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size", "recompute", "zero_stage")
    return " ".join(f"{name}={plan[name]}" for name in names if plan[name] != 1 or name in ("dp", "tp", "pp"))


def _plan_of(case: Case) -> dict[str, Any]:
    """Every field of the published plan."""
    return dict(jointopt.explain(case.job, case.plan).plan)


def llm_analysis(case: Case) -> Answer:
    """The published plan by llm-analysis."""
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
    from llm_analysis.config import DtypeConfig, ModelConfig, ParallelismConfig, get_gpu_config_by_name
    from llm_analysis.logger import logger

    logger.setLevel("CRITICAL")
    model, plan, bits = case.job.model, _plan_of(case), BITS[case.job.training.dtype]
    width = model.moe_ffn_hidden_size or model.ffn_hidden_size
    shape = ModelConfig(
        "run", model.num_layers, model.num_attention_heads, model.hidden_size, model.vocab_size,
        case.job.training.seq_length, model.num_query_groups, ffn_embed_dim=width,
        expansion_ratio=width / model.hidden_size, moe_num_experts=model.num_experts or 1,
        moe_top_k=model.moe_router_topk or 1,
    )  # fmt: skip
    split = ParallelismConfig(plan["tp"], plan["pp"], plan["dp"] * plan["cp"], plan["ep"], plan["tp"])
    gpu = get_gpu_config_by_name("h100-sxm-80gb")
    peer = LLMAnalysis(shape, gpu, DtypeConfig("run", bits, bits, 16), split, flops_efficiency=FLOPS_SHARE)
    found = peer.training(
        batch_size_per_gpu=plan["micro_batch_size"], global_batch_size=case.job.training.global_batch_size,
        seq_len=case.job.training.seq_length, ds_zero=DSZeRO(plan["zero_stage"]), mlp_gated_linear_units=True,
        activation_recomputation=ActivationRecomputation(("none", "selective", "full").index(plan["recompute"])),
    )  # fmt: skip
    memory = found["(weight+op_state+grad+act)_memory_per_gpu"] / GIB
    return Answer("llm-analysis", found["latency_per_iter"], memory)


def megatron_memory(case: Case, checkout: Path) -> Answer:
    """Memory of the published plan by Megatron-LM's own formulas: of the first stage, without fragmentation."""
    file = checkout / "megatron" / "training" / "theoretical_memory_usage.py"
    code = file.read_text(encoding="utf-8").replace("from .utils import is_hybrid_model, print_rank_0", "")
    formulas: dict[str, Any] = {"is_hybrid_model": lambda _: False, "print_rank_0": print}
    exec(compile(code, str(file), "exec"), formulas)
    model, training, plan = case.job.model, case.job.training, _plan_of(case)
    args = types.SimpleNamespace(
        num_layers=model.num_layers, hidden_size=model.hidden_size, ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads, num_query_groups=model.num_query_groups,
        kv_channels=model.hidden_size // model.num_attention_heads, group_query_attention=True, swiglu=True,
        num_experts=model.num_experts or None, moe_layer_freq=1,
        moe_ffn_hidden_size=model.moe_ffn_hidden_size, moe_router_topk=model.moe_router_topk or 1,
        moe_shared_expert_intermediate_size=None, moe_latent_size=None, mtp_num_layers=None,
        multi_latent_attention=False, normalization="RMSNorm", padded_vocab_size=model.vocab_size,
        untie_embeddings_and_output_weights=True, add_bias_linear=False,
        seq_length=training.seq_length // plan["cp"], micro_batch_size=plan["micro_batch_size"],
        tensor_model_parallel_size=plan["tp"], pipeline_model_parallel_size=plan["pp"],
        virtual_pipeline_model_parallel_size=plan["vpp"] if plan["vpp"] > 1 else None,
        expert_model_parallel_size=plan["ep"], expert_tensor_parallel_size=1,
        sequence_parallel=plan["sequence_parallel"],
        data_parallel_size=plan["dp"] * plan["cp"], world_size=case.job.cluster.num_gpus,
        recompute_granularity=None if plan["recompute"] == "none" else plan["recompute"],
        use_distributed_optimizer=plan["zero_stage"] > 0,
    )  # fmt: skip
    micro_batches = training.global_batch_size // plan["dp"] // plan["micro_batch_size"]
    sharded = plan["sequence_parallel"] and plan["recompute"] == "selective"
    activations = formulas["compute_activation_memory" if sharded else "compute_activation_memory_without_sp"]
    held = formulas["compute_weight_and_optimizer_memory"](args) + activations(args, micro_batches)
    return Answer("Megatron-LM", memory_gib=held / GIB)


def galvatron(case: Case) -> Answer:
    """The best strategy by Galvatron's search, from a profile that jointopt's predictions stand in for."""
    engine = _galvatron_engine()
    job = case.job
    if job.model.num_experts or job.training.dtype != "bf16":
        return Answer("Galvatron", best="no words for it")
    from galvatron.core.search_engine.arguments import galvatron_search_args

    args = galvatron_search_args(argparse.ArgumentParser()).parse_args([])
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said:
        vars(args).update(
            num_nodes=job.cluster.nodes, num_gpus_per_node=job.cluster.gpus_per_node, sequence_parallel=True,
            hidden_size=job.model.hidden_size, global_memory_buffer=False, disable_tp_consec=1,
            memory_constraint=int(0.95 * job.cluster.gpu.memory_gib), settle_bsz=job.training.global_batch_size,
            pipeline_type="pipedream_flush", default_dp_type="zero2", log_dir=folder, output_config_path=folder,
            **dict.fromkeys(
                ("memory_profiling_path", "time_profiling_path", "allreduce_bandwidth_config_path",
                 "p2p_bandwidth_config_path", "overlap_coe_path", "sp_time_path"), folder,
            ),
        )  # fmt: skip
        for name, profile in _profiles(job).items():
            (Path(folder) / name).write_text(json.dumps(profile))
        search = engine(args)
        shape = {"hidden_size": job.model.hidden_size, "layer_num": job.model.num_layers}
        search.set_search_engine_info(folder, [shape | {"seq_len": job.training.seq_length}], "run")
        search.set_model_type("gpt")
        search.initialize_search_engine()
        search.parallelism_optimization()
        (file,) = Path(folder).glob("galvatron_config_*.json")
        chosen = json.loads(file.read_text())
    layers = zip(*(chosen[name].split(",") for name in ("tp_sizes_enc", "dp_types_enc", "checkpoint")), strict=True)
    batch, pp, chunks, priced_s = job.training.global_batch_size, int(chosen["pp_deg"]), int(chosen["chunks"]), None
    kinds = Counter(
        f"tp={tp} zero_stage={2 + int(kind)} recompute={'full' if int(again) else 'none'}" for tp, kind, again in layers
    )
    if len(kinds) == 1:  # else each layer has its own strategy, which jointopt has no words for
        words, tp = next(iter(kinds)), int(chosen["tp_sizes_enc"].split(",")[0])
        dp = job.cluster.num_gpus // pp // tp
        plan = f"dp={dp} pp={pp} {words} micro_batch_size={batch // chunks // dp} sequence_parallel={tp > 1}"
        priced_s = jointopt.explain(job, plan.lower()).iteration_time_s
    best = f"pp={pp}, {chunks} micro-batches; " + "; ".join(f"{count} layers {words}" for words, count in kinds.items())
    throughput = float(re.findall(r"Max throughput=([\d.]+)", said.getvalue())[-1])
    return Answer("Galvatron", best=best, best_s=batch / throughput, best_by_us_s=priced_s)


def _profiles(job: Job) -> dict[str, Any]:
    """What Galvatron's profilers would write, by names of files: of one layer, of all else, and of the links."""
    nodes, size, cluster = job.cluster.nodes, job.cluster.gpus_per_node, job.cluster
    layers, gpus, seq = job.model.num_layers, cluster.num_gpus, str(job.training.seq_length)
    few = layers // 2

    def seen(num_layers: int, tp: int = 1, recompute: str = "none") -> Explanation:
        """One sequence per GPU or tensor-parallel group, nothing sharded."""
        one = replace(
            job, model=replace(job.model, num_layers=num_layers),
            training=replace(job.training, global_batch_size=gpus // tp),
        )  # fmt: skip
        words = f"dp={gpus // tp} tp={tp} micro_batch_size=1 zero_stage=0 recompute={recompute}"
        return jointopt.explain(one, f"{words} sequence_parallel={str(tp > 1).lower()}")

    def of_layer(whole: float, half: float) -> tuple[float, float]:
        """The share of one layer, and that of what is no layer."""
        layer = (whole - half) / (layers - few)
        return layer, whole - layers * layer

    def memory_mib(name: str, tp: int = 1, recompute: str = "none") -> tuple[float, float]:
        return of_layer(*(1024 * seen(count, tp, recompute).memory_gib[name] for count in (layers, few)))

    degrees = [tp for tp in (1, 2, 4, 8) if tp <= size]
    compute_ms = of_layer(*(1e3 / 3 * seen(count).time_s["compute"] for count in (layers, few)))
    weights = memory_mib("weights")  # 2 bytes a parameter; Galvatron counts 4, and four times that with the states
    kept = {tp: memory_mib("activations", tp) for tp in degrees}
    logits = {tp: kept[tp][1] + memory_mib("logits", tp)[1] for tp in degrees}
    states = {str(tp): 8 * weights[1] / tp for tp in degrees}
    halves = {tp: value / 2 for tp, value in states.items()}
    layer = {str(tp): kept[tp][0] for tp in degrees} | {"checkpoint": memory_mib("activations", 1, "full")[0]}
    within, between = cluster.intra_node_gbytes_per_s, cluster.inter_node_gbytes_per_s
    groups = [2**power for power in range(1, gpus.bit_length())]
    link = {group: within if group <= size else between for group in groups}
    megabytes = [2**power for power in range(11)]
    return {
        "computation_profiling_bf16_run.json": {
            f"layertype_0_bsz1_seq{seq}": compute_ms[0], f"layertype_other_0_bsz1_seq{seq}": compute_ms[1],
        },
        "memory_profiling_bf16_run.json": {
            "layertype_0_sp": {seq: {"parameter_size": 2 * weights[0], "tp_activation_per_bsz_dict": layer}},
            "other_memory_pp_off_sp": {seq: {"model_states": states, "activation": logits}},
            "other_memory_pp_on_first_sp": {seq: {"model_states": halves, "activation": dict.fromkeys(degrees, 0.0)}},
            "other_memory_pp_on_last_sp": {seq: {"model_states": halves, "activation": logits}},
        },
        f"allreduce_bandwidth_{nodes}nodes_{size}gpus_per_node.json": {
            f"allreduce_size_{group}_consec_{near}": link[group] if near else between
            for group in groups for near in (0, 1)
        },
        f"p2p_bandwidth_{nodes}nodes_{size}gpus_per_node.json": {f"pp_size_{group}": between for group in groups},
        "overlap_coefficient.json": {"overlap_coe": 1.0},
        f"sp_time_{nodes}nodes_{size}gpus_per_node.json": {
            f"{kind}_size_{group}_{amount}MB_time": 2 * (group - 1) / group * amount / link[group]
            for kind in ("allreduce", "all2all") for group in groups for amount in megabytes
        },
    }  # fmt: skip


def _galvatron_engine() -> Any:
    """Galvatron's search engine without its runtime, which needs GPU builds of apex and flash-attn."""
    import galvatron

    core = types.ModuleType("galvatron.core")
    core.__path__ = [str(Path(galvatron.__path__[0]) / "core")]
    sys.modules["galvatron.core"] = core
    from galvatron.core.search_engine.search_engine import GalvatronSearchEngine

    return GalvatronSearchEngine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, help="Folder of Megatron-LM.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT.parent / "shared" / "data")
    given = parser.parse_args()
    tools = [ours, llm_analysis, galvatron]
    tools += [functools.partial(megatron_memory, checkout=given.checkout)] if given.checkout else []
    for case in CASES:
        table = given.folder / case.table
        times = pd.read_csv(table).query(case.row)["iteration_time_s"] if table.exists() else pd.Series(dtype=float)
        measured = f"{times.min():.2f} to {times.max():.2f} s in {len(times)} runs" if len(times) else "no table here"
        print(f"\n{case.name}\npublished plan: {case.plan}; measured: {measured}")
        answers = pd.DataFrame([tool(case) for tool in tools])
        print(answers.to_string(index=False, na_rep="", float_format="{:.2f}".format))


if __name__ == "__main__":
    main()
