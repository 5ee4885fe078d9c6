"""The runs of a report: a row is the runs of several seeds, a frame is the rows that are compared with each other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from pskd.errors import PskdError
from pskd.metrics.catalogue import metrics_of
from pskd.metrics.functional import confidence_and_correct
from pskd.workbench import registry
from pskd.workbench.config import Config, differences, flat, places
from pskd.workbench.config.classes import DEFAULT_METHOD
from pskd.workbench.runs import history, predictions
from pskd.workbench.runs.folder import RunFolder
from pskd.workbench.runs.predictions import Predictions
from pskd.workbench.study.cells import SEED, Cell, Paper, Show, Study, is_study
from pskd.workbench.study.same_data import DataOf, group, have_same_data

MOST_SETTINGS = 3  # that the name of a row lists
# Settings in which the runs of a row may differ, beside places, devices and the like.
APART = frozenset({"train.seed", "train.history"})

AXIS_NAMES = {
    "data.per_class": "training images a class",
    "data.noise": "share of wrong labels",
    "method.alpha": "alpha_T",
}


class Scores(NamedTuple):
    """The confidence of each sample of a split, (N), and whether its prediction is correct, (N)."""

    confidence: Tensor
    correct: Tensor


@dataclass(frozen=True, eq=False)
class FinishedRun:
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
        """The metrics on the report's split."""
        numbers: Mapping[str, Any] = self.result.get("val", {}) if self.split == "val" else self.result
        return numbers

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl."""
        return self.folder.metrics()

    @cached_property
    def history(self) -> history.Recorded | None:
        return history.read(self.folder.history_file, self.result["epoch"])

    @property
    def scores(self) -> Scores | None:
        """None for a task without class probabilities, or if the predictions were not kept."""
        return self._from_predictions[0]

    @cached_property
    def _from_predictions(self) -> tuple[Scores | None, str | None]:
        """The scores, and the fingerprint of the test split."""
        kept = self.predictions()
        scores = None if kept is None else Scores(*confidence_and_correct(kept.probs, kept.labels))
        if kept is not None and self.split == "test":
            return scores, kept.fingerprint
        return scores, predictions.fingerprint(self.folder.path, "test")

    @cached_property
    def data(self) -> DataOf:
        """Only runs with the same data may be compared."""
        data, ignored = self.config.data.model_dump(mode="json"), places(self.config)
        text = json.dumps({key: value for key, value in data.items() if f"data.{key}" not in ignored}, sort_keys=True)
        test, train = self._from_predictions[1], self.result["data_fingerprint"]
        return DataOf(self.config.task, test, train, (text, data["root"]), self.seed)

    @property
    def data_name(self) -> str:
        """`CIFAR-10`, or the name of the folder or file of one's own data."""
        data, sets = self.config.data, getattr(registry.tasks.get(self.config.task), "data_sets", None)
        title = None if sets is None else sets.title(data.name)
        return title or (Path(data.root).name if data.root else data.name)

    @property
    def training_samples(self) -> int | None:
        """Their number; None for a run of an earlier release, which did not record it."""
        recorded: int | None = self.result.get("training_samples")
        return recorded or (None if self.history is None else self.history.num_samples)

    def predictions(self) -> Predictions | None:
        """Read again each time, as probabilities are large. None if their file was not kept."""
        if self.config.task != "classification" or not self.folder.predictions_file.is_file():
            return None
        return predictions.read(self.folder.path, self.split)


@dataclass(frozen=True, eq=False)
class Row:
    """Runs that differ only in their seeds; ``labels`` are the values of the study's axes."""

    labels: Mapping[str, str]
    runs: Sequence[FinishedRun]
    changed: Sequence[str] = ()  # the settings that were changed from the study file

    @property
    def key(self) -> str:
        """Its labels as a study file writes them."""
        return " · ".join(self.labels.values())

    @property
    def name(self) -> str:
        return " · ".join(_format_label(*pair) for pair in self.labels.items())

    @property
    def short(self) -> str:
        """The label in which it differs from the other rows of its frame."""
        return _format_label(*list(self.labels.items())[-1])

    @property
    def title(self) -> str:
        """The name of its method."""
        return method_title(self.runs[0].config.method.name)

    @property
    def data(self) -> list[DataOf]:
        return [run.data for run in self.runs]

    def values(self, metric: str) -> list[float]:
        return [run.metrics[metric] for run in self.runs if metric in run.metrics]


