"""What a run records of every training sample, also when it is killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import small
from processes import in_child
from torch import Tensor

from pskd.errors import PskdError
from pskd.targets import Past
from pskd.workbench import registry
from pskd.workbench.analysis import history as module
from pskd.workbench.analysis.history import History, is_rescaled
from pskd.workbench.report.figures import training_samples
from pskd.workbench.report.figures.training_samples import measure_rescaling
from pskd.workbench.runs.group import Group
from pskd.workbench.runs.history import HEADER, Epochs, block_size, read
from pskd.workbench.study.results import Row, collect
from pskd.workbench.tasks.base import Shown
from pskd.workbench.train.loop import Interrupted, train
from pskd.workbench.train.observer import make_observers

HERE = torch.device("cpu")


def read_epochs(path: Path) -> Epochs:
    record = read(path)
    assert record is not None
    return record.of()


def recorded(tmp_path: Path, *batches: tuple[object, ...], num_samples: int = 6) -> Epochs:
    history = History(tmp_path / "history.bin", num_samples, HERE)
    history.cut(0)
    for batch in batches:
        history.batch(Shown(*batch))  # type: ignore[arg-type]
    history.end_epoch(Group())
    return read_epochs(history.path)


def test_probabilities_are_those_of_the_softmax(tmp_path: Path) -> None:
    """A target probability is as exact near 1 as near 0."""
    torch.manual_seed(0)
    logits, labels = torch.randn(500, 7, dtype=torch.float64) * 8, torch.randint(7, (500,))
    order = torch.randperm(500)
    record = recorded(tmp_path, (order, logits.float(), labels, None), num_samples=500)
    probs = torch.softmax(logits, 1)
    target, maximum = probs.gather(1, labels[:, None])[:, 0].numpy(), probs.amax(1).numpy()
    by_sample = order.argsort().numpy()
    near = {"rtol": 2e-3, "atol": 3e-6}
    np.testing.assert_allclose(record.target[0], target[by_sample], **near)
    np.testing.assert_allclose(record.wrong[0], (1 - target)[by_sample], **near)
    np.testing.assert_allclose(record.maximum[0], maximum[by_sample], **near)
    np.testing.assert_array_equal(record.correct[0], (probs.argmax(1) == labels).numpy()[by_sample])


def test_a_certain_sample_is_not_taken_for_an_impossible_one(tmp_path: Path) -> None:
    logits = torch.tensor([[200.0, 0.0], [0.0, 200.0]])
    record = recorded(tmp_path, (torch.tensor([0, 1]), logits, torch.tensor([0, 0]), None), num_samples=2)
    assert record.target.tolist() == [[1.0, 0.0]]
    assert record.wrong.tolist() == [[0.0, 1.0]]
    assert record.correct.tolist() == [[True, False]]


def test_only_plain_samples_are_recorded(tmp_path: Path) -> None:
    logits, labels = torch.zeros(3, 4), torch.tensor([0, 1, 2])
    pair = (labels, labels.flip(0), torch.tensor([1.0, 0.7, 1.0]))
    record = recorded(
        tmp_path,
        (torch.tensor([0, 1, 2]), logits, pair, None),
        (torch.tensor([3, 4, 5]), logits, labels, torch.tensor([False, True, False])),
    )
    assert np.isnan(record.target[0]).tolist() == [False, True, False, True, False, True]


def test_the_condition_of_the_rescaling() -> None:
    """Class by class as the theory says it, for dense and top-k pasts."""
    torch.manual_seed(0)
    logits, past = torch.randn(200, 5), torch.softmax(torch.randn(200, 5), 1)
    labels, alpha = torch.randint(5, (200,)), 0.3
    p = torch.softmax(logits, 1)
    expected = [all(alpha <= p[n, i] / past[n, i] for i in range(5) if i != labels[n]) for n in range(200)]
    assert 20 < sum(expected) < 180
    assert is_rescaled(logits, labels, Past(past), alpha).tolist() == expected
    assert is_rescaled(logits, labels, Past(past), torch.tensor(alpha)).tolist() == expected  # as alpha=auto has it
    whole = Past(past.gather(1, order := past.argsort(1, descending=True)), order)
    assert is_rescaled(logits, labels, whole, alpha).tolist() == expected
    top = Past(whole.values[:, :2], order[:, :2])
    spread = ((1 - top.values.sum(1, keepdim=True)) / 3).expand(-1, 5).scatter(1, top.classes, top.values)
    dense = is_rescaled(logits, labels, Past(spread), alpha)
    assert is_rescaled(logits, labels, top, alpha).tolist() == dense.tolist()


def as_first_format(path: Path) -> None:
    """Write a record as the first format had it: the count in all of the header, and no pasts."""
    raw = path.read_bytes()
    count = int.from_bytes(raw[:7], "little")
    assert raw[7] == 2
    epochs = [raw[8 + place : 8 + place + 7 * count] for place in range(0, len(raw) - 8, 7 * count)]
    path.write_bytes(count.to_bytes(8, "little") + b"".join(one[: 4 * count] + one[6 * count :] for one in epochs))


def test_the_past_is_the_one_that_the_method_used(tmp_path: Path) -> None:
    """Dense and top-k pasts, some of them not known; near 1 as exact as near 0."""
    torch.manual_seed(0)
    logits, labels = torch.randn(300, 6), torch.randint(6, (300,))
    past = torch.softmax(4 * torch.randn(300, 6, dtype=torch.float64), 1)
    known = torch.rand(300) < 0.8
    order = past.argsort(1, descending=True)[:, :3]
    top = past.gather(1, order)
    spread = ((1 - top.sum(1, keepdim=True)) / 3).expand(-1, 6).scatter(1, order, top)
    for given, whole in ((Past(past, None, known), past), (Past(top.float(), order, known), spread)):
        history = History(tmp_path / "history.bin", 300, HERE)
        history.cut(0)
        history.compare(logits, labels, given, 0.3)
        history.batch(Shown(torch.arange(300), logits, labels, None))
        history.batch(Shown(torch.arange(100), logits[:100], labels[:100], None))  # one that had no past
        history.end_epoch(Group())
        expected = torch.where(known, 1 - whole.gather(1, labels[:, None])[:, 0], torch.nan)
        expected[:100] = torch.nan
        np.testing.assert_allclose(read_epochs(history.path).past_wrong[0], expected.numpy(), rtol=2e-3, atol=3e-6)


def factors_of_a_run(out: Path, *words: str) -> tuple[Row, list[np.ndarray]]:
    """A finished run as a row of a report, and the ratio of the gradients' L1 norms, computed as it was trained.

    Of each epoch from the second one on; of the samples that meet the condition.
    """
    direct: list[list[Tensor]] = []
    original = History.compare

    def spied(self: History, logits: Tensor, labels: Tensor, past: Past, alpha: float) -> None:
        z = logits.detach().double().requires_grad_()
        y = torch.nn.functional.one_hot(labels, z.shape[1])
        with torch.enable_grad():
            soft = -((1 - alpha) * y + alpha * past.values.double()) * z.log_softmax(1)
            hard = -y * z.log_softmax(1)
            norms = [torch.autograd.grad(loss.sum(), z, retain_graph=True)[0].abs().sum(1) for loss in (soft, hard)]
        original(self, logits, labels, past, alpha)
        direct[-1].append((norms[0] / norms[1])[is_rescaled(logits, labels, past, alpha)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(History, "compare", spied)
        patch.setattr(History, "cut", lambda self, epochs, cut=History.cut: (direct.append([]), cut(self, epochs))[1])
        ended = History.end_epoch
        patch.setattr(History, "end_epoch", lambda self, group: (direct.append([]), ended(self, group))[1])
        config = small("epochs=5", "method.alpha=0.5", *words)
        train(config, out)
    (collection,) = collect([out])
    return collection.rows[0], [torch.cat(epoch).numpy() for epoch in direct[1:-1]]


@pytest.mark.parametrize("words", [("method.memory=bank",), ("method.memory=snapshot",)])
def test_the_rescaling_is_the_ratio_of_the_gradients_norms(tmp_path: Path, words: tuple[str, ...]) -> None:
    row, direct = factors_of_a_run(tmp_path / "run", *words)
    record = measure_rescaling(row)
    assert record is not None
    assert record.epochs.tolist() == [2, 3, 4, 5]
    for place, epoch in enumerate(direct):
        assert (epoch > -1e-9).all()
        expected = np.percentile(epoch, (25, 50, 75))
        np.testing.assert_allclose(
            [record.lower[place], record.median[place], record.upper[place]], expected, rtol=0, atol=2e-3
        )
        assert record.share[place] == pytest.approx(len(epoch) / 200, abs=0.011)
    assert (record.lower >= 0).all()


def test_a_record_of_the_first_format(tmp_path: Path) -> None:
    """It is read; a bank's past is then the epoch before, and of a snapshot nothing is known."""
    for memory in ("bank", "snapshot"):
        out = tmp_path / memory
        row, _ = factors_of_a_run(out, f"method.memory={memory}")
        exact, recorded = measure_rescaling(row), read(out / "history.bin")
        assert recorded is not None
        whole, times = recorded.of(), recorded.times_correct()
        as_first_format(out / "history.bin")
        (collection,) = collect([out])
        old, estimate = read(out / "history.bin"), measure_rescaling(collection.rows[0])
        assert exact is not None
        assert old is not None
        for name in ("target", "wrong", "maximum", "correct", "rescaled"):
            np.testing.assert_array_equal(getattr(old.of(), name), getattr(whole, name))
        assert np.isnan(old.of().past_wrong).all()
        np.testing.assert_array_equal(old.times_correct(), times)
        if memory == "snapshot":
            assert estimate is None
        else:
            assert estimate is not None
            np.testing.assert_allclose(estimate.median, exact.median, atol=2e-3)


