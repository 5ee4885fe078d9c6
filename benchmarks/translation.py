"""Target tokens per second of translation, ours over those of loops that one would write by hand.

    python benchmarks/translation.py [RUN] [--pairs N] [--rounds N] [--sentences N] [--form dense|topk] [--fused]

RUN is a finished run of translation; without one, `translation/numbers` is trained first, which takes a minute. Its
data and its model are those of both sides, which take turns in one process; seconds are those of the processor, since
neither side waits for anything. An epoch has N training pairs, the evaluation the first N sentences.

Training: `pskd train`'s loop and a loop of the same transformers model on batches of one length, cut by tokens, their
padding made beforehand; each with plain cross-entropy and with PS-KD and a bank. The other side's bank is a tensor,
whose rows become dense targets: of all classes, as ours is up to 1,000 of them, or with --form topk of the likeliest.
Both have the same model, token batches, float32 and AdamW; ours is fused, as the other is with --fused. Evaluation: all
that `pskd evaluate` does over `generate`, sentence by sentence in the file's order (at least 2.0, and the same BLEU to
0.01).
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from loop_overhead import our_loop
from side_by_side import alternate, median
from torch import Tensor

from pskd import load
from pskd.methods.base import IGNORE_INDEX
from pskd.metrics.translation import score_translations
from pskd.workbench.config import Config, resolve
from pskd.workbench.models.seq2seq import translation_limit
from pskd.workbench.recipes import read_recipe
from pskd.workbench.runs.folder import RunFolder
from pskd.workbench.runs.group import Group
from pskd.workbench.tasks.translation.predictor import Encoded, TranslationPredictor, load_data
from pskd.workbench.tasks.translation.task import Translation
from pskd.workbench.train.loop import train

K, ALPHA, CHUNKS = 16, 0.5, 5
GOALS = (
    ("ours, plain", "bare, plain", 0.97),
    ("ours, PS-KD", "bare, PS-KD", 1.0),
    ("ours, PS-KD", "bare, plain", 1.0),
    ("ours, PS-KD", "ours, plain", 0.97),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--pairs", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--sentences", type=int)
    parser.add_argument("--form", choices=("dense", "topk"), default="dense")
    parser.add_argument("--fused", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = given.run or Path(folder, "run")
        if given.run is None:
            train(resolve(read_recipe("translation/numbers")), run)
        config, used = RunFolder(run).config(), load(run)
        assert isinstance(used, TranslationPredictor)
        compare_training(config, given)
        compare_evaluation(config, used, given.sentences)


def compare_training(like: Config, given: argparse.Namespace) -> None:
    """Plain and distilled epochs of both loops, all four in turn."""
    settings = like.model_dump(mode="json", exclude={"method", "recipe"})
    changes = [f"data.pairs={given.pairs}", "epochs=100000", "eval.every=100000"]
    bank = ["method.memory=bank", f"method.form={given.form}", f"method.k={K}", "method.alpha=0.7"]
    sides: dict[str, Callable[[], None]] = {}
    with contextlib.ExitStack() as stack:
        for name, words in (("plain", ["method=hard"]), ("PS-KD", ["method=ps_kd", *bank])):
            config = resolve(settings, [*changes, *words])
            task = Translation(config)  # type: ignore[arg-type]
            sides[f"ours, {name}"] = stack.enter_context(our_loop(config, task))
            sides[f"bare, {name}"] = bare_loop(task, given.form if name == "PS-KD" else None, given.fused)
        print(f"{config.data.name}: {task.notes[-1]}")
        found = alternate(*sides.values(), rounds=given.rounds, clock=time.process_time, warmup=2)
    seconds = dict(zip(sides, found, strict=True))
    tokens = int(task.train.target.lengths.sum())
    for name, own in seconds.items():
        print(f"{name}: {tokens / median(own).median:,.0f} tok/s")
    for one, other, goal in GOALS:
        ratio = median([theirs / own for own, theirs in zip(seconds[one], seconds[other], strict=True)])
        print(f"{one} / {other}: {ratio}, at least {goal}")


def bare_loop(task: Translation, form: str | None, fused: bool) -> Callable[[], None]:
    """One epoch of the loop that one would write by hand; PS-KD with rows of a ``form``, None: plain cross-entropy."""
    model: Any = task.model().net.train()  # type: ignore[union-attr]
    settings = task.config.optim
    optimizer = torch.optim.AdamW(
        model.parameters(), settings.lr, settings.betas, weight_decay=settings.weight_decay, fused=fused or None
    )
    batches = _bucketed(task)
    rows, words = len(task.train.target.tokens), task.num_classes
    kept = K if form == "topk" else words
    values, classes = torch.zeros(rows, kept, dtype=torch.float16), torch.zeros(rows, K, dtype=torch.int32)
    begun = False

    def run() -> None:
        nonlocal begun
        for which in torch.randperm(len(batches)).tolist():
            source, mask, before, labels, index = batches[which]
            logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=before, use_cache=False).logits
            logits, real = logits.flatten(0, 1), labels.flatten() != IGNORE_INDEX
            if form is not None:
                logits, index, labels = logits[real], index.flatten()[real], labels.flatten()[real]
                target = F.one_hot(labels, words).float()
                if begun:
                    past = values[index].float()
                    if form == "topk":
                        rest = (1 - past.sum(1, keepdim=True)) / (words - K)
                        past = rest.expand(-1, words).scatter(1, classes[index].long(), past)
                    target = (1 - ALPHA) * target + ALPHA * past
                loss = F.cross_entropy(logits, target)
                likely = torch.softmax(logits.detach(), 1)
                if form == "topk":
                    likely, best = likely.topk(K)
                    classes[index] = best.int()
                values[index] = likely.half()
            else:
                loss = F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORE_INDEX)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        begun = True

    return run


def _bucketed(task: Translation) -> list[tuple[Tensor, ...]]:
    """Padded batches of sentences of nearly one length, of at most ``batch_size`` tokens of the longer side."""
    data, most = task.train, task.config.train.batch_size
    source, target = data.source.lengths.tolist(), data.target.lengths.tolist()
    batches: list[list[int]] = [[]]
    longest = 0
    for pair in sorted(range(len(source)), key=lambda pair: (target[pair], source[pair])):
        longest = max(longest, source[pair], target[pair])
        if batches[-1] and longest * (len(batches[-1]) + 1) > most:
            batches.append([])
            longest = max(source[pair], target[pair])
        batches[-1].append(pair)
    return [tuple(data.batch(torch.tensor(batch), torch.device("cpu"))) for batch in batches]


@torch.no_grad()
def compare_evaluation(config: Any, used: TranslationPredictor, sentences: int | None) -> None:
    model, settings, pairs = used.model, config.eval, load_data(config).test
    pairs = pairs.subset(range(min(len(pairs), sentences or len(pairs))))
    chunks = torch.arange(len(pairs)).chunk(CHUNKS)
    found: dict[str, list[str]] = {"ours": [], "one by one": []}
    turn = dict.fromkeys(found, 0)

    def ours() -> None:
        split = Encoded.of(pairs.subset(chunks[turn["ours"]].tolist()), used.tokenizer)
        done = used.evaluate(split, config, Group())
        found["ours"] += done.predictions["translation"].tolist()
        turn["ours"] += 1

    def one_by_one() -> None:
        split = Encoded.of(pairs.subset(chunks[turn["one by one"]].tolist()), used.tokenizer)
        for which in range(len(split.pairs)):
            source, mask, _ = split.source.batch(torch.tensor([which]))
            limit = int(translation_limit(split.source.lengths[which]))
            search = model.search(settings.beam, settings.length_penalty, limit)
            tokens = model.net.generate(input_ids=source, attention_mask=mask.long(), generation_config=search)
            found["one by one"] += used.tokenizer.decode(tokens[:, 1:])
        turn["one by one"] += 1

    warm = Encoded.of(pairs.subset([0]), used.tokenizer)
    used.evaluate(warm, config, Group())
    seconds = alternate(ours, one_by_one, rounds=CHUNKS, clock=time.process_time, warmup=0)
    own, other = (score_translations(texts, pairs.target)[0]["bleu"] for texts in found.values())
    differing = sum(one != two for one, two in zip(*found.values(), strict=True))
    speeds = [len(pairs) / sum(side) for side in seconds]
    print(f"evaluation of {len(pairs):,} sentences: {speeds[0]:.1f} a second, one by one {speeds[1]:.1f}")
    print(f"  ratio {median([theirs / mine for mine, theirs in zip(*seconds, strict=True)])}, at least 2.0")
    print(f"  BLEU {own:.4f} and {other:.4f} ({differing} sentences differ), at most 0.01 apart")


if __name__ == "__main__":
    main()
