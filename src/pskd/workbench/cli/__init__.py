"""The command line: parse, call, print. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer

from pskd import __version__
from pskd.errors import PskdError
from pskd.workbench.cli import export, predict, recipes, study, train, use  # noqa: F401  # their commands
from pskd.workbench.cli.ending import INTERRUPTED, exit_on_error, leave
from pskd.workbench.cli.options import app, show

# Some versions of typer bring their own click, others import it: this is the one in use.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        show(f"pskd {__version__}")
        raise typer.Exit


def main() -> NoReturn:
    """Run a command; what a user can put right ends in one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that does not know a letter
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # of other libraries, to their callers
    try:
        with exit_on_error():
            _run()
    except KeyboardInterrupt:  # the first one came while the command was ending by itself
        leave(INTERRUPTED, "stopped")
    raise AssertionError  # a command has an end


def _run() -> NoReturn:
    try:
        code = app(standalone_mode=False)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            show(error.format_message())
            leave(0)
        context = getattr(error, "ctx", None)
        command = "pskd" if context is None else context.command_path
        raise PskdError(f"{error.format_message().removesuffix('.')} (see {command} --help)") from None
    except typer.Abort:
        raise KeyboardInterrupt from None
    if code == INTERRUPTED:  # what typer makes of a Ctrl-C
        raise KeyboardInterrupt
    sys.exit(code if isinstance(code, int) else 0)
