"""German and English number words: nothing to download."""

from __future__ import annotations

import random

from pskd.errors import PskdError
from pskd.workbench import registry
from pskd.workbench.data.refusing import check_no_root
from pskd.workbench.data.text.pairs import Pairs, TextData

_TRAIN_NUMBERS, _TEST_NUMBERS = 8_000, 500
_LENGTHS = ((0, 10), *((10**digits, 10 ** (digits + 1)) for digits in range(1, 6)))
_ROUND = 0.2  # share of numbers that end in zeros from some digit on

_SMALL = {
    "de": "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn"
    " siebzehn achtzehn neunzehn",
    "en": "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    " seventeen eighteen nineteen",
}
_TENS = {
    "de": "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    "en": "twenty thirty forty fifty sixty seventy eighty ninety",
}
_UNITS = {"de": {1000: "tausend", 100: "hundert"}, "en": {1000: " thousand", 100: " hundred"}}


@registry.texts.register("numbers")
def load_numbers(root: str | None = None, *, source: str, target: str, pairs: int | None = None) -> TextData:
    """Words such as "dreizehntausendvier" and "thirteen thousand and four"; at most ``pairs`` training pairs."""
    check_no_root("numbers", root)
    for language in (source, target):
        if language not in _SMALL:
            raise PskdError(f"data=numbers has no language {language!r}: take {' or '.join(_SMALL)}")

    def write(numbers: list[int]) -> Pairs:
        first, second = ([number_words(number, language) for number in numbers] for language in (source, target))
        return Pairs("numbers", first, second, numbers)

    train, test = _draw_numbers()
    return TextData(write(train[:pairs]), write(test))


def number_words(number: int, language: str) -> str:
    """A number from 0 to 999,999 in words of ``de`` or ``en``."""
    german = language == "de"
    if number < 20:
        return _SMALL[language].split()[number]
    if number < 100:
        tens, ones = _TENS[language].split()[number // 10 - 2], number % 10
        if not ones:
            return tens
        text = "ein" if german and ones == 1 else number_words(ones, language)
        return f"{text}und{tens}" if german else f"{tens}-{text}"
    unit = 1000 if number >= 1000 else 100
    count, rest = divmod(number, unit)
    text = ("ein" if german and count == 1 else number_words(count, language)) + _UNITS[language][unit]
    if not rest:
        return text
    between = "" if german else " and " if rest < 100 else ", "
    return text + between + number_words(rest, language)


def _draw_numbers() -> tuple[list[int], list[int]]:
    """The numbers to train on, some of them several times, and others to test on.

    The length of a number is drawn first. Drawn evenly below a million, nine in ten would have six digits and hardly
    one would be round, so a model would not learn the others.
    """
    draw = random.Random(0)
    test: dict[int, None] = {}
    while len(test) < _TEST_NUMBERS:
        number = draw.randrange(*draw.choice(_LENGTHS[2:]))
        if str(number).strip("0")[
            1:
        ]:  # more than one digit and zeros: such words cannot be guessed, so they are learnt
            test[number] = None
    train: list[int] = []
    while len(train) < _TRAIN_NUMBERS:
        number = draw.randrange(*draw.choice(_LENGTHS))
        if draw.random() < _ROUND:
            number -= number % 10 ** draw.randrange(len(str(number)))
        if number not in test:
            train.append(number)
    return train, list(test)
