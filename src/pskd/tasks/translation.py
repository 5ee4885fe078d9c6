"""Machine translation: a token is a sample, and a class of the vocabulary is its label."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pskd.config.translation import TranslationConfig
from pskd.data.text import sources
from pskd.data.text.buckets import Buckets, padding_share
from pskd.data.text.pairs import Pairs
from pskd.data.text.tokenizer import PAD, Sentences, Tokenizer
from pskd.errors import PskdError
from pskd.linear_head import LinearHead, Output
from pskd.methods.base import IGNORE_INDEX, Loss, Method
from pskd.metrics import functional
from pskd.metrics.translation import score_translations
from pskd.models import seq2seq
from pskd.models.seq2seq import POSITIONS, Seq2Seq, translation_limit
from pskd.runs import devices, weights
from pskd.runs.folder import RunFolder
from pskd.runs.group import Group
from pskd.runs.plan import Step, split_step
from pskd.tasks.base import Answer, Evaluation, Task

METHODS = ("hard", "label_smoothing", "ps_kd")


class TokenBatch(NamedTuple):
    """Sentence pairs, padded: what the model sees (B, S) and (B, T), and the label and the row of every token."""

    source: Tensor
    source_mask: Tensor
    before: Tensor  # the target tokens one place later, PAD first
    labels: Tensor  # (B, T), IGNORE_INDEX at padding
    index: Tensor  # type: ignore[assignment]  # (B, T), where a token stands among all of the split

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.source, self.source_mask, self.before


class Encoded(NamedTuple):
    """A split in tokens."""

    pairs: Pairs
    source: Sentences
    target: Sentences

    def batch(self, which: Tensor, device: torch.device) -> TokenBatch:
        source, source_mask, _ = self.source.batch(which)
        target, real, index = self.target.batch(which)
        before = torch.cat((torch.full_like(target[:, :1], PAD), target[:, :-1]), 1)
        labels = target.masked_fill(~real, IGNORE_INDEX)
        return TokenBatch(
            *(part.to(device, non_blocking=True) for part in (source, source_mask, before, labels, index))
        )


class Translation(Task):
    """Sentences of one language in, of another one out."""

    unit = "tok"
    selects_by = "bleu"
    rows_by_host = False  # a row is a token, a sample is a sentence

    def __init__(self, config: TranslationConfig) -> None:
        self.config = config
        if config.method.name not in METHODS:
            raise PskdError(f"method={config.method.name}: translation takes {', '.join(METHODS)}")
        settings = config.data
        if settings.max_length > POSITIONS:
            raise PskdError(
                f"data.max_length={settings.max_length} is more than the {POSITIONS} tokens a model can see"
            )
        data = sources.load(settings)
        self.tokenizer = Tokenizer.trained(data.train.source + data.train.target, settings.vocabulary)
        self.train = self._within_length(data.train)
        self.evaluated = {
            name: Encoded(pairs, *(self.tokenizer.encode(texts, POSITIONS) for texts in (pairs.source, pairs.target)))
            for name, pairs in (("test", data.test), ("val", data.val))
            if pairs is not None
        }
        self.has_validation = "val" in self.evaluated
        self.num_classes = len(self.tokenizer)
        self.num_samples = len(self.train.target.tokens)
        lengths = self.train.source.lengths, self.train.target.lengths
        self.buckets = Buckets(*lengths, config.train.batch_size)
        self.notes = (
            *(note for split in (self.train, *self.evaluated.values()) if (note := split.pairs.note) is not None),
            f"{len(self.train.pairs):,} pairs, {self.num_samples:,} target tokens, vocabulary {self.num_classes:,};"
            f" {len(self.buckets)} batches of at most {config.train.batch_size:,} tokens,"
            f" {padding_share(self.buckets.batches(0, 0), *lengths):.1%} padding",
        )

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        """A hash of all training tokens and the tokenizer."""
        digest = hashlib.blake2b(self.tokenizer.to_json().encode(), digest_size=16)
        for side in (self.train.source, self.train.target):
            digest.update(side.lengths.numpy().data)
            digest.update(side.tokens.numpy().data)
        return digest.hexdigest()

    def model(self) -> nn.Module:
        return _model(self.config.model.model_dump(), self.num_classes)

    def plan(self, epoch: int, group: Group) -> list[Step]:
        train, counts = self.config.train, self.train.target.lengths
        return [
            split_step(batch, train.accumulate, group.rank, group.world, padding=batch[:1], counts=counts)
            for batch in self.buckets.batches(train.seed, epoch)
        ]

    def batches(self, plan: Sequence[Step], epoch: int, device: torch.device) -> Iterator[TokenBatch]:
        for step in plan:
            for part in step.parts:
                yield self.train.batch(part, device)

    def loss(self, model: nn.Module, batch: TokenBatch, real: int, method: Method) -> Loss:
        distilled = torch.zeros(len(batch.labels), dtype=torch.bool, device=batch.labels.device) if real == 0 else None
        output = model(*batch.inputs)
        given = {"index": batch.index, "inputs": batch.inputs}
        given = {name: value for name, value in given.items() if name in method.needs}
        return method.loss(output, batch.labels, distilled=distilled, **given)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, split: str, device: torch.device, group: Group) -> Evaluation:
        assert isinstance(model, Seq2Seq)
        model.eval()
        data, settings = self.evaluated[split], self.config.eval
        share = group.share(len(data.pairs))
        # Sentences of one length together, so that little is padding; afterwards back in their order.
        order = data.source.lengths[share].argsort(stable=True)
        found = torch.full((len(share), int(translation_limit(data.source.lengths).max())), PAD)
        calibration, surprise = torch.zeros(3, settings.ece_bins, dtype=torch.float64), torch.zeros(2).double()
        for places in torch.split(order, settings.batch_size):
            batch = data.batch(share[places], device)
            tokens = model.translate(batch.source, batch.source_mask, settings.beam, settings.length_penalty)
            found[places, : tokens.shape[1]] = tokens.cpu()
            confidence, correct, nll = _token_scores(model(*batch.inputs), batch.labels)
            calibration += functional.bin_sums(confidence, correct, settings.ece_bins).cpu()
            surprise += torch.stack((nll.double().sum(), nll.new_tensor(len(nll)).double())).cpu()
        texts = self.tokenizer.decode(group.gather(found, len(data.pairs)))
        metrics, signatures = score_translations(texts, data.pairs.target)
        nll_sum, tokens_seen = group.sum(surprise).tolist()
        metrics["nll"] = nll_sum / tokens_seen
        metrics["ece"] = 100 * float(functional.calibration_error_of_sums(group.sum(calibration)))
        columns = {"source": data.pairs.source, "reference": data.pairs.target, "translation": texts}
        return Evaluation(metrics, {name: np.array(column) for name, column in columns.items()}, signatures)

    def metadata(self) -> dict[str, Any]:
        return {
            "task": "translation",
            "model": self.config.model.model_dump(),
            "tokenizer": self.tokenizer.to_json(),
            "search": {"beam": self.config.eval.beam, "length_penalty": self.config.eval.length_penalty},
        }

    def _within_length(self, pairs: Pairs) -> Encoded:
        """The training pairs that are not too long."""
        limit = self.config.data.max_length
        source, target = self.tokenizer.encode(pairs.source), self.tokenizer.encode(pairs.target)
        long = torch.maximum(source.lengths, target.lengths) > limit
        reason = f"over data.max_length={limit} tokens"
        kept = pairs.without(dict.fromkeys(long.nonzero().flatten().tolist(), reason), self.config.data.on_bad)
        which = (~long).nonzero().flatten()
        if not len(which):
            raise PskdError(f"{pairs.place}: every pair is {reason}")
        return Encoded(kept, source.subset(which), target.subset(which))


create = Translation


class TranslatedText(Answer):
    """One sentence and what it became."""

    def __init__(self, source: str, translation: str) -> None:
        self.source, self.translation = source, translation

    def text(self) -> str:
        return self.translation

    def to_dict(self) -> dict[str, Any]:
        return {"source": self.source, "translation": self.translation}


@torch.no_grad()
def predict(
    run: Path, inputs: Sequence[str], texts: Sequence[str] = (), **_: Any
) -> Iterator[TranslatedText | PskdError]:
    """Translations of the ``texts``, then of every line of the files ``inputs``; of standard input without either."""
    model, about = weights.restore(run, _restored, "translation")
    assert isinstance(model, Seq2Seq)
    tokenizer = Tokenizer.from_json(about["tokenizer"])
    config = RunFolder(run).config()
    device = devices.usable_device(config.train.device)
    model = model.to(device).eval()
    lines = _lines(inputs, texts)
    while group := list(islice(lines, config.eval.batch_size)):
        wanted = [text for text in group if isinstance(text, str) and text.strip()]
        found: Iterator[str] = iter(())
        if wanted:
            source, mask, _index = tokenizer.encode(wanted, POSITIONS).batch(torch.arange(len(wanted)))
            found = iter(tokenizer.decode(model.translate(source.to(device), mask.to(device), **about["search"]).cpu()))
        for text in group:
            if isinstance(text, PskdError):
                yield text
            else:
                yield TranslatedText(text, next(found) if text.strip() else "")


def _lines(files: Sequence[str], texts: Sequence[str]) -> Iterator[str | PskdError]:
    yield from texts
    for name in files or (["-"] if not texts else []):
        if name == "-" and sys.stdin.isatty():
            raise PskdError('which text? for example: pskd predict RUN --text "Guten Morgen", or a file, or a pipe')
        try:
            with open(0 if name == "-" else name, "rb", closefd=name != "-") as file:
                for number, raw in enumerate(file, 1):
                    try:
                        yield raw.decode("utf-8").rstrip("\r\n")
                    except UnicodeDecodeError:
                        yield PskdError(f"{name}, line {number}: not UTF-8")
        except OSError as error:
            yield PskdError(f"cannot read '{name}' ({error.strerror})")


def _model(settings: dict[str, Any], vocabulary: int) -> Seq2Seq:
    options = dict(settings)
    return seq2seq.create(options.pop("name"), vocabulary, **options)


def _restored(about: dict[str, Any]) -> Seq2Seq:
    return _model(about["model"], len(Tokenizer.from_json(about["tokenizer"])))


def _token_scores(output: Output, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Confidence, whether the likeliest token was the right one, and -log p(label) of every real token."""
    scores = []
    for logits, own in _in_parts(output, labels):
        real = own != IGNORE_INDEX
        log_probs, own = torch.log_softmax(logits[real].float(), 1), own[real]
        best, token = log_probs.max(1)
        scores.append((best.exp(), token == own, -log_probs.gather(1, own[:, None]).squeeze(1)))
    confidence, correct, nll = (torch.cat(column) for column in zip(*scores, strict=True))
    return confidence, correct, nll


def _in_parts(output: Output, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits (n, K) and labels (n) of all positions, those of a head one part after the other."""
    if isinstance(output, LinearHead):
        for part in output.parts():
            yield output.part(part).logits(), part.of(labels)
    else:
        yield output.movedim(1, -1).flatten(0, 1), labels.flatten()
