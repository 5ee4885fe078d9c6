"""Translation from the command line to the run folder: the same loop, methods and promises as classification."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from banks import stored
from chaos import equal
from helpers import metrics_of, pskd
from processes import in_child
from safetensors.torch import load_file

from pskd.errors import PskdError
from pskd.methods.hard import Hard
from pskd.metrics.translation import score_translations
from pskd.workbench.config import Config, resolve
from pskd.workbench.data.text.numbers import number_words
from pskd.workbench.recipes import read_recipe
from pskd.workbench.runs import checkpoint
from pskd.workbench.runs.checkpoint import Checkpoints
from pskd.workbench.runs.group import Group
from pskd.workbench.tasks.predictor import Answer
from pskd.workbench.tasks.translation import Translation
from pskd.workbench.train.loop import train
from pskd.workbench.use import evaluate, predict

TINY = ("model.layers=1", "model.width=16", "model.heads=2", "model.inner=16", "data.vocabulary=80")
QUICK = ("epochs=3", "batch_size=256", "eval.every=3", "eval.beam=2")
METHODS = {
    "bank": (),
    "snapshot twice an epoch": ("method.memory=snapshot", "method.refresh=0.5"),
    "label smoothing, averaged": ("method=label_smoothing", "train.average=2"),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Number words in files: 120 pairs to train on, 8 each to validate and test."""
    root = tmp_path_factory.mktemp("numbers")
    numbers = random.Random(0).sample(range(1000), 136)
    for stem, chosen in (("train", numbers[:120]), ("val", numbers[120:128]), ("test", numbers[128:])):
        for language in ("de", "en"):
            lines = [number_words(number, language) for number in chosen]
            (root / f"{stem}.{language}").write_text("\n".join(lines) + "\n")
    return root


def settings(folder: Path, *overrides: str) -> list[str]:
    return ["data=files", f"data.root={folder}", *TINY, *QUICK, *overrides]


def small(folder: Path, *overrides: str) -> Config:
    return resolve(read_recipe("translation/numbers"), settings(folder, *overrides), name="translation/numbers")


@pytest.fixture(scope="session")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    train(small(folder, "train.save_every=1 epoch"), out)
    return out


