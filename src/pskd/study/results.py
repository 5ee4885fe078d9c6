"""The runs that a report is about: rows of several seeds, in frames of rows that are compared with each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from pskd import registry
from pskd.config import Config, differences, flat, places
from pskd.errors import PskdError
from pskd.metrics.catalogue import metrics_of
from pskd.metrics.functional import confidence_and_correct
from pskd.runs import history, predictions
from pskd.runs.folder import RunFolder
from pskd.runs.predictions import Predictions
from pskd.study.cells import Cell, Paper, Show, Study, is_study

MOST_SETTINGS = 3  # in the name of a row
# Settings in which the runs of a row may differ, beside those that say where and how.
APART = frozenset({"train.seed", "train.history"})


class Scores(NamedTuple):
    """Of each sample of a split: how sure the model is, (N), and whether it is right, (N)."""

    confidence: Tensor
    correct: Tensor


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run."""

    folder: RunFolder
    config: Config
    result: Mapping[str, Any]
    split: str = "test"

    @property
    def seed(self) -> int:
        return self.config.train.seed

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The numbers of the report's split."""
        numbers: Mapping[str, Any] = self.result.get("val", {}) if self.split == "val" else self.result
        return numbers

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl."""
        return self.folder.metrics()

    @cached_property
    def history(self) -> history.Recorded | None:
        return history.read(self.folder.history_file, self.result["epoch"])

    @cached_property
    def scores(self) -> Scores | None:
        """None for a task without classes to be sure of."""
        made = self.predictions()
        return None if made is None else Scores(*confidence_and_correct(made.probs, made.labels))

    def predictions(self) -> Predictions | None:
        """Read anew each time: a data set's probabilities are large."""
        if self.config.task != "classification":
            return None
        return predictions.read(self.folder.path, self.split)


@dataclass(frozen=True, eq=False)
class Row:
    """The runs of one setting, which differ in their seeds; ``labels`` by axis."""

    labels: Mapping[str, str]
    runs: Sequence[Run]
    changed: Sequence[str] = ()  # the settings in which it differs from what the paper did

    @property
    def name(self) -> str:
        return " · ".join(self.labels.values())

    @property
    def short(self) -> str:
        """What tells it from the others of its frame."""
        return list(self.labels.values())[-1] if self.labels else "run"

    def values(self, metric: str) -> list[float]:
        return [run.metrics[metric] for run in self.runs if metric in run.metrics]


@dataclass(frozen=True, eq=False)
class Collection:
    """Rows that belong together: those of a study, or of runs that were named one by one."""

    title: str
    about: str
    rows: Sequence[Row]
    show: Show = field(default_factory=Show)
    paper: Paper | None = None
    unfinished: Sequence[str] = ()

    @cached_property
    def frames(self) -> dict[str, list[Row]]:
        """Rows by what they share, all labels but the last: they go into one plot, and one of them is best."""
        frames: dict[str, list[Row]] = {}
        for row in self.rows:
            frames.setdefault(" · ".join(list(row.labels.values())[:-1]), []).append(row)
        return frames

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The metrics to show: the study's, or all that every row has."""
        names = metrics_of(self.rows[0].runs[0].metrics) if self.rows else []
        there = [name for name in names if all(row.values(name) for row in self.rows)]
        return tuple(name for name in self.show.columns if name in there) or tuple(there)

    @property
    def runs(self) -> list[Run]:
        return [run for row in self.rows for run in row.runs]


