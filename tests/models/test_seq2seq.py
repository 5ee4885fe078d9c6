"""Translation models: beam search against all translations there are, padding, other architectures."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.linear_head import LinearHead
from pskd.workbench.data.text.tokenizer import END, PAD
from pskd.workbench.models import seq2seq

TINY = {"layers": 1, "width": 16, "heads": 2, "inner": 16}
SOURCE = torch.tensor([[3, 4, 3, END], [4, END, PAD, PAD], [3, 3, END, PAD]])


def tiny(vocabulary: int = 5, seed: int = 0) -> seq2seq.Seq2Seq:
    torch.manual_seed(seed)
    model = seq2seq.create("marian", vocabulary, **TINY).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)  # far enough from even odds for the order to be clear
    return model


@torch.no_grad()
def log_probability(model: seq2seq.Seq2Seq, source: Tensor, tokens: tuple[int, ...]) -> float:
    """Of one translation of one sentence, by plain forward passes."""
    before = torch.tensor([[PAD, *tokens[:-1]]])
    head = model(source, source != PAD, before)
    assert isinstance(head, LinearHead)
    logits = head.logits()[0].T  # (T, K)
    return float(torch.log_softmax(logits, 1)[range(len(tokens)), list(tokens)].sum())


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_that_is_wide_enough_finds_the_best_of_all(
    seed: int, length_penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three words, and END after at most 3 of them: 1 + 3 + 9 + 27 translations."""
    monkeypatch.setattr(seq2seq, "translation_limit", lambda lengths: torch.full_like(lengths, 4))
    model = tiny(seed=seed)
    found = model.translate(SOURCE, SOURCE != PAD, 45, length_penalty)
    words = [word for word in range(5) if word not in (PAD, END)]
    every = [(*start, END) for length in range(4) for start in product(words, repeat=length)]
    for sentence, row in zip(SOURCE, found, strict=True):
        source = sentence[sentence != PAD][None]
        scores = {tokens: log_probability(model, source, tokens) / len(tokens) ** length_penalty for tokens in every}
        best = max(scores, key=scores.__getitem__)
        assert row[row != PAD].tolist() == list(best)


def test_a_translation_does_not_depend_on_its_company() -> None:
    model = tiny(9)
    together = model.translate(SOURCE, SOURCE != PAD, 3, 1.0)
    for sentence, row in zip(SOURCE, together, strict=True):
        source = sentence[sentence != PAD][None]
        alone = model.translate(source, source != PAD, 3, 1.0)[0]
        assert alone[alone != PAD].tolist() == row[row != PAD].tolist()
        assert alone.tolist().count(END) == 1
        assert len(alone) <= 2 * source.shape[1] + 10


def test_padding_takes_no_part() -> None:
    model = tiny(9)
    mask = SOURCE != PAD
    before = torch.tensor([[PAD, 4, 3], [PAD, 5, 6], [PAD, 7, 8]])
    together = model(SOURCE, mask, before)
    for at in range(len(SOURCE)):
        alone = model(
            SOURCE[at : at + 1, : int(mask[at].sum())],
            mask[at : at + 1, : int(mask[at].sum())],
            before[at : at + 1, :2],
        )
        torch.testing.assert_close(alone.hidden[0], together.hidden[at, :2], rtol=1e-4, atol=1e-5)


def test_the_head_is_the_models_own() -> None:
    model = tiny(9)
    before = torch.tensor([[PAD, 4, 3]] * 3)
    head = model(SOURCE, SOURCE != PAD, before)
    own = model.net(input_ids=SOURCE, attention_mask=SOURCE != PAD, decoder_input_ids=before).logits
    torch.testing.assert_close(head.logits().movedim(1, -1), own)
    assert head.weight is model.net.model.shared.weight  # tied


def test_any_other_model_of_the_library() -> None:
    model = seq2seq.create("transformers:t5", 9, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    logits = model(SOURCE, SOURCE != PAD, torch.tensor([[PAD, 4]] * 3))
    assert logits.shape == (3, 9, 2)
    assert model.translate(SOURCE, SOURCE != PAD, 2, 1.0).shape[1] <= 18


def test_parameters_of_the_papers_model() -> None:
    with torch.device("meta"):
        model = seq2seq.create("marian", 10_000)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    attention, inner = 4 * (512 * 512 + 512), 2 * 512 * 1024 + 1024 + 512
    encoder, decoder = attention + inner + 2 * 1024, 2 * attention + inner + 3 * 1024
    assert trained == 10_000 * 512 + 6 * (encoder + decoder)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mariann", {}, "allowed are marian and transformers:TYPE"),
        ("marian", {"depth": 3}, "model.depth: unknown setting of marian; allowed are dropout"),
        ("marian", {"width": 30, "heads": 4}, "must be a multiple of twice"),
        ("transformers:nothing", {}, "model.name=transformers:nothing"),
    ],
)
def test_wrong_models_are_named(name: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(PskdError, match=message):
        seq2seq.create(name, 10, **options)
