"""How all readers of data refuse what is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pskd.errors import PskdError


def require_root(name: str, root: str | Path | None, what: str = "folder") -> Path:
    """Where the data set ``name`` is."""
    if root is None:
        raise PskdError(f"'{name}' needs data.root=..., the {what} that holds it")
    return Path(root).expanduser()


def check_no_root(name: str, root: str | Path | None) -> None:
    """Refuse a root for a data set that pskd makes itself: its results would be taken for those of the root's data."""
    if root is not None:
        raise PskdError(f"'{name}' comes with pskd, it is not read from '{root}': leave --root or data.root=... out")


@contextlib.contextmanager
def refusing(what: str | None, advice: str, *errors: type[Exception]) -> Iterator[None]:
    """Errors of these classes become one line: ``WHAT (why): ADVICE``; by default WHAT names the file of an OSError."""
    try:
        yield
    except errors as error:
        what = what or f"cannot read '{getattr(error, 'filename', None)}'"
        raise PskdError(f"{what} ({reason(error)}): {advice}") from error


def reason(error: Exception) -> str:
    """The first line of an error's message, without the file name that our own message gives anyway."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).split("\n")[0]
