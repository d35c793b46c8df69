"""Where joint search beats tuning the clocks of the fastest layout: the jobs of ``jobs.yaml``, one proposal each.

    python studies/joint-or-not/joint_or_not.py [--every N] [--out FOLDER]

Writes ``results.csv`` (a row per job), ``table.csv`` (shares by property, and a row per cell) and ``savings.png`` into
the folder. By default this is the file's own; then the tables of its README and the figures that pages quote
(``docs/figures.json``) are written too. ``--every N`` takes each N-th cell alone into another folder, ``--from
results.csv`` runs no job.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import yaml

mpl.use("Agg")
import matplotlib.pyplot as plt

from jointopt.core.errors import InfeasibleError
from jointopt.core.schema import DEGREES, Columns
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.report.proposal import Proposal
from jointopt.studies import figures
from jointopt.studies.marked import replace_between
from jointopt.workflows.propose import propose

HERE = Path(__file__).resolve().parent
COMMAND = "python studies/joint-or-not/joint_or_not.py"
RESTS_ON = [figures.GOLDEN.format(table) for table in ("fronts", "plans", "spaces")]
WORKERS = 2
PAYS, PAYS_MUCH = 0.01, 0.05  # shares of energy from which a saving counts
LITTLE = 0.0005  # a saving that prints as 0.0 %
LATER = 0.05  # more time than the fastest plan, within which clocks may fall
CELL = ("model", "seq_length", "gpu", "nodes", "gpus_per_node", "inter_node_gbytes_per_s")
VARIED = ("link_share", "sequences_per_gpu")
SPLIT = (*DEGREES, "ep")
FACTS = (*SPLIT, "recompute", "micro_batch_size")


def cases(every: int = 1) -> Iterator[dict[str, Any]]:
    """The cells of ``jobs.yaml`` (each ``every``-th) with both links and batches, without their deadlines."""
    table = yaml.safe_load((HERE / "jobs.yaml").read_text(encoding="utf-8"))
    for cell in table["cells"][::every]:
        for varied in itertools.product(table["link_shares"], table["sequences_per_gpu"]):
            shared = {key: table[key] for key in ("deadlines", "clock_step_mhz", "lowest_clock")}
            yield dict(zip((*CELL, *VARIED), (*cell, *varied), strict=True)) | shared


def job_of(case: dict[str, Any], deadline_s: float | None) -> Job:
    """The job of a case, which ends an iteration within ``deadline_s`` where that is given."""
    top = load_gpu(case["gpu"]).need("clock_max_mhz", "list its clocks")
    steps = int((1.0 - case["lowest_clock"]) * top / case["clock_step_mhz"])
    clocks = [top - case["clock_step_mhz"] * step for step in range(steps, -1, -1)]
    gpus = case["nodes"] * case["gpus_per_node"]
    cluster = {key: case[key] for key in ("gpu", "nodes", "gpus_per_node")}
    cluster["inter_node_gbytes_per_s"] = case["inter_node_gbytes_per_s"] * case["link_share"]
    training = {"seq_length": case["seq_length"], "global_batch_size": case["sequences_per_gpu"] * gpus}
    mapping = {
        "model": case["model"], "training": training | {"dtype": "bf16", "framework": "megatron-lm"},
        "cluster": cluster, "search": {"clock_mhz": clocks},
    }  # fmt: skip
    limits = {} if deadline_s is None else {"constraints": {"iteration_time_s": deadline_s}}
    return parse_job(mapping | limits, "joint-or-not", HERE)


def rows_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each deadline of a case; without a saving where no plan is feasible."""
    rows, fastest_s = [], None
    for deadline in case["deadlines"]:
        row = {key: case[key] for key in (*CELL, *VARIED)} | {"deadline": deadline}
        try:
            found = propose(job_of(case, fastest_s and deadline and deadline * fastest_s))
        except InfeasibleError:
            rows.append(row)
            continue
        fastest_s = fastest_s or float(found.front["iteration_time_s"].min())
        rows.append(row | _facts(found))
    return rows


