"""Sentence pairs, with the place each came from, and what is wrong with some of them."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pskd.errors import PskdError
from pskd.workbench import reading
from pskd.workbench.data.refusing import refusing, require_root
from pskd.workbench.space import free_bytes

LONGEST_WORD = 10_000  # letters: an encoding is learnt from words, and takes the square of a word's length


@dataclass
class Pairs:
    """One split. ``lines`` are the pairs' line numbers in ``place``, counted from 1; ``dropped`` counts bad pairs."""

    place: str
    source: list[str]
    target: list[str]
    lines: list[int]
    dropped: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.lines)

    def subset(self, index: Iterable[int]) -> Pairs:
        """The pairs at these positions, in this order."""
        index = list(index)
        source, target = ([column[i] for i in index] for column in (self.source, self.target))
        return Pairs(self.place, source, target, [self.lines[i] for i in index], self.dropped)

    def without(self, bad: dict[int, str], on_bad: str) -> Pairs:
        """The pairs except those at the positions ``bad``, each with its reason: these are skipped, or refused."""
        if not bad:
            return self
        counts = Counter(bad.values())
        if on_bad == "refuse":
            numbers = [str(self.lines[at]) for at in sorted(bad)]
            raise PskdError(
                f"{self.place}: {len(bad)} of {len(self)} pairs are bad ({_list_counts(counts)};"
                f" line{'s' if len(bad) > 1 else ''} {', '.join(numbers[:5])}{', ...' if len(numbers) > 5 else ''}):"
                " correct them, or leave them out with data.on_bad=skip"
            )
        kept = self.subset(at for at in range(len(self)) if at not in bad)
        kept.dropped = self.dropped + counts
        return kept

    @property
    def note(self) -> str | None:
        """What was left out, for the log."""
        if not self.dropped:
            return None
        total, counts = self.dropped.total(), _list_counts(self.dropped)
        return f"{self.place}: {total} bad pairs left out ({counts}), {len(self):,} kept"


def _list_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {why}" for why, count in counts.items())


@dataclass(frozen=True)
class TextData:
    train: Pairs
    test: Pairs
    val: Pairs | None = None


def folder_of(name: str, root: str | None) -> Path:
    """The folder that holds a data set's files."""
    folder = require_root(name, root)
    if not folder.is_dir():
        raise PskdError(f"data.root={root}: there is no such folder")
    return folder


def read_bytes(file: Path) -> bytes:
    """The content of a file, or of the same one with .gz behind its name."""
    packed = file.with_name(f"{file.name}.gz")
    most = int(min(free_bytes() / 8, 2**40))  # text becomes several times as large
    errors = (PskdError, OSError, EOFError, zlib.error)
    with refusing(f"cannot read '{file}' or '{packed.name}'", "check data.root", *errors):
        if file.exists() or not packed.exists():
            return reading.read_bytes(file, most)
        with reading.open_file(packed) as opened, gzip.open(opened) as unpacked:
            content = unpacked.read(most + 1)
        if len(content) > most:
            raise PskdError(f"unpacked it is larger than the {most:,} bytes that fit into memory")
        return content


def read_lines(file: Path) -> list[bytes]:
    """The lines of a text file. Only line feeds count, since text may hold other separators of its own."""
    lines = read_bytes(file).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines


def align(
    place: str,
    columns: Sequence[Sequence[bytes]],
    on_bad: str,
    lines: list[int] | None = None,
    clean: Callable[[str], str] = str.strip,
) -> Pairs:
    """Pairs from two columns of raw lines; a pair that is empty or no UTF-8 on either side is bad."""
    texts: list[list[str]] = [[], []]
    bad: dict[int, str] = {}
    for column, raw_lines in zip(texts, columns, strict=True):
        for at, raw in enumerate(raw_lines):
            try:
                text = clean(raw.decode("utf-8"))
            except UnicodeDecodeError:
                text, bad[at] = "", "not UTF-8"
            if not text:
                bad.setdefault(at, "empty")
            elif len(text) > LONGEST_WORD and max(map(len, text.split())) > LONGEST_WORD:
                bad.setdefault(at, f"with a word of more than {LONGEST_WORD:,} letters")
            column.append(text)
    source, target = texts
    return Pairs(place, source, target, lines or list(range(1, len(source) + 1))).without(bad, on_bad)


def read_pair(folder: Path, stem: str, languages: tuple[str, str], on_bad: str) -> Pairs:
    """``stem.de`` and ``stem.en``, line by line."""
    files = [folder / f"{stem}.{language}" for language in languages]
    columns = [read_lines(file) for file in files]
    if len(columns[0]) != len(columns[1]):
        raise PskdError(
            f"'{files[0]}' has {len(columns[0]):,} lines and '{files[1].name}' {len(columns[1]):,}: line n of one must"
            " be the translation of line n of the other"
        )
    if not columns[0]:
        raise PskdError(f"'{files[0]}' is empty: there must be at least one pair")
    return align(f"{files[0]} and .{languages[1]}", columns, on_bad)
