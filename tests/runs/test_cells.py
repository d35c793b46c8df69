"""Cells by value: columns read once per distinct cell, rows numbered by what they hold."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.schema import COLUMNS
from jointopt.runs.cells import READERS, first_rows, named_cuda_graph, named_dispatcher, read_columns, row_codes
from tests.each import each

CELL = st.sampled_from(["1410", "1410;1395", " full ", "true", "2.0", "x", "", None])


@settings(max_examples=25, deadline=None)
@given(st.lists(CELL, min_size=1, max_size=12), st.sampled_from(["tp", "stage_clock_mhz", "gated_mlp", "recompute"]))
def test_a_cell_is_read_alike_alone_and_in_a_column(cells: list[str | None], name: str) -> None:
    column, faults = read_columns(pd.DataFrame({name: pd.Series(cells, dtype=object)}), [name], READERS)
    wrong = faults[0][1].tolist() if faults else [False] * len(cells)
    for i, cell in enumerate(cells):
        alone, fault = read_columns(pd.DataFrame({name: pd.Series([cell], dtype=object)}), [name], READERS)
        assert bool(fault) == wrong[i]
        one, other = column[name].iloc[i], alone[name].iloc[0]
        assert one == other or (pd.isna(one) and pd.isna(other))


@pytest.mark.parametrize("text", ["true", "True", "1", "1.0", "YES", "yes"])
def test_flags_are_read_in_every_spelling(text: str) -> None:
    opposite = {"true": "False", "1": "0", "1.0": "0.0", "yes": "No"}[text.lower()]
    clean, faults = read_columns(pd.DataFrame({"gated_mlp": [text, opposite, None]}), ["gated_mlp"], READERS)
    np.testing.assert_array_equal(clean["gated_mlp"], [1.0, 0.0, np.nan])
    assert faults == []


def test_numbers_and_flags_of_one_kind_are_not_mixed_up_with_those_of_another() -> None:
    table = pd.DataFrame({"tp": pd.Series([1, True, "1", 1.0], dtype=object)})
    clean, _ = read_columns(table, ["tp"], READERS)
    np.testing.assert_array_equal(clean["tp"], [1.0, np.nan, 1.0, 1.0])


@pytest.mark.parametrize("blank", [None, np.nan])
def test_rows_are_numbered_as_they_appear_and_blanks_are_alike(blank: object) -> None:
    words = pd.Series(["b", "a", blank, "b", blank], dtype=object)
    assert row_codes([words]).tolist() == [0, 1, 2, 0, 2]
    assert row_codes([words, np.array([1, 1, 1, 2, 1])]).tolist() == [0, 1, 2, 3, 2]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(
    st.sampled_from([None, np.nan, 0.0, -0.0, 1.0, 2.5, -3.0, np.inf, 1e300]),
    st.sampled_from([0, 1, -5, 2**62, 2**53, 2**53 + 1]), st.booleans(), CELL,
), max_size=12))  # fmt: skip
def test_rows_have_one_number_exactly_where_all_cells_are_equal(rows: list[tuple[object, ...]]) -> None:
    number, whole, flag, words = zip(*rows, strict=True) if rows else ((),) * 4
    columns = [np.array(number, float), np.array(whole, np.int64), np.array(flag, bool), np.array(words, object)]
    seen: dict[object, int] = {}
    keys = zip(*(pd.Series(column, dtype=object).fillna("nan").tolist() for column in columns), strict=True)
    assert row_codes(columns).tolist() == [seen.setdefault(key, len(seen)) for key in keys]


def test_words_are_numbered_by_their_categories_as_by_themselves() -> None:
    words = pd.Series(["b", None, "a", "b", None])
    table, _ = read_columns(pd.DataFrame({"group": words}), ["group"], READERS, categories=True)
    assert isinstance(table["group"].dtype, pd.CategoricalDtype)
    assert row_codes([table["group"]]).tolist() == row_codes([words]).tolist() == [0, 1, 2, 0, 1]
    assert first_rows(row_codes([words])).tolist() == [0, 1, 2]


def test_words_that_are_read_can_be_replaced_by_words_that_the_column_lacks() -> None:
    table, _ = read_columns(pd.DataFrame({"group": ["b ", None, "a"]}), ["group"], READERS)
    assert table["group"].where(table["group"].notna(), "new").tolist() == ["b", "new", "a"]
    assert table["group"].fillna("new").tolist() == ["b", "new", "a"]


# free text, and what has sentences of its own: precisions, kernels, frameworks (assumed) and GPUs (refused)
OPEN = {
    "source", "group", "model", "framework", "framework_release", "gpu", "power_profile", "dtype", "precision",
    "attention",
}  # fmt: skip
WORDS = [c.name for c in COLUMNS.values() if c.dtype == "str" and c.role != "result" and c.name not in OPEN]


@each("name", WORDS)
def test_every_column_whose_words_are_on_a_list_refuses_another(name: str) -> None:
    clean, faults = read_columns(pd.DataFrame({name: ["banana", None]}), [name], READERS)
    assert [(column, wrong.tolist()) for column, wrong, _ in faults] == [(name, [True, False])]
    assert clean[name].isna().all()


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        ("flex", "deepep"),
        ("flex/HybridEP", "hybridep"),
        ("alltoall_seq", "alltoall"),
        ("nccl", None),
        ("nodeepep", None),
    ],
)
def test_a_dispatcher_is_known_by_megatrons_names(cell: str, kind: str | None) -> None:
    assert named_dispatcher(cell) == kind


@pytest.mark.parametrize(("cell", "kind"), [
    ("True", None), ("localhost", None), ("0.0", "none"), ("NONE", "none"), ("local:full_iteration", "full_iteration"),
    ("transformer_engine: attn+mlp", "transformer_engine"),
])  # fmt: skip
def test_a_kind_of_graphs_is_known_by_its_first_word_or_its_scope(cell: str, kind: str | None) -> None:
    assert named_cuda_graph(cell) == kind