def _facts(found: Proposal) -> dict[str, Any]:
    """The savings of a proposal, the fastest layout, and the layout that saves most beside it."""
    if found.joint is None:
        return {}
    joint, two_step, front = found.joint.document(), found.joint.two_step, found.front
    within = np.flatnonzero(front["iteration_time_s"] <= joint["at_time_s"] * (1.0 + 1e-9))
    best = within[front["energy_j"][within].argmin()] if len(within) else 0
    shape = {f"two_step_{name}": two_step[name][0] for name in FACTS}
    other = {f"joint_{name}": front[name][best] for name in FACTS}
    late = joint["at_time_s"] / two_step["iteration_time_s"].min() - 1.0
    return {
        "energy_saving": joint["largest_energy_saving"], "time_saving": joint["largest_time_saving"], "slower_by": late,
        "two_step_later": _saved_later(found, two_step), "joint_later": _saved_later(found, front),
        "feasible_layouts": found.feasible_layouts, **shape, **other,
    }  # fmt: skip


def _saved_later(found: Proposal, plans: Columns) -> float:
    """Share of the energy of the fastest plan at the top clock that plans save within `LATER` more time."""
    time_s, energy_j = (float(found.reference[name][0]) for name in ("iteration_time_s", "energy_j"))
    within = plans["iteration_time_s"] <= time_s * (1.0 + LATER) * (1.0 + 1e-9)
    return 1.0 - float(plans["energy_j"][within].min(initial=energy_j)) / energy_j


def savings(every: int = 1) -> pd.DataFrame:
    """The rows of all cases, worked on by `WORKERS` processes, with a line on standard error for each case."""
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        for rows in pool.map(rows_of, cases(every)):
            found += rows
            print(f"{len(found)} jobs, {rows[0]['model']} on {rows[0]['gpu']}", file=sys.stderr)
    return pd.DataFrame(found)


def by_cell(found: pd.DataFrame) -> pd.DataFrame:
    """Savings in percent: a row per cell, a column per link, batch and deadline; NaN where nothing is feasible."""
    named = found.assign(
        link=found["link_share"].map(lambda share: "fast" if share == 1.0 else "slow"),
        batch=found["sequences_per_gpu"].map("b{}".format),
        until=found["deadline"].map(lambda factor: "any time" if pd.isna(factor) else f"+{factor - 1:.0%}"),
        cell=found["model"] + " on " + (found["nodes"] * found["gpus_per_node"]).astype(str) + " " + found["gpu"],
        percent=100.0 * found["energy_saving"],
    )
    wide = named.pivot_table("percent", "cell", ["link", "batch", "until"], sort=False, dropna=False)
    wide.columns = [" ".join(names) for names in wide.columns]
    return wide.round(1)


def by_property(found: pd.DataFrame) -> pd.DataFrame:
    """Jobs, share of them that save `PAYS` of energy, median and largest saving in percent, by property of the job."""
    known, rows = found.dropna(subset="energy_saving"), []
    for name, holds in _properties(known).items():
        for group, part in known.groupby(holds, observed=True):
            saved = 100.0 * part["energy_saving"]
            paying = 100.0 * (part["energy_saving"] >= PAYS).mean()
            rows.append((name, group, len(part), paying, saved.median(), saved.max()))
    return pd.DataFrame(rows, columns=["property", "is", "jobs", "paying_%", "median_%", "largest_%"]).round(1)


def _properties(found: pd.DataFrame) -> dict[str, pd.Series]:
    vendor = found["gpu"].map(lambda gpu: load_gpu(gpu).vendor)
    billions = found["model"].map(lambda name: round(load_model(name).parameters / 1e9))
    experts = found["model"].str.startswith("mixtral")
    return {
        "deadline": found["deadline"].map(lambda factor: "none" if pd.isna(factor) else f"+{factor - 1:.0%}"),
        "sequences per GPU": found["sequences_per_gpu"],
        "link": found["link_share"].map(lambda share: "fast" if share == 1.0 else "slow"),
        "stages of the fastest layout": pd.cut(found["two_step_pp"], [0, 1, 4, np.inf], labels=["1", "2-4", "5-"]),
        "fastest layout recomputes": found["two_step_recompute"] > 0,
        "experts": experts,
        "billion parameters": pd.cut(
            billions.where(~experts), [0, 30, 80, np.inf], labels=["below 32", "32-70", "above 70"]
        ),
        "vendor": vendor,
    }


