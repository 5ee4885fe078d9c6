"""`data.cache`, and what it brings with it: images that are made smaller before crops are taken."""

from __future__ import annotations

import os
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pskd.errors import PskdError
from pskd.workbench.augment import Augment
from pskd.workbench.config import identity, validated
from pskd.workbench.data import ImageData, InMemory, OnDisk, View, caching, store
from pskd.workbench.data.caching import Caching, Prepared, Scaling
from pskd.workbench.data.subsets import change_view
from pskd.workbench.tasks.classification.task import ClassificationDataConfig

VIEW = View(3, (28, 28), 32, (0.5, 0.4, 0.3), (0.2, 0.2, 0.3))
CROPS = Augment(VIEW, crop="resized", jitter=0.2)
SIZES = ((60, 45), (45, 60), (33, 32), (20, 50), (500, 33), (41, 97), (64, 64), (90, 35))


def photo(size: tuple[int, int], seed: int) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


def images(root: Path, count: int = 24, sizes: tuple[tuple[int, int], ...] = SIZES) -> ImageData:
    """Files of many sizes: smaller than what is kept, larger, panoramas, and photos lying on their side."""
    root.mkdir(parents=True, exist_ok=True)
    paths = tuple(f"{number}.{'png' if number % 3 else 'jpg'}" for number in range(count))
    turned = Image.Exif()
    turned[0x0112] = 6
    for number, path in enumerate(paths):
        photo(sizes[number % len(sizes)], number).save(root / path, exif=turned if number % 5 == 0 else Image.Exif())
    split = OnDisk(paths, torch.arange(count) % 3, root, VIEW)
    parts = torch.arange(count).split([count - 8, 4, 4])
    return ImageData("folder", ("a", "b", "c"), *(split.subset(part) for part in parts), VIEW)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ImageData:
    return images(tmp_path_factory.mktemp("images"))


def kept(data: ImageData, cache: Path | None, workers: int = 0, lines: list[str] | None = None, **how) -> ImageData:
    root = str(data.train.root) if isinstance(data.train, OnDisk) else None
    settings = {"shrink": "auto", "resizing": "torch", **how}
    cached = Caching("folder", root, None if cache is None else str(cache), **settings)
    return cached.of(data, workers, ([] if lines is None else lines).append)


def inputs(split, augment: Augment | None = None, **options) -> torch.Tensor:
    return torch.cat(
        [batch.inputs for batch in split.batches(torch.arange(len(split)).split(5), augment=augment, **options)]
    )


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("shrink", ["auto", 30, 40, None])
@pytest.mark.parametrize("resizing", ["pillow", "torch"])
def test_kept_images_are_what_is_made_without_a_cache(data: ImageData, tmp_path: Path, shrink, resizing: str):
    with_it = kept(data, tmp_path, shrink=shrink, resizing=resizing)
    without = kept(data, None, shrink=shrink, resizing=resizing)
    for split in ("train", "val", "test"):
        one, other, plain = (getattr(each, split) for each in (with_it, without, data))
        assert torch.equal(inputs(one, CROPS, epoch=3), inputs(other, CROPS, epoch=3))
        assert torch.equal(inputs(one), inputs(plain)), "evaluation sees exactly the same"
        assert torch.equal(inputs(other), inputs(plain))
        assert one.fingerprint == plain.fingerprint
    if shrink is None and resizing == "pillow":
        assert torch.equal(inputs(with_it.train, CROPS), inputs(data.train, CROPS)), "nothing but the place differs"


def test_all_kinds_of_images_are_among_them(data: ImageData, tmp_path: Path):
    train = kept(data, tmp_path).train
    assert isinstance(train, Prepared)
    assert {train.kept(place).kind for place in range(len(train))} == {Scaling.NONE, Scaling.AS_EVALUATED}
    sides = [min(train.picture(place).size) for place in range(len(train))]
    assert max(sides) == 33, "all but the panorama have a shorter side of at most 32"
    assert sum(side == 33 for side in sides) == sum(33 in size and 500 in size for size in SIZES) * 2


def test_workers_build_and_read_the_same(data: ImageData, tmp_path: Path):
    one, two = kept(data, tmp_path / "one"), kept(data, tmp_path / "two", workers=2)
    assert torch.equal(inputs(one.train, CROPS), inputs(two.train, CROPS, workers=2))
    first, second = (next((tmp_path / name).iterdir()) for name in ("one", "two"))
    assert files(first)["pixels.bin"] == files(second)["pixels.bin"]
    assert isinstance(one.train, Prepared)
    words = np.frombuffer(files(first)["index.bin"], "<u8").reshape(-1, 6)[one.train.places].tolist()
    for place, (_, _, offset, size, kind, _) in enumerate(words):  # as earlier versions wrote them
        array, kept_kind = one.train.kept(place)
        height, width = divmod(size, 2**32)
        assert ((height, width, 3), kind) == (array.shape, kept_kind)
        assert files(first)["pixels.bin"][offset : offset + array.size] == array.tobytes()


