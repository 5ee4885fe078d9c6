"""The report: one HTML page that needs nothing beside it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from pskd import __version__
from pskd.metrics.catalogue import metrics_of
from pskd.workbench.config import Config, flat, places
from pskd.workbench.report.detections import draw_detections
from pskd.workbench.report.figure import Figure, slug
from pskd.workbench.report.figures import FRAMES, figure_kinds, make_figures
from pskd.workbench.report.finding import list_facts, make_findings
from pskd.workbench.report.samples import side_by_side
from pskd.workbench.report.summary import make_tables
from pskd.workbench.report.table import Table
from pskd.workbench.runs.files import csv_text, one_line_errors, write_named
from pskd.workbench.study.results import Collection, FinishedRun, collect

DIAGRAMS = 15  # figures of single rows that a section shows


class PageSection(NamedTuple):
    """What stands under one title of the page."""

    title: str
    tables: Sequence[Table]
    figures: Sequence[Figure]

    @property
    def about(self) -> str:
        """How to read it."""
        kinds = [figure_kinds.find(figure.kind) for figure in self.figures]
        return next(filter(None, [each.about for each in (*self.tables, *kinds)]), "")

    @property
    def shown(self) -> Sequence[Figure]:
        """All figures or, if there is one for each row, the first of them."""
        of_rows = any(figure_kinds.find(figure.kind).of == "row" for figure in self.figures)
        return self.figures[:DIAGRAMS] if of_rows else self.figures

    @property
    def is_flat(self) -> bool:
        """Whether there is nothing to see. The page then folds it up."""
        return not self.tables and bool(self.figures) and all(figure.flat for figure in self.figures)


class PagePart:
    """One collection as the page shows it.

    ``samples`` are the numbers of the test samples to compare predictions of; by default those that differ most.
    """

    def __init__(self, number: int, collection: Collection, samples: Sequence[int] = ()) -> None:
        frames = collection.frames.values()
        self.name, self.collection = f"{number}-{slug(collection.name) or 'runs'}", collection
        self.tables, self.figures = make_tables(collection), make_figures(collection)
        self.sections = make_sections(self.tables, self.figures, collection.show.first)
        comparison = next(table for table in self.tables if table.name == "comparison")
        self.findings, self.facts = make_findings(collection, comparison), list_facts(collection)
        self.samples = next(filter(None, (side_by_side(rows, samples) for rows in frames)), None)
        self.detections = next(filter(None, (draw_detections(rows, samples) for rows in frames)), None)
        self.origins = [_describe_origin(row.name, run) for row in collection.rows for run in row.runs]
        self.settings = [(row.name, _list_settings(row.runs[0].config)) for row in collection.rows]

    @property
    def runs_csv(self) -> str:
        """A line for each run: where its numbers come from, its place in the study, and all its numbers."""
        runs = [(row.labels, run) for row in self.collection.rows for run in row.runs]
        lines = [
            {**origin, **labels, **_all_numbers(run)} for origin, (labels, run) in zip(self.origins, runs, strict=True)
        ]
        names = dict.fromkeys(name for line in lines for name in line)
        return csv_text([names, *([line.get(name, "") for name in names] for line in lines)])

    @property
    def shared_origin(self) -> dict[str, str]:
        """What is the same for all runs, if there are several."""
        first, *others = self.origins
        return {key: value for key, value in first.items() if value and others and all(o[key] == value for o in others)}


def make_sections(tables: Sequence[Table], figures: Sequence[Figure], first: Sequence[str] = ()) -> list[PageSection]:
    """Tables and figures by title: the first table, the kinds of figures that the study asks for, then the rest."""
    titles = {figure.kind: figure_kinds.find(figure.kind).section for figure in figures}
    order = [table.section for table in tables]
    order = [*order[:1], *(titles[kind] for kind in first if kind in titles), *order, *titles.values()]
    return [
        PageSection(
            title,
            [table for table in tables if table.section == title],
            [figure for figure in figures if titles[figure.kind] == title],
        )
        for title in dict.fromkeys(order)
    ]


def report(
    paths: Sequence[Path],
    out: Path,
    figure_folder: Path | None = None,
    table_folder: Path | None = None,
    samples: Sequence[int] = (),
    say: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Write the page about runs and studies, and the figures and tables if asked for; return the files and folders.

    ``samples`` are the numbers of the test samples to compare predictions of; by default those that differ most.
    """
    parts = [PagePart(number, collection, samples) for number, collection in enumerate(collect(paths), 1)]
    for line in (line for part in parts for line in part.collection.unfinished if line.startswith("left out: ")):
        say(line)
    with one_line_errors("report"):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_named(out, _render(parts), "a report", "<!doctype html>")
    for part in parts:
        folder = Path(part.name) if len(parts) > 1 else Path()
        if figure_folder is not None:
            for figure in part.figures:
                figure.save(figure_folder / folder)
        if table_folder is not None:
            _save_tables(part, table_folder / folder)
    return [out, *filter(None, (figure_folder, table_folder))]


