"""Seconds for a page over 200 runs of CIFAR-100's size (at most 20), and its megabytes (at most 5).

The runs are made up: 8 models x 5 methods x 5 seeds, 300 epochs, 10,000 test images of 100 classes. 5,000 training
samples are recorded in each epoch.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from pskd.metrics import functional
from pskd.workbench.analysis.history import History
from pskd.workbench.report.page import report
from pskd.workbench.runs.group import Group
from pskd.workbench.study.cells import Study, StudyFile
from pskd.workbench.tasks.base import Shown

MODELS, SEEDS, EPOCHS, TEST, TRAIN, CLASSES = 8, 5, 300, 10_000, 5_000, 100


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        study = made_up(Path(folder))
        print(f"{len(study.cells())} runs")
        begun = time.perf_counter()
        report([study.folder], Path(folder) / "report.html")
        print(f"seconds: {time.perf_counter() - begun:.1f} (at most 20)")
        print(f"megabytes: {(Path(folder) / 'report.html').stat().st_size / 1e6:.2f} (at most 5)")


def made_up(
    folder: Path,
    *,
    models: int = MODELS,
    seeds: int = SEEDS,
    epochs: int = EPOCHS,
    test: int = TEST,
    train: int = TRAIN,
    classes: int = CLASSES,
) -> Study:
    """A study of so many models, five methods and so many seeds, finished."""
    methods = ("hard", "label_smoothing", "cs_kd", "tf_kd", "ps_kd")
    axes = {
        "model": {f"model {number}": {"model.width": 4 + number} for number in range(models)},
        "method": list(methods),
        "seed": list(range(seeds)),
    }
    study = Study("many", StudyFile(about="made up", recipe="digits", axes=axes), (), folder / "study", "many")
    study.save()
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (test,), generator=generator)
    history = recorded(folder / "history.bin", generator, train, epochs)
    for key, cell in study.cells().items():
        run = study.run_folder(key)
        run.mkdir()
        logits = torch.randn(test, classes, generator=generator)
        logits[torch.arange(test), labels] += 3
        metrics = functional.summarize(functional.score_samples(logits, labels, from_logits=True))
        np.savez(
            run / "predictions.npz",
            probs=torch.softmax(logits, 1).numpy(),
            labels=labels.numpy(),
            classes=np.array([f"class {number}" for number in range(classes)]),
            fingerprint=np.array("made up"),
        )
        (run / "config.yaml").write_text(cell.config.to_yaml())
        records = [
            {"epoch": epoch + 1, "train_loss": 1 / (epoch + 1), "test": metrics}
            | ({"alpha_t": 0.8 * epoch / epochs} if cell.config.method.name == "ps_kd" else {})
            for epoch in range(epochs)
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        (run / "history.bin").hardlink_to(history)
        origin = {"epoch": epochs, "parameters": 1, "seconds": {"training": 1.0, "per_epoch": 1.0}, "processes": 1}
        origin |= {"device": "cpu", "versions": {}, "git": None, "data_fingerprint": "made up"}
        origin |= {"seed": cell.config.train.seed, "ece_bins": 10, "num_classes": classes, "training_samples": train}
        (run / "result.json").write_text(json.dumps(metrics | origin))
    return study


def recorded(path: Path, generator: torch.Generator, train: int, epochs: int) -> Path:
    history = History(path, train, torch.device("cpu"))
    history.cut(0)
    labels = torch.randint(10, (train,), generator=generator)
    for _ in range(epochs):
        history.batch(Shown(torch.arange(train), torch.randn(train, 10, generator=generator), labels, None))
        history.end_epoch(Group())
    return path


if __name__ == "__main__":
    main()
