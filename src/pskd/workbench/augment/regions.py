"""Rectangles of images: one for each image of a batch, given as its rows and its columns."""

from __future__ import annotations

import torch
from torch import Tensor


def between(start: Tensor, length: int | Tensor, size: int) -> Tensor:
    """True (B, size) for ``length`` places from ``start`` on, clipped at the edges."""
    place = torch.arange(size, device=start.device)
    end = (start + length)[:, None]
    return (place >= start[:, None]) & (place < end)


def around(centre: Tensor, length: int | Tensor, size: int) -> Tensor:
    """True (B, size) for ``length`` places around ``centre`` (B), a number in [0, 1) as a part of the size; clipped."""
    return between((centre * size).long() - length // 2, length, size)


def inside(images: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """A view of the batch, and 1 in it where both ``rows`` (B, H) and ``columns`` (B, W) are true, 0 elsewhere.

    Numbers instead of a mask, and in channels-last images columns and channels joined: masks, and what is broadcast
    over the innermost dimension, take five times as long on a CPU.
    """
    rows, columns = rows.to(images.dtype), columns.to(images.dtype)
    if images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous():
        columns = columns.repeat_interleave(images.shape[1], 1)
        return images.permute(0, 2, 3, 1).flatten(2), rows[:, :, None] * columns[:, None, :]
    return images, rows[:, None, :, None] * columns[:, None, None, :]


def blank(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Set a rectangle of each image to 0, the mean colour after normalisation; **changes ``images``**."""
    view, ones = inside(images, rows, columns)
    view.addcmul_(view, ones, value=-1)  # x - x * ones, without one more tensor of the batch's size
    return images
