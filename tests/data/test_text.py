"""Sentence pairs: every layout that is read, everything that can be wrong with one, tokens and batches."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from pskd.errors import PskdError
from pskd.workbench.data.text import TextData, load
from pskd.workbench.data.text.buckets import Buckets, padding_share
from pskd.workbench.data.text.numbers import number_words
from pskd.workbench.data.text.tokenizer import END, PAD, Tokenizer

GERMAN = ["Ein Hund läuft.", "Zwei Katzen schlafen.", "Drei Vögel fliegen hoch."]
ENGLISH = ["A dog runs.", "Two cats sleep.", "Three birds fly high."]


def write(folder: Path, stem: str, german: list[str] = GERMAN, english: list[str] = ENGLISH) -> None:
    for language, lines in (("de", german), ("en", english)):
        (folder / f"{stem}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def files(folder: Path, **settings: object) -> TextData:
    given: dict[str, Any] = {"name": "files", "root": str(folder), **settings}
    return load(**{"source": "de", "target": "en", **given})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for stem in ("train", "test"):
        write(tmp_path, stem)
    return tmp_path


def test_plain_and_packed_files_are_the_same(folder: Path) -> None:
    data = files(folder)
    assert (data.train.source, data.train.target) == (GERMAN, ENGLISH)
    assert data.val is None
    for file in list(folder.iterdir()):
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert files(folder) == data
    write(folder, "val")
    back = files(folder, source="en", target="de", pairs=2)
    assert back.val is not None
    assert (back.train.source, back.val.target) == (ENGLISH[:2], GERMAN)


def test_multi30k_has_its_own_test_set(tmp_path: Path) -> None:
    (tmp_path / "multi30k").mkdir()
    for stem in ("train", "val", "test_2016_flickr", "test_2018_flickr"):
        write(tmp_path / "multi30k", stem, [stem] * 2, ["x"] * 2)
    data = files(tmp_path, name="multi30k")
    assert data.test.source == ["test_2016_flickr"] * 2
    assert files(tmp_path, name="multi30k", test="test_2018_flickr").test.source == ["test_2018_flickr"] * 2


def test_bad_pairs_are_refused_with_their_lines_or_skipped_and_counted(folder: Path) -> None:
    write(folder, "train", [*GERMAN, "", "gut", "  "], [*ENGLISH, "nothing", "good", ""])
    (folder / "train.en").write_bytes((folder / "train.en").read_bytes().replace(b"Two", b"\xff\xfe"))
    with pytest.raises(PskdError, match=r"train\.de and \.en: 3 of 6 pairs are bad \(.*lines 2, 4, 6\).*on_bad=skip"):
        files(folder)
    train = files(folder, on_bad="skip").train
    assert train.source == [GERMAN[0], GERMAN[2], "gut"]
    assert train.lines == [1, 3, 5]
    assert train.dropped == {"empty": 2, "not UTF-8": 1}
    assert train.note is not None
    assert "3 bad pairs left out" in train.note


@pytest.mark.parametrize(
    ("contents", "settings", "message"),
    [
        ({"train.en": b"one\n"}, {}, "has 3 lines and 'train.en' 1: line n of one must be"),
        ({"train.en": b"one\n"}, {"on_bad": "skip"}, "has 3 lines and 'train.en' 1"),
        ({"train.de": None, "train.de.gz": b"\x1f\x8bnonsense"}, {}, "cannot read"),
        ({"test.en": None}, {}, "cannot read"),
        ({"train.de": b""}, {}, "has 0 lines"),
        ({"train.de": b"", "train.en": b""}, {}, "is empty"),
        ({"test.de": b"\n", "test.en": b"\n"}, {"on_bad": "skip"}, "no pair is left"),
        ({}, {"target": "de"}, "both 'de'"),
        ({}, {"root": "nowhere"}, "there is no such folder"),
        ({}, {"root": None}, "needs data.root"),
        ({}, {"name": "iwslt"}, "train.tags.de-en.de"),
        ({}, {"name": "numbers", "root": None, "source": "xx"}, "no language 'xx': take de or en"),
    ],
)
def test_each_mistake_is_one_line(
    folder: Path, contents: dict[str, bytes | None], settings: dict[str, object], message: str
) -> None:
    for name, content in contents.items():
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content)
    with pytest.raises(PskdError, match=re.escape(message)) as caught:
        files(folder, **settings)
    assert "\n" not in str(caught.value)


def test_iwslt_as_published(tmp_path: Path) -> None:
    """Tags without a sentence are no pairs; every 23rd pair is held out; six sets are one test set."""
    for language, only in (("de", "<translator>Anna</translator>\n"), ("en", "")):
        talk = f"<url>u</url>\n<keywords>k</keywords>\n{only}<title>t {language}</title>\n"
        body = "".join(f" s{n} {language} \n" for n in range(45))
        (tmp_path / f"train.tags.en-de.{language}").write_text(talk + body)
        for name in ("17.TED.dev2010", "16.TEDX.dev2012", *(f"17.TED.tst{year}" for year in range(2010, 2014))):
            doc = (
                f'<doc>\n<title>no</title>\n<seg id="1"> {name} &amp; {language} </seg>\n<seg id="2">b</seg>\n</doc>\n'
            )
            (tmp_path / f"IWSLT{name}.en-de.{language}.xml").write_text(f"<mteval>\n{doc}{doc}</mteval>")
    data = files(tmp_path, name="iwslt")
    assert data.val is not None
    assert [len(split) for split in (data.train, data.val, data.test)] == [44, 2, 24]
    assert (data.train.source[:2], data.train.target[0]) == (["t de", "s0 de"], "t en")
    assert data.val.target == ["s21 en", "s44 en"]
    assert data.test.source[0] == "17.TED.dev2010 & de"
    assert (data.train.lines[0], data.train.lines[1]) == (4, 5)
    (tmp_path / "IWSLT17.TED.tst2012.en-de.de.xml").write_text('<seg id="1">a</seg>')
    with pytest.raises(PskdError, match="number other sentences"):
        files(tmp_path, name="iwslt")


def test_number_words() -> None:
    """As num2words 0.5 writes them, which agreed for all of 0 to 999,999."""
    words = {
        0: ("null", "zero"),
        1: ("eins", "one"),
        16: ("sechzehn", "sixteen"),
        21: ("einundzwanzig", "twenty-one"),
        90: ("neunzig", "ninety"),
        101: ("einhunderteins", "one hundred and one"),
        340: ("dreihundertvierzig", "three hundred and forty"),
        1000: ("eintausend", "one thousand"),
        1100: ("eintausendeinhundert", "one thousand, one hundred"),
        13_004: ("dreizehntausendvier", "thirteen thousand and four"),
        61_099: ("einundsechzigtausendneunundneunzig", "sixty-one thousand and ninety-nine"),
        101_500: ("einhunderteinstausendfünfhundert", "one hundred and one thousand, five hundred"),
    }
    assert {number: (number_words(number, "de"), number_words(number, "en")) for number in words} == words


def test_the_words_of_the_numbers_are_those_of_earlier_versions() -> None:
    data = files(Path(), name="numbers", root=None)
    texts = [*data.train.source, *data.train.target, *data.test.source, *data.test.target]
    assert hashlib.blake2b("\n".join(texts).encode(), digest_size=8).hexdigest() == "e4fa8315b022cd55"
    first = files(Path(), name="numbers", root=None, pairs=300)
    assert (first.train.source, len(first.test)) == (data.train.source[:300], 500)
    assert all(" " not in text for text in data.train.source)


def test_numbers_are_drawn_by_length_and_short_ones_are_learnt() -> None:
    data = files(Path(), name="numbers", root=None)
    learnt, tested = data.train.lines, data.test.lines
    assert (len(learnt), len(tested), len({*tested})) == (8000, 500, 500)
    digits = Counter(len(str(number)) for number in learnt)
    assert set(digits) == {1, 2, 3, 4, 5, 6}
    assert max(digits.values()) < 1.3 * min(digits.values())  # of three digits, one in seven is kept for the test
    assert set(range(100)) <= {*learnt}
    assert {first * 10**zeros for first in range(1, 10) for zeros in range(5)} <= {*learnt}  # the round ones
    assert {len(str(number)) for number in tested} == {3, 4, 5, 6}
    assert not {*learnt} & {*tested}


def test_the_tokenizer_gives_the_text_back_and_is_learnt_the_same_each_time() -> None:
    texts = GERMAN + ENGLISH
    tokenizer = Tokenizer.train(texts, 60)
    assert tokenizer.to_json() == Tokenizer.train(texts, 60).to_json()
    again = Tokenizer.from_json(tokenizer.to_json())
    sentences = again.encode(texts)
    tokens, real, index = sentences.batch(torch.arange(6))
    assert again.decode(tokens) == texts
    assert torch.equal(sentences.tokens[index[real]], tokens[real])
    assert torch.equal(index[real], torch.arange(int(sentences.lengths.sum())))  # each token has a row of its own
    assert bool((tokens[~real] == PAD).all())
    assert int((tokens == END).sum()) == 6
    assert sentences.lengths.max() > 5 == again.encode(texts, 5).lengths.max()
    some = sentences.subset(torch.tensor([4, 1]))
    assert again.decode(some.batch(torch.arange(2))[0]) == [texts[4], texts[1]]


@pytest.mark.parametrize("max_tokens", [64, 500])
def test_batches_hold_every_pair_once_and_never_too_many_tokens(max_tokens: int) -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(2, 50, (3000,), generator=generator)
    source = (target + torch.randint(-5, 6, (3000,), generator=generator)).clamp_min(1)
    buckets = Buckets(source, target, max_tokens)
    epochs = [buckets.batches(seed=3, epoch=epoch) for epoch in range(3)]
    for batches in epochs:
        assert len(batches) == len(buckets)
        assert torch.equal(torch.cat(batches).sort().values, torch.arange(3000))
        sizes = [len(batch) * int(torch.maximum(source[batch], target[batch]).max()) for batch in batches]
        assert max(sizes) <= max_tokens
        assert padding_share(batches, source, target) < 0.1
    assert all(torch.equal(a, b) for a, b in zip(epochs[1], buckets.batches(3, 1), strict=True))
    together = [{frozenset(batch.tolist()) for batch in batches if len(batch) > 1} for batches in epochs[:2]]
    assert len(together[0] & together[1]) < 0.2 * len(together[0])  # other company in every epoch


def test_a_pair_that_is_longer_than_a_batch_stands_alone() -> None:
    lengths = torch.tensor([3, 100, 3])
    assert sorted(len(batch) for batch in Buckets(lengths, lengths, 10).batches(0, 0)) == [1, 2]


@pytest.mark.parametrize(("name", "sizes"), [("multi30k", (29000, 1014, 1000)), ("iwslt", None)])
def test_the_real_files(real_data: Path, name: str, sizes: tuple[int, int, int] | None, tmp_path: Path) -> None:
    root = real_data / name
    if not root.is_dir():
        pytest.skip(f"{name} is not among the real data")
    if sizes is None:  # the training text cannot be had: a few lines stand in for it
        for file in root.glob("*.xml"):
            (tmp_path / file.name).symlink_to(file)
        for language in ("de", "en"):
            (tmp_path / f"train.tags.de-en.{language}").write_text("a\n" * 23)
        root = tmp_path
    data = files(root, name=name)
    assert data.val is not None
    if sizes is not None:
        assert (len(data.train), len(data.val), len(data.test)) == sizes
    else:
        assert len(data.test) > 7000
        assert not data.test.dropped