@dataclass(frozen=True, eq=False)
class Collection:
    """Rows that were tested on the same data: those of a study, or of runs that were given one by one.

    ``name`` is short, for file names.
    """

    title: str
    about: str
    rows: Sequence[Row]
    show: Show = field(default_factory=Show)
    paper: Paper | None = None
    unfinished: Sequence[str] = ()
    name: str = "runs"

    @cached_property
    def frames(self) -> dict[str, list[Row]]:
        """Rows by all their labels but the last. Those of a frame go into one plot, and one of them is the best."""
        frames: dict[str, list[Row]] = {}
        for row in self.rows:
            shared = [_format_label(*pair) for pair in row.labels.items()][:-1]
            frames.setdefault(" · ".join(shared), []).append(row)
        return frames

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The metrics to show: those that the study names, or all that every row has."""
        names = metrics_of(self.rows[0].runs[0].metrics) if self.rows else []
        shared = [name for name in names if all(row.values(name) for row in self.rows)]
        return tuple(name for name in self.show.columns if name in shared) or tuple(shared)

    @property
    def compared(self) -> str:
        """The axis along which the rows of a frame differ: methods, or another one."""
        axis = list(self.rows[0].labels)[-1]
        return "method" if axis in ("method", "method.name", "run") else axis.rpartition(".")[2]

    @property
    def runs(self) -> list[FinishedRun]:
        return [run for row in self.rows for run in row.runs]


def collect(paths: Sequence[Path]) -> list[Collection]:
    """The collections of each study, and of the runs that are given one by one: one for each test set.

    A damaged run is left out and listed as unfinished, unless there is no other.
    """
    collections: list[Collection] = []
    single: list[FinishedRun] = []
    left_out: list[PskdError] = []
    for path in paths:
        try:
            if is_study(path):
                collections += _collect_study(Study.load(path))
            else:
                single.append(_open(path))
        except PskdError as error:
            left_out.append(error)
    if left_out and not collections and not single:
        raise left_out[0]
    collections += [_collect_runs(runs) for runs in group(single, lambda one, other: one.data.same(other.data))]
    if left_out:
        lines = [f"left out: {error}" for error in left_out]
        collections[0] = replace(collections[0], unfinished=[*collections[0].unfinished, *lines])
    return collections


@cache
def method_title(name: str) -> str:
    """A method's name for readers."""
    method = registry.methods.get(name)
    return (method is not None and method.card.title) or name


def axis_name(axis: str) -> str:
    """A setting's name for readers who do not know the settings."""
    return AXIS_NAMES.get(axis, axis)


def _format_label(axis: str, label: str) -> str:
    """A label for readers: `epochs 30`, `PS-KD`."""
    if axis in ("method", "method.name"):
        return method_title(label)
    return f"{axis.rpartition('.')[2]} {label}" if "." in axis or label.replace(".", "", 1).isdecimal() else label


def is_plain(config: Config) -> bool:
    """Whether a run was trained on its labels alone: the baseline of a comparison."""
    method = registry.methods.get(config.method.name)
    return method is not None and bool(method.card.plain)


def plain_row(rows: Sequence[Row]) -> Row | None:
    """The first row that was trained on labels alone."""
    return next((row for row in rows if is_plain(row.runs[0].config)), None)


def baseline_of(rows: Sequence[Row]) -> Row:
    """The row that the others of a frame are compared with: the plain one, or else the first."""
    return plain_row(rows) or rows[0]


def subject_of(rows: Sequence[Row]) -> Row:
    """The row that a frame is about: the first one of our own method, or else the last one that is not the baseline.

    A detector on a trunk that our method trained has the method's name as its label.
    """
    others = [row for row in rows if row is not baseline_of(rows)]
    ours = method_title(DEFAULT_METHOD)
    first = next((row for row in others if row.title == ours), None)
    return first or next((row for row in others if row.short == ours), others[-1])


