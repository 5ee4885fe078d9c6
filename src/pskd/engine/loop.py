"""The training loop: read it from top to bottom."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.optim.swa_utils import AveragedModel

from pskd import tasks
from pskd.analysis.history import History
from pskd.checks import ValueChecks
from pskd.config import Config, flat
from pskd.engine import build
from pskd.engine.progress import Progress
from pskd.engine.record import epoch_line, provenance
from pskd.errors import PskdError
from pskd.memory.snapshot import unwrap_model
from pskd.methods.ps_kd import PSKD
from pskd.metrics.catalogue import METRICS
from pskd.runs import checkpoint, sharding, weights
from pskd.runs.checkpoint import Checkpoints
from pskd.runs.files import kind_errors, write_atomic, write_json
from pskd.runs.folder import RunFolder
from pskd.runs.group import CONTINUE, SAVE, STOP, Group, lost_processes, restart_count
from pskd.runs.plan import Begun, Step
from pskd.tasks.base import Task

MOST_SKIPS = 20  # steps in a row; after that there is nothing to hope for
HISTORY_UP_TO = 5_000_000  # samples; each process holds all of an epoch's record
CHECKPOINT_SHARE = 0.01  # of the training time, at most, with save_every=auto


class Interrupted(Exception):
    """The run was asked to stop, has written a checkpoint and can be resumed."""

    def __init__(self, signal_number: int, folder: Path) -> None:
        self.exit_code = 128 + signal_number
        super().__init__(f"stopped; continue with: pskd train --resume --out {folder}")


def train(
    config: Config | None,
    out: Path,
    *,
    resume: bool = False,
    after_epoch: Callable[[dict[str, Any]], None] = lambda record: None,
) -> dict[str, Any]:
    """Train in the run folder ``out`` and return what ``result.json`` holds.

    With ``resume`` a run that is there goes on from its last checkpoint, or is returned as it is if it has finished.
    A restart by torchrun is a resume too.
    ``after_epoch`` is shown each epoch's record; what it raises ends the training.
    """
    resume = resume or restart_count() > 0
    run = RunFolder(out)
    if int(os.environ.get("RANK", "0")) == 0:
        config = run.claim(config, resume=resume)
    config = config or run.config()
    try:
        if resume and run.result_file.exists():
            return run.result()
        sharding.check(config)
        task = tasks.create(config)
        with build.accelerator(config, out) as devices, kind_errors("writing"), lost_processes(out):
            return Trainer(config, task, run, devices).fit(after_epoch)
    finally:
        run.release()


class Trainer:
    """The state of a run, and what moves it forward."""

    def __init__(self, config: Config, task: Task, run: RunFolder, accelerator: Accelerator) -> None:
        self.config, self.task, self.run, self.accelerator = config, task, run, accelerator
        self.settings = config.train
        self.sources = task.sources
        self.device = accelerator.device
        self.group = Group()
        if self.settings.threads is not None:
            torch.set_num_threads(self.settings.threads)
        torch.manual_seed(self.settings.seed)
        model = task.model().to(self.device)
        shards = self.group.even = self.settings.shard and self.group.active
        if shards:
            sharding.shard(model, self.device, self.group.world)
        elif self.settings.channels_last:
            model = model.to(memory_format=torch.channels_last)
        self.optimizer = accelerator.prepare_optimizer(build.optimizer(model, config.optim))
        compiled = torch.compile(model) if self.settings.compile else model
        self.model = accelerator.prepare_model(compiled, evaluation_mode=shards)  # not a whole copy in each process
        first = task.plan(0, self.group)
        self.steps_per_epoch = len(first)
        self.counted = sum(step.total for step in first)  # samples or tokens of an epoch
        calls = self.steps_per_epoch * self.settings.accumulate
        self.method = build.method(config, task, model, calls, run.path, self.group)
        records = task.records_history and self.settings.history and task.num_samples <= HISTORY_UP_TO
        recorded = task.num_samples if records else 0
        self.history = task.history = History(run.history_file, recorded, self.device)
        self.history.attach(self.method)
        torch.manual_seed(self.settings.seed + 1 + self.group.rank)  # each process drops out other units
        self.checkpoints = Checkpoints(run.checkpoints, self.settings.keep_last, self.group)
        # The mean of the weights at the ends of the last epochs.
        self.average = AveragedModel(self.weights, use_buffers=True) if self.settings.average > 1 else None
        # Where the run is: `step` optimizer steps of `epoch` are done, with this sum of losses so far.
        self.epoch = self.step = 0
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self.skipped = self.skips_in_a_row = 0  # samples of this epoch, and steps
        self.best: dict[str, Any] | None = None
        self.epoch_seconds: list[float] = []
        self.seconds_before = 0.0  # spent in this epoch by the processes before this one
        self.saved_at, self.save_seconds = time.monotonic(), 0.0  # when a checkpoint was written, and how long it took
        self.checks = ValueChecks()

    @property
    def weights(self) -> nn.Module:
        return unwrap_model(self.model)

    def fit(self, after_epoch: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        notes: list[str] = []
        if self.group.leader:
            self.checkpoints.clean()
        if (newest := self.checkpoints.newest(notes.append)) is not None:
            self.load(newest)
            notes.append(f"resuming at epoch {self.epoch + 1}, step {self.step}")
        if self.group.leader:
            self.run.begin(self.config)
            self.run.keep_metrics(self.epoch)
            self.history.cut(self.epoch)
        self.group.barrier()
        epochs = self.settings.epochs
        total, done = epochs * self.steps_per_epoch, self.epoch * self.steps_per_epoch + self.step
        shown = self.group.leader
        with Progress(total, done, self.task.unit, shown=shown, log=self.run.log) as progress, _signals() as asked:
            for note in notes:
                progress.line(note)
            for note in () if newest else self.task.notes:
                progress.line(note, minor=True)
            while self.epoch < epochs:
                self.train_epoch(progress, asked)
                after_epoch(self.end_epoch(progress))
            return self.finish()

    def train_epoch(self, progress: Progress, asked: list[int]) -> None:
        """The rest of the current epoch."""
        config, settings = self.config, self.settings
        self.begun = time.monotonic()
        progress.start_epoch()
        self.method.start_epoch(self.epoch)
        self.model.train()
        plan = self.task.plan(self.epoch, self.group)[self.step :]
        batches = self.task.batches(plan, self.epoch, self.device)
        for step in plan:
            progressed = self.epoch + self.step / self.steps_per_epoch
            lr = config.optim.lr * config.optim.factor(progressed, settings.epochs, self.steps_per_epoch)
            for parameters in self.optimizer.param_groups:
                parameters["lr"] = lr
            loss = self.train_step(step, batches, lr)
            self.step += 1
            progress.step(step.total, lambda loss=loss: self.describe(loss))  # type: ignore[misc]
            decision = self.group.agree(STOP if asked else SAVE if self.save_is_due() else CONTINUE)
            if decision >= SAVE and self.step < self.steps_per_epoch:
                self.save()
                if decision == STOP:
                    raise Interrupted(asked[0] if asked else signal.SIGTERM, self.run.path)
        self.group.settle()  # a wish that came up in the last step comes up again
        self.group.copy_buffers(self.weights)

    def train_step(self, step: Step, batches: Iterator[Any], lr: float) -> torch.Tensor:
        """One optimizer step; returns the loss of its last part."""
        step_loss = torch.zeros_like(self.loss_sum)
        skips = self.settings.on_nonfinite == "skip"
        buffers = [buffer.clone() for buffer in self.weights.buffers()] if skips else []
        for part, real in enumerate(step.real):
            batch = next(batches)
            wait = part + 1 < len(step.real)
            with self.accelerator.no_sync(self.model) if wait else contextlib.nullcontext():
                with self.accelerator.autocast():
                    loss = self.task.loss(self.model, batch, real, self.method).total
                if not self.is_finite(loss, lr):
                    self.skipped, self.skips_in_a_row = self.skipped + step.total, self.skips_in_a_row + 1
                    for buffer, before in zip(self.weights.buffers(), buffers, strict=True):
                        buffer.copy_(before)  # batch statistics that a NaN went into
                    for _ in step.real[part + 1 :]:
                        next(batches)
                    return loss
                if part == 0:
                    # Here and not before the forward pass: what it frees there, the allocator gives back to the
                    # system, and a CPU then loses 4% of a step to page faults.
                    self.optimizer.zero_grad()
                # Processes average their gradients: so each gives its part of the sum over all real samples.
                self.accelerator.backward(loss * (real * self.group.world / step.total))
            step_loss += loss.detach() * real
        if self.settings.clip_norm is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        self.optimizer.step()
        self.loss_sum += step_loss
        self.skips_in_a_row = 0
        return loss

    def is_finite(self, loss: torch.Tensor, lr: float) -> bool:
        """Whether the step can go on. Stopping needs no waiting for the device, skipping needs all to agree at once."""
        self.checks.settle()
        bad, message = ~torch.isfinite(loss.detach()), self.not_finite(lr)
        if self.settings.on_nonfinite == "stop" or self.skips_in_a_row == MOST_SKIPS:
            self.checks.require_none(bad, message)
            return True
        return not self.group.maximum(int(bad))

    def end_epoch(self, progress: Progress) -> dict[str, Any]:
        """Evaluate, record and, when it is time, save; returns the epoch's record."""
        seconds = self.seconds_before + time.monotonic() - self.begun
        speed = progress.speed()
        record: dict[str, Any] = {"epoch": self.epoch + 1}
        record["train_loss"] = float(self.group.sum(self.loss_sum.cpu())) / max(1, self.counted - self.skipped)
        if self.skipped:
            record["skipped"] = self.skipped
        record["lr"] = self.optimizer.param_groups[0]["lr"]
        if isinstance(self.method, PSKD):
            record["alpha_t"] = self.method.alpha_t
        split, by = "val" if self.task.has_validation else "test", self.task.selects_by
        if (self.epoch + 1) % self.config.eval.every == 0:
            metrics = self.task.evaluate(self.weights, split, self.device, self.group).metrics
            record[split] = metrics
            if split == "val" and (self.best is None or METRICS[by].better(metrics[by], self.best["val"][by])):
                self.best = {"epoch": self.epoch + 1, "val": metrics}
                weights.save(self.weights, self.run.best_model_file, self.task.metadata(), self.group)
        record["seconds"] = seconds
        self.epoch_seconds.append(seconds)
        self.epoch, self.step, self.seconds_before, self.group.begun = self.epoch + 1, 0, 0.0, ()
        if self.average is not None and self.epoch > self.settings.epochs - self.settings.average:
            self.average.update_parameters(self.weights)
        self.loss_sum.zero_()
        self.skipped = 0
        self.history.end_epoch(self.group)
        if self.group.leader:
            self.run.append_metrics(record)
        self.accelerator.log({k: v for k, v in flat(record, "/").items() if k != "epoch"}, step=self.epoch)
        line = epoch_line(record, self.settings.epochs, speed, self.task.unit, progress.left())
        progress.line(line, minor=split not in record)
        if self.group.sum(torch.tensor(float(self.group.leader and self.save_is_due(epoch_ends=True)))):
            self.save()
        return record

    def finish(self) -> dict[str, Any]:
        """The last epoch's results; the best epoch's too, if there is a validation split to choose it on."""
        if self.average is not None:
            self.weights.load_state_dict(self.average.module.state_dict())
        final = self.task.evaluate(self.weights, "test", self.device, self.group)
        result: dict[str, Any] = {**final.metrics, "signatures": final.signatures, "epoch": self.epoch}
        predictions = final.predictions
        if self.task.has_validation:
            validation = self.task.evaluate(self.weights, "val", self.device, self.group)
            result["val"] = validation.metrics
            predictions = predictions | {f"val_{name}": array for name, array in validation.predictions.items()}
        weights.save(self.weights, self.run.model_file, self.task.metadata(), self.group)
        if self.best is not None:
            self.group.barrier()
            weights.load(self.weights, self.run.best_model_file)
            test = self.task.evaluate(self.weights, "test", self.device, self.group).metrics
            result["best"] = {**self.best, "test": test}
        result.update(provenance(self.config, self.task, self.weights, self.group.world, self.epoch_seconds))
        if self.group.leader:
            arrays = io.BytesIO()
            np.savez(arrays, allow_pickle=False, **predictions)
            write_atomic(self.run.predictions_file, arrays.getvalue())
            write_json(self.run.result_file, result)
        self.group.barrier()
        return result

    def save(self) -> None:
        """Write a checkpoint of this very moment."""
        begun, group = time.monotonic(), self.group
        here: dict[str, Any] = {
            "epoch": self.epoch,
            "step": self.step,
            "skipped": self.skipped,
            "skips_in_a_row": self.skips_in_a_row,
            "best": self.best,
            "sources": self.sources,
            "epoch_seconds": self.epoch_seconds,
            "world": group.world,
            "begun": [list(stretch) for stretch in (*group.begun, Begun(self.step, group.hosts))],
        }
        here["seconds"] = self.seconds_before + (time.monotonic() - self.begun if self.step else 0.0)
        own: dict[str, Any] = {"loss_sum": self.loss_sum, "rng": torch.get_rng_state()}
        if self.device.type == "cuda":
            own["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        parts: dict[str, Any] = {f"process-{group.rank}": own}
        if group.host_leader and group.host < self.method.shards:
            parts[f"method-{group.host}"] = self.method.state_dict()
        shared = {
            "history": self.history.state(group),
            "model": sharding.whole(self.weights.state_dict()),
            "optimizer": sharding.whole(self.optimizer.state_dict()),
        }
        if group.leader:
            parts |= shared
            parts["progress"] = here
            if self.average is not None:
                parts["average"] = self.average.state_dict()
            if self.accelerator.scaler is not None:
                parts["scaler"] = self.accelerator.scaler.state_dict()
        self.checkpoints.save(self.epoch * self.steps_per_epoch + self.step, parts)
        self.saved_at = time.monotonic()
        self.save_seconds = self.saved_at - begun

    def load(self, folder: Path) -> None:
        """Continue as if the processes that wrote this checkpoint had never stopped; there may be more or fewer now."""
        try:
            self._load(folder)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise PskdError(f"checkpoint {folder} does not fit this run: {why}") from error
        self.group.barrier()

    def _load(self, folder: Path) -> None:
        group, here = self.group, checkpoint.load(folder, "progress")
        if here["epoch"] * self.steps_per_epoch + here["step"] != int(folder.name):
            raise PskdError("it is of another step, or of a run with other steps")
        if here["sources"] != self.sources:
            raise PskdError(
                f"{self.run.path} cannot go on: its training data is another or a reordered one now, or its teacher is"
                " another; bring back what it began with"
            )
        self.epoch, self.step, self.best = here["epoch"], here["step"], here["best"]
        self.skipped, self.skips_in_a_row = here["skipped"], here["skips_in_a_row"]
        self.epoch_seconds, self.seconds_before = here["epoch_seconds"], here["seconds"]
        sharding.load_model(self.weights, checkpoint.load(folder, "model"))
        sharding.load_optimizer(self.optimizer, checkpoint.load(folder, "optimizer"))
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(checkpoint.load(folder, "scaler"))
        for shard in checkpoint.shards(folder, "method"):
            self.method.load_state_dict(shard)
        if group.leader:
            self.history.load(checkpoint.load(folder, "history"))
        if self.average is not None:
            self.average.load_state_dict(checkpoint.load(folder, "average"))
        begun = tuple(Begun(*stretch) for stretch in here["begun"]) if self.step else ()
        # The last stretch goes on where the number of hosts is the same.
        group.begun = begun[:-1] if begun and begun[-1].hosts == group.hosts else begun
        if here["world"] == group.world:
            own = checkpoint.load(folder, f"process-{group.rank}")
            self.loss_sum.copy_(own["loss_sum"])
            torch.set_rng_state(own["rng"])
            if "cuda_rng" in own:
                torch.cuda.set_rng_state(own["cuda_rng"], self.device)
        elif group.leader:
            self.loss_sum.copy_(sum(own["loss_sum"] for own in checkpoint.shards(folder, "process")))

    def save_is_due(self, *, epoch_ends: bool = False) -> bool:
        number, unit = self.settings.save_interval
        if unit == "minutes":
            wait = 60 * number
            if self.settings.save_every == "auto":
                wait = max(wait, self.save_seconds / CHECKPOINT_SHARE)
            return time.monotonic() - self.saved_at >= wait
        if unit == "steps":
            done = self.epoch * self.steps_per_epoch + self.step
            return done % max(1, round(number)) == 0
        return epoch_ends and self.epoch % max(1, round(number)) == 0

    def not_finite(self, lr: float) -> Callable[[int], str]:
        where = f"epoch {self.epoch + 1}, step {self.step + 1}, learning rate {lr:g}"

        def message(_: int) -> str:
            good = self.checkpoints.steps()
            saved = f"the last checkpoint is {self.run.checkpoints / f'{good[-1]:09d}'}" if good else "none is saved"
            times = f", {MOST_SKIPS} times in a row" if self.skips_in_a_row == MOST_SKIPS else ""
            return f"the loss is not finite in {where}{times}; {saved}: lower optim.lr, or set train.clip_norm"

        return message

    def describe(self, loss: torch.Tensor) -> str:
        alpha = f" · alpha {self.method.alpha_t:.3f}" if isinstance(self.method, PSKD) else ""
        return f"epoch {self.epoch + 1}/{self.settings.epochs} · loss {float(loss.detach()):.3f}{alpha}"


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
