"""Odd, damaged and hostile commands, settings, data and run folders: each must end soon, with one clear line.

    python benchmarks/fuzz.py --cases 5000 --seed 1     (about 20 minutes on one core)
    python benchmarks/fuzz.py --seed 1 --case 1234      (one case again, with its output)

Every case is a function of (seed, number). It must have exit code 0 or 2 (130 after Ctrl-C), at most one line on
standard error, which begins with `pskd:`, no traceback, less than 20 seconds and 2 GB; it may change no file outside of
its folder and run no code. Most cases are forks of one process that has loaded everything; some are real processes.
Prints a line for each kind of case and every failure; exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from fuzzing import data_files, folders, settings
from fuzzing.case import TINY, TINY_SCENES, TINY_TEXT, Case, Generator, Templates
from fuzzing.judge import Verdict, judge_case

PROCESSES = 0.01  # of the cases: a start takes seconds
OTHERS = {"thesis.txt": "years of work", "model.safetensors": "weights", "metrics.jsonl": "{}", "report.html": "mine"}


def surroundings(draw: random.Random, here: Path, templates: Templates) -> Case:
    """Standard output closed or full, other encodings, odd variables, Ctrl-C: as real processes."""
    shutil.copytree(templates.finished, here / "run")
    shutil.copy(templates.finished.parent / "x.png", here)
    command = draw.choice([["evaluate", "run"], ["predict", "run", "x.png"], ["recipes", "ls"], ["report", "run"]])
    command = draw.choice([command, ["train", "digits", *TINY, "--out", "new"], ["--help"]])
    case = Case(command, process=True)
    kind = draw.choice(["closed", "pipe", "full", "interrupts", "interrupts", "encoding", "rank"])
    if kind == "interrupts":
        case.interrupts = draw.choice(
            [(20, draw.uniform(0.3, 4)), (1, draw.uniform(0.3, 1)), (2, draw.uniform(0.3, 6))]
        )
    elif kind == "encoding":
        case.environment = {"PYTHONIOENCODING": draw.choice(["ascii", "latin-1", "utf-16", "cp1252"]), "LC_ALL": "C"}
    elif kind == "rank":
        case.environment = draw.choice([{"RANK": "1"}, {"RANK": "x"}, {"RANK": "0", "WORLD_SIZE": "2"}])
    else:
        case.output = kind
    return case


KINDS: dict[str, tuple[int, Generator]] = {
    "settings": (24, settings.overrides),
    "recipe files": (10, settings.recipe_files),
    "study files": (5, settings.study_files),
    "searches": (4, settings.searches),
    "commands": (8, settings.commands),
    "places": (8, settings.places),
    "run folders": (22, folders.run_folders),
    "study folders": (4, folders.study_folders),
    "image folders": (6, data_files.image_folders),
    "arrays": (4, data_files.arrays),
    "texts": (3, data_files.texts),
    "annotations": (3, data_files.annotations),
}


def templates_in(folder: Path, images_only: bool) -> Templates:
    """Small runs, made once; this also loads what the cases need.

    With ``images_only``, runs of classification replace the others, whose libraries take seconds to load.
    """
    import yaml
    from PIL import Image

    import pskd.workbench.cli  # noqa: F401  # or each case would load it
    from pskd.workbench.config import resolve
    from pskd.workbench.recipes import read_recipe
    from pskd.workbench.report.page import report
    from pskd.workbench.study.cells import Study, StudyFile
    from pskd.workbench.study.queue import Queue
    from pskd.workbench.study.worker import Worker
    from pskd.workbench.train.loop import train

    names = ("finished", "other", "stopped", *(("other", "other") if images_only else ("text", "scenes")), "study")
    made = Templates(*(folder / name for name in names))
    saving = "train.save_every=1 epoch"
    for out, recipe, words in (
        (made.finished, "digits", (*TINY, "epochs=2", saving)),
        (made.other, "digits", (*TINY, "epochs=2", "seed=1", "method=hard")),
        (made.stopped, "digits", (*TINY, "epochs=2", "train.save_every=2 steps")),
        (made.text, "translation/numbers", (*TINY_TEXT, saving)),
        (made.scenes, "detection/digits", (*TINY_SCENES, saving)),
    )[: 3 if images_only else None]:
        train(resolve(read_recipe(recipe), words, name=recipe), out)
    for name in ("result.json", "model.safetensors", "predictions.npz"):
        (made.stopped / name).unlink()
    Image.new("L", (8, 8)).save(folder / "x.png")
    cells = {word.partition("=")[0]: yaml.safe_load(word.partition("=")[2]) for word in TINY}
    file = StudyFile(about="", recipe="digits", settings=cells, axes={"method": ["hard", "ps_kd"], "seed": [0]})
    study = Study("small", file, (), made.study, "small")
    study.save()
    Worker(Queue(study), say=lambda _: None).work()
    report([made.finished, made.study], folder / "report.html")
    return made


def run_case(
    seed: int, number: int, templates: Templates, folder: Path, kind: str | None = None
) -> tuple[str, Case, Verdict]:
    """Make, run and judge one case in an empty folder."""
    draw = random.Random(f"{seed} {number}")
    shutil.rmtree(folder, ignore_errors=True)
    here, outside = folder / "here", folder / "outside"
    here.mkdir(parents=True)
    outside.mkdir()
    for name, text in OTHERS.items():
        (outside / name).write_text(text)
    (here / "evil.py").write_text("open('pwned', 'w')\nthing = None\n")
    if kind is None and draw.random() < PROCESSES:
        name, make = "surroundings", surroundings
    else:
        name = kind or draw.choices(list(KINDS), [share for share, _ in KINDS.values()])[0]
        make = KINDS[name][1] if name in KINDS else surroundings
    case = make(draw, here, templates)
    return name, case, judge_case(case, here)


def run_cases(
    cases: range, seed: int, kind: str | None = None, *, show: bool = False, images_only: bool = False
) -> tuple[Counter[str], list[str]]:
    """Run cases; returns the number of each kind, and a line for each that failed."""
    count: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="pskd-fuzz-") as place:
        base = Path(place)
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            templates = templates_in(base / "templates", images_only)
        for number in cases:
            name, case, verdict = run_case(seed, number, templates, base / "case", kind)
            count[name] += 1
            if count.total() % 100 == 0:
                print(f"{count.total()} of {len(cases)} cases, {len(failures)} failed", file=sys.stderr, flush=True)
            if verdict.wrong:
                words = " ".join(map(_shown, case.words))
                text = verdict.stderr.strip()[-300:] if verdict.wrong.startswith("exit") else ""
                failures.append(f"{name} {number}: {verdict.wrong}: pskd {words}: {text}")
                print(failures[-1], flush=True)
            if show:
                print(f"{case}\n{verdict.seconds:.2f} s, standard error:\n{verdict.stderr}")
                kept = Path(tempfile.gettempdir(), "fuzz-case")
                shutil.rmtree(kept, ignore_errors=True)
                shutil.move(base / "case", kept)  # a copy of a sparse file would fill the disk
    return count, failures


def _shown(word: str) -> str:
    shown = ascii(word)[1:-1]
    return f"'{shown[:60]}'" if len(shown) > 60 or " " in shown or not shown else shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--case", type=int, help="this case only, with its output")
    parser.add_argument("--kind", choices=[*KINDS, "surroundings"], help="cases of one kind only")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    begun = time.monotonic()
    cases = range(options.first, options.first + options.cases)
    if options.case is not None:
        cases = range(options.case, options.case + 1)
    count, failures = run_cases(cases, options.seed, options.kind, show=options.case is not None)
    for name, number in count.items():
        print(f"{name}: {number} cases, {sum(line.startswith(name) for line in failures)} failed")
    print(f"{count.total()} cases, {len(failures)} failed, {time.monotonic() - begun:.0f} s")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
