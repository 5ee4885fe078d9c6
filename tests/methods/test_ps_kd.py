"""PS-KD in a bare training loop: a hand-computed example, the first epoch, resume, and every wrong use."""

from __future__ import annotations

import copy
import io
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from banks import known
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pskd import PSKD, TFKD, Hard, Indexed, LinearHead, Loss, PredictionBank, Snapshot, schedules, soft_cross_entropy
from pskd.checks import ValueChecks, allow_nonfinite
from pskd.errors import PskdError
from pskd.memory.base import Memory

N, K = 12, 4


def logits_of(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def probabilities(distill: PSKD, index: Tensor) -> Tensor:
    assert isinstance(distill.memory, PredictionBank)
    return distill.memory.probabilities(index).clone()


def test_two_epochs_by_hand() -> None:
    """Two samples, two classes, T = 2 and alpha_T = 0.8, so alpha is 0.4 and then 0.8.

    Logits (ln 3, 0) give the prediction (3/4, 1/4), and (0, ln 4) gives (1/5, 4/5).
    """
    distill = PSKD(epochs=2, alpha=0.8, memory=PredictionBank(2, 2, dtype=torch.float64))
    labels, index = torch.tensor([0, 0]), torch.tensor([0, 1])

    distill.start_epoch(0)
    assert distill.alpha_t == pytest.approx(0.4)
    first = torch.tensor([[math.log(3), 0.0], [0.0, math.log(4)]], dtype=torch.float64, requires_grad=True)
    loss = distill(first, labels, index=index)
    # The labels alone: -ln(3/4) and -ln(1/5), on average.
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(5)) / 2)
    (gradient,) = torch.autograd.grad(loss, first)
    torch.testing.assert_close(gradient, torch.tensor([[-1 / 8, 1 / 8], [-2 / 5, 2 / 5]], dtype=torch.float64))

    distill.start_epoch(1)
    assert distill.alpha_t == pytest.approx(0.8)
    # Now sample 1 comes first. Targets: 0.2 (1, 0) + 0.8 (1/5, 4/5) = (0.36, 0.64), and
    # 0.2 (1, 0) + 0.8 (3/4, 1/4) = (0.8, 0.2). Logits of 0 give the prediction (1/2, 1/2).
    second = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]], dtype=torch.float64, requires_grad=True)
    loss = distill(second, labels, index=index.flip(0))
    expected = (math.log(2) + 0.8 * math.log(4 / 3) + 0.2 * math.log(4)) / 2
    assert loss.item() == pytest.approx(expected)
    (gradient,) = torch.autograd.grad(loss, second)
    by_hand = [[(0.5 - 0.36) / 2, (0.5 - 0.64) / 2], [(0.75 - 0.8) / 2, (0.25 - 0.2) / 2]]
    torch.testing.assert_close(gradient, torch.tensor(by_hand, dtype=torch.float64))
    # And these predictions are what a third epoch would read.
    recorded = torch.tensor([[0.75, 0.25], [0.5, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(probabilities(distill, index), recorded)


def test_the_first_epoch_is_plain_cross_entropy() -> None:
    """Also for a sample that comes twice, whose record is there by then; with a bank and with a snapshot."""
    model = nn.Linear(3, K)
    bank, snapshot = PredictionBank(N, K), Snapshot(model, 0.5, steps_per_epoch=2)
    for memory in (bank, snapshot):
        distill = PSKD(epochs=3, alpha=1.0, schedule="constant", memory=memory)
        distill.start_epoch(0)
        for _ in range(4):
            x, labels = torch.randn(5, 3), torch.randint(K, (5,))
            logits = model(x)
            loss = distill(logits, labels, index=torch.arange(5), inputs=x)
            torch.testing.assert_close(loss, F.cross_entropy(logits, labels))
        distill.start_epoch(1)


def test_samples_without_a_past_have_their_label_as_target() -> None:
    distill = PSKD(epochs=2, alpha=1.0, memory=PredictionBank(N, K, dtype=torch.float64))
    distill.start_epoch(0)
    early = logits_of(2, K)
    distill(early, torch.tensor([0, 1]), index=torch.tensor([0, 1]))
    distill.start_epoch(1)
    logits, labels = logits_of(3, K, seed=1), torch.tensor([0, 1, 2])
    loss = distill(logits, labels, index=torch.tensor([0, 1, 5]))
    past = early.detach().double().softmax(1)
    log_p = logits.double().log_softmax(1)
    expected = (-(past * log_p[:2]).sum() - log_p[2, 2]) / 3
    torch.testing.assert_close(loss, expected.float())


def started(memory: Memory | None = None, epoch: int = 1, **settings: Any) -> PSKD:
    """A method in its second epoch; every sample was recorded in the first."""
    memory = memory or PredictionBank(N, K, dtype=torch.float64)
    distill = PSKD(**{"epochs": 2, "alpha": 0.8, "memory": memory, **settings})
    distill.start_epoch(0)
    if epoch and memory.needs == "index":
        distill(logits_of(N, K, seed=7), torch.arange(N) % K, index=torch.arange(N))
    if epoch:
        distill.start_epoch(1)
    return distill


def test_where_distilled_is_false_the_memory_is_neither_read_nor_written() -> None:
    distill = started()
    index = torch.arange(4)
    logits, before = logits_of(4, K), probabilities(distill, index)
    distilled = torch.tensor([True, False, True, False])
    loss = distill(logits, index % K, index=index, distilled=distilled)
    log_p = logits.double().log_softmax(1)
    target = F.one_hot(index % K, K).double()
    target[distilled] = 0.2 * target[distilled] + 0.8 * before[distilled]
    torch.testing.assert_close(loss, -(target * log_p).sum(1).mean().float())
    written = (probabilities(distill, index) != before).any(1)
    assert torch.equal(written, distilled)


def test_none_distilled_is_plain_cross_entropy_also_with_mixed_labels() -> None:
    distill, logits = started(), logits_of(4, K)
    first, second, lam = torch.arange(4) % K, torch.tensor([3, 3, 0, 0]), torch.tensor([0.2, 0.5, 0.9, 1.0])
    loss = distill(logits, (first, second, lam), index=torch.arange(4), distilled=torch.zeros(4, dtype=torch.bool))
    a, b = (F.cross_entropy(logits, label, reduction="none") for label in (first, second))
    torch.testing.assert_close(loss, (lam * a + (1 - lam) * b).mean())


def test_tokens_with_padding() -> None:
    """(sentences, classes, tokens): padding counts nowhere, and its index may be anything."""
    distill = PSKD(epochs=2, alpha=1.0, memory=PredictionBank(N, K, dtype=torch.float64))
    index, labels = torch.tensor([[0, 1, 2], [3, 4, 99]]), torch.tensor([[0, 1, 2], [3, 0, -100]])
    early, logits = logits_of(2, K, 3), logits_of(2, K, 3, seed=1)
    distill.start_epoch(0)
    torch.testing.assert_close(distill(early, labels, index=index), F.cross_entropy(early, labels))
    distill.start_epoch(1)
    loss = distill(logits, labels, index=index)
    each = -(early.detach().double().softmax(1) * logits.double().log_softmax(1)).sum(1)
    torch.testing.assert_close(loss, each[labels != -100].mean().float())


def test_dense_predictions_with_a_snapshot() -> None:
    model = nn.Conv2d(3, K, 1)
    distill = started(Snapshot(model), alpha=1.0)
    x, labels = torch.randn(2, 3, 5, 5), torch.randint(K, (2, 5, 5))
    labels[0, 0, 0] = -100
    logits = model(x)
    loss = distill(logits, labels, inputs=x)
    each = -(logits.detach().softmax(1) * logits.log_softmax(1)).sum(1)  # nothing was learnt yet: its own past
    torch.testing.assert_close(loss, each[labels != -100].mean())


def test_class_probabilities_are_labels_too() -> None:
    distill, logits = started(), logits_of(4, K)
    labels = logits_of(4, K, seed=3).detach().softmax(1)
    before = probabilities(distill, torch.arange(4))
    loss = distill(logits, labels, index=torch.arange(4))
    expected = -((0.2 * labels + 0.8 * before) * logits.double().log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(loss, expected.float())


def test_loss_tells_its_parts() -> None:
    distill, logits = started(), logits_of(4, K)
    loss = distill.loss(logits, torch.arange(4), index=torch.arange(4))
    assert isinstance(loss, Loss)
    assert torch.equal(sum(loss.parts.values()), loss.total.detach())
    assert distill.needs == {"index"}
    assert PSKD(1, memory=Snapshot(nn.Linear(1, 1))).needs == {"inputs"}


def test_who_watches_is_shown_every_batch_that_has_a_past() -> None:
    """Positions in a row, the targets as they were given, a past of probabilities and alpha_t as a tensor."""
    distill, shown = PSKD(2, alpha=0.6, memory=PredictionBank(N, K, form="topk", k=2)), []
    distill.watch = lambda *seen: shown.append(seen)
    index, labels = torch.arange(6).view(2, 3), torch.arange(6).view(2, 3) % K
    first, second = logits_of(2, K, 3), logits_of(2, K, 3, seed=1)
    for epoch, each in enumerate((first, second)):
        assert not shown
        distill.start_epoch(epoch)
        distill(each, labels, index=index)
    ((logits, targets, past, alpha),) = shown
    assert torch.equal(logits, second.movedim(1, -1).reshape(6, K))
    assert targets is labels
    p, classes = first.detach().softmax(1).movedim(1, -1).reshape(6, K).topk(2, 1)
    torch.testing.assert_close(past.probabilities(K).gather(1, classes), p, atol=1e-3, rtol=1e-3)
    assert past.mass is None
    assert bool(past.known.all())
    assert (alpha.shape, float(alpha)) == ((), pytest.approx(0.6))


DATA = TensorDataset(torch.randn(N, 3, generator=torch.Generator().manual_seed(0)), torch.arange(N) % K)


def make_memory(kind: str, model: nn.Module) -> Memory:
    if kind == "snapshot":
        return Snapshot(model, 0.5, steps_per_epoch=4)
    return PredictionBank(N, K, form=kind, k=2)


@pytest.mark.parametrize("kind", ["dense", "topk", "snapshot"])
@pytest.mark.parametrize("stop", [(0, 2), (1, 0), (2, 3)])
def test_a_resumed_training_is_bit_equal(kind: str, stop: tuple[int, int]) -> None:
    def objects() -> tuple[nn.Module, torch.optim.Optimizer, PSKD]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, K))
        optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
        return model, optimizer, PSKD(epochs=3, memory=make_memory(kind, model))

    def train(interrupted: bool) -> tuple[list[float], dict[str, Tensor]]:
        parts, losses = objects(), []
        for epoch in range(3):
            parts[2].start_epoch(epoch)
            order = torch.Generator().manual_seed(epoch)
            for step, (x, y, index) in enumerate(DataLoader(Indexed(DATA), 3, shuffle=True, generator=order)):
                if interrupted and (epoch, step) == stop:
                    buffer = io.BytesIO()
                    torch.save([part.state_dict() for part in parts], buffer)
                    buffer.seek(0)
                    parts = objects()
                    for part, state in zip(parts, torch.load(buffer, weights_only=True), strict=True):
                        part.load_state_dict(state)
                    parts[2].start_epoch(epoch)
                model, optimizer, distill = parts
                loss = distill(model(x), y, index=index, inputs=x)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses, parts[0].state_dict()

    losses, weights = train(interrupted=False)
    resumed_losses, resumed_weights = train(interrupted=True)
    assert resumed_losses == losses
    assert all(torch.equal(part, weights[name]) for name, part in resumed_weights.items())


def test_a_state_from_the_end_of_an_epoch_goes_on_with_the_next() -> None:
    before = started()
    before(logits_of(N, K, seed=8), torch.arange(N) % K, index=torch.arange(N))
    state = before.state_dict()
    other = PSKD(epochs=4, memory=PredictionBank(N, K, dtype=torch.float64))
    with pytest.warns(UserWarning, match="epochs=4, but 2 when this state was saved"):
        other.load_state_dict(state)
    assert other.state_dict()["epoch"] == 1  # saved again before anything was done
    other.start_epoch(2)
    assert other.alpha_t == pytest.approx(0.8 * 3 / 4)
    assert known(other.memory, torch.arange(N)) == [True] * N  # type: ignore[arg-type]


def test_a_state_from_before_the_first_epoch_starts_at_zero() -> None:
    distill = PSKD(epochs=2, memory=PredictionBank(N, K))
    distill.load_state_dict(PSKD(epochs=2, memory=PredictionBank(N, K)).state_dict())
    with pytest.raises(PskdError, match=re.escape("start_epoch(1) comes first")):
        distill.start_epoch(1)
    distill.start_epoch(0)


def test_a_state_of_the_first_epoch_keeps_its_records_in_a_bank_that_was_used() -> None:
    used = started()
    state = {**used.state_dict(), "epoch": 0}
    distill = PSKD(epochs=2, memory=used.memory)
    distill.load_state_dict(state)
    distill.start_epoch(0)
    distill.start_epoch(1)
    assert known(distill.memory, torch.arange(N)) == [True] * N  # type: ignore[arg-type]


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_second_training_with_the_same_bank_starts_empty(epochs: int) -> None:
    """Also after a training of one epoch, and with labels that are others now."""
    bank = PredictionBank(N, K)
    for shift in range(3):
        distill = PSKD(epochs=epochs, memory=bank)
        for epoch in range(epochs):
            distill.start_epoch(epoch)
            if epoch == 0:
                assert known(bank, torch.arange(N)) == [False] * N
            distill(logits_of(N, K), (torch.arange(N) + shift) % K, index=torch.arange(N))


INDEX, CLASSES = torch.arange(4), torch.arange(4) % K


def bad_logits(value: float) -> Tensor:
    logits = torch.zeros(4, K)
    logits[1:3, 2] = value
    return logits.requires_grad_()


def all_masked() -> Tensor:
    return torch.zeros(4, K).index_fill(0, torch.tensor([2]), -math.inf).requires_grad_()


@pytest.mark.parametrize("kind", ["dense", "topk", "snapshot"])
def test_masked_classes_are_no_error(kind: str) -> None:
    """A class whose logit is -inf has past 0; what an earlier epoch gave to a class that is masked now is dropped."""

    class Masking(nn.Module):
        """Inputs (B, 2 * K): logits, and what is added to them, 0 or -inf."""

        def forward(self, x: Tensor) -> Tensor:
            return x[:, :K] + x[:, K:]

    labels, index, model = torch.arange(4) % K, torch.arange(4), Masking()
    first, second = (torch.randn(4, K, dtype=torch.float64).requires_grad_() for _ in range(2))
    before, now = torch.zeros(4, K, dtype=torch.float64), torch.zeros(4, K, dtype=torch.float64)
    before[0, 1] = now[0, 1] = now[1, 3] = before[2, 0] = -math.inf
    if kind == "snapshot":
        before = now  # the copy sees the inputs of today
    k = K - 1  # of a top-k record one class has the rest
    memory = Snapshot(model) if kind == "snapshot" else PredictionBank(4, K, kind, k, torch.float64)  # type: ignore[arg-type]
    distill = PSKD(2, alpha=0.7, memory=memory)
    distill.start_epoch(0)
    plain = distill(first + before, labels, index=index, inputs=torch.cat((first, before), 1))
    torch.testing.assert_close(plain, F.cross_entropy(first + before, labels))
    distill.start_epoch(1)
    past = (first.detach() + before).softmax(1)
    if kind == "snapshot":
        past = (second.detach() + now).softmax(1)
    loss = distill(second + now, labels, index=index, inputs=torch.cat((second, now), 1))
    q = (0.3 * F.one_hot(labels, K) + 0.7 * past).masked_fill(now.isinf(), 0)
    log_p = (second + now).log_softmax(1).masked_fill(now.isinf(), 0)
    expected = -(q * log_p).sum(1).mean()
    assert expected.isfinite()
    torch.testing.assert_close(loss, expected)
    slopes = [torch.autograd.grad(each, second)[0] for each in (loss, expected)]
    torch.testing.assert_close(slopes[0], slopes[1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"targets": CLASSES + 1}, "targets: 1 class indices lie outside 0..3 (smallest 1, largest 4)"),
        ({"targets": CLASSES - 1}, "targets: 1 class indices lie outside 0..3 (smallest -1, largest 2)"),
        ({"targets": (CLASSES, CLASSES + 2, 0.5)}, "targets[1]: 2 class indices lie outside 0..3"),
        ({"targets": (CLASSES, CLASSES, -1)}, "targets[2] (lam) must lie in [0, 1], got -1"),
        ({"targets": CLASSES[:3]}, "targets has shape (3,)"),
        ({"index": INDEX + N - 3}, "index: 1 lie outside 0..11"),
        ({"index": INDEX - 2}, "index: 2 lie outside 0..11"),
        ({"index": INDEX[:3]}, "index has shape (3,), but the logits want one per label, (4,)"),
        ({"index": None}, "index is missing: with a PredictionBank, call with index=..."),
        ({"index": INDEX + 1}, "index: 4 samples had another label when the bank was filled"),
        ({"logits": logits_of(4, K + 1)}, "logits have 5 classes, but the bank was made for 4"),
        ({"logits": logits_of(K)}, "logits must be floating point (B, K, ...)"),
        ({"logits": logits_of(4, K).detach()}, "logits have no gradient: call the method in training only"),
        ({"logits": bad_logits(math.nan)}, "logits: 2 of 4 rows are NaN or infinite in epoch 1 (counted from 0)"),
        ({"logits": bad_logits(math.inf)}, "logits: 2 of 4 rows are NaN or infinite in epoch 1 (counted from 0)"),
        ({"logits": all_masked()}, "logits: 1 of 4 rows are NaN or infinite in epoch 1 (counted from 0)"),
        ({"targets": torch.ones(4, K)}, "targets: 4 of 4 rows are no class probabilities, none negative and 1 in sum"),
        ({"distilled": torch.ones(3)}, "distilled has shape (3,); one per sample or label is (4,)"),
    ],
)
def test_wrong_use_of_a_batch_is_named_and_writes_nothing(wrong: dict[str, Any], message: str) -> None:
    distill = started()
    records = distill.state_dict()["memory"]["records"].clone()
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        distill(**{"logits": logits_of(4, K), "targets": CLASSES, "index": INDEX, **wrong})
    assert isinstance(caught.value, PskdError)
    assert "\n" not in str(caught.value)
    assert torch.equal(distill.state_dict()["memory"]["records"], records)


