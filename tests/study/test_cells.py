"""A study file becomes cells, each named by the hash of its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from pskd.errors import PskdError
from pskd.workbench import recipes
from pskd.workbench.study.cells import Cell, Study, StudyFile, expand, read_study

FILE = {
    "about": "",
    "recipe": "digits",
    "settings": {"data.per_class": 10},
    "axes": {
        "method": {
            "CE": {"method": "hard"},
            "TF-KD": {"method": "tf_kd", "method.teacher": {"cell": {"method": "hard"}}},
            "PS-KD": {"method": "ps_kd", "method.alpha": 0.5},
        },
        "seed": [0, 1],
    },
}


def cells(*words: str, **changes: object) -> list[Cell]:
    return list(expand(StudyFile.model_validate({**FILE, **changes}), words).values())


def test_every_combination_is_a_cell() -> None:
    expanded = cells()
    assert [(cell.labels["method"], cell.labels["seed"]) for cell in expanded] == [
        (method, seed) for seed in ("0", "1") for method in ("CE", "TF-KD", "PS-KD")
    ]  # all methods of the first seed first
    assert len({cell.key for cell in expanded}) == 6
    assert all(cell.config.data.per_class == 10 for cell in expanded)  # type: ignore[attr-defined]
    assert expanded[-1].config.method.alpha == 0.5  # type: ignore[union-attr]


def test_a_method_drops_the_settings_of_the_one_before_whatever_the_order() -> None:
    axes = {"method": {"PS-KD": {"method.alpha": 0.5, "method": "ps_kd"}}, "seed": [0]}
    (one,) = cells(axes=axes, settings={"method": "cs_kd", "method.lam": 2.0})
    assert one.config.method.alpha == 0.5  # type: ignore[union-attr]


def test_a_teacher_is_the_plain_cell_of_the_same_seed(tmp_path: Path) -> None:
    plain, students = cells()[::3], cells()[1::3]
    assert [student.needs for student in students] == [(teacher.key,) for teacher in plain]
    assert students[1].config_in(tmp_path).method.teacher == str(tmp_path / plain[1].key)  # type: ignore[union-attr]


def test_a_needed_cell_that_is_on_no_axis_comes_along_before() -> None:
    expanded = cells("method=TF-KD", "seed=1")
    assert [cell.config.method.name for cell in expanded] == ["hard", "tf_kd"]
    assert not expanded[0].labels
    assert "hard" in expanded[0].name


def test_a_need_can_be_a_run_of_another_recipe() -> None:
    trunk = {"cell": {"recipe": "fashion_mnist", "method": "hard"}}
    needed, own = cells(
        "digits:data.num_classes=3",
        "epochs=7",
        axes={"trunk": {"plain": {"method": "tf_kd", "method.teacher": trunk}}, "seed": [5]},
    )
    assert needed.config.recipe == "fashion_mnist"
    assert needed.config.data.per_class is None  # type: ignore[attr-defined]
    assert [cell.config.data.num_classes for cell in (needed, own)] == [None, 3]  # type: ignore[attr-defined]
    assert needed.config.train.epochs == own.config.train.epochs == 7
    assert needed.config.train.seed == own.config.train.seed == 5
    assert own.needs == (needed.key,)


def test_keys_follow_the_settings_and_nothing_else() -> None:
    keys = [cell.key for cell in cells()]
    assert [cell.key for cell in cells()] == keys
    assert {cell.key for cell in cells("seed=0,1,2")} > set(keys)
    assert set(keys).isdisjoint(cell.key for cell in cells("optim.lr=0.2"))
    assert [cell.key for cell in cells("train.threads=3", "train.save_every=1 epoch")] == keys
    other = dict(FILE["axes"], method={"plain": {"method": "hard"}})  # type: ignore[call-overload]
    assert {cell.key for cell in cells(axes=other)} < set(keys)


@pytest.mark.parametrize(
    ("words", "changes", "message"),
    [
        (["method=XY"], {}, "method=XY: this axis has no such value; it has CE, TF-KD, PS-KD"),
        (["epochs"], {}, "'epochs' is not a setting"),
        (["optim.lrr=1"], {}, "did you mean optim.lr?"),
        ([], {"recipe": None}, "recipe is missing"),
        ([], {"recipe": "digit"}, "did you mean digits?"),
        ([], {"axes": {"seed": []}}, "axes.seed has no value"),
        ([], {"axes": {"seed": list(range(200)), "epochs": list(range(1, 102))}}, "this study has 20,200 cells"),
    ],
)
def test_mistakes(words: list[str], changes: dict[str, object], message: str) -> None:
    with pytest.raises(PskdError, match=message.replace("?", r"\?")):
        cells(*words, **changes)


def test_a_mistake_in_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("about: x\nrecipe: digits\naxis: {seed: [0]}\naxes: {seed: [0]}\n")
    with pytest.raises(PskdError, match=r"mine\.yaml: axis: extra inputs .* allowed are about, recipe"):
        read_study(str(file))


def test_a_study_is_found_again_in_its_folder(tmp_path: Path) -> None:
    study = Study.begin("studies/digits", ["epochs=3"], tmp_path / "study")
    study.save()
    again = Study.load(tmp_path / "study")
    assert again == study
    assert list(again.cells()) == list(study.cells())
    assert Study.begin("studies/digits", ["epochs=4"], tmp_path / "study").identity == study.identity
    with pytest.raises(PskdError, match=r"is not a study's folder"):
        Study.load(tmp_path)


def test_values_with_commas_can_be_chosen() -> None:
    axes = {"data": {"a, b": {"data.per_class": 5}, "c": {"data.per_class": 6}}, "seed": [0]}
    assert [cell.labels["data"] for cell in cells('data="a, b",c', axes=axes)] == ["a, b", "c"]
    assert [cell.labels["data"] for cell in cells("data=a, b", axes=axes)] == ["a, b"]
    axes = {"optim.milestones": [[0.3, 0.6], [0.5]], "seed": [0]}
    (one,) = cells("optim.milestones=[0.3, 0.6]", axes=axes)
    assert one.config.optim.milestones == (0.3, 0.6)
    two = cells("optim.milestones=[0.1,0.2],[0.5]", axes=axes)
    assert [cell.config.optim.milestones for cell in two] == [(0.1, 0.2), (0.5,)]
    (small,) = cells("optim.lr=1e-3", axes={"optim.lr": [0.1], "seed": [0]})
    assert small.config.optim.lr == 0.001


def test_a_second_study_in_a_folder_keeps_the_first_ones_file_and_page(tmp_path: Path) -> None:
    Study.begin("studies/digits", [], tmp_path).save()
    (tmp_path / "report.html").write_text("digits")
    other = Study.begin("studies/alpha_ablation", ["seed=0"], tmp_path)
    other.save()
    other.save()
    assert Study.load(tmp_path) == other
    assert (tmp_path / "report-digits.html").read_text() == "digits"
    assert "name: digits" in (tmp_path / "study-digits.yaml").read_text()


@pytest.mark.parametrize("name", recipes.study_names())
@pytest.mark.parametrize("scale", ["full", "laptop"])
def test_every_shipped_study_is_a_graph_of_cells(name: str, scale: str) -> None:
    study = read_study(name)
    wanted = _recipes_in(study.model_dump())
    if missing := wanted - set(recipes.names()):
        pytest.skip(f"this package has no recipe {', '.join(sorted(missing))}")
    by_key = expand(study, [f"scale={scale}"])
    seen: set[str] = set()
    for key, cell in by_key.items():
        assert seen.issuperset(cell.needs)
        seen.add(key)
    if study.paper is not None:
        rows = {" · ".join(label for axis, label in cell.labels.items() if axis != "seed") for cell in by_key.values()}
        assert set(study.paper.rows) <= rows
        assert all(len(row) == len(study.paper.columns) for row in study.paper.rows.values())
    assert recipes.find(name).read_text().startswith(f"# pskd study run {name} --out ")


def _recipes_in(tree: object) -> set[str]:
    if isinstance(tree, dict):
        own = {tree["recipe"]} if isinstance(tree.get("recipe"), str) else set()
        return own.union(*map(_recipes_in, tree.values()))
    return set()
