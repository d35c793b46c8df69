"""The JSON of every verb: what stands under which key of its document, in the order of the document.

`Result.to_dict` and ``--json`` both read it. Numbers are in seconds, joules, watts, GiB and MHz; what is not known is
null. The keys are a contract (docs and other programs rely on them): add, do not rename.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from jointopt.physics.facility import bill, facility_parts_j, with_site
from jointopt.report.clocks import short_plan
from jointopt.report.parts import tidy_parts
from jointopt.report.plain import plain, plan_entries
from jointopt.spec.jobfile import job_mapping
from jointopt.spec.plans.parse import PLAN_KEYS
from jointopt.surrogate.intervals import RESULTS

if TYPE_CHECKING:
    import pandas as pd

Source = (
    str | Callable[[Any], Any] | Mapping[str, Any]
)  # path of attributes, function of the result, or keys of it
Keys = Mapping[str, Source]


class Result(ABC):
    """The answer of a verb: the same content as a mapping, a table and a text."""

    keys: ClassVar[Keys]  # of the document
    rows: ClassVar[str]  # key of the document under which the rows of the table stand

    def to_dict(self) -> dict[str, Any]:
        """The document of ``--json``: plain lists, numbers, strings and None."""
        return document(self, self.keys)

    def to_frame(self) -> pd.DataFrame:
        """The rows of the answer as a pandas table; a part of a cell is a column ``<cell>.<part>``."""
        import pandas as pd

        return pd.json_normalize(self.to_dict()[self.rows])

    @abstractmethod
    def text(self) -> str:
        """The answer for people, lines of at most 100 characters."""


def document(result: Any, keys: Keys) -> dict[str, Any]:
    """The values of ``result`` under ``keys``; those of a key that begins with ``**`` stand beside it."""
    out: dict[str, Any] = {}
    for key, source in keys.items():
        value = _value(result, source)
        out |= value if key.startswith("**") else {key: value}
    return plain(out)  # type: ignore[no-any-return]


def _value(result: Any, source: Source) -> Any:
    if isinstance(source, str):
        return attrgetter(source)(result)
    return document(result, source) if isinstance(source, Mapping) else source(result)


def _same(*names: str) -> dict[str, str]:
    return dict(zip(names, names, strict=True))


def _each(items: str, keys: Keys) -> Callable[[Any], list[dict[str, Any]]]:
    """Documents of each of the ``items``, which see their own attributes alone."""
    return lambda result: [document(item, keys) for item in attrgetter(items)(result)]


def _parts(name: str) -> Callable[[Any], dict[str, float]]:
    return lambda result: tidy_parts(getattr(result, name))


def _storage(result: Any) -> str | None:
    from jointopt.runs.database import without_password  # with SQLAlchemy

    return without_password(result.storage) if result.storage else None


def _assumed(result: Any) -> list[str]:
    return [str(assumption) for assumption in result.assumed]


PROPOSE: Keys = {
    "job": "job.name",
    "job_file": lambda found: job_mapping(found.job),  # as its file would say it
    **_same("seed", "surrogate", "informed_by"),
    "space": _same(
        "considered", "layouts", "feasible_layouts", "infeasible", "covered_plans", "evaluated_plans"
    ),
    "front": lambda found: plan_entries(with_site(found.job, found.front)),  # by time; none beats another
    "reference": lambda found: next(iter(plan_entries(with_site(found.job, found.reference))), None),
    "study": {"name": "study_name", "storage": "storage"},
    "assumed": _assumed,
    "seconds": "seconds",
}


def _per_iteration(found: Any) -> tuple[Any, float, float]:
    return found.job, found.iteration_time_s, found.energy_j


def _stage(stage: Any) -> dict[str, Any]:
    return asdict(stage) | {"energy_by_part_j": tidy_parts(stage.energy_by_part_j)}


EXPLAIN: Keys = {
    "job": "job.name",
    **_same("plan", "feasible", "violations", "iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib"),
    "time_s": _parts("time_s"),  # the parts of each breakdown add up to its total
    "energy_by_part_j": _parts("energy_by_part_j"),
    **_same("memory_energy_j", "communication_energy_j"),
    "memory_gib": _parts("memory_gib"),
    "assumed": _assumed,
    **_same("in_domain", "surrogate", "informed_by"),
    "facility_energy_by_part_j": lambda found: facility_parts_j(found.job.cluster, *_per_iteration(found)[1:]),
    "**bill": lambda found: bill(*_per_iteration(found)),
    "**intervals": lambda found: {
        f"{name}_{end}": bound
        for name, bounds in found.intervals.items()
        for end, bound in zip(("low", "high"), bounds, strict=True)
    },
    "stages": lambda found: [_stage(stage) for stage in found.stages],
}  # fmt: skip


def next_command(found: Any) -> str:
    """The command that explains a selected plan; ``job.yaml`` is the job's own file where it is no shipped job."""
    return f'jointopt explain {found.shipped_job or "job.yaml"} --plan "{short_plan(found.plans, found.row)}"'


