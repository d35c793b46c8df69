"""Draw the sample of recorded runs that the accuracy gate judges.

    python tests/data/sample.py FOLDER

FOLDER holds the full tables, one ``layouts_SOURCE.csv`` per source; the sample is written to recorded_runs.csv beside
this program. The draw is seeded per source and does not depend on the order of the rows, so the same tables give the
same sample, and a source that is added or left out leaves the others as they are. README.md says how rows are chosen.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

SEED = 11
SAMPLE = Path(__file__).with_name("recorded_runs.csv")
LEAST_TO_RANK = 8  # timed runs of a group below which Kendall's tau is mostly noise
MOST_OF_A_GROUP = 45  # rows: larger groups would leave no room for the others
H100_BF16_FLOPS_PER_S = 989e12
STRATA = ("framework", "gpu", "dtype", "recompute", "zero_stage", "attention")


@dataclass(frozen=True)
class Source:
    """How many groups are drawn of a source: ``ranked`` ones, large enough to judge ranking, and ``others``."""

    name: str
    ranked: int
    others: int


SOURCES = (
    Source("bigscience", ranked=1, others=8),
    Source("dlperf_gpt_v100", ranked=0, others=12),
    Source("fms_fsdp", ranked=0, others=4),
    Source("internevo", ranked=0, others=5),
    Source("mlperf_pretrain", ranked=0, others=12),
    Source("mosaic_llm_foundry", ranked=0, others=16),
    Source("nanotron_ultrascale", ranked=3, others=0),
    Source("sailor", ranked=0, others=8),
    Source("torchtitan", ranked=0, others=12),
    Source("vtrain", ranked=2, others=0),
)


def draw(table: pd.DataFrame, source: Source) -> pd.DataFrame:
    """The sampled rows of one source's full ``table``: whole groups of comparable runs."""
    rng = np.random.default_rng([SEED, *source.name.encode()])
    groups = _groups(table.sort_values(list(table.columns)))
    small = groups[groups["rows"] <= MOST_OF_A_GROUP]
    enough = small["timed"] >= LEAST_TO_RANK
    ranked = _in_turn(small[enough], ["model"], rng)[: source.ranked]
    others = _in_turn(small[~enough], ["failures", *STRATA], rng)[: source.others]
    return table[table["group"].isin([*ranked, *others])]


def _groups(table: pd.DataFrame) -> pd.DataFrame:
    """One row per group: its first run, how many rows and timed rows it has, whether a run failed."""
    by_group = table.groupby("group")
    return by_group.first().assign(
        rows=by_group.size(),
        timed=by_group["iteration_time_s"].count(),
        failures=(table["status"] != "ok").groupby(table["group"]).any(),
    )


def _in_turn(groups: pd.DataFrame, strata: list[str], rng: np.random.Generator) -> list[str]:
    """Names of ``groups`` at random, one of each stratum before the second of any: rare kinds of runs come first."""
    shuffled = groups.iloc[rng.permutation(len(groups))]
    known = [name for name in strata if name in shuffled]
    turn = shuffled.groupby(known, dropna=False).cumcount()
    return list(turn.sort_values(kind="stable").index)


def in_scope(table: pd.DataFrame, source: Source) -> pd.DataFrame:
    """The rows that predictions are judged on: nanotron's without the runs that say more about a fabric than a plan.

    Those are tensor parallelism across nodes, ZeRO-0 with pipelines, and timed runs below 5 % of the peak.
    """
    if source.name != "nanotron_ultrascale":
        return table
    layer = table.hidden_size * (4 * table.hidden_size + 3 * table.ffn_hidden_size)
    flops = 6 * table.num_layers * layer * table.seq_length * table.global_batch_size
    utilization = flops / (table.iteration_time_s * table.num_gpus * H100_BF16_FLOPS_PER_S)
    kept = (table.tp <= 8) & ~((table.zero_stage == 0) & (table.pp > 1)) & ~(utilization < 0.05)
    return table[kept]


def main() -> None:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("Expected one argument: the folder that holds the full tables layouts_SOURCE.csv.")
    folder = Path(sys.argv[1])
    full = {source: pd.read_csv(folder / f"layouts_{source.name}.csv") for source in SOURCES}
    sample = pd.concat([draw(in_scope(table, source), source) for source, table in full.items()])
    sample = sample.drop(columns="notes").dropna(axis="columns", how="all").convert_dtypes()
    sample.sort_values(list(sample.columns)).to_csv(SAMPLE, index=False, float_format="%.7g")
    print(f"{len(sample)} rows in {SAMPLE.name}:")
    print(sample.groupby("source")["status"].value_counts().unstack(fill_value=0).to_string())


if __name__ == "__main__":
    main()
