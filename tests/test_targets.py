"""soft_cross_entropy against a slow transcription of the paper's equations, against F.cross_entropy, and wrong use."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from banks import batch_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pskd import soft_cross_entropy
from pskd.errors import PskdError
from pskd.targets import REDUCTIONS, Past, Target, soften

K = 5
SHAPES = [(K,), (3, K), (2, K, 2, 3), (2, K, 4)]
IGNORED = -100


def positions_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    return () if len(shape) == 1 else (shape[0], *shape[2:])


def random_logits(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()


def random_classes(shape: tuple[int, ...], seed: int = 0, ignore: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(100 + seed)
    classes = torch.randint(K, positions_of(shape), generator=generator)
    if ignore and classes.ndim and classes.numel():
        classes.view(-1)[0] = IGNORED
    return classes


def random_probabilities(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.softmax(random_logits(shape, 200 + seed).detach(), 0 if len(shape) == 1 else 1)


def random_labels(kind: str, shape: tuple[int, ...]) -> Any:
    if kind == "probabilities":
        return random_probabilities(shape, seed=7)
    if kind == "index":
        return random_classes(shape, ignore=True)
    lam = torch.rand(shape[:1], dtype=torch.float64) if kind == "pair, a lam each" and len(shape) > 1 else 0.3
    return random_classes(shape, seed=1, ignore=True), random_classes(shape, seed=2), lam


def random_past(kind: str, shape: tuple[int, ...]) -> Past | None:
    if kind == "none":
        return None
    axis = 0 if len(shape) == 1 else 1
    dense = random_probabilities(shape, seed=9)
    if kind == "dense":
        return Past(dense)
    known = torch.rand(positions_of(shape), generator=torch.Generator().manual_seed(3)) < 0.5
    if known.numel() > 1:
        known.view(-1)[0] = True  # also of the ignored position
    if kind == "dense, some missing":
        return Past(dense, known=known)
    values, classes = dense.topk(2, axis)
    return Past(values, classes, None if kind == "top-k" else known)


def random_alphas(shape: tuple[int, ...]) -> list[float | Tensor]:
    alphas: list[float | Tensor] = [0.0, 0.35, 1.0]
    if len(shape) > 1:
        alphas += [torch.rand(shape[0], dtype=torch.float64), torch.rand(positions_of(shape), dtype=torch.float64)]
    return alphas


LABELS = ["index", "probabilities", "pair", "pair, a lam each"]
PASTS = ["none", "dense", "dense, some missing", "top-k", "top-k, some missing"]


def slow_losses(
    logits: Tensor, targets: Any, past: Past | None, alpha: float | Tensor, weight: Tensor | None
) -> tuple[Tensor, float]:
    """Eq. 6, position by position and class by class; and the denominator of the mean."""
    shape = logits.shape
    weight = torch.ones(K, dtype=torch.float64) if weight is None else weight

    def at(value: Any, position: tuple[int, ...], per_sample: bool = False) -> Any:
        if not isinstance(value, Tensor) or value.ndim == 0:
            return value
        return value[position[0]] if per_sample and value.ndim == 1 else value[position]

    def row(values: Tensor, position: tuple[int, ...]) -> Tensor:
        return values if len(shape) == 1 else values[(position[0], slice(None), *position[1:])]

    losses, denominator = [], 0.0
    for position in itertools.product(*(range(size) for size in positions_of(tuple(shape)))):
        log_p = torch.log_softmax(row(logits, position), 0)
        if isinstance(targets, Tensor) and targets.is_floating_point():
            label, mass = [float(q) for q in row(targets, position)], 1.0
            denominator += 1
        else:
            pairs = [(targets, 1.0)]
            if isinstance(targets, tuple):
                lam = at(targets[2], position, per_sample=True)
                pairs = [(targets[0], lam), (targets[1], 1 - lam)]
            label, mass = [0.0] * K, 0.0
            for classes, portion in pairs:
                if (y := int(at(classes, position))) != IGNORED:
                    label[y] += float(portion)
                    mass += float(portion)
                    denominator += float(portion) * float(weight[y])
        trust = float(at(alpha, position, per_sample=True))
        before = [0.0] * K
        if past is None or (past.known is not None and not bool(at(past.known, position))):
            trust = 0.0
        elif past.classes is None:
            before = [float(v) for v in row(past.values, position)]
        else:
            values, classes = row(past.values, position), row(past.classes, position)
            rest = max(0.0, 1 - float(values.sum())) / (K - len(values))
            before = [rest] * K
            for value, j in zip(values, classes, strict=True):
                before[int(j)] = float(value)
        losses.append(
            sum((-weight[j] * ((1 - trust) * label[j] + trust * mass * before[j]) * log_p[j] for j in range(K)), 0.0)
        )
    return torch.stack(losses).reshape(positions_of(tuple(shape))), denominator


def flat(values: Tensor) -> Tensor:
    """(B, K, d1, ...) as (n, K)."""
    return values.movedim(1, -1).reshape(-1, values.shape[1])


def soft_target(logits: Tensor, targets: Any, past: Past | None, alpha: float | Tensor) -> Target:
    """Eq. 6 behind the door, where the past of an ignored position counts as missing."""
    batch = batch_of(logits, targets)
    if past is None:
        return batch.target
    classes = None if past.classes is None else flat(past.classes)
    known = None if past.known is None else past.known.flatten()
    if batch.valid is not None:
        known = batch.valid if known is None else known & batch.valid
    return soften(batch.target, Past(flat(past.values), classes, known), alpha)


def whole(target: Target) -> Tensor:
    """The (n, K) target that the parts stand for."""
    parts = [target.coefficients] if target.coefficients is not None else [part.values for part in target.dense]
    q = torch.zeros(len(parts[0]), target.num_classes, dtype=torch.float64)
    if target.classes is not None and target.coefficients is not None:
        q = q.scatter_add(1, target.classes, target.coefficients.double())
    if target.floor is not None:
        q = q + target.floor[:, None]
    for values, scale in target.dense:
        q = q + values * scale[:, None]
    return q


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("past_kind", PASTS)
@pytest.mark.parametrize("label_kind", LABELS)
def test_equals_the_slow_transcription(shape: tuple[int, ...], label_kind: str, past_kind: str) -> None:
    torch.manual_seed(0)
    logits, targets, past = random_logits(shape), random_labels(label_kind, shape), random_past(past_kind, shape)
    weight = torch.rand(K, dtype=torch.float64) + 0.1
    for alpha, w in itertools.product(random_alphas(shape), (None, weight)):
        losses, denominator = slow_losses(logits, targets, past, alpha, w)
        expected = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / denominator}
        for reduction, slow in expected.items():
            ours = soft_cross_entropy(logits, targets, past, alpha, reduction=reduction, weight=w)
            torch.testing.assert_close(ours, slow)
        upstream = torch.rand(losses.shape, dtype=torch.float64)
        ours = soft_cross_entropy(logits, targets, past, alpha, reduction="none", weight=w)
        torch.testing.assert_close(*(torch.autograd.grad(loss, logits, upstream)[0] for loss in (ours, losses)))


@pytest.mark.parametrize("past_kind", PASTS)
@pytest.mark.parametrize("label_kind", LABELS)
def test_gradients_of_both_orders(label_kind: str, past_kind: str) -> None:
    shape = (2, K)
    logits, targets, past = random_logits(shape), random_labels(label_kind, shape), random_past(past_kind, shape)
    for reduction, weight in [("mean", None), ("none", torch.rand(K, dtype=torch.float64))]:

        def loss(z: Tensor, reduction: str = reduction, weight: Tensor | None = weight) -> Tensor:
            return soft_cross_entropy(z, targets, past, 0.6, reduction=reduction, weight=weight)

        assert torch.autograd.gradcheck(loss, logits)
        assert torch.autograd.gradgradcheck(loss, logits)


@pytest.mark.parametrize("past_kind", PASTS)
@pytest.mark.parametrize("shape", [*SHAPES, (0, K)])
@pytest.mark.parametrize("kind", ["index", "probabilities"])
def test_with_alpha_zero_it_is_cross_entropy(shape: tuple[int, ...], kind: str, past_kind: str) -> None:
    logits, past = random_logits(shape), random_past(past_kind, shape)
    weight = torch.rand(K, dtype=torch.float64)
    for w, reduction, ignored in itertools.product((None, weight), REDUCTIONS, (IGNORED, -1, 2)):
        targets = random_labels(kind, shape)
        if kind == "index":
            targets = torch.where(targets == IGNORED, ignored, targets)
        elif ignored >= 0:
            continue  # F.cross_entropy allows no class to be ignored here
        ours = soft_cross_entropy(logits, targets, past, 0.0, ignored, reduction, w)
        theirs = F.cross_entropy(logits, targets, w, ignore_index=ignored, reduction=reduction)
        torch.testing.assert_close(ours, theirs, equal_nan=True)
        upstream = torch.ones_like(theirs)
        for_ours, for_theirs = (torch.autograd.grad(loss, logits, upstream)[0] for loss in (ours, theirs))
        torch.testing.assert_close(for_ours, for_theirs, equal_nan=True)


def masked_case(label_kind: str, past_kind: str) -> tuple[Tensor, Any, Past | None, Tensor]:
    """Logits (6, K, 2) of which some are -inf, never a label's; and where they are."""
    shape = (6, K, 2)
    targets, past = random_labels(label_kind, shape), random_past(past_kind, shape)
    masked = torch.rand(shape, generator=torch.Generator().manual_seed(8)) < 0.4
    masked[:, 0, 0] = True  # the class that an ignored position looks up
    masked[4:] = False
    if label_kind == "probabilities":
        targets = targets.masked_fill(masked, 0)
        targets = targets / targets.sum(1, keepdim=True)
    else:
        for labels in (targets,) if isinstance(targets, Tensor) else targets[:2]:
            labels.view(-1)[0] = IGNORED
            labels[:4, 0] = labels[:4, 0].masked_fill(labels[:4, 0] == 0, 1)
            masked.scatter_(1, labels.clamp_min(0)[:, None], False)
        masked[0, 0, 0] = True
    logits = random_logits(shape).detach().masked_fill(masked, -torch.inf).requires_grad_()
    return logits, targets, past, masked


