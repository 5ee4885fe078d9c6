"""Which runs may be compared: those that were trained and tested on the same data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

Thing = TypeVar("Thing")


class DataOf(NamedTuple):
    """The data of a run.

    Args:
        task: the task of the run.
        test: fingerprint of the test split; None if the task does not keep it.
        train: fingerprint of the training split.
        settings: the settings of the data as text, and its folder or file.
        seed: of the run; the data may be drawn with it.
    """

    task: str
    test: str | None
    train: str
    settings: tuple[str, str | None]
    seed: int

    def same_test(self, other: DataOf) -> bool:
        """Whether both were tested on the same samples."""
        if self.test is None or other.test is None:
            return self.task == other.task and self.test == other.test and self.same_training(other)
        return self.task == other.task and (self.test == other.test or self._drawn_alike(other))

    def same_training(self, other: DataOf) -> bool:
        return self.train == other.train or self._drawn_alike(other)

    def same(self, other: DataOf) -> bool:
        return self.same_test(other) and self.same_training(other)

    def _drawn_alike(self, other: DataOf) -> bool:
        """Whether the data may differ only because the seeds do. One seed always draws the same samples."""
        moved = self.test == other.test is not None
        same = self.settings[0] == other.settings[0] and (moved or self.settings[1] == other.settings[1])
        return self.seed != other.seed and same


def have_same_data(some: Sequence[DataOf], others: Sequence[DataOf], same: Callable[[DataOf, DataOf], bool]) -> bool:
    """Whether two rows have the same data. The runs of common seeds are compared or, without any, the first runs."""
    pairs = [(one, other) for one in some for other in others if one.seed == other.seed]
    return all(same(*pair) for pair in pairs or [(some[0], others[0])])


def group(things: Iterable[Thing], belong: Callable[[Thing, Thing], bool]) -> list[list[Thing]]:
    """Groups of things that all belong together, in their order."""
    groups: list[list[Thing]] = []
    for thing in things:
        own = next((members for members in groups if all(belong(thing, other) for other in members)), None)
        if own is None:
            groups.append([thing])
        else:
            own.append(thing)
    return groups
