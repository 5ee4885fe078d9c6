"""Settings are declared once, by typed keywords: what is read from them, and what their checks say."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest

from pskd.errors import PskdError
from pskd.settings import Count, How, NotNegative, Place, Positive, Range, Setting, Share, check_arguments, settings_of

Colour = Literal["red", "green"]


class Base:
    """A base.

    Args:
        size: of the thing.
        colour: as the base has it.
    """

    def __init__(self, size: Count, colour: Colour | Callable[[int], str] = "red") -> None:
        check_arguments(Base.__init__, locals())


class Own(Base):
    """One more.

    Args:
        alpha, beta: two shares: of one
            and of the other.
        colour: its colour.

    Cost: none: nothing at all.
    """

    def __init__(self, alpha: Share = 0.5, *rest: int, beta: Share | None = None, **more: Any) -> None:
        check_arguments(Own.__init__, locals())
        super().__init__(**more)

    @classmethod
    def made(cls, around: int, folder: Annotated[str | None, Place()] = None, alpha: Positive = 2.0) -> None:
        """From a file.

        Args:
            folder: where.
        """


def plain(workers: Annotated[int, How(), Range(ge=0, lt=8)] = 0, untyped=None) -> None:
    """No arguments are described."""


def test_settings_are_read_from_keywords() -> None:
    assert settings_of(Base) == settings_of(Base.__init__) == {
        "size": Setting("size", Count, None, True, "of the thing."),
        "colour": Setting("colour", Colour, "red", False, "as the base has it."),
    }  # fmt: skip
    assert settings_of(Own) == {
        "alpha": Setting("alpha", Share, 0.5, False, "two shares: of one and of the other."),
        "beta": Setting("beta", Share | None, None, False, "two shares: of one and of the other."),
    }
    assert settings_of(plain) == {
        "workers": Setting("workers", Annotated[int, How(), Range(ge=0, lt=8)], 0, False, ""),
        "untyped": Setting("untyped", Any, None, False, ""),
    }
    assert settings_of(object) == {}


def test_the_first_of_several_declarations_counts() -> None:
    settings = settings_of(Own.made, Own, leave_out=("around", "beta"))
    assert list(settings) == ["folder", "alpha"]
    assert settings["alpha"].annotation == Positive
    assert settings["alpha"].doc == "two shares: of one and of the other."  # the class's, the method has none
    assert settings["folder"].doc == "where."


@pytest.mark.parametrize(
    ("kind", "good", "bad", "message"),
    [
        (Share, [0, 1, 0.5], [-0.1, 2, math.nan], "x must lie in [0, 1], got "),
        (Positive, [1e-9, 7], [0, -1, math.inf, math.nan], "x must be a positive number, got "),
        (NotNegative, [0, 7.5], [-1e-9, math.inf, math.nan], "x must be 0 or a positive number, got "),
        (Count, [1, 10**400], [0, -3], "x must be at least 1, got "),
        (Annotated[float, Range(gt=0, lt=1)], [0.5], [0, 1], "x must lie in (0, 1), got "),
        (Annotated[float, Range(ge=0, lt=1)], [0], [1], "x must lie in [0, 1), got "),
        (Annotated[float, Range(gt=2)], [3], [2], "x must be more than 2, got "),
        (Annotated[float, Range(le=2)], [2, -9], [3, -math.inf], "x must be at most 2, got "),
        (Annotated[float, Range(lt=2)], [1], [2], "x must be less than 2, got "),
        (Annotated[float, Range()], [1], [math.nan], "x must be a finite number, got "),
        (Share | None, [None, 0.5], [2], "x must lie in [0, 1], got "),
        (Annotated[float | None, Range(ge=0, le=1)], [None, 0.5], [2], "x must lie in [0, 1], got "),
        (Share, [], ["0.5", None], "x must lie in [0, 1], got "),
    ],
)
def test_ranges(kind: Any, good: list[Any], bad: list[Any], message: str) -> None:
    settings = {"x": Setting("x", kind, None, True, "")}
    for value in good:
        check_arguments(settings, {"x": value})
    for value in bad:
        with pytest.raises(PskdError, match=re.escape(f"{message}{value}")) as caught:
            check_arguments(settings, {"x": value})
        assert "\n" not in str(caught.value)


def test_choices() -> None:
    Base(1, "green")
    Base(1, lambda number: str(number))
    with pytest.raises(PskdError, match=re.escape("colour is 'gren'; allowed are red, green; did you mean green?")):
        Base(1, "gren")  # type: ignore[arg-type]
    with pytest.raises(PskdError, match=r"colour is 'x'; allowed are red, green$"):
        Base(1, "x")  # type: ignore[arg-type]
    with pytest.raises(PskdError, match=r"colour is 3; allowed are red, green$"):
        check_arguments(settings_of(Base), {"colour": 3, "unknown": 7})
    with pytest.raises(PskdError, match="size must be at least 1, got 0"):
        Own(size=0)
    assert Range(ge=1).check("size", 3) == 3


def test_types_that_cannot_be_read_are_named() -> None:
    def strange(x: Unknown) -> None:  # type: ignore[name-defined] # noqa: F821
        pass

    with pytest.raises(PskdError, match="strange: its types cannot be read"):
        settings_of(strange)
