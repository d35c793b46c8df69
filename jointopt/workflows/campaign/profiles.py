"""Measured layouts under NVIDIA's workload power profiles, which choose clocks by themselves and no model predicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.errors import UsageError
from jointopt.core.schema import LAYOUT_COLUMNS, POWER_LIMIT, POWER_PROFILE
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import parse_stage_clocks
from jointopt.workflows.campaign.candidates import Candidates

if TYPE_CHECKING:
    import pandas as pd

_CLOCKS = ("stage_clock_mhz", "clock_mhz")


def check_profiles(profiles: Sequence[str], job: Job, listed: bool) -> None:
    """UsageError where power profiles cannot be measured: by a launcher of ``listed`` plans, or on other makers'."""
    if profiles and listed:
        raise UsageError("A power profile is measured by a launcher that runs programs; this one returns listed plans.")
    if profiles and job.cluster.gpu.vendor != "NVIDIA":
        raise UsageError(f"Power profiles are of NVIDIA's GPUs; the job has {job.cluster.gpu.id}.")


def at_highest_clock(candidates: Candidates, indices: Iterable[int]) -> list[int]:
    """The candidate with the highest clocks of each layout, once and in the order of the candidates."""
    plans = candidates.plans
    names = [*LAYOUT_COLUMNS, *([POWER_LIMIT] if POWER_LIMIT in plans else [])]
    layouts = np.stack([np.nan_to_num(plans[name].astype(float)) for name in names], axis=1)
    clocks = np.nanmean(plans["stage_clock_mhz"], axis=1)
    found = []
    for index in indices:
        same = np.flatnonzero((layouts == layouts[index]).all(axis=1))
        found.append(int(same[clocks[same].argmax()]))
    return list(dict.fromkeys(found))


def under_profile(runs: pd.DataFrame, candidates: pd.DataFrame, power_profile: str) -> pd.DataFrame:
    """The runs under a power profile (blank: under none), as runs at the highest clock of the candidates."""
    if POWER_PROFILE not in runs:
        return runs.iloc[:0] if power_profile else runs
    some = (
        runs[runs[POWER_PROFILE].astype(object).fillna("") == power_profile]
        .drop(columns=POWER_PROFILE)
        .reset_index(drop=True)
    )
    if not power_profile:
        return some
    highest = max(max(parse_stage_clocks(cell)) for cell in candidates["stage_clock_mhz"])
    return some.drop(columns=[name for name in _CLOCKS if name in some]).assign(clock_mhz=highest)
