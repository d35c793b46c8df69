"""How surely ``watch`` names slow ranks: simulated runs with and without one, 2 to 20 % slow.

``python tests/bench/bench_watch.py [RUNS] [NOISE]``: logs are made by playing 1F1B (`tests.rank_logs`), for no public
one has the times of every rank. Printed for each kind: how often the rank (or one end of the link) was named, within
20 iterations, with the right kind; and how many runs without a slow rank gave an alarm.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from jointopt.runs.rank_times import RankTimes
from jointopt.workflows.watch import SlowRanks
from tests.rank_logs import COMPUTE_KINDS, Run

SHAPES = ((2, 1), (8, 1), (4, 2), (4, 4), (16, 2), (2, 8), (1, 4))  # dp, pp
WITHIN = 20


def found_in(run: Run) -> list:
    """What is found in the run's rows."""
    frame = run.frame()
    stage = np.arange(run.ranks) // run.dp
    return SlowRanks(RankTimes.of(frame, 1), stage, np.arange(run.ranks) // run.gpus_per_node, 1).slow()


def main() -> None:
    """Print the shares of each kind, and of false alarms."""
    count, noise = int(sys.argv[1]) if len(sys.argv) > 1 else 1000, float(sys.argv[2]) if len(sys.argv) > 2 else 0.005
    rng = np.random.default_rng(0)
    for kind in ("", *COMPUTE_KINDS, "link"):
        tally = Counter()
        for seed in range(count):
            dp, pp = SHAPES[rng.integers(len(SHAPES))]
            if (kind == "link" and pp == 1) or (kind == "host" and dp * pp <= 4):  # no link, or no other node
                dp, pp = 4, 2
            slower = rng.uniform(0.02, 0.20)
            run = Run(seed, kind, slower, dp, pp, iterations=1000 if not kind else 120, noise=noise)
            found = found_in(run)
            named = [one for one in found if one.rank in run.slow_ranks]
            soon = [one for one in named if one.noticed_iteration <= run.since + 1 + WITHIN]
            tally["alarm"] += bool(found)
            tally["named"] += bool(soon)
            tally["kind"] += any(one.kind == kind for one in soon)
            tally["other"] += any(one.rank not in run.slow_ranks for one in found)
        words = f"named in {WITHIN} iterations {tally['named'] / count:.1%}, kind right {tally['kind'] / count:.1%}, "
        words = words if kind else f"any alarm {tally['alarm'] / count:.2%}, "
        print(f"{kind or 'nothing slow':13} {words}another rank named {tally['other'] / count:.1%}", flush=True)


if __name__ == "__main__":
    main()
