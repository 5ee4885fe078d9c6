"""The key of a cell: a hash of what its settings say about the result. It names the cell's run folder.

It is the configuration's identity, so a key stays when a release adds a setting, and when data or folders move. A
`data.root` that a recipe or the study file names does count, as two of them may be all that tells two cells apart.
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

CELL = "cell:"  # with a key: the run folder of that cell, until it is known where the runs are
REFERENCES = ("model.backbone", "method.teacher")  # another run can stand here, and what it learnt counts


def key_of(config: Config, root: str | None = None) -> str:
    """The key of a configuration; ``root`` is the `data.root` that a recipe or the study file names, if one does."""
    also = {} if root is None else {"data.root": root}
    return identity(config, keep=REFERENCES, also=also, size=6)


def rename_matching_runs(runs: Path, cells: Mapping[str, Cell]) -> None:
    """Give run folders that have another name, but are the run of a cell, the cell's name.

    ``cells`` come after those they need. A folder that is a link, that cannot be read or that is in use is left alone.
    """
    if not runs.is_dir():
        return
    others: dict[RunFolder, Config] = {}
    for path in runs.iterdir():
        if path.name not in cells and not path.is_symlink() and RunFolder(path).config_file.is_file():
            with contextlib.suppress(PskdError, OSError):
                others[RunFolder(path)] = RunFolder(path).config()
    names = {key: key for key in cells}  # of the runs that others may refer to: what it was, what it is
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
    """``config`` with references to runs of this study as a cell has them."""
    sections = (config.model, config.method)
    if not any(getattr(section, name.split(".")[1], None) for section, name in zip(sections, REFERENCES, strict=True)):
        return config
    tree = config.model_dump(mode="json")
    for section, setting in (name.split(".") for name in REFERENCES):
        path = Path(tree[section].get(setting) or "")
        if path.parent.name == "runs" and path.name in names:
            tree[section][setting] = CELL + names[path.name]
    return validated(tree)
