"""Accuracy of the predictions over recorded runs, per source: median error, Kendall tau, regret, memory, OOM.

    python tests/bench/bench_accuracy.py [--write] [--quantiles] [--nodes] [--spans] [DATA_FOLDER]

Prints a table of `SOURCES`; with ``--write`` also replaces the table in docs/appendix/accuracy-by-source.md and records
what pages quote of it (docs/figures.json); with ``--quantiles`` prints the quantiles of measured over predicted that
jointopt/jobs/catalog/physics_error.yaml holds, with ``--nodes`` what a doubling of the nodes adds to times beyond the
prediction, between runs that differ in data ranks alone, with ``--spans`` alone the attention, recipes of low precision
and the shortest layer that it names. The default folder is ../shared/data beside the repository. Tables of other
sources there are judged by bench_classes.py. nanotron rows follow its README: tp <= 8, no ZeRO-0 with pipelines, at
least 5 % of the peak.
"""

from __future__ import annotations

import pathlib
import sys
from collections import Counter

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

import jointopt
from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.runs.workloads import workloads
from jointopt.studies import figures
from jointopt.surrogate.intervals import layer_peak_s

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = "python tests/bench/bench_accuracy.py --write DATA_FOLDER"
SOURCES = (  # of dense models; profiles were fitted to most of them
    "aleph_layouts", "bigscience", "dlperf_gpt_v100", "fms_fsdp", "internevo", "korthikanti_2205_05198",
    "mlperf_pretrain", "mosaic_llm_foundry", "nanotron_ultrascale", "nvidia_nemo_docs", "sailor", "torchtitan",
    "vtrain",
)  # fmt: skip
FEWEST = 3  # rows that are evidence of a kernel
MEMORY_SOURCES = ("sailor", "torchtitan", "nanotron_ultrascale")  # by their allocators
BY_DRIVER = "bigscience"  # whose nvidia-smi also counts what the allocator keeps unused


def clean(source: str, table: pd.DataFrame) -> pd.DataFrame:
    """Timed dense rows of one source, without the rows that its README calls outliers."""
    rows = table[table.status == "ok"]
    if "num_experts" in rows:
        rows = rows[rows.num_experts.fillna(0) == 0]
    if source == "nanotron_ultrascale":
        weights = rows.num_layers * rows.hidden_size * (4 * rows.hidden_size + 3 * rows.ffn_hidden_size)
        work = 6 * weights * rows.seq_length * rows.global_batch_size
        share = work / (rows.iteration_time_s * rows.num_gpus * 989e12)
        rows = rows[(rows.tp <= 8) & ~((rows.zero_stage == 0) & (rows.pp > 1)) & (share > 0.05)]
    return rows.reset_index(drop=True)


def score(source: str, table: pd.DataFrame) -> tuple[dict[str, object], pd.DataFrame]:
    rows = clean(source, table)
    out = jointopt.predict(rows, surrogate="none")
    predicted, measured = out.predicted_iteration_time_s, rows.iteration_time_s
    error = (predicted - measured).abs() / measured
    taus, regrets = [], []
    for _, at in rows.groupby("group").indices.items():
        if len(at) >= 12:
            p, t = predicted.to_numpy()[at], measured.to_numpy()[at]
            taus.append(float(np.nan_to_num(kendalltau(p, t)[0])))
            regrets.append(t[p.argmin()] / t.min() - 1)
    line: dict[str, object] = {
        "source": source, "rows": len(rows), "median error": error.median(), "mean error": error.mean(),
        "bias": np.exp(np.log(predicted / measured).median()) - 1,
        "groups": len(taus), "tau": np.mean(taus) if taus else np.nan,
        "regret": np.median(regrets) if regrets else np.nan,
    }  # fmt: skip
    if source in (*MEMORY_SOURCES, BY_DRIVER):
        known = rows.peak_memory_gib.notna()
        ratio = out.predicted_peak_memory_gib[known] / rows.peak_memory_gib[known]
        line["memory error"], line["memory bias"] = (ratio - 1).abs().median(), ratio.median() - 1
    return line, pd.concat([rows, out[[c for c in out if c not in rows]]], axis=1)


def out_of_memory(table: pd.DataFrame) -> tuple[float, float]:
    """Recall and precision of "does not fit" on rows that ran or ran out of memory."""
    rows = table[table.status.isin(["ok", "oom"])].reset_index(drop=True)
    out = jointopt.predict(rows, surrogate="none")
    predicted, was = out.fit_probability < 0.5, rows.status == "oom"  # blank where not predicted
    hit = (predicted & was).sum()
    return hit / was.sum(), hit / max(1, predicted.sum())


