"""A finished translation run put to work."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn

from pskd.errors import PskdError
from pskd.linear_head import LinearHead, Output
from pskd.metrics import functional
from pskd.metrics.translation import score_translations
from pskd.targets import IGNORE_INDEX
from pskd.workbench.config import Config
from pskd.workbench.data.text import load as load_text
from pskd.workbench.data.text.pairs import LONGEST_WORD, Pairs, TextData
from pskd.workbench.data.text.tokenizer import END, PAD, UNKNOWN, Sentences, Tokenizer
from pskd.workbench.models import seq2seq
from pskd.workbench.models.seq2seq import POSITIONS, Seq2Seq, translation_limit
from pskd.workbench.reading import open_file
from pskd.workbench.runs.group import Group
from pskd.workbench.runs.trust import plain_options
from pskd.workbench.tasks.predictor import About, Answer, Evaluation, Predictor, splits_of

LONGEST_LINE = 1_000_000  # bytes
BATCH = 64  # sentences that are translated at a time


class Search(BaseModel):
    """How a translation is searched for."""

    beam: int
    length_penalty: float


class AboutTranslator(About):
    """The model's name and options, its tokenizer as JSON, and the settings of its search."""

    tokenizer: str
    search: Search


class TranslatedText(Answer):
    """One sentence and its translation."""

    def __init__(self, source: str, translation: str) -> None:
        self.source, self.translation = source, translation

    def text(self) -> str:
        return self.translation

    def to_dict(self) -> dict[str, Any]:
        return {"source": self.source, "translation": self.translation}


class TokenBatch(NamedTuple):
    """Sentence pairs, padded: what the model sees (B, S) and (B, T), and the target and the record of every token."""

    source: Tensor
    source_mask: Tensor
    before: Tensor  # the target tokens one place later, PAD first
    targets: Tensor  # (B, T), IGNORE_INDEX at padding
    index: Tensor  # type: ignore[assignment]  # (B, T), the number of a token among all tokens of the split

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
        """A split to evaluate on. Very long sentences are cut to what a model can see."""
        return cls(pairs, *(tokenizer.encode(texts, POSITIONS) for texts in (pairs.source, pairs.target)))

    def batch(self, which: Tensor, device: torch.device) -> TokenBatch:
        source, source_mask, _ = self.source.batch(which)
        target, real, index = self.target.batch(which)
        before = torch.cat((torch.full_like(target[:, :1], PAD), target[:, :-1]), 1)
        targets = target.masked_fill(~real, IGNORE_INDEX)
        return TokenBatch(
            *(part.to(device, non_blocking=True) for part in (source, source_mask, before, targets, index))
        )


