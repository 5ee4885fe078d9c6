"""The training loop: read it from top to bottom."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from pskd.checks import allow_nonfinite
from pskd.errors import PskdError, error_context
from pskd.memory.snapshot import unwrap_model
from pskd.metrics.catalogue import METRICS
from pskd.plan import Step
from pskd.workbench import tasks
from pskd.workbench.config import Config, changed, flat, long_key
from pskd.workbench.models.heads import deployed
from pskd.workbench.models.modest import build_within_memory
from pskd.workbench.runs import calibration, sharding, weights
from pskd.workbench.runs.files import OF_A_RUN, checksum, one_line_errors, write_atomic, write_json
from pskd.workbench.runs.folder import RunFolder
from pskd.workbench.runs.group import CONTINUE, SAVE, STOP, Group, lost_processes, own_rank, restart_count
from pskd.workbench.runs.trust import check_model
from pskd.workbench.tasks.base import Evaluation, Task
from pskd.workbench.train import build
from pskd.workbench.train.nonfinite import NonFinite
from pskd.workbench.train.observer import observers_of
from pskd.workbench.train.progress import Progress, print_if_slow
from pskd.workbench.train.record import epoch_line, heading, intention, logged, progress_text, provenance
from pskd.workbench.train.saving import Saver
from pskd.workbench.train.state import TrainingState


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
    allow_code: bool = False,
    changes: Sequence[str] = (),
    after_epoch: Callable[[dict[str, Any]], None] = lambda record: None,
) -> dict[str, Any]:
    """Train in the run folder ``out`` and return what ``result.json`` holds.

    With ``resume`` a run that is there goes on from its last checkpoint, or is returned as it is if it has finished.
    A restart by torchrun is a resume too. Without a ``config`` the folder's own is taken, with `key=value` ``changes``;
    since a folder may come from a stranger, it has no say in what is loaded, run or written outside of it unless
    ``allow_code``.
    ``after_epoch`` is shown each epoch's record; what it raises ends the training.
    """
    resume = resume or restart_count() > 0
    run, stated = RunFolder(out), {long_key(word.partition("=")[0]) for word in changes}
    if config is None:
        run.check_resumable()
        if resume and run.result_file.exists() and not changes:
            return run.result()
        config = changed(run.config(allow_code=allow_code), changes, allow_code=allow_code)
        if not allow_code:
            check_model(config, stated, begun=resume and run.has_begun())
    notes = [line for setting, line in run.notes.items() if setting not in stated]
    if own_rank() == 0:
        config = run.claim(config, resume=resume, allow_code=allow_code)
    try:
        if resume and run.result_file.exists():
            return run.result()
        sharding.check(config)
        with contextlib.ExitStack() as stack:
            with print_if_slow(intention(config)):
                with error_context(f"data={config.data.name} cannot be loaded"):
                    task = tasks.create(config)
                if config.train.calibrate:
                    check_calibrable(task)
                task.begins = not (resume and run.has_begun())
                stack.enter_context(one_line_errors("writing", **OF_A_RUN))
                stack.enter_context(lost_processes(out))
                devices = stack.enter_context(build.accelerator(config, out))
                trainer = Trainer(config, task, run, devices)
            return trainer.fit(after_epoch, notes)
    finally:
        run.release()


def check_calibrable(task: Task) -> None:
    """Refuse now what would fail after the last epoch."""
    if task.Predictor.calibration_class is None:
        raise PskdError(f"train.calibrate=true: {task.config.task} has nothing to calibrate")
    if not task.has_validation:
        raise PskdError(f"train.calibrate=true: there is no validation split; {task.Predictor.validation_hint}")


class Trainer:
    """The parts of a run, and what moves it forward."""

    def __init__(self, config: Config, task: Task, run: RunFolder, accelerator: Accelerator) -> None:
        self.config, self.task, self.run, self.accelerator = config, task, run, accelerator
        settings, self.device, self.group = config.train, accelerator.device, Group()
        if settings.threads is not None:
            torch.set_num_threads(min(settings.threads, os.cpu_count() or 1))  # more would wait for each other
        torch.manual_seed(settings.seed)
        self.name = f"model={config.model.name}"
        with error_context(f"{self.name} cannot be built with its options"):
            model = build_within_memory(task.model).to(self.device)
        self.still = build.freeze(model, task.head(model)) if settings.freeze == "backbone" else []
        shards = settings.shard and self.group.active
        if settings.channels_last and not shards:
            model = model.to(memory_format=torch.channels_last)
        if self.device.type == "cpu":
            build.spare_narrow(model)
        if shards:
            sharding.shard(model, self.device, self.group.world)
        optimizer = build.optimizer(model, config.optim, lambda: task.head(model), fused=self.device.type == "cpu")
        # accelerate's wrapper scales losses of float16; beyond that it looks for packages on the disk in every step.
        self.optimizer = optimizer if accelerator.scaler is None else accelerator.prepare_optimizer(optimizer)
        self.rates = (config.optim.lr, config.optim.backbone_lr or config.optim.lr)
        compiled = torch.compile(model) if settings.compile else model
        self.model = accelerator.prepare_model(compiled, evaluation_mode=shards)  # not a whole copy in each process
        first = task.plan(0, self.group)
        self.steps_per_epoch = len(first)
        self.counted = sum(step.total for step in first)  # samples or tokens of an epoch
        self.method = build.method(config, task, model, len(first) * settings.accumulate, run.path, self.group)
        task.provide(self.method)
        self.observers = observers_of(config, run, task, self.method, self.device)
        torch.manual_seed(settings.seed + 1 + self.group.rank)  # each process drops out other units
        self.state = TrainingState(self.device)
        self.average = build.average(self.weights, settings, self.steps_done)
        self.saver = Saver(
            config,
            run,
            self.group,
            accelerator,
            sources=task.sources,
            state=self.state,
            weights=self.weights,
            optimizer=self.optimizer,
            method=self.method,
            average=self.average,
            observers=self.observers,
            steps_per_epoch=self.steps_per_epoch,
        )
        if settings.patience is not None and not task.has_validation:
            raise PskdError("train.patience needs a validation split, for example data.val_fraction=0.1")
        self.nonfinite = NonFinite(settings.on_nonfinite, self.state, self.group, self.saver.checkpoints.last_good)
        self.stepped = False
        self.evaluated: dict[str, Evaluation] = {}  # what the last epoch's weights came to, by split

    @property
    def weights(self) -> nn.Module:
        return unwrap_model(self.model)

    @property
    def result_weights(self) -> nn.Module:
        """Those that are evaluated and kept: the model's own, or their moving mean."""
        moving = self.average is not None and self.config.train.ema is not None
        return self.average.module if moving and self.average is not None else self.weights

    def steps_done(self) -> int:
        return self.state.epoch * self.steps_per_epoch + self.state.step

    def gives_up(self) -> bool:
        """Whether no epoch was better than the best one for too long."""
        patience, best = self.config.train.patience, self.state.best
        return patience is not None and best is not None and self.state.epoch - best["epoch"] >= patience

    def fit(self, after_epoch: Callable[[dict[str, Any]], None], notes: Sequence[str] = ()) -> dict[str, Any]:
        notes = list(notes)
        resumed, best = self.saver.load_newest(notes.append), self.state.best
        if best is not None and not isinstance(best["val"].get(by := self.task.selects_by), int | float):
            where = f"the checkpoint in {self.run.checkpoints}"
            raise PskdError(f"{where} does not say the best epoch's {by}: bring it back")
        if self.group.leader:
            self.run.begin(self.config)
            self.run.keep_metrics(self.state.epoch)
            for observer in self.observers.values():
                observer.cut(self.state.epoch)
        self.group.barrier()
        epochs, state = self.config.train.epochs, self.state
        total, done = epochs * self.steps_per_epoch, self.steps_done()
        shown = self.group.leader
        with Progress(total, done, self.task.unit, shown=shown, log=self.run.log) as progress, _signals() as asked:
            for note in notes:
                progress.line(note)
            progress.line(heading(self.config, self.task, self.weights, self.device), minor=resumed)
            for note in () if resumed else self.task.notes:
                progress.line(note, minor=True)
            if (advice := self.method.card.advise(self.method)) is not None and not resumed:
                progress.line(f"note: {advice}")
            while state.epoch < epochs and not self.gives_up():
                self.train_epoch(progress, asked)
                after_epoch(self.end_epoch(progress))
            return self.finish(progress.line)

    def train_epoch(self, progress: Progress, asked: list[int]) -> None:
        """The rest of the current epoch."""
        optim, epochs, state = self.config.optim, self.config.train.epochs, self.state
        state.start_epoch()
        progress.start_epoch()
        self.method.start_epoch(state.epoch)
        self.model.train()
        for layer in self.still:
            layer.training = False
        plan = self.task.plan(state.epoch, self.group, state.stretches)[state.step :]
        batches = self.task.batches(plan, state.epoch, self.device)
        for step in plan:
            factor = optim.factor(state.epoch + state.step / self.steps_per_epoch, epochs, self.steps_per_epoch)
            for parameters, rate in zip(self.optimizer.param_groups, self.rates, strict=False):
                parameters["lr"] = rate * factor
            first = not self.stepped  # what does not fit together shows in the first step
            with error_context(f"{self.name} cannot be trained on these data") if first else contextlib.nullcontext():
                loss = self.train_step(step, batches, optim.lr * factor)
            self.stepped = True
            state.step += 1
            progress.step(step.total, lambda loss=loss: progress_text(state, epochs, self.method, loss))  # type: ignore[misc]
            decision = self.group.agree(STOP if asked else SAVE if self.saver.is_due() else CONTINUE)
            if decision >= SAVE and state.step < self.steps_per_epoch:
                self.saver.save()
                if decision == STOP:
                    raise Interrupted(asked[0] if asked else signal.SIGTERM, self.run.path)
        self.group.settle()  # a wish that came up in the last step comes up again
        self.group.copy_buffers(self.weights)
        if self.result_weights is not self.weights:
            self.group.copy_buffers(self.result_weights)

    def train_step(self, step: Step, batches: Iterator[Any], lr: float) -> Tensor:
        """One optimizer step; returns the loss of its last part."""
        learnt = []
        self.nonfinite.before_step(self.weights)
        for part, real in enumerate(step.real):
            batch = next(batches)
            wait = part + 1 < len(step.real)
            with self.accelerator.no_sync(self.model) if wait else contextlib.nullcontext():
                with self.accelerator.autocast(), allow_nonfinite():  # which is told below, with more to go on
                    found, shown = self.task.loss(self.model, batch, real, self.method)
                if not self.nonfinite.is_finite(found.total, lr):
                    self.nonfinite.skip(self.weights, step.total)
                    for _ in step.real[part + 1 :]:
                        next(batches)
                    return found.total
                if part == 0:
                    # Here and not before the forward pass: what it frees there, the allocator gives back to the
                    # system, and a CPU then loses 4% of a step to page faults.
                    self.optimizer.zero_grad()
                # Processes average their gradients: so each gives its part of the sum over all real samples.
                self.accelerator.backward(found.total * (real * self.group.world / step.total))
            if real and shown is not None:
                for observer in self.observers.values():
                    observer.batch(shown)
            learnt.append((found.total.detach(), found.parts, real))
        if self.config.train.clip_norm is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.train.clip_norm)
        self.optimizer.step()
        if self.average is not None and self.config.train.ema is not None:
            self.average.update_parameters(self.weights)
        for each in learnt:
            self.state.add(*each)
        self.state.skips_in_a_row = 0
        return found.total

    def end_epoch(self, progress: Progress) -> dict[str, Any]:
        """Evaluate, record and, when it is time, save; returns the epoch's record."""
        state, settings = self.state, self.config.train
        seconds, speed = state.seconds, progress.speed()
        record: dict[str, Any] = {"epoch": state.epoch + 1, **self.losses()}
        if state.skipped:
            record["skipped"] = state.skipped
        record["lr"] = self.optimizer.param_groups[0]["lr"]
        record |= logged(self.method)
        split = "val" if self.task.has_validation else "test"
        self.evaluated = {}
        if (state.epoch + 1) % self.config.eval.every == 0:
            self.evaluated[split] = self.task.evaluate(self.result_weights, split, self.device, self.group)
            record[split] = self.evaluated[split].metrics
            if split == "val":
                self.keep_if_best(record[split])
        record["seconds"] = seconds
        state.end_epoch()
        if self.average is not None and settings.ema is None and state.epoch > settings.epochs - settings.average:
            self.average.update_parameters(self.weights)
        for observer in self.observers.values():
            observer.end_epoch(self.group)
        if self.group.leader:
            self.run.append_metrics(record)
        self.accelerator.log({k: v for k, v in flat(record, "/").items() if k != "epoch"}, step=state.epoch)
        line = epoch_line(record, settings.epochs, self.method, speed, self.task.unit, progress.left())
        progress.line(line, minor=split not in record)
        if self.group.sum(torch.tensor(float(self.group.leader and self.saver.is_due(epoch_ends=True)))):
            self.saver.save()
        return record

    def losses(self) -> dict[str, Any]:
        """The epoch's mean loss over all processes, and its parts where there are several."""
        state, names = self.state, sorted(self.state.part_sums)
        sums = torch.stack([state.loss_sum, *(state.part_sums[name] for name in names)]).cpu()
        counted = max(1, self.counted - state.skipped)
        total, *parts = (value / counted for value in self.group.sum(sums).tolist())
        return {"train_loss": total, **({"loss_parts": dict(zip(names, parts, strict=True))} if len(names) > 1 else {})}

    def keep_if_best(self, metrics: dict[str, Any]) -> None:
        """Keep the weights of the best epoch so far by the validation split."""
        best, by = self.state.best, self.task.selects_by
        if best is None or METRICS[by].better(metrics[by], best["val"][by]):
            self.state.best = {"epoch": self.state.epoch + 1, "val": metrics}
            weights.save(deployed(self.result_weights), self.run.best_model_file, self.task.metadata(), self.group)
            if self.group.leader:
                self.state.best_sum = checksum(self.run.best_model_file)

    def finish(self, say: Callable[[str], None]) -> dict[str, Any]:
        """The last epoch's results; the best epoch's too, if there is a validation split to choose it on."""
        if self.average is not None:
            self.weights.load_state_dict(self.average.module.state_dict())
            self.evaluated = self.evaluated if self.config.train.ema is not None else {}
        final, best = self.result_on("test"), self.state.best
        if self.group.leader and best is not None and not self.saver.has_best():
            raise PskdError(
                f"{self.run.best_model_file} was lost or changed: go on from the last checkpoint with --resume"
            )
        for example in final.examples:
            say(example)
        result: dict[str, Any] = {**final.metrics, "signatures": final.signatures, "epoch": self.state.epoch}
        predictions = final.predictions
        if self.task.has_validation:
            validation = self.result_on("val")
            result["val"] = validation.metrics
            predictions = predictions | {f"val_{name}": array for name, array in validation.predictions.items()}
        weights.save(deployed(self.weights), self.run.model_file, self.task.metadata(), self.group)
        if self.config.train.calibrate:
            self.calibrate(say)
        if best is not None and (best["epoch"] != self.state.epoch or self.average is not None):
            self.group.barrier()
            weights.load(deployed(self.weights), self.run.best_model_file)
            final = self.task.evaluate(self.weights, "test", self.device, self.group)
        if best is not None:
            result["best"] = {**best, "test": final.metrics}
        result.update(provenance(self.config, self.task, deployed(self.weights), self.group, self.device, self.state))
        if self.group.leader:
            arrays = io.BytesIO()
            np.savez(arrays, allow_pickle=False, **predictions)
            write_atomic(self.run.predictions_file, arrays.getvalue())
            write_json(self.run.result_file, result)
        self.group.barrier()
        return result

    def calibrate(self, say: Callable[[str], None]) -> None:
        """Write beside the last weights how sure they may be, before the result says that the run has finished.

        A model of which nothing can be said, a detector that finds nothing, has a result all the same.
        """
        self.group.barrier()
        kind, path = self.task.Predictor, self.run.model_file
        about = kind.about_class.model_validate(weights.metadata(path))
        using = kind(self.run.path, about, deployed(self.weights), self.device)
        try:
            found = using.calibrate(self.config, self.group, weights=checksum(path), fitted_on="val")
        except PskdError as error:
            say(f"not calibrated: {error}")
            return
        if self.group.leader:
            calibration.write(path, found)

    def result_on(self, split: str) -> Evaluation:
        """The evaluation of the weights as they are; that of the last epoch, if it was just made, is not made again."""
        return self.evaluated.get(split) or self.task.evaluate(self.weights, split, self.device, self.group)


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are noted, not obeyed at once; the loop looks at the list after every step."""
    asked: list[int] = []
    ours = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, lambda n, _: asked.append(n)) for number in ours}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
