"""A run under what its site demands of power: rungs of its plan's ladder, by what is drawn (``exec --follow``)."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jointopt.core.errors import DeviceError, UsageError
from jointopt.core.schema import POWER_LIMIT
from jointopt.jobs.plans.text import format_stage_clocks, plan_records
from jointopt.measure.demand import DemandSource
from jointopt.measure.hardware.gpu_clocks import Setting, SettingsSession
from jointopt.measure.hardware.meter import Meter
from jointopt.measure.metrics import Sample
from jointopt.measure.power_control import PowerControl
from jointopt.physics.site import cluster_power_kw
from jointopt.report.tables import plain
from jointopt.workflows.ladder import Ladder

FALLBACKS = ("lowest", "keep", "plan")
_STEP_S = 0.5
_log = logging.getLogger(__name__)


class SitePower:
    """Changes the clocks of this machine's GPUs as a source demands, each change one line of ``record``.

    On several nodes each does so by itself, for the same demand: what its own GPUs draw stands for those of all, so
    that none draws more than its share. Where the source is dead, ``fallback`` holds: the lowest rung, the one of now,
    or the plan's own.
    """

    def __init__(
        self, source: DemandSource, ladder: Ladder, fallback: str = "lowest", record: Path | None = None
    ) -> None:
        if fallback not in FALLBACKS:
            raise UsageError(f"fallback must be one of {', '.join(FALLBACKS)}; got {fallback!r}.")
        own, rungs = ladder.own, ladder.plans
        alike = np.arange(len(ladder.power_kw))
        if POWER_LIMIT in rungs:  # a limit of the driver is set once, before the run
            alike = alike[np.isclose(rungs[POWER_LIMIT], own.get(POWER_LIMIT, np.nan), equal_nan=True)]
        first = plan_records(own, own["stage_clock_mhz"], [0])[0]
        self.plans: list[dict[str, Any]] = [first, *(ladder.plan(rung) for rung in alike.tolist())]
        names = ("iteration_time_s", "cluster_power_kw", "cluster_power_kw_high")
        self.iteration_s, mean_kw, high_kw = (np.append(own[name], rungs[name][alike]) for name in names)
        self.control = PowerControl(mean_kw, high_kw, float(self.iteration_s[0]))
        self._source, self._fallback, self._record = source, fallback, record
        self._cluster, self._next_s, self._told = ladder.job.cluster, -math.inf, ""
        self.limit_kw, self.drawn_kw = math.inf, math.nan
        if (demand := source.now()) is not None:
            self.limit_kw = demand.limit_kw(float(mean_kw[0]))
            self.control.choose(self.limit_kw, math.nan, time.monotonic(), demand.kind != "power_kw")

    @property
    def plan(self) -> dict[str, Any]:
        """The plan of the rung of now."""
        return self.plans[self.control.rung]

    def stop(self) -> None:
        """Read the source no more."""
        self._source.stop()

    def step(
        self, session: SettingsSession, meter: Meter, settings_of: Callable[[Mapping[str, Any]], Sequence[Setting]]
    ) -> None:
        """Look at the source and the meter, at most every half second, and change clocks where they ask for it."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _STEP_S
        watts = meter.latest(self.control.window_s).get("power_w", np.empty(0))
        self.drawn_kw = float(cluster_power_kw(self._cluster, watts.mean())) if watts.size else math.nan
        before, (why, rung) = self.control.rung, self._choice(now_s)
        if rung == before:
            return
        try:
            session.change_clocks(settings_of(self.plan))
        except DeviceError as error:  # tried again at the next step
            self.control.rung = before
            self._tell(str(error))
            return
        self._note(why)

    def _choice(self, now_s: float) -> tuple[str, int]:
        """The rung for now, and why."""
        demand, control = self._source.now(), self.control
        if demand is None:
            self.limit_kw, why = math.nan, f"a dead source, --fallback {self._fallback}"
            self._tell(f"{self._source.fault or 'the source does not answer'}: --fallback {self._fallback} holds")
            return why, control.move({"lowest": control.lowest(), "plan": 0}.get(self._fallback, control.rung), now_s)
        limit_kw = demand.limit_kw(float(control.power_kw[0]))
        why = "its limit" if limit_kw != self.limit_kw else "what is drawn"
        self.limit_kw = limit_kw
        rung = control.choose(limit_kw, self.drawn_kw, now_s, demand.kind != "power_kw")
        least_kw = float(control.expected_kw[rung])
        self._tell(f"no rung keeps {limit_kw:.4g} kW: the lowest takes {least_kw:.4g} kW" * (least_kw > limit_kw))
        return why, rung

    def _tell(self, sentence: str) -> None:
        """Log a doubt once, not at every step."""
        if sentence and sentence != self._told:
            _log.warning("%s", sentence[0].upper() + sentence[1:].rstrip(".") + ".")
        self._told = sentence

    def _note(self, why: str) -> None:
        """Log a change and write it down."""
        plan, rung = self.plan, self.control.rung
        row = {
            "time_s": time.time(), "why": why, "limit_kw": self.limit_kw, "drawn_kw": self.drawn_kw,
            "predicted_kw": float(self.control.power_kw[rung]), "stage_clock_mhz": plan["stage_clock_mhz"],
            "predicted_iteration_time_s": float(self.iteration_s[rung]),
        }  # fmt: skip
        clocks = format_stage_clocks(dict.fromkeys(plan["stage_clock_mhz"]))
        words = "Clocks %s MHz for %s: limit %.4g kW, drawn %.4g kW, predicted %.4g kW."
        _log.info(words, clocks, why, *(row[name] for name in ("limit_kw", "drawn_kw", "predicted_kw")))
        try:
            if self._record is not None:
                with self._record.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(plain(row)) + "\n")
        except OSError as error:
            _log.warning("%s cannot be written: %s.", self._record, error.strerror)

    def samples(self) -> list[Sample]:
        """The site's figures for Prometheus."""
        rung = self.control.rung
        power = {"limit": self.limit_kw, "drawn": self.drawn_kw, "predicted": float(self.control.power_kw[rung])}
        found = [Sample("jointopt_power_watts", 1e3 * kw, {"kind": kind}) for kind, kw in power.items()]
        time_s = float(self.iteration_s[rung])
        return [*found, Sample("jointopt_iteration_time_seconds", time_s, {"kind": "predicted"})]
