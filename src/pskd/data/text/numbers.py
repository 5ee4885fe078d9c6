"""Number words of two languages, made by num2words: nothing to download."""

from __future__ import annotations

import random

from pskd import registry
from pskd.data.text.pairs import Pairs, TextData
from pskd.errors import PskdError

# All distinct, so that the test set is new to the model.
_NUMBERS, _TRAIN_NUMBERS, _TEST_NUMBERS = 1_000_000, 8_000, 500


@registry.texts.register("numbers")
def load_numbers(root: str | None = None, *, source: str, target: str, pairs: int | None = None) -> TextData:
    """Words such as "dreizehntausendvier" and "thirteen thousand and four"; so many training ``pairs`` at most."""
    from num2words import num2words

    count = min(pairs or _TRAIN_NUMBERS, _TRAIN_NUMBERS)
    chosen = random.Random(0).sample(range(_NUMBERS), _TRAIN_NUMBERS + _TEST_NUMBERS)

    def read(numbers: list[int]) -> Pairs:
        try:
            words = [[num2words(number, lang=language) for number in numbers] for language in (source, target)]
        except NotImplementedError:
            raise PskdError(f"data=numbers: num2words does not know {source} or {target}") from None
        return Pairs("numbers", words[0], words[1], numbers)

    return TextData(read(chosen[:count]), read(chosen[_TRAIN_NUMBERS:]))
