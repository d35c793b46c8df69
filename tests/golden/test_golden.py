"""No figure moves unseen: a change that moves one rewrites its golden file (`make golden`) and says why."""

from __future__ import annotations

from collections import Counter

import pytest
import yaml

from tests.golden import files, pricing

MOST_SENTENCES = 60


@pytest.mark.parametrize("table", pricing.TABLES)
def test_every_figure_is_what_the_golden_file_holds(table: str) -> None:
    found = files.moved(files.read(table), files.as_held(pricing.TABLES[table]()))
    columns = Counter(sentence.split(": ")[1].split(" ")[0] for sentence in found)
    shown = "\n  ".join(found[:MOST_SENTENCES])
    assert not found, (
        f"{len(found)} changes in {table}.csv, by column {dict(columns)}. If they are meant, run `make golden` "
        f"and say in the commit why.\n  {shown}"
    )


@pytest.mark.parametrize(("factor", "sentences"), [(1 + 1e-5, 1), (1 + 1e-8, 0)])
def test_a_figure_that_moves_is_named_with_its_ratio(factor: float, sentences: int) -> None:
    held = files.read("plans")
    row, column = next(iter(held)), "energy_j"
    moved = {**held, row: {**held[row], column: repr(float(held[row][column]) * factor)}}
    found = files.moved(held, moved)
    assert len(found) == sentences
    assert all(row in s and column in s and s.endswith("(x 1.00001)") for s in found)
    assert files.settled(held, moved) == (moved if sentences else held)


def test_a_row_that_comes_or_goes_is_named() -> None:
    held = files.read("spaces")
    first, *rest = held
    fewer = {row: held[row] for row in rest}
    assert files.moved(held, fewer) == [f"{first}: no longer there"]
    assert files.moved(fewer, held) == [f"{first}: not held yet"]


def test_the_plans_take_several_values_of_every_dimension() -> None:
    jobs = yaml.safe_load((pricing.HERE / "jobs.yaml").read_text(encoding="utf-8")).values()
    words = {word for job in jobs for plan in job["plans"] for word in plan.split()}
    values = Counter(word.split("=")[0] for word in words)
    two = {"sp": 2, "rc": 3, "zero": 4, "vpp": 4, "ep": 4, "cp": 4, "power_limit_w": 2, "stage_power_limit_w": 1}
    assert {name: values[name] for name in two if values[name] < two[name]} == {}
    attention = {job["training"]["attention"] for job in jobs}
    assert attention == {"unfused", "fused", "flash1", "flash2", "flash3"}
