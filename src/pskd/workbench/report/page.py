"""The report: one HTML page that needs nothing beside it."""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from pskd import __version__
from pskd.metrics.catalogue import metrics_of
from pskd.workbench.config import Config, flat, places
from pskd.workbench.report.coverage import coverage
from pskd.workbench.report.figure import Figure, slug
from pskd.workbench.report.figures import FRAMES, figures
from pskd.workbench.report.finding import FEW_GROUPS, Findings, facts, findings
from pskd.workbench.report.maps import READING
from pskd.workbench.report.samples import SideBySide, side_by_side
from pskd.workbench.report.scaled import NO_VALIDATION, after_temperature
from pskd.workbench.report.scenes import Scenes, scenes
from pskd.workbench.report.summary import Table, by_class, compare
from pskd.workbench.runs.files import one_line_errors, write_named
from pskd.workbench.study.results import Collection, Run, collect

NO_PREDICTIONS = "{} of {} runs have no predictions.npz: what is made of single predictions is left out."
TITLES = {
    "calibration": "Calibration and confidence",
    "risk_coverage": "Calibration and confidence",
    "reliability": "Reliability diagrams",
    "confusion": "Confusions",
    "curves": "Training",
    "hard_examples": "Hard examples",
    "rescaling": "Gradient rescaling",
    "per_class_ap": "Average precision by class",
    "ablation": "Ablation",
    "map": "Where it helps, and where it does not",
}
TABLES = {
    "comparison": "Comparison",
    "ensembles": "Ensembles",
    "calibrated": "After temperature scaling",
    "coverage": "Calibration and confidence",
    "by-class": "Average precision by class",
}
EXPLAINED = {
    TITLES["map"]: READING,
    "Ensembles": "The mean of the probabilities of a row's seeds, as if they were one model.",
    "Hard examples": "The training samples that the plain model gets right least often: how much probability each"
    " method gives to their true class and to its own favourite while it learns.",
    "Gradient rescaling": "PS-KD takes smaller steps on samples that its past predictions already knew: a factor of 1"
    " is plain training, 0 learns nothing from a sample.",
    "Reliability diagrams": "How often a method is right where it says how sure it is. Hatched: by how much it is too"
    " sure, or not sure enough. Pale: too few samples to say anything.",
}
DIAGRAMS = 15  # pictures of a single row that a page shows of a collection


class Section(NamedTuple):
    """What stands under one title of the page."""

    title: str
    tables: Sequence[Table]
    figures: Sequence[Figure]
    left_out: str = ""  # a word on what is not shown

    @property
    def about(self) -> str:
        return EXPLAINED.get(self.title, "")

    @property
    def flat(self) -> bool:
        """Whether there is nothing to see: it is then folded up."""
        return not self.tables and bool(self.figures) and all(figure.flat for figure in self.figures)


