"""How much memory there is, and whether something fits: asked before it is made."""

from __future__ import annotations

import math
import os
from pathlib import Path

from pskd.errors import PskdError

_GROUP = Path("/sys/fs/cgroup")


def free_bytes() -> float:
    """Bytes that this process can still use: of the machine, of its container, and by ulimit -v; inf: not known."""
    return max(0.0, min(_machine(), _container(), _limit()))


def check_fits(needed: float, what: str, advice: str) -> None:
    """Refuse what needs more bytes than there are."""
    if needed > (free := free_bytes()):
        raise PskdError(f"{what} needs {shown(needed)} of memory and there are {shown(free)}: {advice}")


def shown(number: float) -> str:
    """`3.2 GB`"""
    if not math.isfinite(number) or number >= 1e18:
        return "far more"
    unit = next((name for size, name in ((1e12, "TB"), (1e9, "GB")) if number >= size), "MB")
    return f"{number / {'TB': 1e12, 'GB': 1e9, 'MB': 1e6}[unit]:,.1f} {unit}"


def _machine() -> float:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    except (OSError, ValueError):
        pass
    return math.inf


def _container() -> float:
    try:
        used = float((_GROUP / "memory.current").read_text())
        kinds = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        used -= float(kinds["active_file"]) + float(kinds["inactive_file"])  # of files: given back when it is needed
        return float((_GROUP / "memory.max").read_text()) - used
    except (OSError, ValueError, KeyError):  # none, or "max"
        return math.inf


def _limit() -> float:
    try:
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most == resource.RLIM_INFINITY:
            return math.inf
        return most - int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError):
        return math.inf
