"""Encoder-decoder models of the transformers library, made from a configuration: nothing is ever downloaded."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from pskd.errors import PskdError
from pskd.linear_head import LinearHead, Output
from pskd.workbench.data.text.tokenizer import END, PAD

POSITIONS = 1024  # tokens of a sentence that a model can see
_PREFIX = "transformers:"


class Seq2Seq(nn.Module):
    """A model of transformers that returns a ``LinearHead``, or logits (B, K, T) where its head is another one."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net: Any = net

    def forward(self, source: Tensor, source_mask: Tensor, before: Tensor) -> Output:
        """Of source tokens (B, S), which of them are real, and the tokens (B, T) before each target token."""
        inputs = {"input_ids": source, "attention_mask": source_mask, "decoder_input_ids": before, "use_cache": False}
        body, head = getattr(self.net, "model", None), getattr(self.net, "lm_head", None)
        if body is None or not isinstance(head, nn.Linear):
            logits: Tensor = self.net(**inputs).logits
            return logits.movedim(-1, 1)
        bias = getattr(self.net, "final_logits_bias", None)
        hidden = body(**inputs).last_hidden_state
        return LinearHead(hidden, head.weight, head.bias if bias is None else bias[0])

    @staticmethod
    def search(beam: int, length_penalty: float, max_new_tokens: int) -> Any:
        """How the library shall look for a translation: its ``GenerationConfig``."""
        return _transformers().GenerationConfig(
            num_beams=beam,
            length_penalty=length_penalty if beam > 1 else None,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            suppress_tokens=[PAD],
            pad_token_id=PAD,
            eos_token_id=END,
            decoder_start_token_id=PAD,
        )

    @torch.no_grad()
    def translate(self, source: Tensor, source_mask: Tensor, beam: int, length_penalty: float) -> Tensor:
        """The best translations by beam search, (B, T), with END and PAD behind each.

        A sentence's own ``translation_limit`` holds for it, so what it becomes does not depend on its company.
        """
        limits = translation_limit(source_mask.sum(1))

        def end_in_time(before: Tensor, scores: Tensor) -> Tensor:
            over = before.shape[1] >= limits.repeat_interleave(len(scores) // len(limits))
            elsewhere = torch.arange(scores.shape[1], device=scores.device) != END
            return scores.masked_fill(over[:, None] & elsewhere, -torch.inf)

        found: Tensor = self.net.generate(
            input_ids=source,
            attention_mask=source_mask.long(),
            generation_config=self.search(beam, length_penalty, int(limits.max())),
            logits_processor=_transformers().LogitsProcessorList([end_in_time]),
        )
        ends = found[:, 1:] == END
        return found[:, 1:].masked_fill(ends.cumsum(1) > ends, PAD)  # the library fills up with END if PAD is 0


def translation_limit(source_length: Tensor) -> Tensor:
    """How many tokens a translation may have, END among them, of sentences of so many."""
    return (2 * source_length + 10).clamp_max(POSITIONS - 1)


def create(name: str, vocabulary: int, **options: Any) -> Seq2Seq:
    """The model ``name`` for so many tokens, freshly initialised."""
    library = _transformers()
    special = {
        "vocab_size": vocabulary,
        "pad_token_id": PAD,
        "eos_token_id": END,
        "bos_token_id": None,
        "forced_eos_token_id": None,
        "decoder_start_token_id": PAD,
    }
    if name == "marian":
        kind, options = "marian", _marian(**_known(options))
    elif name.startswith(_PREFIX):
        kind = name.removeprefix(_PREFIX)
    else:
        raise PskdError(f"model.name={name!r} is not a translation model; allowed are marian and {_PREFIX}TYPE")
    try:
        return Seq2Seq(
            library.AutoModelForSeq2SeqLM.from_config(library.AutoConfig.for_model(kind, **special, **options))
        )
    except (ValueError, TypeError) as error:
        raise PskdError(f"model.name={name}: {str(error).splitlines()[0]}") from error


def _transformers() -> Any:
    """The library, which takes seconds to load: only when a model is made or used."""
    return import_module("transformers")


def _marian(
    layers: int = 6, width: int = 512, heads: int = 4, inner: int = 1024, dropout: float = 0.3
) -> dict[str, Any]:
    """The Transformer of the paper's section 4.4: scaled and tied embeddings, ReLU, sinusoidal positions."""
    if width % (2 * heads):
        raise PskdError(f"model.width={width} must be a multiple of twice model.heads={heads}")
    sizes = {"layers": layers, "attention_heads": heads, "ffn_dim": inner}
    return {
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()},
        "d_model": width,
        "dropout": dropout,
        "activation_function": "relu",
        "scale_embedding": True,
        "init_std": width**-0.5,  # Xavier's for square layers, and embeddings of variance 1 once they are scaled
        "max_position_embeddings": POSITIONS,
    }


def _known(options: dict[str, Any]) -> dict[str, Any]:
    known = _marian.__annotations__.keys() - {"return"}
    if unknown := sorted(options.keys() - known):
        raise PskdError(f"model.{unknown[0]}: unknown setting of marian; allowed are {', '.join(sorted(known))}")
    return options
