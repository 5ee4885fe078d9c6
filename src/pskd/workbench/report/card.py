"""A model card, README.md, of a finished run. The run may come from a stranger: its words are shown as text only."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from pskd import __version__
from pskd.errors import PskdError, one_line
from pskd.metrics.catalogue import METRICS, metrics_of
from pskd.workbench import registry
from pskd.workbench.config import Config
from pskd.workbench.report.figure import Figure, Palette
from pskd.workbench.report.figures import Frame
from pskd.workbench.report.figures.confidence import draw_reliability
from pskd.workbench.report.table import escape_markdown
from pskd.workbench.study.results import collect
from pskd.workbench.use import Predictor, Run

FIGURE = "reliability.png"
PIPELINES = {"classification": "image-classification", "detection": "object-detection", "translation": "translation"}
SHOWN = 50  # classes that are listed
TO_FILL_IN = (
    "*To be filled in by whoever publishes this model: what it is for and what it is not for, whom its data leaves out,"
    " and under which licence it may be used.*"
)


def write_card(run: Path, predictor: Predictor, folder: Path) -> None:
    """Write README.md and, for a classifier, the reliability diagram beside it."""
    figure = _make_figure(run)
    if figure is not None:
        (folder / FIGURE).write_bytes(figure.png())
    (folder / "README.md").write_text(make_card(Run(run), predictor, figure), encoding="utf-8")


def make_card(run: Run, predictor: Predictor, figure: Figure | None = None) -> str:
    """The text of a card, with a place for the figure."""
    examples = predictor.loading()
    header = {"library_name": next(iter(examples)), "tags": ["pskd"]}
    if run.config.task in PIPELINES:
        header["pipeline_tag"] = PIPELINES[run.config.task]
    parts = [
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---",
        f"# {escape(predictor.about.task)}: {escape(run.config.model.name)} on {escape(run.config.data.name)}",
        "## Intended use",
        TO_FILL_IN,
        "## Load it",
        *(f"With {library}:\n\n```python\n{lines}\n```" for library, lines in examples.items()),
        "## Data",
        *_describe_data(run, predictor),
        "## Method",
        *_describe_method(run.config),
        "## Results",
        *_list_results(run, predictor),
    ]
    if figure is not None:
        parts.append(f"![{escape(figure.alt)}]({FIGURE})")
    versions = run.result.get("versions")
    if isinstance(versions, Mapping) and versions:
        made = ", ".join(f"{escape(name)} {escape(version)}" for name, version in versions.items())
        parts.append(f"Trained with {made}; card made by pskd {__version__}.")
    else:
        parts.append(f"Made by pskd {__version__}.")
    return "\n\n".join(parts) + "\n"


def escape(text: object) -> str:
    """A stranger's text as Markdown that shows it unchanged: no markup, no HTML, no link, no new line."""
    escaped = escape_markdown(html.escape(one_line(text), quote=False)).replace("$", "&#36;")
    return escaped.replace("://", "&#58;//").replace("www.", "www&#46;")


def _describe_data(run: Run, predictor: Predictor) -> Iterator[str]:
    fingerprint = run.result.get("data_fingerprint")
    samples = f", fingerprint of the training samples {escape(fingerprint)}" if fingerprint else ""
    yield f"{escape(run.config.data.name)}{samples}."
    classes: Sequence[str] = getattr(predictor, "classes", ())
    if classes:
        more = f" and {len(classes) - SHOWN:,} more" if len(classes) > SHOWN else ""
        yield f"{len(classes):,} classes: {', '.join(map(escape, classes[:SHOWN]))}{more}."
    if (view := getattr(predictor, "view", None)) is not None:
        size = " x ".join(map(str, view.size))
        yield (
            f"Input: {view.channels} channel{'s' if view.channels > 1 else ''} of {size} pixels in 0..1, minus"
            f" {list(view.mean)}, divided by {list(view.std)}."
        )


def _describe_method(config: Config) -> Iterator[str]:
    options = [f"{escape(name)}={escape(x)}" for name, x in config.method.options.items() if x is not None]
    settings = f" ({', '.join(options)})" if options else ""
    yield f"{escape(config.method.name)}{settings}, {config.train.epochs} epochs."
    method = registry.methods.get(config.method.name)
    reference = re.search(r"Reference: (.+?)(?:\n\s*\n|\Z)", (method.__doc__ or "") if method else "", re.DOTALL)
    if reference:
        yield f"Reference: {escape(' '.join(reference[1].split()))}"


def _list_results(run: Run, predictor: Predictor) -> Iterator[str]:
    names = metrics_of(run.result)
    yield _write_table(
        ["Test set", ""], [[METRICS[name].heading, METRICS[name].text(run.result[name])] for name in names]
    )
    effects = getattr(predictor.calibration, "effect", {})
    if not effects:
        yield "Not calibrated after training."
        return
    lines = []
    for split, effect in effects.items():
        for name in effect.before:
            metric = METRICS[name]
            values = metric.text(effect.before[name]), metric.text(effect.after[name])
            lines.append([f"{metric.heading}, {split}", *values])
    yield _write_table(["Calibration", "before", f"after (temperature {predictor.calibration.temperature:.4f})"], lines)


def _write_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *([escape(cell) for cell in line] for line in lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _make_figure(run: Path) -> Figure | None:
    """The reliability diagram, if the run has what it needs."""
    try:
        (collection,) = collect([run])
    except PskdError:
        return None
    (row,) = collection.rows
    return next(draw_reliability(Frame(collection, [row], Palette([row.short]), row.short, "-1")), None)
