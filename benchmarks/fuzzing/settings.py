"""Cases of settings: on the command line, in YAML files, in studies and searches."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fuzzing.case import TINY, TINY_SCENES, TINY_TEXT, Case, Templates
from fuzzing.values import NUMBERS, WORDS, changed_tree, word
from pskd.workbench.config import describe
from pskd.workbench.recipes import names, read_recipe, study_names

RECIPES = {"digits": TINY, "translation/numbers": TINY_TEXT, "detection/digits": TINY_SCENES}
OPTIONS = [f"model.{name}" for name in ("width", "depth", "blocks", "growth", "layers", "heads", "dropout", "inner")]
OPTIONS += ["model.num_classes", "model.d_model", "model.init", "model.unknown", "model.in_channels", "model.name"]
MADE_UP = [
    *("", ".", "a", "data", "model", "method", "task", "scale", "train", "optim.lr.x", "methods", "laptop", "about"),
]
BOMB = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12))
LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


@cache
def keys() -> list[str]:
    """All settings that there are, and some that there are not."""
    listed = [line.strip().partition("=")[0] for line in describe() if line.startswith("  ") and "=" in line]
    return [key for key in listed if "." in key] + OPTIONS + MADE_UP + ["epochs", "seed", "batch_size"]


def endless(key: str, value: str) -> bool:
    """Whether a training with this setting is right, and takes long or for ever."""
    try:
        number = yaml.safe_load(value)  # which also takes 1_000 and, by sixties, 1:2:3
    except (yaml.YAMLError, ValueError, RecursionError):
        return False
    if key == "eval.batch_size":  # of tokens, where sentences are translated: one by one to their full length
        return isinstance(number, int) and 0 < number < 100
    if key == "train.compile":  # a minute of a C++ compiler, which has its own files in the system's folder for them
        return number in (True, 1, "on", "yes", "y", "t", "true")
    return key in ("epochs", "train.epochs") and isinstance(number, int) and number > 2


def overrides(draw: random.Random, here: Path, templates: Templates) -> Case:
    """`pskd train RECIPE key=value`."""
    recipe = draw.choices(list(RECIPES), [8, *[1] * (len(RECIPES) - 1)])[0]
    words = []
    for _ in range(draw.choice([1, 1, 1, 2])):
        key, value = draw.choice(keys()), word(draw)
        words += [] if endless(key, value) else [f"{key}={value}"]
    return Case(["train", recipe, *RECIPES[recipe], *words, "--out", "run"])


def recipe_files(draw: random.Random, here: Path, templates: Templates) -> Case:
    """`pskd train FILE.yaml`, of a recipe in which something is odd."""
    tree: Any = read_recipe("digits")
    for _ in range(draw.choice([1, 1, 2])):
        tree = changed_tree(draw, tree, lambda: draw.choice([*NUMBERS, *WORDS, None, [], {}, [1], {"a": 1}]))
    text = yaml.safe_dump(tree, allow_unicode=True) if draw.random() < 0.6 else _odd_yaml(draw)
    (here / "mine.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
    return Case(["train", "mine.yaml", *TINY, "--out", "run"])


def _odd_yaml(draw: random.Random) -> str:
    return draw.choice(
        [
            *(BOMB, LAUGHS, "data: " + "[" * 3000, "a: " * 2000, "method: !!int abc", "seed: 2020-13-45", "\x00", "\t"),
            *(
                "seed: " + "9" * 5000,
                "&a a: *a",
                "? [a]\n: b",
                "{[1]: 2}",
                "a: &a {<<: *a}",
                "- 1",
                "3",
                "",
                "---\n---",
            ),
            *(
                "methods: 3",
                "laptop: 3",
                "task: {}",
                "1: 2",
                "null: 1",
                "method: [1]",
                "method: {name: [1]}",
                "a: 1e999",
            ),
            *(
                "seed: !!float x",
                "a: !!timestamp x",
                "a: !!binary é",
                "%YAML 9.9",
                "a: !x 1",
                "\ufeffseed: 1",
                "a: \x1b",
            ),
            "data: " + word(draw),
        ]
    )


def study_files(draw: random.Random, here: Path, templates: Templates) -> Case:
    """`pskd study run FILE.yaml` that is refused, or has no cell left to run."""
    tree: Any = {"about": "x", "recipe": "digits", "settings": {"epochs": 1}, "axes": {"seed": [0, 1]}, "show": {}}
    if draw.random() < 0.2:
        tree["axes"] = {f"optim.{name}": list(range(draw.choice([2, 20]))) for name in "abcdef"}
    tree = changed_tree(draw, tree)
    tree = tree if isinstance(tree, dict) else {"axes": tree}
    tree.setdefault("settings", {})
    if isinstance(tree["settings"], dict):
        tree["settings"]["data.root"], tree["settings"]["data"] = "nowhere", "npz"  # or it would be trained
    tree["axes"] = tree.get("axes") if draw.random() < 0.3 else {"nothing": []}
    (here / "study.yaml").write_text(yaml.safe_dump(tree))
    words = [f"{draw.choice([*keys(), 'seed', 'nothing'])}={word(draw)}"] if draw.random() < 0.3 else []
    words = [item for item in words if not item.startswith("-")]
    return Case(["study", "run", "study.yaml", *words, "--out", "out"])


RANGES = [
    *("0:1:0.1", "1:0:0.1", "0:1:1e-9", "0:1:0", "1..2000000000", "5..1", "1~0", "0.01~1", "a,b", ",,,", "0:1e308:1"),
]
RANGES += ["'a,b", "[1,2],[3]", "1e400:2:3", "0:1:-1", "-1..1", "9" * 400 + "..1", "1..9" + "9" * 400, "nan~1"]


def searches(draw: random.Random, here: Path, templates: Templates) -> Case:
    """`pskd tune` that is refused, at the latest since nothing is held out to choose by."""
    key = draw.choice(["method.alpha", "seed", "optim.lr", "nothing", "", "model", "method"])
    words = [f"{key}={draw.choice([*RANGES, word(draw)])}", "data.val_fraction=0"]
    words += draw.choice(
        [[], ["--random", draw.choice(["1", "0", "9999999999", "x"])], ["--by", "x"], ["--seeds", "9" * 12]]
    )
    return Case(["tune", draw.choice(["digits", "digits", "nothing"]), *words, "--out", "out"])


COMMANDS = [
    *("train", "tune", "evaluate", "predict", "ensemble", "report", "study", "recipes", "nothing", "--version", "-h"),
]
PLACES = ["run", "missing", "", ".", "..", "/", "/proc/x", "/dev/null", "/proc/self/mem", "x" * 300, "a/" * 2500 + "a"]
PLACES += ["file.txt", "file.txt/x", "folder", "\udcff", "a\nb", "~", "$\\frac{$", "-", "link", "run/config.yaml"]
OUTSIDE = {"/", "..", "/proc/self/mem"}  # nothing of the machine's is at stake
FLAGS = ["--out", "-o", "--figures", "--tables", "--samples", "--split", "--root", "--top", "--min-score", "--draw"]
FLAGS += ["--text", "--best", "--json", "--bins", "--resume", "--settings", "--storage", "--workers", "--nothing", "-x"]


def commands(draw: random.Random, here: Path, templates: Templates) -> Case:
    """Any command with any words, among a user's own files."""
    _copy(templates.finished, here / "run")
    (here / "file.txt").write_text("kept")
    (here / "folder").mkdir()
    (here / "folder" / "notes.txt").write_text("kept")
    (here / "link").symlink_to("nowhere")
    command = draw.choice(COMMANDS)
    words = [command]
    if command == "study":
        words.append(draw.choice(["run", "work", "status", "stop", "nothing"]))
    elif command == "recipes":
        words += draw.choice(
            [["ls"], ["show"], ["copy"], ["copy", "digits"], ["show", draw.choice([*names(), *study_names()])]]
        )
    for _ in range(draw.randrange(4)):
        words.append(
            draw.choice([draw.choice(PLACES), draw.choice(PLACES), draw.choice(FLAGS), word(draw), "run", "digits"])
        )
    if {"tune", "train"} & {command} or words[:2] == ["study", "run"]:
        words += [*TINY, "data=npz", "data.root=missing"]  # wrong in the end, or it would be trained
    return Case([item.replace("\0", "") for item in words], walled=not OUTSIDE.isdisjoint(words))


