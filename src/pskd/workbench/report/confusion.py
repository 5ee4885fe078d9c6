"""Which class is taken for which, as a figure for each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from pskd.metrics.details import confusion_matrix, most_confused
from pskd.workbench.report.figure import COLOURS, Figure, Palette, titled
from pskd.workbench.report.samples import readable
from pskd.workbench.study.results import Row

NAMED, DRAWN = 20, 200  # classes that have room for their names, and for a square each
NAME = 14  # letters of a class on an axis


def confusions(rows: Sequence[Row], frame: str, suffix: str, palette: Palette) -> Iterator[Figure]:
    """One matrix for each row, all seeds together; each line adds up to 100%."""
    for place, row in enumerate(rows):
        found = _of_row(row)
        if found is None:
            continue
        matrix, classes = found

        def draw(axes: Any, matrix: Tensor = matrix, classes: Sequence[str] = classes) -> dict[str, Any]:
            from matplotlib.colors import to_rgb

            share = (matrix.double() / matrix.sum(1, keepdim=True).clamp_min(1)).numpy()
            squares = np.empty((*share.shape, 4))
            squares[..., :3] = to_rgb(COLOURS[5])
            squares[..., 3] = np.sqrt(share)  # so that a mistake in a hundred can be seen; clear on any page
            axes.imshow(squares, interpolation="nearest", aspect="auto")
            axes.set(xlabel="taken for", ylabel="class")
            if len(classes) <= NAMED:
                short = [name if len(name) <= NAME else f"{name[: NAME - 1]}…" for name in classes]
                turned = 90 if max(map(len, short)) > 2 else 0
                axes.set_xticks(range(len(classes)), short, rotation=turned, fontsize=7, parse_math=False)
                axes.set_yticks(range(len(classes)), short, fontsize=7, parse_math=False)
            said = len(classes) <= NAMED
            return {"cells": {"names": list(classes), "values": matrix.tolist()}} if said else {}

        yield Figure(
            "confusion",
            f"confusion{suffix}-{place + 1}",
            titled("Confusions", " · ".join(filter(None, (frame, row.short)))),
            f"Which class {row.name} takes for which, in % of a class's samples. {in_words(matrix, classes)}",
            draw,
            (4.2, 3.6),
            in_words(matrix, classes, 3),
        )


def in_words(matrix: Tensor, classes: Sequence[str], most: int = 5) -> str:
    """The most confused pairs."""
    pairs = [
        f"{classes[pair.label]} for {classes[pair.taken_for]} ({pair.times:,}, {pair.share:.1%} of them)"
        for pair in most_confused(matrix, most)
    ]
    return f"Most often it takes {'; '.join(pairs)}." if pairs else "It makes no mistake."


def _of_row(row: Row) -> tuple[Tensor, Sequence[str]] | None:
    """The confusion matrix of all seeds together, and the classes; None where runs have none, or differ."""
    made = [run.predictions() for run in row.runs]
    first = made[0]
    if first is None or len(first.classes) > DRAWN:
        return None
    matrices = []
    for each in made:
        if each is None or each.classes != first.classes:
            return None
        matrices.append(confusion_matrix(each.probs.argmax(1), each.labels, len(first.classes)))
    return sum(matrices[1:], matrices[0]), readable(first.classes)
