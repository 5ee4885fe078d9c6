"""The exception for what a user can correct, and functions that make text safe to print."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

# Control characters, marks that reverse the order of letters, and bytes that are no text.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class PskdError(ValueError):
    """A wrong argument, setting or file: one line that says what was wrong, what is allowed and what to do.

    It is a ``ValueError``, so your own loop can catch it as one; the command line prints it and exits with 2.
    """


def installed_by(extra: str) -> str:
    """The command that installs the libraries of an extra, until there is a release."""
    return f"pip install -e '.[{extra}]' in a clone of pskd"


def single_line(text: object) -> str:
    """A message in one line, without other libraries' advice to unpickle."""
    line = " ".join(str(text).split())
    for advice in ("(1) In PyTorch", "Please file an issue", "Re-running `torch.load`", "Do those steps only if"):
        line = line.partition(advice)[0]
    return printable(line.strip())


def one_line(text: object) -> str:
    """A name that fits into a line: line ends and tabs are shown as ``\\n`` and ``\\t``."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def printable(text: object) -> str:
    """Text that is safe to print: names and messages may hold characters that control a terminal.

    They are shown as Python writes them, such as ``\\x1b``; line ends and tabs stay.
    """
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))


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
    """Errors of other libraries and of a user's code become one line that begins with what was being done."""
    try:
        yield
    except (PskdError, OSError, MemoryError):  # these have messages of their own
        raise
    except Exception as error:
        why = single_line(error)
        raise PskdError(f"{what} ({type(error).__name__}{f': {why}' if why else ''})") from error
