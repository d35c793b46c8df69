"""Where failures make another plan the one to run than the fastest in one iteration: the jobs of ``jobs.yaml``.

    python studies/run-or-iteration/run_or_iteration.py [--every N] [--out FOLDER]

Writes ``results.csv`` (a row per job), ``table.csv`` (shares by way of failing and by size) and ``savings.png`` into
the folder. By default this is the file's own; then the table of its README and the figures that pages quote
(``docs/figures.json``) are written too. ``--every N`` takes each N-th cell alone into another folder, ``--from
results.csv`` runs no job.
"""

from __future__ import annotations

import argparse
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

from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.jobfile import parse_job
from jointopt.jobs.objectives import RUN_OBJECTIVES
from jointopt.physics.training_runs import TrainingRuns
from jointopt.search.exact import exact_front_of_profiles, fastest_layout
from jointopt.search.local_search import energy_saving, two_step_front
from jointopt.studies import figures
from jointopt.studies.marked import replace_between
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.feasible_layouts import of_runs, prepare_search, top_times
from jointopt.workflows.search_steps import Stopwatch

HERE = Path(__file__).resolve().parent
COMMAND = "python studies/run-or-iteration/run_or_iteration.py"
RESTS_ON = [figures.GOLDEN.format(table) for table in ("fronts", "plans", "spaces")]
WORKERS = 2
PAYS = 0.01  # of the time to train, from which another plan counts
LITTLE = 0.0005  # a share that prints as 0.0 %
FACTS = ("dp", "tp", "pp", "cp", "zero_stage")
PAIR = RUN_OBJECTIVES[:2]


def cases(every: int = 1) -> Iterator[dict[str, Any]]:
    """The cells of ``jobs.yaml`` (each ``every``-th), each with all ways of failing."""
    table = yaml.safe_load((HERE / "jobs.yaml").read_text(encoding="utf-8"))
    for model, nodes in table.pop("cells")[::every]:
        yield table | {"model": model, "nodes": nodes}


def job_of(case: dict[str, Any], failing: str) -> Any:
    """The job of a case that fails in one of its ways."""
    tokens = case["tokens_per_parameter"] * load_model(case["model"]).parameters
    batch = max(case["least_sequences"], case["nodes"])
    training = {"seq_length": case["seq_length"], "global_batch_size": batch, "dtype": "bf16", "run_tokens": tokens}
    return parse_job(
        {
            "model": case["model"], "training": training | {"framework": "megatron-lm"},
            "cluster": {name: case[name] for name in ("gpu", "nodes", "gpus_per_node")},
            "search": {"clock_mhz": case["clocks_mhz"], "per_stage_clocks": False},
            "reliability": case["failing"][failing], "objectives": list(PAIR),
        },
        "run-or-iteration", HERE,
    )  # fmt: skip