def test_a_run_has_all_that_a_report_needs(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    assert {"bleu", "bleu_lower", "chrf", "nll", "ece"} <= result.keys()
    assert result["signatures"]["bleu_lower"].startswith("nrefs:1|case:lc")
    assert result["best"]["val"].keys() == result["val"].keys()
    with np.load(finished / "predictions.npz", allow_pickle=False) as predictions:
        sources = predictions["source"].tolist()
        found, references = predictions["translation"].tolist(), predictions["reference"].tolist()
    assert score_translations(found, references)[0]["chrf"] == result["chrf"]
    log = (finished / "log.txt").read_text()
    assert "padding" in log
    assert sum(f"{source} -> {text}" in log for source, text in zip(sources, found, strict=True)) == 3


def test_the_bank_has_a_row_for_every_target_token(finished: Path, folder: Path) -> None:
    newest = Checkpoints(finished / "checkpoints", 1).newest(pytest.fail)
    assert newest is not None
    records = stored(checkpoint.load(newest, "method-0")["memory"])
    task = Translation(small(folder))
    assert torch.equal(records.label.long(), task.train.target.tokens)


def test_evaluate_and_predict_need_nothing_but_the_run(
    finished: Path, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = json.loads((finished / "result.json").read_text())
    code, out, _ = pskd(capfd, "evaluate", str(finished))
    assert code == 0
    assert f"{result['chrf']:.2f}  (nrefs:1|case:mixed|eff:yes" in out
    alone = evaluate(finished, "test")
    assert (alone["bleu"], alone["nll"]) == (result["bleu"], pytest.approx(result["nll"]))

    with np.load(finished / "predictions.npz", allow_pickle=False) as predictions:
        expected = predictions["translation"].tolist()
    lines = (folder / "test.de").read_text().splitlines()
    code, out, _ = pskd(capfd, "predict", str(finished), str(folder / "test.de"))
    assert (code, out.splitlines()) == (0, expected)
    code, out, _ = pskd(capfd, "predict", str(finished), "--text", lines[1], "--text", lines[0], "--json")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["translation"] for answer in answers] == [expected[1], expected[0]]
    broken = tmp_path / "broken.txt"
    broken.write_bytes(lines[0].encode() + b"\n\n\xff\n" + lines[1].encode())
    code, out, err = pskd(capfd, "predict", str(finished), str(broken), "nowhere.txt")
    assert (code, out.splitlines()) == (2, [expected[0], "", expected[1]])
    assert "broken.txt, line 3: not UTF-8" in err
    assert "nowhere.txt" in err


def test_predict_reads_what_is_piped_in(finished: Path, folder: Path) -> None:
    source = (folder / "test.de").read_bytes()
    read, write = os.pipe()
    os.write(write, source)
    os.close(write)
    kept = os.dup(0)
    os.dup2(read, 0)
    try:
        answers = list(predict(finished, []))
    finally:
        os.dup2(kept, 0)
    assert len(answers) == 8
    assert not any(isinstance(answer, PskdError) for answer in answers)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_killed_and_resumed_equals_undisturbed(method: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = small(folder, "train.save_every=2 steps", *method)
    draw, kills = random.Random(str(method)), 0
    while not (out / "result.json").exists():
        child = in_child(lambda: train(config, out, resume=True))
        if kills < 4:
            time.sleep(draw.uniform(0.3, 1.0))
            os.kill(child, signal.SIGKILL)
            kills += 1
        os.waitpid(child, 0)
    undisturbed = tmp_path / "undisturbed"
    train(small(folder, "train.save_every=2 steps", *method), undisturbed)
    assert equal(out, undisturbed)


def test_averaged_weights_are_those_of_the_last_epochs(folder: Path, tmp_path: Path) -> None:
    settings = ("method=hard", "train.save_every=1 epoch", "train.keep_last=3")
    train(small(folder, *settings), tmp_path / "plain")
    train(small(folder, *settings, "train.average=2"), tmp_path / "averaged")
    last = [
        checkpoint.load(tmp_path / "plain" / "checkpoints" / step.name, "model")
        for step in sorted((tmp_path / "plain" / "checkpoints").iterdir())
    ][-2:]
    averaged = load_file(tmp_path / "averaged" / "model.safetensors")
    for name, weight in averaged.items():
        torch.testing.assert_close(weight, (last[0][name] + last[1][name]) / 2)
    assert metrics_of(tmp_path / "plain") == metrics_of(tmp_path / "averaged")


def test_processes_and_parts_give_the_gradient_of_the_whole_batch(folder: Path) -> None:
    """Tokens are counted, not sentences; a process with nothing but padding changes nothing."""
    gradients = []
    for world, accumulate in ((1, 1), (2, 3), (200, 1)):
        task = Translation(small(folder, f"train.accumulate={accumulate}", "model.dropout=0"))
        torch.manual_seed(0)
        model, group = task.model(), Group()
        ranks = range(world) if world < 3 else (0, 1, 2, 150, 199)
        model.zero_grad()
        for rank in ranks:
            group.rank, group.world = rank, world
            step = task.plan(0, group)[1]
            for batch, real in zip(task.batches([step], 0, torch.device("cpu")), step.real, strict=True):
                (task.loss(model, batch, real, Hard())[0].total * (real / step.total)).backward()
        if world < 3:
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        else:
            assert step.real == (0,)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)


def test_more_padding_changes_no_loss(folder: Path) -> None:
    task = Translation(small(folder, "model.dropout=0"))
    model = task.model()
    short, long = task.train.target.lengths.argsort()[[0, -1]]
    alone = [task.train.batch(which[None], torch.device("cpu")) for which in (short, long)]
    both = task.train.batch(torch.stack((short, long)), torch.device("cpu"))
    counts = [int((batch.targets >= 0).sum()) for batch in alone]
    losses = [task.loss(model, batch, 1, Hard())[0].total.item() for batch in alone]
    together = task.loss(model, both, 2, Hard())[0].total.item()
    assert counts[0] < counts[1]
    assert together == pytest.approx(np.average(losses, weights=counts), rel=1e-5)


def test_pairs_that_are_too_long_are_named(folder: Path) -> None:
    with pytest.raises(PskdError, match=r"pairs are bad \(\d+ over data.max_length=12 tokens; lines"):
        Translation(small(folder, "data.max_length=12"))
    task = Translation(small(folder, "data.max_length=12", "data.on_bad=skip"))
    assert int(task.train.target.lengths.max()) <= 12
    assert task.notes[0].startswith(f"{folder}/train.de and .en: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method=cs_kd"], "translation takes hard, label_smoothing, ps_kd"),
        (["data.max_length=5000"], "data.max_length=5000"),
        (["optim.warmup_steps=null"], "needs warmup_steps"),
        (["data.on_bad=ignore"], "data.on_bad"),
        (["data=file"], "data 'file' is unknown"),
    ],
)
def test_wrong_settings_end_in_one_line(
    words: list[str], message: str, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "run")
    code, _, err = pskd(capfd, "train", "translation/numbers", *settings(folder, *words), "--out", out)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_bleu_is_that_of_sacrebleus_command_line(tmp_path: Path) -> None:
    references = ["The cat sat on the mat.", "A dog, two Birds and three fish!", "It is raining."]
    found = ["the cat sat on a mat.", "A dog, two birds and three fish!", "It rains in spain today."]
    (tmp_path / "reference").write_text("\n".join(references) + "\n")
    (tmp_path / "found").write_text("\n".join(found) + "\n")
    scores, signatures = score_translations(found, references)
    for name, words in (("bleu", ["-m", "bleu"]), ("bleu_lower", ["-m", "bleu", "-lc"]), ("chrf", ["-m", "chrf"])):
        command = [
            sys.executable,
            "-m",
            "sacrebleu",
            str(tmp_path / "reference"),
            "-i",
            str(tmp_path / "found"),
            *words,
        ]
        done = subprocess.run([*command, "-w", "6"], capture_output=True, text=True, check=True)
        told = json.loads(done.stdout)
        assert scores[name] == pytest.approx(told["score"], abs=1e-5)
        assert signatures[name] == told["signature"]
    assert scores["bleu_lower"] > scores["bleu"]


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["bank", "snapshot"])
def test_two_processes(memory: str, folder: Path, tmp_path: Path) -> None:
    words = settings(folder, f"method.memory={memory}", "train.save_every=1 epoch", "train.accumulate=2")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", "pskd", "train", "translation/numbers", *words, "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["processes"] == 2
    alone = evaluate(tmp_path / "run", "test")
    assert (alone["bleu"], alone["chrf"]) == (result["bleu"], result["chrf"])
    assert alone["nll"] == pytest.approx(result["nll"], rel=1e-5)
    assert alone["ece"] == pytest.approx(result["ece"], rel=1e-4)


