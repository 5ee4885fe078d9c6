"""Which classes of a row are the likeliest."""

from __future__ import annotations

import torch
from torch import Tensor

_PACK_FROM = 100  # classes
_BLOCKS_FROM, _BLOCK = 32, 8  # classes for each one kept, and of a block


def top_classes(values: Tensor, k: int) -> Tensor:
    """The classes (B, k) of the k largest values of each row (B, K); in no order.

    On a CPU torch.topk leaves its fast path at k > K / 64. There a value's bits and its class share one integer, which
    numpy's vectorised selection puts in place. Of many classes, only those in the k best blocks are looked at.
    """
    classes = values.shape[1]
    if values.device.type != "cpu" or classes < _PACK_FROM:
        return values.topk(k, 1, sorted=False).indices
    if classes >= _BLOCKS_FROM * k:
        blocks = classes // _BLOCK  # block i holds the classes i, i + blocks, i + 2 * blocks, ...
        even = blocks * _BLOCK
        best = top_classes(values[:, :even].view(-1, _BLOCK, blocks).amax(1), k)
        inside = (best[:, None] + torch.arange(0, even, blocks)[:, None]).flatten(1)
        if even < classes:
            inside = torch.cat((inside, torch.arange(even, classes).expand(len(values), -1)), 1)
        return inside.gather(1, top_classes(values.gather(1, inside), k))
    bits = values.float().view(torch.int32)
    bits = bits ^ (bits >> 31 & 2**31 - 1)  # in the order of the numbers that they stand for, negative ones too
    packed = bits.long().bitwise_left_shift_(32).bitwise_or_(torch.arange(classes))
    packed.numpy().partition(classes - k, axis=1)
    return packed[:, -k:].bitwise_and(2**32 - 1)
