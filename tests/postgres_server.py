"""A PostgreSQL server of our own, for tests of what several processes share."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

MISSING = "PostgreSQL's initdb, or psycopg, is not installed"


class Server:
    """A server with its own data and no TCP port; ``folder`` is that of its socket."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self.folder = tempfile.mkdtemp(prefix="pg", dir="/tmp")  # a socket's path must be short
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres")
        _run(f"{programs}/initdb -D {self.folder}/data -A trust -U jointopt --no-sync -E UTF8 --locale=C")

    def start(self) -> None:
        """Begin to serve."""
        server = f"-k {self.folder} -c listen_addresses= -c fsync=off -c shared_buffers=16MB"
        _run(f"{self._programs}/pg_ctl -D {self.folder}/data -w -l {self.folder}/log -o '{server}' start")

    def stop(self, mode: str = "immediate") -> None:
        """End, and cut all connections (immediate: as a crash does)."""
        _run(f"{self._programs}/pg_ctl -D {self.folder}/data -m {mode} stop")

    def database(self, name: str) -> str:
        """The URL of a new database."""
        import psycopg

        with psycopg.connect(host=self.folder, user="jointopt", dbname="postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://jointopt@/{name}?host={self.folder}"


@contextmanager
def server() -> Iterator[Server]:
    """A running server, ended and removed after the body."""
    pytest.importorskip("psycopg", reason=MISSING)
    made = Server(_programs() or pytest.skip(MISSING))
    made.start()
    try:
        yield made
    finally:
        with suppress(subprocess.CalledProcessError):  # it may be stopped
            made.stop()
        shutil.rmtree(made.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The folder of a running server's socket, ended with the tests."""
    with server() as running:
        yield running.folder


@pytest.fixture
def postgres_server() -> Iterator[Server]:
    """A server of the test's own, which it may stop and start."""
    with server() as running:
        yield running


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
