"""The data sets of translation by name: embedded numbers, line-aligned files, Multi30k, the published IWSLT files."""

from __future__ import annotations

import html
import random
import re
from pathlib import Path

from pskd.data.text.pairs import Pairs, TextData, aligned, joined, lines_of, read_bytes, read_pair
from pskd.errors import PskdError

# The numbers of the embedded data set: all distinct, so that the test set is new to the model.
_NUMBERS, _TRAIN_NUMBERS, _TEST_NUMBERS = 1_000_000, 8_000, 500

_HOLD_OUT_EVERY = 23  # of IWSLT's training pairs, for validation
_IWSLT_TEST = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012", "TED.tst2013")
# Lines about a talk. Title and description are sentences too; the others may stand in one language only.
_ABOUT = re.compile(rb"\s*</?(url|talkid|keywords|speaker|reviewer|translator|transcript|doc|refset|srcset)\b")
_TEXT_TAG = re.compile(rb"</?(title|description)>")
_SEGMENT = re.compile(rb'<seg id="(\d+)">(.*?)</seg>', re.DOTALL)


def load(
    name: str,
    *,
    languages: tuple[str, str],
    root: str | None = None,
    test: str | None = None,
    pairs: int | None = None,
    on_bad: str = "refuse",
) -> TextData:
    """Load a data set.

    Args:
        name: numbers, files, multi30k or iwslt.
        languages: from which and into which, as files are named by them.
        root: the folder that holds the files; ``numbers`` has none.
        test: the name of other test files.
        pairs: keep the first so many training pairs only.
        on_bad: "refuse" or "skip" pairs that are empty or no UTF-8.
    """
    if languages[0] == languages[1]:
        raise PskdError(f"data.source and data.target are both {languages[0]!r}: name two languages")
    if name == "numbers":
        data = _numbers(languages, min(pairs or _TRAIN_NUMBERS, _TRAIN_NUMBERS))
    else:
        if root is None:
            raise PskdError(f"data={name} needs data.root=..., the folder that holds it")
        folder = Path(root).expanduser()
        if not folder.is_dir():
            raise PskdError(f"data.root={root}: there is no such folder")
        if name == "iwslt":
            data = _iwslt(folder, languages, on_bad)
        else:
            if name == "multi30k" and (folder / "multi30k").is_dir():
                folder = folder / "multi30k"
            data = _files(folder, languages, test or ("test_2016_flickr" if name == "multi30k" else "test"), on_bad)
    if pairs is not None:
        data = TextData(data.train.subset(range(min(pairs, len(data.train)))), data.test, data.val)
    for split in (data.train, data.test, data.val):
        if split is not None and not len(split):
            raise PskdError(f"{split.place}: no pair is left")
    return data


def _files(root: Path, languages: tuple[str, str], test: str, on_bad: str) -> TextData:
    has_validation = any((root / f"val.{language}{end}").exists() for language in languages for end in ("", ".gz"))
    train, tested = (read_pair(root, stem, languages, on_bad) for stem in ("train", test))
    val = read_pair(root, "val", languages, on_bad) if has_validation else None
    return TextData(train, tested, val)


def _numbers(languages: tuple[str, str], count: int) -> TextData:
    """Number words of both languages, such as "dreizehntausendvier" and "thirteen thousand and four"."""
    from num2words import num2words

    chosen = random.Random(0).sample(range(_NUMBERS), _TRAIN_NUMBERS + _TEST_NUMBERS)

    def pairs(numbers: list[int]) -> Pairs:
        try:
            source, target = ([num2words(number, lang=language) for number in numbers] for language in languages)
        except NotImplementedError:
            raise PskdError(f"data=numbers: num2words does not know {' or '.join(languages)}") from None
        return Pairs("numbers", source, target, numbers)

    return TextData(pairs(chosen[:count]), pairs(chosen[_TRAIN_NUMBERS:]))


def _iwslt(root: Path, languages: tuple[str, str], on_bad: str) -> TextData:
    """The published files: train.tags.de-en.*, and six development and test sets joined as the test set."""
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