def without_masked(logits: Tensor, targets: Any, past: Past | None, alpha: float, weight: Tensor | None) -> Tensor:
    """The losses (6, 2), with q whole and its mass on masked classes dropped."""
    masked = torch.isinf(flat(logits))
    q = whole(soft_target(logits, targets, past, alpha)).masked_fill(masked, 0)
    log_p = torch.log_softmax(flat(logits), 1).masked_fill(masked, 0)
    return -(q * log_p * (1 if weight is None else weight)).sum(1).view(6, 2)


@pytest.mark.parametrize("past_kind", PASTS)
@pytest.mark.parametrize("label_kind", LABELS)
@pytest.mark.parametrize("place", ["host", "accelerator"])
def test_masked_classes_take_no_part(
    label_kind: str, past_kind: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    if place == "accelerator":  # whose values nothing may wait for: so also while compiling
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    logits, targets, past, masked = masked_case(label_kind, past_kind)
    for alpha, weight in itertools.product((0.0, 0.35, 1.0), (None, torch.rand(K, dtype=torch.float64))):
        expected = without_masked(logits, targets, past, alpha, weight)
        actual = soft_cross_entropy(logits, targets, past, alpha, reduction="none", weight=weight)
        assert expected.isfinite().all()
        torch.testing.assert_close(actual, expected)
        upstream = torch.rand(expected.shape, dtype=torch.float64)
        slopes = [torch.autograd.grad(loss, logits, upstream)[0] for loss in (actual, expected)]
        torch.testing.assert_close(slopes[0], slopes[1])
        assert bool((slopes[0][masked] == 0).all())


def test_masked_classes_as_in_cross_entropy() -> None:
    logits, targets, past, _ = masked_case("index", "dense")
    for loss in (soft_cross_entropy(logits, targets), soft_cross_entropy(logits, targets, past, 0.0)):
        torch.testing.assert_close(loss, F.cross_entropy(logits, targets))
        slopes = [torch.autograd.grad(each, logits)[0] for each in (loss, F.cross_entropy(logits, targets))]
        torch.testing.assert_close(slopes[0], slopes[1])
    # A label that is masked cannot be learnt: that is to be seen.
    hidden = logits.detach().index_fill(1, torch.tensor([int(targets[5, 1])]), -torch.inf)
    for alpha in (0.0, 0.5):
        losses = soft_cross_entropy(hidden, targets, past, alpha, reduction="none")
        theirs = F.cross_entropy(hidden, targets, reduction="none")
        assert torch.equal(losses.isinf(), theirs.isinf())
        assert losses[5, 1] == torch.inf


def test_a_nan_or_an_infinite_logit_is_not_hidden() -> None:
    for value in (torch.nan, torch.inf):
        logits = random_logits((3, K)).detach()
        logits[1, 2], logits[1, 3] = value, -torch.inf
        losses = soft_cross_entropy(
            logits, torch.tensor([0, 1, 2]), random_past("dense", (3, K)), 0.5, reduction="none"
        )
        assert losses.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("label_kind", LABELS)
def test_smoothed_is_mixed_with_an_even_past(label_kind: str) -> None:
    shape = (6, K, 3)
    logits, targets = random_logits(shape), random_labels(label_kind, shape)
    even = Past(torch.full(shape, 1 / K, dtype=torch.float64))
    for epsilon in (0.0, 0.3, torch.rand(6 * 3, dtype=torch.float64)):
        smoothed = batch_of(logits, targets).target.smoothed(epsilon)
        torch.testing.assert_close(whole(smoothed), whole(soft_target(logits, targets, even, epsilon)))


def test_all_ignored_is_nan_as_in_cross_entropy() -> None:
    logits, targets = random_logits((2, K)), torch.full((2,), IGNORED)
    assert soft_cross_entropy(logits, targets, random_past("dense", (2, K)), 0.5).isnan()
    assert F.cross_entropy(logits, targets).isnan()


def test_labels_of_one_byte() -> None:
    """156 is what -100 would be as a byte: a class, not an ignored one."""
    logits = torch.randn(3, 256, dtype=torch.float64)
    targets = torch.tensor([0, 156, 255])
    torch.testing.assert_close(soft_cross_entropy(logits, targets.to(torch.uint8)), F.cross_entropy(logits, targets))


def test_a_mixed_pair_is_the_mix_of_two_losses() -> None:
    shape = (4, K, 3)
    logits, past = random_logits(shape), random_past("top-k, some missing", shape)
    first, second, lam = random_labels("pair, a lam each", shape)

    def each(classes: Tensor) -> Tensor:
        return soft_cross_entropy(logits, classes, past, 0.4, reduction="none")

    mixed = soft_cross_entropy(logits, (first, second, lam), past, 0.4, reduction="none")
    torch.testing.assert_close(mixed, lam[:, None] * each(first) + (1 - lam)[:, None] * each(second))


@pytest.mark.parametrize("past_kind", PASTS)
@pytest.mark.parametrize("label_kind", LABELS)
def test_targets_sum_to_one(label_kind: str, past_kind: str) -> None:
    shape = (6, K, 3)
    targets = random_labels(label_kind, shape)
    if label_kind != "probabilities":
        targets = random_classes(shape) if label_kind == "index" else (random_classes(shape), *targets[1:])
    q = whole(soft_target(random_logits(shape), targets, random_past(past_kind, shape), 0.7))
    assert (q >= 0).all()
    torch.testing.assert_close(q.sum(1), torch.ones(6 * 3, dtype=torch.float64))


@pytest.mark.parametrize(("k", "num_classes"), [(8, 8), (8, 9), (8, 50)])
@pytest.mark.parametrize("excess", [-0.02, 0.0, 0.02])
def test_targets_sum_to_one_whatever_top_k_rounding_did(k: int, num_classes: int, excess: float) -> None:
    """Values that were rounded up until they hold more than all the mass, or down to less of it."""
    values = torch.full((1, k), (1 + excess) / k).half()
    past = Past(values, torch.arange(k)[None])
    q = whole(soft_target(torch.zeros(1, num_classes), torch.tensor([0]), past, 0.5))
    assert (q > -1e-7).all()
    torch.testing.assert_close(q.sum(), torch.ones((), dtype=torch.float64), atol=1e-6, rtol=0)


def test_top_k_equals_dense_at_k_of_all_classes() -> None:
    shape = (4, K, 3)
    logits, targets, dense = random_logits(shape), random_classes(shape), random_probabilities(shape)
    values, classes = dense.topk(K, 1)
    both = [soft_cross_entropy(logits, targets, past, 0.7) for past in (dense, Past(values, classes))]
    torch.testing.assert_close(both[0], both[1], rtol=1e-14, atol=0)
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in both]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-16)


