"""Images per second of our batched crop, flip and normalisation over torchvision's per-sample transforms.

Both sides deliver shuffled, augmented, normalised float batches of 128 out of 50,000 random 32 x 32 RGB images:

* ours in the main process, on one thread, one whole epoch a round;
* torchvision's RandomCrop, RandomHorizontalFlip, ToTensor and Normalize on PIL images in two DataLoader workers.
  One iterator runs through all rounds, so that no start of workers is timed; a round takes the next batches from it.
  The batches that its workers prepare ahead while our side is timed count for them, and take processor time from us.

Target: at least 10.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from side_by_side import alternate, median
from torch.utils.data import DataLoader, RandomSampler
from torchvision import transforms
from torchvision.datasets import CIFAR10

from pskd.workbench.augment import Augment
from pskd.workbench.data import InMemory, View

IMAGES, BATCH, ROUNDS, WARMUP = 50_000, 128, 30, 3
THEIR_BATCHES = 40  # a round; an epoch would take them minutes
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


class PerSample(CIFAR10):
    """torchvision's CIFAR class, with its way from an array over a PIL image to a tensor, on images of ours."""

    def __init__(self, images: np.ndarray, transform: transforms.Compose) -> None:
        self.data, self.targets = images, [0] * len(images)
        self.transform, self.target_transform = transform, None


def main() -> None:
    torch.set_num_threads(1)
    images = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
    view = View(3, (32, 32), None, MEAN, STD)
    split, augment = InMemory(images, torch.zeros(IMAGES, dtype=torch.int64), view), Augment(view, crop="pad", pad=4)
    epochs = iter(range(ROUNDS + WARMUP))

    def ours() -> None:
        epoch = next(epochs)
        plan = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(epoch)).split(BATCH)
        for batch in split.batches(plan, augment=augment, epoch=epoch):
            assert batch.inputs.dtype == torch.float32

    transform = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    per_sample = PerSample(images.permute(0, 2, 3, 1).contiguous().numpy(), transform)
    sampler = RandomSampler(per_sample, num_samples=(ROUNDS + WARMUP + 1) * THEIR_BATCHES * BATCH)
    their_batches = iter(DataLoader(per_sample, BATCH, sampler=sampler, num_workers=2))

    def theirs() -> None:
        for _ in range(THEIR_BATCHES):
            inputs, _ = next(their_batches)
            assert inputs.dtype == torch.float32

    start = time.perf_counter()
    our_seconds, their_seconds = alternate(ours, theirs, rounds=ROUNDS, warmup=WARMUP)
    our_speed = [IMAGES / seconds for seconds in our_seconds]
    their_speed = [THEIR_BATCHES * BATCH / seconds for seconds in their_seconds]
    print(f"{ROUNDS} rounds in {time.perf_counter() - start:.0f} s")
    print(f"ours, images/s:        {median(our_speed)}")
    print(f"torchvision, images/s: {median(their_speed)}")
    print(f"ratio: {median([a / b for a, b in zip(our_speed, their_speed, strict=True)])}")


if __name__ == "__main__":
    main()
