"""What whole training runs of many plans come to, with failures, checkpoints, spares and repairs."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from jointopt.core.facts import Assumption
from jointopt.core.schema import Columns, Floats, Ints
from jointopt.core.units import KWH
from jointopt.jobs.job import Job
from jointopt.jobs.reliability import Reliability, with_defaults
from jointopt.physics import renewal
from jointopt.physics.checkpoints import checkpoint_s, state_copies
from jointopt.physics.event_simulation import SimulatedRuns
from jointopt.physics.repair import RepairShop, RepairShops
from jointopt.physics.site import HOUR_S, facility_energy_j

MOST_TRIES = 20.0  # e-foldings: a piece that long against the time between failures never ends
_SAME = 1e-5  # of a time: policies that differ by less are alike, and the first of them is taken
RUN_FIGURES = ("time_to_train_s", "useful_energy_j", "money", "effective_time_ratio", "checkpoint_interval_s")
RUN_COLUMNS = (*RUN_FIGURES, "spares", "policy")


@dataclass(frozen=True)
class TrainingRuns:
    """Runs of a job's ``run_tokens`` under each of some layouts (L,), once per number of spares that is searched."""

    job: Job
    stated: Reliability  # with what stands in for what is not stated
    checkpoint_s: Floats  # in which a checkpoint stops training
    write_s: Floats  # from then until it can be gone back to
    copies: Floats  # of the same state
    splits: Ints  # (L, 2), dp and tp
    spares: Ints  # nodes; of no account where the job states none
    assumed: tuple[Assumption, ...] = ()

    @classmethod
    def of(
        cls, job: Job, layouts: Columns, spares: tuple[int, ...] | None = None, reliability: Reliability | None = None
    ) -> TrainingRuns:
        """The runs of those layouts, each once per number of ``spares``; both of these by default the job's."""
        stated, assumed = with_defaults(job.reliability if reliability is None else reliability)
        counts = stated.spare_counts if spares is None else spares
        stopped_s, write_s, how = _checkpoint_times_s(job, layouts, stated)
        rows = np.tile(np.arange(len(stopped_s)), max(len(counts), 1))
        splits, spares_of = np.stack([layouts["dp"], layouts["tp"]], axis=1), np.repeat(counts or (0,), len(stopped_s))
        return cls(job, stated, stopped_s[rows], write_s[rows], state_copies(job, layouts)[rows], splits[rows],
                   spares_of, (*assumed, *how))  # fmt: skip

    @functools.cached_property
    def failure_s(self) -> float:
        """Mean time between failures of the whole run in s."""
        return self.stated.failure_s(self.job.cluster)

    @property
    def layouts(self) -> int:
        """The number of layouts, each counted once."""
        return len(self.spares) // max(len(self.stated.spare_counts), 1)

    @property
    def restart_s(self) -> float:
        """From a failure to training again in s, its detection included."""
        return float(self.stated.detection_s or 0.0) + float(self.stated.restart_s or 0.0)

    def run(self, policy: str, at: int | Ints, time_s: float | Floats, energy_j: float | Floats) -> renewal.Run:
        """The run of one layout, or of several (n,), under a policy, from time and energy of an iteration.

        With the stated interval between checkpoints or the best one, of an iteration and the time that a checkpoint is
        written at least and of the run at most.
        """
        stops_s, write_s, failure_s = self.checkpoint_s[at], self.write_s[at], self.failure_s
        work_s = time_s * float(self.job.training.run_iterations or np.nan)
        share = self._idle_share(time_s, energy_j)
        best_s = self.stated.checkpoint_interval_s or renewal.best_interval_s(stops_s, failure_s, self.restart_s, share)
        rolls_back = (policy == "restart") | (self.copies[at] < 2.0)
        least_s = time_s if self.stated.checkpoint_interval_s else np.maximum(time_s, write_s)
        shop, interval_s = self._shop(policy, at), np.minimum(np.maximum(best_s, least_s), work_s)
        return renewal.Run(work_s, time_s, interval_s, stops_s, failure_s, self.restart_s, rolls_back, shop, write_s)

    def _idle_share(self, time_s: float | Floats, energy_j: float | Floats) -> float | Floats:
        """What a second without training costs over one with it, by the objective: time, else energy, else money."""
        objective, cluster = self.job.run_objective, self.job.cluster
        if objective == "time_to_train_s":
            return 1.0
        costs = [np.asarray(cluster.gpu.rest_w * cluster.num_gpus), np.divide(energy_j, time_s)]
        if objective == "money":
            per_j, per_s = (cluster.price_per_kwh or 0.0) / KWH, (cluster.price_per_gpu_hour or 0.0) / HOUR_S
            costs = [facility_energy_j(cluster, 1.0, each) * per_j + per_s * cluster.num_gpus for each in costs]
        return np.minimum(costs[0] / costs[1], 1.0)

    def _shop(self, policy: str, at: int | Ints) -> RepairShop | RepairShops | None:
        """The spares and repairs of one layout, or of several (n,); None where a replacement is always at hand."""
        if not self.stated.spare_counts:
            return None
        shops, of = self._shops[policy]
        return shops[of[at]] if isinstance(at, int) else RepairShops(shops, of[at])

    @functools.cached_property
    def _shops(self) -> dict[str, tuple[tuple[RepairShop, ...], Ints]]:
        """Of each policy the shops that differ, and which of them each layout has."""
        found, (dp, tp) = {}, self.splits.T
        for policy in self.stated.policy:
            divided = (policy == "nonuniform_tp") & (tp > 1)  # the broken replica goes on with a GPU less
            goes_on = policy in ("drop_replica", "nonuniform_tp")
            places, parts = (dp + divided, dp * np.where(divided, tp, 1)) if goes_on else (np.ones_like(dp),) * 2
            rows, of = np.unique(np.stack([self.spares, places, parts], axis=1), axis=0, return_inverse=True)
            repair_s = float(self.stated.repair_s or np.nan)
            shops = (RepairShop(count, repair_s, most, 1.0 / part) for count, most, part in rows.tolist())
            found[policy] = tuple(shops), of.reshape(-1)
        return found

    def under(self, policy: str, at: Ints, time_s: Floats, energy_j: Floats) -> Columns:
        """`RUN_FIGURES` of runs of several layouts (n,) under a policy."""
        return self.figures(self.run(policy, at, time_s, energy_j), self.spares[at], energy_j)

    def expected(
        self, run: renewal.Run, played: SimulatedRuns | None = None, *, spread: bool = True
    ) -> renewal.Expected:
        """What a run comes to in the mean with the job's planned stops: by the formula, or by runs that were played."""
        found = played.expected() if played else renewal.expected(run, spread=spread)
        return found.with_planned_stops(self.stated.planned_share)

    def figures(
        self, run: renewal.Run, spares: int | Ints, energy_j: float | Floats, played: SimulatedRuns | None = None
    ) -> Columns:
        """`RUN_FIGURES` of runs whose iterations take that energy; of one that would never end the time is infinite.

        ``money`` is what GPUs and electricity cost, spares included; NaN without a price. ``played`` as in `expected`.
        """
        cluster, training_w = self.job.cluster, np.divide(energy_j, run.iteration_s)
        with np.errstate(over="ignore", invalid="ignore"):
            found = self.expected(run, played, spread=False)
            longest_s = np.maximum(np.add(run.interval_s, run.checkpoint_s), run.restart_s)
            taken_s = np.where(longest_s > MOST_TRIES * self.failure_s, np.inf, found.time_s)[()]
            energy_j = found.energy_j(run.work_s, training_w, cluster.gpu.rest_w * cluster.num_gpus)
            energy_j = energy_j + spares * cluster.gpus_per_node * cluster.gpu.rest_w * taken_s
            ratio = run.work_s / taken_s
        nodes_s = taken_s * (cluster.nodes + spares)
        money = nodes_s * cluster.gpus_per_node * (cluster.price_per_gpu_hour or 0.0) / HOUR_S
        if cluster.price_per_kwh is not None:
            money += cluster.price_per_kwh * facility_energy_j(cluster, nodes_s / cluster.nodes, energy_j) / KWH
        money = money if cluster.has_price else money * np.nan
        return dict(zip(RUN_FIGURES, (taken_s, energy_j, money, ratio, run.interval_s), strict=True))  # type: ignore[arg-type]

    def evaluate(self, at: Ints, time_s: Floats, energy_j: Floats, *, any_spares: bool = False) -> Columns:
        """`RUN_COLUMNS` of plans (n,), each under the policy that suits the job best.

        ``any_spares``: and with the number of spares that does.
        """
        found = [
            self.under(name, some, time_s, energy_j) | {"spares": self.spares[some], "policy": np.full(len(at), name)}
            for name, some in self._cases(at, any_spares)
        ]
        best, rows = best_policy(np.stack([one[self.job.run_objective] for one in found])), np.arange(len(at))
        names = RUN_COLUMNS if self.stated.spare_counts else (*RUN_FIGURES, "policy")
        return {name: np.stack([one[name] for one in found])[best, rows] for name in names}

    def _cases(self, at: Ints, any_spares: bool) -> list[tuple[str, Ints]]:
        """Each policy with each number of spares that plans (n,) may have, as their places in the arrays."""
        apart = self.layouts if any_spares else len(self.spares)
        return [(name, at + first) for first in range(0, len(self.spares), apart) for name in self.stated.policy]

    def bounds(self, at: Ints, time_s: Floats, energy_j: Floats, *, any_spares: bool = False) -> tuple[Floats, Floats]:
        """The first two goals of the job (n,), each of its best policy: they never fall in time or energy."""
        found = [self.under(policy, some, time_s, energy_j) for policy, some in self._cases(at, any_spares)]
        first, second = (np.min([one[name] for one in found], axis=0) for name in self.job.goals[:2])
        return first, second


