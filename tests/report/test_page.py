"""The page, as a browser shows it."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
import yaml
from browser import Browser
from helpers import pskd

from pskd.errors import PskdError
from pskd.workbench.report.figure import FORMATS, Figure
from pskd.workbench.report.figures import make_figures
from pskd.workbench.report.page import PageSection, make_sections, report
from pskd.workbench.report.samples import name_classes, side_by_side
from pskd.workbench.study.cells import Study
from pskd.workbench.study.results import collect


@pytest.fixture(scope="session")
def page(finished: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    report([finished.folder], folder / "report.html", folder / "figures", folder / "tables")
    return folder / "report.html"


def test_figures_and_tables_are_saved(page: Path, finished: Study) -> None:
    drawn = make_figures(collect([finished.folder])[0])
    kinds = {figure.kind for figure in drawn}
    assert kinds == {"calibration", "risk_coverage", "reliability", "curves", "hard_examples", "rescaling", "confusion"}
    saved = {file.name for file in (page.parent / "figures").iterdir()}
    assert saved == {f"{figure.name}.{form}" for figure in drawn for form in FORMATS}
    assert all(file.stat().st_size > 1000 for file in (page.parent / "figures").iterdir())
    assert {file.name for file in (page.parent / "tables").iterdir()} == {"runs.csv"} | {
        f"{name}.{form}" for name in ("comparison", "coverage", "ensembles") for form in ("csv", "tex", "md")
    }


def test_all_numbers_of_all_runs_are_saved_in_full(page: Path, finished: Study) -> None:
    with (page.parent / "tables" / "runs.csv").open() as file:
        lines = {Path(line["folder"]).name: line for line in csv.DictReader(file)}
    assert len(lines) == len(finished.cells())
    for key, cell in finished.cells().items():
        run, line = finished.run_folder(key), lines[key]
        result = json.loads((run / "result.json").read_text())
        last_epoch = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        assert {axis: line[axis] for axis in cell.labels} == dict(cell.labels)
        assert all(float(line[name]) == result[name] for name in ("top1_error", "nll", "ece", "aurc", "brier"))
        assert float(line["train_loss"]) == last_epoch["train_loss"]
        assert "torch" in line["versions"]


def test_a_page_does_not_say_where_data_lie_on_this_machine(two_hundred: list[Path], tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(two_hundred[0], copy)
    config = yaml.safe_load((copy / "config.yaml").read_text())
    config["data"]["root"] = "/home/somebody/archive/photos"
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    report([copy], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<dt>data.root</dt><dd>.../archive/photos</dd>" in page
    assert "somebody" not in page


def test_numbers_on_the_axes_stay_whole() -> None:
    ticks = [0.1234, 0.1239]

    def draw(axes: Any) -> None:
        axes.set(yticks=ticks, yticklabels=map(str, ticks))

    svg = Figure("curves", "x", "x", "x", draw).svg()
    assert all(f">{tick}<" in svg for tick in ticks)
    assert not re.search(r'\sd="[^"]*\d\.\d{3}', svg)


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_overflows_or_complains(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.open(page, width, dark=dark)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    paper, ink = (browser.run(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))
    brightness = [sum(int(part) for part in colour.strip("rgba()").split(",")[:3]) for colour in (paper, ink)]
    assert (brightness[0] < 150 < 500 < brightness[1]) if dark else (brightness[1] < 150 < 700 < brightness[0])
    text = browser.run("getComputedStyle(document.querySelector('figure svg text')).fill")
    assert text == ink  # figures are drawn in the page's own colour
    assert browser.run("[...document.images].every(image => image.naturalWidth > 0 && image.alt)")
    assert browser.run("document.images.length") == 8
    assert browser.run("[...document.querySelectorAll('figure [role=img]')].every(e => e.ariaLabel.length > 40)")
    assert browser.problems == []


def test_tables_sort(browser: Browser, page: Path) -> None:
    browser.open(page, 1440)
    column = "[...document.querySelectorAll('table')[0].tBodies[0].rows].map(row => Number(row.cells[2].dataset.value))"
    before = browser.run(column)
    browser.run("document.querySelectorAll('table')[0].tHead.rows[0].cells[2].querySelector('button').click()")
    assert browser.run(column) == sorted(before)
    browser.run("document.querySelectorAll('table')[0].tHead.rows[0].cells[2].querySelector('button').click()")
    assert browser.run(column) == sorted(before, reverse=True)
    assert browser.run("document.querySelectorAll('table')[0].tHead.rows[0].cells[2].ariaSort") == "descending"


def test_names_are_shown_as_text(browser: Browser, page: Path) -> None:
    browser.open(page, 1440)
    assert browser.run("document.querySelectorAll('table')[0].tBodies[0].rows[0].cells[0].textContent") == (
        '<script>alert("x")</script> & "CE"'
    )
    assert browser.run("document.scripts.length") == 1
    assert browser.run("document.querySelector('figure [role=img]').ariaLabel.includes('<script>alert')")
    assert browser.run("JSON.stringify(JSON.parse(document.querySelector('[data-hover]').dataset.hover))").count("<scr")


def test_every_id_stands_once(browser: Browser, page: Path) -> None:
    browser.open(page, 1440)
    twice = "[...document.querySelectorAll('[id]')].map(e => e.id).filter((id, i, all) => all.indexOf(id) !== i)"
    assert browser.run(twice) == []


def test_the_papers_number_is_beside_ours(browser: Browser, page: Path) -> None:
    browser.open(page, 1440)
    assert browser.run("document.querySelector('table small:not([class])').textContent") == "paper 20.82*"
    assert browser.run("document.body.textContent.includes('optim.lr: 0.1, 0.05')")


def test_two_hundred_runs(two_hundred: list[Path], tmp_path: Path) -> None:
    report(two_hundred, tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 5e6
    assert "and the best 9 of 38 others" in (tmp_path / "report.html").read_text()


def test_a_folder_whose_name_is_no_text(two_hundred: list[Path], tmp_path: Path) -> None:
    """Its bytes are in the page, and in the table of runs to save, as escapes."""
    odd = Path(shutil.copytree(two_hundred[0], tmp_path / os.fsdecode(b"runs \xff")))
    report([odd], tmp_path / "report.html")
    (link,) = re.findall(
        'download="runs.csv" href="data:text/csv;charset=utf-8,([^"]*)"', (tmp_path / "report.html").read_text()
    )
    assert "runs \\udcff" in unquote(link)


def test_a_run_whose_predictions_were_not_kept_has_its_numbers_and_curves(finished: Study, tmp_path: Path) -> None:
    runs = [Path(shutil.copytree(finished.run_folder(key), tmp_path / key)) for key in list(finished.cells())[:2]]
    error = json.loads((runs[1] / "result.json").read_text())["top1_error"]
    for run in runs:
        (run / "predictions.npz").unlink()
    report(runs, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "2 of 2 runs have no predictions.npz: figures and tables of single predictions are left out." in page
    assert f"{error:.2f}" in page
    assert "Training loss over the epochs" in page


def test_what_a_page_leaves_out_it_says() -> None:
    drawn = [Figure("reliability", f"reliability-{place}", "", "", lambda axes: None) for place in range(17)]
    drawn.append(Figure("ablation", "ablation", "", "", lambda axes: None))
    diagrams, ablation = make_sections([], drawn)
    assert (diagrams.title, diagrams.figures, diagrams.shown) == ("Reliability diagrams", drawn[:17], drawn[:15])
    assert ablation.shown == ablation.figures == drawn[17:]


def test_what_is_flat_is_folded_up_and_explained() -> None:
    def section(*flat: bool) -> PageSection:
        drawn = [Figure("hard_examples", "x", "", "", lambda axes: None, flat=each) for each in flat]
        return PageSection("Hard examples", [], drawn)

    assert section(True, True).is_flat
    assert not section(True, False).is_flat
    assert "right least often" in section(True).about


def test_what_the_page_opens_with(browser: Browser, page: Path) -> None:
    browser.open(page, 1440)
    assert browser.run("document.querySelector('h1').textContent") == "A little study"
    opening = " ".join(browser.run("document.querySelector('.finding p').textContent").split())
    label = '<script>alert("x")</script> & "CE"'
    assert opening.startswith(f"PS-KD against plain cross-entropy ({label}), little.npz, 60 images, 3 seeds:")
    assert opening.count("(") == opening.count(")")
    links = "[...document.querySelectorAll('nav a')].filter(a => !document.getElementById(a.hash.slice(1)))"
    assert browser.run(f"{links}.length") == 0
    assert browser.run("document.querySelectorAll('nav a').length") > 8


def test_nothing_is_clipped_and_nothing_overlaps(browser: Browser, page: Path) -> None:
    """Every text of a figure is inside of the figure, and none lies on another; nor do a page's blocks."""
    browser.open(page, 1440)
    browser.run("document.querySelectorAll('details').forEach(each => each.open = true)")
    outside = """[...document.querySelectorAll('figure svg')].flatMap(svg => {
        const frame = svg.getBoundingClientRect();
        return [...svg.querySelectorAll('text')].filter(text => {
            const own = text.getBoundingClientRect();
            return own.left < frame.left - 1 || own.right > frame.right + 1 || own.top < frame.top - 1
                || own.bottom > frame.bottom + 1;
        }).map(text => text.textContent);
    })"""
    assert browser.run(outside) == []
    over = """(boxes => boxes.flatMap(([name, a], i) => boxes.slice(i + 1).filter(([, b]) =>
        Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3).map(([other]) => `${name} / ${other}`)))"""
    boxes = "[...%s.querySelectorAll('%s')].map(e => [e.textContent, e.getBoundingClientRect()])"
    for number in range(browser.run("document.querySelectorAll('figure svg').length")):
        figure = f"document.querySelectorAll('figure svg')[{number}]"
        assert browser.run(over + "(" + boxes % (figure, "text") + ")") == []
    assert (
        browser.run(over + "(" + boxes % ("document", "h1, h2, .finding, .facts, .wide, figure, article") + ")") == []
    )


