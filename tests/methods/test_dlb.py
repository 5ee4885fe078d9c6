"""DLB against its equation, and the last batch it keeps."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from helpers import value_and_gradient
from torch import Tensor

from pskd.errors import PskdError
from pskd.methods import DLB


def test_two_steps_by_hand(logits: Tensor, labels: Tensor) -> None:
    method, view = DLB(2, 3.0, 0.7), torch.randn(6, 2)
    method.start_epoch(0)
    assert method.last_view is None
    torch.testing.assert_close(method(logits, labels, view=view), F.cross_entropy(logits, labels))
    assert method.last_view is not None
    assert torch.equal(method.last_view, view)

    found = method(2 * logits[:4], labels[:4], view=view[:4], last_logits=logits.flip(0))
    last, now, again = logits.detach(), 2 * logits[:4], logits.flip(0)
    both = F.cross_entropy(torch.cat((now, again)), torch.cat((labels[:4], labels)))
    kl = F.kl_div((again / 3).log_softmax(1), (last / 3).softmax(1), reduction="batchmean")
    torch.testing.assert_close(value_and_gradient(found, logits), value_and_gradient(both + 0.7 * 9 * kl, logits))

    method.start_epoch(1)
    assert method.last_view is None, "an epoch begins without a last batch"


def test_only_plain_samples_are_kept_and_saved(logits: Tensor, labels: Tensor) -> None:
    method, view = DLB(2), torch.randn(6, 2)
    method.start_epoch(0)
    taken = torch.tensor([True, False, True, True, False, True])
    pair = (labels, labels.flip(0), torch.where(taken, 1.0, 0.3).double())
    method(logits, pair, view=view, distilled=taken)
    assert method.last_view is not None
    assert torch.equal(method.last_view, view[taken])
    again = DLB(2)
    again.load_state_dict(copy.deepcopy(method.state_dict()))
    again.start_epoch(0)
    later = [each(logits, labels, view=view, last_logits=2 * logits[taken]) for each in (method, again)]
    assert torch.equal(*later)
    method(logits, pair, view=view, last_logits=logits)
    assert method.last_view is None, "nobody knows which of these are plain"


def test_what_is_missing_is_named(logits: Tensor, labels: Tensor) -> None:
    method = DLB(2)
    method.start_epoch(0)
    with pytest.raises(PskdError, match="view is missing"):
        method(logits, labels)
    method(logits, labels, view=torch.zeros(6))
    with pytest.raises(
        PskdError, match=r"last_logits is missing: call with last_logits=\.\.\., the model's for method"
    ):
        method(logits, labels, view=torch.zeros(6))
