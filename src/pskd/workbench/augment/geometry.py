"""Crops and flips of whole batches: every image has its own place, and no Python loop runs over them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pskd.tensors import constant

# The part of the image's area and the aspect ratios that a random resized crop takes, and how often it tries.
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
ATTEMPTS = 10
PART = 224 / 256  # of either side, that a random crop without another shape takes


def mirror(images: Tensor, flip: Tensor) -> Tensor:
    """The images (B, C, H, W), from right to left where ``flip`` (B,) is true."""
    if len(images) == 1 and images.device.type == "cpu":  # an accelerator would have to be waited for
        return images.flip(3) if flip.item() else images
    both = torch.cat((images, images.flip(3)))
    # Copies whole images; `torch.where` picks byte by byte and takes three times as long.
    return both.index_select(0, torch.arange(len(images), device=images.device) + len(images) * flip)


def shifted_crop(images: Tensor, top: Tensor, left: Tensor, pad: int) -> Tensor:
    """Crops of the images' own size from the images with a black border of ``pad`` pixels.

    Args:
        images: (B, C, H, W).
        top, left: (B,) int64 in 0..2*pad, where in the padded image each crop starts.
    """
    _, channels, height, width = images.shape
    padded = F.pad(images, (pad, pad, pad, pad))
    image, plane, row, _ = padded.stride()
    # Every window of the padded batch, overlapping, as a view: window i starts at element i. Choosing whole windows
    # copies rows of pixels and is four times as fast as indexing pixels.
    span = (channels - 1) * plane + (height - 1) * row + width
    windows = padded.as_strided((padded.numel() - span + 1, channels, height, width), (1, plane, row, 1))
    start = torch.arange(len(images), device=images.device) * image + top * row + left
    return windows.index_select(0, start)


def random_boxes(
    uniform: Tensor,
    height: int | Tensor,
    width: int | Tensor,
    areas: tuple[float, float] = AREA,
    ratios: tuple[float, float] = RATIO,
) -> Tensor:
    """Boxes of random area and aspect ratio inside an image, by default as training on ImageNet takes them.

    Up to ``ATTEMPTS`` areas and ratios are tried for each box; if none fits, it is the largest central one within
    ``RATIO``.

    Args:
        uniform: (B, 2 * ATTEMPTS + 2) numbers in [0, 1).
        height, width: of the images, in pixels: of all, or (B) int64 of each.

    Returns:
        (B, 4) int64: top, left, height, width.
    """
    tries, place, sides = uniform[:, :-2].view(-1, ATTEMPTS, 2), uniform[:, -2:], _sides(height, width, uniform.device)
    area = sides.prod(1)[:, None] * (areas[0] + (areas[1] - areas[0]) * tries[..., 0])
    low, high = (math.log(ratio) for ratio in ratios)
    ratio = torch.exp(low + (high - low) * tries[..., 1])
    sizes = torch.stack((area / ratio, area * ratio), dim=2).sqrt().round().long()  # (B, ATTEMPTS, 2)

    fits = ((sizes > 0) & (sizes <= sides[:, None])).all(dim=2)
    some_fit, first = fits.any(dim=1, keepdim=True), fits.int().argmax(dim=1)
    fitting = sizes[torch.arange(len(sizes), device=sizes.device), first]
    by_ratio = torch.stack((sides[:, 1].double() / RATIO[0], sides[:, 0].double() * RATIO[1]), dim=1).round().long()
    size = torch.where(some_fit, fitting, torch.minimum(sides, by_ratio))
    free = sides - size
    start = torch.where(some_fit, (place * (free + 1)).long(), free // 2)
    return torch.cat((start, size), dim=1)


def shifted_boxes(uniform: Tensor, height: int | Tensor, width: int | Tensor) -> Tensor:
    """Boxes of ``PART`` of either side, anywhere inside an image; arguments and result are those of `random_boxes`."""
    sides = _sides(height, width, uniform.device)
    size = (PART * sides.double()).round().long().expand(len(uniform), 2)
    return torch.cat(((uniform[:, -2:] * (sides - size + 1)).long(), size), dim=1)


def _sides(height: int | Tensor, width: int | Tensor, device: torch.device) -> Tensor:
    """Height and width: (B, 2) of each image, or (1, 2) of all."""
    if isinstance(height, Tensor) and isinstance(width, Tensor):
        return torch.stack((height, width), dim=1)
    return constant(((height, width),), torch.int64, device)


def resized_crop(images: Tensor, boxes: Tensor) -> Tensor:
    """Every image's box, enlarged to the image's own size: bilinear, only pixels inside the box are read.

    Args:
        images: (B, C, H, W) uint8 or float.
        boxes: (B, 4) int64: top, left, height, width.

    Returns:
        (B, C, H, W) float32 in the images' range.
    """
    height, width = images.shape[2:]
    top, left, box_height, box_width = boxes.unbind(1)
    y, x = _positions(top, box_height, height), _positions(left, box_width, width)
    grid = torch.stack((x[:, None, :].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)), dim=-1)
    return F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)


def _positions(start: Tensor, length: Tensor, size: int) -> Tensor:
    """(B, size): where along one axis the output pixels' centres fall, in ``grid_sample``'s units (-1..1)."""
    centres = torch.arange(size, device=start.device) + 0.5
    start, length = start[:, None], length[:, None]
    pixel = (start + centres * (length / size)).clamp(start + 0.5, start + length - 0.5)
    return pixel * (2 / size) - 1
