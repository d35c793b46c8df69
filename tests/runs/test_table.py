"""Files that are tables or are not, and rows that can be true or cannot."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.errors import TableError
from jointopt.runs.store import Added, Store
from jointopt.runs.table import (
    check_measurements,
    clean_runs,
    problem_lines,
    read_measurements,
    read_table,
    refused_rows,
    sound_results,
    write_table,
)
from tests.each import each
from tests.places import DATA

RUN: dict[str, Any] = {
    "source": "s", "group": "g", "num_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "num_experts": 0,
    "global_batch_size": 64, "dtype": "bf16", "attention": "flash2", "gpu": "a100-sxm4-40gb", "num_gpus": 8, "dp": 2,
    "tp": 2, "pp": 2, "cp": 1, "micro_batch_size": 1, "sequence_parallel": True, "recompute": "none",
    "stage_clock_mhz": "1410;1395", "status": "ok", "iteration_time_s": 2.0, "energy_j": 4800.0, "avg_power_w": 300.0,
    "peak_power_w": 390.0, "peak_memory_gib": 31.5, "temperature_c": 61.0,
}  # fmt: skip


def table(*changes: dict[str, Any]) -> pd.DataFrame:
    """A good run, and one row per change of it."""
    return pd.DataFrame([RUN, *(RUN | change for change in changes)])


def test_what_is_written_reads_back_equal_and_blanks_stay_blank(tmp_path: Path) -> None:
    frame = pd.DataFrame({"dp": [1, 2], "recompute": ["none", "full"], "energy_j": [1.5, None]})
    for name in ("t.csv", "t.csv.gz"):
        write_table(frame, tmp_path / name)
        pd.testing.assert_frame_equal(read_table(tmp_path / name), frame)
    assert (tmp_path / "t.csv.gz").read_bytes().startswith(b"\x1f\x8b")


def test_numbers_of_half_the_width_are_written_with_their_own_digits(tmp_path: Path) -> None:
    frame = pd.DataFrame({"energy_j": np.array([0.1, np.nan], np.float32)})
    write_table(frame, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == 'energy_j\n0.1\n""\n' == frame.to_csv(index=False)


CELLS = {
    "float": st.floats(width=64) | st.none(),
    "whole": st.integers(-(2**63), 2**63 - 1),
    "flag": st.booleans(),
    "text": st.text(st.characters(codec="utf-8", exclude_characters="\r\0=+-@\t'\n"))  # no formula
    | st.sampled_from(['"a"', "b,c", "d\n"]),
    "mixed": st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([1.0, 0.5, "x", (1, 2), np.float32(0.1)]),
}  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.data(), st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=4), st.integers(0, 6))
def test_files_without_formulas_are_those_of_pandas_to_the_byte(
    tmp_path_factory, data, kinds: list[str], rows: int
) -> None:
    cells = [data.draw(st.lists(CELLS[kind], min_size=rows, max_size=rows)) for kind in kinds]
    frame = pd.DataFrame({f"{i}, {kind}": column for i, (kind, column) in enumerate(zip(kinds, cells, strict=True))})
    path = tmp_path_factory.mktemp("written") / "t.csv"
    write_table(frame, path)
    assert path.read_bytes().decode() == frame.to_csv(index=False, lineterminator="\n")


def test_a_return_within_a_cell_stays_within_it(tmp_path: Path) -> None:
    frame = pd.DataFrame({"note": ["a\rb", "c\r\nd"], "dp": [1, 2]})
    write_table(frame, tmp_path / "t.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "t.csv", lineterminator=None), frame)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "the file is empty"),
        (b"dp,tp\n", "no rows"),
        (b"\xff\xfe\x00", "it is UTF-16"),
        (b"dp\x00,tp\n1,2\n", "zero, as in a binary file"),
        (b"\x1f\x8b\x08\x00broken", "cannot be read"),
        (gzip.compress(b"dp,tp\n1,2\n", mtime=0)[:-9], "cannot be read"),
        (b"dp,tp,dp\n1,2,3\n", "'dp' more than once"),
    ],
)
@pytest.mark.parametrize("read", [read_table, read_measurements])
def test_what_is_no_table_is_one_sentence(tmp_path: Path, content: bytes, complaint: str, read: Any) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(TableError, match=complaint) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_cells_beyond_the_header_are_refused_rather_than_cut_off(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("dp,tp\n1,2,3\n4,5,6\n")
    with pytest.raises(TableError, match="line 2: expected 2 cells as in the header, got 3"):
        read_table(tmp_path / "t.csv")


def test_a_directory_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="is a directory"):
        read_table(tmp_path)
    with pytest.raises(TableError, match="No such file"):
        read_table(tmp_path / "missing.csv")
    with pytest.raises(TableError, match="cannot be written"):
        write_table(pd.DataFrame({"dp": [1]}), tmp_path / "no" / "t.csv")


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_bom_line_ends_quotes_and_compression_change_nothing(tmp_path: Path, compress: Any, newline: str) -> None:
    text = '\ufeffdp, notes ,gpu,group\n2,"slow, ""cold"" start",h100,007\n\n4,é,,\n'
    path = tmp_path / "t.csv"
    path.write_bytes(compress(text.replace("\n", newline).encode()))
    expected = {"dp": [2, 4], "notes": ['slow, "cold" start', "é"], "gpu": ["h100", None], "group": ["007", None]}
    frame = pd.DataFrame(expected)
    pd.testing.assert_frame_equal(read_table(path), frame.astype({"gpu": "str", "group": "str"}))
    good, problems = read_measurements(path)
    assert problems == []
    assert good.notes.tolist() == expected["notes"]


def test_a_problem_stands_on_the_line_where_its_row_starts(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('dp,notes,tp\n1,"two\nlines",2\n\n0,x,1\n,,\n1,y\n3,z,1,9\n2,"a\nb",x\n')
    good, problems = read_measurements(path)
    assert good.dp.tolist() == [1]
    assert [(p.line, p.column) for p in problems] == [(5, "dp"), (7, "notes"), (8, "tp"), (9, "tp")]
    assert "expected 3 cells as in the header, got 2" in problems[1].message


def test_a_file_of_ragged_lines_alone_has_no_good_row(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for header in ("dp,tp", "dp,,,tp"):
        path.write_text(f"{header}\n1\n1,2,3\n")
        good, problems = read_measurements(path)
        assert [p.line for p in problems] == [2, 3]
        assert Store("sqlite://").add(good, "nowhere") == Added(0, 0)


def test_a_quote_that_never_closes_does_not_swallow_the_runs_after_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('dp,notes\n1,a\n2,"b\n3,c\n')
    with pytest.raises(TableError, match="line 3: unexpected end of data"):
        read_measurements(path)


def test_a_semicolon_file_is_no_measurement_table(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("dp;tp\n1;2\n")
    with pytest.raises(TableError, match="expected comma-separated columns"):
        read_measurements(path)


def test_a_good_run_passes_in_the_spelling_of_the_table() -> None:
    good, problems = check_measurements(table())
    assert problems == []
    assert good.iloc[0].to_dict() == RUN
    assert list(good) == list(RUN)


@each(
    ("change", "column", "complaint"),
    [
        ({"status": "success"}, "status", "expected one of ok, oom, failed, timeout, or blank, got 'success'"),
        ({"tp": 0}, "tp", "expected a whole number from 1 to 1,000,000,000, or blank, got 0"),
        ({"micro_batch_size": 1.5}, "micro_batch_size", "expected a whole number .* got 1.5"),
        ({"dp": "two"}, "dp", "got 'two'"),
        ({"hidden_size": float("inf")}, "hidden_size", "got inf"),
        ({"zero_stage": 4}, "zero_stage", "from 0 to 3, or blank, got 4"),
        ({"sequence_parallel": "maybe"}, "sequence_parallel", "expected true, false or blank, got 'maybe'"),
        ({"dtype": "int12"}, "dtype", "expected one of fp32, fp16, bf16, fp8, fp4"),
        ({"recompute": "half"}, "recompute", "expected one of none, selective, full"),
        ({"attention": "quick"}, "attention", "expected one of unfused, fused, flash1"),
        ({"stage_clock_mhz": "1410;fast"}, "stage_clock_mhz", "clocks in MHz above 0"),
        ({"stage_clock_mhz": "1410;1395;1380"}, "stage_clock_mhz", "one clock or pp of them, got .*1380 pp=2"),
        ({"clock_mhz": 1.41e9}, "clock_mhz", "from 1 to 100,000"),
        ({"power_limit_w": 300_000}, "power_limit_w", "at most 2,000"),
        ({"iteration_time_s": 0}, "iteration_time_s", "above 0 and at most 1,000,000"),
        ({"iteration_time_s": -1}, "iteration_time_s", "got -1"),
        ({"avg_power_w": 2400}, "avg_power_w", "above 0 and at most 2,000, or blank, got 2400"),
        ({"peak_memory_gib": 40_000}, "peak_memory_gib", "at most 1,024"),
        ({"temperature_c": 350}, "temperature_c", "from -50 to 110, or blank .is it in °F."),
        ({"num_gpus": 16, "energy_j": None}, "num_gpus", r"dp\*tp\*pp\*cp .* got num_gpus=16 dp=2 tp=2 pp=2 cp=1"),
        ({"global_batch_size": 1}, "global_batch_size", "at least dp, got global_batch_size=1 dp=2"),
        ({"num_attention_heads": 2048}, "num_attention_heads", "at most hidden_size"),
        ({"num_query_groups": 32}, "num_query_groups", "at most num_attention_heads"),
        ({"num_experts": 4, "moe_router_topk": 8}, "moe_router_topk", "at most num_experts"),
        ({"ep": 16}, "ep", "at most num_gpus"),
        ({"energy_j": 600.0}, "energy_j", "within 20%, got energy_j=600 avg_power_w=300"),
        ({"energy_j": 600.123456789}, "energy_j", "got energy_j=600.123 avg_power_w=300"),
        ({"avg_power_w": None, "energy_j": 4.8e6}, "energy_j", "at most 2,000 W"),
        ({"peak_power_w": 200}, "peak_power_w", "at least avg_power_w"),
    ],
)  # fmt: skip
def test_an_impossible_row_is_refused_alone(change: dict[str, Any], column: str, complaint: str) -> None:
    frame = table(change, {"tp": 4, "dp": 1}).astype(object)
    good, problems = check_measurements(frame)
    assert good.tp.tolist() == [2, 4]
    assert {(p.line, p.column) for p in problems} == {(3, column)}
    assert pd.Series([p.message for p in problems]).str.contains(complaint).any()


@each("column", [name for name in RUN if name != "gpu"])
def test_a_blank_cell_is_unknown_and_breaks_nothing(column: str) -> None:
    good, problems = check_measurements(table({column: None}))
    assert problems == []
    assert good[column].isna().tolist() == [False, True]
    assert check_measurements(table().drop(columns=column))[1] == []


@pytest.mark.parametrize(
    "change",
    [
        {"energy_j": 4800 * 1.19},
        {"energy_j": 4800 * 0.81},
        {"stage_clock_mhz": 1410},
        {"stage_clock_mhz": "1410"},
        {"recompute": True},
        {"dtype": "float8_e4m3fn"},
        {"attention": "FlashAttention-3"},
        {"status": " OK "},
        {"pp": 32, "dp": 1, "tp": 1, "num_gpus": 32, "stage_clock_mhz": None, "energy_j": None},  # nanotron ran such
    ],
)
def test_a_possible_row_passes(change: dict[str, Any]) -> None:
    assert check_measurements(table(change).astype(object))[1] == []


def test_degrees_of_which_one_is_unknown_must_still_divide_the_gpus() -> None:
    _, problems = check_measurements(table({"cp": None, "tp": 3}, {"cp": None, "tp": 1}))
    assert [(p.line, p.column) for p in problems] == [(3, "num_gpus")]


@pytest.mark.parametrize("status", ["oom", "failed", "timeout", "OOM"])
def test_a_failed_run_stays_and_its_time_of_zero_is_unknown(status: str) -> None:
    failed = {"status": status, "iteration_time_s": 0.0, "energy_j": 0.0, "global_batch_size": 1}
    good, problems = check_measurements(table(failed))
    assert problems == []
    assert good.status[1] == status.lower()
    assert good.loc[1, ["iteration_time_s", "energy_j"]].isna().all()


def test_unknown_columns_are_kept_as_they_are() -> None:
    good, problems = check_measurements(table().assign(cluster="leo", nodes=2, dates="2026-01-02"))
    assert problems == []
    assert good[["cluster", "nodes", "dates"]].iloc[0].tolist() == ["leo", 2, "2026-01-02"]


def test_a_row_with_several_problems_is_one_line() -> None:
    _, problems = check_measurements(table({"dp": -1, "status": "fine"}, {"pp": "x"}).astype(object))
    lines = problem_lines(problems)
    assert len(problems) == 3
    assert [line.split(",")[0] for line in lines] == ["line 3", "line 4"]
    assert "column dp: " in lines[0]
    assert "column status: " in lines[0]


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_what_passes_once_passes_again_unchanged(data: st.DataObject) -> None:
    cell = st.none() | st.booleans() | st.integers(-2, 40) | st.floats() | st.text(max_size=4)
    names = data.draw(st.lists(st.sampled_from([*RUN, "extra"]), min_size=1, unique=True))
    frame = pd.DataFrame([RUN | {name: data.draw(cell) for name in names} for _ in range(3)]).astype(object)
    good, problems = check_measurements(frame)
    assert len(good) == 3 - len({p.line for p in problems})
    if len(good):
        again, none = check_measurements(good)
        assert none == []
        pd.testing.assert_frame_equal(again, good)


def test_clean_runs_takes_clocks_in_any_spelling() -> None:
    spellings = ["1410;1395", "[1410, 1395]", (1410.0, 1395.0), [1410, 1395], np.array([1410.0, 1395.0])]
    clean = clean_runs(pd.DataFrame({"pp": 2, "stage_clock_mhz": spellings}))
    assert clean.stage_clock_mhz.tolist() == [(1410.0, 1395.0)] * 5


@pytest.mark.skipif(not DATA.exists(), reason="the recorded measurements are not beside the repository")
@each("path", sorted(DATA.glob("layouts_*.csv")))
def test_no_published_run_is_refused(path: Path) -> None:
    good, problems = read_measurements(path)
    assert problem_lines(problems) == []
    assert len(good) == len(read_table(path))


def test_impossible_results_are_blank_and_reported_and_words_of_the_status_are_read() -> None:
    given = pd.DataFrame({
        "status": ["OK", " oom ", "success", "failed", None, "ok"],
        "iteration_time_s": [np.inf, np.nan, 2.0, 0.0, -5.0, 1.5],
        "peak_memory_gib": [1.0, 1e6, 1e7, 0.0, 2.0, 3.0],
    }, index=[5, 4, 3, 2, 1, 0])  # fmt: skip
    sound, messages = sound_results(given)
    assert sound["status"].fillna("").tolist() == ["ok", "oom", "unknown", "failed", "", "ok"]
    assert sound["iteration_time_s"].dropna().to_dict() == {3: 2.0, 0: 1.5}
    assert sound["peak_memory_gib"].dropna().tolist() == [1.0, 2.0, 3.0]
    assert [text.split(" (")[0] for text in messages] == [
        "1 row with an impossible status", "2 rows with an impossible iteration_time_s",
        "2 rows with an impossible peak_memory_gib",
    ]  # fmt: skip
    assert "(row 1: expected a number above 0 and at most 1,000,000, or blank, got inf): not used" in messages[1]


def test_sound_results_are_left_as_they_are() -> None:
    runs = table({}, {"status": "failed", "iteration_time_s": None})
    sound, messages = sound_results(runs)
    assert messages == []
    pd.testing.assert_frame_equal(sound, runs)


@pytest.mark.parametrize("read", [read_table, read_measurements])
@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"dp;tp;pp\n1;2;3\n", "separated by semicolons; expected commas"),
        (b"dp\ttp\tpp\n1\t2\t3\n", "separated by tabs; expected commas"),
        ("dp,tp\n1,2\n".encode("utf-16"), "it is UTF-16 text; expected comma-separated UTF-8 text"),
        (b"PK\x03\x04\x14\0\x06\0", "a workbook of a spreadsheet or a zip archive"),
        (b"PAR1\x15\x04\x15\xff", "a Parquet file"),
    ],
)
def test_a_file_that_is_no_csv_file_is_named_for_what_it_is(
    tmp_path: Path, read: Callable[[Path], object], raw: bytes, words: str
) -> None:
    (tmp_path / "runs.csv").write_bytes(raw)
    with pytest.raises(TableError, match=words):
        read(tmp_path / "runs.csv")


def test_many_rows_of_one_kind_are_described_by_the_first_and_counted(tmp_path: Path) -> None:
    rows = "\n".join(["4,0,8"] * 1205 + ["4,1,4", "x,1,8"])
    (tmp_path / "runs.csv").write_text(f"dp,tp,num_gpus\n{rows}\n")
    good, problems = read_measurements(tmp_path / "runs.csv")
    lines = problem_lines(problems)
    assert (len(good), refused_rows(problems), len(lines)) == (1, 1206, 22)
    assert lines[0].startswith("line 2, column tp: expected a whole number from 1 to")
    assert lines[-2].startswith("line 1208, column dp: expected a whole number")
    assert lines[-1] == "1,185 more rows like line 2, column tp."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp,tp\n1,2\n1,2,3,4\n", r"line 3: expected 2 cells as in the header, got 4\.$"),
        (
            "model: llama-3-8b\ntraining: {seq_length: 4096, dtype: bf16}\n",
            r"expected 1 cell .* \(is it a table\?\), got 2",
        ),
    ],
)
def test_a_line_of_too_many_cells_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "runs.csv").write_text(text)
    with pytest.raises(TableError, match=message):
        read_table(tmp_path / "runs.csv")
