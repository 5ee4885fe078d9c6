"""Which class is taken for which, as a matrix for each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from pskd.metrics.details import confusion_matrix, most_confused
from pskd.workbench.report.figure import COLOURS, Figure
from pskd.workbench.report.figures import Frame, figure
from pskd.workbench.report.samples import name_classes
from pskd.workbench.study.results import Row

NAMED, DRAWN = 20, 200  # classes that have room for their names, and for a square each
NAME_LENGTH = 14  # letters of a class on an axis


@figure("confusion", section="Confusions", place=30, of="row")
def draw_confusions(frame: Frame) -> Iterator[Figure]:
    """The matrix of all seeds together; each line adds up to 100%."""
    (row,) = frame.rows
    confusion = _confusion_of(row)
    if confusion is None:
        return
    matrix, classes = confusion
    named = len(classes) <= NAMED

    def draw(axes: Any) -> dict[str, Any]:
        from matplotlib.colors import to_rgb

        share = (matrix.double() / matrix.sum(1, keepdim=True).clamp_min(1)).numpy()
        squares = np.empty((*share.shape, 4))
        squares[..., :3] = to_rgb(COLOURS[5])
        squares[..., 3] = np.sqrt(share)  # the root makes a mistake in a hundred visible; 0 is clear on any page
        axes.imshow(squares, interpolation="nearest", aspect="auto")
        axes.set(xlabel="taken for", ylabel="class")
        if not named:
            return {}
        names = [name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…" for name in classes]
        rotation = 90 if max(map(len, names)) > 2 else 0
        axes.set_xticks(range(len(classes)), names, rotation=rotation, fontsize=7, parse_math=False)
        axes.set_yticks(range(len(classes)), names, fontsize=7, parse_math=False)
        return {"cells": {"names": list(classes), "values": matrix.tolist()}}

    yield Figure(
        "confusion",
        f"confusion{frame.suffix}",
        frame.title("Confusions"),
        f"Which class {row.name} takes for which, in % of a class's samples. {_in_words(matrix, classes, 5)}",
        draw,
        (4.2, 3.6),
        _in_words(matrix, classes, 3),
    )


def _in_words(matrix: Tensor, classes: Sequence[str], most: int) -> str:
    """The most confused pairs."""
    pairs = [
        f"{classes[pair.label]} for {classes[pair.taken_for]} ({pair.times:,}, {pair.share:.1%} of them)"
        for pair in most_confused(matrix, most)
    ]
    return f"Most often it takes {'; '.join(pairs)}." if pairs else "It makes no mistake."


def _confusion_of(row: Row) -> tuple[Tensor, Sequence[str]] | None:
    """The confusion matrix of all seeds together, and the classes; None where a run has none, or other classes."""
    total, classes = None, None
    for run in row.runs:
        made = run.predictions()
        if made is None or made.classes != (classes or made.classes) or len(made.classes) > DRAWN:
            return None
        classes = made.classes
        matrix = confusion_matrix(made.probs.argmax(1), made.labels, len(classes))
        total = matrix if total is None else total + matrix
    return None if total is None or classes is None else (total, name_classes(classes))
