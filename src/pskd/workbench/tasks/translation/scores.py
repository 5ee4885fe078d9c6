"""A split in tokens, and what a model's translations of it are worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pskd.linear_head import LinearHead, Output
from pskd.metrics import functional
from pskd.metrics.translation import score_translations
from pskd.targets import IGNORE_INDEX
from pskd.workbench.data.text.pairs import Pairs
from pskd.workbench.data.text.tokenizer import PAD, Sentences, Tokenizer
from pskd.workbench.models.seq2seq import POSITIONS, Seq2Seq, translation_limit
from pskd.workbench.runs.group import Group
from pskd.workbench.tasks.base import Evaluation


class TokenBatch(NamedTuple):
    """Sentence pairs, padded: what the model sees (B, S) and (B, T), and the target and the row of every token."""

    source: Tensor
    source_mask: Tensor
    before: Tensor  # the target tokens one place later, PAD first
    targets: Tensor  # (B, T), IGNORE_INDEX at padding
    index: Tensor  # type: ignore[assignment]  # (B, T), where a token stands among all of the split

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.source, self.source_mask, self.before


class Encoded(NamedTuple):
    """A split in tokens."""

    pairs: Pairs
    source: Sentences
    target: Sentences

    @classmethod
    def of(cls, pairs: Pairs, tokenizer: Tokenizer) -> Encoded:
        """A split to evaluate on: what a model cannot see of a very long sentence is cut off."""
        return cls(pairs, *(tokenizer.encode(texts, POSITIONS) for texts in (pairs.source, pairs.target)))

    def batch(self, which: Tensor, device: torch.device) -> TokenBatch:
        source, source_mask, _ = self.source.batch(which)
        target, real, index = self.target.batch(which)
        before = torch.cat((torch.full_like(target[:, :1], PAD), target[:, :-1]), 1)
        targets = target.masked_fill(~real, IGNORE_INDEX)
        return TokenBatch(
            *(part.to(device, non_blocking=True) for part in (source, source_mask, before, targets, index))
        )


@torch.no_grad()
def translate_split(
    model: nn.Module, data: Encoded, tokenizer: Tokenizer, config: Any, device: torch.device, group: Group
) -> Evaluation:
    """BLEU and chrF of the translations of a split, and how sure the model is of its tokens."""
    assert isinstance(model, Seq2Seq)
    model.eval()
    settings = config.eval
    share = group.share(len(data.pairs))
    # Sentences of one length together, so that little is padding; afterwards back in their order.
    order = data.source.lengths[share].argsort(stable=True)
    found = torch.full((len(share), int(translation_limit(data.source.lengths).max())), PAD)
    calibration, surprise = torch.zeros(3, settings.ece_bins, dtype=torch.float64), torch.zeros(2).double()
    for places in torch.split(order, settings.batch_size):
        batch = data.batch(share[places], device)
        tokens = model.translate(batch.source, batch.source_mask, settings.beam, settings.length_penalty)
        found[places, : tokens.shape[1]] = tokens.cpu()
        confidence, correct, nll = _token_scores(model(*batch.inputs), batch.targets)
        calibration += functional.bin_sums(confidence, correct, settings.ece_bins).cpu()
        surprise += torch.stack((nll.double().sum(), nll.new_tensor(len(nll)).double())).cpu()
    texts = tokenizer.decode(group.gather(found, len(data.pairs)))
    metrics, signatures = score_translations(texts, data.pairs.target)
    nll_sum, tokens_seen = group.sum(surprise).tolist()
    metrics["nll"] = nll_sum / tokens_seen
    metrics["ece"] = 100 * float(functional.calibration_error_of_sums(group.sum(calibration)))
    columns = {"source": data.pairs.source, "reference": data.pairs.target, "translation": texts}
    examples = _examples(data.pairs, texts, data.source.lengths)
    return Evaluation(metrics, {name: np.array(column) for name, column in columns.items()}, signatures, examples)


def _examples(pairs: Pairs, texts: Sequence[str], lengths: Tensor) -> list[str]:
    """A short, a middling and a long sentence (lengths: (N)), and what became of them."""
    order = lengths.argsort(stable=True).tolist()
    lines = []
    for place in dict.fromkeys(order[len(order) * quarter // 4] for quarter in (1, 2, 3)):
        reference = "" if texts[place] == pairs.target[place] else f" (reference: {pairs.target[place]})"
        lines.append(f"{pairs.source[place]} -> {texts[place]}{reference}")
    return lines


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
