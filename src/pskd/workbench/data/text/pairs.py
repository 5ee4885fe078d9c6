"""Sentence pairs, with the place each came from, and what is wrong with some of them."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pskd.errors import PskdError
from pskd.workbench import reading
from pskd.workbench.data.reason import place, reason
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

    def subset(self, at: Iterable[int]) -> Pairs:
        """The pairs at these positions, in this order."""
        at = list(at)
        source, target = ([column[each] for each in at] for column in (self.source, self.target))
        return Pairs(self.place, source, target, [self.lines[each] for each in at], self.dropped)

    def without(self, bad: dict[int, str], on_bad: str) -> Pairs:
        """The pairs but those at the positions ``bad``, which have a reason each: skipped and counted, or refused."""
        if not bad:
            return self
        counts = Counter(bad.values())
        said = ", ".join(f"{count} {why}" for why, count in counts.items())
        numbers = [self.lines[at] for at in sorted(bad)]
        shown = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
        if on_bad == "refuse":
            raise PskdError(
                f"{self.place}: {len(bad)} of {len(self)} pairs are bad ({said}; line{'s' if len(bad) > 1 else ''}"
                f" {shown}): mend them, or leave them out with data.on_bad=skip"
            )
        kept = self.subset(at for at in range(len(self)) if at not in bad)
        kept.dropped = self.dropped + counts
        return kept

    @property
    def note(self) -> str | None:
        """What was left out, for the log."""
        if not self.dropped:
            return None
        said = ", ".join(f"{count} {why}" for why, count in self.dropped.items())
        return f"{self.place}: {self.dropped.total()} bad pairs left out ({said}), {len(self):,} kept"


@dataclass(frozen=True)
class TextData:
    train: Pairs
    test: Pairs
    val: Pairs | None = None


def folder_of(name: str, root: str | None) -> Path:
    """The folder that holds a data set's files."""
    folder = place(name, root)
    if not folder.is_dir():
        raise PskdError(f"data.root={root}: there is no such folder")
    return folder


def read_bytes(file: Path) -> bytes:
    """The content of a file, or of the same one with .gz behind its name."""
    packed = file.with_name(f"{file.name}.gz")
    most = int(min(free_bytes() / 8, 2**40))  # text becomes several times as large
    try:
        if file.exists() or not packed.exists():
            return reading.read_bytes(file, most)
        with reading.open_file(packed) as opened, gzip.open(opened) as unpacked:
            content = unpacked.read(most + 1)
        if len(content) > most:
            raise PskdError(f"unpacked it is larger than the {most:,} bytes that fit into memory")
        return content
    except (PskdError, OSError, EOFError, zlib.error) as error:
        raise PskdError(f"cannot read '{file}' or '{packed.name}' ({reason(error)}): check data.root") from error


def lines_of(file: Path) -> list[bytes]:
    """The lines of a text file. Only line feeds count, since text may hold other separators of its own."""
    lines = read_bytes(file).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines


def aligned(
    place: str,
    source: Iterable[bytes],
    target: Iterable[bytes],
    lines: list[int],
    on_bad: str,
    clean: Callable[[str], str] = str.strip,
) -> Pairs:
    """Pairs from two columns of raw lines; a pair that is empty or no UTF-8 on either side is bad."""
    columns, bad = [], {}
    for column in (source, target):
        texts = []
        for at, raw in enumerate(column):
            try:
                text = clean(raw.decode("utf-8"))
            except UnicodeDecodeError:
                text, bad[at] = "", "not UTF-8"
            if not text:
                bad.setdefault(at, "empty")
            elif len(text) > LONGEST_WORD and max(map(len, text.split())) > LONGEST_WORD:
                bad.setdefault(at, f"with a word of more than {LONGEST_WORD:,} letters")
            texts.append(text)
        columns.append(texts)
    return Pairs(place, columns[0], columns[1], lines).without(bad, on_bad)


def joined(place: str, sets: list[Pairs]) -> Pairs:
    """Several sets one after the other."""
    source = [text for one in sets for text in one.source]
    target = [text for one in sets for text in one.target]
    dropped = sum((one.dropped for one in sets), Counter[str]())
    return Pairs(place, source, target, [line for one in sets for line in one.lines], dropped)


def read_pair(folder: Path, stem: str, languages: tuple[str, str], on_bad: str) -> Pairs:
    """``stem.de`` and ``stem.en``, line by line."""
    files = [folder / f"{stem}.{language}" for language in languages]
    source, target = (lines_of(file) for file in files)
    if len(source) != len(target):
        raise PskdError(
            f"'{files[0]}' has {len(source):,} lines and '{files[1].name}' {len(target):,}: line n of one must be the"
            " translation of line n of the other"
        )
    if not source:
        raise PskdError(f"'{files[0]}' is empty: there must be at least one pair")
    place = f"{files[0]} and .{languages[1]}"
    return aligned(place, source, target, list(range(1, len(source) + 1)), on_bad)
