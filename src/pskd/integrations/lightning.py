"""Lightning: one callback begins the epochs, takes the place of the loss in training, and keeps the state.

trainer = L.Trainer(max_epochs=30, callbacks=[PSKDCallback(pskd.PSKD(epochs=30, memory=...))])
trainer.fit(module, DataLoader(pskd.Indexed(train), batch_size=64, shuffle=True))
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from pskd.errors import PskdError
from pskd.integrations import missing
from pskd.integrations.hosts import load_states, new_channel, states_of_hosts
from pskd.memory.base import shards_of
from pskd.methods import Method
from pskd.sampler import EpochSampler
from pskd.settings import nearest

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise missing("lightning", "lightning", error) from error

Where: TypeAlias = str | int | Callable[[Any], Any] | None
"""A place in a batch: a key, a position, or a function of the batch."""


class PSKDCallback(Callback):  # type: ignore[misc]
    """``method`` as the training loss of any LightningModule; validation and sanity checks keep the plain loss.

    Args:
        method: the loss.
        criterion: the attribute (``"criterion"``, ``"parts.loss"``) in which the module keeps its loss, a module or a
            function of (logits, targets) that ``training_step`` calls once; None: ``training_step`` calls the method
            itself, and the callback begins the epochs and keeps the state.
        index: where a batch has the samples' indices; None: under the key "index", or last. They are taken off the
            batch, so that ``training_step`` sees it as it was before ``pskd.Indexed``. A function of the batch leaves
            it as it is.
        inputs: where a batch has the model's inputs; None: what the model was called with in this step.

    Several processes: with a bank, give it ``path=FILE``, which those of one host share. The checkpoint then has all
    rows, also those of other hosts.
    """

    def __init__(
        self, method: Method, criterion: str | None = "criterion", *, index: Where = None, inputs: Where = None
    ) -> None:
        unmade = sorted(method.needs - {"index", "inputs"})
        if criterion is not None and unmade:
            raise PskdError(
                f"criterion: {type(method).__name__} needs {', '.join(unmade)}, which training_step has to make: give"
                " criterion=None and call the method there"
            )
        self.method, self.criterion, self.index, self.inputs = method, criterion, index, inputs
        self._epoch: int | None = None
        self._needs: dict[str, Any] | None = None  # of the batch in training; None outside of one
        self._calls = 0
        self._undo: list[Callable[[], None]] = []
        self._channel: Any = None
        self._leads = True
        self._wait: Callable[[], None] = lambda: None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check(trainer)
        self._leave()
        self._channel, self._leads = new_channel(self.method), trainer.local_rank == 0
        self._wait = trainer.strategy.barrier
        if self.criterion is not None:
            self._take_the_place_of(self.criterion, pl_module)
            if "inputs" in self.method.needs and self.inputs is None:
                self._listen_to(getattr(getattr(self.method, "memory", None), "model", pl_module))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        # Not on_train_epoch_start, which Lightning leaves out after a resume in the middle of an epoch.
        if self._epoch != trainer.current_epoch:
            self.method.start_epoch(trainer.current_epoch)
            self._epoch = trainer.current_epoch
        if self.criterion is not None:
            self._calls, self._needs = 0, self._needs_in(batch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.criterion is not None and outputs and not self._calls:
            raise PskdError(
                f"criterion={self.criterion!r}: training_step did not call it, so the method had no part in the loss;"
                " name the attribute that it calls, or give criterion=None and call the method there"
            )
        self._needs = None

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._leave()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._leave()

    def state_dict(self) -> dict[str, Any]:
        """What the checkpoint has under ``["callbacks"]["PSKDCallback"]``: tensors, numbers and strings."""
        self.method.state_dict()  # records that are on their way from an accelerator are written,
        self._wait()  # those of all processes: Lightning saves in all of them, and process 0 keeps what it has
        return {"hosts": states_of_hosts(self.method, self._channel, leads=self._leads)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        load_states(self.method, state_dict["hosts"])
        self._epoch = None

    def _check(self, trainer: Trainer) -> None:
        epochs = getattr(self.method, "epochs", None)
        planned = trainer.max_epochs if not trainer.fast_dev_run else epochs
        if epochs is not None and planned not in (None, -1, epochs):
            raise PskdError(
                f"epochs={epochs}, but Trainer(max_epochs={planned}): give both the same, or alpha does not reach its"
                " end in the last epoch"
            )
        shards = shards_of(self.method.memory)
        if "index" in self.method.needs and shards != trainer.num_nodes:
            raise PskdError(
                f"memory: {trainer.num_nodes} hosts train, but the bank is made for {shards}: give it host="
                " and hosts= with a sampler that keeps each sample on its host, or take pskd.Snapshot"
            )

    def _needs_in(self, batch: Any) -> dict[str, Any]:
        needs: dict[str, Any] = {}
        if "index" in self.method.needs:
            needs["index"] = _taken_off(batch, self.index)
        if "inputs" in self.method.needs and self.inputs is not None:
            needs["inputs"] = self.inputs(batch) if callable(self.inputs) else batch[self.inputs]
        return needs

    def _loss(self, input: Tensor, target: Any, **unknown: Any) -> Tensor:
        """What the module's loss is while a batch is in training."""
        assert self._needs is not None
        if unknown:
            raise PskdError(
                f"criterion: called with {', '.join(unknown)}; in training it takes logits and targets: give"
                " criterion=None and call the method in training_step"
            )
        self._calls += 1
        if self._calls > 1:
            raise PskdError(
                "criterion: called a second time for one batch, whose past is overwritten by then: give criterion=None"
                " and call the method in training_step, once"
            )
        return self.method(input, target, **self._needs)

    def _take_the_place_of(self, name: str, module: LightningModule) -> None:
        """Calls of the loss go to the method while a batch is in training.

        A loss that is a module stays where it is, and only its ``forward`` is covered: weights and their names in a
        checkpoint are the same with and without this callback.
        """
        *path, last = name.split(".")
        try:
            owner: Any = attrgetter(".".join(path))(module) if path else module
            plain = getattr(owner, last)
        except AttributeError as error:
            known = [known for known in vars(module) | module._modules if not known.startswith("_")]
            raise PskdError(
                f"criterion={name!r}: {type(module).__name__} has no such attribute{nearest(name, known)}; name the one"
                " that keeps its loss"
            ) from error
        if isinstance(plain, nn.Module):
            _warn_of_lost_settings(plain)
            owner, last, plain = plain, "forward", plain.forward

        @functools.wraps(plain)
        def covered(*args: Any, **kwargs: Any) -> Any:
            training = self._needs is not None and torch.is_grad_enabled()
            return self._loss(*args, **kwargs) if training else plain(*args, **kwargs)

        own = vars(owner).get(last, covered)
        vars(owner)[last] = covered  # a function: deepcopy, which makes snapshots, does not follow it
        self._undo.append(lambda: vars(owner).pop(last) if own is covered else vars(owner).update({last: own}))

    def _listen_to(self, model: nn.Module) -> None:
        def remember(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._needs is None or not torch.is_grad_enabled():
                return
            if args and kwargs:
                raise PskdError(
                    "inputs: the model was called with positional and named arguments, of which a snapshot takes one"
                    " kind; give inputs=, a function of the batch"
                )
            self._needs["inputs"] = kwargs or args

        self._undo.append(model.register_forward_pre_hook(remember, with_kwargs=True).remove)

    def _leave(self) -> None:
        """Put back what was there before."""
        self._needs = None
        while self._undo:
            self._undo.pop()()


class EpochLoader:
    """A loader over ``pskd.EpochSampler`` that Lightning resumes in the middle of an epoch, to the sample.

    Args:
        dataset: the training set, in ``pskd.Indexed``.
        sampler: which has batch size, seed and the place of this process; ``Trainer(use_distributed_sampler=False)``.
        settings: of the DataLoader, such as ``num_workers``.
    """

    def __init__(self, dataset: Any, sampler: EpochSampler, **settings: Any) -> None:
        self.sampler = self  # where Lightning looks for set_epoch
        self._loader: DataLoader[Any] = DataLoader(dataset, batch_sampler=sampler, **settings)
        self._plan, self._steps, self._epoch = sampler, len(sampler), 0
        self._start = self._done = 0  # where the next iteration begins, and what this one has given

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        self._done, self._start = self._start, 0  # an iteration that was broken off does not go on in the next
        self._plan.set_epoch(self._epoch, self._done)
        for batch in self._loader:
            self._done = (self._done + 1) % self._steps
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._start = self._done = state["done"]


def _taken_off(batch: Any, where: Where) -> Any:
    """The indices of a batch, which has them no longer; a function is asked, and leaves the batch as it is."""
    if callable(where):
        return where(batch)
    place = where if where is not None else "index" if isinstance(batch, Mapping) else -1
    try:
        return batch.pop(place)
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise PskdError(
            f"index: nothing can be taken off a batch that is a {type(batch).__name__} at {place!r}; wrap the data in"
            " pskd.Indexed, or give index=, a key, a position or a function of the batch"
        ) from error


def _warn_of_lost_settings(plain: nn.Module) -> None:
    usual = {"label_smoothing": 0.0, "weight": None, "reduction": "mean", "ignore_index": -100}
    set_ = {name: getattr(plain, name, value) for name, value in usual.items()}
    lost = [name for name, value in set_.items() if isinstance(value, Tensor) or value != usual[name]]
    if isinstance(plain, nn.CrossEntropyLoss) and lost:
        warnings.warn(
            f"criterion: {', '.join(lost)} of the plain loss count in validation only; in training the method takes"
            " its place",
            stacklevel=2,
        )