def summary(found: pd.DataFrame) -> dict[str, float]:
    """The figures that pages quote, by name: of all jobs, and shares, medians and extremes by property."""
    saved = found["energy_saving"].dropna()
    free = found[found["deadline"].isna()]
    shown = {
        "jobs": len(saved), "paying jobs": (saved >= PAYS).sum(), "paying percent": 100.0 * (saved >= PAYS).mean(),
        "paying much jobs": (saved >= PAYS_MUCH).sum(), "paying much percent": 100.0 * (saved >= PAYS_MUCH).mean(),
        "saving nothing jobs": (saved < LITTLE).sum(), "median percent": 100.0 * saved.median(),
        "largest percent": 100.0 * saved.max(),
        "two steps later percent": 100.0 * free["two_step_later"].median(),
        "joint later percent": 100.0 * free["joint_later"].median(),
        "slower percent": 100.0 * free["slower_by"][free["energy_saving"] >= PAYS].median(),
    }  # fmt: skip
    paying, others = (free[free["energy_saving"].ge(PAYS) == pays] for pays in (True, False))
    same = np.all([paying[f"joint_{name}"] == paying[f"two_step_{name}"] for name in SPLIT], axis=0)
    shown |= {
        "free paying jobs": len(paying), "free paying deeper jobs": _deeper(paying), "free other jobs": len(others),
        "free paying of the same degrees jobs": same.sum(), "free other deeper jobs": _deeper(others),
    }  # fmt: skip
    for row in by_property(found).itertuples(index=False, name=None):
        named = dict(zip(("jobs", "paying percent", "median percent", "largest percent"), row[2:], strict=True))
        shown |= {f"{row[0]} {row[1]} {name}": value for name, value in named.items()}
    return {name: float(value) for name, value in shown.items()}


def _deeper(found: pd.DataFrame) -> int:
    """Jobs whose layout that saves most has more stages than the fastest one."""
    return int((found["joint_pp"] > found["two_step_pp"]).sum())


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw the saving of each job without a deadline, a line per cell, the cells by their largest saving."""
    free = found[found["deadline"].isna()].dropna(subset="energy_saving")
    free = free.assign(cell=free["model"] + ", " + free["gpu"])
    order = free.groupby("cell")["energy_saving"].max().sort_values().index
    figure, axes = plt.subplots(figsize=(7.6, 6.2), dpi=100)
    styles = {(1.0, 1): ("o", "tab:red"), (1.0, 8): ("o", "tab:blue"), (0.125, 1): ("v", "tab:red"),
              (0.125, 8): ("v", "tab:blue")}  # fmt: skip
    for (share, batch), (marker, colour) in styles.items():
        part = free[(free["link_share"] == share) & (free["sequences_per_gpu"] == batch)]
        link = "full link" if share == 1.0 else "an eighth of the link"
        label = f"{batch} sequence{'s' * (batch > 1)} per GPU, {link}"
        height = order.get_indexer(pd.Index(part["cell"]))
        axes.scatter(
            100.0 * part["energy_saving"], height, marker=marker, s=34, color=colour, alpha=0.7, label=label, zorder=3
        )
    axes.set_yticks(range(len(order)), order, fontsize=8)
    axes.set(xlabel="largest energy saving of joint search at equal time (%)", ylim=(-0.7, len(order) - 0.3))
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(file)


def main() -> None:
    """Run the jobs, write the table and the plot, and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="take each N-th cell alone")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of what is written")
    parser.add_argument("--from", type=Path, dest="rows", help="results.csv whose rows are taken")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found = savings(options.every) if options.rows is None else pd.read_csv(options.rows)
    found = found.round(5)
    found.to_csv(options.out / "results.csv", index=False)
    draw(found, options.out / "savings.png")
    shares, cells = by_property(found), by_cell(found)
    text = f"{shares.to_csv(index=False)}\n{cells.to_csv()}"
    (options.out / "table.csv").write_text(text, encoding="utf-8")
    print(text)
    if options.out.resolve() == HERE and options.every == 1:
        for name, table in (("properties", shares.to_csv(index=False)), ("cells", cells.to_csv())):
            replace_between(HERE / "README.md", f"<!-- {name} -->", f"<!-- end of {name} -->", f"```\n{table}```")
        figures.record("joint-or-not", COMMAND, RESTS_ON, summary(found), anew=options.rows is None)


if __name__ == "__main__":
    main()
