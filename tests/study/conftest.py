"""Queues to test with: SQLite files, and a real PostgreSQL server where one is installed."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a fresh PostgreSQL database on this machine; skips where there is no server to start."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [Path(p) for p in [shutil.which("initdb")] if p]
    if not found:
        pytest.skip("no PostgreSQL server: neither /usr/lib/postgresql/*/bin nor PATH has initdb")
    programs, user = found[-1].parent, _unprivileged()
    folder = Path(tempfile.mkdtemp(prefix="pskd-postgresql-"))
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)

    def run(*words: str) -> None:
        ids = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        subprocess.run(words, check=True, cwd=folder, capture_output=True, timeout=120, **ids)

    port = _free_port()
    data, control = str(folder / "data"), str(programs / "pg_ctl")
    options = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off"
    try:
        run(str(programs / "initdb"), "-D", data, "-U", "pskd", "--auth=trust", "--no-sync")
        # Not captured: the server would inherit the pipe, and the command seem never to end.
        run("/bin/sh", "-c", f'"{control}" -D "{data}" -o "{options}" -l log -w start >/dev/null 2>&1')
        name = f"test_{secrets.token_hex(4)}"
        run(str(programs / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "pskd", name)
        yield f"postgresql+psycopg://pskd@127.0.0.1:{port}/{name}"
        run(control, "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