def test_a_validation_pass_cannot_overwrite_records() -> None:
    distill, model = started(), nn.Linear(3, K)
    with torch.no_grad(), pytest.raises(PskdError, match="logits have no gradient"):
        distill(model(torch.randn(4, 3)), CLASSES, index=INDEX)


def test_a_snapshot_needs_inputs_and_as_many_classes() -> None:
    distill = started(Snapshot(nn.Linear(3, K)))
    with pytest.raises(PskdError, match=re.escape("inputs is missing: with a Snapshot, call with inputs=...")):
        distill(logits_of(4, K), CLASSES, index=INDEX)
    with pytest.raises(PskdError, match=re.escape("past: a dense past of shape (4, 4) does not fit logits (4, 5)")):
        distill(logits_of(4, K + 1), CLASSES, inputs=torch.randn(4, 3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": -0.1}, "alpha must lie in [0, 1], got -0.1"),
        ({"alpha": 1.1}, "alpha must lie in [0, 1], got 1.1"),
        ({"alpha": math.nan}, "alpha must lie in [0, 1], got nan"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"schedule": "liner"}, "schedule is 'liner'; allowed are linear, step, exponential, cosine, constant"),
        ({"memory": None}, "memory must be a pskd.PredictionBank or a pskd.Snapshot, got NoneType"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PskdError, match=re.escape(message)):
        PSKD(**{"epochs": 2, "memory": PredictionBank(N, K), **settings})


def test_a_schedule_that_leaves_its_range_is_named() -> None:
    distill = PSKD(2, schedule=lambda progress: 2 * progress, memory=PredictionBank(N, K))
    distill.start_epoch(0)
    with pytest.raises(PskdError, match=r"schedule gives 2\.0 in epoch 1; allowed is a share of alpha in \[0, 1\]"):
        distill.start_epoch(1)


@pytest.mark.parametrize(
    ("epochs", "message"),
    [
        ([1], "start_epoch(1) comes first, but no state was loaded: start at 0, or load_state_dict()"),
        ([-1], "start_epoch(-1) comes first"),
        ([0, 1, 2, 3], "start_epoch(3) is past the last epoch: epochs=3, so 0..2"),
        ([0, 2], "start_epoch(2) cannot follow epoch 0: go on with 1, or make a new PSKD"),
        ([0, 1, 0], "start_epoch(0) cannot follow epoch 1"),
    ],
)
def test_epochs_come_in_order(epochs: list[int], message: str) -> None:
    distill = PSKD(epochs=3, memory=PredictionBank(N, K))
    for epoch in epochs[:-1]:
        distill.start_epoch(epoch)
    with pytest.raises(PskdError, match=re.escape(message)):
        distill.start_epoch(epochs[-1])


@pytest.mark.parametrize("use", [lambda method: method.alpha_t, lambda method: method(logits_of(4, K), CLASSES)])
def test_no_epoch_was_started(use: Callable[[PSKD], Any]) -> None:
    fresh, loaded = (PSKD(epochs=2, memory=PredictionBank(N, K, dtype=torch.float64)) for _ in range(2))
    loaded.load_state_dict(started().state_dict())
    for method in (fresh, loaded):
        with pytest.raises(PskdError, match=re.escape("call start_epoch(epoch) before the first batch")):
            use(method)


def test_a_bank_of_another_data_set_is_refused() -> None:
    state = PSKD(2, memory=PredictionBank(N, K, fingerprint=Indexed(DATA).fingerprint)).state_dict()
    relabelled = TensorDataset(DATA.tensors[0], DATA.tensors[1].flip(0))
    other = PSKD(2, memory=PredictionBank(N, K, fingerprint=Indexed(relabelled).fingerprint))
    with pytest.raises(PskdError, match="fingerprint: the stored bank was filled for another or a reordered data set"):
        other.load_state_dict(state)


def test_checks_on_the_host_are_made_at_once_and_count() -> None:
    checks = ValueChecks()
    checks.require_none(torch.zeros(3, dtype=torch.bool), lambda wrong: f"{wrong} are wrong")
    checks.settle()
    with pytest.raises(PskdError, match="2 are wrong"):
        checks.require_none(torch.tensor([True, False, True]), lambda wrong: f"{wrong} are wrong")
    checks.settle()  # reported once, not again


def test_a_sample_that_skipped_an_epoch_has_its_label_as_target() -> None:
    """Records are served for one epoch; samples that are left out on purpose (here the mixed half) keep theirs."""
    distill = PSKD(epochs=3, alpha=1.0, schedule="constant", memory=PredictionBank(N, K, dtype=torch.float64))
    labels, first = torch.arange(3), logits_of(3, K)
    distill.start_epoch(0)
    distill(first, labels, index=torch.arange(3))
    distill.start_epoch(1)
    left_out = torch.tensor([True, False])
    distill(logits_of(2, K, seed=1), labels[1:], index=torch.arange(1, 3), distilled=left_out)
    distill.start_epoch(2)
    logits = logits_of(3, K, seed=2)
    loss = distill(logits, labels, index=torch.arange(3))
    log_p = logits.double().log_softmax(1)
    pasts = torch.stack([F.one_hot(labels[0], K).double(), logits_of(2, K, seed=1)[0].softmax(0), first[2].softmax(0)])
    torch.testing.assert_close(loss, -(pasts * log_p).sum(1).mean().float())


def test_a_refused_state_changes_nothing_not_even_the_epoch() -> None:
    bank, model = PredictionBank(N, K, dtype=torch.float64), nn.Linear(3, K)
    with_bank, with_snapshot = started(bank, epochs=3), started(Snapshot(model), epochs=3)
    states = [with_bank.state_dict(), with_snapshot.state_dict(), {}, started(Snapshot(nn.Linear(2, K))).state_dict()]
    for method, wrong in ((with_bank, states[1:]), (with_snapshot, [states[0], *states[2:]])):
        for state in wrong:
            if "epoch" in state:
                state = {**state, "epoch": 0}
            with pytest.raises(PskdError, match=r"^state: ") as caught:
                method.load_state_dict(state)
            assert "\n" not in str(caught.value)
            assert method.state_dict()["epoch"] == 1
            assert method.alpha_t > 0
    assert known(bank, torch.arange(N)) == [True] * N
    for method in (with_bank, with_snapshot):
        method.start_epoch(2)


def test_an_index_may_be_a_list() -> None:
    """Also for the parts of a head."""
    hidden, weight = torch.randn(4, 3, requires_grad=True), torch.randn(K, 3)
    losses = []
    for convert in (torch.tensor, list):
        distill = started()
        losses.append(distill(hidden @ weight.T, CLASSES, index=convert([0, 1, 2, 3])))
        losses.append(started()(LinearHead(hidden, weight), CLASSES, index=convert([0, 1, 2, 3])))
    torch.testing.assert_close(torch.stack(losses), losses[0].expand(4))


@pytest.mark.parametrize("form", ["dense", "topk"])
@pytest.mark.parametrize("epochs", [60, 100, 300])
@pytest.mark.parametrize("parts", [1, 3])
def test_auto_by_hand_over_epochs(form: Literal["dense", "topk"], epochs: int, parts: int) -> None:
    """A slow transcription beside it, every sample's target, one after the other; the batch in one or several calls."""
    distill = PSKD(epochs=epochs, alpha="auto", memory=PredictionBank(N, K, form=form, k=2, dtype=torch.float64))
    labels = torch.arange(N) % K
    labels[2] = -100
    rows: dict[int, Tensor] = {}
    learnt = 0.0
    for epoch in range(3):
        distill.start_epoch(epoch)
        logits = logits_of(N, K, seed=epoch).double().detach().requires_grad_()
        alpha = (epoch + 1) / epochs * learnt ** max(1, 100 / epochs)
        given = []
        for index in torch.arange(N).chunk(parts):
            terms = []
            for sample in index.tolist():
                if sample == 2:
                    continue
                y = F.one_hot(labels[sample], K).double()
                q = (1 - alpha) * y + alpha * rows.get(sample, y)
                terms.append(-(q * logits[sample].log_softmax(0)).sum())
                given.append(float(logits[sample].detach().softmax(0)[labels[sample]]))
            expected = torch.stack(terms).mean()
            (gradient,) = torch.autograd.grad(expected, logits, retain_graph=True)
            loss = distill(logits[index], labels[index], index=index)
            torch.testing.assert_close(loss, expected)
            torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], gradient)
        for sample, p in enumerate(logits.detach().softmax(1)):
            values, classes = p.topk(2 if form == "topk" else K)
            rest = (1 - values.sum()) / max(1, K - len(values))
            rows[sample] = torch.full_like(p, float(rest)).scatter(0, classes, values)
        assert distill.alpha_t == pytest.approx(alpha)
        learnt = sum(given) / len(given)


