"""What every rank of one run took in every iteration, from a program's own rows: CSV, or a JSON document per line."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.errors import TableError
from jointopt.core.schema import Floats, Ints
from jointopt.runs.cells import quoted_cell

if TYPE_CHECKING:
    import pandas as pd

# columns of rows that may be known: seconds of the rank's own work (forward and backward, without waiting), of its
# sends to the next stage, what NVML says of its GPU, tokens that its experts had, and where the rank is
NEEDED = ("iteration", "rank", "time_s")
KNOWN = ("time_s", "link_s", "clock_mhz", "temperature_c", "power_w", "tokens", "iteration_time_s", "stage", "node")
_OF_TIMERS = ("to_next_s", "to_previous_s")  # waits and sends of Megatron's timers, to either side of a stage
_REASONS = {"heat": "therm", "power": "power"}  # by words of NVML's reasons, as in SW Thermal Slowdown, SW Power Cap


@dataclass(frozen=True)
class RankTimes:
    """Columns (iterations, ranks) by name, NaN where unknown, of the numbered iterations (n,) and ranks."""

    iteration: Ints
    rank: Ints
    columns: Mapping[str, Floats]

    def per_rank(self, name: str) -> Ints | None:
        """A column that never changes, such as stage, (ranks,); None where it is not stated of every rank."""
        values = self.columns.get(name)
        if values is None or np.isnan(first := np.nanmax(values, axis=0)).any():
            return None
        return np.asarray(first, np.int64)

    @classmethod
    def of(cls, frame: pd.DataFrame, warmup: int = 0) -> RankTimes:
        """From a table of `NEEDED` columns and others, without its first ``warmup`` iterations.

        Of an iteration that a rank ran twice, after a restart, the last counts.
        """
        import pandas as pd

        names = [name for name in (*KNOWN, *_OF_TIMERS) if name in frame and frame[name].notna().any()]
        numbers = frame[["iteration", "rank", *names]].apply(pd.to_numeric, errors="coerce")
        for name, word in _REASONS.items():
            if "throttle" in frame:
                numbers[name] = frame["throttle"].astype(str).str.lower().str.contains(word).astype(float)
        last = numbers.dropna(subset=["iteration", "rank"]).drop_duplicates(["iteration", "rank"], keep="last")
        last = last[last["iteration"].isin(sorted(last["iteration"].unique())[warmup:])]
        if last.empty:
            raise TableError(f"The table of ranks has no iteration after the first {warmup}, which do not count.")
        wide = last.pivot(index="iteration", columns="rank")
        ranks = np.array(sorted(last["rank"].unique()), np.int64)
        columns = {str(name): wide[name].reindex(columns=ranks).to_numpy(float) for name in wide.columns.levels[0]}
        columns["time_s"] = np.where(columns["time_s"] > 0, columns["time_s"], np.nan)
        if (none := np.isnan(columns["time_s"]).all(axis=0)).any():
            raise TableError(
                f"The table of ranks has no time_s above 0 for rank {ranks[none][0]}; expected its seconds."
            )
        return cls(wide.index.to_numpy(np.int64), ranks, columns)


def is_rank_rows(text: str) -> bool:
    """Whether a text begins with a row of ranks, or with the header of such rows."""
    first = text.lstrip("\ufeff").lstrip().partition("\n")[0]
    cells = first.split(",") if not first.startswith("{") else _keys(first)
    return {"iteration", "rank"} <= {cell.strip().strip('"') for cell in cells}


def read_rank_rows(text: str) -> pd.DataFrame:
    """The rows of such a text, without a last line that is cut off; TableError where a column is missing."""
    import pandas as pd

    whole = text.lstrip("\ufeff").lstrip()
    whole = whole if whole.endswith("\n") else whole.rpartition("\n")[0]
    try:
        frame = pd.read_json(io.StringIO(whole), lines=True) if whole[:1] == "{" else pd.read_csv(io.StringIO(whole))
    except ValueError as error:
        raise TableError(f"The table of ranks cannot be read: {error}.") from error
    frame.columns = frame.columns.str.strip()
    if missing := [name for name in NEEDED if name not in frame]:
        raise TableError(f"The table of ranks has no column {missing[0]}; expected {', '.join(NEEDED)}, and perhaps "
                         f"{', '.join(KNOWN[1:])}, throttle.")  # fmt: skip
    of_header = frame["iteration"].astype(str).str.strip() == "iteration"  # of files joined
    for name in frame.columns.intersection(["time_s", "iteration_time_s"]):
        numbers = pd.to_numeric(frame[name], errors="coerce")
        wrong = ~of_header & frame[name].notna() & ~((numbers > 0.0) & np.isfinite(numbers))
        for row in np.flatnonzero(wrong)[:1].tolist():
            got = quoted_cell(frame, row, name)
            raise TableError(f"Row {row + 1} of the table of ranks has {name} {got}; expected seconds above 0, or a "
                             "blank where they are not known.")  # fmt: skip
    return frame


def _keys(line: str) -> list[str]:
    try:
        return list(json.loads(line))
    except ValueError:
        return []
