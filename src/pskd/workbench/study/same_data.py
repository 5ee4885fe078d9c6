"""Which runs may be compared: those that learnt from the same data and were tested on the same data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

Thing = TypeVar("Thing")


class DataOf(NamedTuple):
    """What a run says of its data.

    Args:
        task: what was learnt.
        test: fingerprint of the test split; None where a task does not keep it.
        train: fingerprint of the training split.
        settings: those of the data, as text, and where it is.
        seed: a part of the data may be drawn by it.
    """

    task: str
    test: str | None
    train: str
    settings: tuple[str, str | None]
    seed: int

    def same_test(self, other: DataOf) -> bool:
        """Whether the numbers of both are about the same samples."""
        if self.test is None or other.test is None:
            return self.task == other.task and self.test == other.test and self.same_training(other)
        return self.task == other.task and (self.test == other.test or self._drawn_alike(other))

    def same_training(self, other: DataOf) -> bool:
        return self.train == other.train or self._drawn_alike(other)

    def same(self, other: DataOf) -> bool:
        return self.same_test(other) and self.same_training(other)

    def _drawn_alike(self, other: DataOf) -> bool:
        """Other seeds may have drawn other samples by the same settings; one seed always draws the same ones."""
        moved = self.test == other.test is not None
        same = self.settings[0] == other.settings[0] and (moved or self.settings[1] == other.settings[1])
        return self.seed != other.seed and same


def alike(some: Sequence[DataOf], others: Sequence[DataOf], same: Callable[[DataOf, DataOf], bool]) -> bool:
    """Whether two rows of runs have the same data: those of the seeds that both have or, without any, the first."""
    pairs = [(one, other) for one in some for other in others if one.seed == other.seed]
    return all(same(*pair) for pair in pairs or [(some[0], others[0])])


def gathered(things: Iterable[Thing], together: Callable[[Thing, Thing], bool]) -> list[list[Thing]]:
    """Things in groups of which all belong together, in their order."""
    groups: list[list[Thing]] = []
    for thing in things:
        own = next((group for group in groups if all(together(thing, other) for other in group)), None)
        if own is None:
            groups.append([thing])
        else:
            own.append(thing)
    return groups
