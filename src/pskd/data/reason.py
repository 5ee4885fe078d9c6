"""What all readers of data share: where the data is, and what other libraries' exceptions say."""

from __future__ import annotations

from pathlib import Path

from pskd.errors import PskdError


def place(name: str, root: str | Path | None, what: str = "folder") -> Path:
    """Where the data set ``name`` is."""
    if root is None:
        raise PskdError(f"'{name}' needs data.root=..., the {what} that holds it")
    return Path(root).expanduser()


def reason(error: Exception) -> str:
    """The first line of the message, without the file name that our own message gives anyway."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).split("\n")[0]
