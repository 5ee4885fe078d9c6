"""Settings are declared once, as typed keywords: what is read from them, and what their checks say."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from pskd.errors import PskdError
from pskd.settings import (
    Count,
    How,
    NotNegative,
    Place,
    Positive,
    Range,
    Setting,
    Share,
    allowed,
    check_arguments,
    settings_of,
)

Colour = Literal["red", "green"]


class Base:
    def __init__(self, size: Count, colour: Colour | Callable[[int], str] = "red") -> None:
        check_arguments(Base.__init__, locals())


class Own(Base):
    def __init__(self, alpha: Share = 0.5, *rest: int, beta: Share | None = None, **more: Any) -> None:
        check_arguments(Own.__init__, locals())
        super().__init__(**more)

    @classmethod
    def load(cls, around: int, folder: Annotated[str | None, Place()] = None, alpha: Positive = 2.0) -> None: ...


def plain(workers: Annotated[int, How(), Range(ge=0, lt=8)] = 0, untyped=None) -> None: ...


def check(kind: Any, value: Any) -> None:
    def declared(x: Any) -> None: ...

    declared.__annotations__["x"] = kind
    check_arguments(declared, {"x": value})


def test_settings_are_read_from_keywords() -> None:
    assert settings_of(Base) == settings_of(Base.__init__) == {
        "size": Setting("size", Count, None, True),
        "colour": Setting("colour", Colour, "red", False),
    }  # fmt: skip
    assert settings_of(Own) == {
        "alpha": Setting("alpha", Share, 0.5, False),
        "beta": Setting("beta", Share | None, None, False),
    }
    assert settings_of(plain) == {
        "workers": Setting("workers", Annotated[int, How(), Range(ge=0, lt=8)], 0, False),
        "untyped": Setting("untyped", Any, None, False),
    }
    assert settings_of(object) == {}
    assert list(settings_of(Own.load, leave_out=("around",))) == ["folder", "alpha"]


WHOLE = "x must be a whole number, got "
SHARE = "x must lie in [0, 1], got "
NUMBERS = [
    (Share, [0, 1, 0.5, np.float32(0.5), np.int64(1)], [-0.1, 2, math.nan, True, np.float64(2)], SHARE),
    (Positive, [1e-9, 7], [0, -1, math.inf, math.nan, False], "x must be a positive number, got "),
    (NotNegative, [0, 7.5], [-1e-9, math.inf, math.nan, True], "x must be 0 or a positive number, got "),
    (Count, [1, 2**31 - 1, np.int64(3), np.uint8(1)], [0, -3, np.int64(0)], "x must be at least 1, got "),
    (Count, [], [2**31, 10**400], "x must be less than 2147483648, got "),
    (Count, [], [1.5, True, np.float64(1.5)], WHOLE),
    (Annotated[int | None, Range(ge=0)], [None, 0], [1.5, False], WHOLE),
    (Annotated[float, Range(gt=0, lt=1)], [0.5], [0, 1], "x must lie in (0, 1), got "),
    (Annotated[float, Range(ge=0, lt=1)], [0], [1], "x must lie in [0, 1), got "),
    (Annotated[float, Range(gt=2)], [3], [2], "x must be more than 2, got "),
    (Annotated[float, Range(le=2)], [2, -9], [3, -math.inf], "x must be at most 2, got "),
    (Annotated[float, Range(lt=2)], [1], [2], "x must be less than 2, got "),
    (Annotated[float, Range()], [1], [math.nan], "x must be a finite number, got "),
    (Share | None, [None, 0.5], [2], SHARE),
    (Annotated[float | None, Range(ge=0, le=1)], [None, 0.5], [2], SHARE),
]


@pytest.mark.parametrize(("kind", "good", "bad", "message"), NUMBERS)
def test_ranges(kind: Any, good: list[Any], bad: list[Any], message: str) -> None:
    for value in good:
        check(kind, value)
    for value in bad:
        with pytest.raises(PskdError, match=f"^{re.escape(f'{message}{value}')}$"):
            check(kind, value)


@pytest.mark.parametrize(("kind", "good", "bad", "message"), NUMBERS)
def test_pydantic_reads_the_same_ranges(kind: Any, good: list[Any], bad: list[Any], message: str) -> None:
    adapter = TypeAdapter(kind)
    for value in good:
        if not isinstance(value, np.generic):  # the command line has plain numbers only
            assert adapter.validate_python(value) == value
    for value in bad:
        with pytest.raises(ValidationError) as caught:
            adapter.validate_python(value)
        expected = message.removeprefix("x ").removesuffix(", got ")
        if not isinstance(value, bool | float | np.generic) and abs(value) < 2**63:
            assert f"Value error, {expected}" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Share, "0.5", f"{SHARE}'0.5'"),
        (Share, None, f"{SHARE}None"),
        (Share, np.bool_(True), f"{SHARE}{np.bool_(True)!r}"),
        (Share, np.ones(2), f"{SHARE}ndarray(2,)"),
        (Share | Literal["auto"], np.ones((2, 3)), f"{SHARE}ndarray(2, 3)"),
        (Share, torch.tensor(0.5), f"{SHARE}tensor(0.5000)"),
        (Count, "3", f"{WHOLE}'3'"),
        (Count, None, f"{WHOLE}None"),
        (Count, np.ones((40, 40)), f"{WHOLE}ndarray(40, 40)"),
    ],
)
def test_what_is_no_number_is_refused_in_one_line(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(PskdError, match=f"^{re.escape(message)}$"):
        check(kind, value)


def test_choices() -> None:
    Base(1, "green")
    Base(1, lambda number: str(number))
    with pytest.raises(PskdError, match=re.escape("colour is 'gren'; allowed are red, green; did you mean green?")):
        Base(1, "gren")  # type: ignore[arg-type]
    with pytest.raises(PskdError, match=r"colour is 'x'; allowed are red, green$"):
        Base(1, "x")  # type: ignore[arg-type]
    with pytest.raises(PskdError, match=r"x is 3; allowed are red, green$"):
        check(Colour, 3)
    check(Share | Literal["auto"], "auto")
    check_arguments(Base.__init__, {"unknown": 7})
    with pytest.raises(PskdError, match="size must be at least 1, got 0"):
        Own(size=0)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Share | Literal["auto"] | None, "must lie in [0, 1], or auto"),
        (Annotated[Count | None, How()], "must be at least 1"),
        (Colour, "red, green"),
        (bool | None, "true, false"),
        (int, "must be a whole number"),
        (float, "must be a number"),
        (str | None, ""),
    ],
)
def test_what_is_allowed_in_words(kind: Any, words: str) -> None:
    assert allowed(kind) == words


def test_types_that_cannot_be_read_are_named() -> None:
    def strange(x: Unknown) -> None:  # type: ignore[name-defined] # noqa: F821
        pass

    with pytest.raises(PskdError, match="strange: its types cannot be read"):
        settings_of(strange)
