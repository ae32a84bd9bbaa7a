"""A real PostgreSQL server for tests, on a port of 127.0.0.1, that ends with them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

USER = "tester"
PASSWORD = "s3cret/word"


def programs() -> Path | None:
    """Return the folder of the newest PostgreSQL that is installed, or None."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).parent
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(found, key=lambda path: int(path.parent.name), default=None)


class Postgres:
    """
    A server in a folder of its own.

    It refuses to run as root; then the user that the packages make for it is taken.
    """

    def __init__(self, folder: Path, bin_: Path) -> None:
        self.data = folder / "data"
        self.log = folder / "log"
        self._bin = bin_
        self._folder = folder
        self._user = "postgres" if os.getuid() == 0 else None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        if self._user:
            shutil.chown(folder, self._user)

    def url(self, database: str = "postgres", password: str = PASSWORD) -> str:
        """Return the URL of a database, with the password in it."""
        return f"postgresql://{USER}:{password.replace('/', '%2F')}@127.0.0.1:{self.port}/{database}"

    def run(self, program: str, *args: str) -> None:
        """Run one of PostgreSQL's programs."""
        command = [str(self._bin / program), *args]
        done = subprocess.run(
            command, user=self._user, cwd=self._folder, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"

    def make(self) -> None:
        """Make the files of the server."""
        password = self._folder / "password"
        password.write_text(PASSWORD)
        if self._user:
            shutil.chown(password, self._user)
        self.run(
            "initdb",
            f"--pgdata={self.data}",
            f"--username={USER}",
            f"--pwfile={password}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        )

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories='' -c fsync=off"
        )
        log = f"--log={self.log}"
        # Its output goes to the log: a server that inherits our pipe would keep it open.
        self.run(
            "pg_ctl", "start", f"--pgdata={self.data}", log, "--wait", "--timeout=60", f"--options={options}"
        )

    def stop(self, mode: str = "fast") -> None:
        """Stop the server; with "immediate" as a crash would."""
        self.run("pg_ctl", "stop", f"--pgdata={self.data}", f"--mode={mode}", "--wait", "--timeout=60")

    def make_database(self) -> str:
        """Make an empty database, and return its URL."""
        import psycopg

        name = f"t{time.time_ns()}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """Run a server; skip the test where PostgreSQL or its driver is not installed."""
    bin_ = programs()
    if bin_ is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    # Not in the folder of pytest, which other users may not enter.
    with tempfile.TemporaryDirectory(prefix="postgres") as name:
        server = Postgres(Path(name), bin_)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")
