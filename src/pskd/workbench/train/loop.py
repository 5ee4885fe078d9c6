"""The training loop: read it from top to bottom."""

from __future__ import annotations

import contextlib
import io
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from pskd.checks import allow_nonfinite
from pskd.errors import PskdError, error_context
from pskd.metrics.catalogue import METRICS
from pskd.plan import Step
from pskd.workbench import tasks
from pskd.workbench.config import Config, changed, flat, long_key
from pskd.workbench.models.heads import without_heads
from pskd.workbench.runs import calibration, sharding, weights
from pskd.workbench.runs.files import OF_A_RUN, checksum, one_line_errors, write_atomic, write_json
from pskd.workbench.runs.folder import RunFolder
from pskd.workbench.runs.group import CONTINUE, SAVE, STOP, Group, lost_processes, own_rank, restart_count
from pskd.workbench.runs.trust import check_model
from pskd.workbench.tasks.base import Evaluation, Task
from pskd.workbench.train.build import build_state, open_accelerator
from pskd.workbench.train.nonfinite import NonFinite
from pskd.workbench.train.progress import Progress, print_if_slow
from pskd.workbench.train.record import epoch_line, heading, method_values, progress_text, provenance, reading_text
from pskd.workbench.train.saving import Saver


class Interrupted(Exception):
    """The run was asked to stop. It has written a checkpoint and can be resumed."""

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

    With ``resume`` a run continues from its last checkpoint; a finished one is returned as it is. A restart by torchrun
    is a resume too.

    Args:
        config: None: that of the folder, with ``changes``. A folder may come from a stranger, so its configuration
            decides nothing about what is loaded, run or written outside of the folder, unless ``allow_code``.
        changes: settings as `key=value`.
        after_epoch: gets each epoch's record; what it raises ends the training.
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
            with print_if_slow(reading_text(config)):
                with error_context(f"data={config.data.name} cannot be loaded"):
                    task = tasks.create(config)
                check_validation(config, task)
                stack.enter_context(one_line_errors("writing", **OF_A_RUN))
                stack.enter_context(lost_processes(out))
                accelerator = stack.enter_context(open_accelerator(config, out))
                trainer = Trainer(config, task, run, accelerator, resumed=resume and run.has_begun())
            return trainer.fit(after_epoch, notes)
    finally:
        run.release()


def check_validation(config: Config, task: Task) -> None:
    """Refuse before the training what would fail after it."""
    if config.train.patience is not None and not task.has_validation:
        raise PskdError("train.patience needs a validation split, for example data.val_fraction=0.1")
    if config.train.calibrate and task.Predictor.calibration_class is None:
        raise PskdError(f"train.calibrate=true: {task.config.task} has nothing to calibrate")
    if config.train.calibrate and not task.has_validation:
        raise PskdError(f"train.calibrate=true: there is no validation split; {task.Predictor.validation_hint}")