def test_a_run_of_the_first_format_goes_on_in_the_current_one(tmp_path: Path) -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    shown = Shown(torch.arange(2), logits, torch.tensor([0, 0]), None)
    history = History(tmp_path / "history.bin", 2, HERE)
    history.cut(0)
    for _ in range(3):
        history.batch(shown)
        history.end_epoch(Group())
    before = read_epochs(history.path)
    as_first_format(history.path)
    history.batch(shown)
    state = history.state(Group())
    resumed = History(history.path, 2, HERE)
    resumed.cut(2)
    resumed.load(torch.cat((state[:8], state[-2:])))  # what a checkpoint of then holds
    resumed.end_epoch(Group())
    record = read(history.path)
    assert record is not None
    assert record.version == 2
    np.testing.assert_array_equal(record.of().target, before.target)
    np.testing.assert_array_equal(record.of().correct, before.correct)
    assert np.isnan(record.of().past_wrong).all()


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
    record = recorded.of()
    np.testing.assert_array_equal(recorded.times_correct(), record.correct.sum(0))
    part = recorded.of([4, 5], np.array([3, 7]))
    np.testing.assert_array_equal(part.wrong, record.wrong[4:, [3, 7]])
    assert record.target.shape == (6, 200)
    assert not np.isnan(record.target).any()
    assert not record.rescaled[0].any()  # there is no past in the first epoch
    assert record.rescaled[1].any()
    assert (record.maximum >= record.target - 1e-3).all()