def _collect_study(study: Study) -> list[Collection]:
    show = study.file.show
    rows: dict[tuple[str, ...], tuple[Cell, list[FinishedRun]]] = {}
    unfinished = []
    for key, cell in study.cells().items():
        if not cell.labels:
            continue
        own = rows.setdefault(tuple(_without_seed(cell.labels).values()), (cell, []))[1]
        folder = study.run_folder(key)
        if not RunFolder(folder).result_file.is_file():
            unfinished.append(cell.name)
            continue
        try:
            own.append(_open(folder, show.split))
        except PskdError as error:
            unfinished.append(f"left out: {cell.name}: {error}")
    made = [Row(_without_seed(cell.labels), runs, _list_changes(cell)) for cell, runs in rows.values() if runs]
    if not made:
        damaged = next((line.partition(": ")[2] for line in unfinished if line.startswith("left out: ")), None)
        raise PskdError(damaged or f"{study.folder} has no finished cell yet: pskd study status tells how far it is")
    made = order_axes(made)
    groups = group(made, lambda one, other: have_same_data(one.data, other.data, DataOf.same_test))
    title, _, more = study.file.about.partition(";")
    title = f"{title[0].upper()}{title[1:]}" if title else study.name
    chosen = [word for word in study.words if word.partition("=")[0] in study.file.axes]
    about = ". ".join(filter(None, (more.strip(), f"Chosen of the study: {', '.join(chosen)}" if chosen else "")))
    differing = [axis for axis in made[0].labels if not _is_shared(made, axis)]
    collections = []
    for members in groups:
        labels = [members[0].labels[axis] for axis in differing if _is_shared(members, axis)]
        name = " · ".join([title, *labels]) if len(groups) > 1 else title
        collections.append(Collection(name, about, members, show, study.file.paper, name=study.name))
    return [replace(collections[0], unfinished=unfinished), *collections[1:]]


def _without_seed(labels: Mapping[str, str]) -> dict[str, str]:
    return {axis: label for axis, label in labels.items() if axis != SEED}


def _is_shared(rows: Sequence[Row], axis: str) -> bool:
    return len({row.labels[axis] for row in rows}) == 1


def order_axes(rows: Sequence[Row]) -> list[Row]:
    """Rows with the axes that change the data first: a frame compares rows along the last axis."""
    axes = list(rows[0].labels)
    data = [axis for axis in axes if any(_differ(one, other, axis) for one in rows for other in rows)]
    if not data and axes:
        return list(rows)
    order = [*data, *(axis for axis in axes if axis not in data)]
    rows = [replace(row, labels={axis: row.labels[axis] for axis in order}) for row in rows]
    if len(data) == len(axes):  # nothing is left to compare: each row is named by its method
        rows = [replace(row, labels={**row.labels, "method": row.title}) for row in rows]
    return rows


def _differ(one: Row, other: Row, axis: str) -> bool:
    """Whether two rows that differ only in this axis have different data."""
    if [name for name, label in one.labels.items() if other.labels[name] != label] != [axis]:
        return False
    return not have_same_data(one.data, other.data, DataOf.same)


def _list_changes(cell: Cell) -> list[str]:
    """The settings in which a cell differs from its study file."""
    apart = APART | places(cell.config)
    return [line for line in differences(cell.as_published, cell.config) if line.partition(":")[0] not in apart]


def _collect_runs(runs: Sequence[FinishedRun]) -> Collection:
    """Runs that differ only in their seeds are one row, named by the settings that vary. Plain rows come first."""
    settings = [flat(run.config.model_dump(mode="json")) for run in runs]
    apart = APART.union(*(places(run.config) for run in runs))
    keys = [key for key in {key: None for tree in settings for key in tree} if key not in apart]
    varying = [key for key in keys if len({str(tree[key]) for tree in settings if key in tree}) > 1]
    rows: dict[tuple[str, ...], list[FinishedRun]] = {}
    for run, tree in zip(runs, settings, strict=True):
        rows.setdefault(tuple(_setting(key, tree[key]) for key in varying if key in tree), []).append(run)
    made = []
    for parts, members in rows.items():
        if len({run.seed for run in members}) < len(members):
            # A run was repeated with the same settings and seed: a mean over both would mislead.
            made += [Row({"run": f"{_title(run)} ({run.folder.path})"}, [run]) for run in members]
            continue
        few = len(parts) <= MOST_SETTINGS
        name = ", ".join(parts) if few else f"{_title(members[0])} ({members[0].folder.path.name})"
        made.append(Row({"run": name or _title(members[0])}, members))
    made.sort(key=lambda row: not is_plain(row.runs[0].config))
    methods = list(dict.fromkeys(row.title for row in made))
    title = f"{' and '.join(methods)} on {runs[0].data_name}" if len(methods) < 3 else f"Runs on {runs[0].data_name}"
    return Collection(f"{title[0].upper()}{title[1:]}", "", made)


def _title(run: FinishedRun) -> str:
    return method_title(run.config.method.name)


def _setting(key: str, value: Any) -> str:
    return method_title(value) if key == "method.name" else str(value) if key.endswith(".name") else f"{key}={value}"


def _open(path: Path, split: str = "test") -> FinishedRun:
    """A finished run, with all its files read: an error now is better than one in the middle of a page."""
    folder = RunFolder(path)
    run = FinishedRun(folder, folder.config(), folder.result(), split)
    run.epochs, run.history, run.scores, run.data  # noqa: B018
    return run
