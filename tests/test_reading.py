"""Sizes of files and models are bounded before anything is allocated."""

from __future__ import annotations

import os
import resource
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import exit_code, in_child
from torch import nn

from pskd.errors import PskdError, error_context, single_line
from pskd.workbench import space
from pskd.workbench.config.yaml_file import MOST_NODES, parsed_yaml
from pskd.workbench.models import create
from pskd.workbench.models.modest import build_within_memory
from pskd.workbench.reading import read_json, read_npz, read_text
from pskd.workbench.space import check_fits, format_bytes, free_bytes


def test_only_ordinary_files_of_text_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, content in (("large", b"x" * 100_001), ("bytes", b"\xff"), ("deep", b"[" * 100_000), ("cut", b"{")):
        (tmp_path / name).write_bytes(content)
    handles = len(os.listdir("/proc/self/fd"))
    for place, why in (
        (tmp_path, "is a folder"),
        (tmp_path / "pipe", "is a pipe"),
        (Path("/dev/zero"), "is a device"),
        (tmp_path / "none", "No such file"),
        (tmp_path / ("x" * 300), "too long"),
        (Path("a\0b"), "no name of a file"),
        (tmp_path / "large", "100,001 bytes, more than the 100,000"),
        (tmp_path / "bytes", "no text in UTF-8"),
        (tmp_path / "deep", "nested too deeply"),
        (tmp_path / "cut", "not valid JSON"),
    ):
        with pytest.raises(PskdError, match=why):
            read_json(place, 100_000)
    assert len(os.listdir("/proc/self/fd")) == handles
    (tmp_path / "cut").write_text("{}")
    assert (read_json(tmp_path / "cut", 2), read_text(tmp_path / "cut", 2)) == ({}, "{}")


def test_an_archive_is_not_unpacked_beyond_the_memory(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    np.savez(file, a=np.arange(3))
    assert read_npz(file)["a"].tolist() == [0, 1, 2]
    lying = bytearray(file.read_bytes())
    at = lying.index(b"PK\x01\x02") + 24  # the size that the archive's index gives
    lying[at : at + 4] = struct.pack("<I", 2**32 - 2)
    file.write_bytes(lying)

    def limited() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**31, used + 2**31))
        assert free_bytes() <= 2**31
        with pytest.raises(PskdError, match=r"x\.npz needs 8\.6 GB of memory and there are"):
            read_npz(file)

    assert exit_code(in_child(limited)) == 0
    file.write_bytes(b"PK no archive")
    with pytest.raises(PskdError, match=r"no \.npz file of plain arrays"):
        read_npz(file)


def test_sizes_are_readable() -> None:
    check_fits(1, "it", "shrink it")
    with pytest.raises(PskdError, match=r"it needs 5\.0 PB|it needs 5,000\.0 TB of memory and there are .*: shrink it"):
        check_fits(5e15, "it", "shrink it")
    assert [format_bytes(number) for number in (2e6, 3.25e9, 1e30)] == ["2.0 MB", "3.2 GB", "far more"]


def nine_times(begin: str, wrap: str) -> str:
    """Twelve lines of aliases, each of which stands for nine of the one before."""
    lines = [wrap.format(n, ", ".join([f"*a{n - 1}"] * 9)) for n in range(1, 12)]
    return "\n".join([begin, *lines])


BOMBS = {
    "merges": nine_times("a0: &a0 {x: 1}", "a{0}: &a{0} {{<<: [{1}]}}"),
    "laughs": nine_times("a0: &a0 [x]", "a{0}: &a{0} [{1}]"),
    "depth": "[" * 500_000,
    "itself": "&a [*a]",
    "a date": "2020-13-45",
    "a tag": "!!int abc",
    "a long number": "9" * 5000,
    "a longer number": "0x" + "f" * 5000,
    "code": "!!python/object/apply:os.mkdir [pwned]",
    "half a letter": '"\\uD800"',
    "NUL": '"\\0"',
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_yaml_that_would_not_end(text: str) -> None:
    with pytest.raises(PskdError, match=r"^here.*: not valid YAML") as caught:
        parsed_yaml(text, "here")
    assert "\n" not in str(caught.value)


def test_honest_yaml_is_read_with_its_aliases() -> None:
    assert parsed_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]", "here")["b"] == {"x": 1, "y": 2}
    assert len(parsed_yaml("[" + "1," * (MOST_NODES // 2) + "]", "here")) == MOST_NODES // 2


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        *(("resnet8", "width", 10**6), ("resnet8", "width", 10**12), ("resnet", "depth", 6 * 10**7 + 2)),
        ("torchvision:mobilenet_v2", "width_mult", 1e9),
    ],
)
def test_a_model_that_does_not_fit_is_not_built(name: str, option: str, value: float) -> None:
    with pytest.raises(PskdError, match=r"memory (and|than)|less deep"), error_context("model"):
        build_within_memory(lambda: create(name, 10, **{option: value}))


def test_a_model_that_fits_is_built_as_ever() -> None:
    torch.manual_seed(0)
    plain = create("resnet8", 10)
    torch.manual_seed(0)
    watched = build_within_memory(lambda: create("resnet8", 10))
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(PskdError, match="at least"):
        build_within_memory(lambda: nn.Linear(100, 100), copies=10**9)
    nn.Linear(100, 100)  # nobody is watched afterwards


@pytest.mark.parametrize("without_memory", [True, False])
def test_a_large_model_is_counted_before_it_is_made(without_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def layers() -> nn.Module:
        begun.append(torch.empty(0).device.type)
        if not without_memory:
            torch.ones(1).item()  # as some libraries do; there is no number on a device without memory
        return nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(6)))

    monkeypatch.setattr("pskd.workbench.models.modest.free_bytes", lambda: 2e9)
    torch.manual_seed(0)
    plain = layers()
    torch.manual_seed(0)
    large = build_within_memory(layers)
    assert begun == ["cpu", "cpu", "meta", "cpu"]
    assert all(torch.equal(one, other) for one, other in zip(plain.parameters(), large.parameters(), strict=True))
    monkeypatch.setattr("pskd.workbench.models.modest.free_bytes", lambda: 1e9)
    needed = 1.2 if without_memory else 1.0  # all six, or those up to the one that is too much
    with pytest.raises(PskdError, match=rf"needs at least {needed} GB of memory and there are 1\.0 GB"):
        build_within_memory(layers)
    assert begun[4:] == ["cpu", "meta"] + ["cpu"] * (not without_memory)


def test_messages_have_one_line_and_never_advise_to_unpickle() -> None:
    advice = "Weights only load failed.\n(1) In PyTorch 2.6, re-running with weights_only=False may run code"
    assert single_line(advice) == "Weights only load failed."
    with pytest.raises(PskdError, match=r"^it fails \(KeyError: 'x'\)$"), error_context("it fails"):
        {}["x"]


def test_files_that_a_container_has_cached_are_no_memory_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "_GROUP", tmp_path)
    (tmp_path / "memory.current").write_text("4000\n")
    (tmp_path / "memory.stat").write_text("anon 500\nactive_file 1500\ninactive_file 2000\n")
    (tmp_path / "memory.max").write_text("5000\n")
    assert free_bytes() == 5000 - (4000 - 3500)
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes() > 10**6
