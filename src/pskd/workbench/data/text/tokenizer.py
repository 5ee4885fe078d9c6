"""A byte-pair encoding that both languages share, learnt from the training text alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from tokenizers import Tokenizer as Encoding
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

PAD, END, UNKNOWN = 0, 1, 2
_SPECIAL = ["<pad>", "</s>", "<unk>"]


class Tokenizer:
    """Text to token numbers and back. PAD also begins a translation, END ends every sentence."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding

    @classmethod
    def train(cls, texts: Iterable[str], vocabulary: int) -> Tokenizer:
        """Learn an encoding of at most ``vocabulary`` tokens; fewer if the text has no more pairs to join."""
        encoding = Encoding(models.BPE(unk_token=_SPECIAL[UNKNOWN]))
        encoding.normalizer = normalizers.NFC()
        encoding.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
        encoding.decoder = decoders.Metaspace()
        trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=_SPECIAL, show_progress=False)
        encoding.train_from_iterator(texts, trainer)
        return cls(encoding)

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        return cls(Encoding.from_str(text))

    def to_json(self) -> str:
        """All that ``from_json`` needs."""
        return str(self._encoding.to_str())

    def __len__(self) -> int:
        return int(self._encoding.get_vocab_size())

    def encode(self, texts: Sequence[str], limit: int | None = None) -> Sentences:
        """The tokens of each text, and END; a text with more than ``limit`` tokens, END included, is cut."""
        encoded = self._encoding.encode_batch(list(texts), add_special_tokens=False)
        return Sentences.of([[*sentence.ids[: limit and limit - 1], END] for sentence in encoded])

    def decode(self, rows: Tensor) -> list[str]:
        """The texts of token numbers (B, T); each ends at its first END."""
        after_end = (rows == END).cumsum(1) > 0
        return list(self._encoding.decode_batch(rows.masked_fill(after_end, PAD).tolist(), skip_special_tokens=True))


class Sentences:
    """Token numbers of many sentences, one after the other without padding.

    Args:
        tokens: (all tokens) int64.
        lengths: (N), of each sentence.
    """

    def __init__(self, tokens: Tensor, lengths: Tensor) -> None:
        self.tokens, self.lengths = tokens, lengths
        self._starts = lengths.cumsum(0) - lengths

    @classmethod
    def of(cls, rows: list[list[int]]) -> Sentences:
        return cls(torch.tensor([token for row in rows for token in row]), torch.tensor([len(row) for row in rows]))

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, which: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of the sentences ``which`` (B): tokens, which of them are real, and where they stand in all tokens, (B, T).

        Padding has the token PAD and stands where its sentence begins.
        """
        lengths, starts = self.lengths[which, None], self._starts[which, None]
        place = torch.arange(int(lengths.max()))
        real = place < lengths
        index = starts + place * real
        return self.tokens[index] * real, real, index  # PAD is 0

    def subset(self, which: Tensor) -> Sentences:
        tokens, real, _ = self.batch(which)
        return Sentences(tokens[real], self.lengths[which])
