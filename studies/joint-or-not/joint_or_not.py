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
from jointopt.search.pareto import take
from jointopt.studies import figures
from jointopt.studies.marked import replace_between
from jointopt.workflows.answers import ReferencePlan
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
ENDS = ("_low", "_high")  # of a 90 % interval


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
    if found.joint is None or found.model is None:
        return {}
    compared = ReferencePlan(found.predicting_model, found.reference)
    joint, two_step, front = found.joint.document(), found.joint.two_step, found.front
    within = np.flatnonzero(front["iteration_time_s"] <= joint["at_time_s"] * (1.0 + 1e-9))
    best = within[front["energy_j"][within].argmin()] if len(within) else 0
    shape = {f"two_step_{name}": two_step[name][0] for name in FACTS}
    other = {f"joint_{name}": front[name][best] for name in FACTS}
    late = joint["at_time_s"] / two_step["iteration_time_s"].min() - 1.0
    saved = {f"energy_saving{end}": joint[f"largest_energy_saving{end}"] for end in ("", *ENDS, "_probability")}
    return {
        **saved, "time_saving": joint["largest_time_saving"], "slower_by": late,
        **_saved_later("two_step_later", compared, two_step), **_saved_later("joint_later", compared, front),
        "feasible_layouts": found.feasible_layouts, **shape, **other,
    }  # fmt: skip


def _saved_later(name: str, compared: ReferencePlan, plans: Columns) -> dict[str, float]:
    """Share of the energy of the reference that plans save within `LATER` more time, and its interval.

    The interval is that of the difference of the two plans, as a proposal states it.
    """
    time_s, energy_j = (float(compared.reference[name][0]) for name in ("iteration_time_s", "energy_j"))
    within = np.flatnonzero(plans["iteration_time_s"] <= time_s * (1.0 + LATER) * (1.0 + 1e-9))
    if plans["energy_j"][within].min(initial=energy_j) >= energy_j:
        return dict.fromkeys((name, *(name + end for end in ENDS)), 0.0)
    best = take(plans, within[[plans["energy_j"][within].argmin()]])
    apart, _ = compared.differences(best)
    others = {"": "", "_low": "_high", "_high": "_low"}
    return {name + end: -float(apart[f"energy_vs_first_percent{of}"][0]) / 100.0 for end, of in others.items()}


def savings(every: int = 1) -> pd.DataFrame:
    """The rows of all cases, worked on by `WORKERS` processes, with a line on standard error for each case."""
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        for rows in pool.map(rows_of, cases(every)):
            found += rows
            print(f"{len(found)} jobs, {rows[0]['model']} on {rows[0]['gpu']}", file=sys.stderr)
    return pd.DataFrame(found)


def by_cell(found: pd.DataFrame) -> pd.DataFrame:
    """Savings in percent: a row per cell, a column per link, batch and deadline; NaN where nothing is feasible.

    Behind them the largest of the row again, with the ends of its interval.
    """
    named = found.assign(
        link=found["link_share"].map(lambda share: "fast" if share == 1.0 else "slow"),
        batch=found["sequences_per_gpu"].map("b{}".format),
        until=found["deadline"].map(lambda factor: "any time" if pd.isna(factor) else f"+{factor - 1:.0%}"),
        cell=found["model"] + " on " + (found["nodes"] * found["gpus_per_node"]).astype(str) + " " + found["gpu"],
        percent=100.0 * found["energy_saving"],
    )
    wide = named.pivot_table("percent", "cell", ["link", "batch", "until"], sort=False, dropna=False)
    wide.columns = [" ".join(names) for names in wide.columns]
    known = named.dropna(subset="percent")
    best = known.loc[known.groupby("cell")["percent"].idxmax()].set_index("cell")
    return wide.assign(largest=best["percent"], **{end[1:]: 100.0 * best["energy_saving" + end] for end in ENDS}).round(
        1
    )


