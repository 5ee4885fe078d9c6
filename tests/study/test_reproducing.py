"""Every table and figure of the paper has a command in docs/reproducing.md, and every command is one."""

from __future__ import annotations

import re
import shlex
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer.main

from pskd.workbench import recipes, tasks
from pskd.workbench.cli import app
from pskd.workbench.config import resolve
from pskd.workbench.registry import methods
from pskd.workbench.report.figures import FRAMES, LINES
from pskd.workbench.report.page import DIAGRAMS
from pskd.workbench.study.cells import Cell, expand, read_study
from pskd.workbench.study.ranges import parse
from pskd.workbench.study.tune import draw, search

DOC = (Path(__file__).parents[2] / "docs" / "reproducing.md").read_text()
IN_TABLE = dict(re.findall(r"^\| (.+?) \| `(pskd .+?)` \|$", DOC, re.MULTILINE))
COMMANDS = [*IN_TABLE.values(), *re.findall(r"^    (pskd .+)$", DOC, re.MULTILINE)]


def parsed(command: str) -> tuple[str, dict[str, Any]]:
    """The subcommand's name and its parameters, as the command line reads them."""
    _, *words = shlex.split(command)
    kind: Any = typer.main.get_command(app)
    names = []
    while hasattr(kind, "commands"):
        names.append(words.pop(0))
        kind = kind.commands[names[-1]]
    return " ".join(names), kind.make_context(names[-1], words).params


def cells(name: str, *words: str) -> list[Cell]:
    return [cell for cell in expand(read_study(name), words).values() if cell.labels]


def rows(name: str) -> dict[str, list[Cell]]:
    by_label: dict[str, list[Cell]] = {}
    for cell in cells(name):
        label = " · ".join(label for axis, label in cell.labels.items() if axis != "seed")
        by_label.setdefault(label, []).append(cell)
    return by_label


def test_every_table_and_figure_is_there() -> None:
    listed = set()
    for entry in IN_TABLE:
        for kind, names in re.findall(r"(Table|Figure)s? ((?:S?\d)(?:, S?\d)*)", entry):
            listed |= {(kind, name) for name in names.split(", ")}
    tables = {("Table", name) for name in ("1", "2", "3", "4", "5", "6", "S1", "S2", "S3")}
    figures = {("Figure", name) for name in ("2", "3", "4", "S1", "S2", "S3", "S4", "S5", "S6")}
    assert listed == tables | figures
    assert "Figure 1 is a drawing" in DOC


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, given = parsed(command)
    if name == "study run":
        study = read_study(given["name"])
        assert expand(study, given["words"] or ())
        assert recipes.find(given["name"]).read_text().startswith(f"# {command}")
    elif name == "tune":
        monkeypatch.setattr(tasks, "create", lambda config: SimpleNamespace(has_validation=False))
        ranges = [each for each in map(parse, given["words"]) if each is not None]
        words = [word for word in given["words"] if parse(word) is None]
        study = search(given["recipe"], ranges, words, given["seeds"], draw(ranges, given["draws"]))
        assert 1 < len(expand(study)) <= 5
    elif name == "train":
        first, *words = given["words"] if "recipe" not in given else [given["recipe"], *given["words"]]
        assert resolve(recipes.read_recipe(first), words)
    else:
        assert (name, given["samples"]) == ("report", "17,42")


def test_the_search_spaces_of_table_s2() -> None:
    spaces = {}
    for entry, command in IN_TABLE.items():
        if command.startswith("pskd tune"):
            _, given = parsed(command)
            ranges = [parse(word) for word in given["words"]]
            spaces[entry] = {each.key: list(each.values) for each in ranges if each is not None}
            assert (given["draws"], given["seeds"]) == (5, 1)
    tenths = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert spaces == {
        "Table S2, CS-KD drawn anew": {
            "method.temperature": list(range(1, 21)),
            "method.lam": [0.1, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4],
        },
        "Table S2, TF-KD drawn anew": {
            "method.temperature": [20, 30, 40],
            "method.alpha": tenths[:5],
            "method.a": [0.90, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99],
        },
        "Table S2, PS-KD drawn anew": {"method.alpha": tenths},
    }
    assert {cell.config.train.batch_size for cell in cells("studies/random_search")} == {512}


def test_the_random_searchs_draws_lie_in_its_spaces() -> None:
    by_label = rows("studies/random_search")
    drawn = {name: len([label for label in by_label if label.startswith(name)]) for name in ("CS-KD", "TF-KD", "PS-KD")}
    assert drawn == {"CS-KD": 5, "TF-KD": 5, "PS-KD": 5}
    for label, (cell,) in by_label.items():
        method = cell.config.method.model_dump()
        for sign, key in (("τ", "temperature"), ("λ", "lam"), ("a", "a"), ("_T", "alpha")):
            if match := re.search(rf"(?<![a-z]){sign}=([\d.]+)", label):
                assert method[key] == float(match[1]), label


def test_figure_3_has_every_network_and_figures_s4_and_s5_their_mixes() -> None:
    for name, count, method in (("studies/table1", 5, 5), ("studies/table2", 4, 2), ("studies/table4", 2, 5)):
        frames: dict[str, set[str]] = {}
        for label in rows(name):
            frame, _, short = label.rpartition(" · ")
            frames.setdefault(frame, set()).add(short)
        assert len(frames) == count <= FRAMES
        assert {len(members) for members in frames.values()} == {method}
        assert read_study(name).show.first[0] == "calibration"


