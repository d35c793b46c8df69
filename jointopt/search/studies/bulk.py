"""Many trials at once, through Optuna's own tables: Optuna itself takes 73 a second on SQLite, this takes 17,000.

The tables are private to Optuna. They are used as pinned below, by SQLite and PostgreSQL; `pinned_tables` says whether
they still are, and a contract test compares what is written here with what ``Study.add_trials`` writes.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
import sqlalchemy as sa

from jointopt.core.schema import LAYOUT_COLUMNS, RECOMPUTE_NAMES, Columns, Floats
from jointopt.search.pareto import OBJECTIVES

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

TRIALS_PER_CHUNK = 250  # so that the rows of a chunk and their indices stay within the database's cache
LARGE = 1e9  # stands for an infinite violation, which JSON does not know
# Of a violation: optuna-dashboard reads the first, Optuna 5 the second.
CONSTRAINT_KEYS = ("constraints", "constraints:violation")

PINNED_COLUMNS = {
    "studies": {"study_id", "study_name"},
    "study_directions": {"study_direction_id", "direction", "study_id", "objective"},
    "study_user_attributes": {"study_user_attribute_id", "study_id", "key", "value_json"},
    "study_system_attributes": {"study_system_attribute_id", "study_id", "key", "value_json"},
    "trials": {"trial_id", "number", "study_id", "state", "datetime_start", "datetime_complete"},
    "trial_values": {"trial_value_id", "trial_id", "objective", "value", "value_type"},
    "trial_params": {"param_id", "trial_id", "param_name", "param_value", "distribution_json"},
    "trial_user_attributes": {"trial_user_attribute_id", "trial_id", "key", "value_json"},
    "trial_system_attributes": {"trial_system_attribute_id", "trial_id", "key", "value_json"},
}
DATABASES = ("sqlite", "postgresql")


@dataclass(frozen=True)
class TrialRows:
    """Trials by column: parameters in Optuna's internal form, attributes as JSON text (None: this trial has none)."""

    params: Mapping[str, list[float]]
    distributions: Mapping[str, BaseDistribution]
    user_attrs: Mapping[str, list[str | None]]
    system_attrs: Mapping[str, list[str | None]]
    values: tuple[list[float], ...] = ()
    starts: list[datetime.datetime] | None = None  # naive UTC; each trial ends where the next one starts

    def __len__(self) -> int:
        return len(next(iter(self.params.values())))

    def times(self, row: int) -> tuple[datetime.datetime | None, datetime.datetime | None]:
        """Start and end of a trial; one second each, since the timeline shows nothing of shorter ones."""
        if self.starts is None:
            return None, None
        return self.starts[row], self.starts[row] + datetime.timedelta(seconds=1)


def finished_rows(plans: Columns) -> TrialRows:
    """Finished trials of described plans with finite objectives (`jointopt.search.problem.Problem.describe`).

    Results become attributes, the violation a constraint in both forms; the timestamps lie a second apart.
    """
    end = datetime.datetime.now(datetime.UTC).replace(microsecond=0, tzinfo=None)
    count = len(plans["violation"])
    params, distributions = parameters(plans, distributions_of(plans, plans["clock_mhz"]))
    return TrialRows(
        params=params,
        distributions=distributions,
        user_attrs=result_attributes(plans),
        system_attrs=constraint_attributes(plans["violation"]),
        values=tuple(plans[name].tolist() for name in OBJECTIVES),
        starts=[end - datetime.timedelta(seconds=count - row) for row in range(count)],
    )


def distributions_of(layouts: Columns, clocks_mhz: Floats) -> dict[str, BaseDistribution]:
    """One parameter per plan column, degrees on a log scale, the clock in MHz, the share of slack."""
    made: dict[str, BaseDistribution] = {name: _distribution(name, layouts[name]) for name in LAYOUT_COLUMNS}
    low, high = float(clocks_mhz.min()), float(clocks_mhz.max())
    made["clock_mhz"] = optuna.distributions.FloatDistribution(low, high)
    made["slack"] = optuna.distributions.FloatDistribution(0.0, 1.0)
    return made


