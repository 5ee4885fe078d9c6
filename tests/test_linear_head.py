"""A head whose logits are made part by part gives what whole logits give: losses, gradients and records."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from banks import known
from torch import Tensor, nn

from pskd import CSKD, PSKD, TFKD, Hard, LabelSmoothing, LinearHead, Method, PredictionBank, Snapshot, linear_head
from pskd.errors import PskdError
from pskd.linear_head import Output
from pskd.targets import IGNORE_INDEX

B, T, D, K = 4, 5, 6, 11
LABELS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, -100, -100], [5, 3, 5, 8, 9], [7, -100, -100, -100, -100]])
INDEX = torch.arange(B * T).view(B, T)
DISTILLED = torch.tensor([True, True, False, True])


class Model(nn.Module):
    """Token ids (B, T) to a head, or to its logits (B, K, T)."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.embed, self.output, self.whole = nn.Embedding(K, D), nn.Linear(D, K), whole

    def forward(self, tokens: Tensor) -> Output:
        head = LinearHead(self.embed(tokens).tanh(), self.output.weight, self.output.bias)
        return head.logits() if self.whole else head


@pytest.fixture(autouse=True, params=[3, B * T], ids=["in parts", "in one part"])
def _positions_of_a_part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_head, "_PART_NUMEL", request.param * K)


def ps_kd(model: nn.Module, form: str, alpha: Any = 0.9) -> PSKD:
    memory = Snapshot(model, 0.5, 2) if form == "snapshot" else PredictionBank(B * T, K, form, 4, torch.float64)
    return PSKD(epochs=3, alpha=alpha, memory=memory)


METHODS: dict[str, Callable[[nn.Module], Method]] = {
    "hard": lambda model: Hard(),
    "label smoothing": lambda model: LabelSmoothing(),
    "label smoothing, others only": lambda model: LabelSmoothing(others_only=True),
    "TF-KD": lambda model: TFKD("reg", a=0.9),
    **{f"PS-KD, {form}": partial(ps_kd, form=form) for form in ("dense", "topk", "snapshot")},
    "PS-KD, auto": partial(ps_kd, form="dense", alpha="auto"),
}


def trained(make: Callable[[nn.Module], Method], whole: bool, distilled: Tensor | None) -> tuple[list[Tensor], Method]:
    """Losses and gradients of three epochs of two steps, and the method."""
    torch.manual_seed(0)
    model = Model(whole).double()
    method = make(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    seen = []
    for epoch in range(3):
        method.start_epoch(epoch)
        for half in (slice(0, 2), slice(2, 4)):
            tokens = (LABELS[half] + epoch).clamp(0, K - 1)
            given = {
                "index": INDEX[half],
                "inputs": tokens,
                "distilled": distilled if distilled is None else DISTILLED[half],
            }
            loss = method(model(tokens), LABELS[half], **given)
            optimizer.zero_grad()
            (loss * 0.7).backward()
            optimizer.step()
            seen += [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]  # type: ignore[union-attr]
    return seen, method


@pytest.mark.parametrize("distilled", [None, DISTILLED], ids=["all", "some distilled"])
@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_equals_whole_logits(make: Callable[[nn.Module], Method], distilled: Tensor | None) -> None:
    expected, by_logits = trained(make, True, distilled)
    actual, by_head = trained(make, False, distilled)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)
    if isinstance(by_head, PSKD) and isinstance(by_logits, PSKD):
        if isinstance(by_head.memory, PredictionBank):
            bank, other = by_head.memory, by_logits.memory
            assert isinstance(other, PredictionBank)
            torch.testing.assert_close(bank.probabilities(INDEX.flatten()), other.probabilities(INDEX.flatten()))
            taken = (LABELS != IGNORE_INDEX) & (DISTILLED[:, None] if distilled is not None else True)
            assert known(bank, INDEX) == known(other, INDEX) == taken.flatten().tolist()  # padding has no record
        else:
            assert by_head.state_dict()["memory"]["step"] == by_logits.state_dict()["memory"]["step"] == 2


def test_the_equation_written_out() -> None:
    """PS-KD on tokens, one at a time: the mean over real tokens of -<(1 - alpha) y + alpha past, log p>."""
    torch.manual_seed(1)
    hidden, weight, bias = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((B, T, D), (K, D), (K,)))
    method = PSKD(2, alpha=0.6, memory=PredictionBank(B * T, K, dtype=torch.float64))
    method.start_epoch(0)
    method(LinearHead(hidden * 0.5, weight, bias), LABELS, index=INDEX)
    method.start_epoch(1)
    actual = method(LinearHead(hidden, weight, bias), LABELS, index=INDEX)
    terms = []
    for b, t in (LABELS != IGNORE_INDEX).nonzero().tolist():
        past = torch.softmax(weight @ (hidden[b, t] * 0.5) + bias, 0).detach()
        target = 0.6 * past
        target[LABELS[b, t]] += 0.4
        terms.append(-(target * torch.log_softmax(weight @ hidden[b, t] + bias, 0)).sum())
    expected = torch.stack(terms).mean()
    torch.testing.assert_close(actual, expected)
    inputs = (hidden, weight, bias)
    torch.testing.assert_close(torch.autograd.grad(actual, inputs), torch.autograd.grad(expected, inputs))


def test_only_what_wants_a_gradient_gets_one() -> None:
    hidden, weight = torch.randn(B, T, D, requires_grad=True), torch.randn(K, D)
    Hard()(LinearHead(hidden, weight), LABELS).backward()
    assert hidden.grad is not None
    assert bool((hidden.grad[LABELS == IGNORE_INDEX] == 0).all())
    with torch.no_grad():
        assert not Hard()(LinearHead(hidden, weight), LABELS).requires_grad


@pytest.mark.parametrize("hidden_type", [torch.float32, torch.bfloat16])
def test_autocast_is_close_to_float32(hidden_type: torch.dtype) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(B, T, D), torch.randn(K, D)
    results = []
    for enabled in (False, True):
        inputs = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            head = LinearHead(inputs[0].to(hidden_type) if enabled else inputs[0], inputs[1])
            loss = LabelSmoothing()(head, LABELS)
        results.append([loss.detach(), *torch.autograd.grad(loss, inputs)])
    torch.testing.assert_close(results[1], results[0], rtol=0.05, atol=0.02)


def test_wrong_use_is_named() -> None:
    head = LinearHead(torch.randn(B, T, D, requires_grad=True), torch.randn(K, D))
    with pytest.raises(PskdError, match=r"targets: a LinearHead of \(4, 5\) wants class indices like it, got \(4, 3\)"):
        Hard()(head, LABELS[:, :3])
    with pytest.raises(PskdError, match="a mixed pair"):
        Hard()(head, (LABELS, LABELS, 0.5))
    method = PSKD(2, memory=Snapshot(Model(whole=True)))
    for epoch in range(2):
        method.start_epoch(epoch)
    with pytest.raises(PskdError, match="the snapshot's model returns logits"):
        method(head, LABELS, inputs=LABELS.clamp_min(0))
    with_bank = PSKD(1, memory=PredictionBank(20, K))
    with_bank.start_epoch(0)
    with pytest.raises(PskdError, match=r"index has shape \(4, 2\), but the logits want one per label, \(4, 5\)"):
        with_bank(head, LABELS, index=INDEX[:, :2])
    with pytest.raises(PskdError, match="partner_logits is missing"):
        CSKD()(head, LABELS)
