"""A finished run as a folder that can be published: weights, config.json and a card. Nothing in it is pickled."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from pskd.errors import PskdError
from pskd.workbench.runs.files import one_line_errors, to_disk


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name when it is whole; nothing is left of it if that fails."""
    if out.exists() or out.is_symlink():
        raise PskdError(f"--out {out} is there already: remove it, or choose another name")
    beside = out.with_name(f".{out.name}.writing")
    with one_line_errors("export", elsewhere="choose another --out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        if beside.is_symlink() or beside.is_file():
            beside.unlink()
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        try:
            yield beside
            for path in beside.rglob("*"):
                to_disk(path)
            beside.rename(out)
            to_disk(out.parent)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
