"""The bank: what is recalled is what was recorded, in every form, type and place."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pskd import PredictionBank
from pskd.errors import PskdError
from pskd.memory.likeliest import top_classes
from pskd.memory.storage import Storage

N, K = 20, 10
FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    *([torch.float8_e8m0fnu] if hasattr(torch, "float8_e8m0fnu") else []),  # from torch 2.7 on
]


def logits_of(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense(bank: PredictionBank, index: Tensor) -> Tensor:
    """Recalled predictions (B, K), the rest of a top-k row spread evenly."""
    past = bank.recall(index)
    if past.classes is None:
        return past.values
    rest = (1 - past.values.sum(1, keepdim=True)) / (bank.num_classes - past.values.shape[1])
    return rest.repeat(1, bank.num_classes).scatter(1, past.classes, past.values)


def by_class(values: Tensor, classes: Tensor | None) -> tuple[Tensor, Tensor]:
    """The k pairs of each row in the order of their classes: a bank keeps them in none."""
    assert classes is not None
    order = classes.argsort(1)
    return values.gather(1, order), classes.gather(1, order)


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return {"path": tmp_path / "new" / "bank"} if request.param == "file" else {}


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("form", ["dense", "topk"])
def test_recalls_the_softmax_in_every_type(form: str, dtype: torch.dtype, place: dict[str, Any]) -> None:
    bank = PredictionBank(N, K, form=form, k=3, dtype=dtype, **place)
    logits, index = logits_of(6, K), torch.tensor([3, 0, 19, 7, 8, 9])
    bank.record(index, logits)
    past = bank.recall(index)
    assert past.values.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert past.known is not None
    assert past.known.all()

    values = past.values
    # The same rounding, done by hand: of the probabilities, or in a dense row of their ratio to the largest.
    likely = torch.softmax(logits, 1)
    if form == "topk":
        likely, classes = by_class(*likely.topk(3, 1))
        values, found = by_class(past.values, past.classes)
        assert torch.equal(found, classes)
        expected = likely.to(dtype).to(past.values.dtype)
    else:
        expected = (likely / likely.amax(1, keepdim=True)).to(dtype).to(past.values.dtype)
        expected = expected / expected.sum(1, keepdim=True)
        torch.testing.assert_close(past.values.sum(1), torch.ones(6, dtype=past.values.dtype))
    torch.testing.assert_close(values, expected)
    coarse = {"torch.float8_e5m2": 0.125, "torch.float8_e5m2fnuz": 0.125, "torch.float8_e8m0fnu": 0.5}
    relative = coarse.get(str(dtype), 0.0625)
    torch.testing.assert_close(values.double(), likely, rtol=2 * relative, atol=0.002)


@pytest.mark.parametrize("form", ["dense", "topk"])
def test_unknown_rows_are_told(form: str, place: dict[str, Any]) -> None:
    bank = PredictionBank(N, K, form=form, k=3, **place)
    bank.record(torch.tensor([1, 2]), logits_of(2, K))
    known = bank.recall(torch.arange(4)).known
    assert known is not None
    assert known.tolist() == [False, True, True, False]
    bank.clear()
    known = bank.recall(torch.arange(4)).known
    assert known is not None
    assert not known.any()


@pytest.mark.parametrize("num_classes", [256, 257, 32767, 32768, 65536, 65537])
def test_the_smallest_type_that_holds_a_class(num_classes: int) -> None:
    """Classes on both sides of each type's sign and end come back as they were, as do labels."""
    bank = PredictionBank(4, num_classes, form="topk", k=2)
    last = num_classes - 1
    logits = torch.zeros(4, num_classes)
    tops = torch.tensor([[last, 0], [num_classes // 2, 127], [128, last], [last - 1, num_classes // 2 - 1]])
    logits.scatter_(1, tops, torch.tensor([[9.0, 8.0]]).expand(4, 2))
    labels = torch.tensor([last, 0, num_classes // 2, 127])
    bank.record(torch.arange(4), logits, labels=labels)
    past = bank.recall(torch.arange(4), labels=labels)
    assert past.classes is not None
    assert torch.equal(past.classes.sort(1).values, tops.sort(1).values)
    with pytest.raises(PskdError, match="index: 4 samples had another label"):
        bank.recall(torch.arange(4), labels=(labels + 1) % num_classes)
    class_bytes = 1 if num_classes <= 256 else 2 if num_classes <= 65536 else 4
    label_bytes = 2 if num_classes < 32768 else 4
    assert bank.nbytes == (4 + 1) * (2 * (2 + class_bytes) + label_bytes + 2)


def test_bytes_of_a_dense_bank() -> None:
    assert PredictionBank(50_000, 100).nbytes == 50_001 * (100 * 2 + 2 + 2)
    assert PredictionBank(N, K, dtype=torch.float64).nbytes == (N + 1) * (K * 8 + 2 + 2)
    assert PredictionBank(N, K, dtype=torch.float8_e4m3fn).nbytes == (N + 1) * (K * 1 + 2 + 2)


def test_k_of_all_classes_is_stored_as_dense() -> None:
    topk, plain = PredictionBank(N, K, form="topk", k=K), PredictionBank(N, K)
    assert topk.form == "dense"
    assert topk.nbytes == plain.nbytes


def test_top_k_never_loses_the_rest_of_the_mass() -> None:
    bank = PredictionBank(N, K, form="topk", k=2, dtype=torch.float64)
    logits = logits_of(5, K)
    bank.record(torch.arange(5), logits)
    probabilities = torch.softmax(logits, 1)
    recalled = dense(bank, torch.arange(5))
    top = probabilities.topk(2, 1).indices
    torch.testing.assert_close(recalled.sum(1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(recalled.gather(1, top), probabilities.gather(1, top))


def test_a_row_never_rounds_to_nothing() -> None:
    """1000 classes of 0.001 each: about half of the smallest float8 above 0."""
    bank = PredictionBank(1, 1000, dtype=torch.float8_e4m3fn)
    bank.record(torch.tensor([0]), torch.zeros(1, 1000))
    torch.testing.assert_close(bank.recall(torch.tensor([0])).values, torch.full((1, 1000), 1e-3))


def test_padding_is_no_repetition_and_hides_none() -> None:
    """Padding has the index of its sentence's first token, and is not taken."""
    bank = PredictionBank(4, K, dtype=torch.float64)
    logits = logits_of(6, K)
    for index, take, positions in (
        ([0, 1, 2, 3, 0, 0], [1, 1, 1, 1, 0, 0], [0, 1, 2, 3]),  # two of padding
        ([0, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0], [0, 2]),  # and a row that stands twice
        ([0, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 1]),
    ):
        bank.clear()
        bank.record(torch.tensor(index), logits, labels=torch.zeros(6, dtype=torch.long), take=torch.tensor(take) > 0)
        found = bank.recall(torch.arange(4)[: len(positions)])
        torch.testing.assert_close(found.values, torch.softmax(logits[positions], 1))
        assert not bank._storage.read("labels", torch.arange(len(positions), 4)).any()


@pytest.mark.parametrize("form", ["dense", "topk"])
def test_of_an_index_that_stands_twice_the_last_is_kept(form: str) -> None:
    generator = torch.Generator().manual_seed(0)
    bank = PredictionBank(50, K, form=form, k=3, dtype=torch.float64)
    for trial in range(100):
        size = int(torch.randint(1, 300, (), generator=generator))
        index = torch.randint(50, (size,), generator=generator)
        logits, labels = logits_of(size, K, seed=trial), torch.randint(K, (size,), generator=generator)
        before = bank.recall(index)
        bank.record(index, logits, labels=labels)
        last = {int(row): position for position, row in enumerate(index)}
        rows, positions = torch.tensor(list(last)), list(last.values())
        past = bank.recall(rows, labels=labels[positions])
        expected = torch.softmax(logits[positions], 1)
        values = past.values
        if form == "topk":
            expected, classes = by_class(*expected.topk(3, 1))
            values, found = by_class(past.values, past.classes)
            assert torch.equal(found, classes)
        torch.testing.assert_close(values, expected)
        # Before that, all of its places read the one old row.
        for row in index.unique():
            same = before.values[index == row]
            assert torch.equal(same, same[:1].expand_as(same))


def test_the_last_is_kept_however_many_threads_write(two_threads: None) -> None:
    """Rows so wide that several threads share the writing, which then comes in no order."""
    bank = PredictionBank(50, 1000, dtype=torch.float64)
    for trial in range(5):
        index = torch.randint(50, (300,), generator=torch.Generator().manual_seed(trial))
        logits = logits_of(300, 1000, seed=trial)
        bank.record(index, logits)
        last = {int(row): position for position, row in enumerate(index)}
        expected = torch.softmax(logits[list(last.values())], 1)
        torch.testing.assert_close(bank.recall(torch.tensor(list(last))).values, expected)


def test_only_what_is_taken_is_written() -> None:
    bank = PredictionBank(N, K)
    index = torch.arange(4)
    bank.record(index, logits_of(4, K))
    old = bank.recall(index).values
    bank.record(index, logits_of(4, K, seed=1), take=torch.tensor([True, False, False, True]))
    changed = (bank.recall(index).values != old).any(1)
    assert changed.tolist() == [True, False, False, True]
    # A taken and an untaken sample of one index: only the first was there to be kept.
    bank.record(torch.tensor([5, 5]), logits_of(2, K, seed=2), take=torch.tensor([True, False]))
    torch.testing.assert_close(dense(bank, torch.tensor([5])), torch.softmax(logits_of(2, K, seed=2), 1)[:1].float(),
                               atol=1e-3, rtol=0)  # fmt: skip


def test_tokens_have_an_index_each() -> None:
    """(sentences, classes, tokens), as F.cross_entropy takes them; the padding's index is out of range on purpose."""
    bank = PredictionBank(N, K, dtype=torch.float64)
    index = torch.tensor([[0, 1, 2], [3, 4, -1]])
    labels = torch.tensor([[5, 6, 7], [8, 9, -100]])
    logits = logits_of(2, K, 3)
    bank.record(index, logits, labels=labels, take=labels != -100)
    past = bank.recall(index, labels=labels, take=labels != -100)
    known = bank.recall(index[0]).known
    assert past.known is None  # all that are asked for
    assert known is not None
    assert known.all()
    expected = torch.softmax(logits, 1)
    torch.testing.assert_close(past.values[0], expected[0])
    torch.testing.assert_close(past.values[1, :, :2], expected[1, :, :2])
    assert int((bank.state_dict()["rows"]["labels"] != 0).sum()) == 5


def test_labels_that_changed_are_reported() -> None:
    bank = PredictionBank(N, K)
    index, labels = torch.arange(4), torch.tensor([1, 2, 3, 4])
    bank.record(index, logits_of(4, K), labels=labels)
    bank.recall(index, labels=labels)
    with pytest.raises(PskdError, match=r"index: 2 samples had another label when the bank was filled; the data set"):
        bank.recall(index, labels=torch.tensor([1, 3, 2, 4]))
    bank.recall(index, labels=torch.tensor([1, 3, 2, 4]), take=torch.tensor([True, False, False, True]))
    # Rows of a mixed label, which is no class, match any.
    bank.record(index, logits_of(4, K))
    bank.recall(index, labels=labels.flip(0))


@pytest.mark.parametrize("form", ["dense", "topk"])
def test_state_goes_through_a_file(form: str, place: dict[str, Any], tmp_path: Path) -> None:
    settings = {"num_samples": N, "num_classes": K, "form": form, "k": 3}
    bank = PredictionBank(**settings, **place, fingerprint="abc")
    index, labels = torch.arange(0, N, 2), torch.arange(0, N, 2) % K
    bank.record(index, logits_of(N // 2, K), labels=labels)
    buffer = io.BytesIO()
    torch.save(bank.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)

    for other_place in ({}, {"path": tmp_path / "other"}):
        other = PredictionBank(**settings, **other_place, fingerprint="abc")
        other.record(torch.tensor([1]), logits_of(1, K))  # what it held before is gone
        other.load_state_dict(state)
        ours, theirs = bank.recall(torch.arange(N)), other.recall(torch.arange(N))
        for one, two in zip(ours, theirs, strict=True):
            assert one is two is None or torch.equal(one, two)
        with pytest.raises(PskdError, match="another label"):
            other.recall(index, labels=labels.flip(0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fingerprint": "def"}, "fingerprint: the stored bank was filled for another or a reordered data set ('abc'"),
        ({"num_samples": N + 1}, "num_samples: the stored bank was filled for another or a reordered data set (20, h"),
        ({"num_classes": K + 1}, "num_classes: the stored bank was filled for other settings (10, here 11)"),
        ({"form": "topk", "k": 3}, "form: the stored bank was filled for other settings ('dense', here 'topk')"),
        ({"dtype": torch.bfloat16}, "dtype: the stored bank was filled for other settings ('float16', here 'bfloat1"),
    ],
)
def test_a_state_of_another_bank_is_refused(settings: dict[str, Any], message: str) -> None:
    plain = {"num_samples": N, "num_classes": K, "fingerprint": "abc"}
    state = PredictionBank(**plain).state_dict()
    with pytest.raises(PskdError, match=re.escape(message)):
        PredictionBank(**{**plain, **settings}).load_state_dict(state)


def test_a_bank_without_fingerprint_takes_any() -> None:
    filled = PredictionBank(N, K, fingerprint="abc")
    filled.record(torch.arange(3), logits_of(3, K))
    bank = PredictionBank(N, K)
    bank.load_state_dict(filled.state_dict())
    assert torch.equal(bank.recall(torch.arange(3)).values, filled.recall(torch.arange(3)).values)


def test_a_mapped_file_is_fresh_when_opened_again(tmp_path: Path) -> None:
    bank = PredictionBank(N, K, path=tmp_path / "bank")
    bank.record(torch.arange(3), logits_of(3, K))
    del bank
    known = PredictionBank(N, K, path=tmp_path / "bank").recall(torch.arange(3)).known
    assert known is not None
    assert not known.any()


OTHER_PROCESS = """
import sys, torch, pskd
bank = pskd.PredictionBank({n}, {k}, path=sys.argv[1])
seen = bank.recall(torch.arange(3)).known.tolist()
bank.record(torch.tensor([2]), torch.eye({k})[:1] * 5, labels=torch.tensor([0]))
print(seen)
"""


def test_living_processes_share_a_mapped_file(tmp_path: Path) -> None:
    bank = PredictionBank(N, K, path=tmp_path / "bank")
    bank.record(torch.tensor([0]), logits_of(1, K))
    code = OTHER_PROCESS.format(n=N, k=K)
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "bank"], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stdout.strip() == "[True, False, False]"
    past = bank.recall(torch.arange(3))
    assert past.known is not None
    assert past.known.tolist() == [True, False, True]
    torch.testing.assert_close(past.values[2], torch.softmax(torch.eye(K)[0] * 5, 0), atol=1e-3, rtol=0)


def test_a_file_in_use_by_another_bank_is_refused(tmp_path: Path) -> None:
    bank = PredictionBank(N, K, path=tmp_path / "bank")
    bank.record(torch.tensor([0]), logits_of(1, K))
    for other in ({"num_samples": N + 1}, {"num_classes": K + 1}, {"dtype": torch.float8_e5m2}):
        with pytest.raises(PskdError, match=r"path: .*bank is in use for .*; name another file"):
            PredictionBank(**{"num_samples": N, "num_classes": K, "path": tmp_path / "bank", **other})
    known = bank.recall(torch.tensor([0])).known
    assert known is not None
    assert known.all()


def test_a_file_that_is_no_bank_is_not_overwritten(tmp_path: Path) -> None:
    precious = tmp_path / "model.pt"
    precious.write_bytes(b"weights")
    with pytest.raises(PskdError, match=r"path: .*model\.pt holds something else than a bank"):
        PredictionBank(N, K, path=precious)
    assert precious.read_bytes() == b"weights"


def test_a_path_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(PskdError, match=r"path: cannot map .* bytes of .*Is a directory"):
        PredictionBank(N, K, path=tmp_path)
    with pytest.raises(PskdError, match=r"path: cannot map .* bytes of .*bank"):  # larger than any disk
        PredictionBank(10**15, K, path=tmp_path / "bank")
    assert not (tmp_path / "bank").exists() or (tmp_path / "bank").stat().st_size == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"form": "sparse"}, "form is 'sparse'; allowed are dense, topk"),
        ({"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ({"num_classes": 0}, "num_classes must be at least 1, got 0"),
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"dtype": torch.int16}, "dtype must be a floating type, got torch.int16"),
        ({"path": "bank", "device": "meta"}, "path: a mapped file lives on the cpu, not on device meta"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PskdError, match=re.escape(message)):
        PredictionBank(**{"num_samples": N, "num_classes": K, **settings})


def test_an_index_out_of_range_is_named_and_writes_nothing() -> None:
    bank = PredictionBank(N, K)
    for index in (torch.tensor([0, N]), torch.tensor([-1, 3])):
        with pytest.raises(PskdError, match=r"index: 1 lie outside 0\.\.19"):
            bank.recall(index)
        with pytest.raises(PskdError, match=r"index: 1 lie outside 0\.\.19"):
            bank.record(index, logits_of(2, K))
    known = bank.recall(torch.arange(N)).known
    assert known is not None
    assert not known.any()


@pytest.mark.parametrize(
    ("index", "shape", "message"),
    [
        (torch.arange(4), (4, K + 1), "logits have 11 classes, but the bank was made for 10"),
        (torch.arange(4.0), (4, K), "index must be integers, got torch.float32"),
        (torch.ones(4, dtype=torch.bool), (4, K), "index must be integers, got torch.bool"),
        (torch.arange(3), (4, K), "index has shape (3,), but the logits want one per label, (4,)"),
        (torch.arange(4), (4, K, 8, 8), "for dense predictions of images use memory=pskd.Snapshot(model)"),
    ],
)
def test_a_key_that_does_not_fit_is_named(index: Tensor, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(PskdError, match=re.escape(message)):
        PredictionBank(N, K).check(index, torch.zeros(shape))


@pytest.mark.parametrize("num_classes", [10, 100, 200, 1000, 1003, 70_001])
@pytest.mark.parametrize("k", [1, 5, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_selection_finds_the_largest(num_classes: int, k: int, dtype: torch.dtype) -> None:
    logits = 4 * logits_of(7, num_classes).to(dtype)
    for values in (logits, torch.log_softmax(logits, 1), torch.softmax(logits, 1)):
        chosen = top_classes(values, k)
        assert torch.equal(chosen.sort(1).values, values.topk(k, 1).indices.sort(1).values)


@pytest.mark.parametrize("form", ["dense", "topk"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_log_probabilities_make_the_rows_of_their_logits(form: str, momentum: float) -> None:
    banks = [PredictionBank(N, K, form=form, k=4, dtype=torch.float64, momentum=momentum) for _ in range(2)]
    index = torch.arange(4)
    for seed in (0, 1):  # the second is averaged with the first
        logits = logits_of(4, K, seed=seed).double()
        banks[0].record(index, logits)
        banks[1].record(index, logits.log_softmax(1), normalised=True)
    rows, same = (bank.recall(index) for bank in banks)
    torch.testing.assert_close(same.values, rows.values, rtol=1e-12, atol=0)
    assert rows.classes is None or torch.equal(same.classes, rows.classes)


def test_the_selection_is_of_different_classes_where_values_are_equal() -> None:
    for values in (torch.zeros(3, 1000), torch.ones(3, 1000)):
        assert all(len(row.unique()) == 32 for row in top_classes(values, 32))


@pytest.mark.parametrize("form", ["dense", "topk"])
def test_a_row_that_is_not_finite_is_not_kept(form: str) -> None:
    bank = PredictionBank(N, K, form=form, k=K - 1)
    good, bad = logits_of(4, K), logits_of(4, K, seed=1)
    bank.record(torch.arange(4), good)
    bad[1, 3], bad[2, 0] = float("nan"), float("inf")
    bad[3, 5] = -float("inf")  # a probability of 0
    bank.record(torch.arange(4), bad)
    values = dense(bank, torch.arange(4))
    expected = torch.stack([bad[0], good[1], good[2], bad[3]]).softmax(1)
    torch.testing.assert_close(values, expected.float(), rtol=2e-3, atol=1e-3)


HOSTS = [(1, 1), (1, 3), (3, 1), (3, 2), (2, 2), (25, 4)]


def filled(hosts: int, form: str = "topk") -> list[PredictionBank]:
    """The banks of all hosts, every row written; N = 20 samples, so that some of 25 hosts have none."""
    banks = [PredictionBank(N, K, form=form, k=3, host=host, hosts=hosts) for host in range(hosts)]
    for host, bank in enumerate(banks):
        own = torch.tensor(range(host, N, hosts), dtype=torch.int64)
        bank.record(own, logits_of(N, K)[own], labels=own % K)
    return banks


@pytest.mark.parametrize("form", ["dense", "topk"])
@pytest.mark.parametrize(("before", "after"), HOSTS)
def test_shards_are_loaded_by_any_number_of_hosts(before: int, after: int, form: str) -> None:
    whole = dense(filled(1, form)[0], torch.arange(N))
    states = [bank.state_dict() for bank in filled(before, form)]
    for host in range(after):
        bank = PredictionBank(N, K, form=form, k=3, host=host, hosts=after)
        for state in states:
            bank.load_state_dict(state)
        own = torch.arange(host, N, after)
        assert torch.equal(dense(bank, own), whole[own])
        assert bank.recall(own, labels=own % K).known is None


def test_a_host_holds_its_own_samples_only() -> None:
    bank = PredictionBank(N, K, host=1, hosts=3)
    assert bank.nbytes == (len(range(1, N, 3)) + 1) * (K * 2 + 2 + 2)
    with pytest.raises(PskdError, match=r"index: 2 belong to another host; here are those with index % 3 == 1"):
        bank.recall(torch.tensor([1, 2, 4, 6]))
    with pytest.raises(PskdError, match=r"index: 1 lie outside 0\.\.19"):
        bank.recall(torch.tensor([1, 22]))
    padding = torch.tensor([True, False])
    bank.record(torch.tensor([4, 0]), logits_of(2, K), take=padding)
    known = bank.recall(torch.tensor([4, 0]), take=padding).known
    assert known is not None
    assert known[0]


@pytest.mark.parametrize("damage", ["rows", "type", "column"])
def test_rows_of_another_shape_are_refused(damage: str) -> None:
    state = filled(1)[0].state_dict()
    rows = dict(state["rows"])
    if damage == "rows":
        rows["values"] = rows["values"][:-1]
    elif damage == "type":
        rows["values"] = rows["values"].int()
    else:
        del rows["classes"]
    with pytest.raises(PskdError, match=r"rows: the stored bank has .* it is damaged"):
        PredictionBank(N, K, form="topk", k=3).load_state_dict({**state, "rows": rows})


def known_of(bank: PredictionBank, index: Tensor, **given: Any) -> list[bool]:
    known = bank.recall(index, **given).known
    return [True] * len(index) if known is None else known.tolist()


@pytest.mark.parametrize("form", ["dense", "topk"])
@pytest.mark.parametrize("max_age", [0, 1, 3, None])
def test_a_row_that_is_too_old_counts_as_missing(form: Any, max_age: int | None) -> None:
    """Sample i was last seen in epoch i, some of them left out on purpose: then they keep the row of epoch 0."""
    bank = PredictionBank(N, K, form, 3, max_age=max_age)
    everyone, labels = torch.arange(8), torch.arange(8) % K
    for epoch in range(8):
        bank.start_epoch(epoch)
        seen = everyone[epoch:]
        take = None if epoch == 0 else seen % 2 == 0
        bank.record(seen, logits_of(8, K, seed=epoch)[seen], labels=labels[seen], take=take)
    bank.start_epoch(8)
    expected = [max_age is None or 8 - last <= max_age for last in range(8)]
    assert known_of(bank, everyone) == known_of(bank, everyone, labels=labels) == expected
    assert known_of(bank, everyone.view(2, 4)) == [expected[:4], expected[4:]]
    assert known_of(bank, torch.tensor([N - 1])) == [False]
    likely = [logits_of(8, K, seed=last if last % 2 == 0 else 0)[last].softmax(0) for last in range(8)]
    if form == "dense":
        torch.testing.assert_close(dense(bank, everyone).double(), torch.stack(likely), atol=1e-3, rtol=2e-3)


def test_without_epochs_all_rows_are_served() -> None:
    bank = PredictionBank(N, K)
    for trial in range(4):
        assert known_of(bank, torch.arange(3)) == [trial > 0] * 3
        bank.record(torch.arange(3), logits_of(3, K))


def test_epochs_beyond_the_column_are_served() -> None:
    bank = PredictionBank(N, K)
    bank.start_epoch(100_000)
    bank.record(torch.arange(3), logits_of(3, K))
    bank.start_epoch(100_001)
    assert known_of(bank, torch.arange(3)) == [True] * 3


def test_rows_of_a_state_without_epochs_are_fresh() -> None:
    bank = PredictionBank(N, K)
    bank.record(torch.arange(3), logits_of(3, K))
    state = bank.state_dict()
    state["rows"] = {name: part for name, part in state["rows"].items() if name != "epochs"}
    for host, hosts in ((0, 1), (0, 2)):
        other = PredictionBank(N, K, host=host, hosts=hosts)
        other.load_state_dict(state)
        other.start_epoch(7)
        assert known_of(other, torch.tensor([0, 2, 4])) == [True, True, False]
        other.record(torch.tensor([0]), logits_of(1, K))
        other.start_epoch(9)
        assert known_of(other, torch.tensor([0, 2, 4])) == [False, True, False]


def test_ages_go_through_a_state() -> None:
    bank = PredictionBank(N, K)
    for epoch in range(3):
        bank.start_epoch(epoch)
        bank.record(torch.arange(epoch, 3), logits_of(3 - epoch, K))
    other = PredictionBank(N, K)
    other.load_state_dict(bank.state_dict())
    other.start_epoch(3)
    assert known_of(other, torch.arange(3)) == [False, False, True]


def test_a_refused_state_changes_nothing() -> None:
    bank = filled(1)[0]
    before = {name: part.clone() for name, part in bank.state_dict()["rows"].items()}
    bank.record(torch.tensor([1]), logits_of(1, K))
    state = bank.state_dict()
    after = {name: part.clone() for name, part in state["rows"].items()}
    fresh = PredictionBank(N, K, form="topk", k=3)
    for wrong in ({**state, "rows": {**before, "labels": before["labels"][1:]}}, {**state, "k": 4}, {"weights": {}}):
        with pytest.raises(PskdError):
            bank.load_state_dict(wrong)
        with pytest.raises(PskdError):
            fresh.load_state_dict(wrong)
    assert all(torch.equal(after[name], part) for name, part in bank.state_dict()["rows"].items())
    assert not fresh._used


def test_a_mapped_bank_is_neither_copied_nor_pickled(tmp_path: Path) -> None:
    bank = PredictionBank(N, K, path=tmp_path / "bank")
    bank.record(torch.arange(3), logits_of(3, K))
    for how in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(PskdError, match="a bank in a mapped file cannot be copied or pickled"):
            how(bank._storage)
    for how in (copy.deepcopy, pickle.dumps):
        with pytest.raises(PskdError, match="a bank in a mapped file cannot be copied or pickled"):
            how(bank)
    assert known_of(bank, torch.arange(4)) == [True, True, True, False]


@pytest.mark.parametrize("how", [copy.deepcopy, lambda bank: pickle.loads(pickle.dumps(bank))])
def test_a_bank_in_ram_is_copied(how: Any) -> None:
    bank = PredictionBank(N, K)
    bank.record(torch.arange(3), logits_of(3, K))
    other = how(bank)
    bank.clear()
    assert known_of(other, torch.arange(4)) == [True, True, True, False]


def test_a_storage_that_was_never_finished_ends_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    Storage.__new__(Storage)
    assert not said


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files the Linux way")
def test_a_storage_closes_its_file_once(tmp_path: Path) -> None:
    """And no other that got the same number since."""
    gc.collect()  # what other tests left behind has files, too
    bank = PredictionBank(N, K, path=tmp_path / "bank")
    before = len(os.listdir("/proc/self/fd"))
    del bank
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before - 1 - 1  # mmap has one of its own


def test_a_link_or_a_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    (tmp_path / "nowhere").symlink_to(tmp_path / "new")
    for name in ("link", "nowhere"):
        with pytest.raises(PskdError, match=rf"path: .*{name} is a symbolic link; name the file itself"):
            PredictionBank(N, K, path=tmp_path / name)
    assert (tmp_path / "precious").read_bytes() == b""
    assert not (tmp_path / "new").exists()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PskdError, match=r"path: .*pipe is no ordinary file"):
        PredictionBank(N, K, path=tmp_path / "pipe")


@pytest.mark.parametrize("convert", [list, np.array, torch.IntTensor])
def test_an_index_may_be_a_list_or_an_array(convert: Any) -> None:
    bank, index = PredictionBank(N, K, dtype=torch.float64), [3, 0, 7]
    bank.record(convert(index), logits_of(3, K))
    assert torch.equal(bank.recall(convert(index)).values, bank.recall(torch.tensor(index)).values)
    bank.check(convert(index), logits_of(3, K))
    torch.testing.assert_close(bank.recall(torch.tensor([7])).values, logits_of(3, K)[2:].softmax(1))


@pytest.mark.parametrize("index", [[0.5, 1.0], np.array([True, False]), ["a", "b"], [[1], [2, 3]], object()])
def test_an_index_of_anything_else_is_refused(index: Any) -> None:
    bank = PredictionBank(N, K)
    for use in (lambda: bank.recall(index), lambda: bank.record(index, logits_of(2, K))):
        with pytest.raises(PskdError, match="index must be"):
            use()


def averaged(rows: dict[int, Tensor], index: Tensor, logits: Tensor, momentum: float, k: int) -> None:
    """A record, sample by sample: of the row and the new prediction the mean; its top k stay, the rest is spread."""
    before = dict(rows)
    for sample, own in zip(index.tolist(), logits.softmax(1), strict=True):
        mean = momentum * before[sample] + (1 - momentum) * own if sample in before else own
        values, classes = mean.topk(k)
        rest = (1 - values.sum()) / max(1, len(mean) - k)
        rows[sample] = torch.full_like(mean, float(rest)).scatter(0, classes, values)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("recalls", [False, True])
@pytest.mark.parametrize("k", [3, K])
def test_a_row_is_an_exponential_mean(k: int, recalls: bool, momentum: float, place: dict[str, Any]) -> None:
    """The first record sets a row; of an index that stands twice, the last one joins the row that was there."""
    bank = PredictionBank(N, K, form="topk", k=k, dtype=torch.float64, momentum=momentum, **place)
    rows: dict[int, Tensor] = {}
    for step, samples in enumerate([[1, 2, 5], [2, 7, 2], [5, 1, 2], [2, 1, 7]]):
        index, logits = torch.tensor(samples), logits_of(3, K, seed=step)
        if recalls:
            bank.recall(index)
        bank.record(index, logits)
        averaged(rows, index, logits, momentum, k)
    torch.testing.assert_close(dense(bank, torch.tensor(list(rows))), torch.stack(list(rows.values())))


def test_the_mean_of_tokens_left_out_missing_and_bad_rows() -> None:
    bank = PredictionBank(N, K, dtype=torch.float64, momentum=0.5)
    index = torch.tensor([[0, 1], [2, 3]])
    first, second = logits_of(2, K, 2, seed=1), logits_of(2, K, 2, seed=2)
    bank.start_epoch(0)
    bank.record(index, first)
    bank.start_epoch(1)
    second[1, 0, 1] = float("nan")
    bank.record(index, second, take=torch.tensor([[True, False], [True, True]]))
    mean = (first.softmax(1) + second.softmax(1)) / 2
    expected = torch.stack([mean[0, :, 0], first[0, :, 1].softmax(0), mean[1, :, 0], first[1, :, 1].softmax(0)])
    torch.testing.assert_close(dense(bank, torch.arange(4)), expected)
    bank.start_epoch(3)  # two epochs later every row counts as missing, so a new one begins
    bank.record(torch.tensor([0]), first[:1, :, 1])
    torch.testing.assert_close(dense(bank, torch.tensor([0])), first[:1, :, 1].softmax(1))


@pytest.mark.parametrize("form", ["dense", "topk"])
def test_the_mean_goes_on_from_its_state_to_the_bit(form: str) -> None:
    banks = [PredictionBank(N, K, form=form, k=4, momentum=0.9) for _ in range(2)]
    index = torch.arange(6)
    for step in range(4):
        banks[0].record(index, logits_of(6, K, seed=step))
        if step == 1:
            banks[1].load_state_dict(copy.deepcopy(banks[0].state_dict()))
        if step > 1:
            banks[1].record(index, logits_of(6, K, seed=step))
    first, second = (bank.state_dict()["rows"] for bank in banks)
    assert all(torch.equal(first[name], second[name]) for name in first)