def quantiles(runs: list[pd.DataFrame], column: str) -> list[float]:
    """5 % and 95 % quantiles of measured over predicted, every source with equal weight."""
    ratios = [(t[column] / t[f"predicted_{column}"]).dropna() for t in runs if column in t]
    pooled = pd.concat(ratios).to_numpy()
    weights = np.concatenate([np.full(len(r), 1.0 / len(r)) for r in ratios if len(r)])
    order = np.argsort(pooled)
    below = np.cumsum(weights[order]) / weights.sum()
    return [round(float(pooled[order][np.searchsorted(below, q)]), 2) for q in (0.05, 0.95)]


def quantiles_of_both(known: dict[str, pd.DataFrame], generic: list[pd.DataFrame]) -> str:
    """Quantiles of both predictions of every run together, and the widest of these without any one source."""
    own, time = list(known.values()), "iteration_time_s"
    rest = [quantiles([*own[:i], *own[i + 1 :], *generic[:i], *generic[i + 1 :]], time) for i in range(len(own))]
    lows, highs = zip(*rest, strict=True)
    return f"{quantiles([*own, *generic], time)}, without any one source {[min(lows), max(highs)]}"


def without_profile(tables: dict[str, pd.DataFrame]) -> tuple[list[pd.DataFrame], float]:
    """The same runs under a framework without a profile, and their median error averaged over sources."""
    generic = [jointopt.predict(t.assign(framework=""), surrogate="none") for t in tables.values()]
    errors = [(t.predicted_iteration_time_s / t.iteration_time_s - 1).abs().median() for t in generic]
    return generic, float(np.mean(errors))


def print_quantiles(tables: dict[str, pd.DataFrame]) -> None:
    """For each source's own profile, and for the same runs under a framework without a profile."""
    memory = [t for name, t in tables.items() if name in MEMORY_SOURCES]
    generic, error = without_profile(tables)
    print(f"unknown framework: median error averaged over sources {error:.3f}")
    print("iteration_time_s near", quantiles_of_both(tables, generic))
    print("iteration_time_s unknown", quantiles(generic, "iteration_time_s"))
    print("peak_memory_gib known", quantiles(memory, "peak_memory_gib"))


def print_spans(folder: pathlib.Path) -> None:
    """Attention kernels, forms and recipes of fp8 and fp4 of clean runs that `FEWEST` rows or more have.

    And the shortest layer of those whose profile has no host floor.
    """
    shortest_s = np.inf
    kernels, forms, recipes = Counter(), Counter(), Counter()
    for path in sorted(folder.glob("*s_*.csv")):
        table = pd.read_csv(path)
        if {"model", "hidden_size", "seq_length"} - set(table):
            continue
        runs = path.stem.startswith("layouts_")
        rows = clean(path.stem.removeprefix("layouts_"), table) if runs else table
        for work in workloads(rows)[0]:
            model, training, count = work.job.model, work.job.training, len(work.rows)
            if training.fp8_recipe is not None and "fp8_recipe" not in work.assumed[0].split():
                recipes[training.fp8_recipe.name] += count
            if runs:
                kernels[training.attention] += count
                has = {"latent": model.kv_lora_rank, "window": model.window_size}
                has["alibi"] = model.position_embedding == "alibi"
                forms.update({name: count for name, value in has.items() if value})
                if not training.framework.host_floor_s:
                    shortest_s = min(shortest_s, float(np.nanmin(layer_peak_s(work.job, work.plans))))
    spans = {"attentions": kernels, "attention_forms": forms, "fp8_recipes": recipes}
    for name, found in spans.items():
        print(name, sorted(one for one, count in found.items() if count >= FEWEST), dict(found))
    print(f"shortest layer {1e3 * shortest_s:.2f} ms")