def load_templates() -> Environment:
    loader = PackageLoader("pskd.workbench.report", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["slug"] = slug
    # A folder's name need not be valid text, which jinja's own filter needs.
    environment.filters["in_link"] = partial(quote, errors="backslashreplace")
    return environment


def _render(parts: Sequence[PagePart]) -> str:
    title = parts[0].collection.title
    if len(parts) > 1:
        data = dict.fromkeys(run.data_name for part in parts for run in part.collection.runs)
        title = f"{len(parts)} comparisons: {', '.join(data)}"
    return (
        load_templates()
        .get_template("page.html")
        .render(
            title=title,
            parts=parts,
            most_frames=FRAMES,
            version=__version__,
            python=platform.python_version(),
        )
    )


def _describe_origin(row: str, run: FinishedRun) -> dict[str, str]:
    """Where a number comes from."""
    result = run.result
    seconds = result["seconds"]
    folder, here = run.folder.path, Path.cwd()
    return {
        "row": row,
        "seed": str(run.seed),
        "epochs": str(result["epoch"]),
        "parameters": f"{result['parameters']:,}",
        "training": str(timedelta(seconds=round(seconds["training"]))),
        "seconds an epoch": "" if seconds["per_epoch"] is None else f"{seconds['per_epoch']:.1f}",
        "device": f"{result['device']} x {result['processes']}" if result["processes"] > 1 else result["device"],
        "code": (result["git"] or "")[:12],
        # A relative path tells readers less about this machine.
        "folder": str(folder.relative_to(here) if folder.is_relative_to(here) else folder),
        "versions": ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
    }


def _list_settings(config: Config) -> dict[str, Any]:
    """All settings. Of an absolute path only the end is shown, since pages are passed on."""
    settings = flat(config.model_dump(mode="json"))
    for name in places(config) & settings.keys():
        if isinstance(path := settings[name], str) and Path(path).is_absolute():
            settings[name] = str(Path("...", *Path(path).parts[1:][-2:]))
    return settings


def _all_numbers(run: FinishedRun) -> dict[str, float]:
    """Every metric of a run, and the mean training loss of its last epoch."""
    numbers = {name: run.metrics[name] for name in metrics_of(run.metrics)}
    if run.epochs and (loss := run.epochs[-1].get("train_loss")) is not None:
        numbers["train_loss"] = loss
    return numbers


def _save_tables(part: PagePart, folder: Path) -> None:
    """Each table in three formats, and all runs seed by seed in ``runs.csv``."""
    files = {"runs.csv": part.runs_csv}
    for table in part.tables:
        formats = {"csv": table.csv(), "tex": table.latex(), "md": table.markdown()}
        files |= {f"{table.name}.{form}": text for form, text in formats.items()}
    with one_line_errors("table"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")
