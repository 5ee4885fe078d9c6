"""`key=...` on a command line: one value, a list of values, or a range of numbers."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pskd.errors import PskdError
from pskd.workbench.config import parse_value

MOST_CELLS = 10_000  # of a study, and so the most values of a range
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
STEPS = re.compile(f"({NUMBER}):({NUMBER}):({NUMBER})")
INTEGERS = re.compile(r"([+-]?\d+)\.\.([+-]?\d+)")
BETWEEN = re.compile(f"({NUMBER})~({NUMBER})")


class SearchRange(NamedTuple):
    """The values of a searched setting: a list (`0.0:1.0:0.1`, `1..20`, `a,b,c`), or all numbers between (`0.01~1`)."""

    key: str
    values: Sequence[Any]
    low: float = math.nan
    high: float = math.nan

    @property
    def continuous(self) -> bool:
        return not self.values

    @property
    def logarithmic(self) -> bool:
        """Whether it spans more than a factor of ten, and so is sampled on a logarithmic scale."""
        return self.low > 0 and self.high / self.low > 10

    def draw(self, generator: random.Random) -> Any:
        """A random value."""
        if not self.continuous:
            return generator.choice(list(self.values))
        if self.logarithmic:
            return self.round(math.exp(generator.uniform(math.log(self.low), math.log(self.high))))
        return self.round(generator.uniform(self.low, self.high))

    @staticmethod
    def round(value: float) -> float:
        return float(f"{value:.4g}")


def parse(word: str) -> SearchRange | None:
    """The range that `key=...` gives, or None for a single value."""
    key, _, text = word.partition("=")
    if match := STEPS.fullmatch(text):
        low, high, step = map(float, match.groups())
        if step <= 0 or high < low:
            raise PskdError(f"{word}: from {match[1]} there are no steps of {match[3]} to {match[2]}")
        count = _count_values(word, (high - low) / step + 1e-9)
        return SearchRange(key, [float(f"{low + place * step:.10g}") for place in range(count)])
    if match := INTEGERS.fullmatch(text):
        first, last = int(match[1]), int(match[2])
        if last < first:
            raise PskdError(f"{word}: {last} comes before {first}; write first..last")
        _count_values(word, last - first)
        return SearchRange(key, list(range(first, last + 1)))
    if match := BETWEEN.fullmatch(text):
        if float(match[2]) <= float(match[1]):
            raise PskdError(f"{word}: {match[2]} is not above {match[1]}; write low~high")
        return SearchRange(key, [], float(match[1]), float(match[2]))
    parts = split_list(text)
    return SearchRange(key, [parse_value(key, part) for part in parts]) if len(parts) > 1 else None


def split_list(text: str) -> list[str]:
    """The parts of `a,b,c`; a comma inside quotes or brackets belongs to its part."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and not parts[-1].strip():
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not quote and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def remove_quotes(part: str) -> str:
    return part[1:-1] if len(part) > 1 and part[0] == part[-1] and part[0] in "'\"" else part


def _count_values(word: str, steps: float) -> int:
    """How many values this number of steps gives; too many are an error."""
    if not steps < MOST_CELLS:
        count = f"{steps + 1:,.0f}" if steps < 1e18 else "far too many"
        raise PskdError(
            f"{word[:200]}: these are {count} values, the most allowed are {MOST_CELLS:,}; take larger steps"
        )
    return math.floor(steps) + 1