def test_the_record_of_many_samples_lies_in_a_file_and_is_the_same(
    tmp_path: Path, undisturbed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a run is stopped in the middle of an epoch, and parts do not end with a column."""
    monkeypatch.setattr(module, "HELD", 100)
    monkeypatch.setattr(module, "PART", 333)
    monkeypatch.setattr(training_samples, "PART", 77)
    stopped, out = [], tmp_path / "run"

    def stop(self: History, shown: Shown, batch: Callable[..., None] = History.batch) -> None:
        batch(self, shown)
        stopped.append(self)
        if len(stopped) == 11:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(History, "batch", stop)
    config = small("epochs=6", "train.save_every=3 steps")
    with pytest.raises(Interrupted):
        train(config, out)
    assert stopped[0]._scratch == out / "history-0.scratch"
    train(config, out, resume=True)
    whole = undisturbed("epochs=6")
    assert (out / "history.bin").read_bytes() == (whole / "history.bin").read_bytes()
    assert not list(out.glob("*.scratch"))
    rows = [collect([folder])[0].rows[0] for folder in (out, whole)]
    monkeypatch.setattr(training_samples, "PART", 1000)
    for one, other in zip(measure_rescaling(rows[0]) or (), measure_rescaling(rows[1]) or (), strict=True):
        np.testing.assert_array_equal(one, other)
    assert measure_rescaling(rows[0]) is not None


def test_a_scratch_file_holds_many_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 2**20)
    count = 300_007
    history = History(tmp_path / "history.bin", count, HERE, tmp_path / "scratch")
    history.cut(0)
    seen = torch.tensor([0, count // 2, count - 1])
    for _ in range(2):
        history.batch(Shown(seen, torch.eye(3) * 9, torch.arange(3), None))
        history.end_epoch(Group())
    assert history.path.stat().st_size == HEADER + 2 * block_size(count)
    known = ~np.isnan(read_epochs(history.path).target)
    assert known.sum(1).tolist() == [3, 3]
    assert known[:, seen.numpy()].all()


def test_processes_add_up_their_records_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 100)
    logits, labels = torch.randn(60, 3), torch.randint(3, (60,))
    alone, first, second = (
        History(tmp_path / f"{name}.bin", 60, HERE, scratch=scratch)
        for name, scratch in (("alone", None), ("first", tmp_path / "first.scratch"), ("second", tmp_path / "second"))
    )
    for history, part in ((alone, slice(0, 60)), (first, slice(0, 25)), (second, slice(25, 60))):
        history.cut(0)
        history.batch(Shown(torch.arange(60)[part], logits[part], labels[part], None))
    theirs: list[Tensor] = []
    group = SimpleNamespace(active=True, leader=True, sum=lambda part: part + theirs.pop(0))
    theirs += [part.clone() for _, part in second._sum_parts(Group())]
    assert torch.equal(first.state(group), alone.state(Group()))  # type: ignore[arg-type]
    theirs += [part.clone() for _, part in second._sum_parts(Group())]
    first.end_epoch(group)  # type: ignore[arg-type]
    alone.end_epoch(Group())
    assert first.path.read_bytes() == alone.path.read_bytes()
    assert not first.flags.any()


def test_a_record_that_the_disk_cannot_hold_is_refused_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD", 100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=7 * 200 * 4 - 1))
    with pytest.raises(PskdError, match=r"history\.bin needs 0\.0 MB more .* train\.history=false"):
        train(small("epochs=3"), tmp_path / "run")
    train(small("epochs=3", "train.history=false"), tmp_path / "other")


def test_it_can_be_turned_off_and_missing_epochs_are_unseen(tmp_path: Path) -> None:
    train(small("train.history=false", "epochs=1"), tmp_path / "off")
    assert read(tmp_path / "off" / "history.bin") is None
    history = History(tmp_path / "late.bin", 4, HERE)
    history.cut(2)  # a run that went on with recording after two epochs without
    history.batch(Shown(torch.arange(4), torch.zeros(4, 3), torch.zeros(4, dtype=torch.long), None))
    history.end_epoch(Group())
    assert np.isnan(read_epochs(history.path).target).all(1).tolist() == [True, True, False]


def test_training_does_not_depend_on_it(tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    result = train(small("train.history=false"), tmp_path / "off")
    assert result["nll"] == pytest.approx(train(None, undisturbed(), resume=True)["nll"], abs=0)


def test_observers_are_found_by_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that returns None has nothing to do in this run."""
    known = {"mine": lambda *given: given, "idle": lambda *given: None}
    monkeypatch.setattr(registry.observers, "_things", {**registry.observers._things, **known})
    task = SimpleNamespace(config=SimpleNamespace(train=SimpleNamespace(history=True)), shows_samples=False)
    method = SimpleNamespace()
    made = make_observers(tmp_path, task, method, HERE)  # type: ignore[arg-type]
    assert made == {"mine": (tmp_path, task, method, HERE)}
