"""Errors of what `tune` expects of the plans left, after runs drawn at random, with and without learning from these.

    OMP_NUM_THREADS=1 python tests/bench/bench_growing.py [PART OF A GROUP'S NAME ...]

Reads ../shared/data beside the repository, through bench_replay.py: of every recorded group, of which all other groups
of its source are known, 8 and then 16 runs are known too. Prints the median error of the time of the others by what
was known before and by a model that learns from both (`jointopt.workflows.campaign.expectation`), what was chosen by
the likelihood of runs left out, and seconds of CPU that learning took.
"""

from __future__ import annotations

import logging
import pathlib
import sys
import time
from collections.abc import Sequence

import numpy as np
import pandas as pd
from bench_replay import DATA, TIME, groups, job_document

from jointopt.jobs.jobfile import parse_job
from jointopt.measure.replay import ReplayLauncher
from jointopt.surrogate.files import load_surrogate
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.plan_process import USUAL
from jointopt.workflows.campaign.candidates import listed_candidates
from jointopt.workflows.campaign.expectation import GrowingModel, Outlook, earlier_runs, with_learned_factors

KNOWN, SEEDS = (8, 16), (1, 2)


def main(parts: Sequence[str]) -> None:
    logging.disable(logging.WARNING)
    errors = []
    for source, group, rows in groups():
        if not parts or any(part in group for part in parts):
            table = pd.read_csv(DATA / f"{source}.csv")
            others = table[(table["group"] != group) & table["status"].isin(["ok", "oom"])]
            errors += judged(group, rows, others.reset_index(drop=True))
    print("mean of medians, without and with: {:.2f} %, {:.2f} %".format(*np.mean(errors, axis=0)))


def judged(group: str, rows: pd.DataFrame, others: pd.DataFrame) -> list[list[float]]:
    """Median errors in %, without and with, after each number of runs and seed."""
    surrogate = load_surrogate("default")
    job, launcher = parse_job(job_document(rows), "replay", pathlib.Path()), ReplayLauncher(rows)
    candidates = listed_candidates(launcher.candidates(job), job)
    model = JobModel.of(job)
    earlier = with_learned_factors(earlier_runs(candidates.rows, others), model, candidates)
    answers = [dict(launcher.run(job, candidates.question(i))) for i in range(candidates.size)]
    time_s = np.array([row["iteration_time_s"] if row["status"] == "ok" else np.nan for row in answers], float)
    ran, out = np.flatnonzero(np.isfinite(time_s)), []
    for count in KNOWN:
        for seed in SEEDS if len(ran) >= count + 5 else ():
            index = np.random.default_rng(seed).permutation(ran)[:count]
            left, before, found = np.setdiff1d(ran, index), time.process_time(), []
            for growing in (None, GrowingModel(candidates, earlier, surrogate.kernel)):
                outlook = Outlook(job, candidates, earlier, USUAL, np.random.default_rng(0), growing)
                expected = outlook.after(TIME, index, [answers[i] for i in index])
                off = expected.columns["iteration_time_s"][left] / time_s[left] - 1.0
                found.append(100.0 * float(np.median(np.abs(off))))
            seconds = time.process_time() - before
            words = f"{found[0]:5.1f} -> {found[1]:5.1f} %, {seconds:4.1f} s, {expected.basis}"
            print(f"{count:3} of {len(ran):3} runs, {len(others):5} of others: {words}: {group}", flush=True)
            out.append(found)
    return out


if __name__ == "__main__":
    main(sys.argv[1:])
