"""The snapshot: a frozen copy of the model as it was, renewed when it is due and at no other time."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from banks import batch_of
from torch import Tensor, nn

from pskd import PSKD, Snapshot
from pskd.errors import PskdError
from pskd.memory.snapshot import unwrap_model


class Net(nn.Module):
    """With dropout and batch statistics, which evaluation mode must switch off."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return scale * self.body(x)


@pytest.fixture
def model() -> Net:
    torch.manual_seed(0)
    return Net()


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
BATCH = batch_of(torch.zeros(5, 3))


def prediction(model: nn.Module, x: Tensor = X) -> Tensor:
    with torch.no_grad():
        return copy.deepcopy(model).eval()(x).softmax(1)


def move(model: nn.Module) -> None:
    """A step of training: weights and batch statistics change."""
    model(X)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)


def read(memory: Snapshot, inputs: Any = X) -> Tensor:
    past = memory.read(memory.key(inputs=inputs), BATCH)
    assert past is not None
    assert past.classes is None
    assert past.known is None
    return past.values


def step(memory: Snapshot, reads: int = 1) -> Tensor | None:
    """A training step: what it has read, which is the same each time."""
    key = memory.key(inputs=X)
    pasts = [memory.read(key, BATCH) for _ in range(reads)]
    memory.write(key, BATCH)
    assert all(past is pasts[0] is None or torch.equal(past.values, pasts[0].values) for past in pasts)
    return pasts[0].values if pasts and pasts[0] is not None else None


def test_it_is_the_model_of_one_epoch_ago(model: Net) -> None:
    memory = Snapshot(model)
    memory.start_epoch(0)
    assert step(memory) is None
    for epoch in range(1, 4):
        for _ in range(3):
            move(model)
            step(memory, reads=0)
        before = prediction(model)
        memory.start_epoch(epoch)
        for _ in range(2):
            move(model)
            assert torch.equal(read(memory), before)
        assert not torch.equal(prediction(model), before)


def renewals(model: Net, refresh: float, steps: int | None, epochs: int = 5, steps_really: int = 4) -> list[float]:
    """When the copy changed, in epochs."""
    memory, seen, times = Snapshot(model, refresh, steps), None, []
    for epoch in range(epochs):
        memory.start_epoch(epoch)
        for place in range(steps_really):
            past = step(memory)
            if past is not None and (seen is None or not torch.equal(past, seen)):
                seen = past
                times.append(epoch + place / steps_really)
                assert torch.equal(seen, prediction(model))
            move(model)
    return times


@pytest.mark.parametrize(
    ("refresh", "steps", "expected"),
    [
        (1, None, [1, 2, 3, 4]),
        (1, 4, [1, 2, 3, 4]),
        (2, None, [2, 4]),
        (2, 4, [2, 4]),
        (0.5, 4, [0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5]),
        (1.5, 4, [1.5, 3, 4.5]),
        (1 / 3, 4, [0.5, 0.75, 1, 1.5, 1.75, 2, 2.5, 2.75, 3, 3.5, 3.75, 4, 4.5, 4.75]),
        (0.01, 4, [n / 4 for n in range(1, 20)]),
    ],
)
def test_it_is_renewed_when_due(model: Net, refresh: float, steps: int | None, expected: list[float]) -> None:
    assert renewals(model, refresh, steps) == expected


def test_rounding_skips_no_renewal(model: Net) -> None:
    """0.3 / 0.1 is a little less than 3."""
    assert renewals(model, 0.1, 10, epochs=2, steps_really=10) == [n / 10 for n in range(1, 20)]


@pytest.mark.parametrize("steps", [2, 3, 6])
def test_a_wrong_number_of_steps_still_renews_with_each_epoch(model: Net, steps: int) -> None:
    assert renewals(model, 1, steps) == [1, 2, 3, 4]


def test_the_copy_is_frozen_and_the_student_untouched(model: Net) -> None:
    memory = Snapshot(model)
    model(X).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    names, state = list(model.state_dict()), copy.deepcopy(model.state_dict())
    memory.start_epoch(1)
    first, second = read(memory), read(memory)

    assert torch.equal(first, second)  # no dropout, no batch statistics
    assert not first.requires_grad
    assert model.training
    assert all(now is then for now, then in zip((p.grad for p in model.parameters()), gradients, strict=True))
    assert list(model.state_dict()) == names
    assert all(torch.equal(part, state[name]) for name, part in model.state_dict().items())
    weights = memory.state_dict()["weights"]
    own = {part.data_ptr() for part in model.state_dict().values()}
    assert not own & {part.data_ptr() for part in weights.values()}


