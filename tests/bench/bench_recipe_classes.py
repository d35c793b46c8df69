"""What recipe classes are worth: how much slower than a vendor's the kernels of each source are, and errors by class.

    .venv/bin/python tests/bench/bench_recipe_classes.py [DATA_FOLDER]

The default folder is ../shared/data beside the repository; rows are those that bench_accuracy.py calls clean.

- factor: of products and element-wise kernels alike over Megatron-LM's of that architecture, at which the median of a
  source's times is right, everything else as in the source's own profile;
- spread: standard deviation (1.48 times the median one) of log(measured / predicted) there.

Then errors of sources under the profile of another class, as they are and with the class stated; the factor between
classes is learned without the source that is judged.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from bench_accuracy import ROOT, clean

from jointopt.core.schema import Floats
from jointopt.jobs.catalog.frameworks import load_framework
from jointopt.jobs.framework import Framework
from jointopt.runs.workloads import Workload, workloads
from jointopt.surrogate.dataset import PricedPlans, timed_runs

# by who ran them and how; of vtrain it is not stated
VENDOR, UNKNOWN = ("korthikanti_2205_05198", "mlperf_pretrain", "nvidia_nemo_docs"), ("vtrain",)
FACTORS = np.array([0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
MOST = 250  # rows of one source
OTHERS = {"vendor": ("generic",), "community": ("megatron-lm", "nemo")}  # profiles of the other class


def time_ratio(table: pd.DataFrame, works: list[Workload], change: dict[str, Framework] | None, by: float) -> Floats:
    """log(measured / predicted) of the rows, their kernels slower than Megatron-LM's ``by`` so much.

    ``change``: other profiles by name of their own, which keep their kernels but for that factor.
    """
    out, vendor = np.full(len(table), np.nan), load_framework("megatron-lm")
    for work in works:
        training = work.job.training
        own = training.framework if change is None else change[training.framework.name]
        base = vendor if change is None else own
        profile = replace(
            own, tf32=training.framework.tf32, slower_on=base.slower_on, compute_factor=by * base.compute_factor,
            elementwise_factor=by * base.elementwise_factor,
        )  # fmt: skip
        plans = PricedPlans.of(replace(work, job=replace(work.job, training=replace(training, framework=profile))))
        out[work.rows] = plans.values["iteration_time_s"][plans.plan_of_row]
    return np.asarray(np.log(table["iteration_time_s"].to_numpy(float) / out))


def factor(table: pd.DataFrame, works: list[Workload]) -> tuple[float, float]:
    """The factor at which the median is right, and what runs then scatter by."""
    left = np.array([time_ratio(table, works, None, by) for by in FACTORS])
    found = float(np.interp(0.0, -np.nanmedian(left, axis=1), FACTORS))
    at = left[np.abs(FACTORS - found).argmin()]
    return found, 1.48 * float(np.nanmedian(np.abs(at - np.nanmedian(at))))


def between(logs: dict[str, float], but: str = "") -> float:
    """The factor between a community's kernels and a vendor's, without one source."""
    kept = {name: value for name, value in logs.items() if name not in (but, *UNKNOWN)}
    ours, theirs = ([v for n, v in kept.items() if (n in VENDOR) == vendor] for vendor in (False, True))
    return float(np.exp(np.mean(ours) - np.mean(theirs)))


def judged(table: pd.DataFrame, works: list[Workload], profile: str, by: float) -> list[float]:
    """Median errors under a profile of another class, as it is and with its kernels moved ``by`` that factor."""
    change = {work.job.training.framework.name: load_framework(profile) for work in works}
    times = (time_ratio(table, works, change, one) for one in (1.0, by))
    return [float(np.nanmedian(np.abs(np.expm1(-ratio)))) for ratio in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "data", nargs="?", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the recorded runs"
    )
    folder = parser.parse_args().data
    sources = {}
    for path in sorted(folder.glob("layouts_*.csv")):
        name = path.stem.removeprefix("layouts_")
        table = timed_runs(clean(name, pd.read_csv(path)))
        table = table.sample(min(MOST, len(table)), random_state=0).reset_index(drop=True)
        sources[name] = table, workloads(table)[0]
    found = {name: factor(*source) for name, source in sources.items()}
    logs = {name: float(np.log(by)) for name, (by, _) in found.items()}
    print(pd.DataFrame(found, index=["factor", "spread"]).T.round(3).to_string())
    ours = [v for n, v in logs.items() if n not in (*VENDOR, *UNKNOWN)]
    without = [between(logs, name) for name in logs]
    print(f"\ncommunity over vendor {between(logs):.3f}, {min(without):.3f} to {max(without):.3f} without one source")
    print(f"deviation of the logarithms of communities' factors {np.std(ours, ddof=1):.3f}\n")
    for name, source in sources.items():
        vendor, by = name in (*VENDOR, *UNKNOWN), between(logs, name)
        for profile in OTHERS["vendor" if vendor else "community"]:
            before, after = judged(*source, profile, 1.0 / by if vendor else by)
            print(f"{name:24s} under {profile:12s} {before:6.1%}  class stated {after:6.1%}")


if __name__ == "__main__":
    main()
