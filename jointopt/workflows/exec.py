"""``exec``: any program under a plan's clocks, power limits and profiles, with its energy where there is a meter."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jointopt.core.errors import DeviceError, PlanError, UsageError
from jointopt.core.schema import COLUMNS, DEGREES, Ints, num_gpus
from jointopt.jobs.plans.placement import DEFAULT_ORDER, check_order
from jointopt.jobs.reading import quoted_value
from jointopt.measure.hardware.gpu_clocks import (
    Setting,
    SettingsSession,
    plan_settings,
    ranks_of_node,
    settings_session,
)
from jointopt.measure.hardware.guard.guarded import scratch_folder
from jointopt.measure.hardware.host import occupants
from jointopt.measure.hardware.meter import Gpus, running_meter
from jointopt.measure.hardware.rank_check import (
    UNSET,
    WAIT_S,
    RankCheck,
    check_stated,
    read_statements,
    report_variables,
    starts_ranks,
)
from jointopt.measure.process import run_in_foreground
from jointopt.runs.readings import Reading
from jointopt.workflows.supervision import Supervision

_MOST_GPUS = 1_000_000
_log = logging.getLogger(__name__)
NO_SUPERVISION = Supervision()


@dataclass(frozen=True)
class ExecutedProgram:
    """The end of the program, the reading of its GPUs, and what could not be put back or written (blank: nothing)."""

    code: int
    reading: Reading
    trouble: str


def execute(
    command: Sequence[str], plan: Mapping[str, Any], *, node: int | None = None, gpus_per_node: int | None = None,
    default_clocks: bool = False, grace_s: float = 20.0, series: Path | None = None, order: str | None = None,
    check_s: float = WAIT_S, supervision: Supervision = NO_SUPERVISION,
) -> ExecutedProgram:  # fmt: skip
    """Run ``command`` with the GPUs of this machine as ``plan`` (plan columns) has them, and put them back.

    ``plan`` may have a ``power_profile``, such as max-q+llm-training, that the driver of its GPUs offers.
    ``node`` is this machine's place among those of the plan, by default SLURM_NODEID where Slurm started us, else 0.
    ``order`` is that of the ranks, by default the usual one of the framework that the command starts, else
    Megatron-LM's. Where clocks differ by stage and the command starts ranks, they are set when all ranks of this
    machine are known to run the plan's stages, or have been silent for ``check_s`` seconds (0: at once). ``series`` is
    a file for the meter's samples, which add up over nodes. With a
    ``supervision`` that follows limits clocks are set at once. Raises DeviceError where a GPU cannot be set, its
    subclass RankOrderError where the program runs other stages; the program is then not started, or ended.
    """
    count = _used_gpus(plan)
    site = supervision.site(plan, default_clocks)
    plan = plan if site is None else site.plan
    stated = [] if default_clocks else read_statements(command, Path.cwd())
    order = check_order(order) if order else next((one.usual for one in stated), DEFAULT_ORDER)
    settings, ranks = _settings(plan, count, node, gpus_per_node, default_clocks, order)
    every = plan_settings(plan, default_clocks=default_clocks)
    by_stage = bool(settings) and (site is not None or len({(s.clock_mhz, s.power_limit_w) for s in every}) > 1)
    check_stated(plan, order, stated, by_stage)
    _log.info(_setting_words(settings, len(ranks)) if settings else "Clocks are left to the driver.")
    waits = by_stage and check_s > 0 and site is None and starts_ranks(command, Path.cwd())
    with (
        running_meter(range(len(ranks))) as meter,
        settings_session(settings, at_once=not waits) as session,
        scratch_folder() as folder,
    ):
        meter.on_sample = session.check
        settings_of = partial(_rung_settings, count, node, gpus_per_node, order)
        steps, ends = supervision.steps(
            session, meter, site, settings_of, plan, order, ranks, gpus_per_node or len(ranks)
        )
        for one in occupants(range(len(ranks)), patience_s=0.0):
            _log.warning("%s.", one)
        check = RankCheck(plan, order, ranks, folder, check_s) if by_stage else None
        look = _Look(check, session, steps, not waits)
        variables = report_variables(command, Path.cwd(), folder) if by_stage else None
        watched = (variables, look) if by_stage or steps else ()
        start = meter.now()
        code = run_in_foreground(command, grace_s, *watched)
        end = meter.now()
        for last in ends:
            last()
    troubles = [session.trouble, *session.changed.values(), *([UNSET] if waits and not session.was_applied else [])]
    code = code or int(bool(session.trouble))  # GPUs that are not as they were are a failure too
    try:
        if series is not None:
            meter.series().write(series)
    except OSError as error:  # which must not hide how the program ended
        troubles.append(f"{series} with the meter's samples cannot be written: {error.strerror}")
    return ExecutedProgram(code, meter.reading(start, end), "; ".join(filter(None, troubles)))


@dataclass
class _Look:
    """What is done again and again while a program runs, called with the mark of its processes."""

    check: RankCheck | None
    session: SettingsSession
    steps: Sequence[Callable[[], None]]
    is_set: bool  # whether clocks are set; else they are as soon as the check has passed

    def __call__(self, mark: str) -> None:
        for step in self.steps:
            step()
        if self.check is not None and self.check.passed(mark) and not self.is_set:
            self.session.apply()
            self.is_set = True
            _log.info(self.check.remark or "The ranks run the stages of the plan: clocks are set.")


def _rung_settings(
    used: int, node: int | None, gpus_per_node: int | None, order: str, plan: Mapping[str, Any]
) -> list[Setting]:
    return _settings(plan, used, node, gpus_per_node, False, order)[0]


def _used_gpus(plan: Mapping[str, Any]) -> int:
    for name in DEGREES:
        value = plan[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= COLUMNS[name].high:
            raise PlanError(
                f"The {name} of a plan must be a whole number from 1 to {COLUMNS[name].high:,}; "
                f"got {quoted_value(value)}."
            )
    if (used := math.prod(plan[name] for name in DEGREES)) > _MOST_GPUS:
        raise PlanError(f"The plan uses {used:,} GPUs; expected at most {_MOST_GPUS:,}.")
    return int(num_gpus(plan))


def _settings(
    plan: Mapping[str, Any], used: int, node: int | None, gpus_per_node: int | None, default_clocks: bool, order: str
) -> tuple[list[Setting], Ints]:
    """The settings of this machine, and the ranks of the plan on it."""
    try:
        here = len(Gpus())
    except DeviceError as error:
        if not default_clocks:
            raise DeviceError(f"{error} With --default-clocks the command runs all the same.") from error
        here = used
    per_node = gpus_per_node or min(here, used)
    slurm = os.environ.get("SLURM_NODEID", "")
    place = node or 0
    if node is None and used > per_node and not slurm.isdigit():
        raise UsageError(
            f"The plan uses {used} GPUs and this machine has {here}; say with --node which of its nodes this is (0, 1, "
            "...)."
        )
    if node is None and used > per_node:
        place = int(slurm)
    settings = plan_settings(plan, place, per_node, order, default_clocks=default_clocks)
    return settings, ranks_of_node(plan, place, per_node)


def _setting_words(settings: Sequence[Setting], local: int) -> str:
    parts = []
    for name, unit, given in (
        ("clocks", "MHz", [s.clock_mhz for s in settings]), ("power limits", "W", [s.power_limit_w for s in settings])
    ):  # fmt: skip
        values = sorted({value for value in given if value is not None})
        if values:
            span = " to ".join(f"{value:g}" for value in dict.fromkeys((values[0], values[-1])))
            parts.append(f"{name} {span} {unit}")
    parts += dict.fromkeys(f"power profile {'+'.join(s.profiles)}" for s in settings if s.profiles)
    return f"{local} GPUs: {', '.join(parts)}."
