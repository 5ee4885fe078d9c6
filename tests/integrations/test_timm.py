"""The task and its data set with timm's own loader, prefetcher, checkpoints and readers."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from banks import stored
from PIL import Image
from processes import exit_code, in_children
from timm.data import FastCollateMixup, create_dataset, create_loader
from timm.task import resume_task_checkpoint
from timm.utils import CheckpointSaver
from torch import Tensor, nn

import pskd
from pskd.errors import PskdError
from pskd.integrations.timm import IndexedTargets, PSKDTask

N, K, EPOCHS, SHADE = 12, 3, 3, 20
EXAMPLE = Path(__file__).parents[2] / "examples" / "timm_train.py"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Image ``number`` has the shade ``20 * number`` all over, and its class is ``number // 4``."""
    root = tmp_path_factory.mktemp("images")
    for number in range(N):
        place = root / "train" / f"class{number // 4}"
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (SHADE * number,) * 3).save(place / f"{number:02}.png")
    return root


def loader_of(root: Path, batch_size: int = 4, **settings: Any) -> Any:
    data = IndexedTargets(create_dataset("", root=root, split="train"))
    usual = {"is_training": True, "no_aug": True, "mean": (0.0,) * 3, "std": (1.0,) * 3, "num_workers": 0}
    settings = usual | settings
    persistent = settings["num_workers"] > 0  # timm 1.0.27 does not look at this itself
    return create_loader(
        data, (3, 8, 8), batch_size, device=torch.device("cpu"), persistent_workers=persistent, **settings
    )