def _distribution(name: str, values: Any) -> BaseDistribution:
    if name == "recompute":
        return optuna.distributions.CategoricalDistribution(RECOMPUTE_NAMES)
    if name == "sequence_parallel":
        return optuna.distributions.CategoricalDistribution((False, True))
    low, high = int(values.min()), int(values.max())
    return optuna.distributions.IntDistribution(low, high, log=name != "zero_stage")


def parameters(
    described: Columns, distributions: Mapping[str, BaseDistribution]
) -> tuple[dict[str, list[float]], dict[str, BaseDistribution]]:
    """Optuna's internal parameters of each plan, by name; categories are already stored as positions."""
    columns = {name: described[name] for name in distributions} | {"slack": np.nan_to_num(described["slack"])}
    return {name: values.astype(float).tolist() for name, values in columns.items()}, dict(distributions)


def result_attributes(plans: Columns) -> dict[str, list[str | None]]:
    """What is known of each plan beyond parameters and objectives, as JSON; unknown (NaN) is left out."""
    taken = {*LAYOUT_COLUMNS, *OBJECTIVES, "layout_index", "clock_index", "violation", "clock_mhz", "slack"}
    stages = [";".join(f"{clock:g}" for clock in row[np.isfinite(row)]) for row in plans["stage_clock_mhz"]]
    made: dict[str, list[str | None]] = {"stage_clock_mhz": [json.dumps(text) for text in stages]}
    for name, values in plans.items():
        if name not in taken and values.ndim == 1:
            made[name] = [_json(value) for value in values.tolist()]
    return made


def _json(value: Any) -> str | None:
    return None if isinstance(value, float) and not math.isfinite(value) else json.dumps(value)


def constraint_attributes(violation: Floats) -> dict[str, list[str | None]]:
    """The violation as Optuna's constraint (at most 0 is feasible), in the forms of `CONSTRAINT_KEYS`."""
    clipped = np.clip(violation, -LARGE, LARGE).tolist()
    old, new = CONSTRAINT_KEYS
    return {old: [f"[{value!r}]" for value in clipped], new: [repr(value) for value in clipped]}


def frozen_trials(rows: TrialRows) -> list[FrozenTrial]:
    """The same trials as Optuna's objects, for `Study.add_trials`."""
    trials = []
    for row in range(len(rows)):
        trial = optuna.trial.create_trial(
            values=[values[row] for values in rows.values],
            params={
                name: rows.distributions[name].to_external_repr(values[row])
                for name, values in rows.params.items()
            },
            distributions=dict(rows.distributions),
            user_attrs=_loaded(rows.user_attrs, row),
            system_attrs=_loaded(rows.system_attrs, row),
        )
        trial.datetime_start, trial.datetime_complete = map(_local, rows.times(row))
        trials.append(trial)
    return trials


def _loaded(attributes: Mapping[str, list[str | None]], row: int) -> dict[str, Any]:
    return {name: json.loads(text[row] or "") for name, text in attributes.items() if text[row] is not None}


def _local(moment: datetime.datetime | None) -> datetime.datetime | None:
    """Optuna shows naive local time and stores naive UTC."""
    if moment is None:
        return None
    return moment.replace(tzinfo=datetime.UTC).astimezone().replace(tzinfo=None)


def pinned_tables(engine: sa.Engine | None) -> Mapping[str, sa.Table] | None:
    """Optuna's tables if they are as pinned and the database is one that is known here, else None."""
    if engine is None or engine.dialect.name not in DATABASES:
        return None
    from optuna.storages._rdb import models

    tables: Mapping[str, sa.Table] = models.BaseModel.metadata.tables
    as_pinned = all(
        name in tables and set(tables[name].columns.keys()) == columns
        for name, columns in PINNED_COLUMNS.items()
    )
    return tables if as_pinned else None


def insert_study(
    connection: sa.Connection, tables: Mapping[str, sa.Table], name: str, user_attrs: Mapping[str, Any]
) -> int:
    """The id of a new study that minimises the objectives; IntegrityError where the name is taken."""
    made = connection.execute(tables["studies"].insert().values(study_name=name))
    (study_id,) = made.inserted_primary_key or (0,)
    minimise = optuna.study.StudyDirection.MINIMIZE
    rows = [
        {"study_id": study_id, "objective": number, "direction": minimise}
        for number in range(len(OBJECTIVES))
    ]
    connection.execute(tables["study_directions"].insert(), rows)
    set_study_attributes(connection, tables["study_user_attributes"], study_id, user_attrs)
    return int(study_id)


