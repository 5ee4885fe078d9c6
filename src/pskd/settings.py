"""How a class or a function declares its settings: once, by its typed keywords.

A keyword's annotation says what is allowed (``Share``, ``Positive``, a ``Literal``), its default what is usual, and the
line of the docstring's "Args:" what it is for. Constructors check with the very declaration, and the command line reads
its settings from it.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pskd.errors import PskdError


@dataclass(frozen=True)
class Range:
    """Numbers that are allowed, as ``Annotated`` metadata: ge, gt, le, lt mean >=, >, <=, <. All are finite."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def check(self, name: str, value: Any) -> Any:
        """The value, or a PskdError of one line that says what is allowed."""
        try:
            inside = (
                -math.inf < value < math.inf
                and (self.ge is None or value >= self.ge)
                and (self.gt is None or value > self.gt)
                and (self.le is None or value <= self.le)
                and (self.lt is None or value < self.lt)
            )
        except TypeError:
            inside = False
        if not inside:
            raise PskdError(f"{name} must {self}, got {value}")
        return value

    def __str__(self) -> str:
        low = self.ge if self.gt is None else self.gt
        high = self.le if self.lt is None else self.lt
        if low is not None and high is not None:
            return f"lie in {'[' if self.gt is None else '('}{low:g}, {high:g}{']' if self.lt is None else ')'}"
        if low == 0:
            return "be a positive number" if self.gt == 0 else "be 0 or a positive number"
        if low is not None:
            return f"be {'at least' if self.gt is None else 'more than'} {low:g}"
        if high is not None:
            return f"be {'at most' if self.lt is None else 'less than'} {high:g}"
        return "be a finite number"


Share = Annotated[float, Range(ge=0, le=1)]
Positive = Annotated[float, Range(gt=0)]
NotNegative = Annotated[float, Range(ge=0)]
Count = Annotated[int, Range(ge=1)]


@dataclass(frozen=True)
class Place:
    """Marks a setting that says only where something is, a folder or a file: it may change when a run is resumed."""

    written: bool = False  # a file that a run writes, not one that it reads


@dataclass(frozen=True)
class How:
    """Marks a setting that says only how a run is made, not what comes out of it."""


@dataclass(frozen=True)
class Setting:
    """One setting: its type with all metadata, its default (None where it is required), and what it is for."""

    name: str
    annotation: Any
    default: Any
    required: bool
    doc: str


def settings_of(*callables: Callable[..., Any], leave_out: Collection[str] = ()) -> dict[str, Setting]:
    """The settings that classes and functions declare by their keywords, in order; of one name, the first counts.

    Functions among the types of an annotation are left out: a setting is something that can be written in a file.
    """
    found: dict[str, Setting] = {}
    for each in callables:
        docs = _documented(each)
        for name, annotation, parameter in _keywords(each):
            if name in found or name in leave_out:
                continue
            required = parameter.default is parameter.empty
            default = None if required else parameter.default
            found[name] = Setting(name, _without_functions(annotation), default, required, docs.get(name, ""))
    return found


def check_arguments(declared: Callable[..., Any] | Mapping[str, Setting], values: Mapping[str, Any]) -> None:
    """Raise where a value is outside of its declared range or choice; names that are not declared are passed over.

    The one line of a constructor: ``check_arguments(Bank.__init__, locals())``.
    """
    if isinstance(declared, Mapping):
        annotations = {name: setting.annotation for name, setting in declared.items()}
    else:
        annotations = {name: annotation for name, annotation, _ in _keywords(declared)}
    for name, annotation in annotations.items():
        if name in values:
            _check(name, annotation, values[name])


def described(thing: Any) -> str:
    """A thing as its constructor would be called, from its attributes of the same names, without what is None or 0."""
    parts = []
    for name, parameter in inspect.signature(type(thing)).parameters.items():
        value = getattr(thing, name, getattr(thing, f"_{name}", None))
        shown = _short(value)
        if shown not in ("None", "False", "0", "0.0") and not (name == "reduction" and value == parameter.default):
            parts.append(f"{name}={shown}")
    return f"{type(thing).__name__}({', '.join(parts)})"


