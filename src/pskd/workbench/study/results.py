"""The runs that a report is about: rows of several seeds, in frames of rows that are compared with each other."""

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
from pskd.workbench.study.same_data import DataOf, alike, gathered

MOST_SETTINGS = 3  # in the name of a row
# Settings in which the runs of a row may differ, beside those that say where and how.
APART = frozenset({"train.seed", "train.history"})

DATA_NAMES = {
    "digits": "digits",
    "detection digits": "digit scenes",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "fashion_mnist": "Fashion-MNIST",
    "imagenet": "ImageNet",
    "voc": "PASCAL VOC",
    "numbers": "numbers",
    "multi30k": "Multi30k",
}

AXIS_NAMES = {
    "data.per_class": "training images a class",
    "data.noise": "share of wrong labels",
    "method.alpha": "alpha_T",
}


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

    @property
    def scores(self) -> Scores | None:
        """None for a task without classes to be sure of, and where the predictions were not kept."""
        return self._first_look[0]

    @cached_property
    def _first_look(self) -> tuple[Scores | None, str | None]:
        """What is kept of the predictions: scores, and the fingerprint of the test split."""
        made = self.predictions()
        scores = None if made is None else Scores(*confidence_and_correct(made.probs, made.labels))
        if made is not None and self.split == "test":
            return scores, made.fingerprint
        return scores, predictions.fingerprint(self.folder.path, "test")

    @cached_property
    def data(self) -> DataOf:
        """Of the same data are the runs that may be compared."""
        settings, apart = self.config.data.model_dump(mode="json"), places(self.config)
        kept = {name: value for name, value in settings.items() if f"data.{name}" not in apart}
        place = json.dumps(kept, sort_keys=True), settings["root"]
        return DataOf(self.config.task, self._first_look[1], self.result["data_fingerprint"], place, self.seed)

    @property
    def data_name(self) -> str:
        """`CIFAR-10`, or the name of the folder or file of one's own data."""
        data = self.config.data
        known = DATA_NAMES.get(f"{self.config.task} {data.name}") or DATA_NAMES.get(data.name)
        return known or (Path(data.root).name if data.root else data.name)

    @property
    def training_samples(self) -> int | None:
        """How many there were; None for a run of an earlier release that did not record them."""
        recorded: int | None = self.result.get("training_samples")
        return recorded or (None if self.history is None else self.history.num_samples)

    def predictions(self) -> Predictions | None:
        """Read anew each time: a data set's probabilities are large. None where their file was not kept."""
        if self.config.task != "classification" or not self.folder.predictions_file.is_file():
            return None
        return predictions.read(self.folder.path, self.split)


@dataclass(frozen=True, eq=False)
class Row:
    """The runs of one setting, which differ in their seeds; ``labels`` by axis."""

    labels: Mapping[str, str]
    runs: Sequence[Run]
    changed: Sequence[str] = ()  # the settings in which it differs from what the paper did

    @property
    def key(self) -> str:
        """Its labels as a study file writes them."""
        return " · ".join(self.labels.values())

    @property
    def name(self) -> str:
        return " · ".join(_shown(*pair) for pair in self.labels.items())

    @property
    def short(self) -> str:
        """What tells it from the others of its frame."""
        return _shown(*list(self.labels.items())[-1])

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
    """Rows that belong together, all tested on the same data: those of a study, or of runs that were named one by one.

    ``name`` is short: of its files.
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
        """Rows by what they share, all labels but the last: they go into one plot, and one of them is best."""
        frames: dict[str, list[Row]] = {}
        for row in self.rows:
            shared = [_shown(*pair) for pair in row.labels.items()][:-1]
            frames.setdefault(" · ".join(shared), []).append(row)
        return frames

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The metrics to show: the study's, or all that every row has."""
        names = metrics_of(self.rows[0].runs[0].metrics) if self.rows else []
        there = [name for name in names if all(row.values(name) for row in self.rows)]
        return tuple(name for name in self.show.columns if name in there) or tuple(there)

    @property
    def compared(self) -> str:
        """What the rows of a frame are: methods, or values of another axis."""
        axis = list(self.rows[0].labels)[-1]
        return "method" if axis in ("method", "method.name", "run") else axis.rpartition(".")[2]

    @property
    def runs(self) -> list[Run]:
        return [run for row in self.rows for run in row.runs]


def collect(paths: Sequence[Path]) -> list[Collection]:
    """Collections of each study, and of the runs that were named by themselves: one for each data that is tested on.

    A run that is damaged is left out and named among the unfinished ones, unless there is no other.
    """
    found: list[Collection] = []
    single: list[Run] = []
    left_out: list[PskdError] = []
    for path in paths:
        try:
            if is_study(path):
                found += _of_study(Study.load(path))
            else:
                single.append(_open(path))
        except PskdError as error:
            left_out.append(error)
    if left_out and not found and not single:
        raise left_out[0]
    found += [_of_runs(runs) for runs in gathered(single, lambda one, other: one.data.same(other.data))]
    lines = [f"left out: {error}" for error in left_out]
    return [replace(found[0], unfinished=[*found[0].unfinished, *lines]), *found[1:]] if lines else found


@cache
def method_title(name: str) -> str:
    """A method's name for people."""
    method = registry.methods.get(name)
    return (method is not None and method.card.title) or name


def axis_name(axis: str) -> str:
    """A setting's name for people who have never seen a settings file."""
    return AXIS_NAMES.get(axis, axis)