def taken_apart(target: Tensor) -> tuple[list[int], list[int]]:
    return (target % 2**24).tolist(), (target // 2**24).tolist()


def seen_by(images: Tensor) -> list[int]:
    """Which pictures these are, by their shade."""
    return (images.amax((1, 2, 3)) * 255 / SHADE).round().int().tolist()


@pytest.mark.parametrize("settings", [{}, {"use_prefetcher": False}, {"num_workers": 2}])
def test_index_and_label_are_those_of_the_image(images: Path, settings: dict[str, Any]) -> None:
    loader = loader_of(images, **settings)
    everything = []
    for batch, target in loader:
        labels, index = taken_apart(target)
        assert index == seen_by(batch)
        assert labels == [number // 4 for number in index]
        everything += index
    assert sorted(everything) == list(range(N))
    assert loader.dataset.transform is loader.dataset.dataset.transform is not None
    assert loader.dataset.filename(3, basename=True) == "03.png"


def test_an_unreadable_image_takes_no_other_s_row(images: Path, tmp_path: Path) -> None:
    """timm gives the next image in its place: label and index are the next one's, and the damaged one has no row."""
    for path in sorted(images.rglob("*.png")):
        (tmp_path / path.relative_to(images)).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path.relative_to(images)).write_bytes(path.read_bytes())
    for number in (3, 7):  # the last ones of their classes: the next image has another label
        next(tmp_path.rglob(f"{number:02}.png")).write_bytes(b"no image")
    for workers in (0, 1):
        loader = loader_of(tmp_path, num_workers=workers)
        method = pskd.PSKD(EPOCHS, memory=pskd.PredictionBank(N, K))
        task = PSKDTask(net(), method, loader.dataset, verbose=False)
        for epoch in range(2):  # in the second one a row under a wrong index would be refused for its label
            loader.dataset.set_epoch(epoch)
            for batch, target in loader:
                labels, index = taken_apart(target)
                assert index == seen_by(batch)
                assert labels == [number // 4 for number in index]
                task(batch, target)
        written = stored(method.memory.state_dict())
        assert [number for number in range(N) if not written.epoch[number]] == [3, 7]
        assert all(written.label[number] == number // 4 for number in range(N) if number not in (3, 7))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(12, K))


def trained(
    root: Path, memory: str, epochs: range, saver_in: Path | None = None, resume: Path | None = None
) -> tuple[list[float], list[tuple[Tensor, Tensor]]]:
    """The losses of timm's loop, and its batches."""
    model, loader = net(), loader_of(root)
    data = loader.dataset
    past = pskd.PredictionBank(N, K, dtype=torch.float32) if memory == "bank" else pskd.Snapshot(model)
    task = PSKDTask(model, pskd.PSKD(EPOCHS, memory=past), data, verbose=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    if resume is not None:
        assert resume_task_checkpoint(task, str(resume), optimizer) == epochs[0]
    losses, batches = [], []
    for epoch in epochs:
        data.set_epoch(epoch)
        torch.manual_seed(epoch)  # of the order
        for images, target in loader:
            loss = task(images, target)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            batches.append((images, target))
        if saver_in is not None:
            CheckpointSaver(model, optimizer, task=task, checkpoint_dir=str(saver_in)).save_checkpoint(epoch, metric=0)
    return losses, batches


@pytest.mark.parametrize("memory", ["bank", "snapshot"])
def test_losses_are_those_of_a_loop_by_hand_and_go_on_after_a_resume(images: Path, tmp_path: Path, memory: str) -> None:
    losses, batches = trained(images, memory, range(EPOCHS), tmp_path)
    model = net()
    past = pskd.PredictionBank(N, K, dtype=torch.float32) if memory == "bank" else pskd.Snapshot(model)
    method = pskd.PSKD(EPOCHS, memory=past)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for step, (batch, target) in enumerate(batches):
        if step % 3 == 0:
            method.start_epoch(step // 3)
        labels, index = map(torch.tensor, taken_apart(target))
        loss = method(model(batch), labels, index=index, inputs=batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert loss.item() == losses[step]
    again, _ = trained(images, memory, range(1, EPOCHS), resume=tmp_path / "checkpoint-0.pth.tar")
    assert again == losses[3:]


def test_two_processes_share_a_bank_and_learn_what_one_does(images: Path, tmp_path: Path) -> None:
    def work() -> None:
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo")
        loader, model = loader_of(images, batch_size=2, distributed=True), net()
        bank = pskd.PredictionBank(N, K, path=tmp_path / "scratch", dtype=torch.float32)
        task = PSKDTask(model, pskd.PSKD(EPOCHS, memory=bank), loader.dataset, verbose=False).prepare_distributed()
        optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.5), []
        for epoch in range(2):
            loader.dataset.set_epoch(epoch)
            loader.sampler.set_epoch(epoch)
            for batch, target in loader:
                loss = task(batch, target)["loss"]
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen.append((batch, target, loss.detach()))
        torch.distributed.barrier()
        torch.save(seen, tmp_path / os.environ["RANK"])
        if os.environ["RANK"] == "0":
            torch.save(task.get_checkpoint_state(), tmp_path / "saved")

    assert [exit_code(child) for child in in_children(work, 2)] == [0, 0]
    model, method = net(), pskd.PSKD(EPOCHS, memory=pskd.PredictionBank(N, K, dtype=torch.float32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    pairs = zip(*(torch.load(tmp_path / rank, weights_only=True) for rank in "01"), strict=True)
    for step, pair in enumerate(pairs):
        batch, target, losses = map(torch.cat, zip(*((*it[:2], it[2][None]) for it in pair), strict=True))
        if step % 3 == 0:
            method.start_epoch(step // 3)
        labels, index = map(torch.tensor, taken_apart(target))
        loss = method(model(batch), labels, index=index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(losses.mean(), loss.detach())
    assert step == 5
    records, same = (
        stored(state["memory"])
        for state in (torch.load(tmp_path / "saved", weights_only=True)["task_state"], method.state_dict())
    )
    torch.testing.assert_close(records, same)


def test_what_does_not_fit_is_refused(images: Path) -> None:
    loader = loader_of(images)
    bank = pskd.PSKD(EPOCHS, memory=pskd.PredictionBank(N, K))
    with pytest.raises(PskdError, match=r"IndexedTargets\(dataset_train\) is wanted, not a ImageDataset"):
        PSKDTask(net(), bank, loader.dataset.dataset)
    with pytest.raises(PskdError, match="a bank needs the index"):
        PSKDTask(net(), bank)
    with pytest.raises(PskdError, match="CSKD needs partner_logits"):
        PSKDTask(net(), pskd.CSKD(), loader.dataset)
    with pytest.raises(PskdError, match="cannot be spread over hosts"):
        PSKDTask(net(), pskd.PSKD(EPOCHS, memory=pskd.PredictionBank(N, K, hosts=2)), loader.dataset)
    task = PSKDTask(net(), bank, loader.dataset, verbose=False)
    loader.dataset.set_epoch(0)
    with pytest.raises(PskdError, match="leave out timm's Mixup"):
        task(torch.rand(4, 3, 8, 8), torch.rand(4, K))
    with pytest.raises(RuntimeError, match="out of bounds"):  # timm's Mixup with prefetcher, before the task is asked
        next(iter(loader_of(images, collate_fn=FastCollateMixup(mixup_alpha=1.0, num_classes=K))))
    with pytest.raises(PskdError, match="a stream has no indices"):
        IndexedTargets(torch.utils.data.ChainDataset([]))
    with pytest.raises(PskdError, match="target of sample 0 is -1"):
        IndexedTargets([(torch.rand(3), -1)])[0]


def test_labels_alone_without_a_data_set() -> None:
    model = net()
    method = pskd.PSKD(EPOCHS, memory=pskd.Snapshot(model))
    task = PSKDTask(model, method, verbose=False)
    method.start_epoch(0)
    result = task(torch.rand(4, 3, 8, 8), torch.arange(4) % K)
    assert result["loss"].requires_grad
    assert result["output"].shape == (4, K)


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert sum("# changed" in line for line in EXAMPLE.read_text().splitlines()) == 2

    def run(*words: str) -> list[float]:
        monkeypatch.setattr(sys, "argv", ["timm_train.py", "--output", str(tmp_path), *words])
        runpy.run_path(str(EXAMPLE), run_name="__main__")
        return [float(loss) for loss in re.findall(r"loss ([\d.]+)", capsys.readouterr().out)]

    losses = run("--epochs", "3")
    assert losses[0] > losses[1] > losses[2]
    assert len(run("--epochs", "3", "--resume", str(tmp_path / "checkpoint-0.pth.tar"))) == 2


def test_without_timm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm.task", None)
    monkeypatch.delitem(sys.modules, "pskd.integrations.timm")
    with pytest.raises(ModuleNotFoundError, match=r"needs timm.task: pip install -e '\.\[timm\]'"):
        importlib.import_module("pskd.integrations.timm")
