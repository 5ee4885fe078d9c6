"""The callback in a real Trainer: the losses are those of a loop written by hand, also in pieces."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from banks import stored
from lightning.pytorch.callbacks import ModelCheckpoint
from processes import exit_code, in_children
from small_problem import BATCH, EPOCHS, PROBLEM, N, by_hand, in_batches, order
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pskd
from pskd.errors import PskdError
from pskd.integrations.lightning import EpochLoader, PSKDCallback

TRAIN = TensorDataset(PROBLEM.x, PROBLEM.y)


class Module(L.LightningModule):
    """As users write it: nothing in it knows of pskd."""

    def __init__(self) -> None:
        super().__init__()
        self.net = PROBLEM.net()
        self.set_criterion()
        self.losses: list[float] = []
        self.checked: list[tuple[float, float]] = []

    def set_criterion(self) -> None:
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = self.criterion(self(x), y)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.checked.append((self.criterion(self(x), y).item(), F.cross_entropy(self(x), y).item()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)


class Loader:
    """Its order is a function of the epoch, and it goes on where it was: what Lightning asks of a resumable loader."""

    def __init__(self, dataset: Any, batches: Callable[[int], list[list[int]]] = in_batches) -> None:
        self.dataset, self.batches, self.sampler, self.epoch, self.start = dataset, batches, self, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        batches = self.batches(self.epoch)
        for number in range(self.start, len(batches)):
            self.start = (number + 1) % len(batches)
            yield torch.utils.data.default_collate([self.dataset[i] for i in batches[number]])

    def __len__(self) -> int:
        return len(self.batches(0))

    def state_dict(self) -> dict[str, int]:
        return {"start": self.start}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["start"]


class Kept:
    """Batches that are made once: what is taken off one would be missing in the next epoch."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.batches = list(loader)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def trainer(*callbacks: Any, **settings: Any) -> L.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    checkpoints = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    usual = quiet | {"max_epochs": EPOCHS, "enable_checkpointing": checkpoints, "devices": 1}
    return L.Trainer(callbacks=list(callbacks), **(usual | settings))


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        yield


@pytest.mark.parametrize("memory", ["bank", "snapshot", "snapshot of the module"])
def test_losses_are_those_of_a_loop_by_hand(memory: str) -> None:
    module, net = Module(), PROBLEM.net()
    if memory == "bank":
        method, same, data = PROBLEM.bank(), PROBLEM.bank(), pskd.Indexed(TRAIN)
    else:
        part = module.net if memory == "snapshot" else module
        method, data = pskd.PSKD(EPOCHS, memory=pskd.Snapshot(part)), TRAIN
        same = pskd.PSKD(EPOCHS, memory=pskd.Snapshot(net))
    checks = DataLoader(TRAIN, BATCH)
    trainer(PSKDCallback(method), num_sanity_val_steps=1, limit_val_batches=2).fit(module, Loader(data), checks)
    assert module.losses == by_hand(same, net, in_batches)
    assert len(module.checked) == 1 + 2 * EPOCHS
    assert all(seen == plain for seen, plain in module.checked)
    assert set(module.state_dict()) == set(Module().state_dict())
    assert "forward" not in vars(module.criterion)


@pytest.mark.parametrize(
    ("settings", "by"),
    [({"precision": "bf16-mixed"}, {"precision": torch.bfloat16}), ({"accumulate_grad_batches": 2}, {"accumulate": 2})],
)
def test_precision_and_accumulation(settings: dict[str, Any], by: dict[str, Any]) -> None:
    module = Module()
    trainer(PSKDCallback(PROBLEM.bank()), **settings).fit(module, Loader(pskd.Indexed(TRAIN)))
    losses = by_hand(PROBLEM.bank(), PROBLEM.net(), in_batches, **by)
    assert module.losses == losses
    assert losses != by_hand(PROBLEM.bank(), PROBLEM.net(), in_batches)


@pytest.mark.parametrize("memory", ["bank", "snapshot"])
@pytest.mark.parametrize("stop", [6, 9, 10])
def test_resume_at_the_end_and_in_the_middle_of_an_epoch(tmp_path: Path, memory: str, stop: int) -> None:
    def run(**settings: Any) -> Module:
        module = Module()
        method = PROBLEM.bank() if memory == "bank" else pskd.PSKD(EPOCHS, memory=pskd.Snapshot(module.net))
        data = pskd.Indexed(TRAIN) if memory == "bank" else TRAIN
        saving = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=stop, save_top_k=-1)
        path = settings.pop("ckpt_path", None)
        fitted = trainer(PSKDCallback(method), *([] if path else [saving]), **settings)
        fitted.fit(module, Loader(data), ckpt_path=path, weights_only=True if path else None)
        return module

    whole = run()
    saved = tmp_path / f"step={stop}.ckpt"
    assert "PSKDCallback" in torch.load(saved, weights_only=True)["callbacks"]
    resumed = run(ckpt_path=saved)
    assert resumed.losses == whole.losses[stop:]
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name])


