"""What all methods have in common: their settings, how they are made from them, and what a call takes."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pskd
from pskd.errors import PskdError
from pskd.linear_head import Output
from pskd.memory import PredictionBank, Snapshot
from pskd.methods import CSKD, PSKD, TFKD, Hard, LabelSmoothing, Loss, MaxSup, Method
from pskd.settings import Count, NotNegative, Place, Positive, Range, Share
from pskd.targets import Targets
from pskd.workbench.config.methods import TrainingInfo, make_method, method_settings
from pskd.workbench.registry import methods

TRAINING = TrainingInfo(
    epochs=3, num_classes=5, num_samples=12, steps_per_epoch=4, model=nn.Linear(3, 5), fingerprint="abc", path=None
)
METHODS: list[type[Method]] = [Hard, LabelSmoothing, CSKD, TFKD, PSKD]


def declared(method: type[Method]) -> dict[str, tuple[Any, Any]]:
    return {name: (setting.annotation, setting.default) for name, setting in method_settings(method).items()}


def ps_kd(training: TrainingInfo = TRAINING, **settings: Any) -> PSKD:
    made = make_method("ps_kd", training, settings)
    assert isinstance(made, PSKD)
    return made


def test_the_settings_of_each_method_in_order() -> None:
    expected: dict[type[Method], dict[str, tuple[Any, Any]]] = {
        Hard: {},
        LabelSmoothing: {"epsilon": (Annotated[float, Range(ge=0, lt=1)], 0.1), "others_only": (bool, False)},
        CSKD: {"temperature": (Positive, 4.0), "lam": (NotNegative, 1.0)},
        TFKD: {
            "variant": (Literal["self", "reg"], "self"),
            "temperature": (Positive | None, None),
            "alpha": (Share | None, None),
            "multiplier": (Positive, 1.0),
            "a": (Annotated[float | None, Range(gt=0, lt=1)], None),
            "released": (bool | None, None),
            "teacher": (Annotated[str | None, Place()], None),
        },
        PSKD: {
            "alpha": (Share | Literal["auto"], 0.8),
            "schedule": (Literal["linear", "step", "exponential", "cosine", "constant"], "linear"),
            "partners": (NotNegative, 0.0),
            "memory": (Literal["bank", "snapshot"], "bank"),
            "form": (Literal["auto", "dense", "topk"], "auto"),
            "k": (Count, 32),
            "dtype": (Literal["float16", "bfloat16", "float32", "float64"], "float16"),
            "path": (Annotated[str | None, Place(written=True)], None),
            "momentum": (Annotated[float, Range(ge=0, lt=1)], 0.0),
            "refresh": (Positive, 1.0),
            "ema": (Annotated[float | None, Range(ge=0, lt=1)], None),
        },
    }
    for method, settings in expected.items():
        assert declared(method) == settings
        assert list(declared(method)) == list(settings)
        assert not any(setting.required for setting in method_settings(method).values())


def test_a_method_is_made_from_its_settings() -> None:
    for method in METHODS:
        given = {"teacher": "runs/before"} if method is TFKD else {}
        assert type(make_method(method.name, TRAINING, given)) is method
    smoothing = make_method("label_smoothing", TRAINING, {"epsilon": 0.3})
    assert isinstance(smoothing, LabelSmoothing)
    assert smoothing.epsilon == 0.3
    assert make_method("tf_kd", TRAINING, {"variant": "reg"}).needs == frozenset()
    with pytest.raises(PskdError, match=r"epsilon must lie in \[0, 1\), got 3"):
        make_method("label_smoothing", TRAINING, {"epsilon": 3})


def test_ps_kd_is_made_with_its_memory(tmp_path: Path) -> None:
    method = ps_kd(alpha=0.5, schedule="cosine", dtype="float32")
    bank = method.memory
    assert isinstance(bank, PredictionBank)
    assert (method.epochs, method.alpha, method.schedule) == (3, 0.5, pskd.schedules.cosine)
    assert (bank.num_samples, bank.num_classes, bank.form, bank.dtype) == (12, 5, "dense", torch.float32)
    assert (bank.fingerprint, bank.max_age, bank.momentum) == ("abc", 1, 0)
    method.start_epoch(0)
    assert method.alpha_t == pytest.approx(0.5 * (1 - math.cos(math.pi / 3)) / 2)

    snapshot = ps_kd(memory="snapshot", refresh=0.5).memory
    assert isinstance(snapshot, Snapshot)
    assert (snapshot.refresh, snapshot.steps_per_epoch, snapshot.model) == (0.5, 4, TRAINING.model)
    mean = ps_kd(memory="snapshot", ema=0.9).memory
    assert isinstance(mean, Snapshot)
    assert mean.ema == 0.9
    assert ps_kd(momentum=0.5).memory.momentum == 0.5  # type: ignore[attr-defined]

    many = replace(TRAINING, num_classes=1001, host=1, hosts=3, path=tmp_path / "shared")
    for settings, form, file in (({}, "topk", "shared"), ({"path": str(tmp_path / "own"), "k": 7}, "topk", "own")):
        bank = ps_kd(many, **settings).memory
        assert isinstance(bank, PredictionBank)
        assert (bank.form, bank.k, bank.host, bank.shards) == (form, settings.get("k", 32), 1, 3)
        assert (tmp_path / file).exists()
    for form in ("dense", "topk"):
        assert ps_kd(form=form, k=2).memory.form == form  # type: ignore[attr-defined]
    for wrong, message in (
        ({"memory": "banc"}, "memory is 'banc'; allowed are bank, snapshot; did you mean bank?"),
        ({"dtype": "int8"}, "dtype is 'int8'; allowed are float16, bfloat16, float32, float64"),
        ({"refresh": 0}, "refresh must be a positive number, got 0"),
        ({"alpha": 2}, "alpha must lie in [0, 1], got 2"),
        ({"memory": "snapshot", "momentum": 0.5}, "method.momentum=0.5 is a bank's; with memory=snapshot take"),
        ({"ema": 0.5}, "method.ema=0.5 is a snapshot's: add method.memory=snapshot, or take method.momentum"),
    ):
        with pytest.raises(PskdError, match=re.escape(message)):
            ps_kd(**wrong)


class Own(Method):
    """A stranger's method.

    Args:
        sharpness: of the target.
    """

    name = "own"
    needs = frozenset({"boxes"})

    def __init__(self, num_classes: int, sharpness: Positive = 2.0) -> None:
        self.num_classes, self.sharpness = num_classes, sharpness

    def loss(
        self, output: Output, targets: Targets, *, boxes: Tensor | None = None, distilled: Tensor | None = None
    ) -> Loss:
        assert boxes is not None
        return Loss(boxes.sum(), {})


def test_a_method_of_ones_own_needs_no_more_than_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(methods._things, "own", Own)
    assert declared(Own) == {"sharpness": (Positive, 2.0)}
    made = make_method("own", TRAINING, {"sharpness": 3.0})
    assert isinstance(made, Own)
    assert (made.num_classes, made.sharpness) == (5, 3.0)
    assert float(made(torch.zeros(1, 2), torch.zeros(1), boxes=torch.ones(3), index=torch.zeros(1))) == 3
    card = made.card
    assert (card.plain, card.shares_mix, card.advise(made), made.takes_heads) == (False, False, None, False)
    made.start_epoch(7)
    made.settle()
    made.load_state_dict(made.state_dict())


def test_one_loop_serves_all_methods(logits: Tensor, labels: Tensor) -> None:
    """What a method does not need is passed over; what nobody knows is refused, and the nearest name told."""
    given = {
        "index": torch.arange(6),
        "inputs": torch.randn(6, 3, dtype=torch.float64),
        "partner_logits": torch.randn(6, 5, dtype=torch.float64),
        "teacher_logits": torch.randn(6, 5, dtype=torch.float64),
        "distilled": torch.ones(6, dtype=torch.bool),
    }
    for method in (Hard(), LabelSmoothing(), CSKD(), TFKD(), TFKD("reg"), PSKD(2, memory=PredictionBank(6, 5))):
        method.start_epoch(0)
        needed = {name: given[name] for name in (*method.needs, "distilled")}
        assert torch.equal(method(logits, labels, **given), method.loss(logits, labels, **needed).total)
        with pytest.raises(
            PskdError, match=r"distiled: unknown; did you mean distilled\? \(\w+ takes distilled"
        ) as said:
            method(logits, labels, distiled=given["distilled"])
        assert all(name in str(said.value) for name in method.needs)
        with pytest.raises(PskdError, match=r"xyz: unknown \("):
            method(logits, labels, xyz=1)
        with pytest.raises(TypeError):
            method.loss(logits, labels, distiled=given["distilled"])
    assert [method.card.plain for method in METHODS] == [True, False, False, False, False]
    assert [method.card.shares_mix for method in METHODS] == [False, False, True, False, True]
    assert [method.takes_heads for method in METHODS] == [True, True, False, False, True]


def test_an_epoch_is_a_plain_number() -> None:
    """Whatever counted it: numpy's numbers cannot be saved, and a tensor may be counted on in place."""
    method, count = MaxSup(3), torch.zeros((), dtype=torch.int64)
    for epoch in (count, np.int64(1)):
        method.start_epoch(epoch)  # type: ignore[arg-type]
        count += 1
        assert type(method.state_dict()["epoch"]) is int
    assert method.epoch == 1
    with pytest.raises(PskdError, match=r"start_epoch: epoch must be a whole number, got 1\.5"):
        method.start_epoch(1.5)  # type: ignore[arg-type]
    stream = PSKD(steps=3, memory=PredictionBank(6, 5))
    stream.start_step(np.int64(1))  # type: ignore[arg-type]
    assert type(stream.state_dict()["epoch"]) is int
    with pytest.raises(PskdError, match="start_step: step must be a whole number, got 'two'"):
        stream.start_step("two")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64])
def test_labels_are_numbers(dtype: torch.dtype) -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    with pytest.raises(PskdError, match="targets must be class indices or class probabilities, got torch"):
        Hard()(logits, torch.ones(2, dtype=dtype))