@pytest.mark.parametrize("kind", ["indices", "mixed", "probabilities"])
def test_auto_counts_what_labels_of_every_kind_were_given(kind: str) -> None:
    """<q, p>; where a sample is not distilled, or its prediction not finite, it does not count, or as nothing."""
    q = torch.tensor([[0.3, 0.7, 0, 0], [0, 0, 0, 1.0], [1, 0, 0, 0], [0, 0, 1, 0]], dtype=torch.float64)
    targets: Any = q
    if kind == "indices":
        targets = torch.tensor([1, 3, 0, 2])
        q = F.one_hot(targets, K).double()
    elif kind == "mixed":
        lam = torch.tensor([0.3, 1.0, 1.0, 1.0], dtype=torch.float64)
        targets = torch.tensor([0, 3, 0, 2]), torch.tensor([1, 3, 0, 2]), lam
    logits = logits_of(4, K, seed=1).double().detach()
    logits[2] = math.nan
    distill = PSKD(epochs=100, alpha="auto", memory=PredictionBank(4, K, dtype=torch.float64))
    distill.start_epoch(0)
    distilled = torch.tensor([True, True, True, False])
    with allow_nonfinite():
        distill(logits.requires_grad_(), targets, index=torch.arange(4), distilled=distilled)
    assert known(distill.memory, torch.arange(4)) == [True, True, False, False]  # type: ignore[arg-type]
    distill.start_epoch(1)
    given = (q * logits.detach().softmax(1))[:2].sum()
    assert distill.alpha_t == pytest.approx(2 / 100 * float(given) / 3)