def _checkpoint_times_s(
    job: Job, layouts: Columns, stated: Reliability
) -> tuple[Floats, Floats, tuple[Assumption, ...]]:
    """Seconds (L,) in which a checkpoint stops training and is written after that, and what was not stated of them."""
    rates, assumed, count = (stated.storage_gbytes_per_s, stated.storage_total_gbytes_per_s), [], len(layouts["dp"])
    writes_s = checkpoint_s(job, layouts, *rates) if any(rates) else np.zeros(count)
    words = " and ".join(f"{rate:g} GB/s {of}" for rate, of in zip(rates, ("per node", "in all"), strict=True) if rate)

    def named(key: str, values_s: Floats, how: str) -> None:
        low, high = values_s.min(), values_s.max()
        text = f"{low:.3g} s" + f" to {high:.3g} s" * bool(high > low)
        assumed.append(Assumption.not_given(f"reliability.{key}", float(low), text, f"{text} are {how}"))

    if stated.checkpoint_s is None:
        stopped_s, later_s = writes_s, np.full(count, stated.checkpoint_write_s or 0.0)
        named("checkpoint_s", stopped_s, f"the bytes of the states, each written once, at {words}")
        return stopped_s, later_s, tuple(assumed)
    stopped_s = np.full(count, stated.checkpoint_s)
    if stated.checkpoint_write_s is not None:
        return stopped_s, np.full(count, stated.checkpoint_write_s), ()
    later_s = np.maximum(writes_s - stated.checkpoint_s, 0.0)
    how = f"what is left of the bytes of the states at {words}"
    if not words:
        how = "assumed: a checkpoint counts as whole when training goes on (storage_gbytes_per_s would give its time)"
    named("checkpoint_write_s", later_s, how)
    return stopped_s, later_s, tuple(assumed)


def best_policy(values: Floats) -> Ints:
    """The first of the policies (k, n) whose objective is least but for `_SAME`, (n,)."""
    return np.asarray((values <= (1.0 + _SAME) * values.min(axis=0)).argmax(axis=0))
