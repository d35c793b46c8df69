"""Tables of runs between files and pandas, and what their cells must be; a refusal is one sentence."""

from __future__ import annotations

import csv
import gzip
import io
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jointopt.core.atomic_write import replacing, write_failure
from jointopt.core.errors import TableError
from jointopt.core.input_files import regular_bytes, unpacked
from jointopt.core.quote import csv_cell, csv_original
from jointopt.core.schema import COLUMNS, STATUSES, TABLE_NAMES, Bools, Ints, column_of
from jointopt.runs.cells import (
    MEASURED,
    READERS,
    STRICT_READERS,
    Cells,
    as_table,
    floats,
    json_rows,
    quoted_cell,
    read_columns,
)
from jointopt.runs.checks import DOUBTS, RESULT_RULES, RULES, Check, broken_checks, complaint
from jointopt.runs.peak_share import in_faster_precision

_TEXT: dict[Any, Any] = {c.name: "str" for c in COLUMNS.values() if c.dtype == "str"}  # group 007 is no number
_MOST_BYTES = 400_000_000  # unpacked: two million rows
_MOST_ROWS = 2_000_000
_MOST_COLUMNS = 2_000
_HOT_C = 95  # of the hottest GPU of a run: boards lower their clocks before
_SHOWN = 20  # rows of a kind of problem that are described one by one
_WHITE = re.compile(r"\s+")
_OTHER_MARKS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_OTHER_FILES = {
    b"PK\x03\x04": "it is a workbook of a spreadsheet or a zip archive",
    b"\xd0\xcf\x11\xe0": "it is a workbook of a spreadsheet",
    b"\xff\xfe": "it is UTF-16 text",
    b"\xfe\xff": "it is UTF-16 text",
    b"PAR1": "it is a Parquet file",
}


@dataclass(frozen=True)
class Problem:
    """Why one row of a measurement table is refused; ``line`` as in the CSV file, whose header is line 1."""

    line: int
    column: str
    message: str  # what was expected there, and what was got
    like: int | None = None  # the line that shows the same kind of problem, where this one is not described


def read_table(path: Path) -> pd.DataFrame:
    """A CSV or CSV.gz file (UTF-8) with a header and at least one row; blank cells are NaN. Raises TableError."""
    text = _read_text(path)
    next(_records(text, path))  # the header, looked at
    table = _parse(text, path)
    if table.empty:
        raise TableError(f"{path} holds no rows; expected a header and one run per row.")
    return table


def read_measurements(path: Path, rules: Sequence[Check] | None = None) -> tuple[pd.DataFrame, list[Problem]]:
    """The good rows of a measurement file as `check_measurements` returns them, and what is wrong with the others.

    A line with more or fewer cells than the header is a problem of that line alone; rows of blanks are passed over.
    ``rules``: by default `RULES`. Raises TableError for a file that is no table.
    """
    lines, rows, ragged = list[int](), list[list[str]](), list[Problem]()
    for line, cells in _records(_read_text(path), path):
        if not rows or len(cells) == len(rows[0]):
            lines.append(line)
            rows.append(cells)
        else:
            got = f"expected {len(rows[0])} cells as in the header, got {len(cells)}"
            ragged.append(Problem(line, rows[0][min(len(cells), len(rows[0])) - 1], got))
    if len(rows) == 1 and ragged:
        return pd.DataFrame(columns=list(dict.fromkeys(rows[0]))), ragged  # heads may be blank, or one twice
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    good, problems = check_measurements(_parse(buffer.getvalue(), path), lines[1:], rules)
    return good, sorted([*problems, *ragged], key=lambda problem: problem.line)


def problem_lines(problems: Iterable[Problem]) -> list[str]:
    """One text per refused row that is described, with all that is wrong with it, and one per kind of the others."""
    by_line: dict[int, list[Problem]] = {}
    for problem in problems:
        by_line.setdefault(problem.line, []).append(problem)
    texts, alike = [], Counter[Problem]()
    for line, found in sorted(by_line.items()):
        described = [f"column {problem.column}: {problem.message}" for problem in found if problem.like is None]
        if described:
            texts.append(f"line {line}, {'; '.join(described)}.")
        else:
            alike[replace(found[0], line=0)] += 1
    more = (f"{count:,} more rows like line {one.like}, column {one.column}." for one, count in alike.items())
    return [*texts, *more]