def test_auto_goes_on_in_the_middle_of_an_epoch() -> None:
    def made() -> PSKD:
        return PSKD(epochs=100, alpha="auto", memory=PredictionBank(N, K))

    def step(distill: PSKD, half: int) -> float:
        index = torch.arange(N).chunk(2)[half]
        return float(distill(logits_of(N // 2, K, seed=half), index % K, index=index).detach())

    whole, broken = made(), made()
    for distill in (whole, broken):
        distill.start_epoch(0)
        step(distill, 0)
    state = broken.state_dict()
    broken = made()
    broken.load_state_dict(state)
    broken.start_epoch(0)
    for distill in (whole, broken):
        step(distill, 1)
        distill.start_epoch(1)
    assert broken.alpha_t == whole.alpha_t > 0
    assert step(broken, 0) == step(whole, 0)
    del state["learnt"]  # of an older version
    older = made()
    older.load_state_dict(state)
    older.start_epoch(0)
    assert older.alpha_t == 0


def test_auto_stays_plain_where_nothing_was_learnt() -> None:
    """A model that gives its labels 1% leaves them as they are, and so does a short training."""
    distill = PSKD(epochs=2, alpha="auto", memory=PredictionBank(1, 100, dtype=torch.float64))
    flat = torch.zeros(1, 100, dtype=torch.float64, requires_grad=True)
    for epoch in range(2):
        distill.start_epoch(epoch)
        loss = distill(flat, torch.tensor([3]), index=torch.tensor([0]))
        assert loss.item() == pytest.approx(math.log(100), rel=1e-12)
    with pytest.raises(PskdError, match="alpha is 'automatic'; allowed are auto"):
        PSKD(epochs=2, alpha="automatic", memory=PredictionBank(1, 100))  # type: ignore[arg-type]


def test_much_trust_in_a_short_training_is_spoken_of() -> None:
    def advice(**settings: Any) -> str | None:
        return PSKD.card.advise(PSKD(memory=PredictionBank(1, 3), **settings))

    said = advice(epochs=29, alpha=0.5)
    assert said is not None
    assert said.startswith(
        "alpha 0.5 in 29 epochs: PS-KD usually costs accuracy in trainings this short; method.alpha=auto"
    )
    quiet: list[dict[str, Any]] = [
        {"epochs": 30, "alpha": 0.8},
        {"epochs": 10, "alpha": 0.3},
        {"epochs": 10, "alpha": "auto"},
        {"steps": 10, "alpha": 0.8},
    ]
    assert [advice(**settings) for settings in quiet] == [None] * 4
    assert Hard.card.advise(Hard()) is None
    assert PSKD.card.logs == ("alpha_t",)


def test_auto_of_a_stream_knows_all_steps_so_far() -> None:
    model = nn.Linear(3, K)
    distill = PSKD(steps=4, alpha="auto", memory=Snapshot(model, refresh=2))
    given = []
    for step in range(3):
        inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
        distill(model(inputs), torch.zeros(5, dtype=torch.long), inputs=inputs)
        expected = (step + 1) / 4 * (sum(given) / len(given) if given else 0.0)
        assert distill.alpha_t == pytest.approx(expected, rel=1e-5)
        given.append(float(model(inputs).softmax(1)[:, 0].mean().detach()))


def test_steps_instead_of_epochs() -> None:
    """alpha grows with every call, to the last step and no further; a snapshot is renewed every so many."""
    torch.manual_seed(0)
    model = nn.Linear(3, K)
    distill = PSKD(steps=4, alpha=0.8, memory=Snapshot(model, refresh=2))
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    x, seen, copies, states = torch.randn(4, 3), [], [], []
    for _ in range(6):
        distill.start_epoch(0)  # a loop that knows nothing of steps
        copies.append(copy.deepcopy(model))
        past = None if len(copies) <= 2 else copies[(len(copies) - 1) // 2 * 2](x).softmax(1).detach()
        loss = distill(model(x), CLASSES, inputs=x)
        alpha = 0.8 * min(1, len(copies) / 4)
        assert distill.alpha_t == pytest.approx(alpha)
        expected = soft_cross_entropy(model(x), CLASSES, past, alpha if past is not None else 0.0)
        torch.testing.assert_close(loss, expected)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(float(loss.detach()))
        states.append(copy.deepcopy((distill.state_dict(), model.state_dict(), optimizer.state_dict())))
    again, resumed = nn.Linear(3, K), []
    method = PSKD(steps=4, alpha=0.8, memory=Snapshot(again, refresh=2))
    optimizer = torch.optim.SGD(again.parameters(), 1.0)
    for thing, state in zip((method, again, optimizer), states[2], strict=True):
        thing.load_state_dict(state)
    for _ in range(3):
        loss = method(again(x), CLASSES, inputs=x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        resumed.append(float(loss.detach()))
    assert resumed == seen[3:]


def test_steps_with_a_bank_and_steps_of_several_calls() -> None:
    distill = PSKD(steps=10, alpha=0.5, memory=PredictionBank(N, K, dtype=torch.float64))
    with pytest.raises(PskdError, match="alpha_t: no step was made yet"):
        _ = distill.alpha_t
    logits = logits_of(4, K)
    first = distill(logits, CLASSES, index=INDEX)
    torch.testing.assert_close(first, F.cross_entropy(logits, CLASSES))
    second = distill(logits, CLASSES, index=INDEX)
    torch.testing.assert_close(second, soft_cross_entropy(logits, CLASSES, logits.detach().softmax(1), 0.1))
    for step in (7, 7, 8):
        distill.start_step(step)
        distill(logits, CLASSES, index=INDEX)
        assert distill.alpha_t == pytest.approx(0.5 * (step + 1) / 10)
    with pytest.raises(PskdError, match=r"start_step\(2\) cannot follow step 8"):
        distill.start_step(2)
    with pytest.raises(PskdError, match=r"start_step\(0\): this PSKD counts epochs"):
        started().start_step(0)
    with pytest.raises(PskdError, match="epochs=None, steps=None: give one of the two"):
        PSKD(memory=PredictionBank(N, K))
    with pytest.raises(PskdError, match="epochs=2, steps=3: give one of the two"):
        PSKD(2, steps=3, memory=PredictionBank(N, K))
    with pytest.raises(PskdError, match="it was counted in steps, here it is epochs; give steps="):
        started().load_state_dict(distill.state_dict())
    following = PSKD(steps=3, memory=Snapshot(nn.Linear(3, K), ema=0.9))
    assert torch.isfinite(following(logits, CLASSES, inputs=torch.randn(4, 3)))
    with pytest.raises(PskdError, match=r"refresh=1: with PSKD\(steps=\.\.\.\) a snapshot is renewed every so many"):
        PSKD(steps=3, memory=Snapshot(nn.Linear(3, K)))(logits, CLASSES, inputs=torch.randn(4, 3))


def test_a_training_may_be_made_longer_and_says_what_alpha_does() -> None:
    short = PSKD(4, memory=PredictionBank(N, K))
    for epoch in range(4):
        short.start_epoch(epoch)
    longer = PSKD(8, memory=PredictionBank(N, K))
    said = "epochs=8, but 4 when this state was saved: alpha_t was 0.8 in epoch 3, is 0.4 there now, and goes on to 0.8"
    with pytest.warns(UserWarning, match=re.escape(said)):
        longer.load_state_dict(short.state_dict())
    longer.start_epoch(4)
    assert longer.alpha_t == pytest.approx(0.5)
    same = PSKD(4, memory=PredictionBank(N, K))
    same.load_state_dict(short.state_dict())
    old = {name: part for name, part in short.state_dict().items() if name not in ("length", "unit")}
    longer.load_state_dict(old)


def test_it_shows_what_it_is() -> None:
    distill = PSKD(4, schedule=partial(schedules.step, steps=2), memory=PredictionBank(N, K), weight=[1.0] * K)
    assert repr(distill) == (
        "PSKD(epochs=4, alpha=0.8, schedule=step(steps=2), memory=PredictionBank(num_samples=12, num_classes=4,"
        " form='dense', k=4, dtype=torch.float16, device=cpu, max_age=1) of 156 bytes, weight=Tensor(4,))"
    )
    distill.start_epoch(0)
    assert repr(distill).endswith(" at epoch 0, alpha_t=0.4")
    assert repr(PSKD(steps=9, memory=Snapshot(nn.Linear(3, K), 5), reduction="sum")) == (
        "PSKD(alpha=0.8, schedule=linear, memory=Snapshot(model=Linear, refresh=5), reduction='sum', steps=9)"
    )
    made = "TFKD(variant='reg', temperature=20.0, alpha=0.1, multiplier=1.0, a=0.99, released=True)"
    assert repr(TFKD("reg")) == made
    assert repr(Hard()) == "Hard()"