def rows_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each way of failing: the fastest layout and the best for the run, each with its own best interval."""
    found = prepare_search(JobModel(job_of(case, next(iter(case["failing"])))), Stopwatch(quiet=True))
    top, rows = fastest_layout(
        found.problem, np.arange(found.problem.num_layouts), top_times(found.problem, found.physics)
    ), []  # fmt: skip
    for failing in case["failing"]:
        job = job_of(case, failing)
        problem = of_runs(job, found.problem, TrainingRuns.of(job, found.problem.layouts))
        front, two_step = exact_front_of_profiles(problem).front, two_step_front(problem, top, 0)
        saved, first = energy_saving(front, two_step, PAIR), int(two_step["iteration_time_s"].argmin())
        row = {"model": case["model"], "gpus": case["nodes"] * case["gpus_per_node"], "failing": failing}
        row |= {"behind": two_step[PAIR[0]][first] / front[PAIR[0]][0] - 1.0, "energy_saving": saved and saved.share}
        for name, plans, at in (("fastest", two_step, first), ("run", front, 0)):
            layout = plans["layout_index"][at]
            row |= {f"{name}_{fact}": problem.layouts[fact][layout] for fact in FACTS}
            row |= {f"{name}_{fact}": plans[fact][at] for fact in ("policy", "effective_time_ratio", PAIR[0])}
        rows.append(row)
    return rows


def results(every: int = 1) -> pd.DataFrame:
    """The rows of all cases, worked on by `WORKERS` processes, with a line on standard error for each case."""
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        for rows in pool.map(rows_of, cases(every)):
            found += rows
            print(f"{len(found)} jobs, {rows[0]['model']} on {rows[0]['gpus']:,} GPUs", file=sys.stderr)
    return pd.DataFrame(found)


def by_property(found: pd.DataFrame) -> pd.DataFrame:
    """In percent: jobs with another layout, jobs for which it pays, the median and the most that it saves, usefulness.

    By way of failing and by number of GPUs.
    """
    sizes = pd.cut(found["gpus"], [0, 512, 4096, np.inf], labels=["to 512 GPUs", "to 4,096", "above"])
    rows = []
    for name, of in (("failing", found["failing"]), ("size", sizes)):
        for group, part in found.groupby(of, sort=False, observed=True):
            other = np.any([part[f"run_{fact}"] != part[f"fastest_{fact}"] for fact in FACTS], axis=0)
            shares = [other.mean(), (part["behind"] >= PAYS).mean(), part["behind"].median(), part["behind"].max()]
            ends = [part["energy_saving"].max(), part["run_effective_time_ratio"].min()]
            rows.append((name, group, len(part), *(100.0 * share for share in (*shares, *ends))))
    names = ("other", "paying", "median", "largest", "energy", "least_useful")
    return pd.DataFrame(rows, columns=["property", "is", "jobs", *(f"{one}_%" for one in names)]).round(1)


def summary(found: pd.DataFrame) -> dict[str, float]:
    """The figures that pages quote, by name."""
    behind, best = found["behind"], found.iloc[int(found["behind"].argmax())]
    shown = {
        "jobs": len(found), "same jobs": (behind < LITTLE).sum(), "paying jobs": (behind >= PAYS).sum(),
        "largest percent": 100.0 * behind.max(), "largest gpus": best["gpus"],
        "energy percent": 100.0 * found["energy_saving"].max(),
        "least useful percent": 100.0 * found["run_effective_time_ratio"].min(),
    }  # fmt: skip
    for row in (table := by_property(found)).itertuples(index=False, name=None):
        named = dict(zip(table.columns[2:], row[2:], strict=True))
        shown |= {f"{row[1]} {name.replace('_%', ' percent').replace('_', ' ')}": of for name, of in named.items()}
    return {name.replace(",", ""): float(value) for name, value in shown.items()}


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw by how much the plan with the fastest iteration trains longer, over the number of GPUs."""
    figure, axes = plt.subplots(figsize=(9.0, 4.4), dpi=100)
    for number, (failing, part) in enumerate(found.groupby("failing", sort=False)):
        shift = 1.0 + 0.05 * (number - 3.5)
        axes.plot(part["gpus"] * shift, 100.0 * part["behind"], "ov^s"[number % 4], markersize=4.5, label=failing)
    axes.set(xscale="log", xlabel="GPUs", ylim=(-0.5, None))
    axes.set_ylabel("the plan with the fastest iteration\ntrains longer by (%)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
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
    found = (results(options.every) if options.rows is None else pd.read_csv(options.rows)).round(5)
    found.to_csv(options.out / "results.csv", index=False)
    draw(found, options.out / "savings.png")
    text = by_property(found).to_csv(index=False)
    (options.out / "table.csv").write_text(text, encoding="utf-8")
    print(text)
    if options.out.resolve() == HERE and options.every == 1:
        replace_between(HERE / "README.md", "<!-- properties -->", "<!-- end of properties -->", f"```\n{text}```")
        figures.record("run-or-iteration", COMMAND, RESTS_ON, summary(found), anew=options.rows is None)


if __name__ == "__main__":
    main()