def refused_rows(problems: Iterable[Problem]) -> int:
    """Number of rows that have a problem."""
    return len({problem.line for problem in problems})


def write_table(table: pd.DataFrame, path: Path, rounded: Collection[str] = ()) -> None:
    """Writes a CSV (or CSV.gz) file that `read_table` reads back, cells of nothing blank. Raises TableError.

    The file is there when it is whole. ``rounded``: columns whose floats are written to seven digits.
    """
    try:
        with replacing(path) as part, part.open("wb") as file:
            # the same table is the same file: no name and no time in its head
            packed = gzip.GzipFile("", "wb", fileobj=file, mtime=1) if path.name.endswith(".gz") else nullcontext(file)
            with packed as binary:
                binary.writelines(text.encode() for text in csv_texts(table, rounded))
    except OSError as error:
        raise TableError(f"{path} cannot be written: {write_failure(error)}.") from error


def _read_text(path: Path) -> str:
    raw, reason = b"", ""
    try:
        raw = regular_bytes(path, _MOST_BYTES, "a CSV file", TableError)
        raw = unpacked(raw, path, _MOST_BYTES, TableError)
        text = raw.decode("utf-8-sig")
        if "\0" in text:
            reason = f"character {text.index(chr(0)):,} is a zero, as in a binary file"
        elif not text.strip():
            raise ValueError("the file is empty")
    except UnicodeDecodeError as error:
        reason = f"byte {error.start:,} is not UTF-8 text"
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise _unreadable(path, getattr(error, "strerror", None) or error) from error
    if reason:
        kind = next((kind for start, kind in _OTHER_FILES.items() if raw.startswith(start)), reason)
        raise _unreadable(path, f"{kind}; expected comma-separated UTF-8 text")
    return text


def _unreadable(path: Path, reason: object) -> TableError:
    return TableError(f"{path} cannot be read as CSV: {_WHITE.sub(' ', str(reason)).strip(' .')}.")


def _records(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line on which it starts, cells) of every record that is not blank, the header (stripped) first."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    start, count = 1, 0
    try:
        for record in reader:
            line, start = start, reader.line_num + 1
            if not any(cell.strip() for cell in record):
                continue
            count += 1
            if count > _MOST_ROWS + 1:
                raise TableError(f"{path} has more than {_MOST_ROWS:,} rows; expected that many at most.")
            yield line, record if count > 1 else _header(record, path)
    except csv.Error as error:
        raise _unreadable(path, f"line {start}: {error}") from error
    if not count:
        raise _unreadable(path, "it holds only blank cells")


def _header(record: list[str], path: Path) -> list[str]:
    header = [name.strip() for name in record]
    for mark, word in _OTHER_MARKS.items():
        if len(header) == 1 and header[0].count(mark) > 1:
            raise TableError(f"The columns of {path} are separated by {word}; expected commas.")
    if len(header) > _MOST_COLUMNS:
        raise TableError(f"{path} has {len(header):,} columns; expected at most {_MOST_COLUMNS:,}.")
    twice = next((name for name, count in Counter(filter(None, header)).items() if count > 1), None)
    if twice:
        raise TableError(f"{path} has the column {twice!r} more than once; expected every column once.")
    return header


def _parse(text: str, path: Path) -> pd.DataFrame:
    try:
        with warnings.catch_warnings():
            # pandas only warns where it cuts off the cells that go beyond the header
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(io.BytesIO(text.encode()), low_memory=False, index_col=False, dtype=_TEXT)
    except (ValueError, pd.errors.ParserWarning) as error:  # pandas' parser errors are ValueErrors
        (_, header), *rows = _records(text, path)
        size = len(header)
        cells = f"{size} cells as in the header" if size > 1 else "1 cell as in the header (is it a table?)"
        longer = (f"line {line}: expected {cells}, got {len(row)}" for line, row in rows if len(row) > size)
        raise _unreadable(path, next(longer, "") or error) from error
    table.columns = table.columns.str.strip()
    if "'" not in text:
        return table
    # without the apostrophe by which `csv_cell` keeps a spreadsheet from taking text for a formula
    for at, dtype in enumerate(table.dtypes):
        if not pd.api.types.is_numeric_dtype(dtype):
            column = table.iloc[:, at]
            guarded = column.astype(str).str.startswith("'").to_numpy()
            if guarded.any():
                table.isetitem(at, column.where(~guarded, column.astype(str).map(csv_original)).to_numpy())
    return table.rename(columns=csv_original)