def test_figure_s2_has_all_eleven_alphas() -> None:
    by_label = rows("studies/alpha_ablation")
    assert list(by_label) == ["0.0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1.0"]
    assert len(by_label) <= min(LINES, DIAGRAMS)
    assert {len(seeds) for seeds in by_label.values()} == {3}
    assert read_study("studies/alpha_ablation").show.first == ("ablation", "reliability")


def test_figure_s3_has_its_lines() -> None:
    by_label = {label: cell.config.method.model_dump() for label, (cell,) in rows("studies/fixed_alpha").items()}
    fixed = [method["alpha"] for label, method in by_label.items() if label.startswith("fixed")]
    assert fixed == [0.1, 0.2, 0.4, 0.6, 0.8]
    assert (by_label["linear to 0.8"]["alpha"], by_label["linear to 0.8"]["schedule"]) == (0.8, "linear")
    assert by_label["LS"]["epsilon"] == 0.1


def test_the_footnote_of_table_1_is_a_row() -> None:
    paper = read_study("studies/table1_footnote").paper
    assert paper is not None
    assert paper.rows["PS-KD (0.7)"] == (17.06, 3.68, 0.69, 6.3, 38.64)
    method = rows("studies/table1_footnote")["PS-KD (0.7)"][0].config.method.model_dump()
    assert method["alpha"] == 0.7
    shared = {cell.key for cell in cells("studies/table1_footnote")} & {cell.key for cell in cells("studies/table1")}
    assert len(shared) == 6


def test_table_4_quotes_two_networks() -> None:
    paper = read_study("studies/table4").paper
    assert paper is not None
    assert paper.literature["DenseNet-264"][:2] == (22.15, 6.12)
    assert paper.literature["ResNeXt-101"][:2] == (21.20, 5.60)


def test_table_s3_has_the_means_of_table_5() -> None:
    paper = read_study("studies/table5").paper
    assert paper is not None
    assert paper.by_class is not None
    assert len(paper.by_class.columns) == 20
    assert paper.by_class.rows.keys() == paper.rows.keys()
    for label, values in paper.by_class.rows.items():
        assert statistics.fmean(float(value or 0) for value in values) == pytest.approx(paper.rows[label][0], abs=5e-5)


def test_table_6_says_how_its_bleu_is_counted() -> None:
    paper = read_study("studies/table6").paper
    assert paper is not None
    assert "tokenised" in paper.note
    assert "sacrebleu" in paper.note


def test_a_generation_learns_from_one_of_another_seed() -> None:
    by_key = expand(read_study("studies/born_again"))
    for number in range(2, 5):
        shown = [cell for cell in by_key.values() if cell.labels.get("generation") == str(number)]
        assert len(shown) == 5
        (teacher,) = {cell.needs for cell in shown}
        assert by_key[teacher[0]].config.train.seed == 98 + number
    chain = [by_key[teacher[0]]]
    while chain[-1].needs:
        chain.append(by_key[chain[-1].needs[0]])
    assert [cell.config.method.name for cell in chain] == ["tf_kd", "tf_kd", "hard"]


def test_the_comparison_has_every_method_with_the_same_training() -> None:
    compared = cells("studies/self_distillation")
    assert {cell.config.method.name for cell in compared} == set(methods.names())
    for data in ("Fashion-MNIST", "CIFAR-100"):
        shown = [cell.config for cell in compared if cell.labels["data"] == data]
        assert len(shown) == 25 * 5
        assert len({repr((each.model, each.optim, each.train.epochs, each.train.batch_size)) for each in shown}) == 1


@pytest.mark.parametrize("study", ["studies/self_distillation", "studies/label_noise"])
def test_methods_have_their_authors_constants_for_the_data(study: str) -> None:
    """TF-KD's multipliers are those of ResNet-18, 50 and 100, over the 100 classes of CIFAR-100."""
    wanted = {
        ("Fashion-MNIST", "ELR"): {"beta": 0.7, "lam": 3},
        ("CIFAR-100", "ELR"): {"beta": 0.9, "lam": 7},
        ("Fashion-MNIST", "TF-KD"): {"variant": "self", "multiplier": 0.5},
        ("CIFAR-100", "TF-KD"): {"variant": "self", "temperature": 6, "alpha": 0.95, "multiplier": 0.5},
    }
    for data in ("Fashion-MNIST", "CIFAR-100"):
        wanted[data, "TF-KD reg"] = {"variant": "reg", "temperature": 20, "alpha": 0.1, "multiplier": 1}
    for cell in cells(study):
        settings = cell.config.method.model_dump()
        assert wanted.get((cell.labels["data"], cell.labels["method"]), {}).items() <= settings.items(), cell.labels
        if cell.labels["method"] == "TF-KD reg":
            assert (settings["released"], settings["a"]) == (None, None)  # what the method's card says: released, 0.99


def test_a_cycle_is_as_long_as_its_teacher_lasts() -> None:
    ours = [cell.config for cell in cells("studies/snapshot_distillation") if "distillation" in cell.labels["method"]]
    assert len(ours) == 5
    assert {each.method.options["refresh"] * each.optim.cycles / each.train.epochs for each in ours} == {1}
