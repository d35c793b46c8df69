"""How right power is by GPU: what the model predicts against every public measurement, no constant fitted to them here.

    python tests/bench/bench_power.py [DATA_FOLDER]

The default folder is ../shared/data beside the repository; without it only nodes are compared. Per measurement: watts
measured and predicted (means), the error in the mean, its absolute value in mean and median, and the share of
measurements that the interval ``avg_power_w_low`` to ``avg_power_w_high`` holds. Constants were fitted to the stages of
the A100-SXM, the voltage curves and the A100-PCIe's pJ per flop to pipelines, H200's pJ per flop to its products, hosts
to the nodes (``jobs/catalog/links.yaml``).

- stages: the law at the measured time of a stage (Perseus, SOSP'24), as its layout is not stated;
- pipelines: layout, clocks or limit of a run alone, as a table that `jointopt predict` reads; a sequence of 2,048, no
  recomputation and unfused attention are assumed, layers of stages are as their measured passes tell (times are then
  right within a tenth, two tenths for Bloom). ``at measured passes``: the law at the clock and time that each rank
  had, its work by the package's count, the power of waiting between passes;
- products: the law at the measured time, held by the limit; those of 50 us and more. Readings at one rate fall in two
  groups, at the limit and at 50 to 80 % of it, so that mean and median differ. ``few rows``: up to 3,585 of them;
  ``first``: the first product of each series of H200, after a pause;
- limits: networks that are no LLMs. ``drawn in full``: a limit below what a network draws at the highest is its power.
  ``with pauses``: it holds while kernels run, and a network waits in between: how long, and which share of its kernels
  follows the clock, by its times under all limits, what kernels draw by its power under the highest alone;
- nodes: 8 GPUs and host, cooled by liquid, MLPerf's Llama 2 70B with LoRA. ``at measured time``: the energy of the
  predicted iteration, with the power of a waiting GPU for what the measured one takes longer. Others at full load.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from bench_power_fit import FIT_BELOW_MHZ, ROOT, stage_profiles
from scipy.optimize import least_squares

from jointopt.jobs.catalog.clusters import build_cluster, with_host_at
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.physics import clock_law
from jointopt.physics.cost_model import CostModel
from jointopt.physics.site import cluster_power_kw
from jointopt.runs.workloads import workloads
from jointopt.surrogate.intervals import physics_errors
from jointopt.workflows.predict import predict

Row = dict[str, Any]
SHAPES: dict[str, tuple[int, int, int, int]] = {  # hidden size, layers, heads, vocabulary; BERT 1.3B's is not stated
    "gpt3-xl": (2048, 24, 16, 50257),
    "gpt3-2.7b": (2560, 32, 32, 50257),
    "bloom-3b": (2560, 30, 32, 250880),
}
# Layers by stage: a stage of 7 layers takes 7/6 of the time of one of 6 (GPT-3 XL's third), Bloom's first 1.3 times
# that of those with 4, and its last what the head takes and a layer
STAGE_LAYERS = {"gpt3-xl": "6*2;7;5", "gpt3-2.7b": "", "bloom-3b": "5;4*6;1"}
SHAPE_COLUMNS = ("hidden_size", "num_layers", "num_attention_heads", "vocab_size")
LONG_S = 5e-5
FEW_ROWS = 3585  # of more rows, most readings of B200 are low
LORA = {
    "model": "llama-2-70b", "pp": 1, "micro_batch_size": 1, "seq_length": 8192, "dtype": "fp8", "framework": "nemo",
    "gpus_per_node": 8, "zero_stage": 0, "sequence_parallel": True, "recompute": "none", "lora_dim": 16,
    "lora_target_modules": "linear_qkv linear_proj", "tp": 4, "cp": 2, "gpu": "h100-sxm5-80gb",
}  # fmt: skip
# Watts of a node, seconds of a step in the mean of a run, and of one late in it. H100: MLPerf Training v4.0 power of
# Sustainable Metal Cloud, layouts and steps by its logs (smc/results/*/llama2_70b_lora, mean of one run without
# evaluations). On 64 nodes steps took 0.89 s up to the first evaluation and 0.68 s in six of the nine blocks after it,
# on 8 nodes 0.64 s late in a run. NVIDIA's own (Eos, the same layout): 0.64 s on 8 nodes, on 128 0.78, later 0.65 to
# 0.76 s. B200: v5.0 of Lenovo, water-cooled, 60 AC readings of result_0; a batch of 8 in one accumulation step on 8
# GPUs, so data-parallel alone (inferred).
NODES = (
    (6953.0, 3.873, 3.873, {"num_gpus": 8, "cp": 1, "global_batch_size": 8}),
    (5708.0, 0.686, 0.641, {"num_gpus": 64, "global_batch_size": 8}),
    (4985.0, 0.821, 0.678, {"num_gpus": 512, "global_batch_size": 64}),
    (9610.0, 1.523, 1.523, {"num_gpus": 8, "tp": 1, "cp": 1, "global_batch_size": 8, "gpu": "b200-sxm-180gb"}),
)

# Of 8 H100: cooling, watts of a node and of a GPU. Latif et al. 2025 (arXiv:2507.16781), both coolings under load, and
# Newkirk et al. 2025 (arXiv:2506.14551), heavy training; GPUs are taken at their limit, and near it
FULL_NODES = (("air", 8160.0, 700.0), ("liquid", 6990.0, 700.0), ("air", 7752.0, 690.0))


def row(gpu: str, what: str, measured: Iterable[float], predicted: Iterable[float], held: object) -> Row:
    """One line of the table, from watts of every measurement."""
    watts, found = np.asarray(measured, float), np.asarray(predicted, float)
    error = found / watts - 1
    return {
        "gpu": gpu, "what": what, "n": len(watts), "measured W": round(watts.mean()),
        "predicted W": round(found.mean()), "mean %": 100 * error.mean(), "mean abs %": 100 * np.abs(error).mean(),
        "median abs %": 100 * np.median(np.abs(error)), "held %": 100 * np.mean(held),
    }  # fmt: skip


def within(gpu: str, measured: pd.Series, predicted: np.ndarray) -> np.ndarray:
    """Which measurements the physics' own interval of power holds, where no job is predicted: (n,)."""
    errors = physics_errors()
    low, high = errors["avg_power_w"]["known" if gpu in errors["clock_response_gpus"] else "unknown"]
    return np.asarray((measured >= low * predicted) & (measured <= high * predicted))


