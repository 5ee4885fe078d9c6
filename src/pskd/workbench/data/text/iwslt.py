"""The published IWSLT files: talks with tags, and XML files of development and test sets."""

from __future__ import annotations

import html
import re
from pathlib import Path

from pskd.errors import PskdError
from pskd.workbench import registry
from pskd.workbench.data.text.pairs import Pairs, TextData, aligned, folder_of, joined, lines_of, read_bytes

_HOLD_OUT_EVERY = 23  # of IWSLT's training pairs, for validation
_IWSLT_TEST = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012", "TED.tst2013")
# Lines about a talk. Title and description are sentences too; the others may stand in one language only.
_ABOUT = re.compile(rb"\s*</?(url|talkid|keywords|speaker|reviewer|translator|transcript|doc|refset|srcset)\b")
_TEXT_TAG = re.compile(rb"</?(title|description)>")
_SEGMENT = re.compile(rb'<seg id="(\d+)">(.*?)</seg>', re.DOTALL)


@registry.texts.register("iwslt")
def load_iwslt(root: str | None = None, *, source: str, target: str, on_bad: str = "refuse") -> TextData:
    """The published files: train.tags.de-en.*, and six development and test sets joined as the test set."""
    return _read(folder_of("iwslt", root), (source, target), on_bad)


def _read(root: Path, languages: tuple[str, str], on_bad: str) -> TextData:
    pair = "-".join(languages)
    names = [f"train.tags.{name}" for name in (pair, "-".join(reversed(languages)))]
    stem = next((name for name in names if list(root.glob(f"{name}.{languages[0]}*"))), names[0])
    files = [root / f"{stem}.{language}" for language in languages]
    columns = []
    for file in files:
        kept = [(n, line) for n, line in enumerate(lines_of(file), 1) if not _ABOUT.match(line)]
        columns.append([(n, _TEXT_TAG.sub(b"", line)) for n, line in kept])
    if len(columns[0]) != len(columns[1]):
        raise PskdError(
            f"'{files[0]}' has {len(columns[0]):,} sentences and '{files[1].name}' {len(columns[1]):,}: they are not"
            " two languages of one publication"
        )
    source, target = ([line for _, line in column] for column in columns)
    whole = aligned(str(files[0]), source, target, [n for n, _ in columns[0]], on_bad, _plain_text)
    every = range(len(whole))
    train = whole.subset(at for at in every if (at + 1) % _HOLD_OUT_EVERY)
    val = whole.subset(every[_HOLD_OUT_EVERY - 1 :: _HOLD_OUT_EVERY])
    test = joined(
        f"{root}, {len(_IWSLT_TEST)} sets", [_segments(root, name, languages, on_bad) for name in _IWSLT_TEST]
    )
    return TextData(train, test, val)


def _segments(root: Path, name: str, languages: tuple[str, str], on_bad: str) -> Pairs:
    """One development or test set, sentence by sentence, from its two XML files."""
    for pair in ("-".join(languages), "-".join(reversed(languages))):
        found = [sorted(root.glob(f"*{name}.{pair}.{language}.xml*")) for language in languages]
        if all(found):
            break
    else:
        raise PskdError(f"'{root}' has no *{name}.{'-'.join(languages)}.{languages[0]}.xml with its other language")
    files = [file.with_name(file.name.removesuffix(".gz")) for file, *_ in found]
    segments = [_SEGMENT.findall(read_bytes(file)) for file in files]
    source, target = ([text for _, text in found] for found in segments)
    if [number for number, _ in segments[0]] != [number for number, _ in segments[1]]:
        raise PskdError(f"'{files[0]}' and '{files[1]}' number other sentences: they do not belong together")
    return aligned(str(files[0]), source, target, list(range(1, len(source) + 1)), on_bad, _plain_text)


def _plain_text(marked: str) -> str:
    return html.unescape(marked).strip()
