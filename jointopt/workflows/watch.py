"""``watch``: which ranks of a run are slow, since when, why and what that costs, from its logs."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import JointOptError, TableError, UsageError
from jointopt.core.facts import Assumption
from jointopt.core.input_files import regular_bytes
from jointopt.core.schema import DEGREES, Floats, Ints
from jointopt.frameworks import meter_logs
from jointopt.frameworks.import_files import read_text
from jointopt.frameworks.logs import Batch, read_run
from jointopt.jobs.job import Job
from jointopt.jobs.plans.placement import DEFAULT_ORDER, check_order, stage_of_rank
from jointopt.jobs.plans.text import plan_degrees
from jointopt.physics import stragglers
from jointopt.physics.stragglers import Episode
from jointopt.report.slow_ranks import Rebalanced, SlowRank, Watched
from jointopt.runs.rank_times import RankTimes, is_rank_rows, read_rank_rows
from jointopt.surrogate.data_doubts import REFUSED
from jointopt.workflows.answers import as_paths

if TYPE_CHECKING:
    import pandas as pd

_MOST_BYTES = 2**30
_log = logging.getLogger(__name__)
_EXPECTED = "a training log, or rows of ranks (iteration, rank, time_s) as CSV or as a JSON document per line"
_LINK_EXCESS = 0.022  # of the ranks' work, below which what ranks differ by may be the reason


def watch(
    logs: Sequence[str | Path] | str | Path, plan: str | Mapping[str, Any] | None = None, *, job: Job | None = None,
    gpus_per_node: int | None = None, order: str = DEFAULT_ORDER, warmup: int = 1, rebalance: bool = False,
) -> Watched:  # fmt: skip
    """The slow ranks of one run, by ``logs`` of one or all of its ranks.

    Parameters
    ----------
    logs : path or sequence of path
        Of Megatron-LM with timers of all ranks, rows of ranks as CSV or JSON lines, or any log of iterations.
    plan : str or mapping, optional
        Says which ranks are one pipeline stage and do the same work; by default what the log says of its options, its
        timers of sends, or the column stage.
    job : Job or path, optional
        For energy (J) and money.
    gpus_per_node : int, optional
        Ranks of a node; by default as the job or the logs say.
    order : str, optional
        How the program numbers its ranks, innermost first.
    warmup : int, optional
        First iterations of the logs that do not count.
    rebalance : bool, optional
        Also the clocks (MHz) that save energy while a rank is slow, for which ``job`` and ``plan`` are needed.

    Returns
    -------
    Watched
        ``slow``: rank, stage, kind, first iteration and cost (s per iteration) of each.

    Raises
    ------
    UsageError
        Where no log has times.
    """
    if rebalance and (job is None or plan is None):
        raise UsageError(
            "--rebalance prices clocks, for which it needs the job and the plan of the run: --job, --plan."
        )
    paths = as_paths("logs", logs)
    if not paths:
        raise UsageError(f"logs is empty; expected {_EXPECTED}.")
    texts = {path: _text(path) for path in paths}
    settings = {} if all(map(is_rank_rows, texts.values())) else _settings(texts.values())
    times = rank_times(texts, warmup)
    if times is None:
        times = run_times(texts, job, warmup)
    stated = (
        {"pp": 1} | plan_degrees(plan)
        if plan is not None
        else {name: settings[name] for name in DEGREES if name in settings}
    )
    stage, assumed = _stages(times, stated, plan is not None, order)
    node = times.per_rank("node")
    size = gpus_per_node or (job.cluster.gpus_per_node if job else settings.get("gpus_per_node"))
    node = times.rank // size if node is None and size and times.rank[0] >= 0 else node
    if job is not None and times.rank[0] >= 0 and len(times.rank) != job.cluster.num_gpus:
        raise UsageError(
            f"--job has {job.cluster.num_gpus:,} GPUs and the logs have {len(times.rank):,} ranks; expected the job of "
            "this run."
        )
    found = SlowRanks(times, stage, node, int(stated.get("tp", 1)) * int(stated.get("cp", 1)))
    slow = tuple(found.slow())
    source = ", ".join(path.name for path in paths)
    ratio = found.time_over_prediction(job, plan or stated) if job else 1.0
    if max(ratio, 1.0 / ratio) > REFUSED:
        _log.warning("%s: iterations take %.3g times what is predicted of the job; are the times in seconds, and of "
                     "this job?", source, ratio)  # fmt: skip
    return Watched(
        source=source, ranks=len(times.rank) if times.rank[0] >= 0 else 0,
        first_iteration=int(times.iteration[0]), last_iteration=int(times.iteration[-1]),
        iteration_time_s=found.iteration_time_s, slow=slow, job=job, assumed=assumed,
        rebalanced=found.rebalanced(slow, job, plan) if rebalance and job is not None and plan is not None else None,
    )  # fmt: skip


def _text(path: Path) -> str:
    try:
        return regular_bytes(path, _MOST_BYTES, _EXPECTED).decode("utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; expected {_EXPECTED}.") from error


def _settings(texts: Iterable[str]) -> dict[str, Any]:
    """Degrees and GPUs of a node that logs state among their program's options."""
    found: dict[str, Any] = {}
    for text in texts:
        with suppress(JointOptError, ValueError):
            for one in read_text(text, "log"):
                found |= {name: value for name, value in one.plan.items() if name in DEGREES and value}
                found |= {name: one.cluster[name] for name in ("gpus_per_node",) if one.cluster.get(name)}
    return found