def test_what_is_there_is_not_made_again_and_a_changed_file_is(tmp_path: Path):
    data, lines = images(tmp_path / "images"), []
    kept(data, tmp_path / "cache", lines=lines)
    before = files(tmp_path / "cache")
    kept(data, tmp_path / "cache", lines=lines)
    assert files(tmp_path / "cache") == before
    assert len(lines) == 1
    assert "24 images" in lines[0]
    assert "MB" in lines[0]
    changed = data.train.source(7)
    photo((70, 50), 99).save(changed)
    again = kept(data, tmp_path / "cache", lines=lines)
    assert "1 images of 24" in lines[1]
    assert torch.equal(inputs(again.train), inputs(data.train))
    assert torch.equal(inputs(again.train, CROPS), inputs(kept(data, None).train, CROPS))
    assert files(tmp_path / "cache")["pixels.bin"].startswith(before["pixels.bin"])


def test_other_data_and_other_sizes_have_folders_of_their_own(data: ImageData, tmp_path: Path):
    other = images(tmp_path / "images", 12)
    cache = tmp_path / "cache"
    for which, how in ((data, {}), (other, {}), (data, {"shrink": 40})):
        made = kept(which, cache, **how)
        assert torch.equal(inputs(made.test), inputs(which.test))
    assert len(list(cache.iterdir())) == 3
    seen = change_view(data, replace(VIEW, size=(14, 14), resize=16))
    assert torch.equal(inputs(kept(seen, cache).test), inputs(seen.test))
    assert len(list(cache.iterdir())) == 4


def test_a_folder_of_somebody_else_is_refused_and_left_alone(data: ImageData, tmp_path: Path):
    cached = Caching("folder", str(data.train.root), str(tmp_path), "auto", "torch")
    folder = cached.folder(VIEW)
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(PskdError, match="holds something else"):
        cached.of(data, 0, print)
    assert files(tmp_path) == {"thesis.txt": b"mine"}
    (folder / "thesis.txt").unlink()
    (folder / "about.json").write_text("{}")
    with pytest.raises(PskdError, match="made for other images"):
        cached.of(data, 0, print)