def test_a_phone_has_a_fixed_first_column_and_the_rest_behind_a_tap(browser: Browser, page: Path) -> None:
    browser.open(page, 390)
    cell = "document.querySelector('table').tBodies[0].rows[0].cells[%s]"
    browser.run("document.querySelector('.wide').scrollLeft = 100")
    assert browser.run("document.querySelector('.wide').scrollLeft") > 50
    left = "getBoundingClientRect().left"
    assert browser.run(f"{cell % 0}.{left} - document.querySelector('.wide').{left}") == pytest.approx(0, abs=1)
    shown = "[...document.querySelector('table').tHead.rows[0].cells].filter(e => e.offsetWidth).length"
    few, everything = browser.run(shown), browser.run("document.querySelector('table').tHead.rows[0].cells.length")
    assert few < everything
    browser.run("document.querySelector('.tools .more').click()")
    assert browser.run(shown) == everything
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")


def test_a_phone_shows_the_four_main_numbers_at_once(browser: Browser, page: Path) -> None:
    """With each deviation below its mean; on a wide screen it stands beside it."""
    cells = "[...document.querySelector('table').tBodies[0].rows[1].cells].filter(e => e.offsetWidth)"
    below = "document.querySelector('.spread').offsetTop > 12"  # in its cell
    browser.open(page, 390)
    assert browser.run(f"{cells}.length") == 5
    assert browser.run(f"{cells}.slice(1).reduce((sum, cell) => sum + cell.offsetWidth, 0)") < 330
    assert browser.run(below)
    browser.open(page, 1440)
    assert not browser.run(below)