def rank_times(texts: Mapping[Path, str], warmup: int) -> RankTimes | None:
    """Times of every rank, from all files together; None where the files hold those of iterations alone."""
    import pandas as pd

    parts: list[pd.DataFrame] = []
    for path, text in texts.items():
        try:
            if is_rank_rows(text):
                parts.append(read_rank_rows(text))
            elif timers := meter_logs.rank_timers(text):
                parts.append(_timer_frame(pd.DataFrame(timers)))
        except (ValueError, TableError) as error:
            raise UsageError(f"{path}: {error}") from error
    try:
        return RankTimes.of(pd.concat(parts, ignore_index=True), warmup) if parts else None
    except TableError as error:
        raise UsageError(f"{', '.join(map(str, texts))}: {error}") from error


def _timer_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Seconds of own work, and of sends and waits to either side, from those of Megatron's timers."""
    frame["time_s"] = frame[[name for name in meter_logs.COMPUTE if name in frame]].sum(axis=1)
    for name, timers in (("to_next_s", meter_logs.TO_NEXT), ("to_previous_s", meter_logs.TO_PREVIOUS)):
        frame[name] = frame[[one for one in timers if one in frame]].sum(axis=1, min_count=1)
    if {*meter_logs.INTERLEAVED} & {*frame}:
        frame["to_next_s"], frame["to_previous_s"] = math.nan, 0.0  # interleaved: each exchanges with both sides
    return frame


def run_times(texts: Mapping[Path, str], job: Job | None, warmup: int) -> RankTimes:
    """Times of iterations, of the first file that has any, as those of one rank that is not known (-1)."""
    batch = Batch(1, 1, 1)
    if job is not None:
        batch = Batch(job.training.global_batch_size, job.training.seq_length, job.cluster.num_gpus)
    why = "it holds no iteration"
    for text in texts.values():
        try:
            kept = read_run(text, warmup, batch).kept
            if job is None and read_run(text, warmup, Batch(2, 1, 1)).kept[0].seconds != kept[0].seconds:
                raise UsageError("The log states a throughput and no time; give the job of the run (--job JOB).")
        except ValueError as error:
            why = str(error)
            continue
        number, seconds = np.array([one.number for one in kept]), np.array([[one.seconds] for one in kept])
        return RankTimes(number, np.array([-1]), {"time_s": seconds, "iteration_time_s": seconds})
    raise UsageError(f"{next(iter(texts))} tells no times: {why}; expected {_EXPECTED}.")