def clean_runs(table: pd.DataFrame) -> pd.DataFrame:
    """A copy of a measurement table whose plan and workload cells are as the schema requires, rows numbered from 0.

    Numbers and flags become floats, blank cells NaN; columns that no prediction reads stay. Raises TableError that
    names row, column and value of a cell that makes no sense, for a table without rows and for a column given twice.
    """
    clean, unread = readable_runs(table)
    if unread:
        first = min(unread)
        raise TableError(f"Row {first + 1} of the table: {unread[first]}")
    return clean


def readable_runs(
    table: pd.DataFrame, categories: bool = False, called: str = "the table"
) -> tuple[pd.DataFrame, dict[int, str]]:
    """The table as `clean_runs`, and by position the reason why a row with an unknown word cannot be read.

    Cells with unknown words become blank. A number or clock out of range is a TableError all the same: it may be of
    another unit or column in every row. ``categories`` as in `read_columns`; ``called``: the table's name in messages.
    """
    _check_columns(table)
    renamed = {name: other for other, name in reversed(TABLE_NAMES.items()) if other in table and name not in table}
    table = table.rename(columns={other: name for name, other in renamed.items()})
    names = ["clock_mhz", *(c.name for c in COLUMNS.values() if c.role != "result")]
    clean, faults = read_columns(table, names, READERS, categories)
    unread: dict[int, str] = {}
    for name, wrong, expected in faults:
        rows = np.flatnonzero(wrong)
        reasons = {row: f"{name} must be {expected}; got {quoted_cell(table, row, name)}." for row in rows.tolist()}
        if column_of(name).dtype not in ("str", "bool"):
            raise TableError(f"Row {rows[0] + 1} of {called}: {reasons[rows[0]]}")
        unread = reasons | unread
    return clean, unread


def check_measurements(
    frame: pd.DataFrame, lines: Sequence[int] | None = None, rules: Sequence[Check] | None = None
) -> tuple[pd.DataFrame, list[Problem]]:
    """The rows of a measurement table that can be true, in canonical spelling, and the problems of the others.

    ``lines`` are the rows' lines in their file, by default i + 2. Checked are every cell and what ``rules`` (by default
    `RULES`) require of cells together; a blank cell breaks none. A result of zero of an unfinished run becomes blank.
    Raises TableError for a table without rows, without any known column, or with a column twice.
    """
    _check_columns(frame)
    table = _without_results_of_unfinished(frame.reset_index(drop=True))
    clean, faults = read_columns(table, [*COLUMNS, "clock_mhz"], STRICT_READERS)
    at = range(2, len(table) + 2) if lines is None else lines
    problems: list[Problem] = []

    def describe(column: str, rows: list[int], words: Iterable[str]) -> None:
        """Add a problem for each row: the first in words, which take milliseconds, the others as like the first."""
        problems.extend(Problem(at[row], column, text) for row, text in zip(rows[:_SHOWN], words, strict=False))
        problems.extend(Problem(at[row], column, "", at[rows[0]]) for row in rows[_SHOWN:])

    for name, wrong, expected in faults:
        rows = np.flatnonzero(wrong).tolist()
        describe(name, rows, (f"expected {expected}, got {quoted_cell(table, row, name)}" for row in rows))
    for check, broken in broken_checks(clean, RULES if rules is None else rules):
        rows = np.flatnonzero(broken & ~_unfinished(clean).to_numpy() if check.may_fail else broken).tolist()
        describe(check.columns[0], rows, (complaint(check, clean, row) for row in rows))
    bad = pd.Series(at).isin({problem.line for problem in problems}).to_numpy()
    good = as_table(json_rows(clean[~bad]), [str(name) for name in table.columns])
    return good, sorted(problems, key=lambda problem: problem.line)