def _chosen(found: Any) -> dict[str, Any]:
    """The plan chosen, and beside it its predictions with both ends of their 90 % intervals."""
    (entry,) = plan_entries(found.plans, [found.row])
    plan = {name: value for name, value in entry.items() if name in PLAN_KEYS}
    return {"plan": plan} | {name: value for name, value in entry.items() if name not in plan}


def _bought(found: Any, limit: Any, relaxation: Any) -> dict[str, Any]:
    """``gain`` is in units of the objective: seconds, joules, or their product."""
    at = {name: found.plans[name][relaxation.row] for name in ("iteration_time_s", found.energy)}
    percent = 100.0 * (relaxation.relaxed_to / limit.bound - 1.0)
    gains = _same("gain", "gain_percent")
    return (
        {"relaxed_to": relaxation.relaxed_to, "relaxed_by_percent": percent}
        | document(relaxation, gains)
        | at
    )


def _relaxations(found: Any) -> dict[str, Any]:
    return {
        limit.name: _bought(found, limit, limit.relaxed)
        | {"nearest_useful": None if limit.nearest is None else _bought(found, limit, limit.nearest)}
        for limit in found.limits
    }


SELECT: Keys = {
    "source": "source",
    "job": "job_name",
    "objective": "objective",
    "objective_because": "reason",
    **_same("energy", "measured", "at_high_end"),
    "stored_plans": lambda found: len(found.plans["pp"]),
    "satisfying_plans": "satisfying",
    "**plan": _chosen,
    "constraints": lambda found: {
        limit.name: {"limit": limit.bound, **document(limit, _same("value", "high", "room_percent"))}
        for limit in found.limits
    },
    **_same("binding", "binds_together"),
    "relaxations": _relaxations,
    "next": next_command,  # a command to go on with
}


def _point(polished: Any, point: Any) -> dict[str, float]:
    return {
        "iteration_time_s": point.iteration_time_s,
        "energy_j": point.energy_j,
        "energy_saved": polished.saving(point),
        "lowest_clock_mhz": point.clock_mhz.min(),
        "highest_clock_mhz": point.clock_mhz.max(),
    }


POLISH: Keys = {
    "job": "job.name",
    **_same(
        "plan", "iteration_time_s", "energy_j", "slowdown", "solver", "unit_s", "solved_micro_batches", "seconds",
        "informed_by",
    ),
    "num_micro_batches": "graph.num_micro_batches",
    "points": lambda found: [_point(found, point) for point in found.points],
    "chosen": lambda found: _point(found, found.chosen) | {"stages": found.schedule},  # in order of execution
    "assumed": _assumed,
}  # fmt: skip

_RUN: Keys = {  # keys that a run of tune and one of validate begin with
    "**plan": lambda run: run.plan,
    "status": "status",
}
TUNE: Keys = {
    "job": "job.name",
    **_same("launcher", "seed", "candidates", "objectives"),
    "measured": _each(
        "runs",
        {
            **_RUN,
            "**results": lambda run: {name: run.result(name) for name in RESULTS},
            "round": "round",
            "**predicted": lambda run: {f"predicted_{name}": value for name, value in run.predicted.items()},
            **_same("probability_fits", "broken"),
        },
    ),
    **_same("front", "hypervolume", "stopped"),
    "expected_gain_left": "gain_left",
    "spent": lambda found: asdict(found.spent),
    "storage": _storage,
    "study": "study_name",
    "notes": "notes",
    "fault": lambda found: found.fault or None,
}


def _compared(run: Any) -> dict[str, Any]:
    """``error_<result>`` is the prediction minus the measurement, as a share of the measurement."""
    out: dict[str, Any] = {}
    for name in RESULTS:
        out[name] = run.result(name)
        out |= {f"predicted_{name}{end}": run.predicted[f"{name}{end}"] for end in ("", "_low", "_high")}
        out |= {f"error_{name}": run.error(name), f"{name}_inside": run.inside(name)}
    return out


VALIDATE: Keys = {
    "job": "job.name",
    **_same("launcher", "surrogate", "proposed"),
    "measured": _each(
        "runs",
        {
            **_RUN,
            "**results": _compared,
            **_same("in_domain", "reference", "earlier", "broken"),
            "notes": "notes",
        },
    ),
    "median_absolute_error": "median_errors",
    "stopped": "stopped",
    "storage": _storage,
    "study": "study_name",
    "notes": "notes",
    "fault": lambda found: found.fault or None,
}


def _figures(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row without its blanks."""
    return {str(name): value for name, value in row.items() if value == value}


EVALUATE: Keys = {
    "groups": lambda found: [_figures(row) for row in found.groups.to_dict("records")],
    "overall": lambda found: _figures(found.overall),
}
CALIBRATE: Keys = {
    "gpu": "calibration.gpu",
    "constants": lambda found: vars(found.calibration.constants),
    **{
        name: f"calibration.{name}"
        for name in ("plus_minus", "fitted_on", "fit_error_percent", "work", "measure_next")
    },
}
RETRAIN: Keys = {
    "out": lambda found: str(found.out),
    "sources": lambda found: [_figures(row) for row in found.sources.to_dict("records")],
    "compared": lambda found: None if found.compared is None else found.compared.to_dict("records"),
    **_same("forgotten", "remarks"),
}
