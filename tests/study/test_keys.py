"""A cell's key depends on what changes the result; a run folder with another name is recognised by it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import small
from processes import in_child
from pydantic import create_model

from pskd.workbench.config import Config
from pskd.workbench.config.base import TrainConfig
from pskd.workbench.runs.folder import RunFolder
from pskd.workbench.study.cells import Study, StudyFile, expand
from pskd.workbench.study.keys import key_of
from pskd.workbench.study.queue import Queue, State

AXES: dict[str, Any] = {
    "method": {
        "CE": {"method": "hard"},
        "TF-KD": {"method": "tf_kd", "method.teacher": {"cell": {"method": "hard"}}},
    },
    "seed": [0],
}
FILE = StudyFile(about="", recipe="digits", axes=AXES)


class LaterTrainConfig(TrainConfig):
    new_in_a_release: int = 3


LaterConfig = create_model("LaterConfig", __base__=type(small()), train=(LaterTrainConfig, LaterTrainConfig()))


def test_a_new_setting_with_a_default_leaves_the_key() -> None:
    tree = small().model_dump(mode="json")
    assert key_of(LaterConfig.model_validate(tree)) == key_of(small())
    tree["train"]["new_in_a_release"] = 4
    assert key_of(LaterConfig.model_validate(tree)) != key_of(small())


@pytest.mark.parametrize("word", ["data.root=/moved", "train.device=cpu", "train.threads=1", "data.workers=0"])
def test_where_and_how_leave_the_key(word: str) -> None:
    assert key_of(small(word)) == key_of(small())
    assert list(expand(FILE, [word])) == list(expand(FILE))


@pytest.mark.parametrize("word", ["method=hard", "epochs=9", "method.k=5", "model.width=8", "eval.ece_bins=15"])
def test_what_is_learnt_changes_it(word: str) -> None:
    assert key_of(small(word)) != key_of(small())


def test_recipe_and_scale_say_only_where_settings_came_from() -> None:
    assert key_of(small().model_copy(update={"recipe": "mine", "scale": "laptop"})) == key_of(small())


def test_a_teacher_counts() -> None:
    keys = {key_of(small("method=tf_kd", f"method.teacher={place}")) for place in ("a/run", "another/run", "cell:0123")}
    assert len(keys) == 3


def test_a_default_of_the_whole_section_is_one_setting_after_the_other() -> None:
    """A detector's eval.batch_size is 8 where the class has 512."""
    detector = StudyFile(about="", recipe="detection/digits", axes={"eval.batch_size": [8, 512, 64], "seed": [0]})
    assert len(expand(detector)) == 3


def test_data_that_the_study_compares_are_told_apart() -> None:
    file = StudyFile(about="", recipe="npz", axes={"data.root": ["one.npz", "other.npz"], "seed": [0]})
    assert len(expand(file)) == 2


def finished(path: Path, config: Config) -> None:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(config.to_yaml())
    (path / "result.json").write_text("{}")


def test_a_run_with_an_old_name_is_adopted_and_not_trained_again(tmp_path: Path) -> None:
    plain, student = expand(FILE).values()
    runs = tmp_path / "runs"
    finished(runs / "old-plain", plain.config)
    teacher = student.config.method.model_copy(update={"teacher": "/elsewhere/runs/old-plain"})
    finished(runs / "old-student", student.config.model_copy(update={"method": teacher}))
    finished(runs / "another", small())
    study = Study.of("mine", FILE, tmp_path)
    study.save()
    assert {path.name for path in runs.iterdir()} == {plain.key, student.key, "another"}
    assert RunFolder(runs / student.key).config().method.teacher == str(runs / plain.key)  # type: ignore[union-attr]
    assert {standing.state for standing in Queue(study).standings().values()} == {State.DONE}
    Study.of("mine", FILE, tmp_path)
    assert len(list(runs.iterdir())) == 3


def test_what_is_not_ours_to_rename_stays(tmp_path: Path) -> None:
    plain, _ = expand(FILE).values()
    runs = tmp_path / "runs"
    finished(tmp_path / "elsewhere", plain.config)
    runs.mkdir()
    (runs / "link").symlink_to(tmp_path / "elsewhere")
    (runs / "empty").mkdir()
    (runs / "damaged").mkdir()
    (runs / "damaged" / "config.yaml").write_text("{")
    before = sorted(runs.rglob("*"))
    Study.of("mine", FILE, tmp_path)
    assert sorted(runs.rglob("*")) == before


def test_a_run_in_use_is_not_renamed(tmp_path: Path) -> None:
    plain, _ = expand(FILE).values()
    folder = tmp_path / "runs" / "old"
    finished(folder, plain.config)
    ready = tmp_path / "ready"

    def hold() -> None:
        RunFolder(folder).claim(None, resume=True)
        ready.touch()
        time.sleep(60)

    child = in_child(hold)
    while not ready.exists():
        time.sleep(0.01)
    Study.of("mine", FILE, tmp_path)
    assert folder.exists()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    Study.of("mine", FILE, tmp_path)
    assert not folder.exists()
