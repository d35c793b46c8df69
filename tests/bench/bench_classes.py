"""How far predicted iteration times are off by class of job: dense models, mixtures of experts, adapters, AMD's GPUs.

    python tests/bench/bench_classes.py [--write] TABLE_OR_FOLDER ...

Each class has tables that constants or profiles were fitted to and others, which say what a new job may expect. Rows
are predicted by the physics alone, as surrogates remember runs of the first kind. Of each class: rows, tables, the mean
over tables of their median errors, the worst table, the median of predicted over measured less 1, the largest error of
a row, and the share of rows within the 90 % interval; then every table. Tables of models so small that the host's time
is all they show are left out. ``--write`` records the figures (docs/figures.json), of which README and docs show some,
writes the tables into docs/appendix/accuracy-by-source.md, and those of combinations and of releases into
docs/accuracy.md: by GPU, framework profile, kind of job and precision, and by profile, release and kind of job, the
runs, the median error, the error that nine of ten runs keep (of less than ten the largest), and the median of predicted
over measured less 1.
"""

from __future__ import annotations

import argparse
import functools
import operator
from pathlib import Path

import pandas as pd
from bench_accuracy import ROOT, SOURCES, clean

import jointopt
from jointopt.jobs.catalog.frameworks import named_release, recognise_framework, release_numbers
from jointopt.studies import figures
from jointopt.studies.marked import replace_between

COMMAND = "python tests/bench/bench_classes.py --write DATA_FOLDER"
RESTS_ON = [figures.ACCURACY, *(figures.GOLDEN.format(table) for table in ("rows", "plans", "frameworks"))]
NOT_FITTED = ("aleph_layouts", "fms_fsdp", "nvidia_nemo_docs")  # of the dense sources, no profile's
FITTED = {
    "dense": {*SOURCES, "jax_pax", "jax_pax_2023"} - {*NOT_FITTED},
    "experts": {"nvidia_nemo_docs", "megatron_bridge_a", "megatron_bridge_moe"},
}
HOST_ONLY = ("mcore_tiny",)
NEWER = (26, 6)  # containers whose recipes of experts are captured, fused and overlapped


def named(path: Path) -> str:
    """The source of a table, by its file's name."""
    return path.stem.removeprefix("layouts_").removeprefix("recipes_")


def timed(path: Path) -> pd.DataFrame:
    """Rows of a table whose time is known, from throughput where that was published instead."""
    table = pd.read_csv(path)
    if "published_tokens_per_s_per_gpu" in table:
        tokens = table["global_batch_size"] * table["seq_length"]
        table["iteration_time_s"] = tokens / (table["published_tokens_per_s_per_gpu"] * table["num_gpus"])
        table["status"] = "ok"
    if not {"iteration_time_s", "status", "gpu"} <= set(table):
        return table[:0]
    return table[(table["status"] == "ok") & (table["iteration_time_s"] > 0)].reset_index(drop=True)


def classes(table: pd.DataFrame) -> pd.Series:
    """Of each row: dense, experts, adapters or AMD."""
    none = pd.Series(0.0, table.index)
    kind = pd.Series("dense", table.index)
    kind = kind.mask(table.get("num_experts", none).fillna(0) > 0, "experts")
    kind = kind.mask(table.get("lora_dim", none).fillna(0) > 0, "adapters")
    return kind.mask(table["gpu"].astype(str).str.startswith("mi"), "AMD")


def stack(text: str) -> str:
    """The profile that a table's text on its framework names, or that text where it names none."""
    profile, known = recognise_framework(text)
    return profile.name if known else f"none: {text.partition(' (')[0]}"


