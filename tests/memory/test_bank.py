"""The bank: what is read is what was written, in every form, type and place."""

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
from banks import batch_of, dense, known, recall, record
from torch import Tensor

from pskd import PredictionBank
from pskd.errors import PskdError
from pskd.memory.likeliest import top_classes
from pskd.memory.records import Records

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


def by_class(values: Tensor, classes: Tensor | None) -> tuple[Tensor, Tensor]:
    """The k pairs of each record in the order of their classes: a bank keeps them in none."""
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
def test_reads_the_softmax_in_every_type(form: str, dtype: torch.dtype, place: dict[str, Any]) -> None:
    bank = PredictionBank(N, K, form=form, k=3, dtype=dtype, **place)
    logits, index = logits_of(6, K), torch.tensor([3, 0, 19, 7, 8, 9])
    record(bank, index, logits)
    assert known(bank, index) == [True] * 6
    assert bank.probabilities(index).dtype == (torch.float64 if dtype == torch.float64 else torch.float32)

    past, likely = recall(bank, index), torch.softmax(logits, 1)
    # The same rounding, done by hand: of the probabilities, or in a dense record of their ratio to the largest.
    if form == "topk":
        likely, classes = by_class(*likely.topk(3, 1))
        values, found = by_class(past.values, past.classes)
        assert torch.equal(found, classes)
        expected = likely.to(dtype).double()
    else:
        values, expected = dense(bank, index), (likely / likely.amax(1, keepdim=True)).to(dtype).double()
        expected = expected / expected.sum(1, keepdim=True)
        torch.testing.assert_close(past.normalised().values, values)
    torch.testing.assert_close(values, expected)
    assert bank.probabilities(index).sum(1).tolist() == pytest.approx([1] * 6)
    coarse = {"torch.float8_e5m2": 0.125, "torch.float8_e5m2fnuz": 0.125, "torch.float8_e8m0fnu": 0.5}
    relative = coarse.get(str(dtype), 0.0625)
    torch.testing.assert_close(values, likely, rtol=2 * relative, atol=0.002)


@pytest.mark.parametrize("form", ["dense", "topk"])
def test_unknown_records_are_told(form: str, place: dict[str, Any]) -> None:
    bank = PredictionBank(N, K, form=form, k=3, **place)
    record(bank, torch.tensor([1, 2]), logits_of(2, K))
    assert known(bank, torch.arange(4)) == [False, True, True, False]
    assert (bank.probabilities(torch.arange(4)).sum(1) > 0).tolist() == [False, True, True, False]
    bank.clear()
    assert known(bank, torch.arange(4)) == [False] * 4


