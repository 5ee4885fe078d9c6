"""Processes of a run that can be killed: forked, so that torch is loaded already and a start takes a second."""

from __future__ import annotations

import ctypes
import os
import random
import socket
import traceback
from collections.abc import Callable

from accelerate.state import PartialState


def in_child(work: Callable[[], object], **environment: object) -> int:
    """Start ``work`` in a forked process; returns its process id. It prints nothing and exits as a command would."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ.update({name: str(value) for name, value in environment.items()})
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        work()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        if "PSKD_TRACEBACK" in os.environ:
            traceback.print_exc()
    finally:
        os._exit(code)


def in_children(work: Callable[[], object], world: int, hosts: int = 1) -> list[int]:
    """Start ``work`` in the processes of a run as torchrun would, ``world`` of them on each of ``hosts`` hosts."""
    if world * hosts == 1:
        return [in_child(work)]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": world * hosts}
    sizes = {"LOCAL_WORLD_SIZE": world, "GROUP_WORLD_SIZE": hosts}

    def afresh() -> None:
        PartialState._reset_state()  # the parent may have trained alone
        work()

    return [
        in_child(afresh, **meeting, **sizes, RANK=host * world + local, LOCAL_RANK=local, GROUP_RANK=host)
        for host in range(hosts)
        for local in range(world)
    ]


def exit_code(child: int) -> int:
    """Wait for a child to end; a signal's number is negative."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def free_port() -> int:
    """A port to listen at; none of those that the system itself gives to connections meanwhile."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def obey_permissions() -> None:
    """Give up, in this process and its forks, what lets root read and write whatever the permissions say.

    Not by becoming another user: to that one the folder of the environment or of the tests may be closed.
    """
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    nothing = (ctypes.c_uint32 * 6)()
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).capset(header, nothing):
        raise OSError(ctypes.get_errno(), "capset")