def judged(paths: list[Path]) -> pd.DataFrame:
    """Every row with its class, source, error, sign of it, and whether its interval holds the time."""
    found = []
    for path in paths:
        source, table = named(path), timed(path)
        for kind, rows in table.groupby(classes(table)):
            rows = clean(source, rows) if kind == "dense" else rows.reset_index(drop=True)
            none = pd.Series("", rows.index)
            out = jointopt.predict(rows, surrogate="none")
            ratio = out["predicted_iteration_time_s"].fillna(2.0 * out["iteration_time_s"]) / out["iteration_time_s"]
            low, high = (out[f"predicted_iteration_time_s_{end}"] for end in ("low", "high"))
            stated = (rows.get(name, none) for name in ("framework_release", "framework_version", "framework"))
            text = functools.reduce(
                operator.add, (cells.astype(object).fillna("").astype(str) + " " for cells in stated)
            )
            release = text.map(named_release)
            found.append(pd.DataFrame({
                "class": f"{'fitted ' * (source in FITTED.get(kind, ()))}{kind}", "source": source, "release": release,
                "gpu": rows["gpu"].astype(str).str.partition("-")[0].str.upper(),
                "profile": rows.get("framework", none).astype(str).map(stack),
                "dtype": rows.get("dtype", none).astype(str),
                "job": classes(rows.assign(gpu="")), "fitted": "yes" if source in FITTED.get(kind, ()) else "no",
                "error": (ratio - 1.0).abs(), "ratio": ratio,
                "covered": (out["iteration_time_s"] >= low) & (out["iteration_time_s"] <= high),
            }))  # fmt: skip
    return pd.concat(found, ignore_index=True)


def by_class(rows: pd.DataFrame) -> pd.DataFrame:
    """A line per class, in percent."""
    lines = {}
    for kind, part in rows.groupby("class"):
        errors = part.groupby("source")["error"].median()
        lines[kind] = {
            "rows": len(part), "tables": len(errors), "median error": 100.0 * errors.mean(),
            "worst table": 100.0 * errors.max(), "bias": 100.0 * (part["ratio"].median() - 1.0),
            "largest error": 100.0 * part["error"].max(), "covered": 100.0 * part["covered"].mean(),
        }  # fmt: skip
    return pd.DataFrame(lines).T.astype({"rows": int, "tables": int})


def by_table(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """A line per class and table, or release of one, in percent."""
    grouped = rows.groupby(by)
    errors = pd.DataFrame({"rows": grouped.size(), "median error": 100.0 * grouped["error"].median()})
    return errors.assign(bias=100.0 * (grouped["ratio"].median() - 1.0), covered=100.0 * grouped["covered"].mean())


def by_kind(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """A line per value of ``by``, in percent, apart by whether profiles were fitted."""
    grouped = rows.groupby([*by, "fitted"])
    errors = pd.DataFrame({"runs": grouped.size(), "off by": 100.0 * grouped["error"].median()})
    within = 100.0 * grouped["error"].quantile(0.9, interpolation="higher")
    bias = 100.0 * (grouped["ratio"].median() - 1.0)
    return errors.assign(**{"9 of 10 within": within, "bias": bias}).reset_index().round(1)


def summary(rows: pd.DataFrame) -> dict[str, float]:
    """The figures that pages show, by name."""
    shown = {f"{kind} {name}": value for kind, line in by_class(rows).iterrows() for name, value in line.items()}
    every = rows[rows["job"] == "experts"]
    newer = every[every["release"].map(release_numbers) >= NEWER]
    shown |= {"experts newer rows": len(newer), "experts newer error": 100.0 * newer["error"].median()}
    shown |= {"experts rows error": 100.0 * every["error"].median(), "experts sources": every["source"].nunique()}
    return {str(name): float(value) for name, value in shown.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("tables", nargs="+", type=Path)
    given = parser.parse_args()
    files = [file for path in given.tables for file in (sorted(path.glob("*s_*.csv")) if path.is_dir() else [path])]
    rows = judged([file for file in files if named(file) not in HOST_ONLY and len(timed(file))])
    parts = [by_class(rows), by_table(rows, ["class", "source"])]
    text = "\n\n".join(part.round(1).to_string() for part in parts)
    text = "\n".join(line.rstrip() for line in text.splitlines())
    gpus = by_kind(rows, ["gpu", "profile", "job", "dtype"]).to_string(index=False)
    releases = by_kind(rows[rows["release"] != ""], ["profile", "release", "job"]).to_string(index=False)
    print(gpus, releases, text, sep="\n\n")
    if given.write:
        page = ROOT / "docs" / "accuracy.md"
        replace_between(page, "<!-- gpus -->", "<!-- end of gpus -->", f"```text\n{gpus}\n```")
        replace_between(page, "<!-- releases -->", "<!-- end of releases -->", f"```text\n{releases}\n```")
        page = ROOT / "docs" / "appendix" / "accuracy-by-source.md"
        replace_between(page, "<!-- classes -->", "<!-- end of classes -->", f"```text\n{text}\n```")
        figures.record("classes", COMMAND, RESTS_ON, summary(rows), [gpus, releases, text])


if __name__ == "__main__":
    main()
