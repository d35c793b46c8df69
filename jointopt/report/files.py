"""A proposal as files: for spreadsheets, for programs, for people."""

from __future__ import annotations

import tempfile
from pathlib import Path

from jointopt.core.atomic_write import replacing, write_whole
from jointopt.report.plain import json_text
from jointopt.report.plan_table import plan_frame
from jointopt.report.proposal import Proposal

FILES = ("proposal.json", "front.csv", "proposal.txt")
RECORD = "record.csv.gz"


def check_folder(folder: Path) -> None:
    """Raises the OSError that would keep `write_proposal` from writing there; leaves nothing behind."""
    _check_new_file(next(path for path in (folder, *folder.absolute().parents) if path.exists()))
    for path in (folder / name for name in (*FILES, RECORD)):
        if path.exists():
            check_file(path)


def check_file(path: Path) -> None:
    """Raises the OSError that would keep the file from being written; leaves nothing behind."""
    if path.exists():
        path.open("ab").close()
    else:
        _check_new_file(path.parent, path)


def _check_new_file(folder: Path, named: Path | None = None) -> None:
    """The OSError of a new file in ``folder``, which names ``named`` (by default the folder)."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:  # which names the temporary file
        raise OSError(error.errno, error.strerror, str(named or folder)) from error


def write_proposal(proposal: Proposal, folder: Path) -> tuple[Path, ...]:
    """Writes ``proposal.json``, ``front.csv`` (columns as in the schema) and ``proposal.txt``; returns their paths.

    Beside them ``record.csv.gz`` holds every plan that the search evaluated, where the proposal has them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = tuple(folder / name for name in FILES)
    write_whole(paths[0], json_text(proposal.to_dict()) + "\n")
    write_whole(paths[1], proposal.to_frame().to_csv(index=False))
    write_whole(paths[2], proposal.text(show_all=True) + "\n")
    (folder / RECORD).unlink(missing_ok=True)  # of an earlier proposal
    if proposal.record is not None:
        with replacing(folder / RECORD) as part:
            plan_frame(proposal.record).to_csv(part, index=False, compression={"method": "gzip", "mtime": 1})
    return paths