def collect(paths: Sequence[Path]) -> list[Collection]:
    """A collection for each study, and one for the runs of each task that were named by themselves.

    A run that is damaged is left out and named among the unfinished ones, unless there is no other.
    """
    studies: list[Collection] = []
    single: dict[str, list[Run]] = {}
    left_out: list[PskdError] = []
    for path in paths:
        try:
            if is_study(path):
                studies.append(_of_study(Study.load(path)))
            else:
                run = _open(path)
                single.setdefault(run.config.task, []).append(run)
        except PskdError as error:
            left_out.append(error)
    if left_out and not studies and not single:
        raise left_out[0]
    titles = {task: f"Runs of {task}" if len(single) > 1 else "Runs" for task in single}
    found = studies + [_of_runs(titles[task], runs) for task, runs in single.items()]
    lines = [f"left out: {error}" for error in left_out]
    return [replace(found[0], unfinished=[*found[0].unfinished, *lines]), *found[1:]] if lines else found


def is_plain(config: Config) -> bool:
    """Whether a run learnt from its labels as they are: the baseline of a comparison."""
    method = registry.methods.get(config.method.name)
    return method is not None and bool(method.plain)


def plain_row(rows: Sequence[Row]) -> Row | None:
    """The baseline of a frame: its first row that is trained on labels alone."""
    return next((row for row in rows if is_plain(row.runs[0].config)), None)


def _of_study(study: Study) -> Collection:
    show = study.file.show
    rows: dict[tuple[str, ...], tuple[Cell, list[Run]]] = {}
    unfinished = []
    for key, cell in study.cells().items():
        if not cell.labels:
            continue
        folder = study.run_folder(key)
        if not RunFolder(folder).result_file.is_file():
            unfinished.append(cell.name)
            continue
        labels = tuple(label for axis, label in cell.labels.items() if axis != "seed")
        try:
            run = _open(folder, show.split)
        except PskdError as error:
            unfinished.append(f"left out: {cell.name}: {error}")
            continue
        rows.setdefault(labels, (cell, []))[1].append(run)
    if not rows:
        raise PskdError(f"{study.folder} has no finished cell yet: pskd study status tells how far it is")
    made = [
        Row(
            {axis: label for axis, label in cell.labels.items() if axis != "seed"},
            runs,
            _changed(cell),
        )
        for cell, runs in rows.values()
    ]
    return Collection(study.name, study.file.about, made, show, study.file.paper, unfinished)


def _changed(cell: Cell) -> list[str]:
    """The settings in which a cell differs from what its study file says."""
    apart = APART | places(cell.config)
    return [line for line in differences(cell.as_published, cell.config) if line.partition(":")[0] not in apart]


def _of_runs(title: str, runs: Sequence[Run]) -> Collection:
    """Runs that differ only in their seeds are one row, named by the settings that vary, or by its first folder."""
    settings = [flat(run.config.model_dump(mode="json")) for run in runs]
    apart = APART.union(*(places(run.config) for run in runs))
    keys = [key for key in {key: None for tree in settings for key in tree} if key not in apart]
    varying = [key for key in keys if len({str(tree[key]) for tree in settings if key in tree}) > 1]
    rows: dict[tuple[str, ...], list[Run]] = {}
    for run, tree in zip(runs, settings, strict=True):
        rows.setdefault(tuple(_setting(key, tree[key]) for key in varying if key in tree), []).append(run)
    made = []
    for parts, members in rows.items():
        if len({run.seed for run in members}) < len(members):
            # The same settings and seed twice: other data, or one run repeated. No mean stands for them.
            made += [Row({"run": str(run.folder.path)}, [run]) for run in members]
            continue
        name = ", ".join(parts) if len(parts) <= MOST_SETTINGS else members[0].folder.path.name
        made.append(Row({"run": name or members[0].config.method.name}, members))
    return Collection(title, "", made)


def _setting(key: str, value: Any) -> str:
    return str(value) if key.endswith(".name") else f"{key}={value}"


def _open(path: Path, split: str = "test") -> Run:
    """A finished run, all of whose files are as they should be."""
    folder = RunFolder(path)
    run = Run(folder, folder.config(), folder.result(), split)
    run.epochs, run.history, run.scores  # noqa: B018  # read now, that nothing damaged comes up in the middle of a page
    return run
