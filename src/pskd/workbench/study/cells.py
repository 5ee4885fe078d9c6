"""A study: a YAML file that lists many runs, what each of them needs, and what the report shows.

Each combination of its axes' values is a cell. The cell's key (`keys.py`) names its run folder. So a study that grows
runs only the new cells, and studies in one folder share runs.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from pskd.errors import PskdError
from pskd.workbench import recipes
from pskd.workbench.config import Config, Section, parse_value, read_yaml, resolve, validated
from pskd.workbench.config.old_names import with_new_keys
from pskd.workbench.runs.files import one_line_errors, write_atomic
from pskd.workbench.runs.schemas import validate
from pskd.workbench.study.keys import CELL, key_of, rename_matching_runs
from pskd.workbench.study.ranges import MOST_CELLS, remove_quotes, split_list

Settings = dict[str, Any]
SEED = "seed"  # the axis whose values are repetitions


class Show(Section):
    """What a report shows first. All other figures for which the runs have data follow.

    `split` is evaluated; `columns` are metrics; `ensemble` averages the predictions of each cell's seeds; `x` is the
    axis of an ablation; `map` are two axes: each row is compared with the first one of its group; `first` are names of
    figures.
    """

    split: Literal["test", "val"] = "test"
    columns: tuple[str, ...] = ()
    ensemble: bool = False
    x: str | None = None
    map: tuple[str, str] | None = None
    first: tuple[str, ...] = ()


class Paper(Section):
    """The paper's own numbers: `rows` have one number for each column; `note` is shown below them.

    `literature` are rows that the paper quotes from others, without runs here; `by_class` is its table of average
    precision, with one column for each class.
    """

    table: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[float | None, ...]]
    note: str = ""
    literature: dict[str, tuple[float | None, ...]] = Field(default_factory=dict)
    by_class: Paper | None = None


class StudyFile(Section):
    """`axes` are lists of a setting's values, or labels with their settings.

    The value of a setting can be `{cell: {key: value, ...}}`: the folder of the run with the same settings and these
    changes. If the changes name a recipe, it is that recipe's run with these settings and the same seed. `prune` stops
    a run after a third of its epochs if its validation metric is worse than the median of earlier runs.
    """

    about: str
    recipe: str | None = None
    settings: Settings = Field(default_factory=dict)
    axes: dict[str, list[Any] | dict[str, Settings]]
    show: Show = Show()
    paper: Paper | None = None
    prune: bool = False


class SavedStudy(Section):
    """study.yaml in a study's folder."""

    name: str
    identity: Annotated[str, Field(min_length=1, max_length=200)]
    words: tuple[str, ...]
    study: StudyFile


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Args:
        key: a hash of the settings that change the result; it names the run folder.
        config: the configuration. The folder of a run that it needs is written as `cell:KEY`.
        needs: keys of the cells that must be done before.
        labels: the axes' values; empty for a run that exists only because others need it.
        as_published: the configuration of the study file alone, without the command's changes.
        allow_code: whether code that the configuration names may be imported.
    """

    key: str
    config: Config
    needs: tuple[str, ...]
    labels: Mapping[str, str]
    as_published: Config
    allow_code: bool = False

    @property
    def root(self) -> str | None:
        """The `data.root` of the recipe or study file. A command's `data.root` only tells where the data is."""
        return self.as_published.data.root

    @property
    def name(self) -> str:
        shown = " · ".join(f"{axis} {label}" for axis, label in self.labels.items())
        return shown or f"{self.config.recipe} · method {self.config.method.name} · seed {self.config.train.seed}"

    def config_in(self, runs: Path) -> Config:
        """The configuration, with the folders of the runs that it needs."""
        return validated(_fill_in_folders(self.config.model_dump(mode="json"), runs), allow_code=self.allow_code)


