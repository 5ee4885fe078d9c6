"""The samples of a split as batches, in memory and on disk, and the workers that stay from epoch to epoch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pskd.errors import PskdError
from pskd.workbench.augment import Augment
from pskd.workbench.data import ImageBatch, InMemory, OnDisk, View
from pskd.workbench.data.items import Items

VIEW = View(3, (16, 16), None, (0.5, 0.4, 0.3), (0.2, 0.2, 0.3))
CIFAR = Augment(VIEW, pad=2)
IMAGENET = Augment(VIEW, crop="resized", jitter=0.4, lighting=0.1)


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> OnDisk:
    """20 files of different sizes."""
    root = tmp_path_factory.mktemp("files")
    random = np.random.default_rng(0)
    paths = tuple(f"{number}.png" for number in range(20))
    for number, path in enumerate(paths):
        Image.fromarray(random.integers(0, 256, (16 + number, 30, 3), dtype=np.uint8)).save(root / path)
    return OnDisk(paths, torch.arange(20) % 3, root, VIEW)


@pytest.fixture(scope="module")
def in_memory(on_disk: OnDisk) -> InMemory:
    return InMemory(torch.stack([VIEW.open(on_disk.root / path) for path in on_disk.paths]), on_disk.labels, VIEW)


def plan(*sizes: int, seed: int = 0) -> list[torch.Tensor]:
    order = torch.randperm(20, generator=torch.Generator().manual_seed(seed))
    return list(order[: sum(sizes)].split(sizes))


def by_sample(batches: list[ImageBatch]) -> torch.Tensor:
    """All inputs in the order of the samples' numbers."""
    return torch.cat([batch.inputs for batch in batches])[torch.cat([batch.index for batch in batches]).argsort()]


@pytest.mark.parametrize("kind", ["in_memory", "on_disk"])
@pytest.mark.parametrize("augment", [None, CIFAR, IMAGENET], ids=["evaluation", "cifar", "imagenet"])
class TestBothKinds:
    @pytest.fixture
    def split(self, kind: str, request: pytest.FixtureRequest) -> InMemory | OnDisk:
        return request.getfixturevalue(kind)

    def test_batches_follow_the_plan(self, split: InMemory | OnDisk, augment: Augment | None):
        steps = plan(7, 7, 3)
        batches = list(split.batches(steps, augment=augment))
        for batch, index in zip(batches, steps, strict=True):
            assert torch.equal(batch.index, index)
            assert torch.equal(batch.labels, split.labels[index])
            assert batch.inputs.shape == (len(index), 3, 16, 16)
            assert batch.inputs.dtype == torch.float32

    def test_samples_do_not_depend_on_batches_or_order(self, split: InMemory | OnDisk, augment: Augment | None):
        runs = [
            by_sample(list(split.batches(steps, augment=augment, seed=1, epoch=2)))
            for steps in (plan(20), plan(7, 7, 6, seed=1), plan(*[1] * 20, seed=2))
        ]
        assert torch.equal(runs[0], runs[1])
        assert torch.equal(runs[0], runs[2])

    def test_the_rest_of_a_plan_continues_it(self, split: InMemory | OnDisk, augment: Augment | None):
        steps = plan(5, 5, 5, 5)
        whole = list(split.batches(steps, augment=augment, epoch=4))
        for batch, again in zip(whole[2:], split.batches(steps[2:], augment=augment, epoch=4), strict=True):
            assert torch.equal(batch.inputs, again.inputs)

    def test_epochs_differ_only_when_augmented(self, split: InMemory | OnDisk, augment: Augment | None):
        first, second = (next(split.batches(plan(20), augment=augment, epoch=epoch)).inputs for epoch in (0, 1))
        assert torch.equal(first, second) == (augment is None)

    def test_torchs_own_generator_is_left_alone(self, split: InMemory | OnDisk, augment: Augment | None):
        before = torch.get_rng_state()
        list(split.batches(plan(10), augment=augment))
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_sample_may_stand_in_a_plan_twice(self, split: InMemory | OnDisk, augment: Augment | None):
        inputs = next(split.batches([torch.tensor([3, 3])], augment=augment)).inputs
        assert torch.equal(inputs[0], inputs[1])

    def test_an_empty_plan_gives_nothing(self, split: InMemory | OnDisk, augment: Augment | None):
        assert list(split.batches([], augment=augment, workers=2)) == []