def stages(data: pathlib.Path) -> Iterator[Row]:
    """A100-SXM stages at every clock; above 1,320 MHz the 500 W board does not follow the requested one."""
    rows, gpu = stage_profiles(data), load_gpu("a100-sxm4-80gb")
    watts = clock_law.busy_power_w(gpu.power, rows.clock_mhz, 1410.0, rows.time_s, rows.flops, rows.moved)
    below = (rows.clock_mhz <= FIT_BELOW_MHZ).to_numpy()
    for name, kept in (("stages, 855-1320 MHz", below), ("stages, above", ~below)):
        measured = rows.avg_power_w[kept]
        yield row(gpu.id, name, measured, watts[kept], within(gpu.id, measured, watts[kept]))


def recorded_plans(data: pathlib.Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs of pipelines, and the same as rows that `predict` reads."""
    plans = pd.read_csv(data / "energy_pipeline_iterations.csv").rename(columns={"avg_power_w": "watts"})
    plans = plans[plans.model.isin(SHAPES) & (plans.method != "zeus_local")].reset_index(drop=True)
    ranks = pd.read_csv(data / "energy_pipeline_ranks.csv").sort_values("stage")
    key = ["gpu", "model", "method", "plan"]
    ranks["clock"] = ranks[["forward_clock_mhz_mean", "backward_clock_mhz_mean"]].mean(axis=1).round()
    clocks = ranks.dropna(subset="clock").groupby(key).clock.agg(lambda c: ";".join(f"{x:.0f}" for x in c))
    table = plans[["gpu", "num_gpus", "tp", "pp", "micro_batch_size", "power_limit_w"]].assign(
        global_batch_size=plans.micro_batch_size * plans.num_micro_batches, gpus_per_node=plans.num_gpus,
        stage_clock_mhz=clocks.reindex(pd.MultiIndex.from_frame(plans[key])).to_numpy(), seq_length=2048,
        dtype="fp16", attention="unfused", framework="generic", recompute="none", zero_stage=0,
    )  # fmt: skip
    table[list(SHAPE_COLUMNS)] = [SHAPES[name] for name in plans.model]
    table["stage_layers"] = plans.model.map(STAGE_LAYERS)
    return plans, table


def pipelines(data: pathlib.Path) -> Iterator[Row]:
    """Pipelines of GPT-3 and Bloom under clocks per stage and under one limit."""
    plans, table = recorded_plans(data)
    found = predict(table)
    held = plans.watts.between(found.predicted_avg_power_w_low, found.predicted_avg_power_w_high)
    under = np.where(plans.method == "zeus_global", "limits", "clocks")
    for (gpu, model, kind), own in plans.groupby(["gpu", "model", under]):
        at = own.index
        time_s = found.predicted_iteration_time_s[at] / own.iteration_time_s - 1
        name = f"{model} under {kind}, iteration {time_s.mean():+.0%}"
        yield row(gpu, name, own.watts, found.predicted_avg_power_w[at], held[at])
        if kind == "clocks":
            yield passes(data, gpu, model, table.loc[[at[0]]].drop(columns="stage_clock_mhz"))


def passes(data: pathlib.Path, gpu_id: str, model: str, plan: pd.DataFrame) -> Row:
    """The law at the measured passes of all ranks of a pipeline under clocks."""
    (work,), _ = workloads(plan)
    costs = CostModel(work.job, work.layouts).groups[0]
    flops, forward, moved = costs.flops[0], costs.forward_flops[0], costs.hbm_bytes[0]
    ranks = pd.read_csv(data / "energy_pipeline_ranks.csv").dropna(subset="forward_clock_mhz_mean")
    ranks = ranks[(ranks.gpu == gpu_id) & (ranks.model == model)]
    at, gpu = ranks.stage.to_numpy(), load_gpu(gpu_id)
    top, limit_w = gpu.need("clock_max_mhz", "compare pipelines"), gpu.need("tdp_w", "compare pipelines")
    joules, waits_s = 0.0, ranks.iteration_time_s
    for way, share in (("forward", forward / flops), ("backward", 1 - forward / flops)):
        part = share[at] * ranks.num_micro_batches
        clock, taken_s = ranks[f"{way}_clock_mhz_mean"], ranks[f"{way}_time_sum_s"]
        watts = clock_law.busy_power_w(gpu.power, clock, top, taken_s, part * flops[at], part * moved[at])
        joules, waits_s = joules + np.minimum(watts, limit_w) * taken_s, waits_s - taken_s
    watts = (joules + gpu.power.wait_w * waits_s) / ranks.iteration_time_s
    held = within(gpu_id, ranks.avg_power_w, watts)
    return row(gpu_id, f"{model} at measured passes", ranks.avg_power_w, watts, held)


def products(data: pathlib.Path) -> Iterator[Row]:
    """Products in bf16 on the GPUs whose power was read along."""
    rows = pd.read_csv(data / "gemm_bf16.csv.gz")
    rows = rows[rows.avg_power_w.notna() & (rows.time_s >= LONG_S)]
    for name, own in rows.groupby("gpu"):
        gpu = load_gpu(str(name))
        top = gpu.need("clock_max_mhz", "compare products")
        flops = 2.0 * own.m * own.n * own.k
        moved = 2.0 * (own.m * own.k + own.k * own.n + own.m * own.n)
        free = clock_law.busy_power_w(gpu.power, top, top, own.time_s, flops, moved)
        watts = np.minimum(free, own.power_limit_w)
        kinds = {"products": own.m > 0, "products of few rows": own.m <= FEW_ROWS}
        if gpu.id == "h200-sxm-141gb":  # whose table is in the order of the runs
            first = own.k == own.k.max()
            kinds = {"products": own.m > 0, "products, first": first, "products, others": ~first}
        for what, at in kinds.items():
            measured = own.avg_power_w[at]
            yield row(gpu.id, what, measured, watts[at], within(gpu.id, measured, watts[at]))


def limits(data: pathlib.Path) -> Iterator[Row]:
    """Networks of Zeus (NSDI'23) under limits below what they draw at the highest one."""
    rows = pd.read_csv(data / "power_limit_zeus_nsdi23.csv").sort_values("power_limit_w")
    rows["gpu"] = rows.gpu.map({"A40": "a40", "V100": "v100-pcie-32gb"})
    rows["what"] = np.where(rows.model.str.startswith("bert"), "BERT", "other networks")
    works = [own for _, own in rows.groupby(["gpu", "model", "batch_size", "notes"])]
    bound = pd.concat([with_pauses(own) for own in works if own.avg_power_w.iloc[-1] > own.power_limit_w.iloc[0]])
    for (gpu, what), own in bound.groupby(["gpu", "what"]):
        for name, watts in (("drawn in full", own.power_limit_w), ("with pauses", own.predicted_w)):
            yield row(gpu, f"{what}, limits {name}", own.avg_power_w, watts,
                      within(gpu, own.avg_power_w, watts.to_numpy()))  # fmt: skip


def with_pauses(own: pd.DataFrame) -> pd.DataFrame:
    """Rows of one network under limits below its power at the highest one, with ``predicted_w`` of the law."""
    gpu, highest = load_gpu(own.gpu.iloc[0]), own.iloc[-1]
    top, lowest = gpu.need("clock_max_mhz", "compare networks"), gpu.need("clock_min_mhz", "compare networks")
    rows = own[own.power_limit_w < highest.avg_power_w]
    limit, wait_w = rows.power_limit_w.to_numpy(float), gpu.power.wait_w

    def by_law(busy: float, share: float) -> tuple[np.ndarray, np.ndarray]:
        """(time over that under the highest limit, watts) of kernels that ran for a share ``busy`` of it."""
        running_w = (highest.avg_power_w - (1 - busy) * wait_w) / busy
        law = replace(gpu.power, active_w=running_w - gpu.power.static_w)
        work = (share, 1 - share, 0.0, 0.0)
        clock = clock_law.capped_clock_mhz(law, *work, limit, top, lowest)
        runs = busy * clock_law.scaled_time_s(share, 1 - share, clock, top)
        drawn = np.minimum(clock_law.busy_power_w(law, clock, top, runs, 0.0, 0.0), limit)
        return runs + 1 - busy, (runs * drawn + (1 - busy) * wait_w) / (runs + 1 - busy)

    # kernels draw no more than the highest limit
    least = min(max((highest.avg_power_w - wait_w) / (highest.power_limit_w - wait_w), 0.05), 0.98)
    slower = rows.epoch_time_s.to_numpy() / highest.epoch_time_s
    fit = least_squares(lambda p: by_law(*p)[0] / slower - 1, ((least + 1) / 2, 0.8), bounds=([least, 0.2], [1.0, 1.0]))
    return rows.assign(predicted_w=by_law(*fit.x)[1])


def node_w(gpu: str, gpu_w: Any, cooling: str = "liquid", end: str = "") -> np.ndarray:
    """Watts of a node of 8, host included, from those of a GPU; with the host at one ``end`` of its bounds."""
    cluster = build_cluster({"gpu": gpu, "nodes": 1, "gpus_per_node": 8, "pue": 1.0, "cooling": cooling})
    return 1e3 * cluster_power_kw(with_host_at(cluster, end) if end else cluster, gpu_w)


def nodes() -> Iterator[Row]:
    """Nodes of MLPerf's power results, as predicted and at the measured time of a step, and others by their GPUs."""
    for cooling, watts, gpu_w in FULL_NODES:
        gpu = "h100-sxm5-80gb"
        low, middle, high = (node_w(gpu, gpu_w, cooling, end) for end in ("low", "", "high"))
        yield row(gpu, f"node in {cooling}, GPUs at {gpu_w:.0f} W", [watts], [middle], low <= watts <= high)
    found = predict(pd.DataFrame([LORA | plan for *_, plan in NODES]))
    for (watts, step_s, late_s, plan), (_, f) in zip(NODES, found.iterrows(), strict=True):
        gpu, time_s = f["gpu"], f["predicted_iteration_time_s"]
        gpu_w = {end: f[f"predicted_avg_power_w_{end}".strip("_")] for end in ("low", "", "high")}
        low, middle, high = (node_w(gpu, gpu_w[end], end=end) for end in gpu_w)
        name = f"LoRA, nodes: {plan['num_gpus'] // 8}"
        yield row(gpu, f"{name}, step {time_s / late_s - 1:+.0%}", [watts], [middle], low <= watts <= high)
        waiting_j = load_gpu(gpu).power.wait_w * (step_s - time_s)
        timed = (f["predicted_avg_power_w"] * time_s + waiting_j) / step_s
        yield row(gpu, f"{name} at measured time", [watts], [node_w(gpu, timed)],
                  low / middle <= watts / node_w(gpu, timed) <= high / middle)  # fmt: skip


def main(data: pathlib.Path) -> None:
    recorded = (stages, pipelines, products, limits) if data.is_dir() else ()
    if not recorded:
        print(f"No recorded runs at {data}: only nodes are compared.")
    table = pd.DataFrame([line for part in recorded for line in part(data)] + list(nodes()))
    print(table.to_string(index=False, float_format="{:.1f}".format))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "data", nargs="?", type=pathlib.Path, default=ROOT.parent / "shared/data", help="folder of the recorded runs"
    )
    main(parser.parse_args().data)