def test_lines_are_told_apart_without_colour(browser: Browser, page: Path) -> None:
    """Those of a figure have markers of different shapes, in its legend too."""
    browser.open(page, 1440)
    shapes = """[...document.querySelectorAll('svg[data-hover*=line-]')].map(svg =>
        [...svg.querySelectorAll('[id*=line-]')].map(line => line.querySelector('defs path')?.getAttribute('d')))"""
    found = browser.run(shapes)
    assert max(map(len, found)) == 2
    for lines in found:
        assert None not in lines
        assert len(set(lines)) == len(lines)
    legend = "document.querySelector('svg[data-hover*=epoch] [id$=-legend_1]').querySelectorAll('use').length"
    assert browser.run(legend) == 2


def test_a_confusion_matrix_is_clear_where_nothing_is(browser: Browser, page: Path) -> None:
    """So that it has the page's own colour there, in the dark too."""
    browser.open(page, 1440)
    picture = "document.querySelector('svg[data-hover*=cells] image').href.baseVal"
    clear = f"""new Promise(done => {{
        const image = new Image(), canvas = document.createElement('canvas').getContext('2d');
        image.onload = () => {{
            Object.assign(canvas.canvas, {{width: image.width, height: image.height}});
            canvas.drawImage(image, 0, 0);
            const pixels = canvas.getImageData(0, 0, image.width, image.height).data;
            done([...pixels].filter((_, place) => place % 4 === 3));
        }};
        image.src = {picture};
    }})"""
    about = json.loads(browser.run("document.querySelector('svg[data-hover*=cells]').dataset.hover"))
    shares = [(count / sum(line)) ** 0.5 for line in about["cells"]["values"] for count in line]
    assert set(browser.run(clear)) == {int(255 * share) for share in shares}