@dataclass(frozen=True)
class Study:
    """A study file, the changes of the command, and the study's folder.

    Code that a user's own study file names may be imported. Code that a folder names needs `--allow-code`.
    """

    name: str
    file: StudyFile
    words: tuple[str, ...]
    folder: Path
    identity: str  # its name in a database that several studies share
    allow_code: bool = field(default=False, compare=False)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def run_folder(self, key: str) -> Path:
        return self.runs / key

    def cells(self) -> dict[str, Cell]:
        """All cells by key, each after the cells that it needs."""
        return expand(self.file, self.words, allow_code=self.allow_code)

    def save(self) -> None:
        content = {
            "name": self.name,
            "identity": self.identity,
            "words": list(self.words),
            "study": self.file.model_dump(mode="json"),
        }
        with one_line_errors("study folder"):
            self.runs.mkdir(parents=True, exist_ok=True)
            self._rename_other()
            write_atomic(_study_file(self.folder), yaml.safe_dump(content, sort_keys=False, allow_unicode=True))

    def _rename_other(self) -> None:
        """Keep the file and page of another study that was run in this folder, under its name."""
        if is_study(self.folder) and (other := Study.load(self.folder).name) != self.name:
            for file in (_study_file(self.folder), self.folder / "report.html"):
                if file.exists():
                    file.replace(file.with_stem(f"{file.stem}-{other}"))

    @classmethod
    def begin(cls, name: str, words: Sequence[str], folder: Path) -> Study:
        """The study of a file or of a shipped name, in a new folder or in the folder of an earlier study."""
        return cls.of(Path(name).stem, read_study(name), folder, words)

    @classmethod
    def of(cls, name: str, file: StudyFile, folder: Path, words: Sequence[str] = ()) -> Study:
        """A study in a new folder, or in the folder of an earlier study."""
        identity = cls.load(folder).identity if is_study(folder) else secrets.token_hex(6)
        study = cls(name, file, tuple(words), folder.absolute(), identity, allow_code=True)
        rename_matching_runs(study.runs, study.cells())  # finds errors before anything is written
        return study

    @classmethod
    def load(cls, folder: Path, *, allow_code: bool = False) -> Study:
        """The study of this folder."""
        if not is_study(folder):
            raise PskdError(f"{folder} is not a study's folder: it has no study.yaml (pskd study run begins one)")
        content = read_yaml(_study_file(folder))
        advice = "remove it, then begin the study again with pskd study run"
        saved = validate(SavedStudy, content, _study_file(folder), advice)
        return cls(saved.name, saved.study, saved.words, folder.absolute(), saved.identity, allow_code)


def is_study(folder: Path) -> bool:
    return _study_file(folder).is_file()


def read_study(name: str) -> StudyFile:
    """The study file of a path or of a shipped name."""
    path = recipes.find(name)
    return _parse_study(read_yaml(path), path)


def expand(study: StudyFile, words: Iterable[str] = (), *, allow_code: bool = True) -> dict[str, Cell]:
    """All cells of a study by key, each after the cells that it needs, and seed by seed.

    ``words`` change every cell (`key=value`) or the cells of one recipe (`RECIPE:key=value`), or choose values of an
    axis (`AXIS=label,label`).
    """
    axes, changes = _choose(study.axes, words)
    if (count := math.prod(map(len, axes.values()))) > MOST_CELLS:
        raise PskdError(f"this study has {count:,} cells, the most allowed are {MOST_CELLS:,}: give axes fewer values")
    cells: dict[str, Cell] = {}
    order = sorted(axes, key=lambda axis: axis != SEED)  # so that half a study can already be compared
    for combination in itertools.product(*(axes[axis].items() for axis in order)):
        chosen = dict(zip(order, combination, strict=True))
        settings: Settings = {"recipe": study.recipe} if study.recipe else {}
        settings = _apply_changes(settings, study.settings)
        for axis in axes:
            settings = _apply_changes(settings, chosen[axis][1])
        _add(cells, settings, changes, {axis: chosen[axis][0] for axis in axes}, allow_code)
    return cells