def sound_results(frame: pd.DataFrame, rules: Iterable[Check] = ()) -> tuple[pd.DataFrame, list[str]]:
    """A copy of a measurement table without results that cannot be true, and a sentence on each kind of them.

    An unknown status becomes ``unknown``. Numbers out of range, results that one of ``rules`` blames, and, without a
    sentence, zeros of unfinished runs become blank. Text among the numbers stays.
    """
    table = _without_results_of_unfinished(frame)
    names = [name for name in ("status", *MEASURED) if name in table]
    clean, faults = read_columns(table, names, STRICT_READERS)
    messages: list[str] = []
    for name, wrong, expected in faults:
        rows = np.flatnonzero(wrong if name == "status" else wrong.to_numpy() & floats(table[name]).notna().to_numpy())
        if len(rows):
            messages.append(_not_used(name, rows, f"expected {expected}, got {quoted_cell(table, rows[0], name)}"))
            other = "unknown" if name == "status" else np.nan
            table = table.assign(**{name: table[name].mask(np.isin(np.arange(len(table)), rows), other)})
    if "status" in table:
        known = pd.Series(clean["status"].tolist(), table.index)
        table = table.assign(status=known.where(known.notna(), table["status"]))
    judged = [check for check in rules if check.columns[0] in table]
    clean, _ = read_columns(table, {name for check in judged for name in check.columns}, STRICT_READERS)
    for check, broken in broken_checks(clean, judged):
        if (rows := np.flatnonzero(broken)).size:
            name = check.columns[0]
            messages.append(_not_used(name, rows, complaint(check, clean, rows[0])))
            table = table.assign(**{name: table[name].mask(broken)})
    return table, messages


def _not_used(name: str, rows: Ints, complaint: str) -> str:
    many, their = ("s", "their") if len(rows) > 1 else ("", "its")
    where = f"(row {rows[0] + 1}: {complaint})"
    return f"{len(rows):,} row{many} with an impossible {name} {where}: not used, unlike {their} other cells."