class TranslationPredictor(Predictor):
    """A translator with its vocabulary."""

    about_class = AboutTranslator
    export_hint = "a search for a translation is no single function: take --format hub, which transformers loads"
    options = frozenset({"texts"})
    model: Seq2Seq

    def __init__(self, run: Path, about: AboutTranslator, model: nn.Module, device: torch.device) -> None:
        super().__init__(run, about, model, device)
        self.tokenizer = Tokenizer.from_json(about.tokenizer)

    @classmethod
    def build(cls, about: AboutTranslator, *, allow_code: bool = False) -> Seq2Seq:
        name, options = about.model.get("name"), {key: value for key, value in about.model.items() if key != "name"}
        vocabulary = len(Tokenizer.from_json(about.tokenizer))
        return build_translator({"name": str(name), **plain_options(options)}, vocabulary)

    @torch.no_grad()
    def predict(
        self, inputs: Sequence[str], texts: Sequence[str] = (), **_: Any
    ) -> Iterator[TranslatedText | PskdError]:
        """Translations of the ``texts``, then of every line of the files ``inputs``, or of what is piped in."""
        lines = _lines(inputs, texts)
        while group := list(islice(lines, BATCH)):
            sentences = [text for text in group if isinstance(text, str) and text.strip()]
            translations: Iterator[str] = iter(())
            if sentences:
                source, mask = self.preprocess(sentences)
                search = self.about.search.model_dump()
                tokens = self.model.translate(source.to(self.device), mask.to(self.device), **search)
                translations = iter(self.tokenizer.decode(tokens.cpu()))
            for text in group:
                if isinstance(text, PskdError):
                    yield text
                else:
                    yield TranslatedText(text, next(translations) if text.strip() else "")

    def answers(self, inputs: Sequence[str], **options: Any) -> Iterator[TranslatedText | PskdError]:
        """Translations of sentences."""
        return self.predict([], texts=inputs, **options) if inputs else iter(())

    def preprocess(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token numbers (B, S) of sentences, and which of them are real."""
        source, mask, _ = self.tokenizer.encode(texts, POSITIONS).batch(torch.arange(len(texts)))
        return source, mask

    def save_for_hub(self, folder: Path, weights_file: Path) -> None:
        """In the form of transformers, with the run's own search. The caller says how long a translation may be."""
        from tokenizers import Tokenizer as Encoding
        from tokenizers import processors

        encoding = Encoding.from_str(self.about.tokenizer)
        end = encoding.id_to_token(END)
        encoding.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, END)])
        special = {"pad_token": encoding.id_to_token(PAD), "eos_token": end, "unk_token": encoding.id_to_token(UNKNOWN)}
        library: Any = import_module("transformers")
        tokenizer = library.PreTrainedTokenizerFast(
            tokenizer_object=encoding,
            model_max_length=POSITIONS,
            clean_up_tokenization_spaces=False,
            model_input_names=["input_ids", "attention_mask"],  # older versions add token types
            **special,
        )
        net = self.model.net
        net.generation_config = self.model.search(max_new_tokens=POSITIONS - 1, **self.about.search.model_dump())
        net.generation_config.forced_eos_token_id = END  # as here, a translation ends where it reaches its limit
        with contextlib.redirect_stderr(io.StringIO()):  # it shows a progress bar even without a terminal
            net.save_pretrained(folder, safe_serialization=True)
        tokenizer.save_pretrained(folder)

    def loading(self) -> dict[str, str]:
        lines = (
            "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n\n"
            'tokenizer = AutoTokenizer.from_pretrained("FOLDER")\n'
            'model = AutoModelForSeq2SeqLM.from_pretrained("FOLDER")\n'
            'sentence = tokenizer("a sentence", return_tensors="pt")\n'
            'tokens = model.generate(**sentence, max_new_tokens=2 * sentence["input_ids"].shape[1] + 10)\n'
            "print(tokenizer.decode(tokens[0], skip_special_tokens=True))"
        )
        return {"transformers": lines}

    def splits(self, config: Config, *names: str) -> Mapping[str, Encoded]:
        splits = splits_of(load_data(config), names)
        return {name: Encoded.of(pairs, self.tokenizer) for name, pairs in splits.items()}

    @torch.no_grad()
    def evaluate(self, samples: Encoded, config: Any, group: Group) -> Evaluation:
        """BLEU and chrF of the translations of a split, and how sure the model is of its tokens."""
        settings, pairs, lengths = config.eval, samples.pairs, samples.source.lengths
        share = group.share(len(pairs))
        # Sentences of one length are translated together, so that there is little padding.
        order = lengths[share].argsort(stable=True)
        translations = torch.full((len(share), int(translation_limit(lengths).max())), PAD)
        bins, nll_and_count = torch.zeros(3, settings.ece_bins, dtype=torch.float64), torch.zeros(2).double()
        for places in torch.split(order, settings.batch_size):
            batch = samples.batch(share[places], self.device)
            tokens = self.model.translate(batch.source, batch.source_mask, settings.beam, settings.length_penalty)
            translations[places, : tokens.shape[1]] = tokens.cpu()
            confidence, correct, nll = _token_scores(self.model(*batch.inputs), batch.targets)
            bins += functional.bin_sums(confidence, correct, settings.ece_bins).cpu()
            nll_and_count += torch.stack((nll.double().sum(), nll.new_tensor(len(nll)).double())).cpu()
        texts = self.tokenizer.decode(group.gather(translations, len(pairs)))
        metrics, signatures = score_translations(texts, pairs.target)
        nll_sum, token_count = group.sum(nll_and_count).tolist()
        metrics["nll"] = nll_sum / token_count
        metrics["ece"] = 100 * float(functional.calibration_error_of_sums(group.sum(bins)))
        columns = {"source": pairs.source, "reference": pairs.target, "translation": texts}
        predictions = {name: np.array(column) for name, column in columns.items()}
        return Evaluation(metrics, predictions, signatures, _examples(pairs, texts, lengths))


