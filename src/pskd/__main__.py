"""The command `pskd` starts here; so do `python -m pskd` and torchrun."""

import os
import signal
import sys
from typing import Any, NoReturn


def main() -> NoReturn:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)  # nothing needs cleaning up while modules are loaded
    _open_standard_streams()
    try:
        from pskd.workbench.cli import main as command
    except ModuleNotFoundError as error:
        from pskd.errors import installed_by

        print(f"pskd: the command line needs {error.name}: {installed_by('workbench')}", file=sys.stderr)
        sys.exit(2)
    command()


def _stop(_number: int, _frame: Any) -> NoReturn:
    os.write(2, b"pskd: stopped\n")
    os._exit(130)


def _open_standard_streams() -> None:
    """If one is closed, the next file to be opened would take its place, and output would be written into it."""
    for handle in range(3):
        try:
            os.fstat(handle)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


if __name__ == "__main__":
    main()
