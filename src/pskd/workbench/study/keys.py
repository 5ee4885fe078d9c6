"""The key of a cell: a hash of the settings that change the result. It names the cell's run folder.

It is the configuration's identity, so it stays the same when a release adds a setting, and when data or folders move.
The `data.root` of a recipe or study file counts, as two cells may differ in nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pskd.errors import PskdError
from pskd.workbench.config import Config, identity, validated
from pskd.workbench.runs.files import write_atomic
from pskd.workbench.runs.folder import RunFolder

if TYPE_CHECKING:
    from pskd.workbench.study.cells import Cell

CELL = "cell:"  # with a key: the run folder of that cell, before the folder of the runs is known
REFERENCES = ("model.backbone", "method.teacher")  # they can name another run, whose settings count


def key_of(config: Config, root: str | None = None) -> str:
    """The key of a configuration; ``root`` is the `data.root` of the recipe or study file, if it has one."""
    also = {} if root is None else {"data.root": root}
    return identity(config, keep=REFERENCES, also=also, size=6)


def rename_matching_runs(runs: Path, cells: Mapping[str, Cell]) -> None:
    """Rename run folders that hold the run of a cell, but under another name.

    ``cells`` come after the cells that they need. Links, and folders that are in use or cannot be read, stay.
    """
    if not runs.is_dir():
        return
    others: dict[RunFolder, Config] = {}
    for path in runs.iterdir():
        if path.name not in cells and not path.is_symlink() and RunFolder(path).config_file.is_file():
            with contextlib.suppress(PskdError, OSError):
                others[RunFolder(path)] = RunFolder(path).config()
    names = {key: key for key in cells}  # old and new names of runs that others may refer to
    for key, cell in cells.items():
        for folder, config in others.items() if not (runs / key).exists() else ():
            with contextlib.suppress(PskdError, OSError):
                if _is_run_of(cell, _with_keys(config, names)):
                    _rename(folder, runs / key, cell.config_in(runs))
                    names[folder.path.name] = key
                    del others[folder]
                    break


def _rename(folder: RunFolder, to: Path, config: Config) -> None:
    try:
        folder.claim(None, resume=True)
        folder.path.rename(to)
        write_atomic(to / "config.yaml", config.to_yaml())  # its teacher may have another name now, too
    finally:
        folder.release()


def _is_run_of(cell: Cell, config: Config) -> bool:
    same_root = cell.root is None or cell.root == config.data.root
    return same_root and key_of(config, cell.root) == cell.key


def _with_keys(config: Config, names: Mapping[str, str]) -> Config:
    """``config`` with references to runs of this study written as `cell:KEY`."""
    sections = (config.model, config.method)
    if not any(getattr(section, name.split(".")[1], None) for section, name in zip(sections, REFERENCES, strict=True)):
        return config
    tree = config.model_dump(mode="json")
    for section, setting in (name.split(".") for name in REFERENCES):
        path = Path(tree[section].get(setting) or "")
        if path.parent.name == "runs" and path.name in names:
            tree[section][setting] = CELL + names[path.name]
    return validated(tree)