class Trainer:
    """The parts of a run, and the loop over its epochs and steps."""

    def __init__(
        self, config: Config, task: Task, run: RunFolder, accelerator: Accelerator, *, resumed: bool = False
    ) -> None:
        self.config, self.task, self.run, self.accelerator = config, task, run, accelerator
        self.device, self.group = accelerator.device, Group()
        self.state = build_state(config, task, run.path, accelerator, self.group, resumed=resumed)
        self.saver = Saver(config, run, self.group, self.state)
        last_checkpoint = self.saver.checkpoints.last_good
        self.nonfinite = NonFinite(config.train.on_nonfinite, self.state, self.group, last_checkpoint)
        self.stepped = False
        self.evaluations: dict[str, Evaluation] = {}  # of the last epoch's weights, by split

    @property
    def moving_average(self) -> bool:
        return self.config.train.ema is not None

    @property
    def result_weights(self) -> nn.Module:
        """The weights that are evaluated and kept: the model's own, or their moving mean."""
        average = self.state.average
        return average.module if average is not None and self.moving_average else self.state.model

    def fit(self, after_epoch: Callable[[dict[str, Any]], None], notes: Sequence[str] = ()) -> dict[str, Any]:
        """Train from the newest checkpoint, or from the start, to the end."""
        notes, state, task = list(notes), self.state, self.task
        resumed = self.saver.load_newest(notes.append)
        self.check_best()
        if self.group.leader:
            self.run.begin(self.config)
            self.run.keep_metrics(state.epoch)
            for observer in state.observers.values():
                observer.cut(state.epoch)
        self.group.barrier()
        epochs, patience = self.config.train.epochs, self.config.train.patience
        total, shown = epochs * state.steps_per_epoch, self.group.leader
        with (
            Progress(total, state.steps_done, task.unit, shown=shown, log=self.run.log) as progress,
            _note_signals() as signals,
        ):
            for note in notes:
                progress.line(note)
            progress.line(heading(self.config, task, state), minor=resumed)
            for note in () if resumed else task.notes:
                progress.line(note, minor=True)
            if (advice := state.method.card.advise(state.method)) is not None and not resumed:
                progress.line(f"note: {advice}")
            while state.epoch < epochs and (patience is None or state.epochs_since_best < patience):
                self.train_epoch(progress, signals)
                after_epoch(self.end_epoch(progress))
            return self.finish(progress.line)

    def check_best(self) -> None:
        best, by = self.state.best, self.task.selects_by
        if best is not None and not isinstance(best["val"].get(by), int | float):
            raise PskdError(f"the checkpoint in {self.run.checkpoints} has no {by} of the best epoch: restore it")

    def train_epoch(self, progress: Progress, signals: list[int]) -> None:
        """Train the rest of the current epoch."""
        optim, epochs, state = self.config.optim, self.config.train.epochs, self.state
        progress.start_epoch()
        state.start_epoch()
        plan = self.task.plan(state.epoch, self.group, state.stretches)[state.step :]
        batches = self.task.batches(plan, state.epoch, self.device, state.method.needs)
        for step in plan:
            factor = optim.factor(state.epoch + state.step / state.steps_per_epoch, epochs, state.steps_per_epoch)
            rates = (optim.lr, optim.backbone_lr or optim.lr)
            for parameters, rate in zip(state.optimizer.param_groups, rates, strict=False):
                parameters["lr"] = rate * factor
            where = f"model={self.config.model.name} cannot be trained on these data"  # which shows in the first step
            with contextlib.nullcontext() if self.stepped else error_context(where):
                loss = self.train_step(step, batches, optim.lr * factor)
            self.stepped = True
            state.step += 1
            progress.step(step.total, partial(progress_text, state, epochs, loss))
            decision = self.group.agree(STOP if signals else SAVE if self.saver.is_due() else CONTINUE)
            if decision >= SAVE and state.step < state.steps_per_epoch:
                self.saver.save()
                if decision == STOP:
                    raise Interrupted(signals[0] if signals else signal.SIGTERM, self.run.path)
        self.group.settle()  # a wish of the last step is repeated in the first step of the next epoch
        self.group.copy_buffers(state.model)
        if self.result_weights is not state.model:
            self.group.copy_buffers(self.result_weights)

    def train_step(self, step: Step, batches: Iterator[Any], lr: float) -> Tensor:
        """One optimizer step; returns the loss of its last part."""
        state, counted = self.state, []
        self.nonfinite.before_step()
        for part, real in enumerate(step.real):
            batch = next(batches)
            more = part + 1 < len(step.real)
            with self.accelerator.no_sync(state.wrapped) if more else contextlib.nullcontext():
                with self.accelerator.autocast(), allow_nonfinite():  # reported below, with more to go on
                    loss, shown = self.task.loss(state.wrapped, batch, real, state.method)
                if not self.nonfinite.is_finite(loss.total, lr):
                    self.nonfinite.skip(step.total)
                    for _ in step.real[part + 1 :]:
                        next(batches)
                    return loss.total
                if part == 0:
                    # Here and not before the forward pass: what it frees there, the allocator gives back to the
                    # system, and a CPU then loses 4% of a step to page faults.
                    state.optimizer.zero_grad()
                # Gradients are averaged over processes: each one's loss is its part of the sum over all real samples.
                self.accelerator.backward(loss.total * (real * self.group.world / step.total))
            if real and shown is not None:
                for observer in state.observers.values():
                    observer.batch(shown)
            counted.append((loss.total.detach(), loss.parts, real))
        if self.config.train.clip_norm is not None:
            self.accelerator.clip_grad_norm_(state.wrapped.parameters(), self.config.train.clip_norm)
        state.optimizer.step()
        if state.average is not None and self.moving_average:
            state.average.update_parameters(state.model)
        for each in counted:
            state.add(*each)
        state.skips_in_a_row = 0
        return loss.total

    def end_epoch(self, progress: Progress) -> dict[str, Any]:
        """Evaluate, record and, when it is time, save; returns the epoch's record."""
        state, settings = self.state, self.config.train
        seconds, speed = state.seconds, progress.speed()
        record = {"epoch": state.epoch + 1, **state.mean_losses(self.group)}
        if state.skipped:
            record["skipped"] = state.skipped
        record["lr"] = state.optimizer.param_groups[0]["lr"]
        record |= method_values(state.method)
        split = "val" if self.task.has_validation else "test"
        self.evaluations = {}
        if (state.epoch + 1) % self.config.eval.every == 0:
            record[split] = self.evaluate(split).metrics
            if split == "val":
                self.keep_if_best(record[split])
        record["seconds"] = seconds
        state.end_epoch()
        if state.average is not None and not self.moving_average and state.epoch > settings.epochs - settings.average:
            state.average.update_parameters(state.model)
        for observer in state.observers.values():
            observer.end_epoch(self.group)
        if self.group.leader:
            self.run.append_metrics(record)
        self.accelerator.log({k: v for k, v in flat(record, "/").items() if k != "epoch"}, step=state.epoch)
        line = epoch_line(record, settings.epochs, state.method, speed, progress.left())
        progress.line(line, minor=split not in record)
        if self.group.sum(torch.tensor(float(self.group.leader and self.saver.is_due(epoch_ends=True)))):
            self.saver.save()
        return record

    def evaluate(self, split: str) -> Evaluation:
        """The evaluation of the current weights, made once."""
        if split not in self.evaluations:
            self.evaluations[split] = self.task.evaluate(self.result_weights, split, self.device, self.group)
        return self.evaluations[split]

    def keep_if_best(self, metrics: dict[str, Any]) -> None:
        """Keep the weights of the best epoch so far by the validation split."""
        state, by = self.state, self.task.selects_by
        if state.best is None or METRICS[by].better(metrics[by], state.best["val"][by]):
            state.best = {"epoch": state.epoch + 1, "val": metrics}
            weights.save(without_heads(self.result_weights), self.run.best_model_file, self.task.metadata(), self.group)
            if self.group.leader:
                state.best_sum = checksum(self.run.best_model_file)

    def finish(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Write the last epoch's results, and the best epoch's if there is a validation split to choose it on."""
        state, task, model = self.state, self.task, self.state.model
        if state.average is not None:
            model.load_state_dict(state.average.module.state_dict())
            self.evaluations = self.evaluations if self.moving_average else {}
        final, best = self.evaluate("test"), state.best
        if self.group.leader and best is not None and not self.saver.has_best():
            raise PskdError(
                f"{self.run.best_model_file} was lost or changed: continue from the last checkpoint with --resume"
            )
        for example in final.examples:
            say(example)
        result: dict[str, Any] = {**final.metrics, "signatures": final.signatures, "epoch": state.epoch}
        predictions = dict(final.predictions)
        if task.has_validation:
            validation = self.evaluate("val")
            result["val"] = validation.metrics
            predictions |= {f"val_{name}": array for name, array in validation.predictions.items()}
        weights.save(without_heads(model), self.run.model_file, task.metadata(), self.group)
        if self.config.train.calibrate:
            self.calibrate(say)
        if best is not None:
            if best["epoch"] != state.epoch or state.average is not None:
                self.group.barrier()
                weights.load(without_heads(model), self.run.best_model_file)
                final = task.evaluate(model, "test", self.device, self.group)
            result["best"] = {**best, "test": final.metrics}
        result.update(provenance(self.config, task, self.group, state))
        if self.group.leader:
            arrays = io.BytesIO()
            np.savez(arrays, allow_pickle=False, **predictions)
            write_atomic(self.run.predictions_file, arrays.getvalue())
            write_json(self.run.result_file, result)
        self.group.barrier()
        return result

    def calibrate(self, say: Callable[[str], None]) -> None:
        """Calibrate the last weights, before result.json marks the run as finished.

        A model that cannot be calibrated, such as a detector that finds nothing, still gets its result.
        """
        self.group.barrier()
        path, predictor = self.run.model_file, self.task.predictor(without_heads(self.state.model), self.device)
        about = {"weights": checksum(path), "fitted_on": "val"}
        try:
            result = predictor.calibrate(self.task.splits, "val", self.config, self.group, **about)
        except PskdError as error:
            say(f"not calibrated: {error}")
            return
        if self.group.leader:
            calibration.write(path, result)


@contextlib.contextmanager
def _note_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list, which the loop looks at after every step."""
    signals: list[int] = []
    ours = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, lambda n, _: signals.append(n)) for number in ours}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