def _stages(
    times: RankTimes, stated: Mapping[str, int], given: bool, order: str
) -> tuple[Ints, tuple[Assumption, ...]]:
    """The stage of each rank, and what was assumed for want of a source."""
    count = len(times.rank)
    if (column := times.per_rank("stage")) is not None and not given:
        return column, ()
    if (pp := stated.get("pp")) is not None:
        inner = math.prod(stated.get(name, 1) for name in ("tp", "pp", "cp"))
        dp = stated.get("dp") or max(count // inner, 1)
        if dp * inner != count and given:
            raise UsageError(f"--plan has {dp * inner} ranks and the logs have {count}; expected the plan of this run.")
        degrees = {"dp": dp, "tp": stated.get("tp", 1), "cp": stated.get("cp", 1), "pp": pp}
        return stage_of_rank(degrees, times.rank, check_order(order)), ()
    if (before := times.columns.get("to_previous_s")) is not None:
        first = np.asarray(np.isnan(before).all(axis=0))  # the first stage receives from none
        per_stage = int(first.sum())
        if per_stage and count % per_stage == 0 and first[:per_stage].all():
            return np.arange(count) // per_stage, ()
        raise UsageError("The timers of interleaved schedules do not tell which ranks are one stage; give --plan.")
    same = "all ranks are taken to do the same work, for neither --plan nor a column stage says which are one stage"
    return np.zeros(count, np.int64), (Assumption.not_given("stage", 0, "all ranks do the same work", same),)


@dataclass(frozen=True)
class SlowRanks:
    """The times of one run beside what is known of where its ranks are."""

    times: RankTimes
    stage: Ints
    node: Ints | None
    together: int  # neighbouring ranks that wait for each other within a pass: those of tp and cp

    @property
    def iteration_time_s(self) -> float:
        """Median seconds of the last iterations; NaN where only the work of ranks is known."""
        known = self.times.columns.get("iteration_time_s")
        return math.nan if known is None else float(np.nanmedian(known[-stragglers.FIRST :]))

    def slow(self) -> list[SlowRank]:
        """Slow ranks, and slow links where no rank beside them is."""
        time_s = self.times.columns["time_s"]
        excess = stragglers.log_excess(time_s, self.stage)
        every = stragglers.slow_episodes(excess, self.stage)
        units = [[one] for one in every]
        if self.together > 1:
            units = stragglers.slow_units(every, self.times.rank // self.together)
        units, nodes = self._whole_nodes(units)
        usual_s = stragglers.usual_s(time_s, every)
        found = [
            self._slow_rank(unit, excess, self._cost_s(unit, every, usual_s), whole)
            for unit, whole in zip(units, nodes, strict=True)
        ]
        return sorted([*found, *self._slow_links(found)], key=lambda one: (-one.cost_s, one.since_iteration))

    def time_over_prediction(self, job: Job, plan: str | Mapping[str, Any]) -> float:
        """Seconds of an iteration, or of the busiest rank's work where these are not known, over those predicted of
        ``plan``, whose blanks have defaults; 1 where it cannot be predicted.
        """
        from jointopt.workflows.predict_plans import predict_plans_of_job

        known = self.times.columns.get("iteration_time_s", self.times.columns["time_s"])
        with suppress(JointOptError):
            predicted = predict_plans_of_job(job, [plan], surrogate="none")["predicted_iteration_time_s"]
            return float(np.nanmax(stragglers.known_median(known)) / predicted[0])
        return 1.0

    def rebalanced(self, slow: Sequence[SlowRank], job: Job, plan: str | Mapping[str, Any]) -> Rebalanced | None:
        """The clocks of those that wait for the rank that costs most now; None where no rank is slow."""
        from jointopt.surrogate.job_model import JobModel  # which only prices need
        from jointopt.workflows.rebalance import rebalance

        now = [one for one in slow if one.until_iteration is None and one.kind != "link" and one.rank is not None]
        if not now or not math.isfinite(self.iteration_time_s):
            return None
        worst = max(now, key=lambda one: one.cost_s)
        of_stage = self.times.rank[self.stage == worst.stage].tolist()
        usual_s = self.iteration_time_s - worst.cost_s
        replica = of_stage.index(worst.rank) // self.together
        return rebalance(JobModel.of(job), plan, int(worst.stage or 0), replica, worst.cost_s / usual_s)

    def _whole_nodes(self, units: list[list[Episode]]) -> tuple[list[list[Episode]], list[bool]]:
        """Ranks of nodes that slow down as a whole as one unit each, and which units are that."""
        if self.node is None or (np.bincount(self.node) == 1).any():
            return units, [False] * len(units)
        every = [one for unit in units for one in unit]
        whole = [unit for unit in stragglers.slow_units(every, self.node) if len(unit) > 1]
        taken = {one for unit in whole for one in unit}
        rest = [unit for unit in units if not taken & set(unit)]
        return [*whole, *rest], [True] * len(whole) + [False] * len(rest)

    def _slow_rank(self, unit: list[Episode], excess: Floats, cost_s: float, whole_node: bool) -> SlowRank:
        clocks, alone = self.times.columns.get("clock_mhz"), None
        if len(unit) > 1 and not whole_node:
            alone = stragglers.slowest_alone(unit, excess, clocks)
        first = next((one for one in unit if one.rank == alone), unit[0])
        kind = stragglers.kind_of(first, excess, self.stage, self.times.columns, whole_node=whole_node)
        members = [first] if alone is not None else unit
        return self._entry(first, kind, cost_s, members)

    def _entry(self, one: Episode, kind: str, cost_s: float, members: Sequence[Episode]) -> SlowRank:
        number, rows = self.times.iteration, len(self.times.iteration)
        known = self.times.rank[one.rank] >= 0
        return SlowRank(
            rank=int(self.times.rank[one.rank]) if known else None, stage=int(self.stage[one.rank]) if known else None,
            kind=kind, since_iteration=int(number[one.since]), cost_s=cost_s, slower=math.expm1(one.excess),
            until_iteration=int(number[one.until]) if one.until < rows else None,
            noticed_iteration=int(number[one.noticed]),
            node=None if self.node is None or not known else int(self.node[one.rank]),
            ranks=tuple(int(self.times.rank[other.rank]) for other in members if known),
        )  # fmt: skip

    def _cost_s(self, unit: Sequence[Episode], every: Sequence[Episode], usual_s: Floats) -> float:
        """Seconds by which these alone make iterations longer: of those by which iterations became longer, with all of
        ``every`` that were slow too, as much as these have more work than the slowest of all. Where that is not known,
        or these were slow from the start, seconds by which the busiest rank is busier.
        """
        first, end, own = unit[0].since, unit[0].until, [one.rank for one in unit]
        time_s, known = self.times.columns["time_s"], self.times.columns.get("iteration_time_s")
        healthy = np.ones(len(time_s), bool)
        for one in every:
            healthy[one.since : one.until] = False
        before = np.flatnonzero(healthy[:first])[-stragglers.FIRST :]
        if known is not None and len(before) == stragglers.FIRST:
            rows = slice(max(one.since for one in every if one.since < end <= one.until), end)
            more_s = np.nan_to_num(stragglers.known_median((time_s - usual_s)[rows]))
            longer_s = float(np.nanmedian(known[rows]) - np.nanmedian(known[before]))
            return max(longer_s * float(more_s[own].max() / more_s.max()), 0.0)
        slow_s, healthy_s = stragglers.known_median(time_s[first:end]), stragglers.known_median(usual_s[first:end])
        return max(float(np.nanmax(slow_s[own]) - np.nanmax(healthy_s)), 0.0)

    def _slow_links(self, found: Sequence[SlowRank]) -> list[SlowRank]:
        """The link to the next stage that is slowest beside its peers, while no rank is slow: for both others wait.

        Of Megatron's timers the link's own time is the lesser of its two ends': one of them does not wait.
        """
        pairs, number = self._pairs(), [*self.times.iteration.tolist(), math.inf]
        link = self.times.columns.get("link_s")
        if link is None and {"to_next_s", "to_previous_s"} <= self.times.columns.keys() and pairs.size:
            ahead, back = (self.times.columns[name] for name in ("to_next_s", "to_previous_s"))
            link = np.full(ahead.shape, np.nan)
            link[:, pairs[0]] = np.fmin(ahead[:, pairs[0]], back[:, pairs[1]])
        if link is None or not (known := np.isfinite(link).any(axis=0)).any():
            return []
        columns = np.flatnonzero(known)
        work_s = float(np.nanmedian(self.times.columns["time_s"]))  # beside which waits for a late peer are small
        excess = stragglers.log_excess(work_s + link[:, columns], self.stage[columns])
        slow = [
            one._replace(rank=int(columns[one.rank]))
            for one in stragglers.slow_episodes(excess, self.stage[columns], _LINK_EXCESS)
            if not any(
                other.since_iteration <= number[one.until] and (other.until_iteration or math.inf) >= number[one.since]
                for other in found
            )
        ]
        if not slow:
            return []
        worst = max(slow, key=lambda one: one.excess)
        entry = self._entry(worst, "link", work_s * math.expm1(worst.excess), [worst])
        ends = next((pair for pair in pairs.T.tolist() if pair[0] == worst.rank), [worst.rank])
        return [replace(entry, ranks=tuple(self.times.rank[ends].tolist()))]

    def _pairs(self) -> Ints:
        """Columns (2, pairs) of the ranks at both ends of each link from a stage to the next."""
        stages = [np.flatnonzero(self.stage == one) for one in range(int(self.stage.max()) + 1)]
        sides = [np.stack(pair) for pair in itertools.pairwise(stages) if len(pair[0]) == len(pair[1])]
        return np.concatenate(sides, axis=1) if sides else np.empty((2, 0), np.int64)
