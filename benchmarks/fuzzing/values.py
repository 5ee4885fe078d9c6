"""Odd values: what strangers, typing errors and damaged disks make of a number, a name or a tree of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

NUMBERS: list[Any] = [0, 1, -1, 2, 3, 0.5, 1.5, -0.0, 1e-300, 1e300, 2**31, 2**63, 2**64, 10**19, 10**10, 100_000]
WORDS = [
    *("", " ", "null", "true", "yes", "~", "[1]", "[]", "{}", "{name: [1]}", "{a: {b: {c: 1}}}", "[[1, 2], [3]]"),
    *("nan", "inf", "-.inf", "1e400", "0x1F", "1:2:3", "1_000", "9" * 5000, "2020-13-45", "2020-01-01", "!!int abc"),
    *("!!binary x", "!!python/object/apply:os.mkdir [pwned]", "!!set {a}", "&a [*a]", "*a", "'", '"', "'\\0'", '"\\0"'),
    *("a" * 300, "x" * 5000, "../..", "/proc/x", "/dev/null", "/dev/zero", ".", "/", "a/b", "$\\frac{$", "%s", "{0}"),
    *("\n", "a\nb", "\x1b[31mred", "\udcff", "\u202e", "💥", "timm:resnet18", "=", "a=b"),
    *("torchvision:vit_b_16", "torchvision:nothing", "transformers:t5", "ps_kd", "hard", "digits", "cpu", "cuda:7"),
    *("1000000 steps", "0.0001 epochs", "5 parsecs", "1e999 minutes", "<script>alert(1)</script>", "None", "-", "--"),
]
JSON_VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 0.5, 1e308, float("nan"), float("inf"), "", "x", "1"),
    *("a\nb", "\ud800", "<b>", "$\\frac{$", [], [1], [[]], {}, {"a": 1}, ["x"] * 20, {"name": ["x"]}),
]


def word(draw: random.Random) -> str:
    """The value of a setting as it might be written."""
    if draw.random() < 0.4:
        return str(draw.choice(NUMBERS))
    if draw.random() < 0.1:
        return "".join(chr(draw.choice([draw.randrange(1, 127), draw.randrange(1, 0x3000)])) for _ in range(8))
    return draw.choice(WORDS)


def changed_tree(draw: random.Random, tree: Any, value: Callable[[], Any] | None = None) -> Any:
    """A tree of mappings and lists in which a node is another value, is gone, or has company."""
    new = value or (lambda: draw.choice(JSON_VALUES))
    if isinstance(tree, dict) and tree and draw.random() < 0.85:
        key = draw.choice(list(tree))
        how = draw.random()
        if how < 0.1:
            return {kept: inner for kept, inner in tree.items() if kept != key}
        if how < 0.15:
            return {**tree, draw.choice(["", "x", "name", "0", "a.b"]): new()}
        return {**tree, key: changed_tree(draw, tree[key], value)}
    if isinstance(tree, list) and tree and draw.random() < 0.85:
        at = draw.randrange(len(tree))
        if draw.random() < 0.15:
            return tree[:at] + tree[at + 1 :]
        return [*tree[:at], changed_tree(draw, tree[at], value), *tree[at + 1 :]]
    return new()


def damaged(draw: random.Random, content: bytes) -> bytes:
    """Bytes cut off, flipped, doubled, or something else altogether."""
    kind = draw.randrange(6)
    if kind == 0 or not content:
        return b""
    if kind == 1:
        return content[: draw.randrange(len(content))]
    if kind == 2:
        return content + content[: draw.randrange(len(content))]
    if kind == 3:
        return draw.randbytes(draw.choice([1, 8, 100, 5000]))
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 5, 50])):
        changed[draw.randrange(len(changed) if kind == 4 else min(len(changed), 100))] = draw.randrange(256)
    return bytes(changed)
