"""A PostgreSQL server of our own, for tests of what several processes share."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MISSING = "PostgreSQL's initdb, or psycopg, is not installed"


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The folder of a running server's socket: no TCP port, its own data, ended with the tests."""
    pytest.importorskip("psycopg", reason=MISSING)
    programs = _programs() or pytest.skip(MISSING)
    folder = tempfile.mkdtemp(prefix="pg", dir="/tmp")  # a socket's path must be short
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    _run(f"{programs}/initdb -D {folder}/data -A trust -U jointopt --no-sync -E UTF8 --locale=C")
    server = f"-k {folder} -c listen_addresses= -c fsync=off -c shared_buffers=16MB"
    _run(f"{programs}/pg_ctl -D {folder}/data -w -l {folder}/log -o '{server}' start")
    yield folder
    _run(f"{programs}/pg_ctl -D {folder}/data -m immediate stop")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres: str, tmp_path: Path) -> str:
    """An empty database of that server."""
    import psycopg

    name = f"t{os.getpid()}_{abs(hash(str(tmp_path)))}"
    with psycopg.connect(host=postgres, user="jointopt", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql+psycopg://jointopt@/{name}?host={postgres}"


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = shutil.which("initdb") or (str(found[-1]) if found else None)
    return Path(initdb).parent if initdb else None


def _run(command: str) -> None:
    """As the user postgres where we are root, whom initdb refuses."""
    shell = ["su", "postgres", "-s", "/bin/sh"] if os.geteuid() == 0 else ["/bin/sh"]
    subprocess.run([*shell, "-c", command], check=True, stdout=subprocess.DEVNULL, cwd="/")
