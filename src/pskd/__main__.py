"""Where the command `pskd` starts; `python -m pskd` is the same, and torchrun starts it this way."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    try:
        from pskd.cli import main as command
    except ModuleNotFoundError as error:
        print(f"pskd: the command line needs {error.name}: pip install 'pskd[workbench]'", file=sys.stderr)
        sys.exit(2)
    command()


if __name__ == "__main__":
    main()
