"""Queues to test with: SQLite files, and a real PostgreSQL server where one is installed."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


class Server:
    """A PostgreSQL server of this machine, in a folder of its own."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder, self.user = programs, folder, _unprivileged()
        if self.user is not None:
            os.chown(folder, self.user.pw_uid, self.user.pw_gid)
        self.data = str(folder / "data")
        self.name = f"test_{secrets.token_hex(4)}"
        # By a socket in its folder: a port might be somebody else's when the server comes back.
        self.url = f"postgresql+psycopg://pskd@/{self.name}?host={folder}"

    def prepare(self) -> None:
        """Make and start it, with an empty database."""
        self._run("initdb", "-D", self.data, "-U", "pskd", "--auth=trust", "--no-sync", "--locale=C", "-E", "UTF8")
        self.start()
        self._run("createdb", "-h", str(self.folder), "-U", "pskd", self.name)

    def start(self) -> None:
        options = f"-h '' -k {self.folder} -c fsync=off"
        # Not captured: the server would inherit the pipe, and the command seem never to end.
        command = f'"{self.programs / "pg_ctl"}" -D "{self.data}" -o "{options}" -l log -w start >/dev/null 2>&1'
        self._run("/bin/sh", "-c", command)

    def stop(self, mode: str) -> None:
        self._run("pg_ctl", "-D", self.data, "-m", mode, "stop")

    def _run(self, program: str, *words: str) -> None:
        ids = {} if self.user is None else {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}
        command = [str(self.programs / program), *words]
        subprocess.run(command, check=True, cwd=self.folder, capture_output=True, timeout=120, **ids)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A fresh PostgreSQL server on this machine; skips where there is none to start."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [
        Path(p) for p in [shutil.which("initdb")] if p
    ]
    if not programs:
        pytest.skip("no PostgreSQL server: neither /usr/lib/postgresql/*/bin nor PATH has initdb")
    shared = next((place for place in ("/tmp", "/var/tmp") if Path(place).is_dir()), None)  # open to the server's user
    folder = Path(tempfile.mkdtemp(prefix="pskd-postgresql-", dir=shared))
    running = Server(programs[-1].parent, folder)
    try:
        try:
            running.prepare()
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"no PostgreSQL server: it does not start here ({error}, {getattr(error, 'stderr', None)!r})")
        yield running
    finally:
        with contextlib.suppress(subprocess.SubprocessError, OSError):  # where it is not running
            running.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgresql(server: Server) -> str:
    """The URL of its database."""
    return server.url


def _unprivileged() -> pwd.struct_passwd | None:
    """Whom to run the server as: it refuses to be root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip("no PostgreSQL server: it refuses to run as root, and there is no other user")
