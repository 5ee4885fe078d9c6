"""The report: one HTML page that needs nothing beside it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pskd import __version__
from pskd.config import flat
from pskd.report.figure import Figure, slug
from pskd.report.figures import FRAMES, figures
from pskd.report.samples import SideBySide, side_by_side
from pskd.report.scaled import NO_VALIDATION, after_temperature
from pskd.report.summary import Table, by_class, compare
from pskd.runs.files import one_line_errors, write_named
from pskd.study.results import Collection, Run, collect

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
DIAGRAMS = 15  # pictures of a single row that a page shows of a collection


class Part(NamedTuple):
    """One collection as the page shows it."""

    name: str
    collection: Collection
    tables: Sequence[Table]
    figures: Sequence[Figure]
    samples: SideBySide | None
    origins: Sequence[Mapping[str, str]]
    settings: Sequence[tuple[str, Mapping[str, Any]]]

    @property
    def shown(self) -> Iterator[tuple[str, Sequence[Figure], str]]:
        """The figures of the page, those of one title together, and a word on what it leaves out."""
        for title in dict.fromkeys(TITLES[figure.kind] for figure in self.figures):
            members = [figure for figure in self.figures if TITLES[figure.kind] == title]
            most = DIAGRAMS if members[0].kind in ("reliability", "confusion") else len(members)
            left_out = f"The first {most} of {len(members)}: pskd report --figures DIR saves them all."
            yield title, members[:most], left_out if len(members) > most else ""


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
            _save_tables(part.tables, table_folder / below)
    return written + [folder for folder in (figure_folder, table_folder) if folder is not None]


def _part(place: int, collection: Collection, samples: Sequence[int]) -> Part:
    tables = [compare(collection)]
    if all(run.config.task == "classification" for run in collection.runs) and collection.show.split == "test":
        ensembles = compare(collection, ensembles=True)
        if any(ensembles.frames.values()):
            tables.append(ensembles)
        if (calibrated := after_temperature(collection)) is not None:
            tables.append(calibrated)
        else:
            tables[0] = replace(tables[0], notes=[*tables[0].notes, NO_VALIDATION])
    if collection.show.ensemble:
        tables.reverse()
    if (classes := by_class(collection)) is not None:
        tables.append(classes)
    compared = (side_by_side(rows, samples) for rows in collection.frames.values())
    return Part(
        f"{place + 1}-{slug(collection.title) or 'runs'}",
        collection,
        tables,
        figures(collection),
        next((pair for pair in compared if pair is not None), None),
        [_origin(row.name, run) for row in collection.rows for run in row.runs],
        [(row.name, flat(row.runs[0].config.model_dump(mode="json"))) for row in collection.rows],
    )


def _html(parts: Sequence[Part]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pskd.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    title = ", ".join(part.collection.title for part in parts)
    return environment.get_template("page.html").render(
        title=title,
        parts=parts,
        most_frames=FRAMES,
        version=__version__,
        python=platform.python_version(),
    )


def _origin(row: str, run: Run) -> dict[str, str]:
    """Where a number comes from."""
    result = run.result
    seconds = result["seconds"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return {
        "row": row,
        "seed": str(run.seed),
        "epochs": str(result["epoch"]),
        "parameters": f"{result['parameters']:,}",
        "training": str(timedelta(seconds=round(seconds["training"]))),
        "seconds an epoch": "" if seconds["per_epoch"] is None else f"{seconds['per_epoch']:.1f}",
        "device": f"{result['device']} x {result['processes']}" if result["processes"] > 1 else result["device"],
        "versions": versions,
        "code": (result["git"] or "")[:12],
        "folder": str(run.folder.path),
    }


def _save_tables(tables: Sequence[Table], folder: Path) -> None:
    with one_line_errors("table"):
        folder.mkdir(parents=True, exist_ok=True)
        for table in tables:
            for suffix, text in (("csv", table.csv()), ("tex", table.latex()), ("md", table.markdown())):
                (folder / f"{table.name}.{suffix}").write_text(text, encoding="utf-8", errors="backslashreplace")
