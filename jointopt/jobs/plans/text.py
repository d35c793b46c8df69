"""One plan from and to text: ``dp=4 tp=2 pp=1 micro_batch_size=1 clock_mhz=1410``, or a JSON mapping.

A row of a printed table reads back too: its short names, ``y`` and ``-``, and clocks such as ``1800×7,1860``.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jointopt.core.errors import PlanError, nearest_hint
from jointopt.core.facts import Assumption
from jointopt.core.schema import (
    COLUMNS,
    DEGREES,
    LAYOUT_COLUMNS,
    NEUTRAL,
    ONE_CLOCK,
    POWER_PROFILE,
    STAGE_LAYERS,
    Columns,
    Floats,
    Ints,
)
from jointopt.jobs.catalog.limits import limit_of
from jointopt.jobs.defaults import canonical, default_plan
from jointopt.jobs.job import Job

# SM clocks of pipeline stages: arrays (n, max pp), NaN beyond a plan's pp, and their text in tables.


def uniform_stage_clocks(pp: Ints, clock_mhz: float | Floats) -> Floats:
    """One clock on all stages of each plan: (n, max pp) from pp (n,) and a clock or clocks (n,), in MHz."""
    pp = np.asarray(pp)
    clocks = np.broadcast_to(np.asarray(clock_mhz, np.float64), pp.shape)
    stage = np.arange(int(pp.max(initial=0)))
    return np.where(stage < pp[:, np.newaxis], clocks[:, np.newaxis], np.nan)


def widened(stage_clock_mhz: Floats, width: int) -> Floats:
    """Stage clocks (n, S) as (n, width), NaN behind the last stage."""
    return np.pad(stage_clock_mhz, ((0, 0), (0, width - stage_clock_mhz.shape[1])), constant_values=np.nan)


def parse_stage_clocks(text: object, where: str = "stage_clock_mhz") -> list[float]:
    """``1410;1395`` (or one number, or a list of numbers) as floats in MHz; a blank cell is an empty list.

    A run of equal clocks may be written as tables print it, ``1800×7,1860`` or ``1800x7,1860``.
    """
    if isinstance(text, list | tuple):
        parts: Sequence[object] = text
    elif text is None or text != text or not str(text).strip():  # NaN is pandas' blank
        return []
    else:
        parts = re.split("[;,]", str(text))
    clocks: list[float] = []
    for part in parts:
        run = re.fullmatch(r"\s*([0-9.]+)\s*[×xX*]\s*([1-9][0-9]{0,4})\s*", part) if isinstance(part, str) else None
        one, count = (run[1], int(run[2])) if run else (part, 1)
        clock = number_in(one)
        if not 0 < clock < 1e6:
            raise PlanError(f"{where} must be MHz such as 1410, or 1410;1395 with one per stage; got {one!r}.")
        clocks += [clock] * count
    return clocks


def format_stage_clocks(clocks_mhz: Iterable[float]) -> str:
    """``1410;1395`` from the clocks of one plan; NaN (beyond pp) is left out."""
    return ";".join(plain_number(clock) for clock in clocks_mhz if clock == clock)


def stage_clocks_to_text(stage_clock_mhz: npt.ArrayLike) -> list[str]:
    """The column of clock texts for a table, one per row of (n, S)."""
    return [format_stage_clocks(row) for row in np.asarray(stage_clock_mhz, np.float64).tolist()]


def plain_number(value: float) -> str:
    """The shortest decimal that reads back as ``value``, whole numbers without a point."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def number_in(value: object) -> float:
    """The number that a value or its text is; NaN for a bool and for other text."""
    try:
        return math.nan if isinstance(value, bool) else float(str(value))
    except ValueError:
        return math.nan


PLAN_KEYS = (*LAYOUT_COLUMNS, "clock_mhz", "stage_clock_mhz", "power_limit_w", "stage_power_limit_w")
TRIAL_LAYOUT = "layout"  # a parameter of trials, see `jointopt.search.parameters`
_LARGEST = 10**6  # more GPUs than any system; keeps arrays over stages small
_WORDS = {
    "true": True, "1": True, "yes": True, "y": True, "false": False, "0": False, "no": False, "n": False, "-": False,
}  # fmt: skip
_ALIASES = {c.short.lower(): c.name for c in (*COLUMNS.values(), ONE_CLOCK) if c.short}
_BETWEEN_PAIRS = re.compile(r"\s+|,(?=\s*[^\s=,]+=)")  # a comma within a value separates clocks


@dataclass(frozen=True)
class ParsedPlan:
    """One plan as a row of columns, its clocks (1, pp) in MHz, and the keys that defaults filled."""

    layouts: Columns
    stage_clock_mhz: Floats
    assumed: tuple[str, ...]

    @property
    def record(self) -> dict[str, Any]:
        """The plan as `plan_records` has it."""
        return plan_records(self.layouts, self.stage_clock_mhz, [0])[0]


