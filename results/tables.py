"""The tables of differences on these pages, and the maps of `when-it-helps`, made from the CSV files beside them.

python results/tables.py        prints the rows of each table; a test compares the pages with them
python results/tables.py DIR    also draws the maps
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pskd.workbench.report.figure import Figure, Palette
from pskd.workbench.report.figures import Frame
from pskd.workbench.report.figures.study import draw_maps
from pskd.workbench.report.significance import LEVEL, interval, paired_chance
from pskd.workbench.study.cells import Show
from pskd.workbench.study.results import Collection, Row, method_title

Seeds = dict[int, dict[str, str]]  # the CSV lines of one setting, by seed

HERE = Path(__file__).parent
PLACES = {"top1_error": 2, "nll": 3, "ece": 1, "aurc": 1}  # the metrics of a table, and their decimals
PLAIN = "0.0"  # the alpha of plain cross-entropy
MENDED = {"elr", "crl", "tf_kd", "tf_kd; variant=reg", "byot"}  # methods that were run again since
NAMES = {  # of some methods with options; the others are named as in the library
    "tf_kd": "TF-KD, self",
    "tf_kd; variant=reg": "TF-KD, reg",
    "zipf_ls": "Zipf's LS",
    "ps_kd; memory=snapshot": "PS-KD, snapshot",
    "ps_kd; memory=snapshot; ema=0.99": "PS-KD, snapshot with `ema=0.99`",
    "ps_kd; partners=1.0; memory=snapshot; ema=0.99": "PS-KD, snapshot with `ema=0.99`, `partners=1`",
    "ps_kd; schedule=constant": "PS-KD, constant alpha",
}


def main() -> None:
    for page, rows in pages().items():
        print(f"\n{page}\n", *rows, sep="\n")
    for folder in sys.argv[1:]:
        for figure in figures():
            figure.save(Path(folder))


def pages() -> dict[str, list[str]]:
    """The rows that each page must have; a page may add columns to them."""
    return {
        "better-memory": [*side_by_side("better-memory/validation.csv", "ps_kd")],
        "headline": [*headline()],
        "label-noise": [
            row
            for data in ("fashion-mnist", "cifar100")
            for share in (0.2, 0.4)
            for file, left_out in ((data, "elr"), (f"{data}-again", "none"))
            for row in side_by_side(
                f"label-noise/{file}.csv", f"hard; noise={share}", partial(has_noise, share, left_out)
            )
        ],
        "self-distillation": [
            row
            for data in ("fashion-mnist", "cifar100")
            for file, baseline, chosen in (
                (data, "hard", lambda key: key not in MENDED),
                (f"{data}-mended", "hard", bool),
                (data, "ps_kd", lambda key: key.startswith("ps_kd")),
            )
            for row in side_by_side(f"self-distillation/{file}.csv", baseline, chosen)
        ]
        + [*repeated()],
        "when-it-helps": [
            *by_field("runs.csv", ["0.8"]),
            *by_field("runs.csv", ["auto"]),
            *by_field("alphas.csv", ["0.3", "0.5", "0.8"]),
            *slices(),
        ],
    }


def has_noise(share: float, left_out: str, key: str) -> bool:
    return key.endswith(f"; noise={share}") and not key.startswith(left_out)


def side_by_side(file: str, baseline: str, chosen: Callable[[str], bool] = bool) -> Iterator[str]:
    """The baseline's mean and deviation, then differences from it, lowest error first, significant ones bold."""
    runs = {key: seeds for (key,), seeds in read(file, ["method"]).items() if chosen(key)}
    plain = runs.pop(baseline)
    spread = (
        f"{statistics.fmean(own):.{places}f} ± {statistics.stdev(own):.{places}f}"
        for own, places in ((values(plain, metric), places) for metric, places in PLACES.items())
    )
    yield row(name(baseline), str(len(plain)), *spread)
    ranked = sorted(runs, key=lambda key: statistics.fmean(differences(runs[key], plain, "top1_error")))
    for key in ranked:
        yield row(name(key), str(len(runs[key])), *(of_runs(runs[key], plain, metric, bold=True) for metric in PLACES))


def repeated() -> Iterator[str]:
    """Three trainings of each seed minus plain cross-entropy: the error of each, then every metric of their mean."""
    folder = "self-distillation"
    first, third = (read(f"{folder}/{file}.csv", ["method"]) for file in ("cifar100-before", "cifar100"))
    second = read("headline/runs.csv", ["data", "noise", "method"])
    for key, short in {"ps_kd": "ps_kd", "ps_kd; partners=0.5": "partners", "ps_kd; alpha=auto": "auto"}.items():
        times = [
            (first[key,], first["hard",]),
            (second["cifar100", "0", short], second["cifar100", "0", "hard"]),
            (third[key,], third["hard",]),
        ]
        changes = {metric: [differences(*pair, metric) for pair in times] for metric in PLACES}
        errors = (change(each, "top1_error", bold=True) for each in changes["top1_error"])
        means = {
            metric: [statistics.fmean(seed) for seed in zip(*each, strict=True)] for metric, each in changes.items()
        }
        yield row(name(key), *errors, *(change(mean, metric, bold=True) for metric, mean in means.items()))