def print_nodes(runs: dict[str, pd.DataFrame], draws: int = 1000) -> None:
    """Slopes of log(measured / predicted) over log2(nodes) by source, and their mean; 90 % by draws of groups.

    A group: one source, model, lengths, GPU, software and layout, at so many sequences per data rank.
    """
    rng, found = np.random.default_rng(0), []
    for source, table in runs.items():
        nodes = np.log2(np.ceil(table.num_gpus / table.gpus_per_node))
        error = np.log(table.iteration_time_s / table.predicted_iteration_time_s)
        same = ["model", "gpu", "seq_length", "framework", *(c for c in LAYOUT_COLUMNS if c in table and c != "dp")]
        keys = table[same].astype(str).assign(own=table.global_batch_size / table.dp)
        at = pd.DataFrame({"nodes": nodes, "error": error}).groupby([keys[c] for c in keys])
        apart = pd.DataFrame({"nodes": nodes, "error": error}) - at.transform("mean")
        sums = pd.DataFrame({"xy": apart.nodes * apart.error, "xx": apart.nodes**2}).groupby(at.ngroup()).sum()
        sums = sums[sums.xx > 0].to_numpy()
        if len(sums) > 1:
            drawn = sums[rng.integers(len(sums), size=(draws, len(sums)))].sum(axis=1)
            slopes = drawn[:, 0] / drawn[:, 1]
            found.append((source, len(sums), sums[:, 0].sum() / sums[:, 1].sum(), max(slopes.std(), 0.005)))
    table = pd.DataFrame(found, columns=["source", "groups", "slope", "deviation"])
    weight = table.deviation**-2
    spread = (weight * (table.slope - (weight * table.slope).sum() / weight.sum()) ** 2).sum() - len(table) + 1
    weight = 1.0 / (table.deviation**2 + max(spread / (weight.sum() - (weight**2).sum() / weight.sum()), 0.0))
    mean, half = (weight * table.slope).sum() / weight.sum(), 1.645 / weight.sum() ** 0.5
    print(table.round(4).to_string(index=False))
    print(f"per doubling of nodes {mean:.4f}, 90 % {mean - half:.4f} to {mean + half:.4f}")


WHOLE = ("runs", "sources", "tau", "groups")  # the other figures are shares


def summary(scores: pd.DataFrame, generic: float) -> dict[str, float]:
    """The figures that pages quote of the table, by name; of memory by allocators the least and the most."""
    by = scores.set_index("source")
    memory = by["memory error"][[*MEMORY_SOURCES]]
    shown = {
        "runs": by["rows"].sum(), "sources": len(by), "median": by["median error"].mean(), "generic": generic,
        "tau": (by["tau"] * by["groups"]).sum() / by["groups"].sum(), "groups": by["groups"].sum(),
        "regret": by["regret"].mean(), "memory least": memory.min(), "memory most": memory.max(),
        "memory short": -by["memory bias"][BY_DRIVER],
    }  # fmt: skip
    of_sources = {f"{source} {name}": by[name][source] for source in by.index for name in ("median error", "bias")}
    memories = {f"{source} memory error": by["memory error"][source] for source in (*MEMORY_SOURCES, BY_DRIVER)}
    return {name: float(value) for name, value in (shown | of_sources | memories).items()}


def main() -> None:
    words = [w for w in sys.argv[1:] if not w.startswith("--")]
    folder = pathlib.Path(words[0]) if words else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        sys.exit(f"No recorded runs in {folder}: give the folder that holds layouts_*.csv.")
    if "--spans" in sys.argv:
        return print_spans(folder)
    lines, runs = [], {}
    for source in SOURCES:
        path = folder / f"layouts_{source}.csv"
        line, runs[source] = score(source, pd.read_csv(path))
        lines.append(line)
    scores = pd.DataFrame(lines)
    means = scores[["median error", "tau", "regret"]].mean()
    means["tau"] = (scores.tau * scores.groups).sum() / scores.groups.sum()
    recall, precision = out_of_memory(pd.read_csv(folder / "layouts_aleph_layouts.csv"))
    text = scores.round(3).to_string(index=False, na_rep="")
    text += (
        f"\n\nmedian error averaged over sources {means['median error']:.3f}; "
        f"tau averaged over groups of 12 or more plans {means['tau']:.3f}; regret {means['regret']:.3f}\n"
        f"out of memory (aleph): recall {recall:.3f}, precision {precision:.3f}"
    )
    print(text)
    if "--quantiles" in sys.argv:
        print_quantiles(runs)
    if "--nodes" in sys.argv:
        print_nodes(runs)
    if "--write" in sys.argv:
        page = ROOT / "docs" / "appendix" / "accuracy-by-source.md"
        before = page.read_text().split("```text\n")[0]
        after = page.read_text().split("\n```", 2)[-1]
        page.write_text(f"{before}```text\n{text}\n```{after}")
        shown = summary(scores, without_profile(runs)[1]) | {"recall": recall, "precision": precision}
        percent = {f"{name} percent": 100.0 * shown.pop(name) for name in [*shown] if name not in WHOLE}
        figures.record("accuracy", COMMAND, [figures.ACCURACY], shown | percent, [text])


if __name__ == "__main__":
    main()