def parse_plan(plan: str | Mapping[str, Any], job: Job) -> ParsedPlan:
    """Read one plan for ``job``; PlanError names the key, what it must be, and what was given.

    Absent keys take the defaults of `jointopt.jobs.defaults.default_plan` and are listed in ``assumed``; the clock is
    the highest of the job's. The result is canonical, and maybe no point of the job's space (`rules.check_plan`).
    """
    given = _read(plan)
    row = {key: _value(key, value) for key, value in given.items() if key in LAYOUT_COLUMNS}
    default = default_plan(job, row)
    layouts = canonical(job, default.layouts)
    pp = int(layouts["pp"][0])
    clocks = _clocks(given, pp, job)
    absent = [name for name in LAYOUT_COLUMNS if name not in row and (name in DEGREES or default.assumed[name][0])]
    if not {"clock_mhz", "stage_clock_mhz"} & given.keys():
        absent.append("stage_clock_mhz")
    return ParsedPlan(layouts | _power_limits(given, pp), clocks, tuple(absent))


def plan_degrees(plan: str | Mapping[str, Any]) -> dict[str, int]:
    """The degrees dp, tp, pp and cp that a plan states, of no particular job; PlanError as in `parse_plan`."""
    return {key: int(_value(key, value)) for key, value in _read(plan).items() if key in DEGREES}


def plan_assumptions(parsed: ParsedPlan) -> tuple[Assumption, ...]:
    """An assumption for each key that a default filled, with the value that stands in."""
    record = parsed.record
    words = {key: _word(value) for key, value in record.items()}
    words["stage_clock_mhz"] = format_stage_clocks(dict.fromkeys(record["stage_clock_mhz"]))
    return tuple(Assumption.not_given(key, record[key], words[key]) for key in parsed.assumed)


def format_plan(layouts: Columns, stage_clock_mhz: Floats, index: int = 0) -> str:
    """The plan in row ``index`` as text that `parse_plan` reads: no columns without effect, a common clock once."""
    record = plan_records(layouts, stage_clock_mhz, [index])[0]
    clocks = record.pop("stage_clock_mhz")
    without = {name for name, neutral in NEUTRAL.items() if name not in layouts or layouts[name][index] == neutral}
    if "stage_layers" not in without:
        record["stage_layers"] = STAGE_LAYERS.short(int(layouts["stage_layers"][index]))
    words = [f"{key}={_word(value)}" for key, value in record.items() if key not in without]
    name = "clock_mhz" if len(set(clocks)) == 1 else "stage_clock_mhz"
    clock_text = format_stage_clocks(clocks[:1] if name == "clock_mhz" else clocks)
    return " ".join([*words, f"{name}={clock_text}"] if clocks else words)


def plan_records(layouts: Columns, stage_clock_mhz: Floats, index: Iterable[int]) -> list[dict[str, Any]]:
    """The plans in the rows ``index`` as JSON-ready mappings, keys in the order of the plan's columns.

    ``recompute`` is a name, ``stage_clock_mhz`` a list of pp floats (MHz), ``power_limit_w`` and
    ``stage_power_limit_w`` (list of pp floats) there where set.
    """
    records = []
    for i in map(int, index):
        values = NEUTRAL | {name: layouts[name][i] for name in LAYOUT_COLUMNS if name in layouts}
        record: dict[str, Any] = {name: COLUMNS[name].decode(values[name]) for name in LAYOUT_COLUMNS}
        record["stage_clock_mhz"] = [clock for clock in stage_clock_mhz[i].tolist() if clock == clock]
        if "power_limit_w" in layouts and np.isfinite(layouts["power_limit_w"][i]):
            record["power_limit_w"] = float(layouts["power_limit_w"][i])
        if "stage_power_limit_w" in layouts:
            record["stage_power_limit_w"] = layouts["stage_power_limit_w"][i].tolist()
        records.append(record)
    return records


def record_text(plan: Mapping[str, Any]) -> str:
    """The record of a plan as text, the same for equal plans: two plans may share all parameters of a trial."""
    return json.dumps(dict(plan), sort_keys=True)


def is_of_trial(plan: str | Mapping[str, Any]) -> bool:
    """Whether this is no plan but the parameters of a trial of Optuna, which alone have a ``layout``."""
    return TRIAL_LAYOUT in plan if isinstance(plan, Mapping) else f'"{TRIAL_LAYOUT}"' in str(plan)


