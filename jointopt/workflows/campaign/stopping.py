"""Cost of one run more, and how much it is expected to save of the training that its plans are for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Bools, Columns, Floats
from jointopt.jobs.job import Job
from jointopt.jobs.objectives import OBJECTIVES
from jointopt.measure.base import EndsDominated, EndsEarly
from jointopt.physics.site import HOUR_S, bill
from jointopt.report.real_runs import MeasuredRun
from jointopt.report.tables import figure
from jointopt.search.pareto import front_order, hypervolume

ITERATIONS, START_S = 20, 120.0  # of one run, and the seconds that starting it takes before any has been timed
# A compute-optimal training sees about as many tokens per parameter: Hoffmann et al. 2022, Training Compute-Optimal
# Large Language Models, table 3. Of experts, the parameters that a token uses count (a judgement). Nor is a training
# of less than a day, such as that of adapters, often tuned (a judgement too): small models see far more tokens.
TOKENS_PER_PARAMETER, LEAST_S = 20, 86_400.0


@dataclass(frozen=True)
class Balance:
    """Of the plan that is most worth a run: what that costs and is expected to save, in ``unit``."""

    cost: float
    worth: float
    unit: str
    training: str  # the planned training in words

    def to_text(self) -> str:
        """One sentence with both figures."""
        return (
            f"The most promising run costs {_rounded(self.cost)} {self.unit} and is expected to save "
            f"{_rounded(self.worth)} {self.unit} of {self.training}."
        )


@dataclass(frozen=True)
class Stakes:
    """A run of each plan against the planned training: GPU-hours (n,), and what one is worth in ``unit``."""

    cost_gpu_hours: Floats
    saved_gpu_hours: Floats
    rate: float
    unit: str
    training: str

    @property
    def pays(self) -> Bools:
        """Whether a run of each plan is expected to save at least what it costs, (n,)."""
        return np.asarray(self.saved_gpu_hours >= self.cost_gpu_hours)

    def balance(self, left: Bools) -> Balance:
        """That of the plan among those ``left`` (n,) that is most worth its cost."""
        best = np.flatnonzero(left)[np.argmax((self.saved_gpu_hours / self.cost_gpu_hours)[left])]
        cost, worth = self.rate * float(self.cost_gpu_hours[best]), self.rate * float(self.saved_gpu_hours[best])
        return Balance(cost, worth, self.unit, self.training)


def stakes(job: Job, seconds: Floats, saved: Floats, best: MeasuredRun) -> Stakes:
    """Cost of runs of so many ``seconds`` (n,), and what they save, each that share ``saved`` (n,) of the training.

    The training is `planned_training`, as the ``best`` run so far would do it. In money where the job states prices: of
    GPUs, and of electricity where energy was measured. A share of any objective counts as that share of the training,
    since runs and training differ in length alone.
    """
    time_s, gpus = best.result("iteration_time_s"), job.cluster.num_gpus
    iterations, words = planned_training(job, time_s)
    whole = iterations * time_s * gpus / HOUR_S
    rate, unit = price_of_gpu_hour(job, time_s, best.result("energy_j"))
    return Stakes(gpus * seconds / HOUR_S, saved * whole, rate, unit, f"{words} ({_rounded(rate * whole)} {unit})")


def planned_training(job: Job, time_s: float) -> tuple[float, str]:
    """Iterations, of ``time_s`` each, of the training that a job's plans are for, and what it is called.

    Those of the job's ``run_tokens``; else of `TOKENS_PER_PARAMETER`, but for `LEAST_S` at least, and for no more where
    adapters alone are trained.
    """
    if (stated := job.training.run_iterations) is not None:
        return float(stated), f"the planned training of {job.training.run_tokens:,} tokens"
    parameters = 0 if job.training.frozen else job.model.active_parameters
    tokens = TOKENS_PER_PARAMETER * parameters
    iterations, least = tokens / (job.training.global_batch_size * job.training.seq_length), LEAST_S / time_s
    length = f"{TOKENS_PER_PARAMETER} tokens per parameter" if iterations > least else "a day"
    return max(iterations, least), f"a training of {length}, as the job states no run_tokens"


def price_of_gpu_hour(job: Job, time_s: float, energy_j: float) -> tuple[float, str]:
    """Price of a GPU-hour of the training and its unit; 1 and GPU-hours where the job states none.

    ``time_s`` and ``energy_j``: of an iteration, the energy NaN where it was not measured, which then costs nothing.
    """
    paid = bill(job, time_s, energy_j)
    money = sum(float(paid[name]) for name in ("cost", "gpu_cost") if name in paid and np.isfinite(paid[name]))
    if not money > 0.0:
        return 1.0, "GPU-hours"
    return money * HOUR_S / (time_s * job.cluster.num_gpus), job.cluster.currency or "in the job's currency"


def run_seconds(time_s: Floats, timed: Sequence[tuple[float, float]]) -> Floats:
    """Seconds (n,) that runs of plans with these seconds an iteration hold their GPUs.

    `ITERATIONS`, and the median of what runs took beyond them, ``timed`` as (seconds, seconds an iteration); before any
    `START_S`. What took less than a second or one iteration, as rows of a table that are replayed, was no run.
    """
    beyond = [max(seconds - ITERATIONS * each, 0.0) for seconds, each in timed if seconds >= max(each, 1.0)]
    return (float(np.median(beyond)) if beyond else START_S) + ITERATIONS * time_s


def _rounded(value: float) -> str:
    """A figure of three digits: none is known better."""
    return figure(float(f"{value:.3g}"))


# Bounds beyond which a run adds nothing to what was measured: its launcher may end it after a few iterations.


CLEARLY = 1.5  # times a measured value: first iterations may be slower than later ones, by less than that
_TIME, _ENERGY = OBJECTIVES


def set_bounds(launcher: EndsEarly, job: Job, measured: Columns) -> None:
    """Have ``launcher`` end runs that are clearly behind one of the ``measured`` (m,) in every objective, or none.

    A slow plan may need little energy. So where energy counts, a run is behind where one that was measured is faster
    and needs less, both by `CLEARLY`: then it neither enters the front nor adds to the volume under it. By the power
    that the launcher meters while it runs; a launcher that does not is given the time at which GPUs that draw no
    more than when they idle would be as far behind. Nothing is ended by other objectives.
    """
    values = list(measured.values())
    known = bool(values) and set(measured) <= set(OBJECTIVES) and len(values[0]) > 0
    only_time = known and set(measured) == {_TIME}
    launcher.behind_s = CLEARLY * float(measured[_TIME].min()) if only_time else 0.0
    both: tuple[tuple[float, float], ...] = ()  # of the measured front; any time where it does not count
    if known and not only_time:
        energy = measured[_ENERGY]
        time = measured.get(_TIME, np.zeros(len(energy)))
        front = front_order(time, energy)
        both = tuple(zip((CLEARLY * time[front]).tolist(), (CLEARLY * energy[front]).tolist(), strict=True))
    if isinstance(launcher, EndsDominated):
        launcher.behind_both = both
    elif both and job.cluster.gpu.power is not None:
        idle_w = job.cluster.num_gpus * job.cluster.gpu.power.static_w
        launcher.behind_s = min(max(time_s, energy_j / idle_w) for time_s, energy_j in both)


# How much of the space of objectives the front of the runs of a tune covers as they come in.


_DRAWN = 10_000


def hypervolumes(values: Floats) -> list[float]:
    """Hypervolume after each run, as a share of the box between zero and the reference: 0 to 1, never falling.

    ``values`` (n, k) are measured objectives, NaN where a run failed. The reference lies 10 % beyond the worst
    value measured in the whole tune; with one objective the volume is the length from the best run to it, with three or
    more it is counted in drawn points.
    """
    if not np.isfinite(values).all(axis=1).any():
        return [0.0] * len(values)
    reference = 1.1 * np.nanmax(values, axis=0)
    scaled = values / reference
    if values.shape[1] > 2:
        drawn = np.random.default_rng(0).random((_DRAWN, values.shape[1]))
        covers = np.logical_and.reduce([own[:, None] <= place for own, place in zip(scaled.T, drawn.T, strict=True)])
        return [float(share) for share in np.maximum.accumulate(covers, axis=0).mean(axis=1)]
    # one objective: the second one is zero everywhere, so that areas are lengths
    second = scaled[:, 1] if values.shape[1] > 1 else np.where(np.isfinite(scaled[:, 0]), 0.0, np.nan)
    return [hypervolume(scaled[:n, 0], second[:n], (1.0, 1.0)) for n in range(1, len(values) + 1)]
