"""Boxes drawn on images, each class in a colour of its own."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pskd.workbench.runs.files import one_line_errors, write_atomic

READABLE = 400  # pixels of a drawing's longer side
TURN = 0.618034  # of the colour circle from one class to the next: the golden section never comes back to a colour


def class_colour(place: int) -> tuple[int, int, int]:
    """The colour (red, green, blue) of a class by its place among the classes, the same wherever it is drawn."""
    hue = (place * TURN) % 1
    lightness = 0.4 if 0.1 < hue < 0.55 else 0.5  # green and yellow are bright by themselves
    red, green, blue = colorsys.hls_to_rgb(hue, lightness, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def draw(image: Tensor, found: Sequence[dict[str, Any]], classes: Sequence[str], file: Path) -> None:
    """Write an image (C, H, W) with its objects; a small one several times as large, for its captions to be read."""
    from PIL import Image
    from torchvision.utils import draw_bounding_boxes

    times = max(1, READABLE // max(image.shape[1:]))
    canvas = image.expand(3, -1, -1).repeat_interleave(times, 1).repeat_interleave(times, 2)
    if found:
        captions = [f"{item['class']} {item['score']:.2f}" for item in found]
        boxes = torch.tensor([item["box"] for item in found])
        colours = [class_colour(classes.index(item["class"])) for item in found]
        canvas = draw_bounding_boxes(canvas, boxes * times, captions, colors=colours, width=2)
    drawn = io.BytesIO()
    Image.fromarray(canvas.permute(1, 2, 0).numpy()).save(drawn, "PNG")
    with one_line_errors("drawing", elsewhere="choose another folder with --draw"):
        write_atomic(file, drawn.getvalue())