def test_intervals_come_on_demand(browser: Browser, page: Path) -> None:
    browser.open(page, 1440)
    shown = "[...document.querySelectorAll('table')[0].querySelectorAll('.interval')].filter(e => e.offsetWidth).length"
    assert browser.run(shown) == 0
    browser.run("document.querySelector('.tools .intervals').click()")
    assert browser.run(shown) == 2 * browser.run("document.querySelector('table').tHead.rows[0].cells.length - 2")
    arrows = browser.run("[...document.querySelectorAll('table')[0].querySelectorAll('.way')].map(e => e.title)")
    assert set(arrows) == {"lower is better"}


def test_tables_and_figures_can_be_saved_from_the_page(browser: Browser, page: Path) -> None:
    browser.open(page, 1440)
    addresses = browser.run("[...document.querySelectorAll('a[download$=csv]')].map(link => link.href)")
    *texts, runs = [unquote(address.partition(",")[2]) for address in addresses]
    assert runs == (page.parent / "tables" / "runs.csv").read_text()
    assert browser.run("document.querySelectorAll('table').length") == len(addresses)
    saved = [(page.parent / "tables" / f"{name}.csv").read_text() for name in ("comparison", "coverage", "ensembles")]
    assert sorted(texts) == sorted(saved)
    count = browser.run("document.querySelectorAll('figure [role=img]').length")
    assert browser.run("document.querySelectorAll('a.save').length") == count
    link = "document.querySelector('a.save')"
    browser.run(f"{link}.addEventListener('click', event => event.preventDefault()), {link}.click()")
    svg = browser.run(f"fetch({link}.href).then(answer => answer.text())")
    tree = ElementTree.fromstring(svg)
    assert tree.tag == "{http://www.w3.org/2000/svg}svg"
    assert tree.get("color") == "black"


def test_values_are_shown_on_hover(browser: Browser, page: Path) -> None:
    browser.open(page, 1440)
    point_at = """(() => {
        const svg = document.querySelector('%s'), frame = svg.getBoundingClientRect();
        const [x, y] = %s, scale = frame.width / svg.viewBox.baseVal.width;
        const at = {clientX: frame.left + x * scale, clientY: frame.top + y * scale};
        svg.dispatchEvent(new PointerEvent('pointermove', at));
        return document.getElementById('hover').hidden ? null : document.getElementById('hover').textContent;
    })()"""
    curve = "svg[data-hover*=epoch]"
    first = f"document.querySelector('{curve}').querySelector('[id*=line-] path').getAttribute('d').match(/[\\d.]+/g)"
    assert re.fullmatch(r".*: [\d.]+ \(epoch 1\)", browser.run(point_at % (curve, f"{first}.map(Number)")))
    assert browser.run(point_at % (curve, "[1, 1]")) is None
    matrix = "svg[data-hover*=cells]"
    box = f"JSON.parse(document.querySelector('{matrix}').dataset.hover).box"
    middle = f"(box => [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2])({box})"
    assert re.fullmatch(r"1 taken for 1: \d+", browser.run(point_at % (matrix, middle)))


def test_the_baseline_comes_first_wherever_it_stands(finished: Study) -> None:
    rows = collect([finished.folder])[0].rows
    pair, turned = side_by_side(rows), side_by_side(rows[::-1])
    assert pair is not None
    assert turned is not None
    assert pair.names == turned.names == (rows[0].short, "PS-KD")