def load_data(config: Any) -> TextData:
    """The data set of a configuration."""
    return load_text(**config.data.model_dump(exclude={"vocabulary", "max_length"}))


def build_translator(settings: dict[str, Any], vocabulary: int) -> Seq2Seq:
    options = dict(settings)
    return seq2seq.create(options.pop("name"), vocabulary, **options)


def _examples(pairs: Pairs, texts: Sequence[str], lengths: Tensor) -> list[str]:
    """The translations of a short, a middling and a long sentence (lengths: (N))."""
    order = lengths.argsort(stable=True).tolist()
    lines = []
    for place in dict.fromkeys(order[len(order) * quarter // 4] for quarter in (1, 2, 3)):
        reference = "" if texts[place] == pairs.target[place] else f" (reference: {pairs.target[place]})"
        lines.append(f"{pairs.source[place]} -> {texts[place]}{reference}")
    return lines


def _token_scores(output: Output, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of every real token: confidence, whether the likeliest token was right, and -log p(label)."""
    scores = []
    for logits, own in _in_parts(output, labels):
        real = own != IGNORE_INDEX
        log_probs, own = torch.log_softmax(logits[real].float(), 1), own[real]
        best, token = log_probs.max(1)
        scores.append((best.exp(), token == own, -log_probs.gather(1, own[:, None]).squeeze(1)))
    confidence, correct, nll = (torch.cat(column) for column in zip(*scores, strict=True))
    return confidence, correct, nll


def _in_parts(output: Output, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits (n, K) and labels (n) of all positions. A LinearHead gives them part by part."""
    if isinstance(output, LinearHead):
        for part in output.parts():
            yield output.part(part).logits(), part.of(labels)
    else:
        yield output.movedim(1, -1).flatten(0, 1), labels.flatten()


def _lines(files: Sequence[str], texts: Sequence[str]) -> Iterator[str | PskdError]:
    yield from (_sentence(text.encode(errors="surrogateescape"), "--text") for text in texts)
    for name in files or (["-"] if not texts else []):
        if name == "-" and sys.stdin.isatty():
            raise PskdError('which text? for example: pskd predict RUN --text "Guten Morgen", or a file, or a pipe')
        try:
            with open(0, "rb", closefd=False) if name == "-" else open_file(name) as file:
                number = 0
                while raw := file.readline(LONGEST_LINE + 1):
                    number += 1
                    yield _sentence(raw, f"{name}, line {number}")
        except OSError as error:
            yield PskdError(f"cannot read '{name}' ({error.strerror})")
        except PskdError as error:
            yield error


def _sentence(raw: bytes, where: str) -> str | PskdError:
    """A line of text, or what is wrong with it."""
    try:
        text = raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        return PskdError(f"{where}: not UTF-8")
    if len(raw) > LONGEST_LINE or max(map(len, text.split()), default=0) > LONGEST_WORD:
        return PskdError(f"{where}: a line of more than {LONGEST_LINE:,} bytes, or a word of {LONGEST_WORD:,} letters")
    return text
