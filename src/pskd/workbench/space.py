"""How much memory is free, and whether something fits, checked before it is made."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

from pskd.errors import PskdError

_GROUP = Path("/sys/fs/cgroup")


def free_bytes() -> float:
    """Bytes that this process can still use by the machine, its container and ulimit -v; inf: not known."""
    known = [math.inf]
    for measure in (_machine, _container, _limit):
        with contextlib.suppress(ImportError, OSError, ValueError, LookupError):
            known.append(measure())
    return max(0.0, min(known))


def check_fits(needed: float, what: str, advice: str) -> None:
    """Refuse what needs more bytes than are free."""
    if needed > (free := free_bytes()):
        raise PskdError(f"{what} needs {format_bytes(needed)} of memory and there are {format_bytes(free)}: {advice}")


def format_bytes(number: float) -> str:
    """`3.2 GB`"""
    if not number < 1e18:
        return "far more"
    size, unit = (1e12, "TB") if number >= 1e12 else (1e9, "GB") if number >= 1e9 else (1e6, "MB")
    return f"{number / size:,.1f} {unit}"


def _machine() -> float:
    sizes = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return 1024.0 * int(sizes["MemAvailable"].split()[0])


def _container() -> float:
    most = float((_GROUP / "memory.max").read_text())  # "max" is no number: without a limit
    used = float((_GROUP / "memory.current").read_text())
    kinds = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
    files = float(kinds["active_file"]) + float(kinds["inactive_file"])  # freed when memory is needed
    return most - (used - files)


def _limit() -> float:
    import resource

    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most == resource.RLIM_INFINITY:
        return math.inf
    return most - int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
