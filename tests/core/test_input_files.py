"""Pipes, devices and bombs are refused in one sentence, at once and in little memory."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.errors import JobError, TableError, UsageError
from jointopt.core.input_files import regular_bytes, unpacked
from jointopt.frameworks.import_files import read_files
from jointopt.jobs.calibration import load_calibration
from jointopt.jobs.reading import read_text
from jointopt.runs.table import read_table
from jointopt.workflows.plan_files import read_plan_file

READERS = [read_text, read_table, lambda path: read_files([path]), read_plan_file, load_calibration]


@pytest.mark.parametrize("read", READERS)
def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path, read) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(UsageError, match="is not a regular file but a pipe, a socket or a device"):
        read(tmp_path / "pipe.csv")


@pytest.mark.parametrize("read", READERS)
def test_an_endless_device_is_refused(read) -> None:
    with pytest.raises(UsageError, match="/dev/zero is not a regular file"):
        read(Path("/dev/zero"))


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(10**12)  # holes
    with pytest.raises(TableError, match="is larger than 100 bytes; expected a page"):
        regular_bytes(tmp_path / "large", 100, "a page", TableError)


def test_a_gzip_bomb_ends_at_the_limit(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(10**7)) * 3
    with pytest.raises(JobError, match="holds more than 20,000,000 bytes once it is unpacked"):
        unpacked(bomb, tmp_path / "bomb", 20_000_000, JobError)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4))
def test_what_gzip_has_packed_in_any_number_of_members_is_unpacked(parts: list[bytes]) -> None:
    packed = b"".join(map(gzip.compress, parts))
    assert unpacked(packed, Path("x"), 10_000) == b"".join(parts)


@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_damaged_archive_is_an_error_that_readers_expect(content: bytes, data: st.DataObject) -> None:
    packed = gzip.compress(content)
    with pytest.raises((EOFError, zlib.error)):
        unpacked(packed[: data.draw(st.integers(2, len(packed) - 1))], Path("x"), 10_000)
