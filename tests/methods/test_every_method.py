"""What no method may stumble over: masked classes, with logits of -inf, and logits that make no prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pskd import PredictionBank, Snapshot
from pskd.checks import allow_nonfinite
from pskd.errors import PskdError
from pskd.methods import (
    BYOT,
    CRL,
    CSKD,
    DDGSD,
    DLB,
    ELR,
    OLS,
    PSKD,
    SAT,
    TFKD,
    DisturbLabel,
    Focal,
    Hard,
    MaxSup,
    MeanTeacher,
    Method,
    TemporalEnsembling,
    ZipfLS,
)

N, FEW, ALL = 6, 5, 7
KEPT = torch.tensor([0, 1, 3, 4, 6])  # of ALL classes
LABELS = torch.tensor([0, 4, 2, 2, 1, 3])


def bank(classes: int, **settings: Any) -> PredictionBank:
    return PredictionBank(N, classes, dtype=torch.float64, **settings)


METHODS: dict[str, Callable[[int], Method]] = {
    "hard": lambda k: Hard(),
    "cs_kd": lambda k: CSKD(),
    "tf_kd self": lambda k: TFKD(),
    "tf_kd reg": lambda k: TFKD("reg"),
    "tf_kd reg published": lambda k: TFKD("reg", 3.0, 0.5, released=False),
    "ps_kd": lambda k: PSKD(3, memory=bank(k)),
    "ps_kd top-k": lambda k: PSKD(3, memory=bank(k, form="topk", k=FEW)),
    "ps_kd momentum": lambda k: PSKD(3, memory=bank(k, momentum=0.5)),
    "ps_kd auto": lambda k: PSKD(3, "auto", memory=bank(k)),
    "ps_kd snapshot": lambda k: PSKD(3, memory=Snapshot(nn.Identity())),
    "ps_kd partners": lambda k: PSKD(3, memory=bank(k), partners=0.5),
    "crl": lambda k: CRL(3, memory=bank(3, max_age=None)),
    "zipf_ls": lambda k: ZipfLS(),
    "focal": lambda k: Focal(),
    "ols": lambda k: OLS(3, k),
    "sat": lambda k: SAT(3, warmup=0.0, memory=bank(k)),
    "elr": lambda k: ELR(3, memory=bank(k)),
    "temporal_ensembling": lambda k: TemporalEnsembling(3, memory=bank(k)),
    "mean_teacher": lambda k: MeanTeacher(3, memory=Snapshot(nn.Identity(), ema=0.9)),
    "ddgsd": lambda k: DDGSD(),
    "dlb": lambda k: DLB(3),
    "byot": lambda k: BYOT(),
    "maxsup": lambda k: MaxSup(3),
    "disturb_label": lambda k: DisturbLabel(3, 0.5),
}


def loss_of(method: Method, logits: list[Tensor], labels: Tensor, index: Tensor) -> Tensor:
    """The first are the student's; the others serve as those of partners, teachers, views and heads."""
    own, first, second = logits
    given: dict[str, Any] = {
        "index": index,
        "inputs": first.detach(),
        "partner_logits": first,
        "teacher_logits": first,
        "view_logits": first,
        "view": index,
        "last_logits": second,
        "head_logits": [first, second],
        "head_features": [first[:, :1], second[:, :1], own[:, :1]],
    }
    return method(own, labels, **given)


def among_all(few: Tensor) -> Tensor:
    """Logits (n, FEW) as (n, ALL), those of the other classes -inf."""
    return torch.full((len(few), ALL), -torch.inf, dtype=few.dtype).index_copy(1, KEPT, few)


def trained(make: Callable[[int], Method], masked: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Losses, and gradients at the logits of FEW classes, of three epochs of two steps."""
    method, draw = make(ALL if masked else FEW), torch.Generator().manual_seed(0)
    losses, slopes = [], []
    for epoch in range(3):
        method.start_epoch(epoch)
        for index in torch.arange(N).split(N // 2):
            labels = LABELS[index]
            few = torch.randn(3, len(index), FEW, dtype=torch.float64, generator=draw) + 6 * F.one_hot(labels, FEW)
            few.requires_grad_()
            logits = [among_all(each) if masked else each for each in few]
            loss = loss_of(method, logits, KEPT[labels] if masked else labels, index)
            losses.append(loss.detach())
            slopes += torch.autograd.grad(loss, [few, logits[0]])[: 2 if masked else 1]
    return losses, slopes


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_masked_classes_leave_it_finite(make: Callable[[int], Method]) -> None:
    losses, slopes = trained(make, masked=True)
    assert all(bool(part.isfinite().all()) for part in (*losses, *slopes))


# Their equations count the classes: as the K of a mean or an even share, as ranks, or as what may be drawn.
COUNT_CLASSES = (
    *("tf_kd reg", "tf_kd reg published", "zipf_ls", "ols", "elr"),
    *("temporal_ensembling", "mean_teacher", "disturb_label"),
)


@pytest.mark.parametrize("name", sorted(METHODS.keys() - COUNT_CLASSES))
def test_masked_classes_have_no_part_in_it(name: str) -> None:
    """It is the method on the other classes alone."""
    make = METHODS[name]
    (losses, slopes), (wanted, wanted_slopes) = trained(make, masked=True), trained(make, masked=False)
    torch.testing.assert_close((losses, slopes[::2]), (wanted, wanted_slopes))
    assert not any(bool(slope[:, [2, 5]].any()) for slope in slopes[1::2])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_logits_without_a_prediction_are_refused(make: Callable[[int], Method], bad: float) -> None:
    method, index = make(FEW), torch.arange(4)
    labels, draw = LABELS[index], torch.Generator().manual_seed(0)
    for epoch in range(2):
        method.start_epoch(epoch)
        logits = list(torch.randn(3, 4, FEW, generator=draw).requires_grad_())
        loss_of(method, logits, labels, index)
    logits[0] = torch.full_like(logits[0], bad).where(torch.tensor([[False], [True], [True], [False]]), logits[0])
    then = "" if method.clock is None else r" in epoch 1 \(counted from 0\)"
    with pytest.raises(PskdError, match=f"^logits: 2 of 4 rows are NaN or infinite{then}; lower the learning rate or"):
        loss_of(method, logits, labels, index)
    with allow_nonfinite():
        assert not loss_of(method, logits, labels, index).isfinite()
