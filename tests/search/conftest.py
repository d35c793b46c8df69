"""A PostgreSQL server of our own, for tests of what several workers share."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

MISSING = "PostgreSQL's initdb, or psycopg, is not installed"


def _binaries():
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = shutil.which("initdb") or (str(found[-1]) if found else None)
    return Path(initdb).parent if initdb else None


def _run(command):
    """As the user postgres where we are root, whom initdb refuses."""
    shell = ["su", "postgres", "-s", "/bin/sh"] if os.geteuid() == 0 else ["/bin/sh"]
    subprocess.run([*shell, "-c", command], check=True, stdout=subprocess.DEVNULL, cwd="/")


@pytest.fixture(scope="session")
def postgres():
    """The folder of a running server's socket: no TCP port, its own data, ended with the tests."""
    bin_, folder = _binaries(), tempfile.mkdtemp(prefix="pg", dir="/tmp")  # a socket's path must be short
    if bin_ is None:
        pytest.skip(MISSING)
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    _run(f"{bin_}/initdb -D {folder}/data -A trust -U jointopt --no-sync -E UTF8 --locale=C")
    server = f"-k {folder} -c listen_addresses= -c fsync=off -c shared_buffers=16MB"
    _run(f"{bin_}/pg_ctl -D {folder}/data -w -l {folder}/log -o '{server}' start")
    yield folder
    _run(f"{bin_}/pg_ctl -D {folder}/data -m immediate stop")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_url(request, tmp_path):
    """An empty database that several processes may write to."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shared.db"
    psycopg = pytest.importorskip("psycopg", reason=MISSING)
    folder = request.getfixturevalue("postgres")
    name = f"t{os.getpid()}_{abs(hash(str(tmp_path)))}"
    with psycopg.connect(host=folder, user="jointopt", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql+psycopg://jointopt@/{name}?host={folder}"