def _shown(axis: str, label: str) -> str:
    """A label as people say it: `epochs 30`, `PS-KD`."""
    if axis in ("method", "method.name"):
        return method_title(label)
    return f"{axis.rpartition('.')[2]} {label}" if "." in axis or label.replace(".", "", 1).isdecimal() else label


def is_plain(config: Config) -> bool:
    """Whether a run learnt from its labels as they are: the baseline of a comparison."""
    method = registry.methods.get(config.method.name)
    return method is not None and bool(method.card.plain)


def plain_row(rows: Sequence[Row]) -> Row | None:
    """The baseline of a frame: its first row that is trained on labels alone."""
    return next((row for row in rows if is_plain(row.runs[0].config)), None)


def baseline_of(rows: Sequence[Row]) -> Row:
    """What the rows of a frame are compared with: the plain one, or else the first."""
    return plain_row(rows) or rows[0]


def subject_of(rows: Sequence[Row]) -> Row:
    """What a frame is about, of those that are not its baseline: the first row of our own method, or else the last one.

    A detector on the trunk of a run of ours has the method's name as its label.
    """
    others = [row for row in rows if row is not baseline_of(rows)]
    ours = method_title(DEFAULT_METHOD)
    taught = next((row for row in others if row.title == ours), None)
    return taught or next((row for row in others if row.short == ours), others[-1])


def _of_study(study: Study) -> list[Collection]:
    show = study.file.show
    rows: dict[tuple[str, ...], tuple[Cell, list[Run]]] = {}
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
    made = [Row(_without_seed(cell.labels), runs, _changed(cell)) for cell, runs in rows.values() if runs]
    if not made:
        damaged = next((line.partition(": ")[2] for line in unfinished if line.startswith("left out: ")), None)
        raise PskdError(damaged or f"{study.folder} has no finished cell yet: pskd study status tells how far it is")
    made = _in_order(made)
    groups = gathered(made, lambda one, other: alike(one.data, other.data, DataOf.same_test))
    title, _, more = study.file.about.partition(";")
    chosen = [word for word in study.words if word.partition("=")[0] in study.file.axes]
    about = ". ".join(filter(None, (more.strip(), f"Chosen of the study: {', '.join(chosen)}" if chosen else "")))
    title = f"{title[0].upper()}{title[1:]}" if title else study.name
    found = []
    for group in groups:
        apart = [label for axis, label in group[0].labels.items() if _shared(group, axis) and not _shared(made, axis)]
        name = " · ".join([title, *apart]) if len(groups) > 1 else title
        found.append(Collection(name, about, group, show, study.file.paper, name=study.name))
    return [replace(found[0], unfinished=unfinished), *found[1:]]


def _without_seed(labels: Mapping[str, str]) -> dict[str, str]:
    return {axis: label for axis, label in labels.items() if axis != SEED}


def _shared(rows: Sequence[Row], axis: str) -> bool:
    return len({row.labels[axis] for row in rows}) == 1


def _in_order(rows: Sequence[Row]) -> list[Row]:
    """Rows whose last label tells methods apart, not data: the last of all labels is what a frame compares."""
    axes = list(rows[0].labels)
    data = [axis for axis in axes if any(_differ(one, other, axis) for one in rows for other in rows)]
    if not data and axes:
        return list(rows)
    order = [*data, *(axis for axis in axes if axis not in data)]
    made = [replace(row, labels={axis: row.labels[axis] for axis in order}) for row in rows]
    if len(data) == len(axes):  # nothing is left to compare: each row is named by its method
        made = [replace(row, labels={**row.labels, "method": row.title}) for row in made]
    return made


def _differ(one: Row, other: Row, axis: str) -> bool:
    """Whether two rows that differ in one axis alone have different data."""
    if [name for name, label in one.labels.items() if other.labels[name] != label] != [axis]:
        return False
    return not alike(one.data, other.data, DataOf.same)


def _changed(cell: Cell) -> list[str]:
    """The settings in which a cell differs from what its study file says."""
    apart = APART | places(cell.config)
    return [line for line in differences(cell.as_published, cell.config) if line.partition(":")[0] not in apart]


def _of_runs(runs: Sequence[Run]) -> Collection:
    """Runs that differ only in their seeds are one row, named by the settings that vary; the plain ones come first."""
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
            # The same settings and seed twice: one run repeated. No mean stands for them.
            made += [Row({"run": f"{_title(run)} ({run.folder.path})"}, [run]) for run in members]
            continue
        few = len(parts) <= MOST_SETTINGS
        name = ", ".join(parts) if few else f"{_title(members[0])} ({members[0].folder.path.name})"
        made.append(Row({"run": name or _title(members[0])}, members))
    made.sort(key=lambda row: not is_plain(row.runs[0].config))
    methods = list(dict.fromkeys(row.title for row in made))
    title = f"{' and '.join(methods)} on {runs[0].data_name}" if len(methods) < 3 else f"Runs on {runs[0].data_name}"
    return Collection(f"{title[0].upper()}{title[1:]}", "", made)


def _title(run: Run) -> str:
    return method_title(run.config.method.name)


def _setting(key: str, value: Any) -> str:
    return method_title(value) if key == "method.name" else str(value) if key.endswith(".name") else f"{key}={value}"


def _open(path: Path, split: str = "test") -> Run:
    """A finished run, all of whose files are as they should be."""
    folder = RunFolder(path)
    run = Run(folder, folder.config(), folder.result(), split)
    run.epochs, run.history, run.scores, run.data  # noqa: B018  # read now, that nothing damaged comes up in the middle of a page
    return run