def _short(value: Any) -> str:
    if isinstance(value, partial):
        given = [*map(repr, value.args), *(f"{name}={each!r}" for name, each in value.keywords.items())]
        return f"{_short(value.func)}({', '.join(given)})"
    if inspect.isfunction(value):
        return value.__name__
    if type(value).__module__ == "torch" and not hasattr(value, "shape"):  # a type or a device
        return str(value)
    if hasattr(value, "named_parameters"):  # a network, whose own text has many lines
        return type(value).__name__
    return f"{type(value).__name__}{tuple(value.shape)}" if hasattr(value, "shape") else repr(value)


def nearest(name: str, allowed: Collection[str]) -> str:
    """ "; did you mean ...?" with the most similar of the allowed names, or nothing where none is."""
    matches = difflib.get_close_matches(name, list(allowed), 1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _check(name: str, annotation: Any, value: Any) -> None:
    kinds = _alternatives(annotation)
    if value is None and any(kind is NoneType for kind, _ in kinds):
        return
    choices = [choice for kind, _ in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices and value not in choices and (isinstance(value, str) or len(kinds) == 1):
        hint = nearest(value, [str(choice) for choice in choices]) if isinstance(value, str) else ""
        raise PskdError(f"{name} is {value!r}; allowed are {', '.join(map(str, choices))}{hint}")
    if value in choices:
        return
    for _, metadata in kinds:
        for part in metadata:
            if isinstance(part, Range):
                part.check(name, value)


def _alternatives(annotation: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """The types of a union, each with its ``Annotated`` metadata; what is said of the union holds for each."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        return [(kind, (*own, *metadata)) for kind, own in _alternatives(inner)]
    if get_origin(annotation) in (Union, UnionType):
        return [found for kind in get_args(annotation) for found in _alternatives(kind)]
    return [(annotation, ())]


def _without_functions(annotation: Any) -> Any:
    """A union without the functions among its types."""
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    written = [kind for kind in get_args(annotation) if get_origin(kind) is not Callable and kind is not Callable]
    return reduce(or_, written) if len(written) < len(get_args(annotation)) else annotation


def _keywords(declared: Callable[..., Any]) -> Iterator[tuple[str, Any, inspect.Parameter]]:
    """Name, resolved annotation and parameter of each keyword that has a name of its own."""
    made = declared.__init__ if inspect.isclass(declared) else declared
    if made is object.__init__:
        return
    try:
        hints = get_type_hints(made, include_extras=True)
    except NameError as error:
        raise PskdError(f"{made.__qualname__}: its types cannot be read ({error}); import them at run time") from error
    for name, parameter in inspect.signature(made).parameters.items():
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if named and name not in ("self", "cls"):
            yield name, hints.get(name, Any), parameter


def _documented(declared: Callable[..., Any]) -> dict[str, str]:
    """What the "Args:" of a callable's docstring, or of its class's, say of each name."""
    owner = declared if inspect.isclass(declared) else getattr(declared, "__self__", None)
    if owner is None and declared.__qualname__.endswith(".__init__"):
        owner = inspect.getmodule(declared)
        for name in declared.__qualname__.split(".")[:-1]:
            owner = getattr(owner, name, None)
    family = reversed(owner.__mro__) if inspect.isclass(owner) else ()
    docs: dict[str, str] = {}
    for each in (*family, declared):
        docs |= _arguments_section(each.__doc__ or "")
    return docs


def _arguments_section(docstring: str) -> dict[str, str]:
    lines = inspect.cleandoc(docstring).splitlines()
    if "Args:" not in lines:
        return {}
    docs: dict[str, str] = {}
    names: list[str] = []
    margin = ""
    for line in lines[lines.index("Args:") + 1 :]:
        if line.strip() and not line.startswith(" "):
            break
        entry = re.match(r"( +)(\w+(?:, \w+)*): *(.*)", line)
        if entry and entry[1] == (margin := margin or entry[1]):
            names = entry[2].split(", ")
            docs.update(dict.fromkeys(names, entry[3]))
        elif line.strip():
            docs.update({name: f"{docs[name]} {line.strip()}".strip() for name in names})
    return docs