def parameters_of_trial(text: str | Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a trial, as a mapping or as its JSON; PlanError for other text."""
    try:
        return dict(text if isinstance(text, Mapping) else json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise PlanError(
            f"The parameters of a trial must be a JSON mapping, as trial.params prints: {error}."
        ) from error


def _read(plan: str | Mapping[str, Any]) -> dict[str, Any]:
    """The keys and raw values of a plan, every key a known one."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(plan, Mapping):
        pairs = list(plan.items())
    elif not isinstance(plan, str):
        kind = type(plan).__name__
        raise PlanError(f"A plan is text such as 'dp=4 tp=2' or a mapping of its keys; got {kind}.")
    elif plan.lstrip().startswith("{"):
        try:
            pairs = json.loads(plan, object_pairs_hook=list)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"The plan starts with '{{' and is not a JSON mapping: {error}.") from error
    else:
        words = [word.strip(",") for word in _BETWEEN_PAIRS.split(plan)]
        for word in (word for word in words if word not in ("", "MHz", "W")):  # as reports print clocks
            key, _, value = word.partition("=")
            if not (key and value):
                raise PlanError(f"A plan is written as words such as dp=4 tp=2 clock_mhz=1410; got {word!r}.")
            pairs.append((key, value))
        if not pairs:
            raise PlanError("The plan is blank; expected words such as dp=4 tp=2.")
    pairs = [(_ALIASES.get(str(key).lower(), key), value) for key, value in pairs]
    if any(key == POWER_PROFILE and value for key, value in pairs):
        raise PlanError("What a power_profile does is measured and never predicted; give the plan without it.")
    times = Counter(key for key, _ in pairs if key != POWER_PROFILE)
    for key in times:
        if key not in PLAN_KEYS:
            known = ", ".join(PLAN_KEYS)
            raise PlanError(f"A plan has no key {key!r}{nearest_hint(key, PLAN_KEYS)}; the keys are {known}.")
    for key in (key for key in times if times[key] > 1):
        often = "twice" if times[key] == 2 else f"{times[key]} times"
        raise PlanError(f"The plan states {key} {often}; give each key once.")
    return {key: value for key, value in pairs if key in times}


def _value(key: str, value: Any) -> int | bool:
    """One layout value as its array holds it."""
    column, must_be = COLUMNS[key], f"The {key} of a plan must be"
    if column.codes is not None:
        try:
            return column.encode(value)
        except ValueError as error:
            hint = nearest_hint(str(value), getattr(column.codes, "names", ()))
            raise PlanError(f"{must_be} {column.codes.expected}; got {value!r}{hint}.") from error
    if column.dtype == "bool":
        word = str(value).strip().lower()
        if word not in _WORDS:
            names = ", ".join(name for name in _WORDS if len(name) > 1 or name.isdigit())
            raise PlanError(f"{must_be} one of {names}; got {value!r}{nearest_hint(word, _WORDS)}.")
        return _WORDS[word]
    lowest, highest = int(column.low), int(min(column.high, limit_of("plan.pp") if key == "pp" else _LARGEST))
    with suppress(ValueError):
        if not isinstance(value, bool) and lowest <= int(str(value)) <= highest:
            return int(str(value))
    raise PlanError(f"{must_be} a whole number {lowest} to {highest}; got {value!r}.")


def _clocks(given: Mapping[str, Any], pp: int, job: Job) -> Floats:
    """The clock of each stage (1, pp), each one that the GPU has."""
    if {"clock_mhz", "stage_clock_mhz"} <= given.keys():
        raise PlanError("A plan gives either clock_mhz (one for all stages) or stage_clock_mhz; got both.")
    key = "clock_mhz" if "clock_mhz" in given else "stage_clock_mhz"
    clocks = parse_stage_clocks(given.get(key), key)
    gpu = job.cluster.gpu
    if key not in given:
        why = "choose the clock of a plan that gives none"
        clocks = [max(job.search.clock_mhz) if job.search.clock_mhz else gpu.need("clock_max_mhz", why)]
    elif len(clocks) not in (1, pp):
        raise PlanError(f"{key} must have one clock, or one for each of the {pp} stages; got {given[key]!r}.")
    low, high = gpu.clock_span_mhz
    for clock in clocks:
        if not low <= clock <= high:
            span = f"between {plain_number(low)} and {high:g} MHz, the clocks of {gpu.id}"
            raise PlanError(f"{key} must be {span}; got {plain_number(clock)}.")
    return np.broadcast_to(np.asarray([clocks], np.float64), (1, pp)).copy()


def _power_limits(given: Mapping[str, Any], pp: int) -> Columns:
    """``power_limit_w`` (1,) or ``stage_power_limit_w`` (1, pp), whichever the plan states."""
    keys = [key for key in ("power_limit_w", "stage_power_limit_w") if key in given]
    if len(keys) > 1:
        raise PlanError("A plan gives either power_limit_w (one for all GPUs) or stage_power_limit_w; got both.")
    found: Columns = {}
    for key in keys:
        value, of_stages = given[key], key == "stage_power_limit_w"
        listed = value if isinstance(value, list | tuple) else re.split("[;,]", str(value))
        parts = listed if of_stages else [value]
        if of_stages and len(parts) != pp:
            raise PlanError(f"{key} must have one limit in W for each of the {pp} stages; got {value!r}.")
        watts = np.asarray([number_in(part) for part in parts])
        for part in (part for part, limit in zip(parts, watts, strict=True) if not 0 < limit < 1e6):
            raise PlanError(f"The {key} of a plan must be watts per GPU, above 0; got {part!r}.")
        found[key] = watts[np.newaxis] if of_stages else watts
    return found


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ";".join(plain_number(one) for one in value)
    return plain_number(value) if isinstance(value, float) else str(value)
