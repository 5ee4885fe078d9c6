"""A CSV or Parquet file of image paths and labels."""

from __future__ import annotations

import csv
from pathlib import Path

import torch

from pskd.errors import PskdError, installed_by
from pskd.workbench import registry
from pskd.workbench.data.columns import classes_of, draw_test, find_column, require_column, split_of
from pskd.workbench.data.folder import photo_view
from pskd.workbench.data.image_data import ImageData
from pskd.workbench.data.refusing import refusing, require_root
from pskd.workbench.data.splits import OnDisk

Columns = dict[str, list[str]]


@registry.data.register("table")
def load_table(
    root: str | Path | None = None,
    image_size: int | None = None,
    as_stored: bool = False,
    image: str | None = None,
    label: str | None = None,
    split: str | None = None,
) -> ImageData:
    """One row for each image; paths count from the table's folder.

    Args:
        root: a file that ends in .csv, .tsv or .parquet.
        image: the column of the paths.
        label: the column of the classes.
        split: the column that says train, val or test; without one a fifth of each class is the test split.
    """
    file = require_root("table", root, "file")
    source = f"'{file}'"
    rows = _parquet(file) if file.suffix == ".parquet" else _csv(file)
    paths = rows[require_column("image", image, rows, source)]
    named = rows[require_column("label", label, rows, source)]
    for number, cells in enumerate(zip(paths, named, strict=True), start=1):
        if not all(cells):
            raise PskdError(f"{source}: row {number} has no path or no label: fill it in, or remove the row")
    classes, labels = classes_of(named, source)
    split_column = find_column("split", split, rows, source)
    if split_column is None:
        test = draw_test(labels, len(classes))
        masks = {"train": ~test, "test": test}
    else:
        masks = _masks(rows[split_column], source)
    view = photo_view(image_size, as_stored)
    everything = OnDisk(tuple(paths), labels, file.parent, view)
    splits = {name: everything.subset(mask.nonzero().squeeze(1)) for name, mask in masks.items() if mask.any()}
    for name in ("train", "test"):
        if name not in splits:
            raise PskdError(f"{source} has no row of the split {name}: the column {split_column} must name some")
    if not (counts := splits["train"].labels.bincount(minlength=len(classes))).all():
        raise PskdError(f"{source}: class '{classes[int(counts.argmin())]}' has no training image")
    return ImageData("table", classes, splits["train"], splits.get("val"), splits["test"], view)


def _masks(names: list[str], source: str) -> dict[str, torch.Tensor]:
    """Which rows belong to each split."""
    splits = [split_of(name) for name in names]
    if None in splits:
        number = splits.index(None)
        raise PskdError(f"{source}: row {number + 1} is of the split {names[number]!r}; allowed are train, val, test")
    return {split: torch.tensor([each == split for each in splits]) for split in ("train", "val", "test")}


def _csv(file: Path) -> Columns:
    errors = (OSError, UnicodeDecodeError, csv.Error)
    with (
        refusing(f"cannot read '{file}'", "name a CSV file with data.root=...", *errors),
        file.open(newline="", encoding="utf-8-sig") as text,
    ):
        reader = csv.DictReader(text, delimiter="\t" if file.suffix == ".tsv" else ",", strict=True)
        rows, header = list(reader), list(reader.fieldnames or ())
    if not rows:
        raise PskdError(f"'{file}' has no rows: the first line names the columns, each other one is an image")
    return {name: [(row[name] or "").strip() for row in rows] for name in header}


def _parquet(file: Path) -> Columns:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise PskdError(f"'{file}' needs pyarrow: {installed_by('hf')}, or save it as CSV") from error
    with refusing(f"cannot read '{file}'", "name a Parquet file with data.root=...", OSError, pyarrow.ArrowException):
        table = pyarrow.parquet.read_table(file)
    return {
        name: ["" if value is None else str(value) for value in table[name].to_pylist()]
        for name in table.column_names
        if not pyarrow.types.is_nested(table.schema.field(name).type)
    }
