"""The training loop: read it from top to bottom."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
from torch.optim.swa_utils import AveragedModel

from pskd import tasks
from pskd.checks import ValueChecks
from pskd.config import Config, flat
from pskd.engine import build, checkpoint, weights
from pskd.engine.checkpoint import Checkpoints
from pskd.engine.distributed import CONTINUE, SAVE, STOP, Group
from pskd.engine.files import kind_errors, write_atomic, write_json
from pskd.engine.progress import Progress
from pskd.engine.record import epoch_line, provenance
from pskd.engine.run import RunFolder
from pskd.errors import PskdError
from pskd.memory.snapshot import unwrapped
from pskd.methods.ps_kd import PSKD
from pskd.metrics.catalogue import METRICS
from pskd.tasks.base import Task


class Interrupted(Exception):
    """The run was asked to stop, has written a checkpoint and can be resumed."""

    def __init__(self, signal_number: int, folder: Path) -> None:
        self.exit_code = 128 + signal_number
        super().__init__(f"stopped; continue with: pskd train --resume --out {folder}")


def train(config: Config | None, out: Path, *, resume: bool = False) -> dict[str, Any]:
    """Train in the run folder ``out`` and return what ``result.json`` holds.

    With ``resume`` a run that is there goes on from its last checkpoint, or is returned as it is if it has finished.
    """
    run = RunFolder(out)
    if int(os.environ.get("RANK", "0")) == 0:
        config = run.claim(config, resume=resume)
    elif resume and run.config_file.exists():
        config = run.config()
    assert config is not None
    try:
        if resume and run.result_file.exists():
            return run.result()
        task = tasks.create(config)
        with accelerator(config, out) as devices, kind_errors("writing"):
            return Trainer(config, task, run, devices).fit()
    finally:
        run.release()


class Trainer:
    """The state of a run, and what moves it forward."""

    def __init__(self, config: Config, task: Task, run: RunFolder, accelerator: Accelerator) -> None:
        self.config, self.task, self.run, self.accelerator = config, task, run, accelerator
        self.settings = config.train
        self.device = accelerator.device
        self.group = Group()
        if self.settings.threads is not None:
            torch.set_num_threads(self.settings.threads)
        torch.manual_seed(self.settings.seed)
        model = task.model().to(self.device)
        if self.settings.channels_last:
            model = model.to(memory_format=torch.channels_last)
        self.optimizer = accelerator.prepare_optimizer(build.optimizer(model, config.optim))
        self.model = accelerator.prepare_model(torch.compile(model) if self.settings.compile else model)
        self.steps_per_epoch = len(task.plan(0, self.group))
        calls = self.steps_per_epoch * self.settings.accumulate
        self.method = build.method(config, task, model, calls, run.path, self.group)
        torch.manual_seed(self.settings.seed + 1 + self.group.rank)  # each process drops out other units
        self.checkpoints = Checkpoints(
            run.checkpoints, self.settings.keep_last, leader=self.group.leader, barrier=self.group.barrier
        )
        # The mean of the weights at the ends of the last epochs.
        self.average = AveragedModel(self.weights, use_buffers=True) if self.settings.average > 1 else None
        # Where the run is: `step` optimizer steps of `epoch` are done, with this sum of losses so far.
        self.epoch = self.step = 0
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self.best: dict[str, Any] | None = None
        self.epoch_seconds: list[float] = []
        self.seconds_before = 0.0  # spent in this epoch by the processes before this one
        self.saved_at = time.monotonic()
        self.checks = ValueChecks()

    @property
    def weights(self) -> nn.Module:
        return unwrapped(self.model)

    def fit(self) -> dict[str, Any]:
        notes = list(self.task.notes)
        if self.group.leader:
            self.run.begin(self.config)
            self.checkpoints.clean()
        if (newest := self.checkpoints.newest(notes.append)) is not None:
            self.load(newest)
            notes.append(f"resuming at epoch {self.epoch + 1}, step {self.step}")
        if self.group.leader:
            self.run.keep_metrics(self.epoch)
        self.group.barrier()
        epochs = self.settings.epochs
        total, done = epochs * self.steps_per_epoch, self.epoch * self.steps_per_epoch + self.step
        shown = self.group.leader
        with Progress(total, done, self.task.unit, shown=shown, log=self.run.log) as progress, _signals() as asked:
            for note in notes:
                progress.line(note)
            while self.epoch < epochs:
                self.train_epoch(progress, asked)
                self.end_epoch(progress)
            return self.finish()

    def train_epoch(self, progress: Progress, asked: list[int]) -> None:
        """The rest of the current epoch."""
        config, settings, method = self.config, self.settings, self.method
        self.begun = time.monotonic()
        progress.start_epoch()
        method.start_epoch(self.epoch)
        self.model.train()
        plan = self.task.plan(self.epoch, self.group)
        self.counted = sum(step.total for step in plan)  # samples or tokens of the whole epoch
        plan = plan[self.step :]
        batches = self.task.batches(plan, self.epoch, self.device)
        loss = torch.zeros((), device=self.device)
        for step in plan:
            progressed = self.epoch + self.step / self.steps_per_epoch
            lr = config.optim.lr * config.optim.factor(progressed, settings.epochs, self.steps_per_epoch)
            for parameters in self.optimizer.param_groups:
                parameters["lr"] = lr
            for part, real in enumerate(step.real):
                batch = next(batches)
                wait = part + 1 < len(step.real)
                with self.accelerator.no_sync(self.model) if wait else contextlib.nullcontext():
                    with self.accelerator.autocast():
                        loss = self.task.loss(self.model, batch, real, method).total
                    self.checks.settle()
                    self.checks.require_none(~torch.isfinite(loss.detach()), self.not_finite(lr))
                    if part == 0:
                        # Here and not before the forward pass: what it frees there, the allocator gives back to the
                        # system, and a CPU then loses 4% of a step to page faults.
                        self.optimizer.zero_grad()
                    # Processes average their gradients: so each gives its part of the sum over all real samples.
                    self.accelerator.backward(loss * (real * self.group.world / step.total))
                self.loss_sum += loss.detach() * real
            if settings.clip_norm is not None:
                self.accelerator.clip_grad_norm_(self.model.parameters(), settings.clip_norm)
            self.optimizer.step()
            self.step += 1
            progress.step(step.total, lambda loss=loss: self.describe(loss))  # type: ignore[misc]
            decision = self.group.agree(STOP if asked else SAVE if self.save_is_due() else CONTINUE)
            if decision >= SAVE and self.step < self.steps_per_epoch:
                self.save()
                if decision == STOP:
                    raise Interrupted(asked[0] if asked else signal.SIGTERM, self.run.path)
        self.group.settle()  # a wish that came up in the last step comes up again
        self.group.copy_buffers(self.weights)

    def end_epoch(self, progress: Progress) -> None:
        """Evaluate, record and, when it is time, save."""
        seconds = self.seconds_before + time.monotonic() - self.begun
        speed = progress.speed()
        record: dict[str, Any] = {"epoch": self.epoch + 1}
        record["train_loss"] = float(self.group.sum(self.loss_sum.cpu())) / self.counted
        record["lr"] = self.optimizer.param_groups[0]["lr"]
        if isinstance(self.method, PSKD):
            record["alpha_t"] = self.method.alpha_t
        split, by = "val" if self.task.has_validation else "test", self.task.selects_by
        if (self.epoch + 1) % self.config.eval.every == 0:
            metrics = self.task.evaluate(self.weights, split, self.device, self.group).metrics
            record[split] = metrics
            if split == "val" and (self.best is None or METRICS[by].better(metrics[by], self.best["val"][by])):
                self.best = {"epoch": self.epoch + 1, "val": metrics}
                if self.group.leader:
                    weights.save(self.weights, self.run.best_model_file, self.task.metadata())
        record["seconds"] = seconds
        self.epoch_seconds.append(seconds)
        self.epoch, self.step, self.seconds_before = self.epoch + 1, 0, 0.0
        if self.average is not None and self.epoch > self.settings.epochs - self.settings.average:
            self.average.update_parameters(self.weights)
        self.loss_sum.zero_()
        if self.group.leader:
            self.run.append_metrics(record)
        self.accelerator.log({k: v for k, v in flat(record, "/").items() if k != "epoch"}, step=self.epoch)
        line = epoch_line(record, self.settings.epochs, speed, self.task.unit, progress.left())
        progress.line(line, minor=split not in record)
        if self.group.sum(torch.tensor(float(self.group.leader and self.save_is_due(epoch_ends=True)))):
            self.save()

    def finish(self) -> dict[str, Any]:
        """The last epoch's results; the best epoch's too, if there is a validation split to choose it on."""
        if self.average is not None:
            self.weights.load_state_dict(self.average.module.state_dict())
        final = self.task.evaluate(self.weights, "test", self.device, self.group)
        result: dict[str, Any] = {**final.metrics, "signatures": final.signatures, "epoch": self.epoch}
        if self.task.has_validation:
            result["val"] = self.task.evaluate(self.weights, "val", self.device, self.group).metrics
        if self.group.leader:
            weights.save(self.weights, self.run.model_file, self.task.metadata())
        if self.best is not None:
            self.group.barrier()
            weights.load(self.weights, self.run.best_model_file)
            test = self.task.evaluate(self.weights, "test", self.device, self.group).metrics
            result["best"] = {**self.best, "test": test}
        result.update(provenance(self.config, self.task, self.weights, self.group.world, self.epoch_seconds))
        if self.group.leader:
            arrays = io.BytesIO()
            np.savez(arrays, allow_pickle=False, **final.predictions)
            write_atomic(self.run.predictions_file, arrays.getvalue())
            write_json(self.run.result_file, result)
        self.group.barrier()
        return result

    def save(self) -> None:
        """Write a checkpoint of this very moment."""
        here: dict[str, Any] = {
            "epoch": self.epoch,
            "step": self.step,
            "best": self.best,
            "epoch_seconds": self.epoch_seconds,
        }
        here["seconds"] = self.seconds_before + (time.monotonic() - self.begun if self.step else 0.0)
        own: dict[str, Any] = {"loss_sum": self.loss_sum, "rng": torch.get_rng_state()}
        if self.device.type == "cuda":
            own["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        parts: dict[str, Any] = {f"process-{self.group.rank}": own}
        if self.group.leader:
            parts["progress"] = here
            parts["model"] = self.weights.state_dict()
            parts["optimizer"] = self.optimizer.state_dict()
            parts["method"] = self.method.state_dict()
            if self.average is not None:
                parts["average"] = self.average.state_dict()
            if self.accelerator.scaler is not None:
                parts["scaler"] = self.accelerator.scaler.state_dict()
        self.checkpoints.save(self.epoch * self.steps_per_epoch + self.step, parts)
        self.saved_at = time.monotonic()

    def load(self, folder: Path) -> None:
        """Continue as if the process that wrote this checkpoint had never stopped."""
        here = checkpoint.load(folder, "progress")
        self.epoch, self.step, self.best = here["epoch"], here["step"], here["best"]
        self.epoch_seconds, self.seconds_before = here["epoch_seconds"], here["seconds"]
        self.weights.load_state_dict(checkpoint.load(folder, "model"))
        self.optimizer.load_state_dict(checkpoint.load(folder, "optimizer"))
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(checkpoint.load(folder, "scaler"))
        self.method.load_state_dict(checkpoint.load(folder, "method"))
        if self.average is not None:
            self.average.load_state_dict(checkpoint.load(folder, "average"))
        if (folder / f"process-{self.group.rank}.pt").exists():
            own = checkpoint.load(folder, f"process-{self.group.rank}")
            self.loss_sum.copy_(own["loss_sum"])
            torch.set_rng_state(own["rng"])
            if "cuda_rng" in own:
                torch.cuda.set_rng_state(own["cuda_rng"], self.device)
        self.group.barrier()

    def save_is_due(self, *, epoch_ends: bool = False) -> bool:
        number, unit = self.settings.save_interval
        if unit == "minutes":
            return time.monotonic() - self.saved_at >= 60 * number
        if unit == "steps":
            done = self.epoch * self.steps_per_epoch + self.step
            return done % max(1, round(number)) == 0
        return epoch_ends and self.epoch % max(1, round(number)) == 0

    def not_finite(self, lr: float) -> Callable[[int], str]:
        where = f"epoch {self.epoch + 1}, step {self.step + 1}, learning rate {lr:g}"

        def message(_: int) -> str:
            good = self.checkpoints.steps()
            saved = f"the last checkpoint is {self.run.checkpoints / f'{good[-1]:09d}'}" if good else "none is saved"
            return f"the loss is not finite in {where}; {saved}: lower optim.lr, or set train.clip_norm"

        return message

    def describe(self, loss: torch.Tensor) -> str:
        alpha = f" · alpha {self.method.alpha_t:.3f}" if isinstance(self.method, PSKD) else ""
        return f"epoch {self.epoch + 1}/{self.settings.epochs} · loss {float(loss.detach()):.3f}{alpha}"


@contextlib.contextmanager
def accelerator(config: Config, out: Path) -> Iterator[Accelerator]:
    """The devices and processes of this run; its trackers are told the settings."""
    settings = config.train
    for tracker in settings.trackers:
        if find_spec(tracker) is None:
            raise PskdError(f"train.trackers: {tracker} is not installed: pip install 'pskd[{tracker}]'")
    AcceleratorState._reset_state()  # or a second training in one process would keep the first one's precision
    accelerator = Accelerator(
        cpu=build.uses_cpu(settings.device),
        mixed_precision="no" if settings.precision == "fp32" else settings.precision,
        log_with=list(settings.trackers) or None,
        project_dir=out,
    )
    if settings.trackers:
        accelerator.init_trackers(out.name, config={k: str(v) for k, v in flat(config.model_dump(), "/").items()})
    try:
        yield accelerator
    finally:
        accelerator.end_training()


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are noted, not obeyed at once; the loop looks at the list after every step."""
    asked: list[int] = []
    before = {number: signal.signal(number, lambda n, _: asked.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
