"""The one exception for what a user can put right, and how words of strangers are shown."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

# Control characters, which a terminal obeys; marks that turn the order of letters around; bytes that are no text.
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class PskdError(ValueError):
    """A wrong argument, setting or file: one line that says what was wrong, what is allowed and what to do.

    It is a ``ValueError``, so a stranger's loop can catch it as such; the command line prints it and exits with 2.
    """


def installed_by(extra: str) -> str:
    """How the libraries of an extra come to be installed: the one place that says so, until there is a release."""
    return f"pip install -e '.[{extra}]' in a clone of pskd"


def single_line(text: object) -> str:
    """A message of several lines, another library's perhaps, as one; advice to unpickle is left out."""
    line = " ".join(str(text).split())
    for sign in ("(1) In PyTorch", "Please file an issue", "Re-running `torch.load`", "Do those steps only if"):
        line = line.partition(sign)[0]
    return printable(line.strip())


def one_line(text: object) -> str:
    """A name for a place inside a line: its line ends are shown as they are written, too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def printable(text: object) -> str:
    """Text for a terminal: names of classes, files and other libraries' messages may hold characters that it obeys.

    These are shown as Python writes them, such as ``\\x1b``; lines and tabs stay.
    """
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


RECOVERABLE = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    ImportError,
)


@contextlib.contextmanager
def error_context(what: str) -> Iterator[None]:
    """What another library, or a user's own code, raises: said in one line that begins with what was being done."""
    try:
        yield
    except (PskdError, OSError, MemoryError):  # these have words of their own
        raise
    except Exception as error:  # whatever they made up
        why = single_line(error)
        raise PskdError(f"{what} ({type(error).__name__}{f': {why}' if why else ''})") from error
