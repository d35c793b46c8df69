"""Logs of runs with slow ranks, made by playing 1F1B pass by pass: no public log has the times of every rank.

Every rank has its own speed, every pass noise, now and then a long iteration. Work that waits for a slow rank waits as
it does in Megatron-LM: in sends and receives, of which each end counts its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from jointopt.physics.schedule import FORWARD, schedule_graph

FORWARD_S, LINK_S, CLOCK_MHZ, HOT_C = 0.030, 0.002, 1700.0, 62.0
COMPUTE_KINDS = ("heat", "power", "clock", "host", "experts")


@dataclass
class Run:
    """A simulated run; ``kind`` blank: nothing is slow. Ranks are numbered dp innermost, then pp."""

    seed: int
    kind: str = ""
    slower: float = 0.06
    dp: int = 4
    pp: int = 2
    micro_batches: int = 8
    iterations: int = 120
    since: int = 60
    noise: float = 0.005  # of a rank's iteration
    spread: float = 0.003  # of ranks among themselves
    gpus_per_node: int = 4
    victim: int = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        last = self.dp * (self.pp - 1) if self.kind == "link" else self.dp * self.pp
        self.victim = int(self.rng.integers(last))

    @property
    def ranks(self) -> int:
        return self.dp * self.pp

    @property
    def slow_ranks(self) -> set[int]:
        """The ranks that are slow, or both ends of the link."""
        if self.kind == "host":
            first = self.victim - self.victim % self.gpus_per_node
            return {*range(first, min(first + self.gpus_per_node, self.ranks))}
        return {self.victim, self.victim + self.dp} if self.kind == "link" else {self.victim} if self.kind else set()

    def factors(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Times (iterations, ranks) of the work over the usual, and what is seen of clocks, heat and tokens."""
        rng, shape = self.rng, (self.iterations, self.ranks)
        stage = 1.0 + 0.1 * rng.uniform(-1, 1, self.pp).repeat(self.dp)
        usual = stage * np.exp(rng.normal(0, self.spread, self.ranks) + rng.normal(0, self.noise, shape))
        usual *= 1.0 + rng.uniform(0.1, 1.0, shape) * (rng.random(shape) < 0.002)  # long iterations
        slow = np.zeros(shape)
        slow[self.since :, list(self.slow_ranks) if self.kind in COMPUTE_KINDS else []] = self.slower
        clock = CLOCK_MHZ * np.exp(rng.normal(0, 0.001, shape))
        heat = HOT_C + rng.normal(0, 1.0, self.ranks) + rng.normal(0, 0.5, shape)
        seen = {"clock_mhz": clock, "temperature_c": heat}
        if self.kind in ("heat", "power", "clock"):
            clock /= 1.0 + slow
            heat += 14.0 * (slow > 0) * (self.kind == "heat")
        if self.kind == "power":
            seen["throttle"] = np.where(slow > 0, "SW Power Cap", "")
        if self.kind == "experts":
            uneven = 1.0 + slow * rng.uniform(0.3, 1.7, shape)
            seen["tokens"] = 8192 * uneven * np.exp(rng.normal(0, self.noise, shape))
            return usual * uneven, seen
        return usual * (1.0 + slow), seen

    def timers(self) -> dict[str, np.ndarray]:
        """Seconds (iterations, ranks) of Megatron's timers, and of the iteration."""
        factor, seen = self.factors()
        graph, n, dp = schedule_graph(self.pp, 1, self.micro_batches), self.iterations, self.dp
        link = np.full((n, self.ranks), LINK_S) * np.exp(self.rng.normal(0, 0.02, (n, self.ranks)))
        if self.kind == "link":
            link[self.since :, self.victim] += 1.5 * FORWARD_S * self.slower  # twice a pass, of three forwards
        names = "forward-compute", "backward-compute", "next", "previous"
        end, out = np.zeros((len(graph), n, dp)), {name: np.zeros((n, self.ranks)) for name in names}
        for i, (rank, kind, before, source) in enumerate(
            zip(graph.rank, graph.kind, graph.previous, graph.source, strict=True)
        ):
            mine = slice(rank * dp, (rank + 1) * dp)
            ready = end[before] if before >= 0 else np.zeros((n, dp))
            start = ready
            if source >= 0 and graph.rank[source] != rank:
                other = int(graph.rank[source])
                lower = min(rank, other)
                start = np.maximum(ready, end[source]) + link[:, lower * dp : (lower + 1) * dp]
                theirs = slice(other * dp, (other + 1) * dp)
                out["previous" if other < rank else "next"][:, mine] += start - ready
                out["next" if other < rank else "previous"][:, theirs] += start - end[source]
            work = FORWARD_S * (1.0 if kind == FORWARD else 2.0) * factor[:, mine]
            out["forward-compute" if kind == FORWARD else "backward-compute"][:, mine] += work
            end[i] = start + work
        whole = end.max(axis=(0, 2))[:, None].repeat(self.ranks, axis=1)
        return out | {"iteration_time_s": whole} | seen

    def frame(self) -> pd.DataFrame:
        """Rows of ranks as a program of one's own writes them, with what NVML says."""
        values = self.timers()
        columns = {"time_s": values.pop("forward-compute") + values.pop("backward-compute")}
        columns |= {"to_next_s": values.pop("next"), "to_previous_s": values.pop("previous")} | values
        columns["to_next_s"][:, -self.dp :] = columns["to_previous_s"][:, : self.dp] = np.nan
        at = {"iteration": np.repeat(np.arange(1, self.iterations + 1), self.ranks),
              "rank": np.tile(np.arange(self.ranks), self.iterations)}  # fmt: skip
        return pd.DataFrame(at | {name: value.reshape(-1) for name, value in columns.items()})

    def megatron_log(self) -> str:
        """The log that Megatron-LM writes with --timing-log-level 2 --timing-log-option all."""
        values, lines = self.timers(), []
        for row in range(self.iterations):
            ms = 1e3 * values["iteration_time_s"][row, 0]
            lines += [f" iteration {row + 1:8d}/     500 | consumed samples: {64 * (row + 1)} | "
                      f"elapsed time per iteration (ms): {ms:.1f} | lm loss: 2.5E+00 | "
                      "number of skipped iterations:   0 | number of nan iterations:   0 |",
                      "times across ranks (ms):"]  # fmt: skip
            for name, key in (("forward-compute",) * 2, ("backward-compute",) * 2, ("forward-recv", "previous"),
                              ("forward-send", "next")):  # fmt: skip
                lines.append(f"  {name}:")
                for rank in range(self.ranks):
                    end = rank < self.dp if key == "previous" else rank >= self.ranks - self.dp and key == "next"
                    lines += [] if end else [f"     rank {rank:2d}: {1e3 * values[key][row, rank]:.2f}"]
        return "\n".join(lines) + "\n"