class LargeTensors(TorchDispatchMode):
    """Counts the tensors of at least ``numel`` elements that operations make."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.numel, self.made = numel, 0

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        storages = {
            part.untyped_storage().data_ptr() for part in (*args, *(kwargs or {}).values()) if isinstance(part, Tensor)
        }
        for part in out if isinstance(out, tuple | list) else (out,):
            if isinstance(part, Tensor) and part.untyped_storage().nbytes() >= self.numel * part.element_size():
                self.made += part.untyped_storage().data_ptr() not in storages  # neither a view nor in place
        return out


def test_no_target_of_samples_times_classes_is_built() -> None:
    """log p and p forward, the gradient backward: nothing else of that size, and no more than F.cross_entropy makes."""
    n, classes, k = 16, 4096, 8
    logits = torch.randn(n, classes, requires_grad=True)
    targets = torch.randint(classes, (n,))
    past = Past(*torch.softmax(torch.randn(n, classes), 1).topk(k, 1))
    counts = {}
    for name, loss in {
        "top-k": lambda: soft_cross_entropy(logits, targets, past, 0.5),
        "hard": lambda: soft_cross_entropy(logits, targets),
        "mixed pair": lambda: soft_cross_entropy(logits, (targets, targets.flip(0), 0.3), past, 0.5),
        "F.cross_entropy": lambda: F.cross_entropy(logits, targets),
    }.items():
        with LargeTensors(n * classes) as forward:
            value = loss()
        with LargeTensors(n * classes) as backward:
            torch.autograd.grad(value, logits)
        counts[name] = forward.made, backward.made
    assert counts.pop("F.cross_entropy") == (1, 2)
    assert counts == dict.fromkeys(counts, (2, 1))


@pytest.mark.parametrize("place", ["host", "accelerator"])
def test_only_the_logits_wait_for_the_backward_pass(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host also log p, which halves the time of p there."""
    if place == "accelerator":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    n, classes = 16, 4096
    logits = torch.randn(n, classes, requires_grad=True)
    past = Past(*torch.softmax(torch.randn(n, classes), 1).topk(8, 1))
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda part: saved.append(part) or part, lambda part: part):
        soft_cross_entropy(logits, torch.randint(classes, (n,)), past, 0.5)
    large = [part for part in saved if part.numel() >= n * classes]
    assert large[0].data_ptr() == logits.data_ptr()
    assert len(large) == (2 if place == "host" else 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("past_kind", ["none", "dense", "top-k"])
def test_half_precision_is_reduced_in_float32(dtype: torch.dtype, past_kind: str) -> None:
    shape = (4, K, 3)
    half = random_logits(shape, dtype=dtype)
    single = half.detach().float().requires_grad_()
    past = random_past(past_kind, shape)
    past = past and past._replace(values=past.values.float())
    targets = random_classes(shape, ignore=True)
    losses = [soft_cross_entropy(logits, targets, past, 0.5) for logits in (half, single)]
    assert losses[0].dtype == torch.float32
    assert torch.equal(*losses)
    gradients = [torch.autograd.grad(*both)[0] for both in zip(losses, (half, single), strict=True)]
    assert gradients[0].dtype == dtype
    assert torch.equal(gradients[0], gradients[1].to(dtype))


def test_a_past_in_half_precision_or_float64_leaves_the_loss_float32() -> None:
    logits, targets = random_logits((4, K), dtype=torch.float32), random_classes((4, K))
    for dtype in (torch.float16, torch.float64):
        dense = random_probabilities((4, K)).to(dtype)
        for past in (Past(dense), Past(*dense.topk(2, 1))):
            loss = soft_cross_entropy(logits, targets, past, 0.5)
            assert loss.dtype == torch.float32
            loss.backward()


@pytest.mark.parametrize("past_kind", ["none", "dense", "top-k"])
def test_autocast_changes_nothing(past_kind: str) -> None:
    logits, targets = random_logits((4, K), dtype=torch.float32), random_classes((4, K))
    past = random_past(past_kind, (4, K))
    plain = soft_cross_entropy(logits, targets, past, 0.5)
    with torch.autocast("cpu", torch.bfloat16):
        cast = soft_cross_entropy(logits, targets, past, 0.5)
    assert torch.equal(plain, cast)
    assert torch.equal(*(torch.autograd.grad(loss, logits)[0] for loss in (plain, cast)))


@pytest.mark.parametrize("past_kind", ["dense, some missing", "top-k"])
def test_compiles_as_one_graph(past_kind: str) -> None:
    shape = (4, K)
    logits, targets, past = random_logits(shape), random_classes(shape, ignore=True), random_past(past_kind, shape)

    def gradient(loss: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        value = loss(logits, targets, past, 0.5, weight=torch.ones(K, dtype=torch.float64))
        return value, torch.autograd.grad(value, logits)[0]

    compiled = torch.compile(soft_cross_entropy, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(gradient(compiled), gradient(soft_cross_entropy), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.slow
def test_compiles_with_inductor() -> None:
    shape = (4, K)
    logits, targets, past = random_logits(shape), random_classes(shape, ignore=True), random_past("top-k", shape)
    compiled = torch.compile(soft_cross_entropy, fullgraph=True)(logits, targets, past, 0.5)
    plain = soft_cross_entropy(logits, targets, past, 0.5)
    torch.testing.assert_close(compiled, plain)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits)[0] for loss in (compiled, plain)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_probabilities_may_be_rounded(dtype: torch.dtype) -> None:
    """By their own type, and no further."""
    probs = torch.randn(64, 1000, generator=torch.Generator().manual_seed(0)).softmax(1).to(dtype)
    soft_cross_entropy(torch.zeros(64, 1000), probs)
    with pytest.raises(PskdError, match="64 of 64 rows"):
        soft_cross_entropy(torch.zeros(64, 1000), probs * 0.97)


LOGITS, CLASSES = torch.zeros(3, K), torch.tensor([0, 1, 2])
TOO_LARGE = "targets: 1 class indices lie outside 0..4 (smallest 3, largest 5)"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"reduction": "max"}, "reduction is 'max'; allowed are mean, sum, none"),
        ({"alpha": 1.5}, "alpha must lie in [0, 1], got 1.5"),
        ({"alpha": float("nan")}, "alpha must lie in [0, 1], got nan"),
        ({"alpha": torch.tensor([0.0, -0.25, 1.0])}, "alpha must lie in [0, 1], got -0.25"),
        ({"alpha": torch.zeros(4)}, "alpha has shape (4,)"),
        ({"targets": CLASSES + 3}, TOO_LARGE),
        ({"targets": (CLASSES, CLASSES - 2, 0.5)}, "targets[1]: 2 class indices lie outside 0..4"),
        ({"targets": F.one_hot(CLASSES, K) + F.one_hot(CLASSES + 1, K).float()}, "targets: 3 of 3 rows are no class"),
        ({"targets": LOGITS}, "(sums 0 to 0): divide each by its sum; several true classes at once need a binary loss"),
        ({"targets": LOGITS.double() + 0.19}, "(sums 0.95 to 0.95)"),
        ({"targets": (LOGITS.double() + 0.2).log_softmax(1)}, "none negative and 1 in sum"),
        ({"targets": torch.tensor([[1.5, -0.5, 0, 0, 0]] * 3)}, "targets: 3 of 3 rows are no class probabilities"),
        ({"targets": LOGITS * torch.nan}, "(sums nan to nan)"),
        ({"targets": (CLASSES, CLASSES, 1.5)}, "targets[2] (lam) must lie in [0, 1], got 1.5"),
        ({"targets": (CLASSES, LOGITS, 0.5)}, "targets[1] must be class indices"),
        ({"targets": (CLASSES, CLASSES)}, "targets: a mixed pair is (a, b, lam)"),
        ({"targets": CLASSES[:2]}, "targets has shape (2,), but logits (3, 5) want class indices (3,)"),
        ({"targets": torch.zeros(3, 4)}, "targets has shape (3, 4)"),
        ({"logits": LOGITS.long()}, "logits must be floating point"),
        ({"logits": torch.zeros(())}, "logits must be floating point (B, K, ...)"),
        ({"past": torch.zeros(3, 4)}, "past: a dense past of shape (3, 4)"),
        ({"past": Past(torch.zeros(2, 2), torch.zeros(2, 2).long())}, "past: a top-k past of shape (2, 2)"),
        ({"past": Past(torch.zeros(3, 2), torch.zeros(3, 1).long())}, "past: a top-k past of shape (3, 2)"),
        ({"past": Past(torch.zeros(3, 6), torch.zeros(3, 6).long())}, "past: a top-k past of shape (3, 6)"),
        ({"past": Past(LOGITS, None, CLASSES[:2] > 0)}, "past.known has shape (2,)"),
        ({"weight": torch.ones(4)}, "weight must have one value per class (5,)"),
    ],
)
def test_wrong_use_names_the_argument(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(PskdError, match=re.escape(message)) as caught:
        soft_cross_entropy(**{"logits": LOGITS, "targets": CLASSES, **wrong})
    assert "\n" not in str(caught.value)
