"""One figure: a name, a caption, a text for those who cannot see it, and a function that draws it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from pskd.runs.files import one_line_errors

# Told apart on white and on black, by people who see no red or green too; and each has a marker of its own.
COLOURS = (
    *("#7f7f7f", "#e08214", "#1f9e89", "#9467bd", "#d6453d", "#3b82d6"),
    *("#b5a11c", "#d65fa0", "#6b8e23", "#17a2b8", "#8c564b"),
)
MARKERS = "osD^vPX*<>h"
INK = "#010203"  # stands for the page's own text colour
POINTS = 150  # of a curve
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names are text
    "svg.hashsalt": "pskd",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}
FORMATS = ("svg", "pdf", "png")


@dataclass(frozen=True)
class Figure:
    """One picture. ``draw`` gets matplotlib axes; ``alt`` says in words what it shows."""

    kind: str
    name: str
    title: str
    alt: str
    draw: Callable[[Any], None]
    size: tuple[float, float] = (4.2, 3.4)  # inches

    def svg(self) -> str:
        """The picture as an element of a page, in the page's own text colour."""
        text = self._rendered("svg", transparent=True).decode()
        text = text[text.index("<svg") :].replace(INK, "currentColor")
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
        # A hundredth of a point is finer than any screen. Only inside of tags: the numbers on the axes are text.
        text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), text)
        # Every picture numbers its parts from 1: in one page they need names of their own.
        text = re.sub(r'(id="|url\(#|href="#)', rf"\1{self.name}-", text)
        return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', "", text, count=1)

    def png(self) -> bytes:
        return self._rendered("png")

    def save(self, folder: Path) -> None:
        with one_line_errors("figure"):
            folder.mkdir(parents=True, exist_ok=True)
            for form in FORMATS:
                (folder / f"{self.name}.{form}").write_bytes(self._rendered(form))

    def _rendered(self, form: str, *, transparent: bool = False) -> bytes:
        from matplotlib import rc_context
        from matplotlib.figure import Figure as Canvas

        ink = {} if form == "svg" and transparent else {key: "black" for key, value in STYLE.items() if value == INK}
        with rc_context({**STYLE, **ink}):
            canvas = Canvas(figsize=self.size, dpi=200)
            axes = canvas.add_subplot()
            self.draw(axes)
            # Margins in inches. Matplotlib's own layout engines take as long as all the rest.
            width, height = self.size
            handles, labels = axes.get_legend_handles_labels()
            lines = 0
            if len(labels) > 1:
                columns = max(1, min(len(labels), int(13 * width) // (max(map(len, labels)) + 5)))
                lines = -(-len(labels) // columns)
                canvas.legend(handles, labels, loc="lower center", ncols=columns, fontsize=8)
            named = self.kind in ("per_class_ap", "confusion")  # whose axes have names for numbers
            left = 1.1 if named else 0.66
            below = (1.0 if self.kind == "confusion" else 0.48) + (0.12 + 0.18 * lines if lines else 0)
            canvas.subplots_adjust(left / width, below / height, 1 - 0.12 / width, 1 - 0.1 / height)
            out = io.BytesIO()
            dates = {"Date": None} if form == "svg" else {"CreationDate": None} if form == "pdf" else None
            canvas.savefig(out, format=form, transparent=transparent, metadata=dates)
        return out.getvalue()


class Palette:
    """A colour and a marker for each label, the same in all frames of a collection."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._places = {label: place for place, label in enumerate(dict.fromkeys(labels))}

    def __call__(self, label: str) -> dict[str, Any]:
        place = self._places[label]
        return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)], "markersize": 3.5}


def titled(title: str, frame: str) -> str:
    return f"{title}: {frame}" if frame else title


def slug(text: str) -> str:
    """Letters, digits and dashes: the name of a file, and of a place in the page."""
    return "-".join("".join(group) for kept, group in groupby(text, str.isalnum) if kept)