def test_inputs_are_a_tensor_a_tuple_or_a_dict(model: Net) -> None:
    memory = Snapshot(model)
    memory.start_epoch(1)
    assert torch.equal(read(memory, X), prediction(model))
    assert torch.equal(read(memory, (X,)), read(memory, X))
    assert torch.equal(read(memory, (X, 2.0)), read(memory, {"x": X, "scale": 2.0}))
    assert not torch.equal(read(memory, (X, 2.0)), read(memory, X))


def test_half_precision_predictions_are_summed_in_float32(model: Net) -> None:
    memory = Snapshot(model.bfloat16())
    memory.start_epoch(1)
    values = read(memory, X.bfloat16())
    assert values.dtype == torch.float32
    torch.testing.assert_close(values.sum(1), torch.ones(5))


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_wrappers_are_taken_off(model: Net, process_group: None) -> None:
    parallel = nn.parallel.DistributedDataParallel(model)
    for wrapped in (model, torch.compile(model), parallel, torch.compile(parallel), nn.DataParallel(model)):
        assert unwrap_model(wrapped) is model
    memory = Snapshot(torch.compile(parallel))
    memory.start_epoch(1)
    assert torch.equal(read(memory), prediction(model))
    assert list(memory.state_dict()["weights"]) == list(model.state_dict())


@pytest.mark.parametrize("stop", [(1, 0), (1, 1), (1, 3), (2, 2)])
def test_state_continues_in_the_middle_of_an_epoch(stop: tuple[int, int]) -> None:
    """Two models that train alike, one of them interrupted: the same copies at the same time."""

    def train(interrupted: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = Net()
        memory, seen = Snapshot(model, 0.5, steps_per_epoch=4), []
        for epoch in range(3):
            memory.start_epoch(epoch)
            for place in range(4):
                if interrupted and (epoch, place) == stop:
                    buffer = io.BytesIO()
                    torch.save({"memory": memory.state_dict(), "model": model.state_dict()}, buffer)
                    buffer.seek(0)
                    state = torch.load(buffer, weights_only=True)
                    generator = torch.get_rng_state()
                    model = Net()
                    torch.set_rng_state(generator)
                    model.load_state_dict(state["model"])
                    memory = Snapshot(model, 0.5, steps_per_epoch=4)
                    memory.load_state_dict(state["memory"])
                    memory.start_epoch(epoch)
                model(X)  # the student's forward pass moves the batch statistics before the memory is asked
                past = step(memory)
                seen.append(torch.zeros(0) if past is None else past)
                move(model)
        return seen

    for plain, resumed in zip(train(False), train(True), strict=True):
        assert torch.equal(plain, resumed)


def test_a_second_training_begins_without_a_past(model: Net) -> None:
    memory = Snapshot(model)
    for _ in range(2):
        method = PSKD(2, memory=memory)
        method.start_epoch(0)
        assert step(memory) is None
        method.start_epoch(1)
        assert step(memory) is not None


class Answer:
    """What models of the transformers library return."""

    def __init__(self, logits: Any) -> None:
        self.logits = logits


class Wrapped(Net):
    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        return Answer(super().forward(x, scale))


def test_a_model_may_return_an_object_that_has_logits() -> None:
    model = Wrapped()
    memory = Snapshot(model)
    memory.start_epoch(1)
    assert torch.equal(read(memory), copy.deepcopy(model).eval()(X).logits.softmax(1))


@pytest.mark.parametrize("answer", [{"out": X}, (X,), Answer(None), None])
def test_any_other_answer_is_named(answer: Any) -> None:
    class Other(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return answer

    memory = Snapshot(Other())
    memory.start_epoch(1)
    with pytest.raises(
        PskdError, match=f"returns logits, or an object that has them as .logits, not {type(answer).__name__}"
    ):
        read(memory)


def test_a_step_runs_the_copy_once_and_is_counted_once() -> None:
    """However many parts it has; it does not run where nobody reads."""
    runs = []

    class Counting(Net):
        def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
            runs.append(self.training)
            return super().forward(x, scale)

    memory = Snapshot(Counting(), 0.5, steps_per_epoch=2)
    for epoch, renewed in ((0, 1), (1, 3)):
        memory.start_epoch(epoch)
        for _ in range(2):
            key = memory.key(inputs=X)
            for _ in range(3):
                assert epoch == 0 or memory.read(key, BATCH) is not None
                memory.write(key, BATCH)
        state = memory.state_dict()
        assert (state["step"], state["renewals"]) == (2, renewed)
    assert runs == [False, False]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"refresh": 0}, "refresh must be a positive number, got 0"),
        ({"refresh": float("nan")}, "refresh must be a positive number, got nan"),
        ({"refresh": float("inf")}, "refresh must be a positive number, got inf"),
        ({"refresh": 0.5}, "refresh=0.5 is not a whole number of epochs: give steps_per_epoch too"),
        ({"steps_per_epoch": 0}, "steps_per_epoch must be at least 1, got 0"),
    ],
)
def test_wrong_settings_are_named(model: Net, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PskdError, match=re.escape(message)):
        Snapshot(model, **settings)