def checked_results(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """`sound_results` by `RESULT_RULES`; the sentences of `doubtful_lines` on the sound results follow its own."""
    sound, sentences = sound_results(frame, RESULT_RULES)
    return sound, [*sentences, *doubtful_lines(sound)]


def doubtful_lines(frame: pd.DataFrame) -> list[str]:
    """A sentence for each rule of `DOUBTS` that rows break, and for each source whose GPUs seem to be too hot."""
    judged = [check for check in DOUBTS if set(check.columns) & set(MEASURED) & set(frame)]
    clean, _ = read_columns(frame, {name for check in judged for name in check.columns}, STRICT_READERS)
    lines = []
    for check, broken in broken_checks(clean, judged):
        if (rows := np.flatnonzero(broken)).size:
            many, name = "s" * (len(rows) > 1), check.columns[0]
            where = f"(row {rows[0] + 1}: {complaint(check, clean, rows[0])})"
            lines.append(f"{len(rows):,} row{many} whose {name} is doubtful {where}: {check.use}.")
    if "temperature_c" not in frame:
        return lines
    source = frame["source"].fillna("").astype(str) if "source" in frame else pd.Series("", frame.index)
    medians = floats(frame["temperature_c"]).groupby(source).median()
    return lines + [
        f"the median temperature_c{f' of {name}' * bool(name)} is {value:.3g}; expected °C of the hottest GPU, below "
        f"{_HOT_C} while it trains (is it in °F? Then it is {(value - 32) / 1.8:.3g} °C): used."
        for name, value in medians[medians > _HOT_C].items()
    ]


def doubtful_precision(frame: pd.DataFrame) -> Bools:
    """Rows (n,) that `doubtful_lines` suspects of a faster precision than they state."""
    clean, _ = read_columns(frame, [*COLUMNS], STRICT_READERS)
    with np.errstate(all="ignore"):
        return in_faster_precision(Cells(clean))


def _unfinished(table: pd.DataFrame) -> pd.Series:
    if "status" not in table:
        return pd.Series(False, index=table.index)
    return table["status"].astype(str).str.strip().str.lower().isin(STATUSES[1:])


def _check_columns(table: pd.DataFrame) -> None:
    if table.empty:
        raise TableError("The table holds no rows; expected one run per row.")
    names = [re.sub(r"\.\d+$", "", str(c)) for c in table.columns]  # pandas reads a second tp as tp.1
    twice = [n for n in dict.fromkeys(names) if n in COLUMNS and names.count(n) > 1]
    if twice:
        raise TableError(f"The table has the column {twice[0]!r} more than once; expected every column once.")
    if not {*COLUMNS, *TABLE_NAMES, "clock_mhz"} & set(table.columns):
        got = ", ".join(map(str, table.columns[:5]))
        raise TableError(
            f"The table has no column of a measurement table; expected comma-separated columns such as dp, tp, pp, "
            f"gpu, status and iteration_time_s, got {got[:100]!r}."
        )


def _without_results_of_unfinished(table: pd.DataFrame) -> pd.DataFrame:
    """The table with blanks for results of 0 of unfinished runs: loggers write 0 for a run that crashed."""
    measured, unfinished = [name for name in MEASURED if name in table], _unfinished(table)
    zero = {name: unfinished & (pd.to_numeric(table[name], errors="coerce") == 0) for name in measured}
    return table.assign(**{name: table[name].mask(zero[name]) for name in measured})


# Text of CSV files from tables: a million rows in a fourth of the time of pandas, which renders one cell at a time.


_ROWS = 65_536  # that are held as text at a time
_REPEATED = 4  # times that a value stands in a column on average, from which each is rendered once
_DIGITS = 7  # significant ones of figures whose last bits mean nothing: writing all 17 takes twice as long
_SPECIAL = re.compile('[,"\r\n]')


def csv_texts(table: pd.DataFrame, rounded: Collection[str] = ()) -> Iterator[str]:
    """Yields the lines of a CSV file with a header, `_ROWS` at a time; missing cells are blank.

    Floats are written as Python does, those of ``rounded`` columns to seven significant digits: 1e-7 off at most.
    Text that a spreadsheet would take for a formula is guarded as by `csv_cell`, which `read_table` takes back.
    """
    yield _lines([[_cell(str(name))] for name in table.columns])
    for start in range(0, len(table), _ROWS):
        some = table.iloc[start : start + _ROWS]
        yield _lines([_cells(column, name in rounded) for name, column in some.items()])


def csv_text(table: pd.DataFrame) -> str:
    """The text of a whole CSV file with a header, as `csv_texts`."""
    return "".join(csv_texts(table))


def _lines(columns: Sequence[Sequence[str]]) -> str:
    if len(columns) == 1:  # where a line without a character would be none
        columns = [[text or '""' for text in columns[0]]]
    return "".join(f"{line}\n" for line in map(",".join, zip(*columns, strict=True)))


def _cells(column: pd.Series[Any], rounded: bool) -> list[str]:
    """The text of each cell, quoted where it has to be, blank for nothing."""
    numbers = isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf"
    if column.dtype in (np.float16, np.float32):  # 0.1 and not what it is in twice as many digits
        column = pd.Series([float(str(value)) for value in column.to_numpy()], column.index)
    text: Callable[[Any], str] = str if numbers else _cell
    if numbers and rounded and column.dtype.kind == "f":
        text = f"{{:.{_DIGITS}g}}".format
    one_kind = numbers or pd.api.types.infer_dtype(column) == "string"  # else 1 and True would pass for one value
    codes, values = pd.factorize(column) if one_kind else (np.zeros(0), column)
    if one_kind and not (numbers and len(values) * _REPEATED > len(column)):
        return list(np.array([*map(text, values.tolist()), ""], dtype=object)[codes])  # -1 for nothing: the last
    texts = map(text, column.tolist())
    return ["" if no else text for no, text in zip(column.isna().tolist(), texts, strict=True)]


def _cell(value: object) -> str:
    """A cell as CSV, quoted where it has to be; numbers among text are no formula."""
    text = csv_cell(value) if isinstance(value, str) else str(value)
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text
