"""What a run records of every training sample, also when it is killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import small
from processes import in_child

from pskd.analysis.history import History, only_rescaled
from pskd.engine.loop import train
from pskd.runs.group import Group
from pskd.runs.history import Epochs, read
from pskd.targets import Past
from pskd.tasks.base import Shown

HERE = torch.device("cpu")


def recorded(tmp_path: Path, *batches: tuple[object, ...], num_samples: int = 6) -> Epochs:
    history = History(tmp_path / "history.bin", num_samples, HERE)
    history.cut(0)
    for batch in batches:
        history.batch(Shown(*batch))  # type: ignore[arg-type]
    history.end_epoch(Group())
    found = read(history.path)
    assert found is not None
    return found.of()


def test_probabilities_are_those_of_the_softmax(tmp_path: Path) -> None:
    """A target probability is as exact near 1 as near 0."""
    torch.manual_seed(0)
    logits, labels = torch.randn(500, 7, dtype=torch.float64) * 8, torch.randint(7, (500,))
    order = torch.randperm(500)
    found = recorded(tmp_path, (order, logits.float(), labels, None), num_samples=500)
    probs = torch.softmax(logits, 1)
    target, maximum = probs.gather(1, labels[:, None])[:, 0].numpy(), probs.amax(1).numpy()
    by_sample = order.argsort().numpy()
    near = {"rtol": 2e-3, "atol": 3e-6}
    np.testing.assert_allclose(found.target[0], target[by_sample], **near)
    np.testing.assert_allclose(found.wrong[0], (1 - target)[by_sample], **near)
    np.testing.assert_allclose(found.maximum[0], maximum[by_sample], **near)
    np.testing.assert_array_equal(found.correct[0], (probs.argmax(1) == labels).numpy()[by_sample])


def test_a_certain_sample_is_not_taken_for_an_impossible_one(tmp_path: Path) -> None:
    logits = torch.tensor([[200.0, 0.0], [0.0, 200.0]])
    found = recorded(tmp_path, (torch.tensor([0, 1]), logits, torch.tensor([0, 0]), None), num_samples=2)
    assert found.target.tolist() == [[1.0, 0.0]]
    assert found.wrong.tolist() == [[0.0, 1.0]]
    assert found.correct.tolist() == [[True, False]]


def test_only_plain_samples_are_recorded(tmp_path: Path) -> None:
    logits, labels = torch.zeros(3, 4), torch.tensor([0, 1, 2])
    pair = (labels, labels.flip(0), torch.tensor([1.0, 0.7, 1.0]))
    found = recorded(
        tmp_path,
        (torch.tensor([0, 1, 2]), logits, pair, None),
        (torch.tensor([3, 4, 5]), logits, labels, torch.tensor([False, True, False])),
    )
    assert np.isnan(found.target[0]).tolist() == [False, True, False, True, False, True]


def test_the_condition_of_the_rescaling() -> None:
    """Class by class as the theory says it, for dense and top-k pasts."""
    torch.manual_seed(0)
    logits, past = torch.randn(200, 5), torch.softmax(torch.randn(200, 5), 1)
    labels, alpha = torch.randint(5, (200,)), 0.3
    p = torch.softmax(logits, 1)
    expected = [all(alpha <= p[n, i] / past[n, i] for i in range(5) if i != labels[n]) for n in range(200)]
    assert 20 < sum(expected) < 180
    assert only_rescaled(logits, labels, Past(past), alpha).tolist() == expected
    whole = Past(past.gather(1, order := past.argsort(1, descending=True)), order)
    assert only_rescaled(logits, labels, whole, alpha).tolist() == expected
    top = Past(whole.values[:, :2], order[:, :2])
    spread = ((1 - top.values.sum(1, keepdim=True)) / 3).expand(-1, 5).scatter(1, top.classes, top.values)
    dense = only_rescaled(logits, labels, Past(spread), alpha)
    assert only_rescaled(logits, labels, top, alpha).tolist() == dense.tolist()


def test_a_killed_run_records_the_same(tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    out, draw = tmp_path / "run", random.Random(0)
    config = small("train.save_every=2 steps", "epochs=6")
    while not (out / "result.json").exists():
        child = in_child(lambda: train(config, out, resume=True))
        if draw.random() < 0.7:
            time.sleep(draw.uniform(0.05, 0.4))
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    whole = undisturbed("epochs=6")
    assert (out / "history.bin").read_bytes() == (whole / "history.bin").read_bytes()
    recorded = read(out / "history.bin")
    assert recorded is not None
    found = recorded.of()
    np.testing.assert_array_equal(recorded.times_correct(), found.correct.sum(0))
    part = recorded.of([4, 5], np.array([3, 7]))
    np.testing.assert_array_equal(part.wrong, found.wrong[4:, [3, 7]])
    assert found.target.shape == (6, 200)
    assert not np.isnan(found.target).any()
    assert not found.rescaled[0].any()  # there is no past in the first epoch
    assert found.rescaled[1].any()
    assert (found.maximum >= found.target - 1e-3).all()


def test_it_can_be_turned_off_and_missing_epochs_are_unseen(tmp_path: Path) -> None:
    train(small("train.history=false", "epochs=1"), tmp_path / "off")
    assert read(tmp_path / "off" / "history.bin") is None
    history = History(tmp_path / "late.bin", 4, HERE)
    history.cut(2)  # a run that went on with recording after two epochs without
    history.batch(Shown(torch.arange(4), torch.zeros(4, 3), torch.zeros(4, dtype=torch.long), None))
    history.end_epoch(Group())
    late = read(history.path)
    assert late is not None
    assert np.isnan(late.of().target).all(1).tolist() == [True, True, False]


def test_training_does_not_depend_on_it(tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    result = train(small("train.history=false"), tmp_path / "off")
    assert result["nll"] == pytest.approx(train(None, undisturbed(), resume=True)["nll"], abs=0)
