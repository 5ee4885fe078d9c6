"""The bones of timm's train.py with PS-KD: two lines of it change, both marked.

Without ``--data-dir`` it trains a tiny network on the embedded digits, for a few seconds; ``--resume`` continues from a
checkpoint of timm's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from timm import create_model
from timm.data import create_dataset, create_loader
from timm.optim import create_optimizer_v2
from timm.task import resume_task_checkpoint
from timm.utils import CheckpointSaver

import pskd
from pskd.integrations.timm import IndexedTargets, PSKDTask


def digits(folder: Path) -> Path:
    """The embedded digits as a folder of images, a folder for each class."""
    from PIL import Image
    from sklearn.datasets import load_digits

    data = load_digits()
    for number, (pixels, label) in enumerate(zip(data.images[:200], data.target[:200], strict=True)):
        place = folder / "train" / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15.9).astype("uint8")).save(place / f"{number}.png")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", help="a folder that has train/CLASS/IMAGE")
    parser.add_argument("--output", default="runs/timm")
    parser.add_argument("--model", default="test_resnet")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--resume", help="a checkpoint, such as runs/timm/last.pth.tar")
    args = parser.parse_args()

    device, output = torch.device("cpu"), Path(args.output)
    output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    root = Path(args.data_dir) if args.data_dir else digits(output / "digits")
    dataset_train = IndexedTargets(create_dataset("", root=root, split="train"))  # changed: it was create_dataset(...)
    classes = len(dataset_train.reader.class_to_idx)
    model = create_model(args.model, num_classes=classes)
    method = pskd.PSKD(args.epochs, memory=pskd.PredictionBank(len(dataset_train), classes))
    task = PSKDTask(model, method, dataset_train, device=device)  # changed: it was ClassificationTask(model, criterion)

    size = (3, args.image_size, args.image_size)
    loader = create_loader(
        dataset_train,
        size,
        args.batch_size,
        is_training=True,
        scale=(0.8, 1.0),
        hflip=0.0,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        device=device,
    )
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-2)
    start = (resume_task_checkpoint(task, args.resume, optimizer) or 0) if args.resume else 0
    saver = CheckpointSaver(model, optimizer, task=task, checkpoint_dir=str(output), recovery_dir=str(output))
    for epoch in range(start, args.epochs):
        loader.dataset.set_epoch(epoch)
        model.train()
        losses = []
        for images, target in loader:
            result = task(images, target)
            optimizer.zero_grad()
            result["loss"].backward()
            optimizer.step()
            losses.append(result["loss"].item())
        saver.save_checkpoint(epoch, metric=-losses[-1])
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.4f}, alpha {method.alpha_t:.2f}")


if __name__ == "__main__":
    main()
