"""A finished translation run put to work."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from pskd.errors import PskdError
from pskd.workbench.config import Config
from pskd.workbench.data.text import sources
from pskd.workbench.data.text.pairs import LONGEST_WORD, TextData
from pskd.workbench.data.text.tokenizer import END, PAD, UNKNOWN, Tokenizer
from pskd.workbench.models import seq2seq
from pskd.workbench.models.seq2seq import POSITIONS, Seq2Seq
from pskd.workbench.reading import open_file
from pskd.workbench.runs.group import Group
from pskd.workbench.runs.trust import plain_options
from pskd.workbench.tasks.predictor import About, Answer, Predictor
from pskd.workbench.tasks.translation.scores import Encoded, translate_split

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
    """One sentence and what it became."""

    def __init__(self, source: str, translation: str) -> None:
        self.source, self.translation = source, translation

    def text(self) -> str:
        return self.translation

    def to_dict(self) -> dict[str, Any]:
        return {"source": self.source, "translation": self.translation}


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
        return seq2seq_model({"name": str(name), **plain_options(options)}, len(Tokenizer.from_json(about.tokenizer)))

    @torch.no_grad()
    def predict(
        self, inputs: Sequence[str], texts: Sequence[str] = (), **_: Any
    ) -> Iterator[TranslatedText | PskdError]:
        """Translations of the ``texts``, then of every line of the files ``inputs``; or of what is piped in."""
        lines = _lines(inputs, texts)
        while group := list(islice(lines, BATCH)):
            wanted = [text for text in group if isinstance(text, str) and text.strip()]
            found: Iterator[str] = iter(())
            if wanted:
                source, mask = self.preprocess(wanted)
                search = self.about.search.model_dump()
                rows = self.model.translate(source.to(self.device), mask.to(self.device), **search)
                found = iter(self.tokenizer.decode(rows.cpu()))
            for text in group:
                if isinstance(text, PskdError):
                    yield text
                else:
                    yield TranslatedText(text, next(found) if text.strip() else "")

    def answers(self, inputs: Sequence[str], **options: Any) -> Iterator[TranslatedText | PskdError]:
        """Translations of sentences."""
        return self.predict([], texts=inputs, **options) if inputs else iter(())

    def preprocess(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token numbers (B, S) of sentences, and which of them are real."""
        source, mask, _ = self.tokenizer.encode(texts, POSITIONS).batch(torch.arange(len(texts)))
        return source, mask

    def save_for_hub(self, folder: Path, weights_file: Path) -> None:
        """As transformers has it. The search is the run's own; how long a translation may be, the caller says."""
        from tokenizers import Tokenizer as Encoding
        from tokenizers import processors

        encoding = Encoding.from_str(self.about.tokenizer)
        end = encoding.id_to_token(END)
        encoding.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, END)])
        named = {"pad_token": encoding.id_to_token(PAD), "eos_token": end, "unk_token": encoding.id_to_token(UNKNOWN)}
        library: Any = import_module("transformers")
        tokenizer = library.PreTrainedTokenizerFast(
            tokenizer_object=encoding,
            model_max_length=POSITIONS,
            clean_up_tokenization_spaces=False,
            model_input_names=["input_ids", "attention_mask"],  # older versions add token types, which it does not take
            **named,
        )
        net = self.model.net
        net.generation_config = self.model.search(max_new_tokens=POSITIONS - 1, **self.about.search.model_dump())
        net.generation_config.forced_eos_token_id = END  # a translation that reaches its limit ends there, as ours does
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar, on no terminal too
            net.save_pretrained(folder, safe_serialization=True)
        tokenizer.save_pretrained(folder)

    def loading(self) -> dict[str, str]:
        lines = (
            "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n\n"
            'tokenizer = AutoTokenizer.from_pretrained("FOLDER")\n'
            'model = AutoModelForSeq2SeqLM.from_pretrained("FOLDER")\n'
            'sentence = tokenizer("a sentence", return_tensors="pt")\n'
            'found = model.generate(**sentence, max_new_tokens=2 * sentence["input_ids"].shape[1] + 10)\n'
            "print(tokenizer.decode(found[0], skip_special_tokens=True))"
        )
        return {"transformers": lines}

    def evaluate(self, config: Config, split: str, group: Group) -> dict[str, Any]:
        found = load_data(config)
        pairs = {"test": found.test, "val": found.val}.get(split)
        if pairs is None:
            allowed = "test" if found.val is None else "test, val"
            raise PskdError(f"split {split!r} is not there; allowed are {allowed}")
        evaluation = translate_split(
            self.model, Encoded.of(pairs, self.tokenizer), self.tokenizer, config, self.device, group
        )
        return {**evaluation.metrics, "signatures": evaluation.signatures}


def load_data(config: Any) -> TextData:
    """The data set of a configuration."""
    return sources.load(**config.data.model_dump(exclude={"vocabulary", "max_length"}))


def seq2seq_model(settings: dict[str, Any], vocabulary: int) -> Seq2Seq:
    options = dict(settings)
    return seq2seq.create(options.pop("name"), vocabulary, **options)


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
    """A line of text, or why it is none."""
    try:
        text = raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        return PskdError(f"{where}: not UTF-8")
    if len(raw) > LONGEST_LINE or max(map(len, text.split()), default=0) > LONGEST_WORD:
        return PskdError(f"{where}: a line of more than {LONGEST_LINE:,} bytes, or a word of {LONGEST_WORD:,} letters")
    return text
