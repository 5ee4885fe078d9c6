"""Images a second of training data from a folder of photos, against torchvision's ImageFolder.

560 JPEG files of about 500 x 375 pixels, random resized crops of 224, flips, and with --jitter brightness, contrast and
saturation; float batches of 64, two worker processes on either side. Sides:

* torchvision: ImageFolder with RandomResizedCrop, RandomHorizontalFlip, (ColorJitter,) ToTensor and Normalize;
* ours as it is by default, with Pillow's resizing: the first epoch and all others;
* ours with data.resize=torch;
* ours from the second epoch on with data.cache.

torchvision's workers start anew with each epoch, ours stay. Prints images a second of each and the ratio to
torchvision's in the same round; then the ratios of processor time, main process and workers, which other people's work
on the machine disturbs less. Targets: 1.5 for the first epoch, 5 with the cache.

--stages prints instead what single steps take in one process without workers, and so what can be reached: nobody who
decodes and resizes with Pillow is faster than "decode, crop, resize by Pillow" alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from side_by_side import alternate, median
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from pskd.random import uniform
from pskd.workbench.augment import Augment
from pskd.workbench.augment.geometry import ATTEMPTS, random_boxes
from pskd.workbench.data import ImageData, OnDisk, Split
from pskd.workbench.data.caching import Caching, Kept, Preparation
from pskd.workbench.data.folder import MEAN, STD, photo_view
from pskd.workbench.data.pictures import Picture
from pskd.workbench.data.view import decode

IMAGES, CLASSES, BATCH, WORKERS, SIZE = 560, 8, 64, 2, 224
SHAPES = ((500, 375), (500, 333), (375, 500), (500, 375))


def photo(draw: np.random.Generator, width: int, height: int) -> Image.Image:
    """Noise with the spectrum of a photo, half grey: as many bytes as a camera's JPEG of this size and quality."""
    total = np.full((height, width, 3), 128.0, np.float32)
    for rows, strength in ((4, 90), (12, 45), (36, 22), (100, 11), (height, 6)):
        noise = draw.standard_normal((rows, rows * width // height, 3)).astype(np.float32)
        noise = 1.2 * noise.mean(2, keepdims=True) + 0.4 * noise
        large = [Image.fromarray(noise[:, :, c]).resize((width, height), Image.Resampling.BICUBIC) for c in range(3)]
        total += strength * np.stack([np.asarray(channel) for channel in large], 2)
    return Image.fromarray(total.clip(0, 255).astype(np.uint8))


def make_photos(root: Path, count: int) -> None:
    """Files root/train/CLASS/NUMBER.jpg."""
    draw = np.random.default_rng(0)
    for number in range(count):
        folder = root / "train" / f"class{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        photo(draw, *SHAPES[number % len(SHAPES)]).save(folder / f"{number}.jpg", quality=90)


def processor_seconds() -> float:
    """Of this process, of children that have ended, and of workers that wait for the next epoch."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    alive = [Path(f"/proc/{child.pid}/stat").read_text() for child in multiprocessing.active_children()]
    ticks = sum(int(field) for stat in alive for field in stat.rpartition(")")[2].split()[11:13])
    return sum(each.ru_utime + each.ru_stime for each in used) + ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jitter", action="store_true")
    options.add_argument("--images", type=int, default=IMAGES)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--stages", action="store_true")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    strength = 0.4 if chosen.jitter else 0.0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_photos(root, chosen.images)
        (stages if chosen.stages else compare)(root, strength, chosen.rounds)


def image_folder(root: Path, strength: float) -> datasets.ImageFolder:
    jitter = [transforms.ColorJitter(strength, strength, strength)] if strength else []
    return datasets.ImageFolder(
        root / "train",
        transforms.Compose(
            [
                transforms.RandomResizedCrop(SIZE),
                transforms.RandomHorizontalFlip(),
                *jitter,
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        ),
    )


def stages(root: Path, strength: float, rounds: int) -> None:
    """Processor time of an image, the shortest of some rounds."""
    theirs, view = image_folder(root, strength), photo_view(SIZE)
    some = [Path(path) for path, _ in theirs.samples[:: max(1, len(theirs) // 64)]]
    number, count = {str(path): place for place, (path, _) in enumerate(theirs.samples)}, len(some)
    whole = [decode(path, 3) for path in some]
    kept = [Preparation(view.resize, "torch").prepare(image, view) for image in whole]
    draws = uniform(torch.arange(count), seed=0, epoch=0, stream="box", draws=2 * ATTEMPTS + 2)

    def boxes(sizes: list[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
        height, width = torch.tensor(sizes).unbind(1)
        return [tuple(box) for box in random_boxes(draws, height, width).tolist()]

    of_whole = boxes([(image.height, image.width) for image in whole])
    of_kept = boxes([(entry.pixels.shape[0], entry.pixels.shape[1]) for entry in kept])
    cut = [Kept(entry, view, "torch").cut(box) for entry, box in zip(kept, of_kept, strict=True)]
    opened = torch.stack(cut).contiguous()
    inputs, index = torch.empty(opened.shape), torch.arange(count)

    def augmented(change: Augment) -> Tensor:
        return change(opened, index, seed=0, epoch=0, opened=True, out=inputs)

    steps: dict[str, Callable[[], object]] = {
        "ImageFolder, all of it": lambda: torch.stack([theirs[number[str(path)]][0] for path in some]),
        "decode": lambda: [decode(path, 3) for path in some],
        "decode, crop, resize by Pillow": lambda: [
            Picture(path, view).cut(box) for path, box in zip(some, of_whole, strict=True)
        ],
        "decode, crop, resize by torch": lambda: [
            Picture(path, view, "torch").cut(box) for path, box in zip(some, of_whole, strict=True)
        ],
        "crop, resize what is kept": lambda: [
            Kept(entry, view, "torch").cut(box) for entry, box in zip(kept, of_kept, strict=True)
        ],
        "flip, normalise": lambda: augmented(Augment(view, crop="resized")),
        "flip, jitter, normalise": lambda: augmented(Augment(view, crop="resized", jitter=0.4)),
    }
    seconds = alternate(*steps.values(), rounds=rounds, warmup=1, clock=time.process_time)
    for name, own in zip(steps, seconds, strict=True):
        least = min(own)
        print(
            f"{name + ', ms an image:':46} {1000 * least / count:.3f}, ImageFolder / this {min(seconds[0]) / least:.2f}"
        )


def compare(root: Path, strength: float, rounds: int) -> None:
    theirs, view = image_folder(root, strength), photo_view(SIZE)
    paths = tuple(Path(path).relative_to(root).as_posix() for path, _ in theirs.samples)
    files = OnDisk(paths, torch.tensor(theirs.targets), root, view)
    augment = Augment(view, crop="resized", jitter=strength)
    epochs = iter(range(1_000_000))

    def torchvision_epoch() -> None:
        for inputs, _ in DataLoader(theirs, BATCH, shuffle=True, num_workers=WORKERS):
            assert inputs.dtype == torch.float32

    def our_epoch(split: Split) -> None:
        epoch = next(epochs)
        plan = torch.randperm(len(files), generator=torch.Generator().manual_seed(epoch)).split(BATCH)
        for batch in split.batches(plan, augment=augment, epoch=epoch, workers=WORKERS):
            assert batch.inputs.dtype == torch.float32

    data = ImageData("folder", tuple(theirs.classes), files, None, files, view)
    by_torch = Caching("folder", resizing="torch").of(data, WORKERS, print).train
    start = time.perf_counter()
    kept = Caching("folder", str(root), str(root / "cache"), "auto", "torch").of(data, WORKERS, print).train
    print(f"built in {time.perf_counter() - start:.0f} s")
    sides: dict[str, Callable[[], None]] = {
        "torchvision": torchvision_epoch,
        "ours": lambda: our_epoch(files),
        "ours, resize=torch": lambda: our_epoch(by_torch),
        "ours, cache": lambda: our_epoch(kept),
    }
    used: dict[str, list[float]] = {name: [] for name in sides}

    def counted(name: str) -> Callable[[], None]:
        def epoch() -> None:
            before = processor_seconds()
            sides[name]()
            used[name].append(processor_seconds() - before)

        return epoch

    start = time.perf_counter()
    seconds = dict(zip(sides, alternate(*map(counted, sides), rounds=rounds, warmup=1), strict=True))
    print(f"{rounds} rounds in {time.perf_counter() - start:.0f} s{', with jitter' if strength else ''}")
    for name, own in seconds.items():
        print(f"{name + ', images/s:':28} {median([len(files) / each for each in own])}")
    for what, measured in (("time", seconds), ("processor time", used)):
        for name in list(sides)[1:]:
            both = zip(measured["torchvision"][-rounds:], measured[name][-rounds:], strict=True)
            ratios = [a / b for a, b in both]
            print(f"{f'{name}, ratio by {what}:':42} {median(ratios)}")


if __name__ == "__main__":
    main()