@pytest.mark.parametrize("num_classes", [256, 257, 32767, 32768, 32769, 65536, 65537])
def test_the_smallest_type_that_holds_a_class(num_classes: int) -> None:
    """Classes on both sides of each type's sign and end come back as they were, as do labels."""
    bank = PredictionBank(4, num_classes, form="topk", k=2)
    last = num_classes - 1
    logits = torch.zeros(4, num_classes)
    tops = torch.tensor([[last, 0], [num_classes // 2, 127], [128, last], [last - 1, num_classes // 2 - 1]])
    logits.scatter_(1, tops, torch.tensor([[9.0, 8.0]]).expand(4, 2))
    labels = torch.tensor([last, 0, num_classes // 2, 127])
    record(bank, torch.arange(4), logits, labels)
    past = recall(bank, torch.arange(4), labels)
    assert past.classes is not None
    assert torch.equal(past.classes.sort(1).values, tops.sort(1).values)
    with pytest.raises(PskdError, match="index: 4 samples had another label"):
        recall(bank, torch.arange(4), (labels + 1) % num_classes)
    class_bytes = 1 if num_classes <= 256 else 2 if num_classes <= 65536 else 4
    label_bytes = 2 if num_classes <= 32768 else 4
    largest = max(2, class_bytes, label_bytes)  # what a record is rounded up to
    assert bank.nbytes == (4 + 1) * -(-(2 * (2 + class_bytes) + label_bytes + 2) // largest) * largest


def test_bytes_of_a_dense_bank() -> None:
    assert PredictionBank(50_000, 100).nbytes == 50_001 * (100 * 2 + 2 + 2)
    assert PredictionBank(N, K, dtype=torch.float64).nbytes == (N + 1) * (K * 8 + 2 + 2 + 4)  # up to a whole float64
    assert PredictionBank(N, K, dtype=torch.float8_e4m3fn).nbytes == (N + 1) * (K * 1 + 2 + 2)


def test_k_of_all_classes_is_stored_as_dense() -> None:
    topk, plain = PredictionBank(N, K, form="topk", k=K), PredictionBank(N, K)
    assert topk.form == "dense"
    assert topk.nbytes == plain.nbytes


def test_top_k_never_loses_the_rest_of_the_mass() -> None:
    bank = PredictionBank(N, K, form="topk", k=2, dtype=torch.float64)
    logits = logits_of(5, K)
    record(bank, torch.arange(5), logits)
    probabilities = torch.softmax(logits, 1)
    recalled = dense(bank, torch.arange(5))
    top = probabilities.topk(2, 1).indices
    torch.testing.assert_close(recalled.sum(1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(recalled.gather(1, top), probabilities.gather(1, top))


def test_a_record_never_rounds_to_nothing() -> None:
    """1000 classes of 0.001 each: about half of the smallest float8 above 0."""
    bank = PredictionBank(1, 1000, dtype=torch.float8_e4m3fn)
    record(bank, torch.tensor([0]), torch.zeros(1, 1000))
    torch.testing.assert_close(bank.probabilities(torch.tensor([0])), torch.full((1, 1000), 1e-3))


def test_padding_is_no_repetition_and_hides_none() -> None:
    """Padding has the index of its sentence's first token, and is not distilled."""
    bank = PredictionBank(4, K, dtype=torch.float64)
    logits = logits_of(6, K)
    for index, distilled, positions in (
        ([0, 1, 2, 3, 0, 0], [1, 1, 1, 1, 0, 0], [0, 1, 2, 3]),  # two of padding
        ([0, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0], [0, 2]),  # and a record that is written twice
        ([0, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 1]),
    ):
        bank.clear()
        record(bank, torch.tensor(index), logits, torch.zeros(6, dtype=torch.long), torch.tensor(distilled))
        there = len(positions)
        torch.testing.assert_close(dense(bank, torch.arange(there)), torch.softmax(logits[positions], 1))
        assert known(bank, torch.arange(4)) == [True] * there + [False] * (4 - there)


@pytest.mark.parametrize("place", ["host", "accelerator"])
@pytest.mark.parametrize("form", ["dense", "topk"])
def test_of_an_index_that_stands_twice_the_last_is_kept(form: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if place == "accelerator":  # whose writes come in no order; so also while compiling
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    generator = torch.Generator().manual_seed(0)
    bank = PredictionBank(50, K, form=form, k=3, dtype=torch.float64)
    for trial in range(100):
        size = int(torch.randint(1, 300, (), generator=generator))
        index = torch.randint(50, (size,), generator=generator)
        logits, labels = logits_of(size, K, seed=trial), torch.randint(K, (size,), generator=generator)
        before = recall(bank, index).values
        record(bank, index, logits, labels)
        last = {int(row): position for position, row in enumerate(index)}
        rows, positions = torch.tensor(list(last)), list(last.values())
        past = recall(bank, rows, labels[positions])
        expected = torch.softmax(logits[positions], 1)
        values = past.normalised().values
        if form == "topk":
            expected, classes = by_class(*expected.topk(3, 1))
            values, found = by_class(past.values, past.classes)
            assert torch.equal(found, classes)
        torch.testing.assert_close(values, expected)
        # Before that, all of its places read the one old record.
        for row in index.unique():
            same = before[index == row]
            assert torch.equal(same, same[:1].expand_as(same))


def test_the_last_is_kept_however_many_threads_write(two_threads: None) -> None:
    """Records so wide that several threads could share the writing, which then comes in no order."""
    bank = PredictionBank(50, 1000, dtype=torch.float64)
    for trial in range(5):
        index = torch.randint(50, (300,), generator=torch.Generator().manual_seed(trial))
        logits = logits_of(300, 1000, seed=trial)
        record(bank, index, logits)
        last = {int(row): position for position, row in enumerate(index)}
        expected = torch.softmax(logits[list(last.values())], 1)
        torch.testing.assert_close(dense(bank, torch.tensor(list(last))), expected)


def test_only_what_is_distilled_is_written() -> None:
    bank = PredictionBank(N, K)
    index = torch.arange(4)
    record(bank, index, logits_of(4, K))
    old = recall(bank, index).values
    record(bank, index, logits_of(4, K, seed=1), distilled=torch.tensor([True, False, False, True]))
    changed = (recall(bank, index).values != old).any(1)
    assert changed.tolist() == [True, False, False, True]
    # One index, distilled and not: only the first was there to be kept.
    record(bank, torch.tensor([5, 5]), logits_of(2, K, seed=2), distilled=torch.tensor([True, False]))
    expected = torch.softmax(logits_of(2, K, seed=2), 1)[:1]
    torch.testing.assert_close(dense(bank, torch.tensor([5])), expected, atol=1e-3, rtol=0)


def test_tokens_have_an_index_each() -> None:
    """(sentences, classes, tokens), as F.cross_entropy takes them; the padding's index is out of range on purpose."""
    bank = PredictionBank(N, K, dtype=torch.float64)
    index = torch.tensor([[0, 1, 2], [3, 4, -1]])
    labels = torch.tensor([[5, 6, 7], [8, 9, -100]])
    logits = logits_of(2, K, 3)
    record(bank, index, logits, labels)
    past = recall(bank, index, labels)
    assert past.known is not None
    assert past.known.tolist() == [True] * 5 + [False]
    assert known(bank, index[0]) == [True] * 3
    expected = torch.softmax(logits, 1).movedim(1, -1).reshape(6, K)
    torch.testing.assert_close(past.normalised().values[:5], expected[:5])
    assert int(bank.known(torch.arange(N)).sum()) == 5


def test_labels_that_changed_are_reported() -> None:
    bank = PredictionBank(N, K)
    index, labels, swapped = torch.arange(4), torch.tensor([1, 2, 3, 4]), torch.tensor([1, 3, 2, 4])
    record(bank, index, logits_of(4, K), labels)
    recall(bank, index, labels)
    with pytest.raises(PskdError, match=r"index: 2 samples had another label when the bank was filled; the data set"):
        recall(bank, index, swapped)
    recall(bank, index, swapped, torch.tensor([True, False, False, True]))
    # Records of class probabilities or of a mixed pair, which are no class, match any.
    for no_class in (None, (labels, labels, 0.5)):
        record(bank, index, logits_of(4, K), labels)
        record(bank, index, logits_of(4, K), no_class)
        recall(bank, index, labels.flip(0))


@pytest.mark.parametrize("form", ["dense", "topk"])
def test_state_goes_through_a_file(form: str, place: dict[str, Any], tmp_path: Path) -> None:
    settings = {"num_samples": N, "num_classes": K, "form": form, "k": 3}
    bank = PredictionBank(**settings, **place, fingerprint="abc")
    index, labels = torch.arange(0, N, 2), torch.arange(0, N, 2) % K
    record(bank, index, logits_of(N // 2, K), labels)
    buffer = io.BytesIO()
    torch.save(bank.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    assert (state["format"], len(state["records"])) == (2, N)

    for other_place in ({}, {"path": tmp_path / "other"}):
        other = PredictionBank(**settings, **other_place, fingerprint="abc")
        record(other, torch.tensor([1]), logits_of(1, K))  # what it held before is gone
        other.load_state_dict(state)
        assert torch.equal(other.state_dict()["records"], bank.state_dict()["records"])
        assert known(other, torch.arange(N)) == known(bank, torch.arange(N)) == [True, False] * (N // 2)
        assert torch.equal(dense(other, index), dense(bank, index))
        with pytest.raises(PskdError, match="another label"):
            recall(other, index, labels.flip(0))


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
    record(filled, torch.arange(3), logits_of(3, K))
    bank = PredictionBank(N, K)
    bank.load_state_dict(filled.state_dict())
    assert torch.equal(dense(bank, torch.arange(3)), dense(filled, torch.arange(3)))


def test_a_mapped_file_is_fresh_when_opened_again(tmp_path: Path) -> None:
    bank = PredictionBank(N, K, path=tmp_path / "bank")
    record(bank, torch.arange(3), logits_of(3, K))
    del bank
    assert known(PredictionBank(N, K, path=tmp_path / "bank"), torch.arange(3)) == [False] * 3


OTHER_PROCESS = """
import sys, torch, pskd
bank = pskd.PredictionBank({n}, {k}, path=sys.argv[1])
print(bank.known(torch.arange(3)).tolist())
method = pskd.PSKD(steps=3, memory=bank)
method.load_state_dict({{**method.state_dict(), "epoch": 0}})
method((torch.eye({k})[:1] * 5).requires_grad_(), torch.tensor([0]), index=torch.tensor([2]))
"""


def test_living_processes_share_a_mapped_file(tmp_path: Path) -> None:
    bank = PredictionBank(N, K, path=tmp_path / "bank")
    record(bank, torch.tensor([0]), logits_of(1, K))
    code = OTHER_PROCESS.format(n=N, k=K)
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "bank"], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stdout.strip() == "[True, False, False]"
    assert known(bank, torch.arange(3)) == [True, False, True]
    seen, expected = dense(bank, torch.tensor([2]))[0], torch.softmax(torch.eye(K)[0] * 5, 0).double()
    torch.testing.assert_close(seen, expected, atol=1e-3, rtol=0)


def test_a_file_in_use_by_another_bank_is_refused(tmp_path: Path) -> None:
    bank = PredictionBank(N, K, path=tmp_path / "bank")
    record(bank, torch.tensor([0]), logits_of(1, K))
    for other in ({"num_samples": N + 1}, {"num_classes": K + 1}, {"dtype": torch.float8_e5m2}):
        with pytest.raises(PskdError, match=r"path: .*bank is in use for .*; name another file"):
            PredictionBank(**{"num_samples": N, "num_classes": K, "path": tmp_path / "bank", **other})
    assert known(bank, torch.tensor([0])) == [True]


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
        for use in (lambda: recall(bank, index), lambda: record(bank, index, logits_of(2, K))):  # noqa: B023
            with pytest.raises(PskdError, match=r"index: 1 lie outside 0\.\.19"):
                use()
    assert known(bank, torch.arange(N)) == [False] * N


@pytest.mark.parametrize(
    ("index", "shape", "message"),
    [
        (torch.arange(4), (4, K + 1), "logits have 11 classes, but the bank was made for 10"),
        (torch.arange(4.0), (4, K), "index must be integers, got torch.float32"),
        (torch.ones(4, dtype=torch.bool), (4, K), "index must be integers, got torch.bool"),
        (torch.arange(3), (4, K), "index has shape (3,), but the logits want one per label, (4,)"),
        (torch.arange(4), (4, K, 8, 8), "for dense predictions use memory=pskd.Snapshot(model)"),
        (None, (4, K), "index is missing: with a PredictionBank, call with index=..."),
    ],
)
def test_an_index_that_does_not_fit_is_named(index: Tensor, shape: tuple[int, ...], message: str) -> None:
    bank, batch = PredictionBank(N, K), batch_of(torch.zeros(shape))
    for use in (bank.read, bank.write):
        with pytest.raises(PskdError, match=re.escape(message)):
            use(bank.key(index=index), batch)


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
def test_predictions_may_be_given_instead_of_the_batch_s(form: str, momentum: float) -> None:
    banks = [PredictionBank(N, K, form=form, k=4, dtype=torch.float64, momentum=momentum) for _ in range(2)]
    index = torch.arange(4)
    for seed in (0, 1):  # the second is averaged with the first
        logits = logits_of(4, K, seed=seed)
        record(banks[0], index, logits)
        banks[1].write(index, batch_of(logits_of(4, K, seed=7)), logits.log_softmax(1))
    first, second = (dense(bank, index) for bank in banks)
    torch.testing.assert_close(second, first, rtol=1e-12, atol=0)


def test_the_selection_is_of_different_classes_where_values_are_equal() -> None:
    for values in (torch.zeros(3, 1000), torch.ones(3, 1000)):
        assert all(len(row.unique()) == 32 for row in top_classes(values, 32))


@pytest.mark.parametrize("form", ["dense", "topk"])
def test_a_prediction_that_is_not_finite_is_not_kept(form: str) -> None:
    bank = PredictionBank(N, K, form=form, k=K - 1)
    good, bad = logits_of(4, K), logits_of(4, K, seed=1)
    record(bank, torch.arange(4), good)
    bad[1, 3], bad[2, 0] = float("nan"), float("inf")
    bad[3, 5] = -float("inf")  # a probability of 0
    record(bank, torch.arange(4), bad)
    values = dense(bank, torch.arange(4))
    expected = torch.stack([bad[0], good[1], good[2], bad[3]]).softmax(1)
    torch.testing.assert_close(values, expected, rtol=2e-3, atol=1e-3)


HOSTS = [(1, 1), (1, 3), (3, 1), (3, 2), (2, 2), (25, 4)]


def filled(hosts: int, form: str = "topk") -> list[PredictionBank]:
    """The banks of all hosts, every record written; N = 20 samples, so that some of 25 hosts have none."""
    banks = [PredictionBank(N, K, form=form, k=3, host=host, hosts=hosts) for host in range(hosts)]
    for host, bank in enumerate(banks):
        own = torch.tensor(range(host, N, hosts), dtype=torch.int64)
        record(bank, own, logits_of(N, K)[own], own % K)
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
        assert known(bank, own, own % K) == [True] * len(own)


def test_a_host_holds_its_own_samples_only() -> None:
    bank = PredictionBank(N, K, host=1, hosts=3)
    assert bank.nbytes == (len(range(1, N, 3)) + 1) * (K * 2 + 2 + 2)
    with pytest.raises(PskdError, match=r"index: 2 belong to another host; here are those with index % 3 == 1"):
        recall(bank, torch.tensor([1, 2, 4, 6]))
    with pytest.raises(PskdError, match=r"index: 1 lie outside 0\.\.19"):
        recall(bank, torch.tensor([1, 22]))
    distilled = torch.tensor([True, False])  # the second is padding
    record(bank, torch.tensor([4, 0]), logits_of(2, K), distilled=distilled)
    assert torch.equal(recall(bank, torch.tensor([4, 0]), distilled=distilled).known, distilled)  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["rows", "width", "type"])
def test_records_of_another_shape_are_refused(damage: str) -> None:
    state = filled(1)[0].state_dict()
    records = state["records"]
    damaged = {"rows": records[:-1], "width": records[:, 1:], "type": records.int()}[damage]
    with pytest.raises(PskdError, match=r"records: the stored bank has .* it is damaged"):
        PredictionBank(N, K, form="topk", k=3).load_state_dict({**state, "records": damaged})


@pytest.mark.parametrize("form", ["dense", "topk"])
@pytest.mark.parametrize("max_age", [0, 1, 3, None])
def test_a_record_that_is_too_old_counts_as_missing(form: Any, max_age: int | None) -> None:
    """Sample i was last seen in epoch i, some of them left out on purpose: then they keep the record of epoch 0."""
    bank = PredictionBank(N, K, form, 3, max_age=max_age)
    everyone, labels = torch.arange(8), torch.arange(8) % K
    for epoch in range(8):
        bank.start_epoch(epoch)
        seen = everyone[epoch:]
        distilled = None if epoch == 0 else seen % 2 == 0
        record(bank, seen, logits_of(8, K, seed=epoch)[seen], labels[seen], distilled)
    bank.start_epoch(8)
    expected = [max_age is None or 8 - last <= max_age for last in range(8)]
    assert known(bank, everyone) == known(bank, everyone, labels) == known(bank, everyone.view(2, 4)) == expected
    assert known(bank, torch.tensor([N - 1])) == [False]
    likely = [logits_of(8, K, seed=last if last % 2 == 0 else 0)[last].softmax(0) for last in range(8)]
    if form == "dense":
        torch.testing.assert_close(dense(bank, everyone), torch.stack(likely), atol=1e-3, rtol=2e-3)


def test_without_epochs_all_records_are_served() -> None:
    bank = PredictionBank(N, K)
    for trial in range(4):
        assert known(bank, torch.arange(3)) == [trial > 0] * 3
        record(bank, torch.arange(3), logits_of(3, K))


@pytest.mark.parametrize("epoch", [2**15 - 4, 2**15 - 3, 2**15 - 1, 100_000])
def test_epochs_beyond_the_field_are_served(epoch: int) -> None:
    bank = PredictionBank(N, K)
    bank.start_epoch(epoch)
    record(bank, torch.arange(3), logits_of(3, K))
    bank.start_epoch(epoch + 1)
    assert known(bank, torch.arange(4)) == [True, True, True, False]


def test_ages_go_through_a_state() -> None:
    bank = PredictionBank(N, K)
    for epoch in range(3):
        bank.start_epoch(epoch)
        record(bank, torch.arange(epoch, 3), logits_of(3 - epoch, K))
    other = PredictionBank(N, K)
    other.load_state_dict(bank.state_dict())
    other.start_epoch(3)
    assert known(other, torch.arange(3)) == [False, False, True]


def test_a_refused_state_changes_nothing() -> None:
    bank = filled(1)[0]
    state = bank.state_dict()
    before = state["records"].clone()
    fresh = PredictionBank(N, K, form="topk", k=3)
    for wrong in ({**state, "records": 0 * before[1:]}, {**state, "k": 4}, {"weights": {}}):
        for each in (bank, fresh):
            with pytest.raises(PskdError):
                each.load_state_dict(wrong)
    assert torch.equal(bank.state_dict()["records"], before)
    assert not fresh._used


def test_a_mapped_bank_is_neither_copied_nor_pickled(tmp_path: Path) -> None:
    bank = PredictionBank(N, K, path=tmp_path / "bank")
    record(bank, torch.arange(3), logits_of(3, K))
    for how in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(PskdError, match="a bank in a mapped file cannot be copied or pickled"):
            how(bank._records)
    for how in (copy.deepcopy, pickle.dumps):
        with pytest.raises(PskdError, match="a bank in a mapped file cannot be copied or pickled"):
            how(bank)
    assert known(bank, torch.arange(4)) == [True, True, True, False]


@pytest.mark.parametrize("how", [copy.deepcopy, lambda bank: pickle.loads(pickle.dumps(bank))])
def test_a_bank_in_ram_is_copied(how: Any) -> None:
    bank = PredictionBank(N, K)
    record(bank, torch.arange(3), logits_of(3, K))
    other = how(bank)
    bank.clear()
    assert known(bank, torch.arange(4)) == [False] * 4
    assert known(other, torch.arange(4)) == [True, True, True, False]


def test_records_that_were_never_finished_end_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    Records.__new__(Records)
    assert not said


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files the Linux way")
def test_a_bank_closes_its_file_once(tmp_path: Path) -> None:
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
    record(bank, convert(index), logits_of(3, K))
    assert torch.equal(recall(bank, convert(index)).values, recall(bank, torch.tensor(index)).values)
    assert torch.equal(bank.probabilities(convert(index)), bank.probabilities(torch.tensor(index)))
    torch.testing.assert_close(dense(bank, torch.tensor([7])), logits_of(3, K)[2:].softmax(1))


@pytest.mark.parametrize("index", [[0.5, 1.0], np.array([True, False]), ["a", "b"], [[1], [2, 3]], object()])
def test_an_index_of_anything_else_is_refused(index: Any) -> None:
    bank = PredictionBank(N, K)
    for use in (lambda: bank.key(index=index), lambda: bank.known(index)):
        with pytest.raises(PskdError, match="index must be"):
            use()


def averaged(rows: dict[int, Tensor], index: Tensor, logits: Tensor, momentum: float, k: int) -> None:
    """Written sample by sample: the mean of the record and the new prediction; its top k stay, the rest is spread."""
    before = dict(rows)
    for sample, own in zip(index.tolist(), logits.softmax(1), strict=True):
        mean = momentum * before[sample] + (1 - momentum) * own if sample in before else own
        values, classes = mean.topk(k)
        rest = (1 - values.sum()) / max(1, len(mean) - k)
        rows[sample] = torch.full_like(mean, float(rest)).scatter(0, classes, values)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("k", [3, K])
def test_a_record_is_an_exponential_mean(k: int, reads: bool, momentum: float, place: dict[str, Any]) -> None:
    """The first one of a sample is its prediction; of an index that stands twice, the last one joins what was there."""
    bank = PredictionBank(N, K, form="topk", k=k, dtype=torch.float64, momentum=momentum, **place)
    rows: dict[int, Tensor] = {}
    for step, samples in enumerate([[1, 2, 5], [2, 7, 2], [5, 1, 2], [2, 1, 7]]):
        index, logits = torch.tensor(samples), logits_of(3, K, seed=step)
        batch = batch_of(logits)
        bank.write(index, batch, past=bank.read(index, batch) if reads else None)
        averaged(rows, index, logits, momentum, k)
    torch.testing.assert_close(dense(bank, torch.tensor(list(rows))), torch.stack(list(rows.values())))


def test_the_mean_of_tokens_left_out_missing_and_bad_ones() -> None:
    bank = PredictionBank(N, K, dtype=torch.float64, momentum=0.5)
    index = torch.tensor([[0, 1], [2, 3]])
    first, second = logits_of(2, K, 2, seed=1), logits_of(2, K, 2, seed=2)
    bank.start_epoch(0)
    record(bank, index, first)
    bank.start_epoch(1)
    second[1, 0, 1] = float("nan")
    record(bank, index, second, distilled=torch.tensor([[True, False], [True, True]]))
    mean = (first.softmax(1) + second.softmax(1)) / 2
    expected = torch.stack([mean[0, :, 0], first[0, :, 1].softmax(0), mean[1, :, 0], first[1, :, 1].softmax(0)])
    torch.testing.assert_close(dense(bank, torch.arange(4)), expected)
    bank.start_epoch(3)  # two epochs later every record counts as missing, so a new one begins
    record(bank, torch.tensor([0]), first[:1, :, 1])
    torch.testing.assert_close(dense(bank, torch.tensor([0])), first[:1, :, 1].softmax(1))


@pytest.mark.parametrize("form", ["dense", "topk"])
def test_the_mean_goes_on_from_its_state_to_the_bit(form: str) -> None:
    banks = [PredictionBank(N, K, form=form, k=4, momentum=0.9) for _ in range(2)]
    index = torch.arange(6)
    for step in range(4):
        record(banks[0], index, logits_of(6, K, seed=step))
        if step == 1:
            banks[1].load_state_dict(copy.deepcopy(banks[0].state_dict()))
        if step > 1:
            record(banks[1], index, logits_of(6, K, seed=step))
    assert torch.equal(*(bank.state_dict()["records"] for bank in banks))


def saved_by(version: str, form: str, dtype: torch.dtype, hosts: int) -> list[dict[str, Any]]:
    """What each host saved in a version that kept a column for each field, as the bytes of its type.

    Of the labels, 0 is no record, -1 one without a label, c + 1 one of class c; of the epochs, -1 is an unknown one.
    Version 0.1 kept no epochs.
    """
    likely, sample = logits_of(N, K).softmax(1), torch.arange(N)
    columns = {"values": likely / likely.amax(1, keepdim=True)}
    if form == "topk":
        columns["values"], classes = likely.topk(3, 1)
        columns["classes"] = classes.to(torch.uint8)
    columns["values"] = columns["values"].to(dtype).view({2: torch.int16, 8: torch.int64}[dtype.itemsize])
    labels = torch.where(sample % 5 == 4, -1, sample % K + 1)
    columns["labels"] = torch.where(sample < 3, 0, labels)[:, None].short()
    if version == "0.2":
        columns["epochs"] = (sample % 4 - 1)[:, None].short()
    about = {"num_samples": N, "num_classes": K, "form": form, "k": 3 if form == "topk" else K, "fingerprint": None}
    about |= {"dtype": str(dtype).removeprefix("torch."), "hosts": hosts}
    return [
        {**about, "host": host, "rows": {name: column[host::hosts] for name, column in columns.items()}}
        for host in range(hosts)
    ]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (2, 1), (3, 2)])
@pytest.mark.parametrize("version", ["0.1", "0.2"])
@pytest.mark.parametrize(
    ("form", "dtype"), [("dense", torch.float16), ("dense", torch.float64), ("topk", torch.float16)]
)
def test_columns_of_earlier_versions_are_loaded(
    form: Any, dtype: torch.dtype, version: str, before: int, after: int
) -> None:
    likely, sample = logits_of(N, K).softmax(1), torch.arange(N)
    if form == "topk":
        values, classes = likely.topk(3, 1)
        likely = ((1 - values.sum(1, keepdim=True)) / (K - 3)).repeat(1, K).scatter(1, classes, values)
    recent = (sample >= 3) & ((sample % 4 == 3) | (sample % 4 == 0) | (version == "0.1"))  # of epoch 2, or unknown
    for host in range(after):
        bank = PredictionBank(N, K, form, 3, dtype, host=host, hosts=after)
        for state in saved_by(version, form, dtype, before):
            bank.load_state_dict(state)
        own = sample[host::after]
        assert bool((bank.probabilities(own[own < 3]) == 0).all())
        bank.start_epoch(3)
        assert known(bank, own) == known(bank, own, own % K) == recent[own].tolist()
        there = own[recent[own]]
        torch.testing.assert_close(dense(bank, there), likely[there], rtol=2e-3, atol=1e-4)
        labelled = int((there % 5 != 4).sum())
        with pytest.raises(PskdError, match=f"index: {labelled} samples had another label"):
            recall(bank, own, (own + 1) % K)
        # Records of an unknown epoch are never too old, until they are written again.
        bank.start_epoch(300)
        unknown = recent & ((sample % 4 == 0) | (version == "0.1"))
        assert known(bank, own) == unknown[own].tolist()
        record(bank, own[-1:], logits_of(1, K))
        bank.start_epoch(302)
        unknown[own[-1]] = False
        assert known(bank, own) == unknown[own].tolist()


@pytest.mark.parametrize("damage", ["rows", "type", "width", "column", "epochs"])
def test_damaged_columns_of_earlier_versions_are_refused(damage: str) -> None:
    (state,) = saved_by("0.2", "topk", torch.float16, 1)
    columns = state["rows"]
    if damage in ("rows", "epochs"):
        name = "values" if damage == "rows" else "epochs"
        columns[name] = columns[name][:-1]
    elif damage == "column":
        del columns["classes"]
    else:
        columns["values"] = columns["values"].int() if damage == "type" else columns["values"][:, 1:]
    bank = PredictionBank(N, K, form="topk", k=3)
    with pytest.raises(PskdError, match=r"rows: the stored bank has .* it is damaged"):
        bank.load_state_dict(state)
    assert known(bank, torch.arange(N)) == [False] * N


def test_a_bank_moves_to_a_device_unless_it_is_a_file(tmp_path: Path) -> None:
    bank = PredictionBank(N, K)
    record(bank, torch.arange(3), logits_of(3, K))
    assert bank.to("cpu") is bank
    assert known(bank, torch.arange(4)) == [True, True, True, False]
    assert PredictionBank(N, K).to("meta").device == torch.device("meta")
    mapped = PredictionBank(N, K, path=tmp_path / "bank")
    assert mapped.to("cpu").device == torch.device("cpu")
    with pytest.raises(PskdError, match="path: a mapped file lives on the cpu, not on device meta; give one of the"):
        mapped.to("meta")
