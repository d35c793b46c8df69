import json
from collections.abc import Callable

import numpy as np
import pytest

from jointopt.core.schema import Columns
from jointopt.report.tables import json_text, plain, plan_entries


def test_numpy_becomes_plain_and_nan_becomes_null() -> None:
    value = {"a": np.array([1.0, np.nan]), "b": (np.int64(3), np.bool_(True)), "c": float("inf")}
    assert plain(value) == {"a": [1.0, None], "b": [3, True], "c": None}


def test_json_text_reads_back_equal() -> None:
    assert json.loads(json_text({"x": np.arange(3), "y": "°C"})) == {"x": [0, 1, 2], "y": "°C"}


def test_an_entry_names_its_recompute_and_has_one_clock_per_stage(make_front: Callable[..., Columns]) -> None:
    front = make_front(2, recompute=np.array([0, 2]), stage_clock_mhz=np.array([[1410, 1200, np.nan]] * 2))
    entries = plan_entries(front)
    assert [entry["recompute"] for entry in entries] == ["none", "full"]
    assert entries[0]["stage_clock_mhz"] == [1410, 1200]
    assert entries[0]["sequence_parallel"] is False


def test_an_entry_has_every_result_with_its_interval(make_front: Callable[..., Columns]) -> None:
    (entry,) = plan_entries(make_front(5), [3])
    for name in ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib"):
        assert entry[f"{name}_low"] < entry[name] < entry[f"{name}_high"]
    assert entry["in_domain"] is True
    assert entry["iteration_time_s"] == pytest.approx(1.02**3)
