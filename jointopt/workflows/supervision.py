"""What ``exec`` does again and again while a program runs: limits of power, slow ranks, figures for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import UsageError
from jointopt.core.schema import Ints
from jointopt.jobs.job import Job
from jointopt.jobs.plans.placement import stage_of_rank
from jointopt.measure.demand import DemandSource
from jointopt.measure.hardware.gpu_clocks import Setting, SettingsSession
from jointopt.measure.hardware.meter import Meter
from jointopt.measure.metrics import RunMetrics, Sample
from jointopt.runs.site_signal import SiteSignal

if TYPE_CHECKING:
    from jointopt.surrogate.job_model import JobModel
    from jointopt.workflows.site_power import SitePower

Settings = Callable[[Mapping[str, Any]], Sequence[Setting]]  # of the GPUs here under a plan


@dataclass(frozen=True)
class Supervision:
    """The options of `exec` for a program that runs.

    ``follow``: a source of limits as of `DemandSource`, kept by rungs of the plan's ladder for ``job``, with
    ``fallback`` and ``record`` as of `SitePower`. ``watch``: the program's log, of which `LiveWatch` tells slow ranks;
    with ``rebalance`` those that wait are slowed down. ``metrics``: a file of figures, written every second.
    ``storage``: the URL of a database for what was measured between changes of clocks; it needs ``watch`` and ``job``.
    """

    follow: str | None = None
    job: Job | None = None
    fallback: str = "lowest"
    record: Path | None = None
    watch: Path | None = None
    rebalance: bool = False
    metrics: Path | None = None
    storage: str | None = None

    def site(self, plan: Mapping[str, Any], default_clocks: bool) -> SitePower | None:
        """The rungs of a plan under what its site demands; UsageError for options that do not go together."""
        if self.rebalance and (self.job is None or self.watch is None or self.follow is not None or default_clocks):
            raise UsageError(
                "--rebalance needs --watch and --job, and neither --follow nor --default-clocks beside it."
            )
        if self.storage is not None and (self.job is None or self.watch is None):
            raise UsageError(
                "--storage keeps rows of a job with the times in a log, for which it needs --job and --watch."
            )
        if self.follow is None:
            return None
        if self.job is None or default_clocks:
            needs = "the job of the plan (--job JOB)" if self.job is None else "clocks: leave out --default-clocks"
            raise UsageError(f"--follow changes clocks of the plan's ladder, for which it needs {needs}.")
        from jointopt.surrogate.job_model import JobModel  # which most runs need not wait for
        from jointopt.workflows.ladder import ladder_of
        from jointopt.workflows.site_power import SitePower

        model = JobModel.of(self.job)
        ladder = ladder_of(model, plan)
        return SitePower(
            DemandSource(self.follow, partial(_scheduled, model, plan)), ladder, self.fallback, self.record
        )

    def steps(
        self, session: SettingsSession, meter: Meter, site: SitePower | None, settings_of: Settings,
        plan: Mapping[str, Any], order: str, ranks: Ints, gpus_per_node: int,
    ) -> tuple[list[Callable[[], None]], list[Callable[[], None]]]:  # fmt: skip
        """What is called again and again while the program runs on the ``ranks`` of this machine, and at its end."""
        steps, ends = list[Callable[[], None]](), list[Callable[[], None]]()
        figures: list[Callable[[], Iterable[Sample]]] = []
        if site is not None:
            steps.append(partial(site.step, session, meter, settings_of))
            figures.append(site.samples)
        if self.watch is not None:
            from jointopt.workflows.live_watch import LiveWatch  # which reads tables

            live = LiveWatch(self.watch, plan, order, ranks, gpus_per_node, self.job, self.rebalance)
            steps.append(partial(live.step, session, meter))
            figures.append(live.samples)
            if self.storage is not None and self.job is not None:
                from jointopt.workflows.run_rows import RunRows

                plan_of = (lambda: plan) if site is None else (lambda: site.plan)
                rows = RunRows(self.job, self.storage, plan_of, live, len(ranks))
                steps.append(partial(rows.step, meter))
                ends.append(partial(rows.finish, meter))
        if self.metrics is not None:
            written = RunMetrics(self.metrics, stage_of_rank(plan, ranks, order).tolist())
            steps.append(partial(written.write, meter, session, figures))
        if site is not None:
            ends.append(site.stop)
        return steps, ends


def _scheduled(model: JobModel, plan: Mapping[str, Any], signal: SiteSignal) -> SiteSignal:
    """The power of the schedule that `follow` makes of prices or carbon."""
    from jointopt.workflows.follow import follow

    steps = follow(model, plan, signal=signal).steps
    bounds_s = np.array([steps[0]["from_s"], *(one["to_s"] for one in steps)])
    return SiteSignal(signal.source, "power_kw", bounds_s, np.array([one["power_kw_high"] for one in steps]))
