"""``reduction`` and class ``weight`` of every method, against each loss written out position by position in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pskd import CSKD, PSKD, TFKD, Hard, LabelSmoothing, LinearHead, Method, PredictionBank, Snapshot, linear_head
from pskd.errors import PskdError
from pskd.methods import BYOT, DDGSD, ELR, OLS, Focal, Loss, MaxSup, MeanTeacher, TemporalEnsembling
from pskd.workbench.config.methods import TrainingInfo, make_method, method_settings
from pskd.workbench.registry import methods

K, IGNORED = 5, -100
WEIGHT = torch.tensor([0.5, 2.0, 0.0, 1.5, 3.0], dtype=torch.float64)
OTHER = torch.randn(6, K, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).mul(2)
LABELS = torch.tensor([0, 4, 2, 2, 1, 3])
BETTER = OTHER + 3 * F.one_hot(LABELS, K)  # of which some are right
DISTILLED = torch.tensor([True, True, False, True, True, True])


def one_hot(label: Tensor) -> Tensor:
    return F.one_hot(label, K).double()


def kl(teacher: Tensor, z: Tensor) -> Tensor:
    return (teacher * (teacher.log() - z.log_softmax(0))).sum()


def by_class(q: Tensor, z: Tensor, w: Tensor) -> Tensor:
    """As in torch: each class's term of the cross-entropy counts with its weight."""
    return -(w * q * z.log_softmax(0)).sum()


def hard(z: Tensor, y: Tensor, w: Tensor, other: Tensor, taken: bool) -> Tensor:
    return by_class(y, z, w)


def smoothed(z: Tensor, y: Tensor, w: Tensor, other: Tensor, taken: bool) -> Tensor:
    return by_class(0.8 * y + 0.2 / K if taken else y, z, w)


def cs_kd(z: Tensor, y: Tensor, w: Tensor, other: Tensor, taken: bool) -> Tensor:
    return by_class(y, z, w) + 0.7 * taken * (y * w).sum() * 9 * kl((other / 3).softmax(0), z / 3)


def tf_kd(z: Tensor, y: Tensor, w: Tensor, other: Tensor, taken: bool) -> Tensor:
    alpha = 0.9 * taken
    return (1 - alpha) * by_class(y, z, w) + alpha * (y * w).sum() * 9 * kl((other / 3).softmax(0), z / 3)


def tf_kd_reg(z: Tensor, y: Tensor, w: Tensor, other: Tensor, taken: bool) -> Tensor:
    """Each class of the label has a teacher of its own."""
    alpha = 0.4 * taken
    teachers = [torch.full((K,), 0.05, dtype=torch.float64).index_fill(0, torch.tensor([c]), 0.8) for c in range(K)]
    divergences = torch.stack([kl((u.log() / 3).softmax(0), z / 3) for u in teachers])
    return (1 - alpha) * by_class(y, z, w) + alpha * (y * w * divergences).sum()


def ps_kd(z: Tensor, y: Tensor, w: Tensor, other: Tensor, taken: bool) -> Tensor:
    return by_class(0.4 * y + 0.6 * other.softmax(0) if taken else y, z, w)


def with_partners(z: Tensor, y: Tensor, w: Tensor, other: Tensor, taken: bool) -> Tensor:
    return ps_kd(z, y, w, other, taken) + 0.5 * 0.4 * taken * (y * w).sum() * 16 * kl((other / 4).softmax(0), z / 4)


def distilling(**settings: Any) -> PSKD:
    method = PSKD(2, alpha=0.6, memory=PredictionBank(6, K, dtype=torch.float64), **settings)
    method.start_epoch(0)
    method(OTHER.clone().requires_grad_(), LABELS, index=torch.arange(6), partner_logits=OTHER)
    method.start_epoch(1)
    return method


def max_sup(z: Tensor, y: Tensor, w: Tensor, other: Tensor, taken: bool) -> Tensor:
    """In the second of three epochs."""
    return by_class(y, z, w) + 0.15 * taken * (y * w).sum() * (z.max() - z.mean())


def focal(z: Tensor, y: Tensor, w: Tensor, other: Tensor, taken: bool) -> Tensor:
    return -(w * y * (1 - z.softmax(0)) ** (3 * taken) * z.log_softmax(0)).sum()


def ols(z: Tensor, y: Tensor, w: Tensor, other: Tensor, taken: bool) -> Tensor:
    """Of the epoch before, the mean of what was right; a class without any is uniform."""
    labels = torch.full((K, K), 1 / K, dtype=torch.float64)
    for c in range(K):
        right = [o.softmax(0) for o, own in zip(BETTER, LABELS, strict=True) if own == c and o.argmax() == c]
        if right:
            labels[c] = torch.stack(right).mean(0)
    assert len({float(row.max()) for row in labels}) > 2
    return by_class(0.4 * y + 0.6 * sum(y[c] * labels[c] for c in range(K)) if taken else y, z, w)


