"""Number words of two languages, made by num2words: nothing to download."""

from __future__ import annotations

import random

from pskd.errors import PskdError
from pskd.workbench import registry
from pskd.workbench.data.reason import check_no_place
from pskd.workbench.data.text.pairs import Pairs, TextData

_TRAIN_NUMBERS, _TEST_NUMBERS = 8_000, 500
_LENGTHS = ((0, 10), *((10**digits, 10 ** (digits + 1)) for digits in range(1, 6)))
_ROUND = 0.2  # share of numbers that end in zeros from some digit on


@registry.texts.register("numbers")
def load_numbers(root: str | None = None, *, source: str, target: str, pairs: int | None = None) -> TextData:
    """Words such as "dreizehntausendvier" and "thirteen thousand and four"; so many training ``pairs`` at most."""
    from num2words import num2words

    check_no_place("numbers", root)
    train, test = _drawn()

    def read(numbers: list[int]) -> Pairs:
        try:
            words = [[num2words(number, lang=language) for number in numbers] for language in (source, target)]
        except NotImplementedError:
            raise PskdError(f"data=numbers: num2words does not know {source} or {target}") from None
        return Pairs("numbers", words[0], words[1], numbers)

    return TextData(read(train[:pairs]), read(test))


def _drawn() -> tuple[list[int], list[int]]:
    """The numbers to train on, some of them several times, and others to test on.

    Numbers are drawn by their length: evenly below a million, nine in ten would have six digits and hardly one would be
    round, and a model would not learn the others.
    """
    draw = random.Random(0)
    test: dict[int, None] = {}
    while len(test) < _TEST_NUMBERS:
        number = draw.randrange(*draw.choice(_LENGTHS[2:]))
        if str(number).strip("0")[1:]:  # not a word alone: it cannot be found out, so it is learnt
            test[number] = None
    train: list[int] = []
    while len(train) < _TRAIN_NUMBERS:
        number = draw.randrange(*draw.choice(_LENGTHS))
        if draw.random() < _ROUND:
            number -= number % 10 ** draw.randrange(len(str(number)))
        if number not in test:
            train.append(number)
    return train, list(test)
