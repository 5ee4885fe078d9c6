"""One figure: a name, a caption, a text for people who cannot see it, and a function that draws it."""

from __future__ import annotations

import html
import io
import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from pskd.workbench.runs.files import one_line_errors

# Distinct on white and on black, also for people who cannot see red or green. Each has its own marker.
COLOURS = (
    *("#7f7f7f", "#e08214", "#1f9e89", "#9467bd", "#d6453d", "#3b82d6"),
    *("#b5a11c", "#d65fa0", "#6b8e23", "#17a2b8", "#8c564b"),
)
MARKERS = "osD^vPX*<>h"
INK = "#010203"  # the page replaces it by its own text colour
POINTS = 150  # of a curve
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names are text
    "svg.hashsalt": "pskd",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "path.simplify": False,  # the page shows the value of each point
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}
FORMATS = ("svg", "pdf", "png")
LETTER = 0.0085  # width of a letter in inches for each point of its size: enough for any sans-serif font
LEGEND, LINE = 2, 0.18  # lines of legend that fit into a figure, and the height of one in inches
HOVER = "hover:"  # an element whose id begins so shows the rest of its id on hover


@dataclass(frozen=True)
class Figure:
    """One picture.

    Args:
        kind: the name under which its function is registered in ``report.figures``.
        name: the name of its files, and of its ids in the page.
        title: the title above it.
        alt: describes in words and numbers what it shows.
        draw: draws on matplotlib axes. It may return ``cells``, which the page shows on hover.
        size: in inches; a legend of more than ``LEGEND`` lines makes it higher.
        caption: how to read it.
        flat: whether all lines are flat. The page then folds it up.
    """

    kind: str
    name: str
    title: str
    alt: str
    draw: Callable[[Any], Mapping[str, Any] | None]
    size: tuple[float, float] = (4.2, 3.4)
    caption: str = ""
    flat: bool = False

    def svg(self, place: str = "") -> str:
        """The picture as an element of a page, in the page's text colour. All ids begin with ``place``."""
        drawn, hover = self._render("svg", transparent=True)
        text = drawn.decode()
        text = text[text.index("<svg") :].replace(INK, "currentColor")
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
        # Two decimals are finer than any screen. Only inside tags: the numbers on the axes are text.
        text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), text)
        text = re.sub(rf'<g id="{HOVER}([^"]*)">', r"<g><title>\1</title>", text)
        # Every picture numbers its ids from 1, but in a page ids must be unique.
        text = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{place}{self.name}-", text)
        data = html.escape(json.dumps(hover, separators=(",", ":"), ensure_ascii=False))
        return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', lambda _: f'data-hover="{data}"', text, count=1)

    def png(self) -> bytes:
        return self._render("png")[0]

    def save(self, folder: Path) -> None:
        with one_line_errors("figure"):
            folder.mkdir(parents=True, exist_ok=True)
            for form in FORMATS:
                (folder / f"{self.name}.{form}").write_bytes(self._render(form)[0])

    def _render(self, form: str, *, transparent: bool = False) -> tuple[bytes, dict[str, Any]]:
        from matplotlib import rc_context
        from matplotlib.figure import Figure as Canvas

        ink = {} if form == "svg" and transparent else {key: "black" for key, value in STYLE.items() if value == INK}
        with rc_context({**STYLE, **ink}):
            canvas = Canvas(figsize=self.size, dpi=200)
            axes = canvas.add_subplot()
            more = self.draw(axes) or {}
            for line in axes.get_lines():
                if not np.isfinite(line.get_xydata()).all(1).any():
                    line.set_markevery(None)  # matplotlib fails to choose among no points
            self._arrange(canvas, axes)
            hover = {**_hover(axes, canvas.get_size_inches().tolist()), **more}
            out = io.BytesIO()
            dates = {"Date": None} if form == "svg" else {"CreationDate": None} if form == "pdf" else None
            canvas.savefig(out, format=form, transparent=transparent, metadata=dates)
        return out.getvalue(), hover

    def _arrange(self, canvas: Any, axes: Any) -> None:
        """Set legend and margins, in inches. Matplotlib's own layout engines double the time of a figure."""
        width, height = self.size
        handles, labels = axes.get_legend_handles_labels()
        lines = 0
        if len(labels) > 1:
            labels = [textwrap.shorten(label, int(13 * width) - 6, placeholder="…") for label in labels]
            columns = max(1, min(len(labels), int(13 * width) // (max(map(len, labels)) + 5)))
            lines = -(-len(labels) // columns)
            canvas.legend(handles, labels, loc="lower center", ncols=columns, fontsize=8)
            height += LINE * max(0, lines - LEGEND)
            canvas.set_size_inches(width, height)
        across, down = _tick_width(axes.xaxis), _tick_width(axes.yaxis)
        rotated = bool(axes.get_xticklabels()) and axes.get_xticklabels()[0].get_rotation() == 90
        below = (0.38 + across if rotated else 0.48) + (0.12 + LINE * lines if lines else 0)
        room = height - below - 0.1
        label = textwrap.wrap(axes.get_ylabel(), max(10, int(room / (LETTER * 9))))
        axes.set_ylabel("\n".join(label))
        left = 0.3 + 0.15 * max(1, len(label)) + down
        right = 0.12 if rotated else max(0.12, across / 2)  # half of the last number stands outside the axes
        canvas.subplots_adjust(left / width, below / height, 1 - right / width, 1 - 0.1 / height)


def _tick_width(axis: Any) -> float:
    """The width in inches of the widest number or name on an axis."""
    low, high = sorted(axis.get_view_interval())
    places = [place for place in axis.get_majorticklocs() if low - 1e-9 <= place <= high + 1e-9]
    texts = axis.get_major_formatter().format_ticks(places)
    size = axis.get_ticklabels()[0].get_size() if axis.get_ticklabels() else 9
    return LETTER * size * max(map(len, texts), default=0)


def _hover(axes: Any, size: Sequence[float]) -> dict[str, Any]:
    """What the page needs to show the value of a point: where the axes are, their limits, and the lines."""
    place = axes.get_position()
    width, height = (72 * side for side in size)
    box = [place.x0 * width, (1 - place.y0) * height, place.x1 * width, (1 - place.y1) * height]
    lines = {}
    for number, line in enumerate(axes.get_lines()):
        label = str(line.get_label())
        if not label.startswith("_"):
            line.set_gid(f"line-{number}")
            lines[f"line-{number}"] = {"name": label, "notes": getattr(line, "notes", [])}
    limits = [[float(limit) for limit in get()] for get in (axes.get_xlim, axes.get_ylim)]
    return {"box": [round(edge, 1) for edge in box], "limits": limits, "x": axes.get_xlabel(), "lines": lines}


class Palette:
    """A colour and a marker for each label, the same in all figures of a collection."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._places = {label: place for place, label in enumerate(dict.fromkeys(labels))}

    def __call__(self, label: str) -> dict[str, Any]:
        place = self._places[label]
        return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)], "markersize": 3.5}

    def line(self, label: str) -> dict[str, Any]:
        """The style of a line of many points: a few markers, at other places than those of the other lines."""
        return {**self(label), "markevery": (0.05 + 0.03 * (self._places[label] % 5), 0.2), "linewidth": 1.2}


def label_epochs(axes: Any) -> None:
    """Put whole epochs on the x axis."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))


def slug(text: str) -> str:
    """The text as letters, digits and dashes, for file names and ids."""
    return "-".join("".join(group) for is_word, group in groupby(text, str.isalnum) if is_word)
