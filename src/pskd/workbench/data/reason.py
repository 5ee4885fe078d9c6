"""What all readers of data share: where the data is, and what other libraries' exceptions say."""

from __future__ import annotations

from pathlib import Path

from pskd.errors import PskdError


def place(name: str, root: str | Path | None, what: str = "folder") -> Path:
    """Where the data set ``name`` is."""
    if root is None:
        raise PskdError(f"'{name}' needs data.root=..., the {what} that holds it")
    return Path(root).expanduser()


def check_no_place(name: str, root: str | Path | None) -> None:
    """Refuse data elsewhere for a data set that is made here: what came of this one would be taken for that one's."""
    if root is not None:
        raise PskdError(f"'{name}' comes with pskd, it is not read from '{root}': leave --root or data.root=... out")


def reason(error: Exception) -> str:
    """The first line of the message, without the file name that our own message gives anyway."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).split("\n")[0]