def places(draw: random.Random, here: Path, templates: Templates) -> Case:
    """A file where a folder is wanted, the reverse, and places that are no places."""
    case = commands(draw, here, templates)
    place, flag = draw.choice(PLACES), draw.choice(["-o", "--figures", "--tables"])
    case.words = draw.choice(
        [
            *(["report", "run", flag, place], ["report", place], ["train", "digits", *TINY, "--out", place]),
            *(["train", "--resume", "--out", place], ["evaluate", place], ["evaluate", "run", "--root", place]),
            *(["predict", "run", place], ["predict", place, "file.txt"], ["ensemble", "run", place]),
            *(["recipes", "copy", "digits", place], ["study", draw.choice(["work", "status", "stop"]), place]),
            ["train", "digits", *TINY, f"method.path={place}", "--out", "new"],
            ["train", "digits", *TINY, "method=tf_kd", f"method.teacher={place}", "--out", "new"],
            ["train", draw.choice(["folder", "digits"]), "data=folder", f"data.root={place}", "--out", "new"],
            ["train", "translation/numbers", "data=files", f"data.root={place}", "--out", "new"],
            ["train", "detection/digits", "data=voc_folder", "data.train=[a]", f"data.root={place}", "--out", "new"],
        ]
    )
    case.walled = place in OUTSIDE
    return case


def _copy(source: Path, to: Path) -> None:
    import shutil

    shutil.copytree(source, to)
