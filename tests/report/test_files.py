import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jointopt.core.atomic_write import check_folder
from jointopt.report.proposal import WRITTEN
from jointopt.report.results import Proposal


def test_a_proposal_is_written_for_programs_spreadsheets_and_people(
    make_proposal: Callable[..., Proposal], tmp_path: Path
) -> None:
    make_proposal(30).write(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(WRITTEN[:3])
    assert len(json.loads((tmp_path / "out" / "proposal.json").read_text())["front"]) == 30
    assert len((tmp_path / "out" / "proposal.txt").read_text().splitlines()) > 30


def test_the_front_as_csv_has_the_columns_of_a_measurement_table(
    make_proposal: Callable[..., Proposal], tmp_path: Path
) -> None:
    proposal = make_proposal(2)
    proposal.write(tmp_path)
    table = pd.read_csv(tmp_path / "front.csv")
    assert table.recompute.tolist() == ["none", "none"]
    assert table.stage_clock_mhz.tolist() == ["1410;1410", "1395;1395"]
    np.testing.assert_allclose(table.energy_j, proposal.front["energy_j"])


def test_every_plan_that_was_evaluated_is_in_the_record_until_a_proposal_has_none(
    make_proposal: Callable[..., Proposal], tmp_path: Path
) -> None:
    proposal = make_proposal(2)
    record = proposal.front | {"violation": np.array([-0.5, 0.25])}
    dataclasses.replace(proposal, record=record).write(tmp_path)
    assert pd.read_csv(tmp_path / "record.csv.gz").violation.tolist() == [-0.5, 0.25]
    proposal.write(tmp_path)
    assert not (tmp_path / "record.csv.gz").exists()


def test_a_folder_that_can_be_made_is_checked_without_making_it(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b")
    check_folder(tmp_path, WRITTEN)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full" / "front.csv").mkdir(parents=True)
    for folder, reason in (
        (tmp_path / "file", "Not a directory: .*file"),
        (tmp_path / "file" / "out", "Not a directory"),
        (tmp_path / "full", "Is a directory: .*front.csv"),
        (Path("/proc/nothing"), "/proc"),
    ):
        with pytest.raises(OSError, match=reason):
            check_folder(folder, WRITTEN)