def planned(epoch: int) -> list[list[int]]:
    sampler = pskd.EpochSampler(N, BATCH, seed=3)
    sampler.set_epoch(epoch)
    return list(sampler)


def epoch_loader() -> EpochLoader:
    return EpochLoader(pskd.Indexed(TRAIN), pskd.EpochSampler(N, BATCH, seed=3))


def test_an_epoch_loader_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    def run(path: Path | None) -> Module:
        module = Module()
        saving = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=9, save_top_k=-1)
        trainer(PSKDCallback(PROBLEM.bank()), saving).fit(module, epoch_loader(), ckpt_path=path)
        return module

    whole = run(None)
    assert whole.losses == by_hand(PROBLEM.bank(), PROBLEM.net(), planned)
    assert run(tmp_path / "step=9.ckpt").losses == whole.losses[9:]


def test_an_epoch_that_is_cut_short_leaves_nothing_to_the_next() -> None:
    module = Module()
    trainer(PSKDCallback(PROBLEM.bank()), limit_train_batches=2).fit(module, epoch_loader())
    assert module.losses == by_hand(PROBLEM.bank(), PROBLEM.net(), lambda epoch: planned(epoch)[:2])


def test_a_batch_is_what_the_user_says_it_is() -> None:
    class Named(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            assert "index" not in batch
            return super().training_step((batch["x"], batch["y"]), batch_idx)

    class First(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch[1:], batch_idx)

    rows = [{"x": x, "y": y} for x, y in TRAIN]
    first = [(i, x, y) for i, (x, y) in enumerate(TRAIN)]
    wanted = by_hand(PROBLEM.bank(), PROBLEM.net(), in_batches)
    for module, data, where in (
        (Named(), pskd.Indexed(rows), None),
        (Module(), first, 0),
        (First(), first, lambda batch: batch[0]),
    ):
        trainer(PSKDCallback(PROBLEM.bank(), index=where)).fit(module, Loader(data))
        assert module.losses == wanted
    kept = Kept(DataLoader(pskd.Indexed(TRAIN), BATCH))
    trainer(PSKDCallback(PROBLEM.bank())).fit(Module(), kept)
    assert all(len(batch) == 3 for batch in kept)


def test_a_loss_may_be_any_callable() -> None:
    class Function(Module):
        def set_criterion(self) -> None:
            self.criterion = F.cross_entropy

    class Own(Module):
        def set_criterion(self) -> None:
            return

        def criterion(self, logits: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(logits, targets)

    class Nested(Module):
        def set_criterion(self) -> None:
            self.parts = nn.ModuleDict({"loss": nn.CrossEntropyLoss()})

        def criterion(self, logits: Tensor, targets: Tensor) -> Tensor:
            return self.parts["loss"](logits, targets)

    class Itself(Module):
        def set_criterion(self) -> None:
            self.method = PROBLEM.bank()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y, index = batch
            loss = self.method(self(x), y, index=index)
            self.losses.append(loss.item())
            return loss

    wanted = by_hand(PROBLEM.bank(), PROBLEM.net(), in_batches)
    itself = Itself()
    for module, callback in (
        (Function(), PSKDCallback(PROBLEM.bank())),
        (Own(), PSKDCallback(PROBLEM.bank())),
        (Nested(), PSKDCallback(PROBLEM.bank(), criterion="parts.loss")),
        (itself, PSKDCallback(itself.method, criterion=None)),
    ):
        before = dict(vars(module))
        trainer(callback).fit(module, Loader(pskd.Indexed(TRAIN)))
        assert module.losses == wanted
        assert vars(module).get("criterion") is before.get("criterion")


def refusal(module: L.LightningModule, *callback: Any, data: Any = None, **settings: Any) -> str:
    with pytest.raises(PskdError) as refused:
        trainer(PSKDCallback(*callback), **settings).fit(module, data or Loader(pskd.Indexed(TRAIN)))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_what_would_go_wrong_silently_is_refused() -> None:
    class Twice(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) + super().training_step(batch, batch_idx)

    class Another(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return F.cross_entropy(self(batch[0]), batch[1])

    class Weighted(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.criterion(self(batch[0]), batch[1], sample_weight=1)

    assert "called a second time" in refusal(Twice(), PROBLEM.bank())
    assert "did not call it" in refusal(Another(), PROBLEM.bank())
    assert "called with sample_weight" in refusal(Weighted(), PROBLEM.bank())
    assert "did you mean criterion?" in refusal(Module(), PROBLEM.bank(), "criterium")
    half = PROBLEM.bank(host=0, hosts=2)  # a bank for each of two processes, of which one would be saved
    assert "1 hosts train, but the bank is made for 2" in refusal(Module(), half)
    assert "epochs=3, but Trainer(max_epochs=4)" in refusal(Module(), PROBLEM.bank(), max_epochs=4)
    spoilt = Module()
    assert "a batch that is a Tensor at -1" in refusal(spoilt, PROBLEM.bank(), data=DataLoader(PROBLEM.x))
    assert "forward" not in vars(spoilt.criterion)
    with pytest.raises(PskdError, match="CSKD needs partner_logits"):
        PSKDCallback(pskd.CSKD())
    smooth = Module()
    smooth.criterion.label_smoothing = 0.1
    with pytest.warns(UserWarning, match="label_smoothing of the plain loss count in validation only"):
        trainer(PSKDCallback(PROBLEM.bank())).fit(smooth, Loader(pskd.Indexed(TRAIN)))
    trainer(PSKDCallback(PROBLEM.bank()), fast_dev_run=True).fit(Module(), Loader(pskd.Indexed(TRAIN)))


def pairs(epoch: int) -> list[list[int]]:
    """Steps of two processes with four samples each: of one with even and of one with odd numbers."""
    even, odd = ([i for i in order(epoch) if i % 2 == rank] for rank in (0, 1))
    return [even[start : start + BATCH] + odd[start : start + BATCH] for start in range(0, N // 2, BATCH)]


def fit_in_a_pair(folder: Path, name: str, rank: int, bank: dict[str, Any], **settings: Any) -> None:
    """One of two processes: its losses go to a file, checkpoints of step 4, in the middle, and of the end too."""
    torch.set_num_threads(1)
    os.environ["TORCHELASTIC_RUN_ID"] = "none"  # as torchrun says it
    module, path = Module(), settings.pop("ckpt_path", None)
    own = Loader(pskd.Indexed(TRAIN), lambda epoch: [step[rank * BATCH :][:BATCH] for step in pairs(epoch)])
    saving = ModelCheckpoint(folder, filename=name + "-{step}", every_n_train_steps=4, save_top_k=-1)
    fitted = trainer(PSKDCallback(PROBLEM.bank(**bank)), saving, strategy="ddp", **settings)
    fitted.fit(module, own, ckpt_path=path, weights_only=True if path else None)
    fitted.save_checkpoint(folder / f"{name} end.ckpt")
    torch.save(module.losses, folder / f"{name} {rank}")


def check_pair(folder: Path, name: str, start: int = 0) -> None:
    """Losses and rows are those of one process that sees both processes' samples."""
    method = PROBLEM.bank()
    wanted = by_hand(method, PROBLEM.net(), pairs)
    losses = [torch.load(folder / f"{name} {rank}", weights_only=True) for rank in (0, 1)]
    torch.testing.assert_close(torch.tensor(losses).mean(0), torch.tensor(wanted[start:]))
    saved = torch.load(folder / f"{name} end.ckpt", weights_only=True)["callbacks"]["PSKDCallback"]
    loaded = PROBLEM.bank()
    PSKDCallback(loaded).load_state_dict(saved)
    torch.testing.assert_close(stored(loaded.memory.state_dict()), stored(method.memory.state_dict()))


def test_two_processes_share_a_file_and_resume(tmp_path: Path) -> None:
    def work() -> None:
        rank = int(os.environ["RANK"])
        fit_in_a_pair(tmp_path, "whole", rank, {"path": tmp_path / "scratch"}, devices=2)
        again = {"path": tmp_path / "other scratch"}
        fit_in_a_pair(tmp_path, "again", rank, again, devices=2, ckpt_path=tmp_path / "whole-step=4.ckpt")

    assert [exit_code(child) for child in in_children(work, 2)] == [0, 0]
    check_pair(tmp_path, "whole")
    check_pair(tmp_path, "again", start=4)


def test_two_hosts_put_their_rows_into_one_checkpoint(tmp_path: Path) -> None:
    def work() -> None:
        rank = int(os.environ["RANK"])
        fit_in_a_pair(tmp_path, "hosts", rank, {"host": rank, "hosts": 2}, devices=1, num_nodes=2)
        with pytest.raises(PskdError, match="2 hosts train, but the bank is made for 1"):
            fit_in_a_pair(tmp_path, "alone", rank, {"path": tmp_path / f"{rank}"}, devices=1, num_nodes=2)

    assert [exit_code(child) for child in in_children(work, 1, hosts=2)] == [0, 0]
    check_pair(tmp_path, "hosts")


def test_without_lightning_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "pskd.integrations.lightning")
    with pytest.raises(ModuleNotFoundError, match=r"needs lightning.pytorch: pip install -e '\.\[lightning\]'"):
        importlib.import_module("pskd.integrations.lightning")