class Part(NamedTuple):
    """One collection as the page shows it."""

    name: str
    collection: Collection
    findings: Findings
    facts: Mapping[str, str]
    tables: Sequence[Table]
    figures: Sequence[Figure]
    samples: SideBySide | None
    scenes: Scenes | None
    origins: Sequence[Mapping[str, str]]
    settings: Sequence[tuple[str, Mapping[str, Any]]]

    @property
    def sections(self) -> Iterator[Section]:
        """Tables and figures by title: the first table, what the study asks for, then the rest."""
        tables = {table.name: table for table in self.tables}
        first = [TITLES[kind] for kind in self.collection.show.first if kind in TITLES]
        titles = [TABLES[table.name] for table in self.tables]
        rest = [TITLES[figure.kind] for figure in self.figures]
        for title in dict.fromkeys([*titles[:1], *(title for title in first if title in rest), *titles, *rest]):
            members = [figure for figure in self.figures if TITLES[figure.kind] == title]
            most = DIAGRAMS if members and members[0].kind in ("reliability", "confusion") else len(members)
            left_out = f"The first {most} of {len(members)}: pskd report --figures DIR saves them all."
            own = [table for name, table in tables.items() if TABLES[name] == title]
            yield Section(title, own, members[:most], left_out if len(members) > most else "")

    @property
    def runs_csv(self) -> str:
        """A line for each run: where its numbers come from, its place in the study, and the numbers in full."""
        runs = [(row.labels, run) for row in self.collection.rows for run in row.runs]
        lines = [
            {**origin, **labels, **_numbers(run)} for origin, (labels, run) in zip(self.origins, runs, strict=True)
        ]
        out = io.StringIO()
        columns = dict.fromkeys(name for line in lines for name in line)
        writer = csv.DictWriter(out, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return out.getvalue()

    @property
    def alike(self) -> dict[str, str]:
        """What is said of all runs at once, because it is the same of all."""
        first = self.origins[0]
        return {
            key: value for key, value in first.items() if value and all(each[key] == value for each in self.origins)
        }


def report(
    paths: Sequence[Path],
    out: Path,
    figure_folder: Path | None = None,
    table_folder: Path | None = None,
    samples: Sequence[int] = (),
    say: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Write the page about runs and studies, and what else is asked for; returns the files and folders.

    ``samples`` are the numbers of the test samples to compare predictions of; by default those that differ most.
    """
    parts = [_part(place, collection, samples) for place, collection in enumerate(collect(paths))]
    for line in (line for part in parts for line in part.collection.unfinished if line.startswith("left out: ")):
        say(line)
    with one_line_errors("report"):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_named(out, _html(parts), "a report", "<!doctype html>")
    written = [out]
    for part in parts:
        below = Path(part.name) if len(parts) > 1 else Path()
        if figure_folder is not None:
            for figure in part.figures:
                figure.save(figure_folder / below)
        if table_folder is not None:
            _save_tables(part, table_folder / below)
    return written + [folder for folder in (figure_folder, table_folder) if folder is not None]


def _part(place: int, collection: Collection, samples: Sequence[int]) -> Part:
    comparison = compare(collection)
    tables = [comparison]
    classifiers = all(run.config.task == "classification" for run in collection.runs)
    if classifiers and (bare := sum(run.scores is None for run in collection.runs)):
        tables[0] = replace(tables[0], notes=[*tables[0].notes, NO_PREDICTIONS.format(bare, len(collection.runs))])
    elif classifiers and collection.show.split == "test":
        ensembles = compare(collection, ensembles=True)
        if any(ensembles.frames.values()):
            tables.append(ensembles)
        if (calibrated := after_temperature(collection)) is not None:
            tables.append(calibrated)
        else:
            tables[0] = replace(tables[0], notes=[*tables[0].notes, NO_VALIDATION])
    if collection.show.ensemble:
        tables.reverse()
    tables[1:1] = [table for table in (coverage(collection),) if table is not None]
    if (classes := by_class(collection)) is not None:
        tables.append(classes)
    frames = list(collection.frames.values())
    compared = (side_by_side(rows, samples) for rows in frames)
    drawn = (scenes(rows, samples) for rows in frames)
    return Part(
        f"{place + 1}-{slug(collection.name) or 'runs'}",
        collection,
        findings(collection, comparison),
        facts(collection),
        tables,
        figures(collection),
        next((pair for pair in compared if pair is not None), None),
        next((found for found in drawn if found is not None), None),
        [_origin(row.name, run) for row in collection.rows for run in row.runs],
        [(row.name, _settings(row.runs[0].config)) for row in collection.rows],
    )


def _html(parts: Sequence[Part]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pskd.workbench.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["slug"] = slug
    # Names of folders need not be text, which jinja's own filter asks for.
    environment.filters["in_link"] = partial(quote, errors="backslashreplace")
    title = parts[0].collection.title
    if len(parts) > 1:
        data = dict.fromkeys(run.data_name for part in parts for run in part.collection.runs)
        title = f"{len(parts)} comparisons: {', '.join(data)}"
    return environment.get_template("page.html").render(
        title=title,
        parts=parts,
        most_frames=FRAMES,
        few_groups=FEW_GROUPS,
        version=__version__,
        python=platform.python_version(),
    )


def _origin(row: str, run: Run) -> dict[str, str]:
    """Where a number comes from."""
    result = run.result
    seconds = result["seconds"]
    folder, here = run.folder.path, Path.cwd()
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return {
        "row": row,
        "seed": str(run.seed),
        "epochs": str(result["epoch"]),
        "parameters": f"{result['parameters']:,}",
        "training": str(timedelta(seconds=round(seconds["training"]))),
        "seconds an epoch": "" if seconds["per_epoch"] is None else f"{seconds['per_epoch']:.1f}",
        "device": f"{result['device']} x {result['processes']}" if result["processes"] > 1 else result["device"],
        "code": (result["git"] or "")[:12],
        "folder": str(folder.relative_to(here) if folder.is_relative_to(here) else folder),  # pages are passed on
        "versions": versions,
    }


def _settings(config: Config) -> dict[str, Any]:
    """All of them; of what only says where something is, the end of the path: pages are passed on."""
    settings = flat(config.model_dump(mode="json"))
    for name in places(config) & settings.keys():
        if isinstance(path := settings[name], str) and Path(path).is_absolute():
            settings[name] = str(Path("...", *Path(path).parts[1:][-2:]))
    return settings


def _numbers(run: Run) -> dict[str, float]:
    """Every metric of a run, and the mean training loss of its last epoch."""
    loss = run.epochs[-1].get("train_loss") if run.epochs else None
    return {name: run.metrics[name] for name in metrics_of(run.metrics)} | (
        {} if loss is None else {"train_loss": loss}
    )


def _save_tables(part: Part, folder: Path) -> None:
    """Each table in three forms, and all runs seed by seed in ``runs.csv``."""
    files = {"runs.csv": part.runs_csv}
    for table in part.tables:
        files |= {
            f"{table.name}.csv": table.csv(),
            f"{table.name}.tex": table.latex(),
            f"{table.name}.md": table.markdown(),
        }
    with one_line_errors("table"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")
