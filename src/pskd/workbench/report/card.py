"""A model card, README.md, from what a finished run says of itself. Every word of the run is shown as text only."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pskd import __version__
from pskd.errors import PskdError, one_line
from pskd.metrics.catalogue import METRICS, metrics_of
from pskd.workbench import registry
from pskd.workbench.config import Config
from pskd.workbench.report.figure import Figure, Palette
from pskd.workbench.report.figures import reliability
from pskd.workbench.report.summary import markdown_escaped
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
    """Write README.md, and the reliability diagram beside it where there is one."""
    opened = Run(run)
    figure = _reliability(run)
    if figure is not None:
        (folder / FIGURE).write_bytes(figure.png())
    (folder / "README.md").write_text(card(opened, predictor, figure), encoding="utf-8")


def card(run: Run, predictor: Predictor, figure: Figure | None = None) -> str:
    """The text of a card, with a place for the figure."""
    libraries = predictor.loading()
    about = {
        "library_name": next(iter(libraries)),
        "tags": ["pskd"],
        **({"pipeline_tag": PIPELINES[run.config.task]} if run.config.task in PIPELINES else {}),
    }
    title = f"{shown(predictor.about.task)}: {shown(run.config.model.name)} on {shown(run.config.data.name)}"
    parts = [
        f"---\n{yaml.safe_dump(about, sort_keys=False)}---",
        f"# {title}",
        "## Intended use",
        TO_FILL_IN,
        "## Load it",
        *(f"With {library}:\n\n```python\n{lines}\n```" for library, lines in libraries.items()),
        "## Data",
        *_data(run, predictor),
        "## Method",
        *_method(run.config),
        "## Results",
        *_results(run, predictor),
    ]
    if figure is not None:
        parts.append(f"![{shown(figure.alt)}]({FIGURE})")
    versions = run.result.get("versions")
    made = ", ".join(f"{shown(k)} {shown(v)}" for k, v in versions.items()) if isinstance(versions, Mapping) else ""
    parts.append(f"Trained with {made}; card made by pskd {__version__}." if made else f"Made by pskd {__version__}.")
    return "\n\n".join(parts) + "\n"


def shown(text: object) -> str:
    """A word of a stranger's as Markdown that shows it as it is: no markup, no HTML, no line of its own."""
    escaped = markdown_escaped(html.escape(one_line(text), quote=False)).replace("$", "&#36;")
    return escaped.replace("://", "&#58;//").replace("www.", "www&#46;")  # which would become links


def _data(run: Run, predictor: Predictor) -> Iterator[str]:
    classes: Sequence[str] = getattr(predictor, "classes", ())
    samples = run.result.get("data_fingerprint")
    yield f"{shown(run.config.data.name)}" + (
        f", fingerprint of the training samples {shown(samples)}." if samples else "."
    )
    if classes:
        more = f" and {len(classes) - SHOWN:,} more" if len(classes) > SHOWN else ""
        yield f"{len(classes):,} classes: {', '.join(map(shown, classes[:SHOWN]))}{more}."
    if (view := getattr(predictor, "view", None)) is not None:
        size = " x ".join(map(str, view.size))
        yield (
            f"Input: {view.channels} channel{'s' if view.channels > 1 else ''} of {size} pixels in 0..1, minus"
            f" {list(view.mean)}, divided by {list(view.std)}."
        )


def _method(config: Config) -> Iterator[str]:
    settings = ", ".join(f"{shown(k)}={shown(v)}" for k, v in config.method.options.items() if v is not None)
    yield f"{shown(config.method.name)}{f' ({settings})' if settings else ''}, {config.train.epochs} epochs."
    method = registry.methods.get(config.method.name)
    found = re.search(r"Reference: (.+?)(?:\n\s*\n|\Z)", (method.__doc__ or "") if method else "", re.DOTALL)
    if found:
        yield f"Reference: {shown(' '.join(found[1].split()))}"


def _results(run: Run, predictor: Predictor) -> Iterator[str]:
    yield _table([METRICS[name].heading, METRICS[name].text(run.result[name])] for name in metrics_of(run.result))
    effects = getattr(predictor.calibration, "effect", {})
    if effects:
        rows = [
            [
                f"{METRICS[name].heading}, {split}",
                *(METRICS[name].text(side[name]) for side in (effect.before, effect.after)),
            ]
            for split, effect in effects.items()
            for name in effect.before
        ]
        head = ["Calibration", "before", f"after (temperature {predictor.calibration.temperature:.4f})"]
        yield _table(rows, head)
    else:
        yield "Not calibrated after training."


def _table(rows: Any, head: Sequence[str] = ("Test set", "")) -> str:
    lines = [head, ["---"] * len(head), *([shown(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _reliability(run: Path) -> Figure | None:
    try:
        (collection,) = collect([run])
        rows = collection.rows
        return next(reliability(rows, "", "", Palette([row.short for row in rows])), None)
    except PskdError:
        return None