def followed(model: Net, memory: Snapshot, decay: float, steps: int) -> dict[str, Tensor]:
    """The mean of every weight by hand, after ``steps`` steps that asked the memory for the past or did not."""
    means: dict[str, Tensor] = {}
    for seen in range(steps):
        move(model)
        for name, value in model.state_dict().items():
            share = min(decay, seen / (seen + 1))
            mixed = share * means[name] + (1 - share) * value if seen and value.is_floating_point() else value
            means[name] = mixed.clone()
        step(memory, reads=2 * (seen % 2))
    return means


def test_a_copy_that_follows_is_the_mean_of_the_models(model: Net) -> None:
    memory = Snapshot(model, ema=0.8)
    memory.start_epoch(0)
    means = followed(model, memory, 0.8, steps=12)
    state = memory.state_dict()["weights"]
    torch.testing.assert_close(dict(state), means)
    assert state["body.1.num_batches_tracked"] == 12

    memory.start_epoch(1)  # nothing is renewed at an epoch's end
    torch.testing.assert_close(dict(memory.state_dict()["weights"]), means)
    # The past of a step is that of the copy which has just followed the model.
    torch.lerp(means["body.0.bias"], model.body[0].bias.detach(), 0.2, out=means["body.0.bias"])
    read(memory)
    torch.testing.assert_close(memory.state_dict()["weights"]["body.0.bias"], means["body.0.bias"])


def test_a_copy_that_follows_goes_on_to_the_bit(model: Net) -> None:
    memory = Snapshot(model, ema=0.8)
    memory.start_epoch(0)
    followed(model, memory, 0.8, steps=3)
    again = Snapshot(model, ema=0.8)
    again.load_state_dict(copy.deepcopy(memory.state_dict()))
    again.start_epoch(0)
    for _ in range(3):
        move(model)
        for each in (memory, again):
            step(each)
    assert torch.equal(read(memory), read(again))
    memory.clear()
    move(model)
    assert torch.equal(read(memory), prediction(model)), "a new training begins with the model as it is"


def test_a_copy_either_follows_or_is_renewed(model: Net) -> None:
    with pytest.raises(PskdError, match=r"refresh=2 and ema=0.9: a copy that follows is never renewed"):
        Snapshot(model, refresh=2, ema=0.9)
    with pytest.raises(PskdError, match=r"ema must lie in \[0, 1\), got 1"):
        Snapshot(model, ema=1)


def test_a_copy_holds_no_gradients_and_takes_none_away(model: Net) -> None:
    """A copy of them would double the memory of a snapshot."""
    model(X).sum().backward()
    before = [parameter.grad for parameter in model.parameters()]
    memory = Snapshot(model)
    memory.start_epoch(1)
    assert memory._copy is not None
    assert all(parameter.grad is None for parameter in memory._copy.parameters())
    after = [parameter.grad for parameter in model.parameters()]
    assert all(one is other is not None for one, other in zip(before, after, strict=True))
