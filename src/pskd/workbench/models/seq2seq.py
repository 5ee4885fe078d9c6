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
        """Score target tokens from source tokens (B, S), their mask, and the target token (B, T) before each."""
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
        """The library's ``GenerationConfig`` of a beam search."""
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

        Each sentence has its own ``translation_limit``, so its translation does not depend on the others in the batch.
        """
        limits = translation_limit(source_mask.sum(1))

        def end_at_limit(before: Tensor, scores: Tensor) -> Tensor:
            at_limit = before.shape[1] >= limits.repeat_interleave(len(scores) // len(limits))
            not_end = torch.arange(scores.shape[1], device=scores.device) != END
            return scores.masked_fill(at_limit[:, None] & not_end, -torch.inf)

        output: Tensor = self.net.generate(
            input_ids=source,
            attention_mask=source_mask.long(),
            generation_config=self.search(beam, length_penalty, int(limits.max())),
            logits_processor=_transformers().LogitsProcessorList([end_at_limit]),
        )
        translations = output[:, 1:]
        ends = translations == END
        return translations.masked_fill(ends.cumsum(1) > ends, PAD)  # the library fills up with END if PAD is 0


def translation_limit(source_length: Tensor) -> Tensor:
    """How many tokens, END included, a translation of ``source_length`` tokens may have."""
    return (2 * source_length + 10).clamp_max(POSITIONS - 1)


def create(name: str, vocabulary: int, **options: Any) -> Seq2Seq:
    """The model ``name`` with random weights; ``vocabulary`` is the number of tokens."""
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
        kind, options = "marian", _marian(options)
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


MARIAN = {"layers": 6, "width": 512, "heads": 4, "inner": 1024, "dropout": 0.3}  # of the paper


def _marian(options: dict[str, Any]) -> dict[str, Any]:
    """The Transformer of the paper's section 4.4: scaled and tied embeddings, ReLU, sinusoidal positions."""
    if unknown := sorted(options.keys() - MARIAN):
        raise PskdError(f"model.{unknown[0]}: unknown setting of marian; allowed are {', '.join(sorted(MARIAN))}")
    given = MARIAN | options
    if given["width"] % (2 * given["heads"]):
        raise PskdError(f"model.width={given['width']} must be a multiple of twice model.heads={given['heads']}")
    sizes = {"layers": given["layers"], "attention_heads": given["heads"], "ffn_dim": given["inner"]}
    return {
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()},
        "d_model": given["width"],
        "dropout": given["dropout"],
        "activation_function": "relu",
        "scale_embedding": True,
        "init_std": given["width"] ** -0.5,  # Xavier's for square layers; embeddings have variance 1 once scaled
        "max_position_embeddings": POSITIONS,
    }