@pytest.mark.parametrize("augment", [None, IMAGENET], ids=["evaluation", "imagenet"])
def test_any_number_of_workers_gives_the_same_batches(on_disk: OnDisk, augment: Augment | None):
    steps = plan(4, 4, 4, 4, 4)
    before = torch.get_rng_state()
    here, one, two = (list(on_disk.batches(steps, augment=augment, epoch=1, workers=n)) for n in (0, 1, 2))
    for expected, *others in zip(here, one, two, strict=True):
        for other in others:
            assert all(map(torch.equal, expected, other))
    assert torch.equal(torch.get_rng_state(), before)


def test_files_and_memory_give_the_same_but_for_boxes_of_full_resolution(on_disk: OnDisk, in_memory: InMemory):
    for augment in (None, CIFAR):
        pair = (next(split.batches(plan(20), augment=augment)) for split in (on_disk, in_memory))
        for one, other in zip(*pair, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_file_is_named_in_one_line(on_disk: OnDisk, tmp_path: Path, workers: int):
    for path in on_disk.paths:
        (tmp_path / path).write_bytes((on_disk.root / path).read_bytes())
    (tmp_path / "13.png").write_bytes((on_disk.root / "13.png").read_bytes()[:500])
    broken = OnDisk(on_disk.paths, on_disk.labels, tmp_path, VIEW)
    with pytest.raises(PskdError, match=r"13\.png") as caught:
        list(broken.batches(torch.arange(20).split(5), augment=IMAGENET, workers=workers))
    assert "\n" not in str(caught.value)
    assert "worker" not in str(caught.value)


def test_fingerprint_in_memory_knows_pixels_labels_and_order(in_memory: InMemory):
    mark = in_memory.fingerprint
    assert int(mark, 16) >= 0
    assert in_memory.subset(torch.arange(20)).fingerprint == mark
    changed = in_memory.images.clone()
    changed[7, 2, 5, 5] ^= 1
    labels = in_memory.labels.clone()
    labels[4] += 1
    others = [
        InMemory(changed, in_memory.labels, VIEW),
        InMemory(in_memory.images, labels, VIEW),
        InMemory(in_memory.images.view(20, 3, 8, 32), in_memory.labels, VIEW),
        in_memory.subset(torch.arange(20).flip(0)),
        in_memory.subset(torch.arange(19)),
    ]
    assert len({mark, *(other.fingerprint for other in others)}) == 6


def test_fingerprint_on_disk_knows_paths_sizes_labels_and_order(on_disk: OnDisk, tmp_path: Path):
    mark = on_disk.fingerprint
    for path in on_disk.paths:
        (tmp_path / path).write_bytes((on_disk.root / path).read_bytes())
    moved = OnDisk(on_disk.paths, on_disk.labels, tmp_path, VIEW)
    assert moved.fingerprint == mark, "another folder with the same files is the same data set"
    with (tmp_path / "3.png").open("ab") as file:
        file.write(b"0")
    others = [
        OnDisk(on_disk.paths, on_disk.labels, tmp_path, VIEW),
        OnDisk(on_disk.paths, on_disk.labels + 1, on_disk.root, VIEW),
        on_disk.subset(torch.arange(20).flip(0)),
        on_disk.subset(torch.arange(19)),
    ]
    assert len({mark, *(other.fingerprint for other in others)}) == 5
    (tmp_path / "3.png").unlink()
    with pytest.raises(PskdError, match=r"3\.png"):
        _ = OnDisk(on_disk.paths, on_disk.labels, tmp_path, VIEW).fingerprint


LOOP = """
import signal, sys, torch
from pathlib import Path
from pskd.workbench.data import OnDisk, View

got = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: got.append(number))
paths = tuple(path.name for path in sorted(Path(sys.argv[1]).iterdir()))
view = View(3, (16, 16), None, (0.5,) * 3, (0.5,) * 3)
split = OnDisk(paths, torch.zeros(len(paths), dtype=torch.int64), Path(sys.argv[1]), view)
for step, batch in enumerate(split.batches([torch.arange(20)] * 40, workers=2)):
    if step == 2:
        print("ready", flush=True)
        sys.stdin.readline()
print(step + 1, len(got), [name for name in ("torchvision", "sklearn") if name in sys.modules])
"""


def start_loop(folder: Path) -> subprocess.Popen[str]:
    """A process, in a group of its own, that has taken a few of 40 batches from two workers and waits for a line."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP, str(folder)],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_workers_outlive_signals_to_the_whole_group_and_need_no_slow_library(on_disk: OnDisk):
    process = start_loop(on_disk.root)
    os.killpg(process.pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGTERM)
    time.sleep(0.2)
    out, err = process.communicate("\n", timeout=60)
    assert (process.returncode, out, err) == (0, "40 2 []\n", "")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_workers_end_when_the_main_process_is_killed(on_disk: OnDisk):
    shared = set(os.listdir("/dev/shm"))
    process = start_loop(on_disk.root)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(workers) == 2
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline, "a worker is still there"
        time.sleep(0.2)
    assert not {name for name in set(os.listdir("/dev/shm")) - shared if str(process.pid) in name}


def fresh(split: OnDisk) -> OnDisk:
    """The same samples, without workers of other tests."""
    return split.subset(torch.arange(len(split)))


def epoch_plan(epoch: int = 0, size: int = 3) -> tuple[torch.Tensor, ...]:
    return torch.randperm(20, generator=torch.Generator().manual_seed(epoch)).split(size)


def epoch_of(split, epoch: int, workers: int = 2, size: int = 3, augment: Augment | None = IMAGENET) -> torch.Tensor:
    batches = split.batches(epoch_plan(epoch, size), augment=augment, seed=1, epoch=epoch, workers=workers)
    return torch.cat([batch.inputs for batch in batches])


def alive() -> set[int]:
    return {child.pid for child in multiprocessing.active_children()}


def ended(before: set[int]) -> bool:
    until = time.monotonic() + 20
    while alive() - before and time.monotonic() < until:
        time.sleep(0.01)
    return not alive() - before


def test_workers_stay_for_the_next_epoch_and_end_with_their_data(on_disk: OnDisk):
    before, split = alive(), fresh(on_disk)
    first = epoch_of(split, 0)
    workers = alive() - before
    assert len(workers) == 2
    assert torch.equal(epoch_of(split, 0, augment=None), epoch_of(split, 0, workers=0, augment=None))
    second = epoch_of(split, 1)
    assert alive() - before == workers, "the same two, and none of the evaluation"
    third = epoch_of(split, 2, size=8)  # which needs more memory
    assert len(alive() - before) == 2
    assert not alive() & workers
    for epoch, (seen, size) in enumerate(((first, 3), (second, 3), (third, 8))):
        assert torch.equal(seen, epoch_of(split, epoch, workers=0, size=size))
    del split
    assert ended(before)


def test_an_epoch_that_is_left_early_or_fails_takes_its_workers_along(on_disk: OnDisk):
    before, split = alive(), fresh(on_disk)
    batches = split.batches(epoch_plan(), augment=IMAGENET, seed=1, workers=2)
    next(batches)
    del batches
    assert ended(before)
    content = split.source(4).read_bytes()
    split.source(4).write_bytes(content[:60])
    with pytest.raises(PskdError, match=r"cannot read image .*4\.png"):
        epoch_of(split, 0)
    assert ended(before)
    split.source(4).write_bytes(content)
    assert torch.equal(epoch_of(split, 0), epoch_of(split, 0, workers=0))


def test_batches_that_are_kept_do_not_change_and_two_epochs_run_at_once(on_disk: OnDisk):
    """Each has memory of its own, also when both use workers that were left over."""
    split = fresh(on_disk)
    for epoch in range(3):
        one, other = (
            split.batches(epoch_plan(epoch), augment=IMAGENET, seed=1, epoch=which, workers=2)
            for which in (epoch, -1 - epoch)
        )
        pairs = [(a.inputs, b.inputs) for a, b in zip(one, other, strict=True)]
        for which, seen in zip((epoch, -1 - epoch), zip(*pairs, strict=True), strict=True):
            batches = split.batches(epoch_plan(epoch), augment=IMAGENET, seed=1, epoch=which)
            assert torch.equal(torch.cat(seen), torch.cat([batch.inputs for batch in batches]))


class Noisy:
    """A user's data set that draws its own random numbers."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(3, 16, 20), index % 3


def test_the_workers_of_a_users_data_set_start_anew_so_that_its_epochs_can_be_repeated():
    before, split = alive(), Items(Noisy(), torch.arange(20), torch.arange(20) % 3, VIEW)
    first = epoch_of(split, 0)
    assert ended(before)
    epoch_of(split, 1)
    assert torch.equal(epoch_of(split, 0), first)