def set_study_attributes(
    connection: sa.Connection, table: sa.Table, study_id: int, attributes: Mapping[str, Any]
) -> None:
    """New attributes of a study, in either table of them."""
    rows = [{"study_id": study_id, "key": k, "value_json": json.dumps(v)} for k, v in attributes.items()]
    if rows:
        connection.execute(table.insert(), rows)


def insert_trials(
    connection: sa.Connection,
    study_id: int,
    rows: TrialRows,
    *,
    first_number: int = 0,
    state: str = "COMPLETE",
) -> list[int]:
    """Writes the trials within the caller's transaction, numbered from ``first_number``; returns their ids.

    The caller holds the study's lock (`lock_study`), so that nobody else numbers trials meanwhile.
    """
    ids = _next_ids(connection, len(rows))
    for start in range(0, len(rows), TRIALS_PER_CHUNK):
        chunk = slice(start, min(start + TRIALS_PER_CHUNK, len(rows)))
        heads = (
            (ids[row], first_number + row, study_id, state, *map(_sql_time(connection), rows.times(row)))
            for row in range(chunk.start, chunk.stop)
        )
        _many(connection, "trials", "trial_id number study_id state datetime_start datetime_complete", heads)
        insert_details(connection, ids[chunk], rows, chunk)
    return ids


def lock_study(connection: sa.Connection, study_id: int) -> None:
    """Waits until nobody else writes to the study; holds until the transaction ends."""
    connection.execute(
        sa.text("UPDATE studies SET study_name = study_name WHERE study_id = :id"), {"id": study_id}
    )


def _next_ids(connection: sa.Connection, count: int) -> list[int]:
    """Fresh trial ids: from the database's counter, or after the last one where only one writer is let in."""
    if connection.dialect.name == "sqlite":
        last = int(connection.scalar(sa.text("SELECT COALESCE(MAX(trial_id), 0) FROM trials")) or 0)
        return list(range(last + 1, last + 1 + count))
    counter = "SELECT nextval(pg_get_serial_sequence('trials', 'trial_id')) FROM generate_series(1, :count)"
    return [int(row[0]) for row in connection.execute(sa.text(counter), {"count": count})]


def insert_details(connection: sa.Connection, ids: list[int], rows: TrialRows, chunk: slice) -> None:
    """Parameters, values and attributes of trials that are there: the ``chunk`` of ``rows`` that has these ids."""
    for name, values in rows.params.items():
        kind = optuna.distributions.distribution_to_json(rows.distributions[name])
        params = zip(ids, repeat(name), values[chunk], repeat(kind))
        _many(connection, "trial_params", "trial_id param_name param_value distribution_json", params)
    for number, results in enumerate(rows.values):
        found = zip(ids, repeat(number), results[chunk], repeat("FINITE"))
        _many(connection, "trial_values", "trial_id objective value value_type", found)
    for table, attributes in (("user", rows.user_attrs), ("system", rows.system_attrs)):
        for key, texts in attributes.items():
            known = (row for row in zip(ids, repeat(key), texts[chunk]) if row[-1] is not None)
            _many(connection, f"trial_{table}_attributes", "trial_id key value_json", known)


def _many(connection: sa.Connection, table: str, columns: str, rows: Iterable[tuple[Any, ...]]) -> None:
    """The driver's own way for many rows: SQLAlchemy's costs more than the database."""
    names = columns.split()
    mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
    filled = list(rows)
    if filled:
        marks = ", ".join([mark] * len(names))
        connection.exec_driver_sql(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", filled)


def _sql_time(connection: sa.Connection) -> Any:
    """What the driver takes for a time: SQLite knows text alone, in SQLAlchemy's form of it."""
    if connection.dialect.name != "sqlite":
        return lambda moment: moment
    return lambda moment: None if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S.%f")