def elr(z: Tensor, y: Tensor, w: Tensor, other: Tensor, taken: bool) -> Tensor:
    p, before = z.softmax(0).clamp(1e-4, 1 - 1e-4), other.softmax(0).clamp(1e-4, 1 - 1e-4)
    t = 0.2 * before / before.sum()
    t = (0.8 * t + 0.2 * p / p.sum()).detach()
    return by_class(y, z, w) + 3 * taken * (y * w).sum() * (1 - (t * p).sum()).log()


def consistent(z: Tensor, y: Tensor, w: Tensor, other: Tensor, taken: bool) -> Tensor:
    """In the second of three epochs, of which the first two are the ramp."""
    lam = 7 * torch.tensor(-5 * 0.5**2).exp().double()
    return by_class(y, z, w) + lam * taken * (y * w).sum() * (z.softmax(0) - other.softmax(0)).square().mean()


def two_views(z: Tensor, y: Tensor, w: Tensor, other: Tensor, taken: bool) -> Tensor:
    if not taken:
        return by_class(y, z, w)
    a, b = (z / 3).softmax(0).detach(), (other / 3).softmax(0)
    divergence = 9 * (kl(b, z / 3) + kl(a, other / 3))
    return (by_class(y, z, w) + by_class(y, other, w)) / 2 + 0.7 * (y * w).sum() * divergence


def byot(z: Tensor, y: Tensor, w: Tensor, other: Tensor, taken: bool) -> Tensor:
    """Two heads; the features of the first differ from those of the end, by 2 in each of three dimensions."""
    total = by_class(y, z, w)
    for head, far in ((other, 1), (2 * other, 0)):
        alpha = 0.3 * taken
        total = total + (1 - alpha) * by_class(y, head, w)
        taught = alpha * 9 * kl((z.detach() / 3).softmax(0), head / 3) + 0.01 * taken * far * 3 * 4
        total = total + (y * w).sum() * taught
    return total


def second_epoch(method: Method, first: Tensor = OTHER) -> Method:
    method.start_epoch(0)
    given = {name: GIVEN[name] for name in method.needs}
    method(first.clone().requires_grad_(), LABELS, **given)
    method.start_epoch(1)
    return method


def rows() -> PredictionBank:
    return PredictionBank(6, K, dtype=torch.float64)


METHODS: list[tuple[Callable[..., Method], Callable[..., Tensor]]] = [
    (Hard, hard),
    (lambda **s: LabelSmoothing(0.2, **s), smoothed),
    (lambda **s: CSKD(3.0, 0.7, **s), cs_kd),
    (lambda **s: TFKD("self", 3.0, 0.9, **s), tf_kd),
    (lambda **s: TFKD("reg", 3.0, 0.4, a=0.8, released=False, **s), tf_kd_reg),
    (distilling, ps_kd),
    (lambda **s: distilling(partners=0.5, **s), with_partners),
    (lambda **s: second_epoch(MaxSup(3, **s)), max_sup),
    (lambda **s: Focal(3.0, **s), focal),
    (lambda **s: DDGSD(3.0, 0.7, **s), two_views),
    (lambda **s: BYOT(3.0, 0.3, 0.01, **s), byot),
    (lambda **s: second_epoch(OLS(3, K, 0.6, **s), BETTER), ols),
    (lambda **s: second_epoch(ELR(3, 0.8, 3.0, memory=rows(), **s)), elr),
    (lambda **s: second_epoch(TemporalEnsembling(3, 0.6, 7.0, 2 / 3, memory=rows(), **s)), consistent),
    (lambda **s: second_epoch(MeanTeacher(3, 7.0, 2 / 3, memory=Snapshot(nn.Identity(), ema=0.9), **s)), consistent),
]
GIVEN: dict[str, Any] = {
    "index": torch.arange(6),
    "inputs": OTHER,
    "partner_logits": OTHER,
    "teacher_logits": OTHER,
    "view_logits": OTHER,
    "head_logits": [OTHER, 2 * OTHER],
    "head_features": [torch.full((6, 3), 3.0).double(), torch.ones(6, 3).double(), torch.ones(6, 3).double()],
    "distilled": DISTILLED,
}


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["all alike", "weights"])
@pytest.mark.parametrize("kind", ["index", "pair", "probabilities"])
@pytest.mark.parametrize(("make", "literal"), METHODS, ids=lambda f: getattr(f, "__name__", "")[:9])
def test_equals_the_loss_written_out(
    make: Callable[..., Method],
    literal: Callable[..., Tensor],
    kind: str,
    weight: Tensor | None,
    logits: Tensor,
    labels: Tensor,
) -> None:
    w = torch.ones(K, dtype=torch.float64) if weight is None else WEIGHT
    flipped, lam = labels.flip(0), torch.linspace(0, 1, 6, dtype=torch.float64)
    targets: Any = (labels, flipped, lam)
    soft = lam[:, None] * one_hot(labels) + (1 - lam)[:, None] * one_hot(flipped)
    count = (soft * w).sum()
    if kind == "index":
        labels = labels.clone()
        labels[4] = IGNORED
        targets, soft = labels, one_hot(labels.clamp_min(0)) * (labels != IGNORED)[:, None]
        count = (soft * w).sum()
    elif kind == "probabilities":
        targets, count = soft, torch.tensor(6.0, dtype=torch.float64)
    each = torch.stack(
        [
            literal(z, y, w, other, bool(taken)) if bool(y.any()) else z.sum() * 0
            for z, y, other, taken in zip(logits, soft, OTHER, DISTILLED, strict=True)
        ]
    )
    expected = {"none": each, "sum": each.sum(), "mean": each.sum() / count}
    upstream = torch.linspace(1, 2, 6, dtype=torch.float64)
    for reduction, wanted in expected.items():
        method = make(reduction=reduction, weight=weight)
        found = method.loss(logits, targets, **{name: GIVEN[name] for name in (*method.needs, "distilled")})
        torch.testing.assert_close(found.total, wanted)
        torch.testing.assert_close(sum(found.parts.values()), wanted.detach())
        outer = upstream if reduction == "none" else upstream[0]
        slopes = [torch.autograd.grad(loss, logits, outer, retain_graph=True)[0] for loss in (found.total, wanted)]
        torch.testing.assert_close(*slopes)