def test_samples_of_the_command_line_are_numbers(
    finished: Study, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, page = str(finished.folder), str(tmp_path / "report.html")
    code, _, errors = pskd(capfd, "report", folder, "-o", page, "--samples", "17,x")
    assert code == 2
    assert "--samples: 'x' is not a sample's number" in errors
    assert pskd(capfd, "report", folder, "-o", page, "--samples", "17, 42")[0] == 0
    assert "sample 17, label" in Path(page).read_text()


def test_samples_can_be_chosen(finished: Study, tmp_path: Path) -> None:
    rows = collect([finished.folder])[0].rows
    pair, differing = side_by_side(rows, [17, 42]), side_by_side(rows)
    assert pair is not None
    assert differing is not None
    assert [sample.number for sample in pair.samples] == [17, 42]
    assert [sample.label for sample in pair.samples] == ["2", "0"]  # the labels count 0, 1, 2 in turn
    assert len({sample.number for sample in differing.samples}) == 8
    predictions = rows[1].runs[0].predictions()
    assert predictions is not None
    likeliest = float(predictions.probs[42].max())
    assert pair.samples[1].guesses["PS-KD"][0][1] == pytest.approx(likeliest)
    with pytest.raises(PskdError, match=r"--samples: there is no test sample 60; the numbers are 0 to 59"):
        side_by_side(rows, [3, 60])
    report([finished.folder], tmp_path / "report.html", samples=[17, 42])
    text = (tmp_path / "report.html").read_text()
    assert "Chosen test samples" in text
    assert "sample 42, label" in text


def test_imagenets_classes_have_names() -> None:
    """In the order of their numbers, wherever a class stands; of other classes the names stay."""
    numbers = [f"n{place:08d}" for place in range(1000)]
    names = name_classes(numbers)
    facts = {0: "tench", 56: "king snake", 58: "water snake", 324: "cabbage butterfly", 465: "bulletproof vest"}
    facts |= {464: "buckle", 526: "desk", 544: "Dutch oven", 647: "measuring cup", 799: "sliding door"}
    facts |= {827: "stove", 950: "orange", 999: "toilet tissue"}
    assert {place: names[place] for place in facts} == facts
    assert list(name_classes(numbers[::-1])) == list(names)[::-1]
    assert name_classes(numbers[:20]) == numbers[:20]
    assert name_classes(["cat", "dog"]) == ["cat", "dog"]


def test_mistakes(tmp_path: Path, finished: Study) -> None:
    with pytest.raises(PskdError, match="is not a run folder"):
        report([tmp_path], tmp_path / "report.html")
    empty = Study("empty", finished.file, (), tmp_path / "empty", "empty")
    empty.save()
    with pytest.raises(PskdError, match="has no finished cell yet"):
        report([empty.folder], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_damaged_run_is_left_out_and_named(
    finished: Study, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = list(finished.cells())
    for place, key in zip(("good", "$\\frac{$ bad"), keys[:2], strict=True):
        shutil.copytree(finished.run_folder(key), tmp_path / place)
    file = tmp_path / "$\\frac{$ bad" / "metrics.jsonl"
    whole = file.read_text()
    words = ["report", str(tmp_path / "good"), str(file.parent), "-o", str(tmp_path / "page.html")]
    code, out, _ = pskd(capfd, *words)
    assert (code, "left out" in out) == (0, False)
    for content, why in (
        (whole.replace('"epoch": 1', '"epoch": "x"'), r"metrics.jsonl, line 1, is damaged \(epoch: "),
        (
            whole.replace('"train_loss": ', '"train_loss": 1e999, "was": '),
            r"metrics.jsonl, line 1, is damaged \(train_loss",
        ),
    ):
        file.write_text(content)
        code, out, _ = pskd(capfd, *words)
        assert code == 0
        assert re.search(rf"left out: .*{why}", out)
        assert "left out" in (tmp_path / "page.html").read_text()
    code, _, err = pskd(capfd, "report", str(file.parent), "-o", str(tmp_path / "page.html"))
    assert (code, err.count("\n")) == (2, 1)
