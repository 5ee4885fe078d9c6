"""`python -m pskd` is `pskd`; torchrun starts it this way."""

from pskd.cli import main

main()
