"""Images a second of `pskd predict` on a folder of files, against a bare loop over batches of a DataLoader.

Both open the same JPEG files with the same number of worker processes, and put them through the same network. The bare
loop keeps the probabilities and nothing else; predict makes an answer of each image. Prints one ratio: 1 is as fast.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from side_by_side import alternate, median
from torch.utils.data import DataLoader, Dataset

from pskd.workbench import models
from pskd.workbench.data import View
from pskd.workbench.data.folder import MEAN, STD
from pskd.workbench.data.opening import BATCH
from pskd.workbench.tasks.classification.predictor import AboutClassifier, ClassPredictor

IMAGES, SIDE, WORKERS = 2000, 160, 2
VIEW = View(3, (64, 64), 73, MEAN, STD)


class Files(Dataset[torch.Tensor]):
    def __init__(self, files: list[str]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        return VIEW.open(self.files[index])


def bare(model: torch.nn.Module, files: list[str]) -> None:
    loader = DataLoader(Files(files), BATCH, num_workers=WORKERS)
    with torch.no_grad():
        torch.cat([model(VIEW.normalize(batch)).softmax(1) for batch in loader])


def main() -> None:
    torch.manual_seed(0)
    model = models.create("resnet20", 100).eval()
    about = AboutClassifier(
        task="classification", model={"name": "resnet20"}, classes=[str(c) for c in range(100)], view=VIEW.to_dict()
    )
    predictor = ClassPredictor(Path(), about, model, torch.device("cpu"))
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number in range(IMAGES):
            files.append(f"{folder}/{number}.jpg")
            coarse = Image.fromarray(draw.integers(0, 256, (10, 10, 3), dtype=np.uint8))
            coarse.resize((SIDE, SIDE)).save(files[-1])
        seconds = alternate(
            lambda: bare(model, files),
            lambda: [answer.to_dict() for answer in predictor.answers(files, workers=WORKERS)],  # type: ignore[union-attr]
            rounds=5,
            warmup=1,
        )
    ratios = [a / b for a, b in zip(*seconds, strict=True)]
    print(f"bare loop: {IMAGES / float(np.median(seconds[0])):,.0f} images/s")
    print(f"predict:   {IMAGES / float(np.median(seconds[1])):,.0f} images/s")
    print(f"ratio:     {median(ratios)}")


if __name__ == "__main__":
    main()
