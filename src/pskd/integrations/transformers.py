"""Hugging Face: a Trainer whose training loss is a method.

train = indexed(train)
method = pskd.PSKD(epochs=3, memory=pskd.PredictionBank(rows_of(train), num_classes=2))
PSKDTrainer(model, args, train_dataset=train, method=method).train()
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.indexed import Indexed
from pskd.integrations import missing
from pskd.memory import Snapshot
from pskd.memory.base import shards_of
from pskd.methods import Method
from pskd.targets import IGNORE_INDEX

try:
    from transformers import Trainer, TrainerCallback

    from pskd.integrations.files import load_state, save_state
except ModuleNotFoundError as error:
    raise missing("transformers", "transformers", error) from error

INDEX = "index"


def indexed(dataset: Any, labels: str = "labels") -> Any:
    """The data set with a column "index": the number of the bank's record of each sample.

    Where ``labels`` are lists (tokens), every label that is not -100 has its own record, and the column has the first
    one of each sample; ``rows_of`` says how many there are. A data set that is not of ``datasets`` is wrapped in
    ``pskd.Indexed``: one record per sample.
    """
    if not hasattr(dataset, "add_column"):
        return Indexed(dataset)
    if not hasattr(dataset, "__len__"):
        raise PskdError("dataset: a stream has no indices; use memory=pskd.Snapshot(model), which needs none")
    if INDEX in dataset.column_names:
        raise PskdError(f'dataset: it has a column "{INDEX}" already; remove or rename it')
    counts = _rows_of_each(dataset, labels)
    return dataset.add_column(INDEX, np.cumsum(counts) - counts)


def rows_of(dataset: Any, labels: str = "labels") -> int:
    """How many records a bank needs for the training set ``dataset``."""
    return int(_rows_of_each(dataset, labels).sum()) if hasattr(dataset, "add_column") else len(dataset)


def _rows_of_each(dataset: Any, labels: str) -> np.ndarray:
    """One for each sample, or one for each of its tokens that has a label."""
    if labels not in dataset.column_names or not len(dataset) or np.ndim(dataset[0][labels]) == 0:
        return np.ones(len(dataset), dtype=np.int64)
    import pyarrow.compute

    column = dataset.select_columns([labels]).with_format("arrow")[:][labels].combine_chunks()
    real = column.flatten().to_numpy(zero_copy_only=False) != IGNORE_INDEX
    return np.bincount(pyarrow.compute.list_parent_indices(column).to_numpy()[real], minlength=len(dataset))


class PSKDMixin:
    """What makes a Trainer a PSKDTrainer: ``class MyTrainer(PSKDMixin, MyOwnTrainer)``; it stands first.

    Args:
        method: the training loss; evaluation takes the plain one.

    The loss is the mean over all labels of an optimizer step, whatever the accumulation and the number of processes.
    The method's state lies in the checkpoint folder as ``pskd-HOST-of-HOSTS.safetensors``.
    """

    method: Method
    loss_is_scaled_for_ga = True

    def __init__(self, *args: Any, method: Method, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        trainer: Any = self
        unmade = sorted(method.needs - {"index", "inputs"})
        if unmade:
            raise PskdError(f"method: {type(method).__name__} needs {', '.join(unmade)}, which a Trainer does not make")
        if trainer.label_smoother is not None:
            raise PskdError("label_smoothing_factor: the method takes the place of that loss; leave one of the two out")
        if method.reduction != "mean":
            raise PskdError(f"reduction={method.reduction!r}: a Trainer's loss is the mean; leave it out")
        if len(names := trainer.label_names or ["labels"]) > 1:
            raise PskdError(f"label_names: {', '.join(names)} are several, of which a method takes one")
        hosts = int(os.environ.get("GROUP_WORLD_SIZE", 1))
        if shards_of(method.memory) not in (1, hosts):
            raise PskdError(
                f"memory: the bank is made for {shards_of(method.memory)} hosts, but there are {hosts}; a bank for each"
                " process is not saved by a Trainer: give it path=FILE, which the processes of a host share"
            )
        self.method = method
        self._labels = names[0]
        self._shifts = _shifts_labels(_bare(trainer.model))
        self._items: Any = 1  # what a sum over the labels of an optimizer step, of all processes, is divided by
        memory = getattr(method, "memory", None)
        if isinstance(memory, Snapshot):
            memory.logits_of = self._logits
        trainer.add_callback(_Epochs(method))

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()  # type: ignore[misc]
        self._signature_columns: list[str]
        if INDEX not in self._signature_columns:  # or remove_unused_columns drops it
            self._signature_columns.append(INDEX)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        """The micro-batches of an optimizer step and the number, or weight, of all processes' labels in them."""
        batches, _ = super().get_batch_samples(*args, **kwargs)  # type: ignore[misc]
        device = self.args.device  # type: ignore[attr-defined]
        shares = [self._share(batch[self._labels]).to(device) for batch in batches if self._labels in batch]
        items = torch.stack(shares).sum() if shares else torch.ones((), device=device)
        self._items = self.accelerator.reduce(items, "sum")  # type: ignore[attr-defined]
        return batches, self._items

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        with _set(self, "model_accepts_loss_kwargs", True):  # says: this loss is divided already
            loss: Tensor = super().training_step(*args, **kwargs)  # type: ignore[misc]
        return loss

    def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **kwargs: Any) -> Any:
        index = inputs.pop(INDEX, None)
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, **kwargs)  # type: ignore[misc]
        labels = inputs.pop(self._labels, None)
        if labels is None:
            raise PskdError(f"labels: a training batch has none under {self._labels!r}, only {', '.join(inputs)}")
        inputs = self._with_decoder_inputs(inputs, labels)
        outputs = model(**inputs)
        index, taken = self._rows(index, labels), self._shifted(labels)
        # Gradients are averaged over processes and added over micro-batches: together this is the mean over all labels.
        share = self.accelerator.num_processes / self._items  # type: ignore[attr-defined]
        if not self.method.takes_weight:
            share = share * self._share(labels)
        with _set(self.method, "reduction", "sum" if self.method.takes_weight else "mean"):
            loss = share * self.method(self._logits(outputs), taken, index=index, inputs=inputs)
        return (loss, outputs) if return_outputs else loss

    def prediction_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        inputs = {name: value for name, value in inputs.items() if name != INDEX}  # or it would go to generate()
        return super().prediction_step(model, inputs, *args, **kwargs)  # type: ignore[misc]

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]
        trainer: Any = self
        state = self.method.state_dict()
        trainer.accelerator.wait_for_everyone()  # a bank in a shared file has the records of all processes now,
        hosts = shards_of(self.method.memory)
        host = int(os.environ.get("GROUP_RANK", 0)) if hosts > 1 else 0
        if trainer.is_world_process_zero() or (hosts > 1 and trainer.is_local_process_zero()):
            Path(output_dir).mkdir(parents=True, exist_ok=True)
            save_state(state, Path(output_dir, f"pskd-{host}-of-{hosts}.safetensors"))
        trainer.accelerator.wait_for_everyone()  # and nobody goes on before they are saved

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        if checkpoint is None:
            return
        parts = sorted(Path(checkpoint).glob("pskd-*-of-*.safetensors"))
        if not parts or len(parts) != int(parts[0].stem.rpartition("-")[2]):
            raise PskdError(
                f"resume_from_checkpoint: {checkpoint} has {len(parts)} of the files pskd-HOST-of-HOSTS.safetensors"
                " that keep the method's state; take a checkpoint of a PSKDTrainer, with the files of all hosts"
            )
        for part in parts:
            self.method.load_state_dict(load_state(part))
        self.accelerator.wait_for_everyone()  # type: ignore[attr-defined]

    def _logits(self, outputs: Any) -> Tensor:
        """Logits (B, K) or, of tokens, (B, K, L), from what a model returned: it has the classes last."""
        logits: Tensor = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
        if logits.ndim == 2:
            return logits
        return (logits[:, :-1] if self._shifts else logits).movedim(-1, 1)

    def _shifted(self, labels: Tensor) -> Tensor:
        """The labels of the places whose logits are taken: a causal model's logits are those of the next token."""
        return labels[:, 1:] if self._shifts and labels.ndim == 2 else labels

    def _share(self, labels: Tensor) -> Tensor:
        """What a mean over these labels divides by: their number or, with class weights, the sum of their weights."""
        labels = self._shifted(labels)
        if labels.is_floating_point():
            return torch.tensor(float(len(labels)))
        real = labels != IGNORE_INDEX
        weight = self.method.weight_at(labels.device)
        return real.sum() if weight is None else (weight[labels * real] * real).sum()

    def _rows(self, index: Tensor | None, labels: Tensor) -> Tensor | None:
        """The bank's records, shaped like the labels: a sample's tokens follow each other, -100 not counted."""
        if "index" not in self.method.needs:
            return None
        if index is None:
            raise PskdError(
                f'index: a training batch has no "{INDEX}": give train_dataset=indexed(train), and a collator that'
                " keeps this column"
            )
        if labels.ndim == 1 or labels.is_floating_point():
            return index
        real = self._shifted(labels) != IGNORE_INDEX
        train: Any = self.train_dataset  # type: ignore[attr-defined]
        rows = getattr(getattr(self.method, "memory", None), "num_samples", None)
        if hasattr(train, "__len__") and rows == len(train) and bool((real.sum(1) > 1).any()):
            raise PskdError(
                "index: the bank has one record for each sample, but these have several labels: make a"
                " datasets.Dataset of them, and name the column that the labels are, or are made of: indexed(train,"
                " COLUMN) and rows_of(train, COLUMN)"
            )
        return index[:, None] + (real.cumsum(1) - 1).clamp_min(0)

    def _with_decoder_inputs(self, inputs: dict[str, Any], labels: Tensor) -> dict[str, Any]:
        """What an encoder-decoder makes of its labels, which it is not given."""
        model = _bare(self.model_wrapped)  # type: ignore[attr-defined]
        if not _is_encoder_decoder(model) or "decoder_input_ids" in inputs:
            return inputs
        if not hasattr(model, "prepare_decoder_input_ids_from_labels"):
            return inputs
        return {**inputs, "decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels=labels)}


class PSKDTrainer(PSKDMixin, Trainer):  # type: ignore[misc]
    """``transformers.Trainer`` whose training loss is ``method``; see ``PSKDMixin``."""


class _Epochs(TrainerCallback):
    """Begins the method's epochs. They are counted: ``state.epoch`` lags behind where an epoch was ended early."""

    def __init__(self, method: Method) -> None:
        self.method, self.next = method, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        epochs, planned = getattr(self.method, "epochs", None), math.ceil(state.num_train_epochs)
        if epochs is not None and planned >= sys.maxsize:
            raise PskdError(f"epochs={epochs}: nobody knows how long an epoch of a stream is; give PSKD(steps=...)")
        if epochs is not None and epochs != planned:
            raise PskdError(
                f"epochs={epochs}, but the Trainer makes {planned}: give both the same, or alpha does not reach its end"
                " in the last epoch"
            )
        self.next = int(state.epoch or 0)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.method.start_epoch(self.next)
        self.next += 1


def _bare(model: Any) -> Any:
    while hasattr(model, "module"):
        model = model.module
    return model


def _is_encoder_decoder(model: Any) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _shifts_labels(model: Any) -> bool:
    """Whether logits are those of the token after. Not asked by its name: people derive classes, and wrap them."""
    generates = getattr(model, "can_generate", None)
    return generates is not None and generates() and not _is_encoder_decoder(model)


@contextlib.contextmanager
def _set(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name, None)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
