"""Rules that the cells of one measured run must keep among each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pandas as pd

from jointopt.core.schema import DEGREES, MOST_GPU_POWER_W
from jointopt.runs.cells import is_known, spelled


@dataclass(frozen=True)
class Rule:
    """A rule that the cells of one run must keep. ``broken`` is false wherever a cell that it needs is blank."""

    columns: tuple[str, ...]  # the first one is blamed
    expected: str | Callable[[pd.Series], str]  # of all runs, or of the one that breaks it
    broken: Callable[[pd.DataFrame], pd.Series]
    may_fail: bool = False  # no contradiction where the run failed: that may be just why

    def complaint(self, run: pd.Series) -> str:
        """The expectation, and the cells that contradict it."""
        cells = (f"{name}={spelled(run[name])}" for name in self.columns if name in run and is_known(run[name]))
        expected = self.expected if isinstance(self.expected, str) else self.expected(run)
        return f"expected {expected}, got {' '.join(cells)}"


def broken_rules(runs: pd.DataFrame, rules: Iterable[Rule]) -> Iterator[tuple[Rule, pd.Series]]:
    """(rule, which rows break it) for rows as `clean_runs` leaves them; columns may be missing."""
    for rule in rules:
        yield rule, rule.broken(runs.reindex(columns=pd.Index(rule.columns)))


_AGREEMENT = 0.2  # between meters: NVML's counters of power and energy, and wall clocks, differ by up to this


def _degrees_contradict(runs: pd.DataFrame) -> pd.Series:
    degrees = runs[list(DEGREES)]
    product = degrees.prod(axis=1)  # a blank counts as 1
    complete = degrees.notna().all(axis=1)
    return (runs["num_gpus"] % product > 0) | (complete & ((product - runs["num_gpus"]).abs() > 0))


def _clocks_miscounted(runs: pd.DataFrame) -> pd.Series:
    count = runs["stage_clock_mhz"].map(len, na_action="ignore").astype(float)
    return (count > 1) & ((count - runs["pp"]).abs() > 0)


def _energy_contradicts(runs: pd.DataFrame) -> pd.Series:
    by_power = runs["avg_power_w"] * runs["iteration_time_s"] * runs["num_gpus"]
    return (runs["energy_j"] / by_power - 1).abs() > _AGREEMENT


def _energy_excessive(runs: pd.DataFrame) -> pd.Series:
    power_w = runs["energy_j"] / runs["iteration_time_s"] / runs["num_gpus"]
    return (power_w > MOST_GPU_POWER_W) & runs["avg_power_w"].isna()


def above(larger: str, smaller: str, factor: float = 1.0) -> Callable[[pd.DataFrame], pd.Series]:
    """Whether one column exceeds ``factor`` times another."""
    return lambda runs: runs[larger] > factor * runs[smaller]


def _at_most(smaller: str, larger: str) -> Rule:
    return Rule((smaller, larger), f"{smaller} to be at most {larger}", above(smaller, larger))


RUN_RULES = (
    Rule(("num_gpus", *DEGREES), f"{'*'.join(DEGREES)} to be num_gpus", _degrees_contradict),
    Rule(("global_batch_size", "dp"), "global_batch_size to be at least dp", above("dp", "global_batch_size"), True),
    _at_most("num_attention_heads", "hidden_size"),
    Rule(("stage_clock_mhz", "pp"), "stage_clock_mhz to have one clock or pp of them", _clocks_miscounted),
)  # fmt: skip
RULES = (
    *RUN_RULES,
    _at_most("ep", "num_gpus"),
    _at_most("num_query_groups", "num_attention_heads"),
    Rule(("moe_router_topk", "num_experts"), "moe_router_topk to be at most num_experts",
         lambda runs: (runs["moe_router_topk"] > runs["num_experts"]) & (runs["num_experts"] > 0)),
    Rule(("energy_j", "avg_power_w", "iteration_time_s", "num_gpus"),
         f"avg_power_w * iteration_time_s * num_gpus to be energy_j within {_AGREEMENT:.0%}", _energy_contradicts),
    Rule(("energy_j", "iteration_time_s", "num_gpus", "avg_power_w"),
         f"energy_j over iteration_time_s and num_gpus to be at most {MOST_GPU_POWER_W:,} W", _energy_excessive),
    Rule(("peak_power_w", "avg_power_w"), f"peak_power_w to be at least avg_power_w, within {_AGREEMENT:.0%}",
         above("avg_power_w", "peak_power_w", 1 / (1 - _AGREEMENT))),
)  # fmt: skip
