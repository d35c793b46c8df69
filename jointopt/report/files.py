"""A proposal as files: for spreadsheets, for programs, for people."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from jointopt.core.atomic_write import replacing, write_whole
from jointopt.core.schema import RECOMPUTE_NAMES, Columns
from jointopt.physics.facility import with_site
from jointopt.report.plain import json_text
from jointopt.report.propose_json import propose_document
from jointopt.report.propose_text import proposal_text
from jointopt.report.results import Proposal
from jointopt.spec.plans.clocks import stage_clocks_to_text

FILES = ("proposal.json", "front.csv", "proposal.txt")
RECORD = "record.csv.gz"


def check_folder(folder: Path) -> None:
    """Raises the OSError that would keep `write_proposal` from writing there; leaves nothing behind."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=place):
            pass
    except OSError as error:  # which names the temporary file
        raise OSError(error.errno, error.strerror, str(place)) from error
    for path in (folder / name for name in (*FILES, RECORD)):
        if path.exists():
            path.open("ab").close()


def write_proposal(proposal: Proposal, folder: Path) -> tuple[Path, ...]:
    """Writes ``proposal.json``, ``front.csv`` (columns as in the schema) and ``proposal.txt``; returns their paths.

    Beside them ``record.csv.gz`` holds every plan that the search evaluated, where the proposal has them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = tuple(folder / name for name in FILES)
    write_whole(paths[0], json_text(propose_document(proposal)) + "\n")
    write_whole(paths[1], front_frame(with_site(proposal.job, proposal.front)).to_csv(index=False))
    write_whole(paths[2], proposal_text(proposal, show_all=True) + "\n")
    (folder / RECORD).unlink(missing_ok=True)  # of an earlier proposal
    if proposal.record is not None:
        with replacing(folder / RECORD) as part:
            front_frame(proposal.record).to_csv(part, index=False, compression={"method": "gzip", "mtime": 1})
    return paths


def front_frame(front: Columns) -> pd.DataFrame:
    """Plans as a table: recompute by name, stage clocks as ``1410;1395``."""
    columns = dict(front)
    columns["recompute"] = np.asarray(RECOMPUTE_NAMES)[front["recompute"]]
    columns["stage_clock_mhz"] = np.asarray(stage_clocks_to_text(front["stage_clock_mhz"]))
    return pd.DataFrame(columns)