def headline() -> Iterator[str]:
    """Plain cross-entropy's means, and differences from it."""
    settings = read("headline/runs.csv", ["data", "epochs", "noise", "method"])
    for *field, method in settings:
        plain = settings[*field, "hard"]
        if method == "hard":
            means = (f"{statistics.fmean(values(plain, metric)):.{places}f}" for metric, places in PLACES.items())
            yield row("plain cross-entropy", *means).removeprefix("| ")
        else:
            label = {"ps_kd": "PS-KD", "auto": '`alpha="auto"`', "partners": "`partners=0.5`"}[method]
            yield row(label, *(of_runs(settings[*field, method], plain, metric) for metric in PLACES))


def by_field(file: str, alphas: Sequence[str]) -> Iterator[str]:
    """A map as a table: a row for each metric and number of images, with a cell for each length of training."""
    fields = of_map(file)
    for metric in PLACES:
        for images in dict.fromkeys(images for images, _, _ in fields):
            cells = [
                of_runs(fields[images, epochs, alpha], fields[images, epochs, PLAIN], metric)
                for epochs in dict.fromkeys(epochs for own, epochs, _ in fields if own == images)
                for alpha in alphas
            ]
            yield row(images, *cells).removeprefix("| ")


def slices() -> Iterator[str]:
    """The map's rows of CIFAR-100: 20 classes, then all 100."""
    few, every = (
        read(f"when-it-helps/{file}.csv", ["epochs", "alpha"]) for file in ("cifar100", "cifar100-100-classes")
    )
    methods = read("self-distillation/cifar100.csv", ["method"])
    for alpha, key in {PLAIN: "hard", "0.8": "ps_kd", "auto": "ps_kd; alpha=auto"}.items():
        few["100", alpha] = methods[key,]
    for runs, told in ((few, {"train_loss": 2, "ece": 1}), (every, {"train_loss": 2, "top1_error": 1, "ece": 1})):
        for epochs, alpha in sorted(runs.keys(), key=lambda field: (int(field[0]), field[1])):
            plain = runs[epochs, PLAIN]
            about = ", ".join(
                f"{statistics.fmean(values(plain, metric)):.{places}f}" for metric, places in told.items()
            )
            changes = [of_runs(runs[epochs, alpha], plain, metric) for metric in PLACES]
            if alpha == "auto":
                yield row("`auto`", "", *changes).replace("|  |", "| |")
            elif alpha != PLAIN:
                yield row(f"{epochs} epochs, alpha_T = {alpha}", about, *changes)


def figures() -> Iterator[Figure]:
    """The map of each alpha and metric, drawn by the code of the report."""
    axes = ("data.per_class", "epochs", "method.alpha")
    for file in ("runs.csv", "alphas.csv"):
        rows = [
            Row(
                {"data.per_class": images, "epochs": epochs, "method.alpha": alpha},
                [_run(*each) for each in own.items()],
            )
            for (images, epochs, alpha), own in of_map(file).items()
            if file == "runs.csv" or alpha != "0.8"  # both files have 0.8; runs.csv is of the newer code
        ]
        collection = Collection(file, "", rows, Show(map=axes[:2], columns=tuple(PLACES)))
        yield from draw_maps(Frame(collection, rows, Palette([])))


def _run(seed: int, line: Mapping[str, str]) -> Any:
    """The part of a run that a map needs."""
    return SimpleNamespace(seed=seed, metrics={metric: float(line[metric]) for metric in PLACES})


def of_map(file: str) -> dict[tuple[str, ...], Seeds]:
    """The settings of a map by images a class, epochs and alpha. Five seeds each: one field has more, see its page."""
    fields = read(f"when-it-helps/{file}", ["images_per_class", "epochs", "alpha"])
    order = sorted(fields, key=lambda field: (int(field[0]), int(field[1]), field[2]))
    return {field: {seed: fields[field][seed] for seed in range(5)} for field in order}


def read(file: str, by: Sequence[str]) -> dict[tuple[str, ...], Seeds]:
    """The lines of a CSV file, grouped by the columns that name a setting."""
    settings: dict[tuple[str, ...], Seeds] = {}
    with (HERE / file).open(encoding="utf-8") as lines:
        for line in csv.DictReader(lines):
            settings.setdefault(tuple(line[column] for column in by), {})[int(line["seed"])] = line
    return settings


def values(seeds: Seeds, metric: str) -> list[float]:
    return [float(line[metric]) for line in seeds.values()]


def differences(own: Seeds, plain: Seeds, metric: str) -> list[float]:
    """The differences over the seeds that both have."""
    return [float(own[seed][metric]) - float(plain[seed][metric]) for seed in sorted(own.keys() & plain.keys())]


def of_runs(own: Seeds, plain: Seeds, metric: str, *, bold: bool = False) -> str:
    return change(differences(own, plain, metric), metric, bold=bold)


def change(own: Sequence[float], metric: str, *, bold: bool = False) -> str:
    """`-0.83 ± 0.51`: mean and 95% interval of paired differences."""
    places = PLACES[metric]
    mean, bounds = statistics.fmean(own), interval(own)
    assert bounds is not None, "an interval needs two seeds"
    text = f"{mean:+.{places}f} ± {bounds[1] - mean:.{places}f}"
    return f"**{text}**" if bold and paired_chance(own) < LEVEL else text


def name(key: str) -> str:
    """A method with its options, as a page names it."""
    key, _, _ = key.partition("; noise=")
    method, *options = key.split("; ")
    return NAMES.get(key) or ", ".join([method_title(method), *(f"`{each.removesuffix('.0')}`" for each in options)])


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
