"""The published IWSLT files: talks with tags, and XML files of development and test sets."""

from __future__ import annotations

import html
import re
from pathlib import Path

from pskd.errors import PskdError
from pskd.workbench import registry
from pskd.workbench.data.text.pairs import Pairs, TextData, align, folder_of, read_bytes, read_lines

_HOLD_OUT_EVERY = 23  # of IWSLT's training pairs, for validation
_TEST_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012", "TED.tst2013")
# Lines about a talk. Title and description are sentences too; the others may stand in one language only.
_ABOUT = re.compile(rb"\s*</?(url|talkid|keywords|speaker|reviewer|translator|transcript|doc|refset|srcset)\b")
_TEXT_TAG = re.compile(rb"</?(title|description)>")
_SEGMENT = re.compile(rb'<seg id="(\d+)">(.*?)</seg>', re.DOTALL)


@registry.texts.register("iwslt")
def load_iwslt(root: str | None = None, *, source: str, target: str, on_bad: str = "refuse") -> TextData:
    """The published files: train.tags.de-en.*, and six development and test sets joined as the test set."""
    folder, languages = folder_of("iwslt", root), (source, target)
    pairs = _talks(folder, languages, on_bad)
    held_out = range(_HOLD_OUT_EVERY - 1, len(pairs), _HOLD_OUT_EVERY)
    test = Pairs(f"{folder}, {len(_TEST_SETS)} sets", [], [], [])
    for name in _TEST_SETS:
        part = _segments(folder, name, languages, on_bad)
        test.source += part.source
        test.target += part.target
        test.lines += part.lines
        test.dropped += part.dropped
    return TextData(pairs.subset(at for at in range(len(pairs)) if at not in held_out), test, pairs.subset(held_out))


def _talks(folder: Path, languages: tuple[str, str], on_bad: str) -> Pairs:
    """All training pairs, with the line numbers of the source."""
    names = [f"train.tags.{'-'.join(pair)}" for pair in (languages, languages[::-1])]
    stem = next((name for name in names if list(folder.glob(f"{name}.{languages[0]}*"))), names[0])
    files = [folder / f"{stem}.{language}" for language in languages]
    kept = [[(n, line) for n, line in enumerate(read_lines(file), 1) if not _ABOUT.match(line)] for file in files]
    if len(kept[0]) != len(kept[1]):
        raise PskdError(
            f"'{files[0]}' has {len(kept[0]):,} sentences and '{files[1].name}' {len(kept[1]):,}: they are not"
            " two languages of one publication"
        )
    columns = [[_TEXT_TAG.sub(b"", line) for _, line in column] for column in kept]
    return align(str(files[0]), columns, on_bad, [n for n, _ in kept[0]], _plain_text)


def _segments(folder: Path, name: str, languages: tuple[str, str], on_bad: str) -> Pairs:
    """One development or test set, sentence by sentence, from its two XML files."""
    for pair in ("-".join(languages), "-".join(languages[::-1])):
        matches = [sorted(folder.glob(f"*{name}.{pair}.{language}.xml*")) for language in languages]
        if all(matches):
            break
    else:
        raise PskdError(f"'{folder}' has no *{name}.{'-'.join(languages)}.{languages[0]}.xml with its other language")
    files = [file.with_name(file.name.removesuffix(".gz")) for file, *_ in matches]
    segments = [_SEGMENT.findall(read_bytes(file)) for file in files]
    if [number for number, _ in segments[0]] != [number for number, _ in segments[1]]:
        raise PskdError(f"'{files[0]}' and '{files[1]}' number other sentences: they do not belong together")
    return align(str(files[0]), [[text for _, text in column] for column in segments], on_bad, clean=_plain_text)


def _plain_text(marked: str) -> str:
    return html.unescape(marked).strip()