def _add(
    cells: dict[str, Cell], settings: Settings, words: Sequence[str], labels: Mapping[str, str], allow_code: bool
) -> str:
    """Add a cell to ``cells``, after the cells that it needs; return its key."""
    settings, needs = dict(settings), []
    for setting, value in list(settings.items()):
        if isinstance(value, Mapping) and set(value) == {"cell"}:
            changes = value["cell"]
            shared = {"seed"} if "recipe" in changes else settings.keys() - {setting}
            common = {name: settings[name] for name in settings if name in shared}
            needs.append(_add(cells, _apply_changes(common, changes), words, {}, allow_code))
            settings[setting] = CELL + needs[-1]
    recipe = settings.pop("recipe", None)
    if not isinstance(recipe, str):
        raise PskdError("recipe is missing: a study, or one of its axes, names the recipe that its cells start from")
    tree = _recipe(recipe)
    planned = [f"{key}={json.dumps(value)}" for key, value in with_new_keys(settings).items()]
    asked = [word for word in words if ":" not in word.partition("=")[0]]
    asked += [word.removeprefix(f"{recipe}:") for word in words if word.startswith(f"{recipe}:")]
    config = resolve(tree, [*planned, *asked], name=recipe, allow_code=allow_code)
    as_published = resolve(tree, planned, name=recipe, allow_code=allow_code)
    key = key_of(config, as_published.data.root)
    if key not in cells or (labels and not cells[key].labels):
        # A cell that another one needs keeps its place before that one.
        cells[key] = Cell(key, config, tuple(needs), labels, as_published, allow_code)
    return key


_recipe = functools.cache(recipes.read_recipe)


def _choose(
    given: Mapping[str, list[Any] | dict[str, Settings]], words: Iterable[str]
) -> tuple[dict[str, dict[str, Settings]], list[str]]:
    """The labels of each axis with their settings, as ``words`` choose them, and the words that are changes."""
    axes: dict[str, dict[str, Settings]] = {}
    for axis, values in given.items():
        axes[axis] = values if isinstance(values, dict) else {str(value): {axis: value} for value in values}
        if not values:
            raise PskdError(f"axes.{axis} has no value: give at least one")
    changes = []
    for word in words:
        axis, sign, wanted = word.partition("=")
        if not sign:
            raise PskdError(f"{word!r} is not a setting: write key=value, or AXIS=label,label to choose cells")
        if axis not in axes:
            changes.append(word)
            continue
        labels = {remove_quotes(part): part for part in ([wanted] if wanted in axes[axis] else split_list(wanted))}
        if isinstance(given[axis], list):  # other values of a setting are allowed
            further = {label: {axis: parse_value(axis, part)} for label, part in labels.items()}
            axes[axis] = {label: axes[axis].get(label, further[label]) for label in labels}
        elif unknown := [label for label in labels if label not in axes[axis]]:
            raise PskdError(f"{axis}={unknown[0]}: this axis has no such value; it has {', '.join(axes[axis])}")
        else:
            axes[axis] = {label: axes[axis][label] for label in labels}
    return axes, changes


def _apply_changes(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """``settings`` with changes. Another method drops the settings of the one before."""
    if "method" in changes:
        settings = {key: value for key, value in settings.items() if not key.startswith("method.")}
    return {**settings, **changes}


def _fill_in_folders(value: Any, runs: Path) -> Any:
    if isinstance(value, dict):
        return {key: _fill_in_folders(item, runs) for key, item in value.items()}
    if isinstance(value, str) and value.startswith(CELL):
        return str(runs / value.removeprefix(CELL))
    return value


def _parse_study(tree: Any, path: Path) -> StudyFile:
    try:
        return StudyFile.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        known = f"; allowed are {', '.join(StudyFile.model_fields)}" if first["type"] == "extra_forbidden" else ""
        raise PskdError(f"{path}: {where}: {first['msg'][0].lower()}{first['msg'][1:]}{known}") from None


def _study_file(folder: Path) -> Path:
    return folder / "study.yaml"
