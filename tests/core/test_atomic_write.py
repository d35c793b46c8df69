"""Files take their place when they are whole."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jointopt.core.atomic_write import finish_replacing, replacing, write_whole
from jointopt.core.errors import TableError
from jointopt.runs.table import read_table, write_table


def test_an_error_leaves_the_previous_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "front.csv"
    file.write_text("of before")
    with pytest.raises(ZeroDivisionError), replacing(file) as part:
        part.write_text(f"half, and {1 / len(file.read_text()[9:])}")
    assert [path.name for path in tmp_path.iterdir()] == ["front.csv"]
    assert file.read_text() == "of before"


def test_a_link_stays_a_link_and_rights_stay_as_they_were(tmp_path: Path) -> None:
    file, link = tmp_path / "real.csv", tmp_path / "link.csv"
    file.write_text("of before")
    file.chmod(0o640)
    link.symlink_to(file)
    write_whole(link, "new")
    assert link.is_symlink()
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o640)


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        write_table(pd.DataFrame({"a": [1.5]}), pipe)
        assert reader.communicate()[0] == b"a\n1.5\n"
    assert pipe.is_fifo()


def test_a_packed_table_is_a_table(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv.gz"
    write_table(pd.DataFrame({"a": [1.5]}), file)
    assert gzip.decompress(file.read_bytes()) == b"a\n1.5\n"


@pytest.mark.parametrize("name", ["missing/runs.csv", "."])
def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(TableError, match="cannot be written: "):
        write_table(pd.DataFrame({"a": [1.5]}), tmp_path / name)


def test_a_writer_that_is_killed_leaves_the_previous_file(tmp_path: Path) -> None:
    file = tmp_path / "predicted.csv"
    write_table(pd.DataFrame({"a": [1.5]}), file)
    program = (
        "import numpy as np, pandas as pd; from pathlib import Path; from jointopt.runs.table import write_table\n"
        f"write_table(pd.DataFrame(np.random.rand(2_000_000, 4)), Path({str(file)!r}))"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as writer:
        while not [*tmp_path.glob(".*.part")] and writer.poll() is None:
            time.sleep(0.01)
        writer.send_signal(signal.SIGKILL)
    assert writer.returncode == -signal.SIGKILL
    assert np.allclose(read_table(file)["a"], [1.5])


REPLACING = """
import os, sys
from pathlib import Path
from jointopt.core import atomic_write
left, replace, rename = int(sys.argv[2]), os.replace, os.rename
def counted(act):
    def dies(*args, **options):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return act(*args, **options)
    return dies
os.replace, os.rename = counted(replace), counted(rename)
folder = Path(sys.argv[1])
atomic_write.replace_files(folder / ".new", folder)
"""


@pytest.mark.parametrize("steps", range(5))
def test_a_program_killed_while_it_replaces_files_leaves_all_of_before_or_what_can_be_completed(
    tmp_path: Path, steps: int
) -> None:
    names = ("a", "b", "c")
    (tmp_path / ".new").mkdir()
    for name in names:
        (tmp_path / name).write_text("before")
        (tmp_path / ".new" / name).write_text("after")
    (tmp_path / "notes").write_text("of the user")
    ended = subprocess.run([sys.executable, "-c", REPLACING, str(tmp_path), str(steps)], check=False).returncode
    assert ended == (0 if steps == 4 else 9)
    finish_replacing(tmp_path)
    assert [(tmp_path / name).read_text() for name in names] == ["after" if steps else "before"] * 3
    assert (tmp_path / "notes").read_text() == "of the user"
