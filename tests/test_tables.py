from pathlib import Path

import pandas as pd
import pytest

from jointopt.errors import TableError
from jointopt.tables import read_table, write_table


def test_what_is_written_reads_back_equal_and_blanks_stay_blank(tmp_path: Path) -> None:
    table = pd.DataFrame({"dp": [1, 2], "recompute": ["none", "full"], "energy_j": [1.5, None]})
    write_table(table, tmp_path / "t.csv")
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.csv"), table)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "cannot be read"),
        (b"dp,tp\n", "no rows"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b'a\n1,2\n"3', "cannot"),
    ],
)
def test_what_is_no_table_is_one_sentence(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(TableError, match=complaint):
        read_table(path)


def test_a_directory_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="is a directory"):
        read_table(tmp_path)
    with pytest.raises(TableError, match="No such file"):
        read_table(tmp_path / "missing.csv")
    with pytest.raises(TableError, match="cannot be written"):
        write_table(pd.DataFrame({"dp": [1]}), tmp_path / "no" / "t.csv")