def test_links_are_not_followed(data: ImageData, tmp_path: Path):
    cached = Caching("folder", str(data.train.root), str(tmp_path / "cache"), "auto", "torch")
    (tmp_path / "victim").write_bytes(b"precious")
    cached.folder(VIEW).mkdir(parents=True)
    (cached.folder(VIEW) / "pixels.bin").symlink_to(tmp_path / "victim")
    with pytest.raises(PskdError, match=r"data\.cache: cannot write"):
        cached.of(data, 0, print)
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_a_disk_that_would_be_full_is_left_as_it_is(data: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines: list[str] = []
    monkeypatch.setattr(store, "free_space", lambda folder: store.RESERVE + 50_000.0)
    with pytest.raises(PskdError, match=r"needs 256\.\d MB for 24 images and there are 256\.1 MB: free some") as caught:
        kept(data, tmp_path, lines=lines)
    assert "\n" not in str(caught.value)
    assert lines == []
    assert (next(tmp_path.iterdir()) / "pixels.bin").stat().st_size == 0
    free = iter((1e12, store.RESERVE - 1.0))
    monkeypatch.setattr(store, "free_space", lambda folder: next(free))
    monkeypatch.setattr(store, "COMMIT_SECONDS", -1.0)
    with pytest.raises(PskdError, match="more images"):  # others have filled it meanwhile
        kept(data, tmp_path)
    monkeypatch.undo()
    assert torch.equal(inputs(kept(data, tmp_path).train, CROPS), inputs(kept(data, None).train, CROPS))


def test_damaged_and_torn_indices_are_repaired(data: ImageData, tmp_path: Path):
    expected = inputs(kept(data, tmp_path).train, CROPS)
    folder = next(tmp_path.iterdir())
    good = files(folder)
    records = 48
    for damaged in (
        good["index.bin"][:-10],
        good["index.bin"] + b"\0" * 100,
        good["index.bin"][: 3 * records] + b"\xff" * records + good["index.bin"][4 * records :],
        b"",
    ):
        (folder / "index.bin").write_bytes(damaged)
        assert torch.equal(inputs(kept(data, tmp_path).train, CROPS), expected)
    (folder / "pixels.bin").write_bytes(good["pixels.bin"][:1000])
    assert torch.equal(inputs(kept(data, tmp_path).train, CROPS), expected)


def another_process(data: ImageData, cache: Path, out: Path, largest_file: int | None = None) -> int:
    """Build in a process of its own, batch by batch; what it saw, or what was wrong, is written to ``out``."""
    if (process := os.fork()) != 0:
        return process
    try:
        torch.set_num_threads(1)
        store.COMMIT_SECONDS, caching.BATCH = -1.0, 4
        if largest_file is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
        try:
            seen = kept(data, cache).train
            text = str(sum(int(seen.pixels(place).sum()) for place in range(len(seen))))
        except PskdError as error:
            text = f"refused: {error}"
        out.write_text(text)
    finally:
        os._exit(0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_file_that_may_not_grow_ends_in_one_line(data: ImageData, tmp_path: Path):
    """The system's own refusal."""
    os.waitpid(another_process(data, tmp_path / "cache", tmp_path / "out", largest_file=30_000), 0)
    lines = (tmp_path / "out").read_text()
    assert lines.startswith("refused: data.cache: cannot write to")
    assert "\n" not in lines
    assert torch.equal(inputs(kept(data, tmp_path / "cache").train), inputs(data.train))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_build_that_is_killed_goes_on_and_two_processes_share_it(tmp_path: Path):
    data = images(tmp_path / "images", 64, ((300, 200), (200, 300)))
    cache = tmp_path / "cache"
    build = another_process(data, cache, tmp_path / "killed")
    until = time.monotonic() + 120
    while time.monotonic() < until:
        found = list(cache.glob("*/index.bin"))
        if found and found[0].stat().st_size > 10 * 48:
            break
        time.sleep(0.001)
    os.kill(build, signal.SIGKILL)
    os.waitpid(build, 0)
    folder = next(cache.iterdir())
    left = files(folder)
    assert 10 * 48 <= len(left["index.bin"]) < 64 * 48, "killed in the middle"
    for process in [another_process(data, cache, tmp_path / f"{number}") for number in range(2)]:
        os.waitpid(process, 0)
    expected = str(sum(int(data.train.pixels(place).sum()) for place in range(len(data.train))))
    assert [(tmp_path / name).read_text() for name in ("0", "1")] == [expected, expected]
    now = files(folder)
    whole = len(left["index.bin"]) // 48 * 48
    assert now["index.bin"].startswith(left["index.bin"][:whole]), "what was there was kept"
    assert len(now["index.bin"]) == 64 * 48, "each image once, by one of the two"
    kept(data, tmp_path / "other")
    assert files(next((tmp_path / "other").iterdir()))["pixels.bin"] == now["pixels.bin"]


def test_what_cannot_be_kept_says_so(data: ImageData, tmp_path: Path):
    memory = InMemory(torch.zeros(4, 3, 28, 28, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]), VIEW)
    held = ImageData("cifar10", ("a", "b"), memory, None, memory, VIEW)
    with pytest.raises(PskdError, match=r"data\.cache: the images of 'cifar10' are in memory"):
        Caching("cifar10", None, str(tmp_path)).of(held, 0, print)
    with pytest.raises(PskdError, match=r"data\.resize"):
        Caching("cifar10", None, resizing="torch").of(held, 0, print)
    assert Caching("cifar10").of(held, 0, print) is held


def test_torchs_resizing_differs_from_pillows_in_the_last_digits(data: ImageData):
    train = kept(data, None, shrink=None).train
    difference = (inputs(train, CROPS) - inputs(data.train, CROPS)).abs().max() * 255 * max(VIEW.std)
    assert 0 < difference < 5


@pytest.mark.parametrize(
    ("given", "shrink", "resize"),
    [
        ({}, None, "pillow"),
        ({"cache": "auto"}, "auto", "torch"),
        ({"cache": "elsewhere"}, "auto", "torch"),
        ({"cache": "auto", "shrink": None, "resize": "pillow"}, None, "pillow"),
    ],
)
def test_a_cache_is_only_a_place_but_the_settings_it_brings_count(given: dict, shrink: str | None, resize: str):
    def identify(**settings: object) -> str:
        return identity(validated({"data": {"name": "folder", **settings}}))

    settings = ClassificationDataConfig(name="folder", **given)
    assert (settings.shrink, settings.resize) == (shrink, resize)
    assert identify(**given) == identify(shrink=shrink, resize=resize)
    assert (identify(**given) == identify()) == (shrink is None)
