"""`pskd recipes ls|show|copy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from pskd.errors import PskdError
from pskd.workbench.cli.options import app, show

recipes_app = typer.Typer(help="Ready-made settings: list them, show one, copy one.", no_args_is_help=True)
app.add_typer(recipes_app, name="recipes")


@recipes_app.command("ls")
def recipes_ls() -> None:
    """List the recipes."""
    from pskd.workbench.recipes import listing

    show("\n".join(listing()))


@recipes_app.command("show", epilog="Example:\n\n  pskd recipes show digits")
def recipes_show(name: Annotated[str, Argument(metavar="RECIPE")]) -> None:
    """Print a recipe."""
    from pskd.workbench.recipes import find

    show(find(name).read_text().rstrip("\n"))


@recipes_app.command("copy", epilog="Example:\n\n  pskd recipes copy digits mine.yaml && pskd train mine.yaml")
def recipes_copy(
    name: Annotated[str, Argument(metavar="RECIPE")],
    to: Annotated[Path, Argument(metavar="FILE", help="The new file; it must not exist yet.")],
) -> None:
    """Copy a recipe to a file of your own."""
    from pskd.workbench.recipes import find

    text = find(name).read_text()
    try:
        with to.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise PskdError(f"{to} exists already: choose another name") from None
    show(f"copied to {to}; train it with: pskd train {to}")