def test_hard_labels_and_smoothed_ones_are_torch_s_own(logits: Tensor, labels: Tensor) -> None:
    soft = OTHER.softmax(1)
    for reduction in ("none", "sum", "mean"):
        settings: Any = {"reduction": reduction, "weight": WEIGHT}
        for targets in (labels, soft):
            torch.testing.assert_close(Hard(**settings)(logits, targets), F.cross_entropy(logits, targets, **settings))
            expected = F.cross_entropy(logits, targets, label_smoothing=0.2, **settings)
            torch.testing.assert_close(LabelSmoothing(0.2, **settings)(logits, targets), expected)


@pytest.mark.parametrize("make", [Hard, LabelSmoothing, distilling], ids=lambda f: f.__name__)
def test_a_head_is_reduced_as_its_logits(
    make: Callable[..., Method], logits: Tensor, labels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_head, "_PART_NUMEL", 2 * K)
    vectors = torch.eye(K, dtype=torch.float64)
    for reduction in ("none", "sum", "mean"):
        head = LinearHead(logits, vectors)
        settings = {"reduction": reduction, "weight": WEIGHT.tolist()}
        found, wanted = (make(**settings)(output, labels, **GIVEN) for output in (head, logits))
        torch.testing.assert_close(found, wanted)
        slopes = [torch.autograd.grad(loss.sum(), logits)[0] for loss in (found, wanted)]
        torch.testing.assert_close(*slopes)


def test_weights_of_a_training_reach_its_method_and_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    training = TrainingInfo(3, K, 6, 1, torch.nn.Linear(2, K), None, None, class_weight=WEIGHT)
    for kind in (Hard, LabelSmoothing, CSKD, TFKD, PSKD):
        made = make_method(kind.name, training, {"teacher": "run"} if kind is TFKD else {})
        assert made.weight is not None
        assert torch.equal(made.weight, WEIGHT)
        assert not {"reduction", "class_weight", "weight"} & set(method_settings(kind))

    class Own(Method):
        """A method that knows nothing of weights."""

        name = "own"

        def loss(self, output: Any, targets: Any, *, distilled: Tensor | None = None) -> Loss:
            return Loss(output.sum(), {})

    monkeypatch.setitem(methods._things, "own", Own)
    with pytest.raises(PskdError, match=r"method=own takes no class weights: leave method\.weight out"):
        make_method("own", training, {})
    with pytest.raises(PskdError, match="Own takes neither reduction nor weight"):
        Own(reduction="sum")
    assert Own().reduction == "mean"


def test_wrong_use(logits: Tensor, labels: Tensor) -> None:
    for wrong in (0.5, [[1.0]], [1.0, -1.0], [1.0, float("nan")]):
        with pytest.raises(PskdError, match=r"weight must be one number per class \(K\), 0 or more, got"):
            CSKD(weight=wrong)  # type: ignore[arg-type]
    with pytest.raises(PskdError, match="reduction is 'avg'; allowed are mean, sum, none"):
        Hard(reduction="avg")  # type: ignore[arg-type]
    for make, _ in METHODS:
        with pytest.raises(PskdError, match="6 of 6 rows are no class probabilities"):
            make()(logits, torch.ones(6, K), **GIVEN)
        with pytest.raises(PskdError, match=r"weight must have one value per class \(5,\), got \(4,\)"):
            make(weight=[1.0] * 4)(logits, labels, **GIVEN)