@pytest.mark.slow
def test_the_first_run_of_the_readme_reaches_95_bleu(tmp_path: Path) -> None:
    result = train(resolve(read_recipe("translation/numbers")), tmp_path / "run")
    assert result["bleu"] > 95
    texts = [number_words(number, "de") for number in (7, 12, 40, 99, 321)]
    answers = [answer.text() for answer in predict(tmp_path / "run", [], texts=texts) if isinstance(answer, Answer)]
    assert answers == [number_words(number, "en") for number in (7, 12, 40, 99, 321)]


def test_transformers_loads_a_hub_folder_and_translates_alike(
    finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the lines of the card, also where a model that has learnt little does not end by itself."""
    from transformers import AutoTokenizer

    from pskd.workbench.api import export, load

    export(finished, "hub", tmp_path / "hub")
    assert not list((tmp_path / "hub").glob("*.bin"))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hub")
    texts = ["siebenundzwanzig", "neunhundertdrei"]
    ours = load(finished)
    source, mask = ours.preprocess(texts)  # type: ignore[attr-defined]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    assert torch.equal(batch["input_ids"], source)
    assert torch.equal(batch["attention_mask"].bool(), mask)
    card = (tmp_path / "hub" / "README.md").read_text()
    lines = card.split("```python\n")[1].split("```")[0].replace("FOLDER", str(tmp_path / "hub"))
    for text in texts:
        exec(lines.replace("a sentence", text), {})
        assert capfd.readouterr().out == f"{ours(text).text()}\n"
    with pytest.raises(PskdError, match="take --format hub, which transformers loads"):
        export(finished, "onnx", tmp_path / "model.onnx")
    assert "AutoModelForSeq2SeqLM" in card
