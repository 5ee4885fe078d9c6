"""Scenes of several handwritten digits on a black canvas, made by seed: nothing to download."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pskd.random import uniform
from pskd.workbench import registry
from pskd.workbench.data.detection.annotations import DetectionData, Wanted
from pskd.workbench.data.detection.scenes import SceneSplit
from pskd.workbench.data.digits import load_digits
from pskd.workbench.data.refusing import check_no_root
from pskd.workbench.data.splits import InMemory

USUAL = {"train": 600, "test": 200}  # scenes
CANVAS = 96  # pixels
SMALLEST, LARGEST = 14, 40
ATTEMPTS = 8  # to place a digit; one that would touch another is left out


@registry.scenes.register("digits", "digit scenes")
def load_digit_scenes(wanted: Wanted, /) -> DetectionData:
    """As many scenes of each split as are asked for."""
    check_no_root("digits", wanted.root)
    counts = {split: wanted.counts[split] or USUAL.get(split) for split in wanted.counts}
    made = {split: digit_scenes(split, count, wanted.seed) for split, count in counts.items() if count}
    return DetectionData(tuple("0123456789"), made["train"], made.get("val"), made["test"], ())


def digit_scenes(split: str, count: int, seed: int) -> SceneSplit:
    """``count`` scenes of the digits that the data set `digits` has in this split, so test digits are never trained on.

    Validation scenes show training digits. Only the test scenes never depend on the seed.
    """
    data = load_digits()
    digits = data.test if split == "test" else data.train
    assert isinstance(digits, InMemory)
    draws = uniform(
        torch.arange(count), seed=0 if split == "test" else seed, epoch=0, stream=f"{split} scenes", draws=4 * ATTEMPTS
    )
    which, side, left, top = draws.view(count, 4, ATTEMPTS).unbind(1)
    chosen = (which * len(digits)).long()
    side = (SMALLEST + side * (LARGEST - SMALLEST + 1)).floor()
    left, top = (left * (CANVAS - side + 1)).floor(), (top * (CANVAS - side + 1)).floor()
    boxes = torch.stack((left, top, left + side, top + side), 2)  # (count, ATTEMPTS, 4)
    kept = _keep_apart(boxes)
    canvas = torch.zeros(count, 1, CANVAS, CANVAS)
    for attempt in range(ATTEMPTS):
        placed = _place(digits.images[chosen[:, attempt]].float(), boxes[:, attempt])
        canvas += placed * kept[:, attempt, None, None, None]
    offsets = F.pad(kept.sum(1).cumsum(0), (1, 0))
    return SceneSplit(
        names=tuple(f"{split}-{number}" for number in range(count)),
        source=canvas.round().to(torch.uint8),
        channels=1,
        sizes=torch.full((count, 2), CANVAS),
        offsets=offsets,
        boxes=boxes[kept],
        labels=digits.labels[chosen][kept],
        difficult=torch.zeros(int(offsets[-1]), dtype=torch.bool),
    )


def _keep_apart(boxes: Tensor) -> Tensor:
    """Which boxes (N, A, 4) are kept if none may touch an earlier one that is kept: (N, A) bool."""
    kept = torch.zeros(boxes.shape[:2], dtype=torch.bool)
    kept[:, 0] = True
    for attempt in range(1, boxes.shape[1]):
        new, old = boxes[:, attempt, None], boxes[:, :attempt]
        touches = (new[..., :2] <= old[..., 2:]).all(2) & (new[..., 2:] >= old[..., :2]).all(2)
        kept[:, attempt] = ~(touches & kept[:, :attempt]).any(1)
    return kept


def _place(images: Tensor, boxes: Tensor) -> Tensor:
    """Images (N, 1, H, W), each scaled into its box (N, 4) of a black canvas: (N, 1, CANVAS, CANVAS)."""
    sides, centres = boxes[:, 2:] - boxes[:, :2], (boxes[:, 2:] + boxes[:, :2]) / 2
    # From the canvas' coordinates, -1..1, to the image's.
    scale, shift = CANVAS / sides, (CANVAS - 2 * centres) / sides
    grid = F.affine_grid(
        torch.cat((torch.diag_embed(scale), shift[:, :, None]), 2),
        [len(images), 1, CANVAS, CANVAS],
        align_corners=False,
    )
    inside = (grid.abs() <= 1).all(3)[:, None]
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False) * inside