def by_property(found: pd.DataFrame) -> pd.DataFrame:
    """Shares of jobs, medians and extremes in percent by property of the job.

    Of joint search: how many save `PAYS`, the median saving, the largest and its interval. Of clocks alone: the median
    of what they save within `LATER` more time, and for how many jobs that is clear of its interval.
    """
    known, rows = found.dropna(subset="energy_saving"), []
    for name, holds in _properties(known).items():
        for group, part in known.groupby(holds, observed=True):
            saved, clear = 100.0 * part["energy_saving"], 100.0 * (part["two_step_later_low"] > 0.0).mean()
            best, clocks = part.iloc[int(saved.argmax())], 100.0 * part["two_step_later"].median()
            paying = 100.0 * (part["energy_saving"] >= PAYS).mean()
            ends = [100.0 * best["energy_saving" + end] for end in ENDS]
            rows.append((name, group, len(part), paying, saved.median(), saved.max(), *ends, clocks, clear))
    columns = [f"{figure}_%" for figure in ("paying", "median", "largest", "low", "high", "clocks", "clocks_clear")]
    return pd.DataFrame(rows, columns=["property", "is", "jobs", *columns]).round(1)


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
        "largest percent": 100.0 * saved.max(), "clear jobs": (found["energy_saving_low"] > 0.0).sum(),
        "largest probability": found["energy_saving_probability"].max(),
        "paying probability": found["energy_saving_probability"][found["energy_saving"] >= PAYS].median(),
        "paying low percent": 100.0 * found["energy_saving_low"][found["energy_saving"] >= PAYS].median(),
        "paying high percent": 100.0 * found["energy_saving_high"][found["energy_saving"] >= PAYS].median(),
        "free jobs": len(free), "clocks clear jobs": (free["two_step_later_low"] > 0.0).sum(),
        **{f"two steps later{end.replace('_', ' ')} percent": 100.0 * free["two_step_later" + end].median()
           for end in ("", *ENDS)},
        **{f"joint later{end.replace('_', ' ')} percent": 100.0 * free["joint_later" + end].median()
           for end in ("", *ENDS)},
        "slower percent": 100.0 * free["slower_by"][free["energy_saving"] >= PAYS].median(),
    }  # fmt: skip
    paying, others = (free[free["energy_saving"].ge(PAYS) == pays] for pays in (True, False))
    same = np.all([paying[f"joint_{name}"] == paying[f"two_step_{name}"] for name in SPLIT], axis=0)
    shown |= {
        "free paying jobs": len(paying), "free paying deeper jobs": _deeper(paying), "free other jobs": len(others),
        "free paying of the same degrees jobs": same.sum(), "free other deeper jobs": _deeper(others),
    }  # fmt: skip
    for row in (properties := by_property(found)).itertuples(index=False, name=None):
        named = dict(zip(properties.columns[2:], row[2:], strict=True))
        shown |= {
            f"{row[0]} {row[1]} {name.replace('_%', ' percent').replace('_', ' ')}": x for name, x in named.items()
        }
    return {name: float(value) for name, value in shown.items()}


def _deeper(found: pd.DataFrame) -> int:
    """Jobs whose layout that saves most has more stages than the fastest one."""
    return int((found["joint_pp"] > found["two_step_pp"]).sum())


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw what clocks alone save and what joint search adds, of each job without a deadline, with 90 % intervals.

    A line per cell, the cells by their largest saving of joint search.
    """
    free = found[found["deadline"].isna()].dropna(subset="energy_saving")
    free = free.assign(cell=free["model"] + ", " + free["gpu"])
    order = free.groupby("cell")["energy_saving"].max().sort_values().index
    figure, panels = plt.subplots(1, 2, figsize=(10.4, 8.2), dpi=100, sharey=True)
    shown = {
        "two_step_later": "clocks alone: energy saved within 5 % more time\nthan the fastest plan at the top clock (%)",
        "energy_saving": (
            "joint search: largest energy saving at equal time\nagainst the fastest layout with its clocks tuned (%)"
        ),
    }
    styles = {(1.0, 1): ("o", "tab:red"), (1.0, 8): ("o", "tab:blue"), (0.125, 1): ("v", "tab:orange"),
              (0.125, 8): ("v", "tab:cyan")}  # fmt: skip
    for (name, label), axes in zip(shown.items(), panels, strict=True):
        for place, ((share, batch), (marker, colour)) in enumerate(styles.items()):
            part = free[(free["link_share"] == share) & (free["sequences_per_gpu"] == batch)]
            link = "full link" if share == 1.0 else "an eighth of the link"
            height = order.get_indexer(pd.Index(part["cell"])) + 0.2 * (1.5 - place)
            saved, low, high = (100.0 * part[name + end] for end in ("", *ENDS))
            axes.errorbar(
                saved, height, xerr=[saved - low, high - saved], fmt=marker, markersize=4.5, color=colour,
                elinewidth=0.8, label=f"{batch} sequence{'s' * (batch > 1)} per GPU, {link}",
            )  # fmt: skip
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(order)), order, fontsize=8)
        axes.set(ylim=(-0.7, len(order) - 0.3))
        axes.set_xlabel(label, fontsize=9)
        axes.grid(axis="x", alpha=0.3)
    figure.tight_layout(rect=(0.0, 0.03, 1.0, 1.0))
    figure.legend(*panels[1].get_legend_handles_labels(), fontsize=8, loc="lower center", ncols=len(styles))
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
