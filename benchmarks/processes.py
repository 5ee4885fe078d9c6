"""Processes of a run that can be killed: forked, so that torch is loaded already and a start takes a second."""

from __future__ import annotations

import os
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": world * hosts}
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
