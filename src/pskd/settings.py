"""How a class or a function declares its settings: once, as typed keywords.

The annotation of a keyword says what is allowed (``Share``, ``Positive``, a ``Literal``). Constructors check their
arguments against it, and the command line reads its settings from it.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from numbers import Integral, Real
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pskd.errors import PskdError


@dataclass(frozen=True)
class Range:
    """Bounds of a number, as ``Annotated`` metadata: ge, gt, le, lt mean >=, >, <=, <. The number must be finite."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def check(self, name: str, value: Any, kind: type = float) -> None:
        """Raise a PskdError of one line where the value is not a number of this kind within the bounds."""
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if kind is int and not (is_number and isinstance(value, Integral)):
            raise PskdError(f"{name} must be a whole number, got {_short(value)}")
        if not (is_number and self._contains(value)):
            raise PskdError(f"{name} must {self}, got {_short(value)}")

    def _contains(self, value: Any) -> bool:
        return bool(
            -math.inf < value < math.inf
            and (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )

    def __str__(self) -> str:
        low = self.ge if self.gt is None else self.gt
        high = self.le if self.lt is None else self.lt
        if low is not None and high is not None:
            return f"lie in {'[' if self.gt is None else '('}{low}, {high}{']' if self.lt is None else ')'}"
        if low == 0:
            return "be a positive number" if self.gt == 0 else "be 0 or a positive number"
        if low is not None:
            return f"be {'at least' if self.gt is None else 'more than'} {low}"
        if high is not None:
            return f"be {'at most' if self.lt is None else 'less than'} {high}"
        return "be a finite number"

    def __get_pydantic_core_schema__(self, kind: Any, handler: Callable[[Any], Any]) -> Any:
        """How pydantic reads a number with these bounds. Only the command line has pydantic."""
        from pydantic_core import core_schema

        def read(value: Any, convert: Callable[[Any], Any]) -> Any:
            if isinstance(value, bool):
                raise ValueError("must be a number, not true or false")
            number = convert(value)
            if number is not None and not self._contains(number):
                raise ValueError(f"must {self}")
            return number

        return core_schema.no_info_wrap_validator_function(read, handler(kind))


Share = Annotated[float, Range(ge=0, le=1)]
Positive = Annotated[float, Range(gt=0)]
NotNegative = Annotated[float, Range(ge=0)]
Count = Annotated[int, Range(ge=1), Range(lt=2**31)]


@dataclass(frozen=True)
class Place:
    """Marks a setting that says only where a folder or a file is: it may change when a run is resumed."""

    written: bool = False  # a file that a run writes, not one that it reads


@dataclass(frozen=True)
class How:
    """Marks a setting that says only how a run is made, not what comes out of it."""


@dataclass(frozen=True)
class Setting:
    """One setting: its type with all metadata, and its default (None where it is required)."""

    name: str
    annotation: Any
    default: Any
    required: bool


def settings_of(declared: Callable[..., Any], leave_out: Collection[str] = ()) -> dict[str, Setting]:
    """The settings that a class or a function declares by its keywords, in order.

    Function types in an annotation are left out, since a function cannot be written in a file.
    """
    return {
        each.name: replace(each, annotation=_without_functions(each.annotation))
        for each in _keywords(declared)
        if each.name not in leave_out
    }


def check_arguments(declared: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Raise where a value is outside its declared range or choices; names that are not declared are ignored.

    A constructor calls it in its first line: ``check_arguments(Bank.__init__, locals())``.
    """
    for each in _keywords(declared):
        if each.name in values:
            _check(each.name, each.annotation, values[each.name])


_KINDS = {bool: "true, false", int: "must be a whole number", float: "must be a number"}


def allowed(annotation: Any) -> str:
    """What a setting of this type may be, in words: "must lie in [0, 1], or auto"."""
    words = []
    for kind, metadata in alternatives(annotation):
        ranges = [f"must {part}" for part in metadata if isinstance(part, Range)]
        if get_origin(kind) is Literal:
            words.append(", ".join(map(str, get_args(kind))))
        elif kind is not NoneType:
            words += ranges[:1] or [_KINDS.get(kind, "")]
    return ", or ".join(filter(None, words))


def alternatives(annotation: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """The types of a union, each with its ``Annotated`` metadata; metadata of the whole union holds for each type."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        return [(kind, (*own, *metadata)) for kind, own in alternatives(inner)]
    if get_origin(annotation) in (Union, UnionType):
        return [alternative for kind in get_args(annotation) for alternative in alternatives(kind)]
    return [(annotation, ())]


def described(thing: Any) -> str:
    """A thing as its constructor would be called, from its attributes of the same names, without what is None or 0."""
    parts = []
    for name, parameter in inspect.signature(type(thing)).parameters.items():
        value = getattr(thing, name, getattr(thing, f"_{name}", None))
        shown = _short(value)
        if shown not in ("None", "False", "0", "0.0") and not (name == "reduction" and value == parameter.default):
            parts.append(f"{name}={shown}")
    return f"{type(thing).__name__}({', '.join(parts)})"


def nearest(name: str, names: Collection[str]) -> str:
    """ "; did you mean ...?" with the most similar of these names, or nothing where none is similar."""
    matches = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _short(value: Any) -> str:
    """A value in one line."""
    if isinstance(value, partial):
        given = [*map(repr, value.args), *(f"{name}={each!r}" for name, each in value.keywords.items())]
        return f"{_short(value.func)}({', '.join(given)})"
    if inspect.isfunction(value):
        return value.__name__
    # A number of numpy, and a type or a device of torch.
    if isinstance(value, Real) or (type(value).__module__ == "torch" and not hasattr(value, "shape")):
        return str(value)
    if hasattr(value, "named_parameters"):  # a network, whose own text has many lines
        return type(value).__name__
    return f"{type(value).__name__}{tuple(value.shape)}" if getattr(value, "shape", ()) else repr(value)


def _check(name: str, annotation: Any, value: Any) -> None:
    kinds = alternatives(annotation)
    choices = [choice for kind, _ in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if value is None and any(kind is NoneType for kind, _ in kinds):
        return
    if isinstance(value, str | int) and value in choices:
        return
    if choices and (isinstance(value, str) or len(kinds) == 1):
        hint = nearest(value, [str(choice) for choice in choices]) if isinstance(value, str) else ""
        raise PskdError(f"{name} is {value!r}; allowed are {', '.join(map(str, choices))}{hint}")
    for kind, metadata in kinds:
        for part in metadata:
            if isinstance(part, Range):
                part.check(name, value, kind)


def _without_functions(annotation: Any) -> Any:
    """A union without its function types."""
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    return reduce(or_, [kind for kind in get_args(annotation) if Callable not in (kind, get_origin(kind))])


def _keywords(declared: Callable[..., Any]) -> Iterator[Setting]:
    """Each keyword that has a name of its own, with its resolved annotation."""
    function = declared.__init__ if inspect.isclass(declared) else declared
    if function is object.__init__:
        return
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        where = function.__qualname__
        raise PskdError(f"{where}: its types cannot be read ({error}); import them at run time") from error
    for name, parameter in inspect.signature(function).parameters.items():
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if named and name not in ("self", "cls"):
            required = parameter.default is parameter.empty
            yield Setting(name, hints.get(name, Any), None if required else parameter.default, required)
